//! The worker that writes: all that waits becomes one transaction, and every waiter in it is
//! answered. Where the callers were answered before, a transaction that failed is tried again
//! until it does not.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use memoird_core::change::ChangeSet;
use memoird_core::time::Timestamp;
use memoird_store::Refused;
use tracing::{debug, error, info};

use super::{Backend, Durability, Journal, Submission};
use crate::error::EngineError;
use crate::machine::{Machine, Stopwatch};
use crate::stats::Stats;
use crate::worker::{WorkError, Worker};

/// After a transaction of this many sets the next one waits for more sets, for at most
/// [`GATHER_TIME_MAX`].
const GATHER_FROM_SETS: usize = 8;
const GATHER_TIME_MAX: Duration = Duration::from_millis(1);
/// The store's log is moved to its place after so many commits, or sets of so many bytes.
const SETTLE_COMMITS: usize = 128;
const SETTLE_BYTES: usize = 4 << 20;
/// After a commit that failed, the pause before an empty commit is tried.
const PROBE_PAUSE: Duration = Duration::from_secs(30);
/// The pause before a commit is tried again; it doubles with each try, up to the second.
const RETRY_PAUSE_MIN: Duration = Duration::from_millis(100);
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(5);
/// How often a commit that fails is tried again when the daemon stops: some three seconds.
const LAST_RETRIES_MAX: u32 = 5;

/// Handles a change set that is written or refused, before its caller is answered.
pub(crate) trait CommitHandler<C>: Send + 'static {
    /// False for a set that was built on one which was not written. Without other writers the store
    /// refuses it by its revision; with them, one of theirs may have that revision by now.
    fn is_well_founded(&self, context: &C) -> bool;
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
    /// How often the oldest sets were tried in vain.
    retries: u32,
    /// Since the log was moved.
    unsettled: Unsettled,
}

/// What was committed since the store's log was moved to its place.
#[derive(Default)]
struct Unsettled {
    commits: usize,
    bytes: usize,
}

