//! A tenant's sessions, ordered for eviction, expiry, unloading and lists.
//!
//! Sessions are ordered by last use, with one order per TTL class, and by id, subject and label. A
//! place in an order changes only under the lock of its session, which records it.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Included, Unbounded};
use std::sync::{Arc, Weak};

use memoird_core::ids::{SessionId, Subject};
use memoird_core::options::SessionOptions;
use memoird_core::session::Head;
use memoird_core::time::Steady;
use parking_lot::Mutex;

use super::slot::Slot;

#[derive(Debug, Default)]
pub(super) struct SessionOrders {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// By TTL class. Sessions without a class are under `None`.
    by_use: BTreeMap<Option<Arc<str>>, BTreeMap<UseKey, Arc<Slot>>>,
    by_id: BTreeMap<IdKey, Arc<Slot>>,
    by_term: BTreeMap<(Term, IdKey), Arc<Slot>>,
    /// Loaded sessions, by last use when they were queued for unloading.
    ///
    /// A use costs nothing here: the session keeps its place, and is queued again when it reaches
    /// the front.
    loaded: BTreeMap<UseKey, Weak<Slot>>,
    last_number: u64,
}

/// A place in an order of time. Sessions used at the same time are in order of their uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct UseKey {
    pub(super) at: Steady,
    number: u64,
}

/// A session id as a map key, with its first bytes inline.
///
/// Most comparisons are decided by the inline bytes. The id itself is behind a pointer, and with a
/// million sessions it would miss the CPU caches.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct IdKey {
    /// Padded with zeros.
    first_bytes: u128,
    /// `None` sorts before every id.
    id: Option<SessionId>,
}

/// A term shared by sessions.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Term {
    Subject(Subject),
    Label(Arc<str>, Arc<str>),
}

/// Where a session is listed.
#[derive(Debug)]
pub(super) struct Listed {
    pub(super) used: UseKey,
    subject: Option<Subject>,
    options: Option<Arc<SessionOptions>>,
}

/// A session with its place in the order of uses.
#[derive(Clone, Debug)]
pub(super) struct UsedSession {
    pub(super) slot: Arc<Slot>,
    pub(super) used: UseKey,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum PageStart {
    First,
    After(UseKey),
    /// At this time, or at the next one in page order.
    From(Steady),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Newest,
    Oldest,
}

/// A range of sessions in id order.
#[derive(Clone, Debug)]
pub(super) struct IdRange {
    /// `None` for all sessions of the tenant.
    pub(super) term: Option<Term>,
    /// Prefix of their ids. May be empty.
    pub(super) prefix: Arc<str>,
}

impl Listed {
    fn class(&self) -> Option<&Arc<str>> {
        self.options.as_ref()?.ttl_class.as_ref()
    }

    fn has_options_of(&self, head: &Head) -> bool {
        match (&self.options, &head.options) {
            (None, None) => true,
            (Some(mine), Some(its)) => Arc::ptr_eq(mine, its) || mine == its,
            _ => false,
        }
    }

    fn terms(&self) -> impl Iterator<Item = Term> {
        let labels = self
            .options
            .iter()
            .flat_map(|options| &options.labels)
            .map(|(name, value)| Term::Label(Arc::clone(name), Arc::clone(value)));
        self.subject
            .clone()
            .map(Term::Subject)
            .into_iter()
            .chain(labels)
    }
}

impl SessionOrders {
    pub(super) fn insert(&self, slot: &Arc<Slot>, head: &Head) -> Listed {
        self.inner.lock().insert(slot, head)
    }

    pub(super) fn remove(&self, slot: &Slot, listed: &Listed) {
        self.inner.lock().remove(slot, listed);
    }

    /// Moves a session to its place by its head. A use in the same millisecond counts as later.
    pub(super) fn refresh(&self, slot: &Arc<Slot>, head: &Head, is_use: bool, listed: &mut Listed) {
        let has_terms = listed.subject == head.subject && listed.has_options_of(head);
        if !has_terms {
            let mut inner = self.inner.lock();
            inner.remove(slot, listed);
            *listed = inner.insert(slot, head);
        } else if is_use || listed.used.at != head.last_access {
            let mut inner = self.inner.lock();
            let class = listed.class().cloned();
            inner.remove_used(class.as_ref(), listed.used);
            listed.used = inner.insert_used(class, slot, head.last_access);
        }
    }

    pub(super) fn get(&self, id: &SessionId) -> Option<Arc<Slot>> {
        let key = IdKey::new(Some(id.clone()));
        self.inner.lock().by_id.get(&key).cloned()
    }

