//! The sessions in memory, by key and in order. Guards of the maps never leave this file.

use std::sync::Arc;

use dashmap::DashMap;
use memoird_core::ids::{SessionKey, TenantId};

use super::orders::SessionOrders;
use super::slot::Slot;

#[derive(Debug, Default)]
pub(super) struct Table {
    slots: DashMap<SessionKey, Arc<Slot>>,
    orders: DashMap<TenantId, Arc<SessionOrders>>,
}

impl Table {
    pub(super) fn get(&self, key: &SessionKey) -> Option<Arc<Slot>> {
        self.slots.get(key).map(|slot| Arc::clone(&slot))
    }

    /// A tenant's sessions in order.
    pub(super) fn orders(&self, tenant: &TenantId) -> Arc<SessionOrders> {
        if let Some(known) = self.orders.get(tenant) {
            return Arc::clone(&known);
        }
        Arc::clone(&self.orders.entry(tenant.clone()).or_default())
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
