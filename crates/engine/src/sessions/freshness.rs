//! Freshness checks in a cluster: whether another daemon has changed a session cached in memory.
//!
//! Changes need no check, because the store rejects a change with a stale base. A reply without a
//! change is sent only after a version check that began after the call did. Concurrent checks are
//! batched.

use std::sync::Arc;

use memoird_core::ids::Generation;
use memoird_store::Store;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::oneshot;

use super::handle::Sessions;
use super::slot::{Slot, SlotInner};
use crate::error::EngineError;
use crate::worker::{WorkError, Worker};

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

/// A request for the revision in the journal, if this daemon has loaded or written that version.
#[derive(Debug)]
pub(super) struct VersionCheck {
    generation: Generation,
    reply: oneshot::Sender<Result<Option<u64>, EngineError>>,
}

impl Sessions {
    /// Waits until the observed version is written or rejected. Whether it was written.
    pub(super) async fn is_observed_durable(
        &self,
        slot: &Arc<Slot>,
        observed: ObservedVersion,
    ) -> bool {
        self.shared.journal.wait_durable(observed.ticket).await;
        slot.lock().epoch == observed.epoch
    }

    /// Whether the observed version is durable and, in a cluster, the newest since the call began.
    ///
    /// If not, memory discards it, and the call must be retried.
    pub(super) async fn is_current(
        &self,
        slot: &Arc<Slot>,
        observed: ObservedVersion,
    ) -> Result<bool, EngineError> {
        let is_durable = self.is_observed_durable(slot, observed).await;
        let Some(cluster) = self.shared.cluster.as_ref().filter(|_| is_durable) else {
            return Ok(is_durable);
        };
        let (reply, newest) = oneshot::channel();
        let check = VersionCheck {
            generation: observed.generation,
            reply,
        };
        // Both fail once the worker that checks has stopped.
        let _ = cluster.version_checks.send(check);
        let newest = newest.await.unwrap_or(Err(EngineError::Stopping))?;
        let mut inner = slot.lock();
        if inner.epoch != observed.epoch {
            return Ok(false);
        }
        let head = inner.head();
        let revision = head
            .filter(|head| head.generation == observed.generation)
            .map(|head| head.revision);
        // A load whose caller was cancelled may have read a newer version than the one in memory.
        let is_newest = newest.is_some_and(|newest| revision.is_none_or(|own| newest <= own));
        if !is_newest && revision.is_some() {
            inner.outdate(&slot.tenant, u64::MAX, 0);
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

/// Worker that answers version checks. Their calls get [`EngineError::Stopping`] once it is dropped.
pub(super) struct FreshnessWorker {
    sessions: Sessions,
    requested: UnboundedReceiver<VersionCheck>,
    checks: Vec<VersionCheck>,
}

impl FreshnessWorker {
    pub(super) fn new(sessions: Sessions, requested: UnboundedReceiver<VersionCheck>) -> Self {
        Self {
            sessions,
            requested,
            checks: Vec::new(),
        }
    }
}

impl Worker for FreshnessWorker {
    fn name(&self) -> &'static str {
        "freshness"
    }

    async fn wait(&mut self) {
        let checks = &mut self.checks;
        self.requested.recv_many(checks, CHECKS_PER_BATCH).await;
    }

    async fn step(&mut self) -> Result<(), WorkError> {
        let checks = std::mem::take(&mut self.checks);
        let mut generations: Vec<Generation> =
            checks.iter().map(|check| check.generation).collect();
        generations.sort_unstable();
        generations.dedup();
        let wanted = generations.clone();
        let read = async {
            let read = move |store: &dyn Store| store.current_revisions(&wanted);
            self.sessions.store()?.run(None, read).await
        };
        let stored = read.await;
        for check in checks {
            let index = generations.binary_search(&check.generation);
            let newest = match (&stored, index) {
                (Ok(revisions), Ok(index)) => Ok(revisions.get(index).copied().flatten()),
                (Ok(_), Err(_)) => Ok(None),
                (Err(error), _) => Err(error.clone()),
            };
            // The caller may have been cancelled.
            let _ = check.reply.send(newest);
        }
        // Errors were returned to the callers, so the worker needs no backoff.
        Ok(())
    }
}
