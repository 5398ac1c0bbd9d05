//! The state of each tenant in memory, and queues of tenants for the workers.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

use hashlink::LinkedHashSet;
use memoird_core::ids::{MemoryId, TenantId};
use tokio::sync::Notify;

use super::manifests::Manifests;
use super::write_queue::WriteQueue;
use crate::counters::MemoryCounters;
use crate::locked;

/// One tenant's writes, manifests and counts.
#[derive(Debug)]
pub(crate) struct TenantState {
    pub(super) tenant: TenantId,
    pub(super) queue: WriteQueue,
    pub(super) manifests: Manifests,
    pub(crate) counters: MemoryCounters,
    /// Set when something is left to the maintenance worker: to forget, to erase, to index.
    unfinished: AtomicBool,
    /// Jobs that forget and were begun here, and whether their callers still do them: the
    /// maintenance worker leaves these to them.
    forgetting: Mutex<BTreeMap<MemoryId, bool>>,
}

impl TenantState {
    pub(super) fn new(tenant: TenantId) -> Self {
        Self {
            tenant,
            queue: WriteQueue::default(),
            manifests: Manifests::default(),
            counters: MemoryCounters::default(),
            unfinished: AtomicBool::new(false),
            forgetting: Mutex::default(),
        }
    }

    /// Leaves something to the maintenance worker.
    pub(crate) fn leave_unfinished(&self) {
        self.unfinished.store(true, Ordering::Release);
    }

    /// True when something was left since this was last called.
    pub(crate) fn take_unfinished(&self) -> bool {
        self.unfinished.swap(false, Ordering::AcqRel)
    }

    /// Jobs that were begun here, and whether callers are doing them.
    pub(super) fn forgetting(&self) -> MutexGuard<'_, BTreeMap<MemoryId, bool>> {
        locked(&self.forgetting)
    }
}

/// Tenants for which a worker has something to do, in the order in which they were added. One
/// that is added again, because it has more to do or failed, comes after all others.
#[derive(Debug, Default)]
pub(crate) struct TenantQueue {
    tenants: Mutex<LinkedHashSet<TenantId>>,
    added: Notify,
}

impl TenantQueue {
    pub(crate) fn add(&self, tenant: &TenantId) {
        let mut tenants = locked(&self.tenants);
        if !tenants.contains(tenant) {
            tenants.insert(tenant.clone());
            self.added.notify_one();
        }
    }

    pub(crate) fn take(&self) -> Option<TenantId> {
        locked(&self.tenants).pop_front()
    }

    pub(crate) fn len(&self) -> usize {
        locked(&self.tenants).len()
    }

    /// Waits until a tenant is in the queue.
    pub(crate) async fn wait(&self) {
        loop {
            let added = self.added.notified();
            if self.len() > 0 {
                return;
            }
            added.await;
        }
    }
}
