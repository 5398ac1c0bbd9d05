//! In-memory state per tenant, and queues of tenants for the workers.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

use hashlink::LinkedHashSet;
use memoird_core::ids::{MemoryId, TenantId};
use tokio::sync::Notify;

use super::write_queue::WriteQueue;
use crate::counters::MemorySnapshot;
use crate::lock;
use crate::store::Damage;

#[derive(Debug)]
pub(crate) struct TenantState {
    pub(super) tenant: TenantId,
    pub(super) queue: WriteQueue,
    counters: Mutex<MemorySnapshot>,
    /// Set if the maintenance worker has work left: forgetting, erasing or indexing.
    unfinished: AtomicBool,
    /// Forget jobs started here.
    ///
    /// `true` while their caller runs them: the maintenance worker then skips them.
    forgetting: Mutex<BTreeMap<MemoryId, bool>>,
}

impl TenantState {
    pub(super) fn new(tenant: TenantId) -> Self {
        Self {
            tenant,
            queue: WriteQueue::default(),
            counters: Mutex::default(),
            unfinished: AtomicBool::new(false),
            forgetting: Mutex::default(),
        }
    }

    /// Hands work to the maintenance worker.
    pub(crate) fn leave_unfinished(&self) {
        self.unfinished.store(true, Ordering::Release);
    }

    /// Returns whether work was handed over since the last call.
    pub(crate) fn take_unfinished(&self) -> bool {
        self.unfinished.swap(false, Ordering::AcqRel)
    }

    /// Locks the counters. Increment at once and do not hold the guard.
    pub(crate) fn counters(&self) -> MutexGuard<'_, MemorySnapshot> {
        lock(&self.counters)
    }

    /// Counts and logs the damaged rows that a transaction has found.
    pub(super) fn note_damage(&self, damage: Option<Damage>) {
        let Some(Damage { rows, first }) = damage else {
            return;
        };
        self.counters().damaged += rows;
        tracing::error!(
            tenant = %self.tenant, rows, first,
            "damaged memories or documents are left out; memoird verify names all"
        );
    }

    /// Locks the forget jobs started here.
    pub(super) fn forgetting(&self) -> MutexGuard<'_, BTreeMap<MemoryId, bool>> {
        lock(&self.forgetting)
    }
}

/// Queue of tenants that a worker has work for, in insertion order.
///
/// A tenant that is added again, because it has more work or failed, goes to the back.
#[derive(Debug, Default)]
pub(crate) struct TenantQueue {
    tenants: Mutex<LinkedHashSet<TenantId>>,
    added: Notify,
}

impl TenantQueue {
    pub(crate) fn add(&self, tenant: &TenantId) {
        let mut tenants = lock(&self.tenants);
        if !tenants.contains(tenant) {
            tenants.insert(tenant.clone());
            self.added.notify_one();
        }
    }

    pub(crate) fn take(&self) -> Option<TenantId> {
        lock(&self.tenants).pop_front()
    }

    pub(crate) fn len(&self) -> usize {
        lock(&self.tenants).len()
    }

    /// Waits until the queue is not empty.
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
