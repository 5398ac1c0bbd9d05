//! Session counts by tenant, for enforcing the session caps.
//!
//! A session is counted before it starts, so that no race exceeds a cap. Counts cover this
//! process's table. Without a cluster, that is every live session. In a cluster, caps are enforced
//! by counts from the journal instead (`cluster`).

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use memoird_core::ids::TenantId;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::tenants::Tenant;

/// Session counts, by tenant.
#[derive(Debug)]
pub(super) struct Census {
    max_sessions: AtomicUsize,
    counts: Mutex<Counts>,
    pub(super) policies_changed: Notify,
    /// Notified when a reservation is released or a session becomes live.
    pub(super) changed: Notify,
}

#[derive(Debug, Default)]
struct Counts {
    total: usize,
    by_tenant: HashMap<TenantId, usize>,
    /// Tenants ordered by count, so that the one with the most sessions is last.
    by_count: BTreeSet<(usize, TenantId)>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum ReserveOutcome {
    /// Reserved and counted.
    Reserved,
    /// A cap is reached. The longest idle session of this tenant must end first.
    EvictFrom(TenantId),
}

/// A session that is counted but not yet live. Released on drop unless the session starts.
#[derive(Debug)]
pub(super) struct SessionReservation {
    census: Arc<Census>,
    tenant: TenantId,
    /// Set once the reservation is released or the session is live.
    is_closed: AtomicBool,
}

impl SessionReservation {
    /// Wraps a count already taken for a session of this tenant.
    pub(super) fn new(census: &Arc<Census>, tenant: &TenantId) -> Arc<Self> {
        Arc::new(Self {
            census: Arc::clone(census),
            tenant: tenant.clone(),
            is_closed: AtomicBool::new(false),
        })
    }

    /// Marks the session as live.
    pub(super) fn mark_live(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
        self.census.changed.notify_waiters();
    }

    /// Releases the reservation: the session does not start, or the eviction for it failed.
    pub(super) fn release(&self) {
        if !self.is_closed.swap(true, Ordering::Relaxed) {
            self.census.release(&self.tenant);
        }
    }
}

impl Drop for SessionReservation {
    fn drop(&mut self) {
        self.release();
    }
}

impl Census {
    pub(super) fn new(max_sessions: usize) -> Self {
        Self {
            max_sessions: AtomicUsize::new(max_sessions),
            counts: Mutex::default(),
            policies_changed: Notify::new(),
            changed: Notify::new(),
        }
    }

    pub(super) fn set_max_sessions(&self, max_sessions: usize) {
        self.max_sessions.store(max_sessions, Ordering::Relaxed);
    }

    pub(super) fn max_sessions(&self) -> usize {
        self.max_sessions.load(Ordering::Relaxed)
    }

    /// Counts one more session of `tenant`, or returns the tenant that must lose one.
    ///
    /// A tenant at its own cap loses one of its own. At the cap of the process, the tenant with the
    /// most sessions loses one; in a tie with `tenant`, `tenant` does.
    pub(super) fn reserve(&self, tenant: &Tenant) -> ReserveOutcome {
        let mut counts = self.counts.lock();
        let own = counts.tenant(&tenant.id);
        let own_max = tenant.policy().max_sessions;
        let max = self.max_sessions();
        if own_max > 0 && own >= own_max {
            return ReserveOutcome::EvictFrom(tenant.id.clone());
        }
        if max > 0 && counts.total >= max {
            let most = counts.by_count.last().filter(|(most, _)| *most > own);
            let victim = most.map_or(&tenant.id, |(_, id)| id);
            return ReserveOutcome::EvictFrom(victim.clone());
        }
        counts.change(&tenant.id, own + 1);
        ReserveOutcome::Reserved
    }

    /// Counts a session that is already live, regardless of the caps.
    pub(super) fn count_unconditionally(&self, tenant: &TenantId) {
        let mut counts = self.counts.lock();
        let count = counts.tenant(tenant) + 1;
        counts.change(tenant, count);
    }

    pub(super) fn release(&self, tenant: &TenantId) {
        let mut counts = self.counts.lock();
        let count = counts.tenant(tenant).saturating_sub(1);
        counts.change(tenant, count);
        drop(counts);
        self.changed.notify_waiters();
    }

    /// Atomically uncounts a session of one tenant and counts one of another.
    pub(super) fn transfer(&self, from: &TenantId, to: &TenantId) {
        let mut counts = self.counts.lock();
        let left = counts.tenant(from).saturating_sub(1);
        counts.change(from, left);
        let count = counts.tenant(to) + 1;
        counts.change(to, count);
    }

    /// Returns a tenant with more sessions than a cap allows.
    pub(super) fn overfull(&self, tenants: &[Arc<Tenant>]) -> Option<TenantId> {
        let counts = self.counts.lock();
        let is_over = |tenant: &&Arc<Tenant>| {
            let own_max = tenant.policy().max_sessions;
            own_max > 0 && counts.tenant(&tenant.id) > own_max
        };
        if let Some(tenant) = tenants.iter().find(is_over) {
            return Some(tenant.id.clone());
        }
        let max = self.max_sessions();
        let is_over = max > 0 && counts.total > max;
        let most = counts.by_count.last().filter(|_| is_over);
        most.map(|(_, id)| id.clone())
    }

    pub(super) fn total(&self) -> usize {
        self.counts.lock().total
    }

    pub(super) fn count(&self, tenant: &TenantId) -> usize {
        self.counts.lock().tenant(tenant)
    }
}

impl Counts {
    fn tenant(&self, tenant: &TenantId) -> usize {
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
    use crate::tenants::{Policy, SharedUsage, TenantLimits, TenantsConfig};

    fn tenant(id: &str, max_sessions: usize) -> Arc<Tenant> {
        let own = TenantLimits {
            max_sessions: Some(max_sessions),
            ..TenantLimits::default()
        };
        let policy = Policy::new(&TenantsConfig::default(), &own);
        Arc::new(Tenant::new(
            TenantId::parse(id).unwrap(),
            policy,
            &SharedUsage::default(),
        ))
    }

    #[test]
    fn process_cap_never_evicts_from_tenant_with_fewer_sessions() {
        let census = Census::new(4);
        let (small, large) = (tenant("small", 0), tenant("large", 0));
        for _ in 0..3 {
            assert_eq!(census.reserve(&large), ReserveOutcome::Reserved);
        }
        assert_eq!(census.reserve(&small), ReserveOutcome::Reserved);
        assert_eq!(
            census.reserve(&small),
            ReserveOutcome::EvictFrom(large.id.clone())
        );
        assert_eq!(
            census.reserve(&large),
            ReserveOutcome::EvictFrom(large.id.clone())
        );
        census.release(&large.id);
        assert_eq!(census.reserve(&small), ReserveOutcome::Reserved);
        // Two each: the tenant that starts a session loses one.
        assert_eq!(
            census.reserve(&small),
            ReserveOutcome::EvictFrom(small.id.clone())
        );
        assert_eq!(
            census.reserve(&large),
            ReserveOutcome::EvictFrom(large.id.clone())
        );
    }

    #[test]
    fn tenant_at_its_cap_evicts_its_own_session() {
        let census = Census::new(0);
        let capped = tenant("capped", 1);
        assert_eq!(census.reserve(&capped), ReserveOutcome::Reserved);
        assert_eq!(
            census.reserve(&capped),
            ReserveOutcome::EvictFrom(capped.id.clone())
        );
        census.count_unconditionally(&capped.id);
        assert_eq!(
            census.overfull(&[Arc::clone(&capped)]),
            Some(capped.id.clone())
        );
    }
}
