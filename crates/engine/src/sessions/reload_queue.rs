//! The queue of sessions to reload after a failed write.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::slot::Slot;

/// Sessions with a failed write.
///
/// Reloaded immediately, not on the next use, so that counts and lists are correct.
#[derive(Debug, Default)]
pub(super) struct ReloadQueue {
    slots: Mutex<VecDeque<Arc<Slot>>>,
    arrived: Notify,
}

impl ReloadQueue {
    pub(super) fn push(&self, slot: Arc<Slot>) {
        self.lock().push_back(slot);
        self.arrived.notify_one();
    }

    pub(super) fn pop(&self) -> Option<Arc<Slot>> {
        self.lock().pop_front()
    }

    /// Waits until there is a session to reload.
    pub(super) async fn wait(&self) {
        while self.lock().is_empty() {
            self.arrived.notified().await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Arc<Slot>>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