    pub(super) fn slots(&self) -> Vec<Arc<Slot>> {
        self.inner.lock().by_id.values().cloned().collect()
    }

    /// Returns the longest idle session.
    pub(super) fn oldest(&self) -> Option<UsedSession> {
        let inner = self.inner.lock();
        let oldest = inner.by_use.values().filter_map(BTreeMap::first_key_value);
        let (used, slot) = oldest.min_by_key(|(used, _)| **used)?;
        Some(UsedSession::new(used, slot))
    }

    /// Returns an expired session: the longest idle one of some class.
    pub(super) fn expired(
        &self,
        now: Steady,
        ttl_ms: impl Fn(Option<&str>) -> u64,
    ) -> Option<UsedSession> {
        self.inner.lock().by_use.iter().find_map(|(class, order)| {
            let (used, slot) = order.first_key_value()?;
            let is_expired = now.since(used.at) >= ttl_ms(class.as_deref());
            is_expired.then(|| UsedSession::new(used, slot))
        })
    }

    /// Returns up to `count` sessions in one direction.
    pub(super) fn by_use(
        &self,
        start: PageStart,
        direction: Direction,
        count: usize,
    ) -> Vec<UsedSession> {
        let (all, most) = ((Unbounded, Unbounded), u64::MAX);
        let range = match (start, direction) {
            (PageStart::First, _) => all,
            (PageStart::After(used), Direction::Newest) => (Unbounded, Excluded(used)),
            (PageStart::After(used), Direction::Oldest) => (Excluded(used), Unbounded),
            (PageStart::From(at), Direction::Newest) => {
                (Unbounded, Included(UseKey { at, number: most }))
            }
            (PageStart::From(at), Direction::Oldest) => {
                (Included(UseKey { at, number: 0 }), Unbounded)
            }
        };
        let inner = self.inner.lock();
        let mut page = Vec::new();
        for order in inner.by_use.values() {
            let uses = order.range(range);
            let session = |(used, slot): (&UseKey, &Arc<Slot>)| UsedSession::new(used, slot);
            match direction {
                Direction::Newest => page.extend(uses.rev().take(count).map(session)),
                Direction::Oldest => page.extend(uses.take(count).map(session)),
            }
        }
        drop(inner);
        match direction {
            Direction::Newest => page.sort_unstable_by_key(|session| Reverse(session.used)),
            Direction::Oldest => page.sort_unstable_by_key(|session| session.used),
        }
        page.truncate(count);
        page
    }

    /// Number of sessions in a range, up to `max`.
    pub(super) fn count(&self, range: &IdRange, max: usize) -> usize {
        self.inner.lock().by_id(range, None).take(max).count()
    }

    /// Returns up to `count` sessions of a range in id order, after this id.
    pub(super) fn by_id(
        &self,
        range: &IdRange,
        after: Option<&SessionId>,
        count: usize,
    ) -> Vec<Arc<Slot>> {
        let inner = self.inner.lock();
        let slots = inner.by_id(range, after);
        slots.take(count).cloned().collect()
    }

    /// Adds a session that was just loaded to the end of the queue.
    ///
    /// By its last use, it might be unloaded again before it is used.
    pub(super) fn push_loaded(&self, slot: Weak<Slot>, last_access: Steady) -> UseKey {
        let mut inner = self.inner.lock();
        let last = inner.loaded.last_key_value().map(|(last, _)| last.at);
        let behind = last.map_or(last_access, |last| last.max(last_access));
        inner.insert_loaded(slot, behind)
    }

    /// Queues a session by its last use, after [`Self::pop_loaded`].
    pub(super) fn requeue_loaded(&self, slot: Weak<Slot>, last_access: Steady) -> UseKey {
        self.inner.lock().insert_loaded(slot, last_access)
    }

    pub(super) fn remove_loaded(&self, queued: UseKey) {
        self.inner.lock().loaded.remove(&queued);
    }

    pub(super) fn pop_loaded(&self) -> Option<(Steady, Weak<Slot>)> {
        let (queued, slot) = self.inner.lock().loaded.pop_first()?;
        Some((queued.at, slot))
    }
}

impl UsedSession {
    fn new(used: &UseKey, slot: &Arc<Slot>) -> Self {
        Self {
            slot: Arc::clone(slot),
            used: *used,
        }
    }
}

impl IdKey {
    fn new(id: Option<SessionId>) -> Self {
        let mut first_bytes = [0; 16];
        let bytes = id.as_ref().map_or("", SessionId::as_str).as_bytes();
        for (first, byte) in first_bytes.iter_mut().zip(bytes) {
            *first = *byte;
        }
        Self {
            first_bytes: u128::from_be_bytes(first_bytes),
            id,
        }
    }

