//! The road of a write to a tenant's memories. All that waits becomes one transaction: who
//! comes first writes for all who came meanwhile, so that an answer costs a share of one
//! sync of the disk. Nobody's leaving stops what is under way.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use memoird_core::ids::{MemoryId, Subject, TenantId};
use memoird_store::StoreError;
use memoird_store::long_term::{LongTermStore, MemoryWriter, WriteJob};
use tokio::sync::{OwnedMutexGuard, oneshot};

use super::manifests::Manifests;
use crate::engine::Blocking;
use crate::error::EngineError;

/// Jobs of a tenant that may wait.
const JOBS_MAX: usize = 4_096;
/// Notes of recalls are the first that find no room: a fact is worth more.
const NOTES_MAX: usize = JOBS_MAX / 2;
/// Jobs of one transaction.
const BATCH_MAX: usize = 256;

/// One tenant's writes, and what is remembered of its reads.
#[derive(Debug, Default)]
pub(super) struct Lane {
    queue: Mutex<VecDeque<Queued>>,
    /// Who has it writes.
    turn: Arc<tokio::sync::Mutex<()>>,
    pub(super) manifests: Manifests,
    /// Set when something is left to the keeper: to forget, to erase, to index.
    unfinished: AtomicBool,
    /// What callers forget right now: the keeper leaves these jobs to them.
    forgetting: Mutex<BTreeSet<MemoryId>>,
}

/// Whose manifests a job makes old.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Touch {
    /// Nobody's.
    Nothing,
    /// This subject's.
    One(Subject),
    /// Anybody's.
    All,
}

struct Queued {
    job: WriteJob,
    /// Called with what became of it, once that is true.
    tell: Box<dyn FnOnce(Result<(), EngineError>) + Send>,
}

impl fmt::Debug for Queued {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Queued")
    }
}

/// What a job gives, and whose manifests are old by it.
pub(super) type Written<T> = Result<(T, Touch), StoreError>;

impl Lane {
    /// Queues a job whose answer nobody waits for. It is written with the next one that
    /// somebody waits for, or by the keeper. False when too much waits: it is dropped.
    pub(super) fn leave(
        &self,
        job: impl FnOnce(&MemoryWriter<'_>) -> Result<(), StoreError> + Send + 'static,
    ) -> bool {
        let tell = Box::new(|done: Result<(), EngineError>| {
            if let Err(error) = done {
                tracing::warn!(%error, "a recall could not be written down");
            }
        });
        self.push(
            Queued {
                job: Box::new(job),
                tell,
            },
            NOTES_MAX,
        )
        .is_ok()
    }

    /// Does a job, and answers when the disk has it.
    pub(super) async fn write<T: Send + 'static>(
        self: &Arc<Self>,
        tenant: &TenantId,
        (store, blocking): (&Arc<LongTermStore>, Blocking),
        job: impl FnOnce(&MemoryWriter<'_>) -> Written<T> + Send + 'static,
    ) -> Result<T, EngineError> {
        let (answer, mut answered) = oneshot::channel();
        let made = Arc::new(Mutex::new(None));
        let (makes, lane) = (Arc::clone(&made), Arc::clone(self));
        let job: WriteJob = Box::new(move |writer| {
            *locked(&makes) = Some(job(writer)?);
            Ok(())
        });
        let tell = Box::new(move |done: Result<(), EngineError>| {
            let made = locked(&made).take();
            let result = done.and_then(|()| made.ok_or(EngineError::Stopping));
            // Before anybody is answered, and also when nobody waits any more.
            let result = result.map(|(value, touch)| {
                lane.manifests.forget(&touch);
                value
            });
            drop(answer.send(result));
        });
        self.push(Queued { job, tell }, JOBS_MAX)?;
        loop {
            tokio::select! {
                biased;
                result = &mut answered => return result.unwrap_or(Err(EngineError::Stopping)),
                turn = Arc::clone(&self.turn).lock_owned() => {
                    self.write_batch(tenant, store, blocking, turn).await?;
                }
            }
        }
    }

    /// Writes what waits, where something does.
    pub(super) async fn flush(
        self: &Arc<Self>,
        tenant: &TenantId,
        (store, blocking): (&Arc<LongTermStore>, Blocking),
    ) -> Result<(), EngineError> {
        while !self.queue().is_empty() {
            let turn = Arc::clone(&self.turn).lock_owned().await;
            self.write_batch(tenant, store, blocking, turn).await?;
        }
        Ok(())
    }

    async fn write_batch(
        self: &Arc<Self>,
        tenant: &TenantId,
        store: &Arc<LongTermStore>,
        blocking: Blocking,
        turn: OwnedMutexGuard<()>,
    ) -> Result<(), EngineError> {
        let (lane, tenant, store) = (Arc::clone(self), tenant.clone(), Arc::clone(store));
        let work = move || {
            lane.write_now(&tenant, &store);
            drop(turn);
        };
        blocking.run(work).await
    }

    fn write_now(&self, tenant: &TenantId, store: &LongTermStore) {
        let batch: Vec<Queued> = {
            let mut queue = self.queue();
            let count = queue.len().min(BATCH_MAX);
            queue.drain(..count).collect()
        };
        if batch.is_empty() {
            return;
        }
        let (jobs, tells): (Vec<_>, Vec<_>) = batch
            .into_iter()
            .map(|queued| (queued.job, queued.tell))
            .unzip();
        match store
            .tenant(tenant)
            .and_then(|memories| memories.write(jobs))
        {
            Ok(results) => {
                for (tell, result) in tells.into_iter().zip(results) {
                    tell(result.map_err(|error| EngineError::of_memories(&error)));
                }
            }
            Err(error) => {
                tells
                    .into_iter()
                    .for_each(|tell| tell(Err(EngineError::of_memories(&error))));
            }
        }
    }

    fn push(&self, queued: Queued, jobs_max: usize) -> Result<(), EngineError> {
        let mut queue = self.queue();
        if queue.len() >= jobs_max {
            return Err(EngineError::MemoriesBusy);
        }
        queue.push_back(queued);
        Ok(())
    }

    /// Leaves something to the keeper.
    pub(super) fn leave_unfinished(&self) {
        self.unfinished.store(true, Ordering::Release);
    }

    /// True when something was left since this was last asked.
    pub(super) fn take_unfinished(&self) -> bool {
        self.unfinished.swap(false, Ordering::AcqRel)
    }

    /// Jobs that callers are doing.
    pub(super) fn forgetting(&self) -> MutexGuard<'_, BTreeSet<MemoryId>> {
        locked(&self.forgetting)
    }

    fn queue(&self) -> MutexGuard<'_, VecDeque<Queued>> {
        locked(&self.queue)
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
