//! Getting decided changes onto the disk: in order, many at once, each answered once.
//!
//! A change set is handed over under the lock of the session that it changes, so the
//! queue has the order of the decisions. One worker takes all that waits and writes it
//! as one transaction: group commit.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use memoird_core::change::ChangeSet;
use memoird_store::{Store, StoreError};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot, watch};
use tracing::{error, warn};

use crate::cell::{Residence, SessionCell};
use crate::config::{Durability, JournalConfig};
use crate::engine::Blocking;
use crate::error::EngineError;
use crate::machine::{Machine, Stopwatch};
use crate::mend::Mender;
use crate::stats::Stats;
use crate::worker::{WorkError, Worker};

/// What one permit of the queue stands for.
const PERMIT_BYTES: usize = 1 << 10;
/// No further set joins a transaction of so many bytes.
const BATCH_BYTES: usize = 8 << 20;

/// The way to the journal; without one, changes are true as soon as they are decided.
#[derive(Debug)]
pub(crate) struct Journal {
    config: JournalConfig,
    on: Option<On>,
}

/// A journal that is kept.
struct On {
    store: Arc<dyn Store>,
    blocking: Blocking,
    permits: Arc<Semaphore>,
    permits_max: u32,
    queue: Mutex<Queue>,
    arrived: Notify,
    hurry: Notify,
    /// All sets up to this ticket are written, or known not to be.
    settled: watch::Sender<u64>,
}

#[derive(Default)]
struct Queue {
    last_ticket: u64,
    bytes: usize,
    waiting: VecDeque<Submission>,
}

/// A change set in the queue.
struct Submission {
    ticket: u64,
    set: ChangeSet,
    /// The sessions it changes.
    cells: Vec<Arc<SessionCell>>,
    answer: Option<oneshot::Sender<Result<(), EngineError>>>,
    _permit: Permit,
}

/// Room in the queue for one change set.
#[derive(Debug)]
pub(crate) struct Permit {
    _room: Option<OwnedSemaphorePermit>,
}

/// A change set that was handed over.
#[derive(Debug)]
#[must_use = "decided is not yet true"]
pub(crate) struct Submitted {
    pub(crate) ticket: u64,
    answer: Option<oneshot::Receiver<Result<(), EngineError>>>,
}

impl Submitted {
    /// Nothing had to be written.
    pub(crate) fn nothing() -> Self {
        Self { ticket: 0, answer: None }
    }

    /// Waits until the disk has it, where the configuration says so.
    pub(crate) async fn written(self) -> Result<(), EngineError> {
        match self.answer {
            None => Ok(()),
            Some(answer) => answer.await.unwrap_or(Err(EngineError::Stopping)),
        }
    }
}

impl std::fmt::Debug for On {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("On").field("settled", &*self.settled.borrow()).finish_non_exhaustive()
    }
}

impl Journal {
    pub(crate) fn new(
        config: JournalConfig,
        store: Option<Arc<dyn Store>>,
        blocking: Blocking,
    ) -> Self {
        let permits_max = (config.queue_bytes / PERMIT_BYTES).clamp(1, Semaphore::MAX_PERMITS);
        let on = store.filter(|_| config.durability != Durability::Off).map(|store| On {
            store,
            blocking,
            permits: Arc::new(Semaphore::new(permits_max)),
            permits_max: u32::try_from(permits_max).unwrap_or(u32::MAX),
            queue: Mutex::default(),
            arrived: Notify::new(),
            hurry: Notify::new(),
            settled: watch::Sender::new(0),
        });
        Self { config, on }
    }

    pub(crate) fn is_on(&self) -> bool {
        self.on.is_some()
    }

    /// Waits for room in the queue.
    pub(crate) async fn permit(&self, bytes: usize) -> Result<Permit, EngineError> {
        let Some(on) = &self.on else { return Ok(Permit { _room: None }) };
        let count = u32::try_from(bytes.div_ceil(PERMIT_BYTES)).unwrap_or(u32::MAX);
        let count = count.clamp(1, on.permits_max);
        // Nearly always there is room: then no timer is set up.
        let permit = match Arc::clone(&on.permits).try_acquire_many_owned(count) {
            Ok(permit) => permit,
            Err(_) => {
                let wait = Arc::clone(&on.permits).acquire_many_owned(count);
                match tokio::time::timeout(self.config.queue_wait, wait).await {
                    Ok(Ok(permit)) => permit,
                    Ok(Err(_)) => return Err(EngineError::Stopping),
                    Err(_) => return Err(EngineError::JournalBusy),
                }
            }
        };
        Ok(Permit { _room: Some(permit) })
    }

    /// Hands a change set over. Called under the lock of the session that decided it.
    pub(crate) fn submit(
        &self,
        permit: Permit,
        set: ChangeSet,
        cells: Vec<Arc<SessionCell>>,
    ) -> Submitted {
        let Some(on) = &self.on else { return Submitted::nothing() };
        let (sender, answer) = match self.config.durability {
            Durability::Sync => {
                let (sender, receiver) = oneshot::channel();
                (Some(sender), Some(receiver))
            }
            Durability::Interval | Durability::Off => (None, None),
        };
        let mut queue = on.queue();
        queue.last_ticket += 1;
        queue.bytes += set.weight_bytes();
        let ticket = queue.last_ticket;
        let submission = Submission { ticket, set, cells, answer: sender, _permit: permit };
        queue.waiting.push_back(submission);
        let is_pressing = queue.bytes * 2 > self.config.queue_bytes;
        drop(queue);
        on.arrived.notify_one();
        if is_pressing {
            on.hurry.notify_one();
        }
        Submitted { ticket, answer }
    }

