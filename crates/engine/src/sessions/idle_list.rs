//! A tenant's sessions: in the order of their last use, and by what a list of them is asked for.
//!
//! All sessions of a tenant have the same TTL, so one order serves both needs: the
//! sweeper takes expired sessions from its front until it meets a live one, and a cap
//! evicts its front. Both cost the same with a thousand sessions and with a million.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use memoird_core::time::Steady;

use super::index::SessionIndex;
use super::slot::Slot;
use super::unload::LoadedQueue;
use super::use_list::{Direction, Entry, PageStart, UseList};

/// A tenant's sessions, longest idle first.
#[derive(Debug, Default)]
pub(super) struct IdleList {
    list: Mutex<UseList>,
    /// The same by id, subject and label.
    pub(super) index: SessionIndex,
    /// Those of them that are loaded.
    pub(super) loaded: LoadedQueue,
}

impl IdleList {
    /// Puts a session at the back, in place of any other of its id.
    pub(super) fn push(&self, slot: &Arc<Slot>, last_access: Steady) {
        self.lock().push(entry(slot, last_access));
    }

    /// Moves a session that was just used to the back, if it is still in the list. One that
    /// was used a moment later may be there already.
    pub(super) fn touch(&self, slot: &Arc<Slot>, last_access: Steady) {
        self.lock().touch(slot, last_access);
    }

    /// Puts a session where it belongs by its last use, in place of any other of its id.
    pub(super) fn insert(&self, slot: &Arc<Slot>, last_access: Steady) {
        self.lock().insert(entry(slot, last_access));
    }

    /// Moves a session to where it belongs by its last use, if it is in the list at all.
    pub(super) fn reorder(&self, slot: &Arc<Slot>, last_access: Steady) {
        let mut list = self.lock();
        let is_wrong =
            |entry: &Entry| Arc::ptr_eq(&entry.slot, slot) && entry.last_access != last_access;
        if list.get(&slot.key.session).is_some_and(is_wrong) {
            list.insert(entry(slot, last_access));
        }
    }

    /// Takes a session out, unless another one has its id by now.
    pub(super) fn remove(&self, slot: &Arc<Slot>) {
        self.lock().remove(slot);
    }

    /// All its sessions, longest idle first.
    pub(super) fn slots(&self) -> Vec<Arc<Slot>> {
        let list = self.lock();
        list.entries()
            .map(|entry| Arc::clone(&entry.slot))
            .collect()
    }

    /// The longest idle session.
    pub(super) fn oldest(&self) -> Option<Entry> {
        self.lock().oldest().cloned()
    }

    /// Up to `count` sessions in one direction.
    pub(super) fn page(
        &self,
        start: PageStart<'_>,
        direction: Direction,
        count: usize,
    ) -> Vec<Entry> {
        self.lock().page(start, direction, count)
    }

    fn lock(&self) -> MutexGuard<'_, UseList> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn entry(slot: &Arc<Slot>, last_access: Steady) -> Entry {
    Entry {
        slot: Arc::clone(slot),
        last_access,
    }
}

#[cfg(test)]
mod tests {
    use memoird_core::ids::{SessionId, SessionKey, TenantId};

    use super::super::slot::SlotState;
    use super::*;
    use crate::tenants::{Policy, Tenant, TenantLimits, TenantsConfig, UseOfAll};

    struct Lists {
        tenant: Arc<Tenant>,
        list: Arc<IdleList>,
    }

    impl Lists {
        fn new() -> Self {
            let id = TenantId::parse("t").unwrap();
            let policy = Policy::new(&TenantsConfig::default(), &TenantLimits::default());
            Self {
                tenant: Arc::new(Tenant::new(id, policy, &UseOfAll::default())),
                list: Arc::new(IdleList::default()),
            }
        }

        fn slot(&self, session: &str) -> Arc<Slot> {
            let key = SessionKey {
                tenant: self.tenant.id.clone(),
                session: SessionId::parse(session).unwrap(),
            };
            let (tenant, list) = (Arc::clone(&self.tenant), Arc::clone(&self.list));
            Slot::new(key, tenant, list, SlotState::Ended)
        }