/// What became of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BatchOutcome {
    /// So many sets were written, or refused.
    Finished(usize),
    /// It could not be written, and waits for the next try.
    PutBack,
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
            retries: 0,
            unsettled: Unsettled::default(),
        }
    }

    /// Writes what waits, up to the size of a batch.
    async fn commit_batch(&mut self, backend: &Backend<C>) -> BatchOutcome {
        let (mut batch, bytes) = backend.take_batch(self.journal.batch_sets_max);
        let count = batch.len();
        if batch.is_empty() {
            return BatchOutcome::Finished(0);
        }
        let is_well_founded: Vec<bool> = batch
            .iter()
            .map(|submission| self.handler.is_well_founded(&submission.context))
            .collect();
        let sets = batch.iter_mut().zip(&is_well_founded);
        let sets = sets.filter(|(_, is_well_founded)| **is_well_founded);
        let sets = sets.map(|(submission, _)| std::mem::take(&mut submission.set));
        let sets: Arc<Vec<ChangeSet>> = Arc::new(sets.collect());
        let watch = Stopwatch::start();
        let outcome = self.commit(backend, &sets).await;
        self.stats.commit_seconds.observe(watch.seconds());
        self.stats.commit_batch.observe(count as f64);
        self.stats.commits.fetch_add(1, Ordering::Relaxed);
        match outcome {
            Ok(answers) => {
                self.note_success(backend);
                self.count_sets(count);
                self.settle_when_due(backend, bytes);
                let mut answers = answers.into_iter();
                let outcomes = is_well_founded.iter().map(|is_well_founded| {
                    let answer = is_well_founded.then(|| answers.next()).flatten();
                    let answer = answer.map(|answer| answer.map_err(Into::into));
                    answer.unwrap_or(Err(EngineError::SessionReloaded))
                });
                self.finish_batch(backend, batch, outcomes);
            }
            Err(failure) if self.journal.retries_commits() => {
                // All were well founded: where they are acknowledged at once, nobody else writes.
                for (submission, set) in batch.iter_mut().zip(Arc::unwrap_or_clone(sets)) {
                    submission.set = set;
                }
                backend.put_back(batch);
                self.note_failure(backend, &failure, count);
                self.stats
                    .commit_failures
                    .fetch_add(count as u64, Ordering::Relaxed);
                self.retries += 1;
                backend
                    .progress
                    .send_modify(|progress| progress.failed_tries += 1);
                return BatchOutcome::PutBack;
            }
            Err(failure) => {
                self.note_failure(backend, &failure, count);
                self.count_sets(count);
                let outcomes = std::iter::repeat_with(|| Err(failure.clone()));
                self.finish_batch(backend, batch, outcomes);
            }
        }
        BatchOutcome::Finished(count)
    }

    /// Has the log moved beside the commits that follow, where it has grown.
    fn settle_when_due(&mut self, backend: &Backend<C>, bytes: usize) {
        let unsettled = &mut self.unsettled;
        unsettled.commits += 1;
        unsettled.bytes += bytes;
        if unsettled.commits >= SETTLE_COMMITS || unsettled.bytes >= SETTLE_BYTES {
            *unsettled = Unsettled::default();
            backend.access.settle_log();
        }
    }

    fn count_sets(&self, count: usize) {
        self.stats
            .commit_sets
            .fetch_add(count as u64, Ordering::Relaxed);
    }

    /// A commit did not fail. Called before any waiter is answered.
    fn note_success(&mut self, backend: &Backend<C>) {
        self.retries = 0;
        if backend.is_failing.swap(false, Ordering::Relaxed) {
            backend
                .progress
                .send_modify(|progress| progress.failure = None);
            info!("the journal can be written again");
        }
    }

    /// A commit failed. Called before any waiter is answered.
    fn note_failure(&self, backend: &Backend<C>, failure: &EngineError, sets: usize) {
        let is_first = self.retries == 0;
        backend
            .progress
            .send_modify(|progress| progress.failure = Some(failure.clone()));
        backend.is_failing.store(true, Ordering::Relaxed);
        match is_first {
            true => error!(%failure, detail = ?failure, sets, "a commit failed"),
            false => debug!(%failure, detail = ?failure, sets, "a commit failed again"),
        }
    }

    async fn commit(
        &self,
        backend: &Backend<C>,
        sets: &Arc<Vec<ChangeSet>>,
    ) -> Result<Vec<Result<(), Refused>>, EngineError> {
        let (clock, sets) = (self.machine.anchor(), Arc::clone(sets));
        let access = &backend.access;
        let write = access.commit(move |store| store.commit(&clock, &sets));
        write.await
    }

    /// Finds out whether the store can be written again. Nothing but the clock is in this
    /// commit.
    async fn probe(&mut self, backend: &Backend<C>) {
        if self.commit(backend, &Arc::default()).await.is_ok() {
            self.note_success(backend);
        }
    }

    /// Writes what waits when the daemon stops, as far as that is possible.
    async fn commit_rest(&mut self, backend: &Backend<C>) {
        self.retries = 0;
        loop {
            match self.commit_batch(backend).await {
                BatchOutcome::Finished(0) if backend.close() => return,
                BatchOutcome::Finished(_) => {}
                BatchOutcome::PutBack if self.retries <= LAST_RETRIES_MAX => {
                    tokio::time::sleep(self.retry_pause()).await;
                }
                BatchOutcome::PutBack => return self.give_up(backend),
            }
        }
    }

    /// Forgets what could not be written: the daemon stops.
    fn give_up(&self, backend: &Backend<C>) {
        let (lost, last_ticket) = backend.close_and_drop();
        error!(
            sets = lost,
            failure = %backend.failure(),
            "the journal could not be written; acknowledged change sets are lost"
        );
        backend
            .progress
            .send_modify(|progress| progress.processed = last_ticket);
    }

    fn retry_pause(&self) -> Duration {
        let doublings = self.retries.saturating_sub(1).min(16);
        (RETRY_PAUSE_MIN * 2_u32.pow(doublings)).min(RETRY_PAUSE_MAX)
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
        backend
            .progress
            .send_modify(|progress| progress.processed = last_ticket);
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
        if self.retries > 0 {
            // Whoever waits for what is in the queue asks for the next try at once.
            let asked = backend.flush.notified();
            let _ = tokio::time::timeout(self.retry_pause(), asked).await;
            return;
        }
        if backend.is_failing() {
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
        let first = self.commit_batch(backend).await;
        self.last_batch_sets = match first {
            BatchOutcome::Finished(sets) => sets,
            BatchOutcome::PutBack => return Ok(()),
        };
        while backend.progress.borrow().processed < last_ticket {
            match self.commit_batch(backend).await {
                BatchOutcome::Finished(1..) => {}
                BatchOutcome::Finished(0) | BatchOutcome::PutBack => break,
            }
        }
        if self.last_batch_sets == 0 && backend.is_failing() {
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
        self.commit_rest(backend).await;
    }
}
