//! A tenant's sessions in the order of their last use.
//!
//! All sessions of a tenant have the same TTL, so one list serves both needs: the
//! sweeper takes expired sessions from its front until it meets a live one, and a cap
//! evicts its front. Both cost the same with a thousand sessions and with a million.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hashlink::LinkedHashMap;
use hashlink::linked_hash_map::RawEntryMut;
use memoird_core::ids::SessionId;
use memoird_core::time::Steady;

use super::slot::Slot;
use super::unload::LoadedQueue;

/// A tenant's sessions, longest idle first.
#[derive(Debug, Default)]
pub(super) struct IdleList {
    list: Mutex<LinkedHashMap<SessionId, Entry>>,
    /// Those of them that are loaded.
    pub(super) loaded: LoadedQueue,
}

/// A session in the list, with the time of its last use. Both change under the session's lock.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) slot: Arc<Slot>,
    pub(super) last_access: Steady,
}

impl IdleList {
    /// Puts a session at the back, in place of any other of its id.
    pub(super) fn push(&self, slot: &Arc<Slot>, last_access: Steady) {
        let entry = Entry {
            slot: Arc::clone(slot),
            last_access,
        };
        self.lock().insert(slot.key.session.clone(), entry);
    }

    /// Moves a session that was just used to the back, if it is still in the list. One that
    /// was used a moment later may be there already.
    pub(super) fn touch(&self, slot: &Arc<Slot>, last_access: Steady) {
        let mut list = self.lock();
        let is_newest = list
            .back()
            .is_none_or(|(_, entry)| entry.last_access <= last_access);
        if !is_newest && list.contains_key(&slot.key.session) {
            insert_in_order(&mut list, slot, last_access);
        } else if let Some(entry) = list.to_back(&slot.key.session) {
            entry.last_access = last_access;
        }
    }

    /// Puts a session where it belongs by its last use, in place of any other of its id.
    /// Costs what stands on one side of it; only after a change was not written.
    pub(super) fn insert(&self, slot: &Arc<Slot>, last_access: Steady) {
        insert_in_order(&mut self.lock(), slot, last_access);
    }

    /// Moves a session to where it belongs by its last use, if it is in the list at all.
    pub(super) fn reorder(&self, slot: &Arc<Slot>, last_access: Steady) {
        let mut list = self.lock();
        let is_wrong =
            |entry: &Entry| Arc::ptr_eq(&entry.slot, slot) && entry.last_access != last_access;
        if list.get(&slot.key.session).is_some_and(is_wrong) {
            insert_in_order(&mut list, slot, last_access);
        }
    }

    /// Takes a session out, unless another one has its id by now.
    pub(super) fn remove(&self, slot: &Arc<Slot>) {
        let mut list = self.lock();
        if list
            .get(&slot.key.session)
            .is_some_and(|entry| Arc::ptr_eq(&entry.slot, slot))
        {
            list.remove(&slot.key.session);
        }
    }

    /// All its sessions, longest idle first.
    pub(super) fn slots(&self) -> Vec<Arc<Slot>> {
        self.lock()
            .values()
            .map(|entry| Arc::clone(&entry.slot))
            .collect()
    }

    /// The longest idle session.
    pub(super) fn oldest(&self) -> Option<Entry> {
        self.lock().front().map(|(_, entry)| entry.clone())
    }

    /// Up to `count` sessions, most recently used first, behind the one that `after`
    /// names. Where that one was used since, or ended, the page goes on at its time, and
    /// may show again what was used in the same millisecond.
    pub(super) fn page(&self, after: Option<(&SessionId, Steady)>, count: usize) -> Vec<Entry> {
        let mut list = self.lock();
        let stands = |entry: &Entry| after.is_some_and(|(_, time)| entry.last_access == time);
        let place = after.filter(|(id, _)| list.get(*id).is_some_and(stands));
        let mut cursor = match place.map(|(id, _)| list.raw_entry_mut().from_key(id)) {
            Some(RawEntryMut::Occupied(entry)) => {
                let mut cursor = entry.cursor_mut();
                cursor.move_prev();
                cursor
            }
            _ => {
                let mut cursor = list.cursor_back_mut();
                let is_newer =
                    |entry: &Entry| after.is_some_and(|(_, time)| entry.last_access > time);
                while cursor.current().is_some_and(|(_, entry)| is_newer(entry)) {
                    cursor.move_prev();
                }
                cursor
            }
        };
        let mut page = Vec::new();
        while page.len() < count
            && let Some((_, entry)) = cursor.current()
        {
            page.push(entry.clone());
            cursor.move_prev();
        }
        page
    }

