//! Which sessions are in memory. The map's guards never leave this file.

use std::sync::Arc;

use dashmap::DashMap;
use memoird_core::ids::SessionKey;

use super::slot::Slot;

/// All sessions of the process, by tenant and session id.
#[derive(Debug, Default)]
pub(super) struct Table {
    slots: DashMap<SessionKey, Arc<Slot>>,
}

impl Table {
    pub(super) fn get(&self, key: &SessionKey) -> Option<Arc<Slot>> {
        self.slots.get(key).map(|slot| Arc::clone(&slot))
    }

    /// Puts a slot into the table, in place of any other of its key.
    pub(super) fn insert(&self, slot: &Arc<Slot>) {
        self.slots.insert(slot.key.clone(), Arc::clone(slot));
    }

    /// True when it has this very slot.
    pub(super) fn has(&self, slot: &Arc<Slot>) -> bool {
        let known = self.get(&slot.key);
        known.is_some_and(|known| Arc::ptr_eq(&known, slot))
    }

    /// True when another slot has the key of this one.
    pub(super) fn has_other(&self, slot: &Arc<Slot>) -> bool {
        let known = self.get(&slot.key);
        known.is_some_and(|known| !Arc::ptr_eq(&known, slot))
    }

    /// Takes this very slot out; another one of the same key stays.
    pub(super) fn remove(&self, slot: &Arc<Slot>) {
        self.slots
            .remove_if(&slot.key, |_, known| Arc::ptr_eq(known, slot));
    }
}
