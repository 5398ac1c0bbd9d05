//! In a cluster: whether what memory has of a session is what the journal has, or another daemon has
//! changed it since.
//!
//! A change needs no such question, because it is written on the version that it was built on, or is
//! refused. Whatever is answered without a change of its own is answered after a look at the version
//! that began when the call was there already. Calls that ask at the same time share one look.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use memoird_core::ids::Generation;
use memoird_store::Store;
use tokio::sync::{Notify, oneshot};

use super::Sessions;
use super::slot::{Slot, SlotInner};
use crate::error::EngineError;
use crate::worker::{WorkError, Worker};

/// Versions that one look compares.
const BATCH: usize = 1_024;

/// Which version of a session a call saw.
#[derive(Clone, Copy, Debug)]
pub(super) struct SeenVersion {
    generation: Generation,
    ticket: u64,
    epoch: u32,
}

impl SeenVersion {
    /// Of a session whose lock is held; `None` where memory has nothing of it.
    pub(super) fn of(inner: &SlotInner) -> Option<Self> {
        Some(Self {
            generation: inner.head()?.generation,
            ticket: inner.ticket,
            epoch: inner.epoch,
        })
    }
}

/// Versions that wait to be compared with the journal's.
#[derive(Debug, Default)]
pub(super) struct VersionChecks {
    queue: Mutex<Queue>,
    arrived: Notify,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: Vec<VersionCheck>,
    /// True once the engine has stopped.
    is_closed: bool,
}

#[derive(Debug)]
struct VersionCheck {
    generation: Generation,
    reply: oneshot::Sender<Result<bool, EngineError>>,
}

impl VersionChecks {
    async fn ask(&self, generation: Generation) -> Result<bool, EngineError> {
        let (reply, answer) = oneshot::channel();
        {
            let mut queue = self.lock();
            if queue.is_closed {
                return Err(EngineError::Stopping);
            }
            queue.waiting.push(VersionCheck { generation, reply });
        }
        self.arrived.notify_one();
        answer.await.unwrap_or(Err(EngineError::Stopping))
    }

    fn take(&self) -> Vec<VersionCheck> {
        let mut queue = self.lock();
        let count = queue.waiting.len().min(BATCH);
        queue.waiting.drain(..count).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sessions {
    /// True when what was seen is durable and, in a cluster, was the newest version of the session
    /// after the call had begun. Otherwise memory has forgotten it, or will have in a moment, and
    /// the call has to look again.
    ///
    /// # Errors
    /// In a cluster, a journal that cannot be read.
    pub(super) async fn is_current(
        &self,
        slot: &Arc<Slot>,
        seen: SeenVersion,
    ) -> Result<bool, EngineError> {
        self.shared.journal.wait_durable(seen.ticket).await;
        let is_durable = slot.lock().epoch == seen.epoch;
        let Some(cluster) = self.shared.cluster.as_ref().filter(|_| is_durable) else {
            return Ok(is_durable);
        };
        let is_newest = cluster.version_checks.ask(seen.generation).await?;
        let mut inner = slot.lock();
        if inner.epoch != seen.epoch {
            return Ok(false);
        }
        let is_there = SeenVersion::of(&inner).is_some_and(|now| now.generation == seen.generation);
        if !is_newest && is_there {
            inner.discard(&slot.tenant);
        }
        Ok(is_newest)
    }

    /// True when a command was refused for what its session really is: always without other daemons.
    ///
    /// # Errors
    /// As [`Self::is_current`].
    pub(super) async fn is_refusal_final(
        &self,
        slot: &Arc<Slot>,
        epoch: u32,
    ) -> Result<bool, EngineError> {
        if self.shared.cluster.is_none() {
            return Ok(true);
        }
        let seen = SeenVersion::of(&slot.lock());
        match seen {
            Some(seen) => self.is_current(slot, SeenVersion { epoch, ..seen }).await,
            None => Ok(false),
        }
    }
}

/// The worker that looks.
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
        let asked = self
            .version_checks()
            .map(VersionChecks::take)
            .unwrap_or_default();
        let mut names: Vec<Generation> = asked.iter().map(|asked| asked.generation).collect();
        names.sort_unstable();
        names.dedup();
        let wanted = names.clone();
        let look = move |store: &dyn Store| store.are_current(&wanted);
        let looked = self.sessions.shared.journal.with_store(None, look).await;
        for check in asked {
            let place = names.binary_search(&check.generation);
            let answer = match (&looked, place) {
                (Ok(are_current), Ok(place)) => Ok(are_current.get(place) == Some(&true)),
                (Ok(_), Err(_)) => Ok(false),
                (Err(error), _) => Err(error.clone()),
            };
            // Who does not wait any more does not need it.
            let _ = check.reply.send(answer);
        }
        // Who asked was told, and tries again.
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
