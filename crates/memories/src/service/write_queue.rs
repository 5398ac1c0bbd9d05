//! Write queue of a tenant's memories.
//!
//! All queued jobs are written in one transaction by the first caller, so that they share one disk
//! sync. A write that has started completes even if its caller is dropped.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex};

use memoird_engine::{Blocking, EngineError};
use tokio::sync::{OwnedMutexGuard, oneshot};

use super::tenants::TenantState;
use crate::error::MemoryError;
use crate::lock;
use crate::store::{FactLookup, MemoryStore, MemoryWriter, WriteJob};

/// Maximum queued jobs per tenant.
const JOBS_MAX: usize = 4_096;
/// Recall events are queued only up to this number of jobs. The rest is reserved for facts.
const NOTES_MAX: usize = JOBS_MAX / 2;
/// Maximum jobs per transaction.
const BATCH_MAX: usize = 256;

#[derive(Debug, Default)]
pub(super) struct WriteQueue {
    jobs: Mutex<VecDeque<Queued>>,
    /// Held by the caller that is writing.
    turn: Arc<tokio::sync::Mutex<()>>,
}

struct Queued {
    job: WriteJob,
    /// Called with the outcome once it is durable.
    reply: Box<dyn FnOnce(Result<(), MemoryError>) + Send>,
}

impl fmt::Debug for Queued {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Queued")
    }
}

impl TenantState {
    /// Queues a job without waiting for it.
    ///
    /// It is written with the next job that a caller waits for, or by the maintenance worker.
    /// Returns `false` if the queue is full and the job was dropped.
    pub(super) fn leave(
        &self,
        job: impl FnOnce(&MemoryWriter<'_>) -> Result<(), MemoryError> + Send + 'static,
    ) -> bool {
        let reply = |done: Result<(), MemoryError>| {
            if let Err(error) = done {
                tracing::warn!(%error, "a recall could not be written down");
            }
        };
        let queued = Queued {
            job: WriteJob::new(job),
            reply: Box::new(reply),
        };
        self.queue.push(queued, NOTES_MAX).is_ok()
    }

    /// Runs a job that may remember a fact, and returns once it is durable.
    pub(super) async fn write<T: Send + 'static>(
        self: &Arc<Self>,
        store: &Arc<MemoryStore>,
        blocking: Blocking,
        fact: Option<FactLookup>,
        job: impl FnOnce(&MemoryWriter<'_>) -> Result<T, MemoryError> + Send + 'static,
    ) -> Result<T, MemoryError> {
        let (answer, mut answered) = oneshot::channel();
        let made = Arc::new(Mutex::new(None));
        let makes = Arc::clone(&made);
        let state = Arc::clone(self);
        let job = WriteJob::new(move |writer| {
            let done = job(writer);
            state.note_damage(writer.take_damage());
            *lock(&makes) = Some(done?);
            Ok(())
        })
        .with_fact(fact);
        let reply = Box::new(move |done: Result<(), MemoryError>| {
            let made = lock(&made).take();
            let result = done.and_then(|()| made.ok_or(EngineError::Stopping.into()));
            drop(answer.send(result));
        });
        self.queue.push(Queued { job, reply }, JOBS_MAX)?;
        loop {
            tokio::select! {
                biased;
                result = &mut answered => {
                    return result.unwrap_or(Err(EngineError::Stopping.into()));
                }
                turn = Arc::clone(&self.queue.turn).lock_owned() => {
                    self.write_batch(store, blocking, turn).await?;
                }
            }
        }
    }

    pub(super) async fn flush(
        self: &Arc<Self>,
        store: &Arc<MemoryStore>,
        blocking: Blocking,
    ) -> Result<(), MemoryError> {
        while !lock(&self.queue.jobs).is_empty() {
            let turn = Arc::clone(&self.queue.turn).lock_owned().await;
            self.write_batch(store, blocking, turn).await?;
        }
        Ok(())
    }

    async fn write_batch(
        self: &Arc<Self>,
        store: &Arc<MemoryStore>,
        blocking: Blocking,
        turn: OwnedMutexGuard<()>,
    ) -> Result<(), MemoryError> {
        let (state, store) = (Arc::clone(self), Arc::clone(store));
        let work = move || {
            state.write_now(&store);
            drop(turn);
        };
        Ok(blocking.run(work).await?)
    }

    fn write_now(&self, store: &MemoryStore) {
        let batch: Vec<Queued> = {
            let mut jobs = lock(&self.queue.jobs);
            let count = jobs.len().min(BATCH_MAX);
            jobs.drain(..count).collect()
        };
        if batch.is_empty() {
            return;
        }
        let (jobs, replies): (Vec<_>, Vec<_>) = batch
            .into_iter()
            .map(|queued| (queued.job, queued.reply))
            .unzip();
        let written = store.tenant(&self.tenant).and_then(|file| file.write(jobs));
        let results = written.unwrap_or_else(|error| vec![Err(error); replies.len()]);
        for (reply, result) in replies.into_iter().zip(results) {
            reply(result);
        }
    }
}

impl WriteQueue {
    fn push(&self, queued: Queued, jobs_max: usize) -> Result<(), MemoryError> {
        let mut jobs = lock(&self.jobs);
        if jobs.len() >= jobs_max {
            return Err(MemoryError::Busy);
        }
        jobs.push_back(queued);
        Ok(())
    }
}
