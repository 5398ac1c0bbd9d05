//! The map of sessions in memory. Guards of the map never leave this file.

use std::sync::Arc;

use dashmap::DashMap;
use memoird_core::ids::SessionKey;

use super::slot::Slot;

/// Sessions by tenant and session id.
#[derive(Debug, Default)]
pub(super) struct Table {
    slots: DashMap<SessionKey, Arc<Slot>>,
}

impl Table {
    pub(super) fn get(&self, key: &SessionKey) -> Option<Arc<Slot>> {
        self.slots.get(key).map(|slot| Arc::clone(&slot))
    }

    /// Inserts a slot, replacing any other with its key.
    pub(super) fn insert(&self, slot: &Arc<Slot>) {
        self.slots.insert(slot.key.clone(), Arc::clone(slot));
    }

    pub(super) fn has(&self, slot: &Arc<Slot>) -> bool {
        let known = self.get(&slot.key);
        known.is_some_and(|known| Arc::ptr_eq(&known, slot))
    }

    pub(super) fn has_other(&self, slot: &Arc<Slot>) -> bool {
        let known = self.get(&slot.key);
        known.is_some_and(|known| !Arc::ptr_eq(&known, slot))
    }

    /// Removes this very slot. Another one with the same key stays.
    pub(super) fn remove(&self, slot: &Arc<Slot>) {
        self.slots
            .remove_if(&slot.key, |_, known| Arc::ptr_eq(known, slot));
    }
}
