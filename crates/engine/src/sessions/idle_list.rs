//! A tenant's sessions in LRU order, with indexes for listing them.
//!
//! Eviction takes the front of the order, and the sweeper takes expired sessions from the front
//! until it reaches a live one. If there are TTL classes, each class has its own LRU order for the
//! sweeper. The cost of both does not depend on the number of sessions.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use memoird_core::session::Head;
use memoird_core::time::Steady;

use super::index::SessionIndex;
use super::slot::Slot;
use super::unload::LoadedQueue;
use super::use_list::{Direction, Entry, PageStart, UseList};

#[derive(Debug, Default)]
pub(super) struct IdleList {
    lists: Mutex<Lists>,
    /// Sessions by id, subject and label.
    pub(super) index: SessionIndex,
    /// Queue of loaded sessions.
    pub(super) loaded: LoadedQueue,
}

#[derive(Debug, Default)]
struct Lists {
    all: UseList,
    /// Sessions by TTL class, if there are classes.
    by_class: Option<Box<ByClass>>,
}

#[derive(Debug, Default)]
struct ByClass {
    named: BTreeMap<Arc<str>, UseList>,
    /// Sessions without a class, or with one that is not configured.
    others: UseList,
}

impl IdleList {
    /// Appends a session as the most recently used, replacing any entry with the same id.
    pub(super) fn push(&self, slot: &Arc<Slot>, head: &Head) {
        let mut lists = self.lock();
        lists.remove_id(slot);
        let entry = entry(slot, head);
        if let Some(of_class) = lists.of_class(entry.class.as_ref()) {
            of_class.push(entry.clone());
        }
        lists.all.push(entry);
    }

    /// Moves a session to the back after a use. See [`UseList::touch`].
    pub(super) fn touch(&self, slot: &Arc<Slot>, last_access: Steady) {
        let mut lists = self.lock();
        lists.all.touch(slot, last_access);
        if lists.by_class.is_some() {
            let known = lists.all.get(&slot.key.session);
            let class = known.and_then(|entry| entry.class.clone());
            if let Some(of_class) = lists.of_class(class.as_ref()) {
                of_class.touch(slot, last_access);
            }
        }
    }

    /// Inserts a session by its last use, replacing any entry with the same id.
    pub(super) fn insert(&self, slot: &Arc<Slot>, head: &Head) {
        self.lock().insert(entry(slot, head));
    }

    /// Moves a session to its position by last use and class, if it is in the list.
    pub(super) fn reorder(&self, slot: &Arc<Slot>, head: &Head) {
        let mut lists = self.lock();
        let entry = entry(slot, head);
        let is_wrong = |known: &Entry| {
            Arc::ptr_eq(&known.slot, slot)
                && (known.last_access, &known.class) != (entry.last_access, &entry.class)
        };
        if lists.all.get(&slot.key.session).is_some_and(is_wrong) {
            lists.insert(entry);
        }
    }

    /// Removes a session, unless its id belongs to another slot by now.
    pub(super) fn remove(&self, slot: &Arc<Slot>) {
        self.lock().remove(slot);
    }

    pub(super) fn set_classes<'a>(&self, names: impl ExactSizeIterator<Item = &'a Arc<str>>) {
        let mut lists = self.lock();
        if names.len() == 0 {
            lists.by_class = None;
            return;
        }
        let names: Vec<&Arc<str>> = names.collect();
        let known = lists.by_class.as_ref();
        if known.is_some_and(|known| known.named.keys().eq(names.iter().copied())) {
            return;
        }
        let lists = &mut *lists;
        let mut by_class = ByClass {
            named: names
                .into_iter()
                .map(|name| (Arc::clone(name), UseList::default()))
                .collect(),
            others: UseList::default(),
        };
        for entry in lists.all.entries() {
            by_class.list(entry.class.as_ref()).push(entry.clone());
        }
        lists.by_class = Some(Box::new(by_class));
    }

    /// Returns an expired session: the longest idle one of some class.
    pub(super) fn expired(
        &self,
        now: Steady,
        ttl_ms: impl Fn(Option<&str>) -> u64,
    ) -> Option<Entry> {
        let lists = self.lock();
        let oldest_of = |list: &UseList, class: Option<&str>| {
            let is_expired = |entry: &&Entry| now.since(entry.last_access) >= ttl_ms(class);
            list.oldest().filter(is_expired).cloned()
        };
        let Some(by_class) = &lists.by_class else {
            return oldest_of(&lists.all, None);
        };
        let mut named = by_class.named.iter();
        named
            .find_map(|(name, list)| oldest_of(list, Some(name)))
            .or_else(|| oldest_of(&by_class.others, None))
    }

    pub(super) fn slots(&self) -> Vec<Arc<Slot>> {
        let lists = self.lock();
        let entries = lists.all.entries();
        entries.map(|entry| Arc::clone(&entry.slot)).collect()
    }

    pub(super) fn oldest(&self) -> Option<Entry> {
        self.lock().all.oldest().cloned()
    }

    /// Returns up to `count` sessions in one direction.
    pub(super) fn page(
        &self,
        start: PageStart<'_>,
        direction: Direction,
        count: usize,
    ) -> Vec<Entry> {
        self.lock().all.page(start, direction, count)
    }

    fn lock(&self) -> MutexGuard<'_, Lists> {
        self.lists.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lists {
    fn insert(&mut self, entry: Entry) {
        self.remove_id(&entry.slot);
        if let Some(of_class) = self.of_class(entry.class.as_ref()) {
            of_class.insert(entry.clone());
        }
        self.all.insert(entry);
    }

    fn remove(&mut self, slot: &Arc<Slot>) {
        let known = self.all.get(&slot.key.session);
        if known.is_some_and(|known| Arc::ptr_eq(&known.slot, slot)) {
            self.remove_id(slot);
        }
    }

    /// Removes the session with this slot's id, whichever slot that is.
    fn remove_id(&mut self, slot: &Arc<Slot>) {
        let id = &slot.key.session;
        let Some(known) = self.all.remove(id) else {
            return;
        };
        if let Some(of_class) = self.of_class(known.class.as_ref()) {
            of_class.remove(id);
        }
    }

    fn of_class(&mut self, class: Option<&Arc<str>>) -> Option<&mut UseList> {
        self.by_class.as_mut().map(|by_class| by_class.list(class))
    }
}

