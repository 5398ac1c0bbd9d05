//! The committer: writes everything queued as one transaction and notifies the callers.
//!
//! If the callers were already notified, a failed transaction is retried until it succeeds.
//!
//! A set based on a rejected one is never sent to the store ([`CommitHandler::is_base_written`]).
//! With several writers, another process's change may have the revision that the set expects.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use memoird_core::change::ChangeSet;
use memoird_core::time::Timestamp;
use memoird_store::{ClockAnchor, PrewritePart, StaleBase};
use tracing::{debug, error, info};

use super::{Backend, Durability, Journal, Submission, parts};
use crate::error::EngineError;
use crate::machine::{Machine, Stopwatch};
use crate::stats::Stats;
use crate::tenants::Tenant;
use crate::worker::{WorkError, Worker};

/// Minimum number of sets in a transaction for the next one to gather sets first.
///
/// The committer then waits up to [`GATHER_TIME_MAX`] for 3/8 as many sets. This splits callers
/// into two groups: one is notified and calls again while the other is committed. With a smaller
/// fraction, too few sets share a commit's fixed cost. With a larger one, all callers wait for one
/// another.
const GATHER_FROM_SETS: usize = 8;
const GATHER_TIME_MAX: Duration = Duration::from_millis(1);
/// The store's log is checkpointed after this many commits or bytes of sets.
const CHECKPOINT_COMMITS: usize = 128;
const CHECKPOINT_BYTES: usize = 4 << 20;
/// Bytes between checkpoints while a large set is prewritten.
///
/// While that much waits for a running checkpoint, no further part is written: a commit that finds
/// the log full would have to checkpoint all of it, delaying every caller.
const CHECKPOINT_BYTES_PREWRITING: usize = 1 << 20;
/// Pause after a failed commit before an empty commit probes the store.
const PROBE_PAUSE: Duration = Duration::from_secs(30);
/// Pause before a failed commit is retried. Doubles with each attempt, up to `RETRY_PAUSE_MAX`,
/// unless changes are refused.
const RETRY_PAUSE_MIN: Duration = Duration::from_millis(100);
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(5);
/// Maximum retries at shutdown, which take about three seconds.
const LAST_RETRIES_MAX: u32 = 5;

/// Handles finished change sets before their callers are notified.
pub(crate) trait CommitHandler<C>: Send + 'static {
    /// Whether the set's base was written.
    ///
    /// A single writer can leave this check to the store, which compares revisions. With several,
    /// another writer may have created the expected revision.
    fn is_base_written(&self, context: &C) -> bool;
    fn tenant<'a>(&self, context: &'a C) -> &'a Tenant;
    /// Called when the set with this ticket is written.
    fn committed(&self, ticket: u64, context: C, at: Timestamp);
    /// Called when the set is not written. It has no effect.
    fn failed(&self, context: C);
    fn batch_done(&self);
}

pub(crate) struct Committer<C, H> {
    journal: Arc<Journal<C>>,
    handler: H,
    machine: Arc<dyn Machine>,
    stats: Arc<Stats>,
    last_batch_sets: usize,
    /// The large set that is being prewritten.
    ahead: Option<Submission<C>>,
    /// Number of sets that must remain queued until `ahead` is committed.
    held_back: usize,
    /// Set at shutdown: prewriting no longer waits for checkpoints.
    is_stopping: bool,
    /// Failed attempts to write the oldest sets.
    retries: u32,
    since_checkpoint: SinceCheckpoint,
}

