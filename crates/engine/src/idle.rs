//! A tenant's sessions in the order of their last use.
//!
//! All sessions of a tenant have the same TTL, so one list serves both needs: the
//! sweeper takes expired sessions from its front until it meets a live one, and a cap
//! evicts its front. Both cost the same with a thousand sessions and with a million.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hashlink::LinkedHashMap;
use memoird_core::ids::SessionId;
use memoird_core::time::Steady;

use crate::cell::SessionCell;

/// A tenant's sessions, longest idle first.
#[derive(Debug, Default)]
pub(crate) struct IdleList {
    list: Mutex<LinkedHashMap<SessionId, Entry>>,
}

/// A session in the list. The time may lag behind the session's own for the moment in
/// which a call has let go of the session and not yet moved it.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) cell: Arc<SessionCell>,
    pub(crate) last_access: Steady,
}

impl IdleList {
    /// Puts a session at the back, in place of any other of its id.
    pub(crate) fn push(&self, cell: &Arc<SessionCell>, last_access: Steady) {
        let entry = Entry { cell: Arc::clone(cell), last_access };
        self.lock().insert(cell.key.session.clone(), entry);
    }

    /// Moves a session to the back, if it is still in the list.
    pub(crate) fn touch(&self, cell: &Arc<SessionCell>, last_access: Steady) {
        if let Some(entry) = self.lock().to_back(&cell.key.session) {
            entry.last_access = last_access;
        }
    }

    /// Takes a session out, unless another one has its id by now.
    pub(crate) fn remove(&self, cell: &Arc<SessionCell>) {
        let mut list = self.lock();
        if list.get(&cell.key.session).is_some_and(|entry| Arc::ptr_eq(&entry.cell, cell)) {
            list.remove(&cell.key.session);
        }
    }

    /// The longest idle session.
    pub(crate) fn oldest(&self) -> Option<Entry> {
        self.lock().front().map(|(_, entry)| entry.clone())
    }

    /// Up to `count` sessions, most recently used first, behind the one that `after`
    /// names. Where that one was used since, or ended, the page goes on at its time.
    pub(crate) fn page(&self, after: Option<(&SessionId, Steady)>, count: usize) -> Vec<Entry> {
        let list = self.lock();
        let is_before = |id: &SessionId, entry: &Entry| {
            after.is_some_and(|(after_id, last_access)| {
                entry.last_access > last_access
                    || (entry.last_access == last_access && id != after_id)
            })
        };
        let mut rest = list.iter().rev().peekable();
        while rest.next_if(|(id, entry)| is_before(id, entry)).is_some() {}
        if let Some((after_id, _)) = after {
            rest.next_if(|(id, _)| *id == after_id);
        }
        rest.take(count).map(|(_, entry)| entry.clone()).collect()
    }

    fn lock(&self) -> MutexGuard<'_, LinkedHashMap<SessionId, Entry>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
