//! How many sessions live, and which was idle longest. Counted before a session starts, so that
//! no race overshoots a cap.
//!
//! It counts what is in this process's table. Without a cluster that is every session that lives;
//! in a cluster the caps are kept by what the journal says (`cluster`).

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dashmap::DashMap;
use memoird_core::ids::TenantId;
use tokio::sync::Notify;

use super::idle_list::IdleList;
use crate::tenants::Tenant;

/// Counts and idle lists of sessions, by tenant.
#[derive(Debug)]
pub(super) struct Census {
    /// Of the process; 0: no cap.
    max_sessions: AtomicUsize,
    counts: Mutex<Counts>,
    idle: DashMap<TenantId, Arc<IdleList>>,
    /// Notified when tenants have other policies.
    pub(super) policies_changed: Notify,
    /// Notified when a place was given back, or a session came into a list.
    pub(super) changed: Notify,
}

#[derive(Debug, Default)]
struct Counts {
    total: usize,
    by_tenant: HashMap<TenantId, usize>,
    /// The same the other way round: the tenant with the most sessions is last.
    by_count: BTreeSet<(usize, TenantId)>,
}

/// Whether one more session may start.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Reservation {
    /// It may, and is counted.
    Taken,
    /// First the longest idle session of this tenant has to end.
    EvictFrom(TenantId),
}

/// A place that is counted for a session which does not live yet: given back unless it starts.
#[derive(Clone, Debug)]
pub(super) struct ReservedPlace {
    inner: Arc<PlaceInner>,
}

#[derive(Debug)]
struct PlaceInner {
    census: Arc<Census>,
    tenant: TenantId,
    /// True once it is given back, or the session lives.
    is_settled: AtomicBool,
}