        fn times(&self, start: PageStart<'_>, direction: Direction, count: usize) -> Vec<u64> {
            let page = self.list.page(start, direction, count);
            page.iter().map(|entry| entry.last_access.0).collect()
        }
    }

    #[test]
    fn a_session_that_comes_back_stands_where_it_belongs() {
        for times in [
            vec![],
            vec![5],
            vec![7],
            vec![1, 3, 5, 7, 9],
            vec![7, 8, 9],
            vec![1, 2, 5],
        ] {
            let lists = Lists::new();
            for time in &times {
                let slot = lists.slot(&time.to_string());
                lists.list.push(&slot, Steady(*time));
            }
            lists.list.insert(&lists.slot("6"), Steady(6));
            let order = lists.times(PageStart::First, Direction::Oldest, 10);
            let mut expected = times;
            expected.push(6);
            expected.sort_unstable();
            assert_eq!(order, expected);
        }
    }

    #[test]
    fn who_is_touched_late_stands_before_those_used_later() {
        let lists = Lists::new();
        let [a, b] = ["a", "b"].map(|session| lists.slot(session));
        lists.list.push(&a, Steady(1));
        lists.list.push(&b, Steady(2));
        lists.list.touch(&b, Steady(5));
        lists.list.touch(&a, Steady(4));
        assert_eq!(lists.times(PageStart::First, Direction::Newest, 9), [5, 4]);
        assert!(Arc::ptr_eq(&lists.list.oldest().unwrap().slot, &a));
    }

    /// The marks, and what lies between them.
    fn check_marks(list: &UseList, seed: u64) {
        let mut since = 0;
        let mut marked = 0;
        for (entry, is_marked) in list.marked() {
            since += 1;
            if is_marked {
                assert!(list.has_mark(entry), "seed {seed}");
                (marked, since) = (marked + 1, 0);
            }
            assert!(since <= 2 * UseList::MARK_EVERY, "seed {seed}: a long way");
        }
        assert_eq!(marked, list.marks(), "seed {seed}");
    }

    #[test]
    fn any_time_is_found_however_sessions_are_used() {
        for seed in 1..=6_u64 {
            println!("seed {seed}");
            let lists = Lists::new();
            let slots: Vec<_> = (0..1_500).map(|at| lists.slot(&at.to_string())).collect();
            let mut random = seed;
            let mut below = |bound: u64| {
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(seed);
                (random >> 33) % bound
            };
            let mut now = 0;
            for (at, slot) in slots.iter().enumerate() {
                now += u64::from(at % 3 > 0);
                lists.list.push(slot, Steady(now));
            }
            for _ in 0..6_000 {
                now += below(2);
                let slot = &slots[below(slots.len() as u64) as usize];
                match below(20) {
                    0 => lists.list.remove(slot),
                    1 => lists.list.insert(slot, Steady(below(now))),
                    2 => lists.list.touch(slot, Steady(now.saturating_sub(below(9)))),
                    _ => lists.list.touch(slot, Steady(now)),
                }
            }
            check_marks(&lists.list.lock(), seed);
            let all = lists.times(PageStart::First, Direction::Oldest, 10_000);
            assert!(all.is_sorted(), "seed {seed}");
            for _ in 0..300 {
                let at = below(now + 2);
                let later: Vec<u64> = all.iter().copied().filter(|time| *time >= at).collect();
                let start = PageStart::From(Steady(at));
                let found = lists.times(start, Direction::Oldest, 5);
                assert_eq!(found, later[..later.len().min(5)], "seed {seed}: from {at}");
                let earlier = all.iter().rev().copied().filter(|time| *time <= at);
                let earlier: Vec<u64> = earlier.take(5).collect();
                let found = lists.times(start, Direction::Newest, 5);
                assert_eq!(found, earlier, "seed {seed}: until {at}");
            }
        }
    }
}
