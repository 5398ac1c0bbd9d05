//! Getting decided changes onto the disk: in order, many at once, each answered once.
//!
//! A change set is handed over under the lock of the session that it changes, so the
//! queue has the order of the decisions. One worker takes all that waits and writes it
//! as one transaction: group commit.

mod committer;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use memoird_core::change::{Change, ChangeSet};
use memoird_store::{Store, StoreError};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot, watch};

pub(crate) use committer::Committer;

use crate::cell::SessionCell;
use crate::config::{Durability, JournalConfig};
use crate::engine::Blocking;
use crate::error::EngineError;
use crate::events::Bell;
use crate::machine::Machine;
use crate::stats::Tally;
use crate::tenant::ms;

/// What one permit of the queue stands for.
const PERMIT_BYTES: usize = 1 << 10;
/// No further set joins a transaction of so many bytes.
const BATCH_BYTES: usize = 8 << 20;

/// The way to the journal; without one, changes are true as soon as they are decided.
#[derive(Debug)]
pub(crate) struct Journal {
    durability: Durability,
    queue_wait_ms: AtomicU64,
    flush_ms: AtomicU64,
    batch_sets: usize,
    on: Option<On>,
    /// Who is told what is true.
    bell: Arc<Bell>,
    machine: Arc<dyn Machine>,
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
    /// True from a commit that failed to the next one that does not.
    is_failing: AtomicBool,
}

#[derive(Default)]
struct Queue {
    last_ticket: u64,
    waiting: VecDeque<Submission>,
    /// The committer wants to know when so many wait.
    wake_at: usize,
    /// True once the engine has stopped: nobody will write what comes now.
    is_closed: bool,
}

/// A change set in the queue.
struct Submission {
    ticket: u64,
    set: ChangeSet,
    /// The sessions it changes: first the one that goes on, last the one that ends.
    cells: Vec<Arc<SessionCell>>,
    /// What is still to be counted.
    tally: Tally,
    /// True when hooks are owed something once it is written.
    owes: bool,
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
        Self {
            ticket: 0,
            answer: None,
        }
    }

    /// It came too late to be written.
    fn refused(last_ticket: u64) -> Self {
        let (_, answer) = oneshot::channel();
        Self {
            ticket: last_ticket,
            answer: Some(answer),
        }
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
        f.debug_struct("On")
            .field("settled", &*self.settled.borrow())
            .finish_non_exhaustive()
    }
}

impl Journal {
    pub(crate) fn new(
        config: &JournalConfig,
        store: Option<Arc<dyn Store>>,
        blocking: Blocking,
        bell: Arc<Bell>,
        machine: Arc<dyn Machine>,
    ) -> Self {
        let permits_max = (config.queue_bytes / PERMIT_BYTES).clamp(1, Semaphore::MAX_PERMITS);
        let on = store
            .filter(|_| config.durability != Durability::Off)
            .map(|store| On {
                store,
                blocking,
                permits: Arc::new(Semaphore::new(permits_max)),
                permits_max: u32::try_from(permits_max).unwrap_or(u32::MAX),
                queue: Mutex::default(),
                arrived: Notify::new(),
                hurry: Notify::new(),
                settled: watch::Sender::new(0),
                is_failing: AtomicBool::new(false),
            });
        let journal = Self {
            durability: config.durability,
            queue_wait_ms: AtomicU64::default(),
            flush_ms: AtomicU64::default(),
            batch_sets: config.batch_sets,
            on,
            bell,
            machine,
        };
        journal.reconfigure(config);
        journal
    }

    /// Takes over what can change while the journal is open.
    pub(crate) fn reconfigure(&self, config: &JournalConfig) {
        self.queue_wait_ms
            .store(ms(config.queue_wait), Ordering::Relaxed);
        self.flush_ms
            .store(ms(config.flush_interval), Ordering::Relaxed);
    }

    fn queue_wait(&self) -> Duration {
        Duration::from_millis(self.queue_wait_ms.load(Ordering::Relaxed))
    }

    fn flush_interval(&self) -> Duration {
        Duration::from_millis(self.flush_ms.load(Ordering::Relaxed))
    }

    pub(crate) fn is_on(&self) -> bool {
        self.on.is_some()
    }

    /// True while the last commit failed. Then what is not worth a failure is better not
    /// handed over: one that fails throws away what memory has of its session.
    pub(crate) fn is_failing(&self) -> bool {
        self.on
            .as_ref()
            .is_some_and(|on| on.is_failing.load(Ordering::Relaxed))
    }