impl ReservedPlace {
    /// A place that was taken for a session of this tenant.
    pub(super) fn new(census: &Arc<Census>, tenant: &TenantId) -> Self {
        let inner = PlaceInner {
            census: Arc::clone(census),
            tenant: tenant.clone(),
            is_settled: AtomicBool::new(false),
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    /// The session lives now.
    pub(super) fn keep(&self) {
        self.inner.is_settled.store(true, Ordering::Relaxed);
        self.inner.census.changed.notify_waiters();
    }

    /// The session does not start, or its place was not free after all.
    pub(super) fn give_back(&self) {
        self.inner.give_back();
    }
}

impl PlaceInner {
    fn give_back(&self) {
        if !self.is_settled.swap(true, Ordering::Relaxed) {
            self.census.give_back(&self.tenant);
        }
    }
}

impl Drop for PlaceInner {
    fn drop(&mut self) {
        self.give_back();
    }
}

impl Census {
    pub(super) fn new(max_sessions: usize) -> Self {
        Self {
            max_sessions: AtomicUsize::new(max_sessions),
            counts: Mutex::default(),
            idle: DashMap::new(),
            policies_changed: Notify::new(),
            changed: Notify::new(),
        }
    }

    /// The sessions of a tenant by their last use.
    pub(super) fn idle_list(&self, tenant: &TenantId) -> Arc<IdleList> {
        if let Some(known) = self.idle.get(tenant) {
            return Arc::clone(&known);
        }
        Arc::clone(&self.idle.entry(tenant.clone()).or_default())
    }

    /// Another cap of the process applies from now on.
    pub(super) fn set_max_sessions(&self, max_sessions: usize) {
        self.max_sessions.store(max_sessions, Ordering::Relaxed);
    }

    /// The cap of the process; 0: none.
    pub(super) fn max_sessions(&self) -> usize {
        self.max_sessions.load(Ordering::Relaxed)
    }

    /// Counts one more session of `tenant`, or says who has to give one up. A tenant at its
    /// own cap gives up one of its own; at the cap of the process the tenant with the most
    /// sessions does, and among equals the one that asks.
    pub(super) fn reserve(&self, tenant: &Tenant) -> Reservation {
        let mut counts = self.lock();
        let own = counts.of(&tenant.id);
        let own_max = tenant.policy().max_sessions;
        let max = self.max_sessions();
        if own_max > 0 && own >= own_max {
            return Reservation::EvictFrom(tenant.id.clone());
        }
        if max > 0 && counts.total >= max {
            let most = counts.by_count.last().filter(|(most, _)| *most > own);
            let victim = most.map_or(&tenant.id, |(_, id)| id);
            return Reservation::EvictFrom(victim.clone());
        }
        counts.change(&tenant.id, own + 1);
        Reservation::Taken
    }

    /// Counts one more session whatever the caps say: one that lives already.
    pub(super) fn take_anyway(&self, tenant: &TenantId) {
        let mut counts = self.lock();
        let count = counts.of(tenant) + 1;
        counts.change(tenant, count);
    }

    /// Counts one session less.
    pub(super) fn give_back(&self, tenant: &TenantId) {
        let mut counts = self.lock();
        let count = counts.of(tenant).saturating_sub(1);
        counts.change(tenant, count);
        drop(counts);
        self.changed.notify_waiters();
    }

    /// Counts a session less of one tenant and one more of the other, at once.
    pub(super) fn pass_on(&self, from: &TenantId, to: &TenantId) {
        let mut counts = self.lock();
        let left = counts.of(from).saturating_sub(1);
        counts.change(from, left);
        let count = counts.of(to) + 1;
        counts.change(to, count);
    }

    /// A tenant that has more sessions than a cap allows, if there is one.
    pub(super) fn overfull(&self, tenants: &[Arc<Tenant>]) -> Option<TenantId> {
        let counts = self.lock();
        let is_over = |tenant: &&Arc<Tenant>| {
            let own_max = tenant.policy().max_sessions;
            own_max > 0 && counts.of(&tenant.id) > own_max
        };
        if let Some(tenant) = tenants.iter().find(is_over) {
            return Some(tenant.id.clone());
        }
        let max = self.max_sessions();
        let is_over = max > 0 && counts.total > max;
        let most = counts.by_count.last().filter(|_| is_over);
        most.map(|(_, id)| id.clone())
    }

    /// Sessions of all tenants.
    pub(super) fn total(&self) -> usize {
        self.lock().total
    }

    /// Sessions of a tenant.
    pub(super) fn count(&self, tenant: &TenantId) -> usize {
        self.lock().of(tenant)
    }

    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Counts {
    fn of(&self, tenant: &TenantId) -> usize {
        self.by_tenant.get(tenant).copied().unwrap_or(0)
    }

    fn change(&mut self, tenant: &TenantId, count: usize) {
        let before = self.by_tenant.insert(tenant.clone(), count).unwrap_or(0);
        self.by_count.remove(&(before, tenant.clone()));
        if count > 0 {
            self.by_count.insert((count, tenant.clone()));
        }
        self.total = self.total + count - before;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tenants::{Policy, TenantLimits, TenantsConfig, UseOfAll};

    fn tenant(id: &str, max_sessions: usize) -> Arc<Tenant> {
        let own = TenantLimits {
            max_sessions: Some(max_sessions),
            ..TenantLimits::default()
        };
        let policy = Policy::new(&TenantsConfig::default(), &own);
        Arc::new(Tenant::new(
            TenantId::parse(id).unwrap(),
            policy,
            &UseOfAll::default(),
        ))
    }

    #[test]
    fn nobody_loses_a_session_to_one_that_holds_more() {
        let census = Census::new(4);
        let (small, large) = (tenant("small", 0), tenant("large", 0));
        for _ in 0..3 {
            assert_eq!(census.reserve(&large), Reservation::Taken);
        }
        assert_eq!(census.reserve(&small), Reservation::Taken);
        assert_eq!(
            census.reserve(&small),
            Reservation::EvictFrom(large.id.clone())
        );
        assert_eq!(
            census.reserve(&large),
            Reservation::EvictFrom(large.id.clone())
        );
        census.give_back(&large.id);
        assert_eq!(census.reserve(&small), Reservation::Taken);
        // Two each: the tenant that asks gives up its own.
        assert_eq!(
            census.reserve(&small),
            Reservation::EvictFrom(small.id.clone())
        );
        assert_eq!(
            census.reserve(&large),
            Reservation::EvictFrom(large.id.clone())
        );
    }

    #[test]
    fn a_tenant_at_its_own_cap_gives_up_its_own() {
        let census = Census::new(0);
        let capped = tenant("capped", 1);
        assert_eq!(census.reserve(&capped), Reservation::Taken);
        assert_eq!(
            census.reserve(&capped),
            Reservation::EvictFrom(capped.id.clone())
        );
        census.take_anyway(&capped.id);
        assert_eq!(
            census.overfull(&[Arc::clone(&capped)]),
            Some(capped.id.clone())
        );
    }
}
