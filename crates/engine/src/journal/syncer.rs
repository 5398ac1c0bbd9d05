//! Tells what became of change sets, once the disk has it: where the store syncs apart, a thread of
//! its own waits for that, while the committer writes the next transaction.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tracing::error;

use super::committer::CommitHandler;
use super::{Backend, Journal, Reach, Submission};
use crate::error::EngineError;
use crate::machine::{Machine, Stopwatch};
use crate::stats::Stats;
use crate::worker::{WorkError, Worker};

/// Batches that are written and wait for a sync, beside those that are synced. Where the disk is
/// slow, sets gather for the next transaction instead.
pub(super) const UNSYNCED_MAX: usize = 1;

/// A batch of sets that were written, or refused.
pub(super) struct Written<C> {
    pub(super) sets: Vec<(Submission<C>, Result<(), EngineError>)>,
    /// How far the committer was then.
    pub(super) reach: Reach,
    /// Since it was begun.
    pub(super) watch: Stopwatch,
}

/// Tells what became of batches, one after the other.
pub(crate) struct Finisher<C, H> {
    pub(super) journal: Arc<Journal<C>>,
    pub(super) handler: H,
    pub(super) machine: Arc<dyn Machine>,
    pub(super) stats: Arc<Stats>,
}

/// Where an answer goes, and the answer.
type Reply = (
    oneshot::Sender<Result<(), EngineError>>,
    Result<(), EngineError>,
);

/// The worker that waits for the disk.
pub(crate) struct Syncer<C, H> {
    finisher: Arc<Finisher<C, H>>,
    written: mpsc::Receiver<Written<C>>,
    /// The batches that the next sync is for.
    batches: Vec<Written<C>>,
    /// Set when the disk refuses to sync: the process has to end.
    broken: CancellationToken,
}

impl<C: Send + 'static, H: CommitHandler<C>> Finisher<C, H> {
    /// First the handler learns what became of each set, then those who wait do.
    pub(super) fn finish(
        &self,
        backend: &Backend<C>,
        batch: Written<C>,
        synced: &Result<(), EngineError>,
    ) {
        let at = self.machine.now().wall;
        let number = backend.progress.borrow().batches + 1;
        let mut replies = Vec::with_capacity(batch.sets.len());
        for (submission, written) in batch.sets {
            let outcome = written.and_then(|()| synced.clone());
            match &outcome {
                Ok(()) => {
                    let last = &self.handler.tenant(&submission.context).last_batch;
                    last.fetch_max(number, Ordering::Relaxed);
                    self.handler
                        .committed(submission.ticket, submission.context, at);
                }
                Err(error) => {
                    // What was built on another version is decided again, which is no failure: where
                    // daemons share the journal, each of them may be faster.
                    if !matches!(error, EngineError::SessionReloaded) {
                        self.stats.commit_failures.fetch_add(1, Ordering::Relaxed);
                    }
                    self.handler.failed(submission.context);
                }
            }
            replies.extend(submission.reply.map(|reply| (reply, outcome)));
        }
        self.handler.batch_done();
        backend.advance_to(batch.reach);
        self.stats.commit_seconds.observe(batch.watch.seconds());
        answer(replies);
    }
}

/// One thread of the runtime is woken for all who wait: the calling one has more to do.
#[allow(
    clippy::disallowed_methods,
    reason = "it is over at once, and nobody waits for it"
)]
fn answer(replies: Vec<Reply>) {
    if replies.is_empty() {
        return;
    }
    tokio::spawn(async move {
        for (reply, outcome) in replies {
            // The caller may have hung up.
            let _ = reply.send(outcome);
        }
    });
}

impl<C: Send + 'static, H: CommitHandler<C>> Syncer<C, H> {
    pub(super) fn new(
        finisher: Arc<Finisher<C, H>>,
        written: mpsc::Receiver<Written<C>>,
        broken: CancellationToken,
    ) -> Self {
        Self {
            finisher,
            written,
            batches: Vec::new(),
            broken,
        }
    }

    /// Syncs all that is written by now, and tells so.
    async fn sync(&mut self) {
        let Some(backend) = &self.finisher.journal.backend else {
            return;
        };
        while let Ok(batch) = self.written.try_recv() {
            self.batches.push(batch);
        }
        let synced = backend.access.sync().await;
        if let Err(failure) = &synced {
            error!(%failure, "the disk may not have what was just written; the daemon ends");
            self.broken.cancel();
        }
        for batch in self.batches.drain(..) {
            self.finisher.finish(backend, batch, &synced);
        }
    }
}

impl<C: Send + 'static, H: CommitHandler<C> + Sync> Worker for Syncer<C, H> {
    fn name(&self) -> &'static str {
        "syncer"
    }

    async fn wait(&mut self) {
        match self.written.recv().await {
            Some(batch) => self.batches.push(batch),
            // The committer panicked.
            None => std::future::pending().await,
        }
    }

    async fn step(&mut self) -> Result<(), WorkError> {
        self.sync().await;
        Ok(())
    }

    /// Goes on as long as the committer does.
    async fn finish(&mut self) {
        while let Some(batch) = self.written.recv().await {
            self.batches.push(batch);
            self.sync().await;
        }
    }
}