    fn lock(&self) -> MutexGuard<'_, LinkedHashMap<SessionId, Entry>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Looks from both ends: what was used a moment ago stands at the back, and what was to
/// make room at the front.
fn insert_in_order(
    list: &mut LinkedHashMap<SessionId, Entry>,
    slot: &Arc<Slot>,
    last_access: Steady,
) {
    list.remove(&slot.key.session);
    let is_older = |entry: &Entry| entry.last_access <= last_access;
    let (mut sessions, mut last_older) = (list.iter(), None);
    let behind = loop {
        match sessions.next_back() {
            Some((id, entry)) if is_older(entry) => break Some(id),
            Some(_) => {}
            None => break last_older,
        }
        match sessions.next() {
            Some((id, entry)) if is_older(entry) => last_older = Some(id),
            _ => break last_older,
        }
    };
    let behind = behind.cloned();
    let (id, entry) = (
        slot.key.session.clone(),
        Entry {
            slot: Arc::clone(slot),
            last_access,
        },
    );
    match behind.map(|behind| list.raw_entry_mut().from_key(&behind)) {
        Some(RawEntryMut::Occupied(behind)) => behind.cursor_mut().insert_after(id, entry),
        _ => list.insert_front(id, entry),
    };
}

#[cfg(test)]
mod tests {
    use memoird_core::ids::{SessionKey, TenantId};

    use super::super::slot::SlotState;
    use super::*;
    use crate::tenants::{Policy, Tenant, TenantLimits, TenantsConfig, UseOfAll};

    #[test]
    fn a_session_that_comes_back_stands_where_it_belongs() {
        let id = TenantId::parse("t").unwrap();
        let policy = Policy::new(&TenantsConfig::default(), &TenantLimits::default());
        let tenant = Arc::new(Tenant::new(id.clone(), policy, &UseOfAll::default()));
        for times in [
            vec![],
            vec![5],
            vec![7],
            vec![1, 3, 5, 7, 9],
            vec![7, 8, 9],
            vec![1, 2, 5],
        ] {
            let list = Arc::new(IdleList::default());
            let slot = |time: u64| {
                let session = SessionId::parse(&time.to_string()).unwrap();
                let key = SessionKey {
                    tenant: id.clone(),
                    session,
                };
                let (tenant, list) = (Arc::clone(&tenant), Arc::clone(&list));
                Slot::new(key, tenant, list, SlotState::Ended)
            };
            times
                .iter()
                .for_each(|time| list.push(&slot(*time), Steady(*time)));
            list.insert(&slot(6), Steady(6));
            let page = list.page(None, 10);
            let order: Vec<u64> = page.iter().rev().map(|entry| entry.last_access.0).collect();
            let mut expected = times;
            expected.push(6);
            expected.sort_unstable();
            assert_eq!(order, expected);
        }
    }

    #[test]
    fn who_is_touched_late_stands_before_those_used_later() {
        let id = TenantId::parse("t").unwrap();
        let policy = Policy::new(&TenantsConfig::default(), &TenantLimits::default());
        let tenant = Arc::new(Tenant::new(id.clone(), policy, &UseOfAll::default()));
        let list = Arc::new(IdleList::default());
        let [a, b] = ["a", "b"].map(|session| {
            let key = SessionKey {
                tenant: id.clone(),
                session: SessionId::parse(session).unwrap(),
            };
            let (tenant, list) = (Arc::clone(&tenant), Arc::clone(&list));
            Slot::new(key, tenant, list, SlotState::Ended)
        });
        list.push(&a, Steady(1));
        list.push(&b, Steady(2));
        list.touch(&b, Steady(5));
        list.touch(&a, Steady(4));
        let times: Vec<u64> = list
            .page(None, 10)
            .iter()
            .map(|entry| entry.last_access.0)
            .collect();
        assert_eq!(times, [5, 4]);
        assert!(Arc::ptr_eq(&list.oldest().unwrap().slot, &a));
    }
}
