//! The worker that writes: all that waits becomes one transaction, and everybody in it is
//! answered.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use memoird_core::change::ChangeSet;
use memoird_core::time::Timestamp;
use tracing::{error, info, warn};

use super::{Journal, On, Submission};
use crate::cell::{Residence, SessionCell};
use crate::config::Durability;
use crate::error::EngineError;
use crate::machine::{Machine, Stopwatch};
use crate::mend::Mender;
use crate::outbox::Outbox;
use crate::stats::Stats;
use crate::table::Table;
use crate::worker::{WorkError, Worker};

/// After a transaction of so many sets the next one waits for company, at most so long.
const GATHER_FROM: usize = 8;
const GATHER_TIME: Duration = Duration::from_millis(1);
/// After a commit that failed, how long to wait before an empty one is tried.
const PROBE_PAUSE: Duration = Duration::from_secs(30);

/// The worker that writes.
pub(crate) struct Committer {
    pub(crate) journal: Arc<Journal>,
    pub(crate) machine: Arc<dyn Machine>,
    pub(crate) stats: Arc<Stats>,
    pub(crate) mender: Arc<Mender>,
    /// Sets of the last transaction.
    pub(crate) last_batch: usize,
    pub(crate) table: Arc<Table>,
    pub(crate) outbox: Arc<Outbox>,
}

impl Worker for Committer {
    fn name(&self) -> &'static str {
        "committer"
    }

    async fn wait(&mut self) {
        let Some(on) = &self.journal.on else {
            return std::future::pending().await;
        };
        if on.is_failing.load(Ordering::Relaxed) {
            // Calls that would only be noted are not handed over: they do not find it out.
            let _ = tokio::time::timeout(PROBE_PAUSE, on.has_waiting(1)).await;
        } else {
            on.has_waiting(1).await;
        }
        if self.journal.durability == Durability::Interval {
            let _ = tokio::time::timeout(self.journal.flush_interval(), on.hurry.notified()).await;
        } else if self.last_batch >= GATHER_FROM {
            // Those who were just answered are about to come back: the first of them must
            // not have a whole transaction, and its fsync, to itself.
            let most = on.has_waiting(self.last_batch * 3 / 4);
            let _ = tokio::time::timeout(GATHER_TIME, most).await;
        }
    }

    /// Writes all that waits by now: with `interval` there is a pause before the next step.
    async fn step(&mut self) -> Result<(), WorkError> {
        let Some(on) = &self.journal.on else {
            return Ok(());
        };
        let last = on.queue().last_ticket;
        self.last_batch = self.commit_batch().await;
        while *on.settled.borrow() < last && self.commit_batch().await > 0 {}
        if self.last_batch == 0 && on.is_failing.load(Ordering::Relaxed) {
            self.probe(on).await;
        }
        Ok(())
    }

    async fn finish(&mut self) {
        let Some(on) = &self.journal.on else { return };
        on.permits.close();
        while self.commit_batch().await > 0 || !on.close() {}
    }
}

impl Committer {
    /// Writes what waits, up to the size of a batch; gives the number of sets.
    async fn commit_batch(&self) -> usize {
        let Some(on) = &self.journal.on else { return 0 };
        let mut batch = on.take_batch(self.journal.batch_sets);
        if batch.is_empty() {
            return 0;
        }
        let sets: Vec<ChangeSet> = batch
            .iter_mut()
            .map(|submission| std::mem::take(&mut submission.set))
            .collect();
        let (store, clock) = (Arc::clone(&on.store), self.machine.anchor());
        let watch = Stopwatch::start();
        let outcome = on.blocking.run(move || store.commit(&clock, &sets)).await;
        self.stats.commit_seconds.observe(watch.seconds());
        self.stats.commit_batch.observe(batch.len() as f64);
        self.stats.commits.fetch_add(1, Ordering::Relaxed);
        self.stats
            .commit_sets
            .fetch_add(batch.len() as u64, Ordering::Relaxed);

        let count = batch.len();
        // Before anybody is told what became of it.
        on.is_failing
            .store(!matches!(outcome, Ok(Ok(_))), Ordering::Relaxed);
        match outcome {
            Ok(Ok(answers)) => {
                self.settle(
                    on,
                    batch,
                    answers.into_iter().map(|answer| answer.map_err(Into::into)),
                );
            }
            Ok(Err(failure)) => {
                error!(%failure, sets = count, "a commit failed");
                self.settle(on, batch, std::iter::repeat_with(|| Err((&failure).into())));
            }
            Err(EngineError::JournalFailed { detail }) => {
                error!(detail, sets = count, "a commit was cut off");
                let failed = || {
                    Err(EngineError::JournalFailed {
                        detail: detail.clone(),
                    })
                };
                self.settle(on, batch, std::iter::repeat_with(failed));
            }
            Err(_) => self.settle(
                on,
                batch,
                std::iter::repeat_with(|| Err(EngineError::Stopping)),
            ),
        }
        count
    }

    /// Finds out whether the journal can be written again, at nobody's risk: nothing but the
    /// clock is in this commit.
    async fn probe(&self, on: &On) {
        let (store, clock) = (Arc::clone(&on.store), self.machine.anchor());
        if let Ok(Ok(_)) = on.blocking.run(move || store.commit(&clock, &[])).await {
            on.is_failing.store(false, Ordering::Relaxed);
            info!("the journal can be written again");
        }
    }

    /// First the sessions that are not what they seem are thrown away, and those that have
    /// ended are taken out of the table, then those who wait are told.
    fn settle(
        &self,
        on: &On,
        batch: Vec<Submission>,
        outcomes: impl Iterator<Item = Result<(), EngineError>>,
    ) {
        let last = batch.last().map_or(0, |submission| submission.ticket);
        let (at, mut owes) = (self.machine.now().wall, false);
        let mut answers = Vec::with_capacity(batch.len());
        for (submission, outcome) in batch.into_iter().zip(outcomes) {
            match outcome {
                Ok(()) => {
                    owes |= submission.owes;
                    self.make_true(&submission, at);
                }
                Err(_) => {
                    self.stats.commit_failures.fetch_add(1, Ordering::Relaxed);
                    submission
                        .cells
                        .iter()
                        .for_each(|cell| self.throw_away(cell));
                }
            }
            answers.push((submission.answer, outcome));
        }
        self.journal.bell.ring();
        if owes {
            self.outbox.ring();
        }
        on.settled.send_replace(last);
        for (answer, outcome) in answers {
            if let Some(answer) = answer {
                // Whoever asked may have hung up.
                let _ = answer.send(outcome);
            }
        }
    }

    fn make_true(&self, written: &Submission, at: Timestamp) {
        written.tally.count_for(&written.cells, at);
        let ended = written.cells.last().filter(|_| written.tally.has_end());
        let is_out = |cell: &&Arc<SessionCell>| {
            let inner = cell.lock();
            // With a later set it may have started anew, and ended once more.
            inner.is_gone() && inner.ticket == written.ticket
        };
        if let Some(cell) = ended.filter(is_out) {
            self.table.remove(cell);
        }
    }

    fn throw_away(&self, cell: &Arc<SessionCell>) {
        let mut inner = cell.lock();
        inner.epoch += 1;
        inner.settle(&cell.tenant, Residence::Unknown);
        drop(inner);
        warn!(tenant = %cell.tenant.id, "a session is reloaded: its change was not written");
        self.mender.mend(Arc::clone(cell));
    }
}