/// Amount committed since the last checkpoint began.
#[derive(Default)]
struct SinceCheckpoint {
    commits: usize,
    bytes: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BatchOutcome {
    Nothing,
    /// Number of sets written or rejected. May be 0 if only a part was prewritten.
    Finished(usize),
    /// The commit failed, and its sets are queued for a retry.
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
            ahead: None,
            held_back: 0,
            is_stopping: false,
            retries: 0,
            since_checkpoint: SinceCheckpoint::default(),
        }
    }

    /// Writes the queued sets, up to the size of a batch, and the next part of a large set.
    async fn commit_batch(&mut self, backend: &Backend<C>) -> BatchOutcome {
        let journal = Arc::clone(&self.journal);
        let (sets_max, parts) = (journal.batch_sets_max, journal.parts);
        let taken = backend.take_batch(sets_max, parts, &mut self.ahead);
        let (mut batch, taken_bytes) = (taken.batch, taken.bytes);
        self.held_back = taken.held_back;
        let part = self.next_part(backend);
        let count = batch.len();
        let has_part = part.as_ref().is_some_and(|part| !part.turns.is_empty());
        if batch.is_empty() && !has_part {
            return BatchOutcome::Nothing;
        }
        let bytes = taken_bytes + part.as_ref().map_or(0, parts::bytes_of);
        let is_base_written: Vec<bool> = batch
            .iter()
            .map(|submission| self.handler.is_base_written(&submission.context))
            .collect();
        let well_founded = batch
            .iter_mut()
            .zip(&is_base_written)
            .filter(|(_, is_base_written)| **is_base_written)
            .map(|(submission, _)| std::mem::take(&mut submission.set));
        let sets: Arc<Vec<ChangeSet>> = Arc::new(well_founded.collect());
        let watch = Stopwatch::start();
        let clock = self.machine.anchor();
        let outcome = Self::commit(backend, clock, &sets, part).await;
        self.stats.commit_seconds.observe(watch.seconds());
        self.stats.commit_batch.observe(count as f64);
        self.stats.commits.fetch_add(1, Ordering::Relaxed);
        match outcome {
            Ok((answers, prewritten_turns)) => {
                self.note_success(backend);
                self.count_sets(count);
                self.checkpoint_when_due(backend, bytes);
                self.advance(backend, prewritten_turns);
                let mut answers = answers.into_iter();
                let outcomes = is_base_written.iter().map(|is_base_written| {
                    let answer = is_base_written
                        .then(|| answers.next())
                        .flatten()
                        .map(|answer| answer.map_err(Into::into));
                    answer.unwrap_or(Err(EngineError::SessionReloaded))
                });
                self.finish_batch(backend, batch, outcomes);
            }
            Err(failure) if self.journal.retries_commits() => {
                // All of them were well founded: with `Interval`, this process is the only writer.
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
                // The failed transaction also ends prewriting. Fail that set, too.
                batch.extend(self.ahead.take());
                let count = batch.len();
                self.note_failure(backend, &failure, count);
                self.count_sets(count);
                let outcomes = std::iter::repeat_with(|| Err(failure.clone()));
                self.finish_batch(backend, batch, outcomes);
            }
        }
        BatchOutcome::Finished(count)
    }

    /// The next turns to prewrite. Contains no turns if a checkpoint must finish first.
    fn next_part(&self, backend: &Backend<C>) -> Option<PrewritePart> {
        let (ahead, parts) = (self.ahead.as_ref()?, self.journal.parts?);
        let mut part = parts.next(&ahead.set, ahead.prewritten_turns)?;
        if self.waits_for_checkpoint(backend) {
            // The store must still learn that the set is to come.
            part.turns.clear();
        }
        Some(part)
    }

    /// Records prewritten turns. Once the rest of the set is small, the set is committed next.
    fn advance(&mut self, backend: &Backend<C>, turns: usize) {
        let Some(ahead) = &mut self.ahead else { return };
        ahead.prewritten_turns += turns;
        let parts = self.journal.parts;
        if !parts.is_some_and(|parts| parts.is_too_large(&ahead.set, ahead.prewritten_turns)) {
            backend.put_back(self.ahead.take().into_iter().collect());
        }
    }

    /// Starts a checkpoint, concurrent with the next commits, if the log has grown enough.
    fn checkpoint_when_due(&mut self, backend: &Backend<C>, bytes: usize) {
        let since_checkpoint = &mut self.since_checkpoint;
        since_checkpoint.commits += 1;
        since_checkpoint.bytes += bytes;
        let bytes_max = match self.ahead {
            Some(_) => CHECKPOINT_BYTES_PREWRITING,
            None => CHECKPOINT_BYTES,
        };
        let is_due =
            since_checkpoint.commits >= CHECKPOINT_COMMITS || since_checkpoint.bytes >= bytes_max;
        if is_due && backend.store.checkpoint_log() {
            self.since_checkpoint = SinceCheckpoint::default();
        }
    }

    /// Whether prewriting must wait for the running checkpoint.
    fn waits_for_checkpoint(&self, backend: &Backend<C>) -> bool {
        let is_much = self.since_checkpoint.bytes >= CHECKPOINT_BYTES_PREWRITING;
        is_much && !self.is_stopping && backend.store.is_checkpointing()
    }

    fn count_sets(&self, count: usize) {
        self.stats
            .commit_sets
            .fetch_add(count as u64, Ordering::Relaxed);
    }

    /// Records a successful commit. Called before any caller is notified.
    fn note_success(&mut self, backend: &Backend<C>) {
        self.retries = 0;
        if backend.is_failing.swap(false, Ordering::Relaxed) {
            backend
                .progress
                .send_modify(|progress| progress.failure = None);
            info!("the journal can be written again");
        }
    }

    /// Records a failed commit. Called before any caller is notified.
    fn note_failure(&self, backend: &Backend<C>, failure: &EngineError, sets: usize) {
        let is_first = self.retries == 0;
        backend
            .progress
            .send_modify(|progress| progress.failure = Some(failure.clone()));
        backend.is_failing.store(true, Ordering::Relaxed);
        if is_first {
            error!(%failure, detail = ?failure, sets, "a commit failed");
        } else {
            debug!(%failure, detail = ?failure, sets, "a commit failed again");
        }
    }

    async fn commit(
        backend: &Backend<C>,
        clock: ClockAnchor,
        sets: &Arc<Vec<ChangeSet>>,
        part: Option<PrewritePart>,
    ) -> Result<(Vec<Result<(), StaleBase>>, usize), EngineError> {
        let sets = Arc::clone(sets);
        let write = backend.store.commit(move |store| match part {
            None => Ok((store.commit(&clock, &sets)?, 0)),
            Some(part) => store.commit_and_prewrite(&clock, &sets, &part),
        });
        write.await
    }

    /// Checks whether the store can be written again, with a commit that contains only the clock.
    async fn probe(&mut self, backend: &Backend<C>) {
        let clock = self.machine.anchor();
        let probed = Self::commit(backend, clock, &Arc::default(), None).await;
        if probed.is_ok() {
            self.note_success(backend);
        }
    }

    /// Writes everything queued at shutdown, as far as possible.
    async fn commit_rest(&mut self, backend: &Backend<C>) {
        self.retries = 0;
        loop {
            match self.commit_batch(backend).await {
                BatchOutcome::Nothing if backend.close() => return,
                BatchOutcome::Nothing | BatchOutcome::Finished(_) => {}
                BatchOutcome::PutBack if self.retries <= LAST_RETRIES_MAX => {
                    tokio::time::sleep(self.retry_pause()).await;
                }
                BatchOutcome::PutBack => return self.give_up(backend),
            }
        }
    }

    /// Drops the sets that could not be written at shutdown.
    fn give_up(&mut self, backend: &Backend<C>) {
        let (waiting, last_ticket) = backend.close_and_drop();
        let lost = waiting + usize::from(self.ahead.take().is_some());
        error!(
            sets = lost,
            failure = %backend.failure(),
            "the journal could not be written; acknowledged change sets are lost"
        );
        backend.progress.send_modify(|progress| {
            progress.processed = last_ticket;
            progress.batches += 1;
        });
    }

    fn retry_pause(&self) -> Duration {
        let doublings = self.retries.saturating_sub(1).min(16);
        (RETRY_PAUSE_MIN * 2_u32.pow(doublings)).min(RETRY_PAUSE_MAX)
    }

    /// Reports the outcome of each set to the handler first, and then to the callers.
    fn finish_batch(
        &self,
        backend: &Backend<C>,
        batch: Vec<Submission<C>>,
        outcomes: impl Iterator<Item = Result<(), EngineError>>,
    ) {
        let tickets = batch.iter().map(|submission| submission.ticket);
        let Some(last_ticket) = tickets.max() else {
            return;
        };
        let at = self.machine.now().wall;
        let number = backend.progress.borrow().batches + 1;
        let mut replies = Vec::with_capacity(batch.len());
        for (submission, outcome) in batch.into_iter().zip(outcomes) {
            match &outcome {
                Ok(()) => {
                    let last = &self.handler.tenant(&submission.context).last_batch;
                    last.fetch_max(number, Ordering::Relaxed);
                    self.handler
                        .committed(submission.ticket, submission.context, at);
                }
                Err(error) => {
                    // A stale base is no failure: the command is decided again. In a cluster, this
                    // is routine.
                    if !matches!(error, EngineError::SessionReloaded) {
                        self.stats.commit_failures.fetch_add(1, Ordering::Relaxed);
                    }
                    self.handler.failed(submission.context);
                }
            }
            replies.push((submission.reply, outcome));
        }
        self.handler.batch_done();
        let tenant_of = |context: &C| self.handler.tenant(context).id.clone();
        backend.finish_up_to(last_ticket, self.ahead.as_ref(), tenant_of);
        for (reply, outcome) in replies {
            if let Some(reply) = reply {
                // The caller may have been cancelled.
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
        if self.ahead.is_some() && self.retries == 0 {
            if self.waits_for_checkpoint(backend) {
                tokio::select! {
                    () = backend.store.wait_checkpointed() => {}
                    () = backend.wait_for_sets(self.held_back + 1) => {}
                }
            }
            return;
        }
        if self.retries > 0 {
            let refused = async {
                tokio::time::sleep(RETRY_PAUSE_MIN).await;
                backend.retry.notified().await;
            };
            tokio::select! {
                // A task that waits for queued sets triggers the next attempt immediately.
                () = backend.flush.notified() => {}
                () = refused => {}
                () = tokio::time::sleep(self.retry_pause()) => {}
            }
            return;
        }
        if backend.is_failing() {
            // Changes that may be lost without harm are not submitted in this state.
            let _ = tokio::time::timeout(PROBE_PAUSE, backend.wait_for_sets(1)).await;
        } else {
            backend.wait_for_sets(1).await;
        }
        if self.journal.durability == Durability::Interval {
            let interval_ms = self.journal.flush_interval_ms.load(Ordering::Relaxed);
            let interval = Duration::from_millis(interval_ms);
            let _ = tokio::time::timeout(interval, backend.flush.notified()).await;
        } else if self.last_batch_sets >= GATHER_FROM_SETS {
            // The callers just notified are about to submit again. Do not spend a transaction, and
            // its fsync, on the first of them alone.
            let most = backend.wait_for_sets(self.last_batch_sets * 3 / 8);
            let _ = tokio::time::timeout(GATHER_TIME_MAX, most).await;
        }
    }

    /// Writes everything queued so far: with `Interval`, the next step runs only after a pause.
    async fn step(&mut self) -> Result<(), WorkError> {
        let journal = Arc::clone(&self.journal);
        let Some(backend) = &journal.backend else {
            return Ok(());
        };
        let last_ticket = backend.queue.lock().last_ticket;
        let first = self.commit_batch(backend).await;
        self.last_batch_sets = match first {
            BatchOutcome::Nothing => 0,
            BatchOutcome::Finished(sets) => sets,
            BatchOutcome::PutBack => return Ok(()),
        };
        while backend.progress.borrow().processed < last_ticket {
            match self.commit_batch(backend).await {
                BatchOutcome::Finished(_) => {}
                BatchOutcome::Nothing | BatchOutcome::PutBack => break,
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
        self.is_stopping = true;
        self.commit_rest(backend).await;
    }
}
