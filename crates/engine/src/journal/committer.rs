//! The worker that writes: all that waits becomes one transaction, and every waiter in it is
//! answered.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use memoird_core::change::ChangeSet;
use memoird_core::time::Timestamp;
use memoird_store::Refused;
use tracing::{error, info};

use super::{Backend, Durability, Journal, Submission};
use crate::error::EngineError;
use crate::machine::{Machine, Stopwatch};
use crate::stats::Stats;
use crate::worker::{WorkError, Worker};

/// After a transaction of this many sets the next one waits for more sets, for at most
/// [`GATHER_TIME_MAX`].
const GATHER_FROM_SETS: usize = 8;
const GATHER_TIME_MAX: Duration = Duration::from_millis(1);
/// After a commit that failed, the pause before an empty commit is tried.
const PROBE_PAUSE: Duration = Duration::from_secs(30);

/// Handles a change set that is written or refused, before its caller is answered.
pub(crate) trait CommitHandler<C>: Send + 'static {
    /// The set with this ticket is written.
    fn committed(&self, ticket: u64, context: C, at: Timestamp);
    /// The set is not written: nothing of it happened.
    fn failed(&self, context: C);
    /// All sets of a transaction were handled.
    fn batch_done(&self);
}

/// The worker that writes.
pub(crate) struct Committer<C, H> {
    journal: Arc<Journal<C>>,
    handler: H,
    machine: Arc<dyn Machine>,
    stats: Arc<Stats>,
    /// Sets of the last transaction.
    last_batch_sets: usize,
}

impl<C: Send + 'static, H: CommitHandler<C>> Committer<C, H> {
    pub(crate) fn new(
        journal: Arc<Journal<C>>,
        handler: H,
        machine: Arc<dyn Machine>,
        stats: Arc<Stats>,
    ) -> Self {
        Self {
            journal,
            handler,
            machine,
            stats,
            last_batch_sets: 0,
        }
    }

    /// Writes what waits, up to the size of a batch; gives the number of sets.
    async fn commit_batch(&self, backend: &Backend<C>) -> usize {
        let mut batch = backend.take_batch(self.journal.batch_sets_max);
        let count = batch.len();
        if batch.is_empty() {
            return 0;
        }
        let sets: Vec<ChangeSet> = batch
            .iter_mut()
            .map(|submission| std::mem::take(&mut submission.set))
            .collect();
        let watch = Stopwatch::start();
        let outcome = self.commit(backend, sets).await;
        self.stats.commit_seconds.observe(watch.seconds());
        self.stats.commit_batch.observe(count as f64);
        self.stats.commits.fetch_add(1, Ordering::Relaxed);
        self.stats
            .commit_sets
            .fetch_add(count as u64, Ordering::Relaxed);
        // Before any waiter is answered.
        backend
            .is_failing
            .store(outcome.is_err(), Ordering::Relaxed);
        match outcome {
            Ok(answers) => {
                let outcomes = answers.into_iter().map(|answer| answer.map_err(Into::into));
                self.finish_batch(backend, batch, outcomes);
            }
            Err(failure) => {
                error!(%failure, detail = ?failure, sets = count, "a commit failed");
                let outcomes = std::iter::repeat_with(|| Err(failure.clone()));
                self.finish_batch(backend, batch, outcomes);
            }
        }
        count
    }

    async fn commit(
        &self,
        backend: &Backend<C>,
        sets: Vec<ChangeSet>,
    ) -> Result<Vec<Result<(), Refused>>, EngineError> {
        let clock = self.machine.anchor();
        let write = backend.access.run(move |store| store.commit(&clock, &sets));
        write.await
    }

    /// Finds out whether the store can be written again. Nothing but the clock is in this
    /// commit.
    async fn probe(&self, backend: &Backend<C>) {
        if self.commit(backend, Vec::new()).await.is_ok() {
            backend.is_failing.store(false, Ordering::Relaxed);
            info!("the journal can be written again");
        }
    }

    /// First the handler learns what became of each set, then those who wait do.
    fn finish_batch(
        &self,
        backend: &Backend<C>,
        batch: Vec<Submission<C>>,
        outcomes: impl Iterator<Item = Result<(), EngineError>>,
    ) {
        let last_ticket = batch.last().map_or(0, |submission| submission.ticket);
        let at = self.machine.now().wall;
        let mut replies = Vec::with_capacity(batch.len());
        for (submission, outcome) in batch.into_iter().zip(outcomes) {
            match outcome {
                Ok(()) => self
                    .handler
                    .committed(submission.ticket, submission.context, at),
                Err(_) => {
                    self.stats.commit_failures.fetch_add(1, Ordering::Relaxed);
                    self.handler.failed(submission.context);
                }
            }
            replies.push((submission.reply, outcome));
        }
        self.handler.batch_done();
        backend.processed.send_replace(last_ticket);
        for (reply, outcome) in replies {
            if let Some(reply) = reply {
                // The caller may have hung up.
                let _ = reply.send(outcome);
            }
        }
    }
}

impl<C: Send + 'static, H: CommitHandler<C> + Sync> Worker for Committer<C, H> {
    fn name(&self) -> &'static str {
        "committer"
    }

    async fn wait(&mut self) {
        let Some(backend) = &self.journal.backend else {
            return std::future::pending().await;
        };
        if backend.is_failing.load(Ordering::Relaxed) {
            // Changes that would do no harm if lost are not submitted meanwhile.
            let _ = tokio::time::timeout(PROBE_PAUSE, backend.wait_for_sets(1)).await;
        } else {
            backend.wait_for_sets(1).await;
        }
        if self.journal.durability == Durability::Interval {
            let interval_ms = self.journal.flush_interval_ms.load(Ordering::Relaxed);
            let interval = Duration::from_millis(interval_ms);
            let _ = tokio::time::timeout(interval, backend.flush.notified()).await;
        } else if self.last_batch_sets >= GATHER_FROM_SETS {
            // The callers that were just answered are about to come back: the first of them
            // must not have a whole transaction, and its fsync, to itself.
            let most = backend.wait_for_sets(self.last_batch_sets * 3 / 4);
            let _ = tokio::time::timeout(GATHER_TIME_MAX, most).await;
        }
    }

    /// Writes all that waits by now: with `interval` there is a pause before the next step.
    async fn step(&mut self) -> Result<(), WorkError> {
        let journal = Arc::clone(&self.journal);
        let Some(backend) = &journal.backend else {
            return Ok(());
        };
        let last_ticket = backend.queue().last_ticket;
        self.last_batch_sets = self.commit_batch(backend).await;
        while *backend.processed.borrow() < last_ticket && self.commit_batch(backend).await > 0 {}
        if self.last_batch_sets == 0 && backend.is_failing.load(Ordering::Relaxed) {
            self.probe(backend).await;
        }
        Ok(())
    }

    async fn finish(&mut self) {
        let journal = Arc::clone(&self.journal);
        let Some(backend) = &journal.backend else {
            return;
        };
        backend.permits.close();
        while self.commit_batch(backend).await > 0 || !backend.close() {}
    }
}