    fn starts_with(&self, prefix: &str) -> bool {
        let id = self.id.as_ref();
        id.is_some_and(|id| id.as_str().starts_with(prefix))
    }
}

impl Inner {
    fn insert(&mut self, slot: &Arc<Slot>, head: &Head) -> Listed {
        let options = head.options.as_ref();
        let class = options.and_then(|options| options.ttl_class.clone());
        let listed = Listed {
            used: self.insert_used(class, slot, head.last_access),
            subject: head.subject.clone(),
            options: head.options.clone(),
        };
        let id = IdKey::new(Some(slot.key.session.clone()));
        for term in listed.terms() {
            self.by_term.insert((term, id.clone()), Arc::clone(slot));
        }
        self.by_id.insert(id, Arc::clone(slot));
        listed
    }

    fn remove(&mut self, slot: &Slot, listed: &Listed) {
        self.remove_used(listed.class(), listed.used);
        let id = IdKey::new(Some(slot.key.session.clone()));
        self.by_id.remove(&id);
        for term in listed.terms() {
            self.by_term.remove(&(term, id.clone()));
        }
    }

    fn insert_used(&mut self, class: Option<Arc<str>>, slot: &Arc<Slot>, at: Steady) -> UseKey {
        let used = self.next_key(at);
        let order = self.by_use.entry(class).or_default();
        order.insert(used, Arc::clone(slot));
        used
    }

    fn remove_used(&mut self, class: Option<&Arc<str>>, used: UseKey) {
        let class = class.cloned();
        if let Some(order) = self.by_use.get_mut(&class) {
            order.remove(&used);
            if order.is_empty() {
                self.by_use.remove(&class);
            }
        }
    }

    fn insert_loaded(&mut self, slot: Weak<Slot>, at: Steady) -> UseKey {
        let queued = self.next_key(at);
        self.loaded.insert(queued, slot);
        queued
    }

    fn next_key(&mut self, at: Steady) -> UseKey {
        self.last_number += 1;
        UseKey {
            at,
            number: self.last_number,
        }
    }