    /// Waits for room in the queue.
    pub(crate) async fn permit(&self, bytes: usize) -> Result<Permit, EngineError> {
        let Some(on) = &self.on else {
            return Ok(Permit { _room: None });
        };
        let count = u32::try_from(bytes.div_ceil(PERMIT_BYTES)).unwrap_or(u32::MAX);
        let count = count.clamp(1, on.permits_max);
        // Nearly always there is room: then no timer is set up.
        let permit = match Arc::clone(&on.permits).try_acquire_many_owned(count) {
            Ok(permit) => permit,
            Err(_) => {
                on.hurry.notify_one();
                let wait = Arc::clone(&on.permits).acquire_many_owned(count);
                match tokio::time::timeout(self.queue_wait(), wait).await {
                    Ok(Ok(permit)) => permit,
                    Ok(Err(_)) => return Err(EngineError::Stopping),
                    Err(_) => return Err(EngineError::JournalBusy),
                }
            }
        };
        Ok(Permit {
            _room: Some(permit),
        })
    }

    /// Room in the queue, where there is some at once.
    pub(crate) fn permit_now(&self, bytes: usize) -> Option<Permit> {
        let Some(on) = &self.on else {
            return Some(Permit { _room: None });
        };
        let count = u32::try_from(bytes.div_ceil(PERMIT_BYTES)).unwrap_or(u32::MAX);
        let count = count.clamp(1, on.permits_max);
        let permit = Arc::clone(&on.permits).try_acquire_many_owned(count).ok()?;
        Some(Permit {
            _room: Some(permit),
        })
    }

    /// True when nothing is true before it is written.
    pub(crate) fn is_waited_for(&self) -> bool {
        self.is_on() && self.durability == Durability::Sync
    }

    /// Hands a change set over. Called under the lock of the session that decided it. Of
    /// `cells`, the sessions that it changes, the first one goes on and the last one ends,
    /// where one does; of the first one's history `turns_dropped` have left.
    pub(crate) fn submit(
        &self,
        permit: Permit,
        set: ChangeSet,
        cells: Vec<Arc<SessionCell>>,
        turns_dropped: u64,
    ) -> Submitted {
        let mut tally = Tally::of(&set, turns_dropped);
        if !self.is_waited_for() {
            std::mem::take(&mut tally).count_for(&cells, self.machine.now().wall);
            self.bell.ring();
        }
        let Some(on) = &self.on else {
            return Submitted::nothing();
        };
        let mut queue = on.queue();
        if queue.is_closed {
            return Submitted::refused(queue.last_ticket);
        }
        let (sender, answer) = match self.is_waited_for() {
            true => {
                let (sender, receiver) = oneshot::channel();
                (Some(sender), Some(receiver))
            }
            false => (None, None),
        };
        queue.last_ticket += 1;
        let ticket = queue.last_ticket;
        let owes = set.changes.iter().any(Change::owes);
        let submission = Submission {
            ticket,
            set,
            cells,
            tally,
            owes,
            answer: sender,
            _permit: permit,
        };
        queue.waiting.push_back(submission);
        let is_awaited = queue.waiting.len() >= queue.wake_at;
        drop(queue);
        if is_awaited {
            on.arrived.notify_one();
        }
        if on.permits.available_permits() * 2 < on.permits_max as usize {
            on.hurry.notify_one();
        }
        Submitted { ticket, answer }
    }

    /// Waits until the disk has this set and all before it, or has refused them. In
    /// durability `interval` there is nothing to wait for.
    pub(crate) async fn visible(&self, ticket: u64) {
        if self.is_waited_for() {
            self.settled(ticket).await;
        }
    }

    /// Waits until nothing up to this set is under way any more.
    pub(crate) async fn settled(&self, ticket: u64) {
        let Some(on) = &self.on else { return };
        if *on.settled.borrow() < ticket {
            on.hurry.notify_one();
            // The sender is part of the journal itself: it does not go away.
            let _ = on
                .settled
                .subscribe()
                .wait_for(|settled| *settled >= ticket)
                .await;
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

    /// Waits until so many sets wait.
    async fn has_waiting(&self, sets: usize) {
        while !self.wake_at(sets) {
            self.arrived.notified().await;
        }
    }

    /// True when so many sets wait; otherwise asks to be told when they do.
    fn wake_at(&self, sets: usize) -> bool {
        let mut queue = self.queue();
        queue.wake_at = sets;
        queue.waiting.len() >= sets
    }

    fn take_batch(&self, sets_max: usize) -> Vec<Submission> {
        let mut queue = self.queue();
        let mut batch = Vec::new();
        let mut bytes = 0;
        while batch.len() < sets_max && bytes < BATCH_BYTES {
            let Some(submission) = queue.waiting.pop_front() else {
                break;
            };
            bytes += submission.set.weight_bytes();
            batch.push(submission);
        }
        batch
    }

    /// True when nothing waits, and then nothing ever will.
    fn close(&self) -> bool {
        let mut queue = self.queue();
        queue.is_closed = queue.waiting.is_empty();
        queue.is_closed
    }
}
