//! Freshness checks in a cluster: whether another daemon has changed a session cached in memory.
//!
//! Changes need no check, because the store rejects a change with a stale base. A reply without a
//! change is sent only after a version check that began after the call did. Concurrent checks are
//! batched.

use std::sync::Arc;

use memoird_core::ids::Generation;
use memoird_store::Store;

use super::handle::Sessions;
use super::slot::Slot;
use super::version_checks::{ObservedVersion, VersionChecks};
use crate::error::EngineError;
use crate::worker::{WorkError, Worker};

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
        checks.wait().await;
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
            checks.close();
        }
    }
}