    fn by_id<'a>(
        &'a self,
        range: &'a IdRange,
        after: Option<&SessionId>,
    ) -> Box<dyn Iterator<Item = &'a Arc<Slot>> + 'a> {
        let IdRange { term, prefix } = range;
        let first = SessionId::parse(prefix).ok();
        let from = match after.cloned() {
            after if after >= first && after.is_some() => Excluded(IdKey::new(after)),
            _ => Included(IdKey::new(first)),
        };
        match term {
            None => {
                let ids = self.by_id.range((from, Unbounded));
                let ids = ids.take_while(move |(id, _)| id.starts_with(prefix));
                Box::new(ids.map(|(_, slot)| slot))
            }
            Some(term) => {
                let from = from.map(|id| (term.clone(), id));
                let ids = self.by_term.range((from, Unbounded));
                let ids = ids.take_while(move |((it, id), _)| it == term && id.starts_with(prefix));
                Box::new(ids.map(|(_, slot)| slot))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use memoird_core::ids::{Generation, SessionKey, TenantId};
    use memoird_core::time::Timestamp;

    use super::super::slot::SlotState;
    use super::*;
    use crate::tenants::{Policy, SharedUsage, Tenant, TenantLimits, TenantsConfig};

    struct Sessions {
        tenant: Arc<Tenant>,
        orders: Arc<SessionOrders>,
    }

    impl Sessions {
        fn new() -> Self {
            let id = TenantId::parse("t").unwrap();
            let policy = Policy::new(&TenantsConfig::default(), &TenantLimits::default());
            Self {
                tenant: Arc::new(Tenant::new(id, policy, &SharedUsage::default())),
                orders: Arc::default(),
            }
        }

        fn slot(&self, session: &str) -> Arc<Slot> {
            let key = SessionKey {
                tenant: self.tenant.id.clone(),
                session: SessionId::parse(session).unwrap(),
            };
            let (tenant, orders) = (Arc::clone(&self.tenant), Arc::clone(&self.orders));
            Slot::new(key, tenant, orders, SlotState::Ended)
        }

        fn times(&self, start: PageStart, direction: Direction, count: usize) -> Vec<u64> {
            let page = self.orders.by_use(start, direction, count);
            page.iter().map(|session| session.used.at.0).collect()
        }
    }

    fn head(at: u64, class: Option<&str>) -> Head {
        let mut head = Head::begin(Generation::new(0, 0), Timestamp::default(), Steady(at));
        head.options = class.map(|class| {
            Arc::new(SessionOptions {
                ttl_class: Some(class.into()),
                ..SessionOptions::default()
            })
        });
        head
    }

    #[test]
    fn late_use_keeps_order_of_last_access() {
        let sessions = Sessions::new();
        let orders = &sessions.orders;
        let [a, b] = ["a", "b"].map(|session| sessions.slot(session));
        let mut of_a = orders.insert(&a, &head(1, None));
        let mut of_b = orders.insert(&b, &head(2, None));
        orders.refresh(&b, &head(5, None), true, &mut of_b);
        orders.refresh(&a, &head(4, None), true, &mut of_a);
        let newest = sessions.times(PageStart::First, Direction::Newest, 9);
        assert_eq!(newest, [5, 4]);
        assert!(Arc::ptr_eq(&orders.oldest().unwrap().slot, &a));
    }

    #[test]
    fn sessions_used_in_one_millisecond_are_in_order_of_uses() {
        let sessions = Sessions::new();
        let orders = &sessions.orders;
        let [a, b] = ["a", "b"].map(|session| sessions.slot(session));
        let mut of_a = orders.insert(&a, &head(1, None));
        let _of_b = orders.insert(&b, &head(1, None));
        assert!(Arc::ptr_eq(&orders.oldest().unwrap().slot, &a));
        orders.refresh(&a, &head(1, None), true, &mut of_a);
        assert!(Arc::ptr_eq(&orders.oldest().unwrap().slot, &b));
    }

    #[test]
    fn random_operations_match_sorted_list() {
        const CLASSES: [Option<&str>; 3] = [None, Some("long"), Some("short")];
        for seed in 1..=6_u64 {
            println!("seed {seed}");
            let sessions = Sessions::new();
            let orders = &sessions.orders;
            let mut random = seed;
            let mut below = |bound: u64| {
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(seed);
                (random >> 33) % bound
            };
            let slots: Vec<_> = (0..300).map(|at| sessions.slot(&at.to_string())).collect();
            let mut known: Vec<Option<(Listed, u64, usize)>> = slots.iter().map(|_| None).collect();
            let mut now = 0;
            for _ in 0..6_000 {
                now += below(2);
                let at = usize::try_from(below(slots.len() as u64)).unwrap();
                let used = now.saturating_sub(below(9));
                let class = usize::try_from(below(3)).unwrap();
                let head = head(used, CLASSES[class]);
                known[at] = match known[at].take() {
                    None => Some((orders.insert(&slots[at], &head), used, class)),
                    Some((listed, ..)) if below(20) == 0 => {
                        orders.remove(&slots[at], &listed);
                        None
                    }
                    Some((mut listed, ..)) => {
                        orders.refresh(&slots[at], &head, true, &mut listed);
                        Some((listed, used, class))
                    }
                };
            }
            let mut all: Vec<u64> = known.iter().flatten().map(|(_, used, _)| *used).collect();
            all.sort_unstable();
            assert_eq!(
                sessions.times(PageStart::First, Direction::Oldest, 999),
                all
            );
            assert_eq!(orders.slots().len(), all.len(), "seed {seed}");
            assert_eq!(orders.oldest().map(|it| it.used.at.0), all.first().copied());
            for _ in 0..300 {
                let at = below(now + 2);
                let later: Vec<u64> = all.iter().copied().filter(|used| *used >= at).collect();
                let start = PageStart::From(Steady(at));
                let found = sessions.times(start, Direction::Oldest, 5);
                assert_eq!(found, later[..later.len().min(5)], "seed {seed}: from {at}");
                let earlier = all.iter().rev().copied().filter(|used| *used <= at);
                let earlier: Vec<u64> = earlier.take(5).collect();
                let found = sessions.times(start, Direction::Newest, 5);
                assert_eq!(found, earlier, "seed {seed}: until {at}");
            }
            // Pages continue exactly where the last one ended, across classes.
            let (mut paged, mut start) = (Vec::new(), PageStart::First);
            while let [.., last] = &orders.by_use(start, Direction::Oldest, 7)[..] {
                let used = last.used;
                paged.extend(sessions.times(start, Direction::Oldest, 7));
                start = PageStart::After(used);
            }
            assert_eq!(paged, all, "seed {seed}");
        }
    }
}
