//! The queue of session versions to compare with the journal.

use std::sync::{Mutex, MutexGuard, PoisonError};

use memoird_core::ids::Generation;
use tokio::sync::{Notify, oneshot};

use super::slot::SlotInner;
use crate::error::EngineError;

/// Maximum number of versions per check.
const CHECKS_PER_BATCH: usize = 1_024;

/// The version of a session that a call observed.
#[derive(Clone, Copy, Debug)]
pub(super) struct ObservedVersion {
    pub(super) generation: Generation,
    pub(super) ticket: u64,
    pub(super) epoch: u32,
}

impl ObservedVersion {
    /// The version under a held lock. `None` if not even the head is in memory.
    pub(super) fn new(inner: &SlotInner) -> Option<Self> {
        Some(Self {
            generation: inner.head()?.generation,
            ticket: inner.ticket,
            epoch: inner.epoch,
        })
    }
}

/// Queue of versions to compare with the journal.
#[derive(Debug, Default)]
pub(super) struct VersionChecks {
    queue: Mutex<Queue>,
    arrived: Notify,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: Vec<VersionCheck>,
    is_closed: bool,
}

#[derive(Debug)]
pub(super) struct VersionCheck {
    pub(super) generation: Generation,
    pub(super) reply: oneshot::Sender<Result<bool, EngineError>>,
}

impl VersionChecks {
    /// Waits for the result of a check. Fails if the worker that checks has stopped.
    pub(super) async fn compare(&self, generation: Generation) -> Result<bool, EngineError> {
        let (reply, is_current) = oneshot::channel();
        {
            let mut queue = self.lock();
            if queue.is_closed {
                return Err(EngineError::Stopping);
            }
            queue.waiting.push(VersionCheck { generation, reply });
        }
        self.arrived.notify_one();
        is_current.await.unwrap_or(Err(EngineError::Stopping))
    }

    /// Waits until there is a check to make.
    pub(super) async fn wait(&self) {
        while self.lock().waiting.is_empty() {
            self.arrived.notified().await;
        }
    }

    /// Fails the waiting checks, and all later ones.
    pub(super) fn close(&self) {
        let mut queue = self.lock();
        queue.is_closed = true;
        queue.waiting.clear();
    }

    /// Takes the checks of one batch.
    pub(super) fn take(&self) -> Vec<VersionCheck> {
        let mut queue = self.lock();
        let count = queue.waiting.len().min(CHECKS_PER_BATCH);
        queue.waiting.drain(..count).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