    /// Waits until the disk has this set and all before it, or has refused them. In
    /// durability `interval` there is nothing to wait for.
    pub(crate) async fn visible(&self, ticket: u64) {
        if self.config.durability == Durability::Sync {
            self.settled(ticket).await;
        }
    }

    /// Waits until nothing up to this set is under way any more.
    pub(crate) async fn settled(&self, ticket: u64) {
        let Some(on) = &self.on else { return };
        if *on.settled.borrow() < ticket {
            on.hurry.notify_one();
            // The sender is part of the journal itself: it does not go away.
            let _ = on.settled.subscribe().wait_for(|settled| *settled >= ticket).await;
        }
    }

    /// Waits until nothing that was handed over so far is under way any more.
    pub(crate) async fn all_settled(&self) {
        if let Some(on) = &self.on {
            let last = on.queue().last_ticket;
            self.settled(last).await;
        }
    }

    /// Reads or tidies the store, off the executor's threads.
    pub(crate) async fn with_store<T: Send + 'static>(
        &self,
        action: impl FnOnce(&dyn Store) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, EngineError> {
        let on = self.on.as_ref().ok_or(EngineError::JournalOff)?;
        let store = Arc::clone(&on.store);
        let outcome = on.blocking.run(move || action(&*store)).await?;
        outcome.map_err(|error| EngineError::from(&error))
    }
}

impl On {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_batch(&self, sets_max: usize) -> Vec<Submission> {
        let mut queue = self.queue();
        let mut batch = Vec::new();
        let mut bytes = 0;
        while batch.len() < sets_max && bytes < BATCH_BYTES {
            let Some(submission) = queue.waiting.pop_front() else { break };
            bytes += submission.set.weight_bytes();
            batch.push(submission);
        }
        queue.bytes = queue.bytes.saturating_sub(bytes);
        batch
    }
}

/// The worker that writes.
pub(crate) struct Committer {
    pub(crate) journal: Arc<Journal>,
    pub(crate) machine: Arc<dyn Machine>,
    pub(crate) stats: Arc<Stats>,
    pub(crate) mender: Arc<Mender>,
}

impl Worker for Committer {
    fn name(&self) -> &'static str {
        "committer"
    }

    async fn wait(&mut self) {
        let Some(on) = &self.journal.on else { return std::future::pending().await };
        while on.queue().waiting.is_empty() {
            on.arrived.notified().await;
        }
        if self.journal.config.durability == Durability::Interval {
            let _ = tokio::time::timeout(self.linger(), on.hurry.notified()).await;
        }
    }

    async fn step(&mut self) -> Result<(), WorkError> {
        self.commit_batch().await;
        Ok(())
    }

    async fn finish(&mut self) {
        while self.commit_batch().await > 0 {}
    }
}

impl Committer {
    fn linger(&self) -> Duration {
        self.journal.config.flush_interval
    }

    /// Writes what waits, up to the size of a batch; gives the number of sets.
    async fn commit_batch(&self) -> usize {
        let Some(on) = &self.journal.on else { return 0 };
        let mut batch = on.take_batch(self.journal.config.batch_sets);
        if batch.is_empty() {
            return 0;
        }
        let sets: Vec<ChangeSet> =
            batch.iter_mut().map(|submission| std::mem::take(&mut submission.set)).collect();
        let (store, clock) = (Arc::clone(&on.store), self.machine.anchor());
        let watch = Stopwatch::start();
        let outcome = on.blocking.run(move || store.commit(&clock, &sets)).await;
        self.stats.commit_seconds.observe(watch.seconds());
        self.stats.commit_batch.observe(batch.len() as f64);
        self.stats.commits.fetch_add(1, Ordering::Relaxed);
        self.stats.commit_sets.fetch_add(batch.len() as u64, Ordering::Relaxed);

        let count = batch.len();
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
                let failed = || Err(EngineError::JournalFailed { detail: detail.clone() });
                self.settle(on, batch, std::iter::repeat_with(failed));
            }
            Err(_) => self.settle(on, batch, std::iter::repeat_with(|| Err(EngineError::Stopping))),
        }
        count
    }

    /// First the sessions that are not what they seem are thrown away, then those who
    /// wait are told.
    fn settle(
        &self,
        on: &On,
        batch: Vec<Submission>,
        outcomes: impl Iterator<Item = Result<(), EngineError>>,
    ) {
        let last = batch.last().map_or(0, |submission| submission.ticket);
        let mut answers = Vec::with_capacity(batch.len());
        for (submission, outcome) in batch.into_iter().zip(outcomes) {
            if outcome.is_err() {
                self.stats.commit_failures.fetch_add(1, Ordering::Relaxed);
                submission.cells.iter().for_each(|cell| self.throw_away(cell));
            }
            answers.push((submission.answer, outcome));
        }
        on.settled.send_replace(last);
        for (answer, outcome) in answers {
            if let Some(answer) = answer {
                // Whoever asked may have hung up.
                let _ = answer.send(outcome);
            }
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
