//! Freshness checks in a cluster: whether another daemon has changed a session cached in memory.
//!
//! Changes need no check, because the store rejects a change with a stale base. A reply without a
//! change is sent only after a version check that began after the call did. Concurrent checks are
//! batched.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use memoird_core::ids::Generation;
use memoird_store::Store;
use tokio::sync::{Notify, oneshot};

use super::Sessions;
use super::slot::{Slot, SlotInner};
use crate::error::EngineError;
use crate::worker::{WorkError, Worker};

/// Maximum number of versions per check.
const CHECKS_PER_BATCH: usize = 1_024;

/// The version of a session that a call observed.
#[derive(Clone, Copy, Debug)]
pub(super) struct ObservedVersion {
    generation: Generation,
    ticket: u64,
    epoch: u32,
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
struct VersionCheck {
    generation: Generation,
    reply: oneshot::Sender<Result<bool, EngineError>>,
}

impl VersionChecks {
    async fn compare(&self, generation: Generation) -> Result<bool, EngineError> {
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

    fn take(&self) -> Vec<VersionCheck> {
        let mut queue = self.lock();
        let count = queue.waiting.len().min(CHECKS_PER_BATCH);
        queue.waiting.drain(..count).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sessions {
    /// Whether the observed version is durable and, in a cluster, the newest since the call began.
    ///
    /// If not, memory discards it, and the call must be retried.
    pub(super) async fn is_current(
        &self,
        slot: &Arc<Slot>,
        observed: ObservedVersion,
    ) -> Result<bool, EngineError> {
        self.shared.journal.wait_durable(observed.ticket).await;
        let is_durable = slot.lock().epoch == observed.epoch;
        let Some(cluster) = self.shared.cluster.as_ref().filter(|_| is_durable) else {
            return Ok(is_durable);
        };
        let is_newest = cluster.version_checks.compare(observed.generation).await?;
        let mut inner = slot.lock();
        if inner.epoch != observed.epoch {
            return Ok(false);
        }
        let is_there =
            ObservedVersion::new(&inner).is_some_and(|now| now.generation == observed.generation);
        if !is_newest && is_there {
            inner.discard(&slot.tenant);
        }
        Ok(is_newest)
    }

    /// Whether a rejection was based on the session's actual state. Always true without a cluster.
    pub(super) async fn is_rejection_final(
        &self,
        slot: &Arc<Slot>,
        epoch: u32,
    ) -> Result<bool, EngineError> {
        if self.shared.cluster.is_none() {
            return Ok(true);
        }
        let observed = ObservedVersion::new(&slot.lock());
        match observed {
            Some(observed) => {
                self.is_current(slot, ObservedVersion { epoch, ..observed })
                    .await
            }
            None => Ok(false),
        }
    }
}

pub(super) struct FreshnessWorker {
    sessions: Sessions,
}

impl FreshnessWorker {
    pub(super) fn new(sessions: Sessions) -> Self {
        Self { sessions }
    }

    fn version_checks(&self) -> Option<&VersionChecks> {
        let cluster = self.sessions.shared.cluster.as_ref();
        cluster.map(|cluster| &cluster.version_checks)
    }
}

impl Worker for FreshnessWorker {
    fn name(&self) -> &'static str {
        "freshness"
    }

    async fn wait(&mut self) {
        let Some(checks) = self.version_checks() else {
            return std::future::pending().await;
        };
        while checks.lock().waiting.is_empty() {
            checks.arrived.notified().await;
        }
    }

    async fn step(&mut self) -> Result<(), WorkError> {
        let checks = self
            .version_checks()
            .map(VersionChecks::take)
            .unwrap_or_default();
        let mut generations: Vec<Generation> =
            checks.iter().map(|check| check.generation).collect();
        generations.sort_unstable();
        generations.dedup();
        let wanted = generations.clone();
        let read = async {
            let read = move |store: &dyn Store| store.are_current(&wanted);
            self.sessions.shared.store()?.run(None, read).await
        };
        let stored = read.await;
        for check in checks {
            let index = generations.binary_search(&check.generation);
            let is_current = match (&stored, index) {
                (Ok(are_current), Ok(index)) => Ok(are_current.get(index) == Some(&true)),
                (Ok(_), Err(_)) => Ok(false),
                (Err(error), _) => Err(error.clone()),
            };
            // The caller may have been cancelled.
            let _ = check.reply.send(is_current);
        }
        // Errors were returned to the callers, so the worker needs no backoff.
        Ok(())
    }

    async fn finish(&mut self) {
        if let Some(checks) = self.version_checks() {
            let mut queue = checks.lock();
            queue.is_closed = true;
            queue.waiting.clear();
        }
    }
}