impl ByClass {
    fn list(&mut self, class: Option<&Arc<str>>) -> &mut UseList {
        match class.and_then(|class| self.named.get_mut(class)) {
            Some(named) => named,
            None => &mut self.others,
        }
    }
}

fn entry(slot: &Arc<Slot>, head: &Head) -> Entry {
    let options = head.options.as_ref();
    Entry {
        slot: Arc::clone(slot),
        last_access: head.last_access,
        class: options.and_then(|options| options.ttl_class.clone()),
    }
}

#[cfg(test)]
mod tests {
    use memoird_core::ids::{Generation, SessionId, SessionKey, TenantId};
    use memoird_core::time::Timestamp;

    use super::super::slot::SlotState;
    use super::*;
    use crate::tenants::{Policy, SharedUsage, Tenant, TenantLimits, TenantsConfig};

    struct Lists {
        tenant: Arc<Tenant>,
        list: Arc<IdleList>,
    }

    impl Lists {
        fn new() -> Self {
            let id = TenantId::parse("t").unwrap();
            let policy = Policy::new(&TenantsConfig::default(), &TenantLimits::default());
            Self {
                tenant: Arc::new(Tenant::new(id, policy, &SharedUsage::default())),
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

        fn head(&self, at: u64) -> Head {
            Head::begin(Generation::new(0, 0), Timestamp::default(), Steady(at))
        }

        fn times(&self, start: PageStart<'_>, direction: Direction, count: usize) -> Vec<u64> {
            let page = self.list.page(start, direction, count);
            page.iter().map(|entry| entry.last_access.0).collect()
        }
    }

    #[test]
    fn insert_keeps_list_ordered_by_last_access() {
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
                lists.list.push(&slot, &lists.head(*time));
            }
            lists.list.insert(&lists.slot("6"), &lists.head(6));
            let order = lists.times(PageStart::First, Direction::Oldest, 10);
            let mut expected = times;
            expected.push(6);
            expected.sort_unstable();
            assert_eq!(order, expected);
        }
    }

    #[test]
    fn late_touch_keeps_list_ordered_by_last_access() {
        let lists = Lists::new();
        let [a, b] = ["a", "b"].map(|session| lists.slot(session));
        lists.list.push(&a, &lists.head(1));
        lists.list.push(&b, &lists.head(2));
        lists.list.touch(&b, Steady(5));
        lists.list.touch(&a, Steady(4));
        assert_eq!(lists.times(PageStart::First, Direction::Newest, 9), [5, 4]);
        assert!(Arc::ptr_eq(&lists.list.oldest().unwrap().slot, &a));
    }

    /// Checks the skip pointers and the distances between them.
    fn check_skip_pointers(list: &UseList, seed: u64) {
        let mut since = 0;
        let mut count = 0;
        for (entry, is_skip_pointer) in list.nodes() {
            since += 1;
            if is_skip_pointer {
                assert!(list.has_skip_pointer(entry), "seed {seed}");
                (count, since) = (count + 1, 0);
            }
            assert!(
                since <= 2 * UseList::SKIP_POINTER_EVERY,
                "seed {seed}: a long way"
            );
        }
        assert_eq!(count, list.skip_pointers(), "seed {seed}");
    }

    #[test]
    fn random_operations_keep_time_lookup_correct() {
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
                lists.list.push(slot, &lists.head(now));
            }
            for _ in 0..6_000 {
                now += below(2);
                let slot = &slots[usize::try_from(below(slots.len() as u64)).unwrap()];
                match below(20) {
                    0 => lists.list.remove(slot),
                    1 => lists.list.insert(slot, &lists.head(below(now))),
                    2 => lists.list.touch(slot, Steady(now.saturating_sub(below(9)))),
                    _ => lists.list.touch(slot, Steady(now)),
                }
            }
            check_skip_pointers(&lists.list.lock().all, seed);
            let all = lists.times(PageStart::First, Direction::Oldest, 10_000);
            assert!(all.is_sorted(), "seed {seed}");
            for _ in 0..300 {
                let at = below(now + 2);
                let later: Vec<u64> = all.iter().copied().filter(|time| *time >= at).collect();
                let start = PageStart::From(Steady(at));
                let found = lists.times(start, Direction::Oldest, 5);
                assert_eq!(found, later[..later.len().min(5)], "seed {seed}: from {at}");
                let earlier: Vec<u64> = all
                    .iter()
                    .rev()
                    .copied()
                    .filter(|time| *time <= at)
                    .take(5)
                    .collect();
                let found = lists.times(start, Direction::Newest, 5);
                assert_eq!(found, earlier, "seed {seed}: until {at}");
            }
        }
    }
}
