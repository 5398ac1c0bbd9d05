//! How many sessions live, counted before they do: so that no race overshoots a cap.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use memoird_core::ids::TenantId;

use crate::tenant::Tenant;

/// The places for sessions, per tenant and of the process.
#[derive(Debug)]
pub(crate) struct Capacity {
    /// 0: no cap.
    max_sessions: AtomicUsize,
    counts: Mutex<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    total: usize,
    by_tenant: HashMap<TenantId, usize>,
    /// The same the other way round: who has the most is at the end.
    by_count: BTreeSet<(usize, TenantId)>,
}

/// Whether there is a place for one more session.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// There is, and it is taken.
    Taken,
    /// There is not: this tenant has to give up its longest idle session.
    From(TenantId),
}

impl Capacity {
    pub(crate) fn new(max_sessions: usize) -> Self {
        Self {
            max_sessions: AtomicUsize::new(max_sessions),
            counts: Mutex::default(),
        }
    }

    /// Another cap of the process applies from now on.
    pub(crate) fn set_max_sessions(&self, max_sessions: usize) {
        self.max_sessions.store(max_sessions, Ordering::Relaxed);
    }

    fn max_sessions(&self) -> usize {
        self.max_sessions.load(Ordering::Relaxed)
    }

    /// Takes a place for a session of `tenant`, or tells who has to give one up. A
    /// tenant at its own cap gives up one of its own; at the cap of the process the one
    /// with the most does, and among equals the one that asks.
    pub(crate) fn take(&self, tenant: &Tenant) -> Place {
        let mut counts = self.lock();
        let own = counts.of(&tenant.id);
        let (own_max, max) = (tenant.policy().max_sessions, self.max_sessions());
        if own_max > 0 && own >= own_max {
            return Place::From(tenant.id.clone());
        }
        if max > 0 && counts.total >= max {
            let most = counts.by_count.last().filter(|(most, _)| *most > own);
            return Place::From(most.map_or(tenant.id.clone(), |(_, id)| id.clone()));
        }
        counts.change(&tenant.id, own + 1);
        Place::Taken
    }

    /// Takes a place whatever the caps say: for a session that lives already.
    pub(crate) fn take_anyway(&self, tenant: &TenantId) {
        let mut counts = self.lock();
        let count = counts.of(tenant) + 1;
        counts.change(tenant, count);
    }

    /// Gives the place of an ended session back.
    pub(crate) fn give_back(&self, tenant: &TenantId) {
        let mut counts = self.lock();
        let count = counts.of(tenant).saturating_sub(1);
        counts.change(tenant, count);
    }

    /// Gives the place of an ended session to a new one.
    pub(crate) fn pass_on(&self, from: &TenantId, to: &TenantId) {
        let mut counts = self.lock();
        let left = counts.of(from).saturating_sub(1);
        counts.change(from, left);
        let count = counts.of(to) + 1;
        counts.change(to, count);
    }

    /// Who has more sessions than a cap allows, if anyone has.
    pub(crate) fn overfull<'a>(
        &self,
        mut tenants: impl Iterator<Item = &'a Tenant>,
    ) -> Option<TenantId> {
        let counts = self.lock();
        let over = |tenant: &&Tenant| {
            let own_max = tenant.policy().max_sessions;
            own_max > 0 && counts.of(&tenant.id) > own_max
        };
        if let Some(tenant) = tenants.find(over) {
            return Some(tenant.id.clone());
        }
        let max = self.max_sessions();
        let over = max > 0 && counts.total > max;
        counts
            .by_count
            .last()
            .filter(|_| over)
            .map(|(_, id)| id.clone())
    }

    pub(crate) fn of(&self, tenant: &TenantId) -> usize {
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
    use crate::config::{EngineConfig, TenantLimits};
    use crate::tenant::Policy;

    fn tenant(id: &str, max_sessions: usize) -> Tenant {
        let own = TenantLimits {
            max_sessions: Some(max_sessions),
            ..TenantLimits::default()
        };
        let policy = Policy::new(&EngineConfig::default(), &own);
        Tenant::new(TenantId::parse(id).unwrap(), policy)
    }

    #[test]
    fn nobody_loses_a_session_to_one_that_holds_more() {
        let capacity = Capacity::new(4);
        let (small, large) = (tenant("small", 0), tenant("large", 0));
        for _ in 0..3 {
            assert_eq!(capacity.take(&large), Place::Taken);
        }
        assert_eq!(capacity.take(&small), Place::Taken);
        assert_eq!(capacity.take(&small), Place::From(large.id.clone()));
        assert_eq!(capacity.take(&large), Place::From(large.id.clone()));
        capacity.give_back(&large.id);
        assert_eq!(capacity.take(&small), Place::Taken);
        // Two and two: whoever asks pays.
        assert_eq!(capacity.take(&small), Place::From(small.id.clone()));
        assert_eq!(capacity.take(&large), Place::From(large.id.clone()));
    }

    #[test]
    fn a_tenant_at_its_own_cap_gives_up_its_own() {
        let capacity = Capacity::new(0);
        let capped = tenant("capped", 1);
        assert_eq!(capacity.take(&capped), Place::Taken);
        assert_eq!(capacity.take(&capped), Place::From(capped.id.clone()));
        capacity.take_anyway(&capped.id);
        assert_eq!(
            capacity.overfull([&capped].into_iter()),
            Some(capped.id.clone())
        );
    }
}
