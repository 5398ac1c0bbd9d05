//! Index of a tenant's sessions by id, subject and label.
//!
//! Updated when a session starts or ends, or its options change. Uses do not touch it.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Included, Unbounded};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use memoird_core::ids::{SessionId, Subject};
use memoird_core::options::SessionOptions;
use memoird_core::session::Head;

use super::slot::Slot;

#[derive(Debug, Default)]
pub(super) struct SessionIndex {
    inner: Mutex<Inner>,
}

/// Label name, label value and session id.
type LabelKey = (Arc<str>, Arc<str>, IdKey);

#[derive(Debug, Default)]
struct Inner {
    by_id: BTreeMap<IdKey, Arc<Slot>>,
    by_subject: BTreeMap<(Subject, IdKey), Arc<Slot>>,
    by_label: BTreeMap<LabelKey, Arc<Slot>>,
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

/// The terms under which a session is indexed, besides its id.
#[derive(Clone, Debug, Default)]
pub(super) struct Terms {
    subject: Option<Subject>,
    options: Option<Arc<SessionOptions>>,
}

/// A range of sessions in id order.
#[derive(Clone, Debug)]
pub(super) struct IdRange {
    pub(super) term: Term,
    /// Prefix of their ids. May be empty.
    pub(super) prefix: Arc<str>,
}

/// A term shared by sessions.
#[derive(Clone, Debug)]
pub(super) enum Term {
    Tenant,
    Subject(Subject),
    Label(Arc<str>, Arc<str>),
}

impl Terms {
    pub(super) fn of(head: &Head) -> Self {
        Self {
            subject: head.subject.clone(),
            options: head.options.clone(),
        }
    }

    /// Whether a session with this head has the same terms.
    pub(super) fn are_of(&self, head: &Head) -> bool {
        let is_same = match (&self.options, &head.options) {
            (None, None) => true,
            (Some(mine), Some(its)) => Arc::ptr_eq(mine, its) || mine == its,
            _ => false,
        };
        is_same && self.subject == head.subject
    }

    pub(super) fn class(&self) -> Option<&Arc<str>> {
        self.options.as_ref()?.ttl_class.as_ref()
    }

    fn labels(&self) -> impl Iterator<Item = (&Arc<str>, &Arc<str>)> {
        self.options.iter().flat_map(|options| &options.labels)
    }
}

impl SessionIndex {
    /// Replaces the terms under which a session is indexed.
    pub(super) fn replace(&self, slot: &Arc<Slot>, old: Option<&Terms>, new: Option<&Terms>) {
        let mut inner = self.lock();
        if let Some(old) = old {
            inner.remove(slot, old);
        }
        if let Some(new) = new {
            inner.add(slot, new);
        }
    }

    /// Number of sessions in a range, up to `max`.
    pub(super) fn count(&self, range: &IdRange, max: usize) -> usize {
        self.lock().range(range, None).take(max).count()
    }

    /// Returns up to `count` sessions of a range, after this id.
    pub(super) fn page(
        &self,
        range: &IdRange,
        after: Option<&SessionId>,
        count: usize,
    ) -> Vec<Arc<Slot>> {
        let inner = self.lock();
        let slots = inner.range(range, after);
        slots.take(count).cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
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
}

impl Inner {
    fn add(&mut self, slot: &Arc<Slot>, terms: &Terms) {
        let id = || IdKey::new(Some(slot.key.session.clone()));
        self.by_id.insert(id(), Arc::clone(slot));
        if let Some(subject) = &terms.subject {
            let key = (subject.clone(), id());
            self.by_subject.insert(key, Arc::clone(slot));
        }
        for (name, value) in terms.labels() {
            let key = (Arc::clone(name), Arc::clone(value), id());
            self.by_label.insert(key, Arc::clone(slot));
        }
    }

    /// Removes a slot. Entries of another slot with the same id stay.
    fn remove(&mut self, slot: &Arc<Slot>, terms: &Terms) {
        let id = || IdKey::new(Some(slot.key.session.clone()));
        remove_own(&mut self.by_id, &id(), slot);
        if let Some(subject) = &terms.subject {
            remove_own(&mut self.by_subject, &(subject.clone(), id()), slot);
        }
        for (name, value) in terms.labels() {
            let key = (Arc::clone(name), Arc::clone(value), id());
            remove_own(&mut self.by_label, &key, slot);
        }
    }

    fn range<'a>(
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
        let begins = move |key: &IdKey| {
            let id = key.id.as_ref();
            id.is_some_and(|id| id.as_str().starts_with(&**prefix))
        };
        match term {
            Term::Tenant => {
                let ids = self
                    .by_id
                    .range((from, Unbounded))
                    .take_while(move |(id, _)| begins(id));
                Box::new(ids.map(|(_, slot)| slot))
            }
            Term::Subject(subject) => {
                let from = from.map(|id| (subject.clone(), id));
                let ids = self
                    .by_subject
                    .range((from, Unbounded))
                    .take_while(move |((it, id), _)| it == subject && begins(id));
                Box::new(ids.map(|(_, slot)| slot))
            }
            Term::Label(name, value) => {
                let from = from.map(|id| (Arc::clone(name), Arc::clone(value), id));
                let is_label = move |known: &LabelKey| (&known.0, &known.1) == (name, value);
                let ids = self
                    .by_label
                    .range((from, Unbounded))
                    .take_while(move |(known, _)| is_label(known) && begins(&known.2));
                Box::new(ids.map(|(_, slot)| slot))
            }
        }
    }
}

fn remove_own<K: Ord>(all: &mut BTreeMap<K, Arc<Slot>>, key: &K, slot: &Arc<Slot>) {
    if all.get(key).is_some_and(|known| Arc::ptr_eq(known, slot)) {
        all.remove(key);
    }
}
