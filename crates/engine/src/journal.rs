//! Writing decided changes to the store: in order, many at once, each answered once.
//!
//! A change set is submitted under the lock of the session that it changes, so the queue has
//! the order of the decisions. One worker, the [`Committer`], takes all that waits and writes
//! it as one transaction: group commit. What is too large for one transaction is written in parts,
//! and others pass it meanwhile ([`parts`]).
//!
//! With [`Durability::Interval`] a change is acknowledged before it is written. So it is never
//! given up as long as the process lives: while commits fail, what waits stays in the queue, in
//! its order, and nothing more is accepted.
//!
//! Where several tenants wait, [`JOURNAL_SHARE`] sets of each are in the queue at once, so nobody
//! waits behind a flood. An answer waits for the last change of its session only, a list or a search
//! for those of its tenant, and an erasure for those of what it erases. While the last commit failed,
//! changes that only note a use are not submitted, and an empty commit finds out whether there is room
//! again.

mod committer;
mod parts;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use memoird_core::change::ChangeSet;
use memoird_core::config::{AsText, Problems, Size, Span};
use memoird_core::ids::TenantId;
use memoird_store::{Store, StoreError};
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot, watch};

pub(crate) use committer::{CommitHandler, Committer};

use crate::blocking::StoreAccess;
use crate::error::EngineError;
use crate::tenants::{JOURNAL_SHARE, Tenant, ms};
use parts::{Parts, Passed};

/// What one permit of the queue stands for.
const PERMIT_BYTES: usize = 1 << 10;
/// What one of a tenant's [`JOURNAL_SHARE`] stands for; a set takes one of them at least.
const SHARE_BYTES: usize = 16 << 10;
/// No further set joins a transaction of this many bytes.
const BATCH_BYTES: usize = 8 << 20;

/// When an answer may be given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// Once the disk has it: what was acknowledged survives a crash of the machine.
    Sync,
    /// At once; the disk has it within `flush_interval`. While the disk cannot be written,
    /// nothing more is accepted.
    Interval,
    /// At once; there is no journal, and nothing survives the process.
    Off,
}

/// How the journal is kept.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct JournalConfig {
    /// When an answer may be given.
    pub durability: Durability,
    /// With [`Durability::Interval`], the longest time that the disk lags behind.
    #[serde(with = "AsText::<Span>")]
    pub flush_interval: Duration,
    /// How long the turns of an ended generation stay readable.
    #[serde(with = "AsText::<Span>")]
    pub retention: Duration,
    /// Bytes of changes that may wait for the disk.
    #[serde(with = "AsText::<Size>")]
    pub queue_bytes: usize,
    /// How long a call waits for room among them before it is refused.
    #[serde(with = "AsText::<Span>")]
    pub queue_wait: Duration,
    /// Change sets of one transaction.
    #[serde(skip)]
    pub batch_sets: usize,
    /// Turns of a large change set are written about so many bytes at once.
    #[serde(skip)]
    pub part_bytes: usize,
}

/// The queue of change sets, each with a context of type `C` that the [`CommitHandler`] gets
/// back. Without a store, changes are final as soon as they are decided.
#[derive(Debug)]
pub(crate) struct Journal<C> {
    durability: Durability,
    queue_wait_ms: AtomicU64,
    flush_interval_ms: AtomicU64,
    batch_sets_max: usize,
    /// Where the store writes turns ahead of their set.
    parts: Option<Parts>,
    backend: Option<Backend<C>>,
}

/// What there is with a store only.
struct Backend<C> {
    access: StoreAccess,
    permits: Arc<Semaphore>,
    permits_max: u32,
    queue: Mutex<Queue<C>>,
    /// Enough sets wait for the committer.
    arrived: Notify,
    /// The committer is not to wait for more.
    flush: Notify,
    progress: watch::Sender<Progress>,
    /// True from a commit that failed to the next one that does not.
    is_failing: AtomicBool,
}

/// How far the committer is.
#[derive(Clone, Debug, Default)]
struct Progress {
    /// All sets up to this ticket are written, or were refused.
    processed: u64,
    /// So are those up to this one, but for the `passed` ones.
    reached: u64,
    /// Sets that others passed.
    passed: Vec<PassedSet>,
    /// Batches of sets that were written, or refused.
    batches: u64,
    /// Commits that failed and whose sets wait for the next try.
    failed_tries: u64,
    /// Why the last commit failed; `None` when it did not.
    failure: Option<EngineError>,
}

/// A set that others passed.
#[derive(Clone, Debug)]
struct PassedSet {
    ticket: u64,
    tenant: TenantId,
}

struct Queue<C> {
    last_ticket: u64,
    waiting: VecDeque<Submission<C>>,
    /// The committer is woken when this many sets wait.
    wake_at: usize,
    /// True once the engine has stopped: nothing is written any more.
    is_closed: bool,
}

/// A change set in the queue.
struct Submission<C> {
    ticket: u64,
    set: ChangeSet,
    context: C,
    reply: Option<oneshot::Sender<Result<(), EngineError>>>,
    /// So many of its turns are written ahead of it.
    turns_ahead: usize,
    _permit: Permit,
}

/// What one transaction takes out of the queue.
struct TakenBatch<C> {
    batch: Vec<Submission<C>>,
    bytes: usize,
    /// Sets that were looked at and stay in the queue.
    held_back: usize,
}

/// Room in the queue for one change set.
#[derive(Debug)]
pub(crate) struct Permit {
    _room: Option<OwnedSemaphorePermit>,
    /// Of what its tenant may have in the queue.
    _share: Option<OwnedSemaphorePermit>,
}

impl Permit {
    fn of(room: Option<OwnedSemaphorePermit>) -> Self {
        Self {
            _room: room,
            _share: None,
        }
    }
}

/// A change set that was submitted.
#[derive(Debug)]
#[must_use = "a submitted change is not durable yet"]
pub(crate) struct Submitted {
    pub(crate) ticket: u64,
    reply: Option<oneshot::Receiver<Result<(), EngineError>>>,
}

impl JournalConfig {
    /// Adds its problems.
    pub fn check(&self, problems: &mut Problems) {
        problems.not_zero("flush_interval", self.flush_interval);
        problems.not_zero("queue_wait", self.queue_wait);
        problems.at_least_one("queue_bytes", self.queue_bytes);
    }
}

impl Default for JournalConfig {
    fn default() -> Self {
        Self {
            durability: Durability::Sync,
            flush_interval: Duration::from_secs(1),
            retention: Duration::from_secs(30 * 24 * 60 * 60),
            queue_bytes: 64 << 20,
            queue_wait: Duration::from_secs(2),
            batch_sets: 1_024,
            part_bytes: 512 << 10,
        }
    }
}

impl Submitted {
    /// Waits until the store has it, where the configured durability requires that.
    pub(crate) async fn written(self) -> Result<(), EngineError> {
        match self.reply {
            None => Ok(()),
            Some(reply) => reply.await.unwrap_or(Err(EngineError::Stopping)),
        }
    }
}

impl Progress {
    /// True when the set with this ticket is written, or was refused.
    fn is_over(&self, ticket: u64) -> bool {
        let is_it = |passed: &PassedSet| passed.ticket == ticket;
        ticket <= self.processed || (ticket <= self.reached && !self.passed.iter().any(is_it))
    }

    /// True when every set of a tenant up to this ticket is written, or was refused.
    fn is_over_of(&self, tenant: &TenantId, ticket: u64) -> bool {
        let is_earlier = |passed: &PassedSet| passed.ticket <= ticket && passed.tenant == *tenant;
        ticket <= self.processed || (ticket <= self.reached && !self.passed.iter().any(is_earlier))
    }
}

impl<C> std::fmt::Debug for Backend<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Backend")
            .field("progress", &*self.progress.borrow())
            .finish_non_exhaustive()
    }
}

impl<C> Journal<C> {
    /// The queue of a store; `None` where changes are kept in memory only.
    pub(crate) fn new(config: &JournalConfig, access: Option<StoreAccess>) -> Self {
        let permits_max = (config.queue_bytes / PERMIT_BYTES).clamp(1, Semaphore::MAX_PERMITS);
        let writes_ahead = access.as_ref().is_some_and(StoreAccess::writes_ahead);
        let parts = writes_ahead.then_some(Parts {
            bytes: config.part_bytes.max(1),
        });
        let backend = access.map(|access| Backend {
            access,
            permits: Arc::new(Semaphore::new(permits_max)),
            permits_max: u32::try_from(permits_max).unwrap_or(u32::MAX),
            queue: Mutex::new(Queue {
                last_ticket: 0,
                waiting: VecDeque::new(),
                wake_at: 0,
                is_closed: false,
            }),
            arrived: Notify::new(),
            flush: Notify::new(),
            progress: watch::Sender::default(),
            is_failing: AtomicBool::new(false),
        });
        let journal = Self {
            durability: config.durability,
            queue_wait_ms: AtomicU64::default(),
            flush_interval_ms: AtomicU64::default(),
            batch_sets_max: config.batch_sets,
            parts,
            backend,
        };
        journal.reconfigure(config);
        journal
    }

    /// Applies what can change while the journal is open.
    pub(crate) fn reconfigure(&self, config: &JournalConfig) {
        self.queue_wait_ms
            .store(ms(config.queue_wait), Ordering::Relaxed);
        self.flush_interval_ms
            .store(ms(config.flush_interval), Ordering::Relaxed);
    }

    /// True where changes are written to a store.
    pub(crate) fn is_on(&self) -> bool {
        self.backend.is_some()
    }

    /// True when a change is final only once it is written.
    pub(crate) fn is_sync(&self) -> bool {
        self.is_on() && self.durability == Durability::Sync
    }

    /// True while the last commit failed. A change whose loss would do no harm is better not
    /// submitted then: a change that fails discards what memory has of its session.
    pub(crate) fn is_failing(&self) -> bool {
        let backend = self.backend.as_ref();
        backend.is_some_and(Backend::is_failing)
    }

    /// Why the last commit failed; `None` where it did not.
    pub(crate) fn last_failure(&self) -> Option<EngineError> {
        let backend = self.backend.as_ref()?;
        backend.progress.borrow().failure.clone()
    }

    /// Why no change is accepted: it would be acknowledged at once, and commits fail.
    fn refusal(&self) -> Option<EngineError> {
        let backend = self.backend.as_ref()?;
        let is_refusing = self.retries_commits() && backend.is_failing();
        is_refusing.then(|| backend.failure())
    }

    /// True where a commit that failed is tried again: its changes are acknowledged already.
    fn retries_commits(&self) -> bool {
        self.durability == Durability::Interval
    }

    /// Waits for room in the queue.
    ///
    /// # Errors
    /// [`EngineError::JournalBusy`] when there is none within the configured time. With
    /// [`Durability::Interval`], while commits fail, what they fail with.
    pub(crate) async fn permit(&self, bytes: usize) -> Result<Permit, EngineError> {
        if let Some(refusal) = self.refusal() {
            return Err(refusal);
        }
        // Nearly always there is room: then no timer is set up.
        if let Some(permit) = self.try_permit(bytes) {
            return Ok(permit);
        }
        let Some(backend) = &self.backend else {
            return Ok(Permit::of(None));
        };
        backend.flush.notify_one();
        let count = backend.permits_of(bytes);
        let room = Arc::clone(&backend.permits).acquire_many_owned(count);
        match tokio::time::timeout(self.queue_wait(), room).await {
            Ok(Ok(room)) => Ok(Permit::of(Some(room))),
            Ok(Err(_)) => Err(EngineError::Stopping),
            Err(_) => Err(self.refusal().unwrap_or(EngineError::JournalBusy)),
        }
    }

    /// Waits for room in the queue and, where several tenants wait for commits, for room in
    /// the tenant's own share of it.
    ///
    /// # Errors
    /// As [`Self::permit`].
    pub(crate) async fn permit_of(
        &self,
        tenant: &Tenant,
        bytes: usize,
    ) -> Result<Permit, EngineError> {
        let share = match self.is_sync() && tenant.is_one_of_several() {
            true => Some(self.share(tenant, bytes).await?),
            false => None,
        };
        let permit = self.permit(bytes).await?;
        Ok(Permit {
            _share: share,
            ..permit
        })
    }

    async fn share(
        &self,
        tenant: &Tenant,
        bytes: usize,
    ) -> Result<OwnedSemaphorePermit, EngineError> {
        let count = u32::try_from(bytes.div_ceil(SHARE_BYTES)).unwrap_or(u32::MAX);
        let count = count.clamp(1, JOURNAL_SHARE);
        let share = Arc::clone(&tenant.journal_share);
        // As with the queue: no timer where there is room.
        if let Ok(room) = Arc::clone(&share).try_acquire_many_owned(count) {
            return Ok(room);
        }
        let room = share.acquire_many_owned(count);
        let room = tokio::time::timeout(self.queue_wait(), room).await;
        let room = room.map_err(|_| EngineError::JournalBusy)?;
        // It is never closed.
        room.map_err(|_| EngineError::Stopping)
    }

    fn queue_wait(&self) -> Duration {
        Duration::from_millis(self.queue_wait_ms.load(Ordering::Relaxed))
    }

    /// Room in the queue, where there is some at once.
    pub(crate) fn try_permit(&self, bytes: usize) -> Option<Permit> {
        let Some(backend) = &self.backend else {
            return Some(Permit::of(None));
        };
        let count = backend.permits_of(bytes);
        let room = Arc::clone(&backend.permits).try_acquire_many_owned(count);
        Some(Permit::of(Some(room.ok()?)))
    }

    /// Submits a change set. Called under the lock of the session that decided it.
    pub(crate) fn submit(&self, permit: Permit, set: ChangeSet, context: C) -> Submitted {
        let Some(backend) = &self.backend else {
            return Submitted {
                ticket: 0,
                reply: None,
            };
        };
        let mut queue = backend.queue();
        if queue.is_closed {
            // Its sender is dropped here: the caller learns that the engine stops.
            let (_, reply) = oneshot::channel();
            return Submitted {
                ticket: queue.last_ticket,
                reply: Some(reply),
            };
        }
        let (sender, receiver) = match self.durability {
            Durability::Sync => {
                let (sender, receiver) = oneshot::channel();
                (Some(sender), Some(receiver))
            }
            Durability::Interval | Durability::Off => (None, None),
        };
        queue.last_ticket += 1;
        let ticket = queue.last_ticket;
        queue.waiting.push_back(Submission {
            ticket,
            set,
            context,
            reply: sender,
            turns_ahead: 0,
            _permit: permit,
        });
        let is_enough = queue.waiting.len() >= queue.wake_at;
        drop(queue);
        if is_enough {
            backend.arrived.notify_one();
        }
        if backend.permits.available_permits() * 2 < backend.permits_max as usize {
            backend.flush.notify_one();
        }
        Submitted {
            ticket,
            reply: receiver,
        }
    }

    /// Waits until what was decided about one session up to this ticket of it is final: written
    /// or refused. Where changes are final at once there is nothing to wait for.
    pub(crate) async fn wait_durable(&self, ticket: u64) {
        let Some(backend) = self.backend.as_ref().filter(|_| self.is_sync()) else {
            return;
        };
        if backend.progress.borrow().is_over(ticket) {
            return;
        }
        let mut progress = backend.progress.subscribe();
        // The sender is part of the journal itself: it does not go away.
        let _ = progress.wait_for(|progress| progress.is_over(ticket)).await;
    }

    /// Waits until what was decided about any session of a tenant up to this ticket is final.
    pub(crate) async fn wait_durable_of(&self, tenant: &TenantId, ticket: u64) {
        if self.is_sync() {
            // It fails only where a commit is tried again, which is not so here.
            let _ = self.wait_processed_of(tenant, ticket).await;
        }
    }

    /// True when every set up to this ticket is written or refused.
    pub(crate) fn is_processed(&self, ticket: u64) -> bool {
        let backend = self.backend.as_ref();
        backend.is_none_or(|backend| backend.progress.borrow().processed >= ticket)
    }

    /// Waits until every set up to this ticket is written or refused.
    ///
    /// # Errors
    /// With [`Durability::Interval`], what the next try to write them fails with.
    pub(crate) async fn wait_processed(&self, ticket: u64) -> Result<(), EngineError> {
        self.wait_until(|progress| progress.processed >= ticket)
            .await
    }

    /// Waits until the sets of one session up to this ticket of it are written or refused.
    ///
    /// # Errors
    /// As [`Self::wait_processed`].
    pub(crate) async fn wait_processed_of_session(&self, ticket: u64) -> Result<(), EngineError> {
        self.wait_until(|progress| progress.is_over(ticket)).await
    }

    /// Waits until the sets of one tenant up to this ticket are written or refused.
    ///
    /// # Errors
    /// As [`Self::wait_processed`].
    pub(crate) async fn wait_processed_of(
        &self,
        tenant: &TenantId,
        ticket: u64,
    ) -> Result<(), EngineError> {
        self.wait_until(|progress| progress.is_over_of(tenant, ticket))
            .await
    }

    async fn wait_until(&self, is_over: impl Fn(&Progress) -> bool) -> Result<(), EngineError> {
        let Some(backend) = &self.backend else {
            return Ok(());
        };
        if is_over(&backend.progress.borrow()) {
            return Ok(());
        }
        let mut progress = backend.progress.subscribe();
        loop {
            let tries_before = progress.borrow().failed_tries;
            if is_over(&progress.borrow()) {
                return Ok(());
            }
            backend.flush.notify_one();
            let is_tried =
                |progress: &Progress| is_over(progress) || progress.failed_tries > tries_before;
            // The sender is part of the journal itself: it does not go away.
            let Ok(progress) = progress.wait_for(is_tried).await else {
                return Err(EngineError::Stopping);
            };
            if let (Some(failure), false) = (&progress.failure, is_over(&progress)) {
                return Err(failure.clone());
            }
        }
    }

    /// Waits until more than so many batches are written or refused; gives how many are. Without
    /// a store there is none.
    pub(crate) async fn wait_batches_beyond(&self, batches: u64) -> u64 {
        let Some(backend) = &self.backend else {
            return std::future::pending().await;
        };
        let mut progress = backend.progress.subscribe();
        let later = progress.wait_for(|progress| progress.batches > batches);
        // The sender is part of the journal itself: it does not go away.
        later.await.map_or(batches, |progress| progress.batches)
    }

    /// Waits until every set that was submitted so far is written or refused.
    ///
    /// # Errors
    /// As [`Self::wait_processed`].
    pub(crate) async fn wait_all_processed(&self) -> Result<(), EngineError> {
        let Some(backend) = &self.backend else {
            return Ok(());
        };
        let last = backend.queue().last_ticket;
        self.wait_processed(last).await
    }

    /// Reads the store, off the runtime's threads, for a tenant or for nobody in particular.
    ///
    /// # Errors
    /// [`EngineError::JournalOff`] without a store, or what the store answers.
    pub(crate) async fn with_store<T: Send + 'static>(
        &self,
        tenant: Option<&TenantId>,
        action: impl FnOnce(&dyn Store) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, EngineError> {
        let backend = self.backend.as_ref().ok_or(EngineError::JournalOff)?;
        backend.access.run(tenant, action).await
    }
}

impl<C> Backend<C> {
    /// Half of the queue at most: a set that is larger is written in parts, and keeps its permits
    /// until the last of them, while others pass it.
    fn permits_of(&self, bytes: usize) -> u32 {
        let count = u32::try_from(bytes.div_ceil(PERMIT_BYTES)).unwrap_or(u32::MAX);
        count.clamp(1, (self.permits_max / 2).max(1))
    }

    fn queue(&self) -> MutexGuard<'_, Queue<C>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why commits fail.
    fn failure(&self) -> EngineError {
        let failure = self.progress.borrow().failure.clone();
        // Asked for while commits fail; they may just have stopped to.
        failure.unwrap_or(EngineError::JournalBusy)
    }

    fn is_failing(&self) -> bool {
        self.is_failing.load(Ordering::Relaxed)
    }

    /// Waits until the queue has this many sets.
    async fn wait_for_sets(&self, sets: usize) {
        while !self.has_sets(sets) {
            self.arrived.notified().await;
        }
    }

    /// True when the queue has this many sets. Otherwise the submission that completes them
    /// wakes the committer.
    fn has_sets(&self, sets: usize) -> bool {
        let mut queue = self.queue();
        queue.wake_at = sets;
        queue.waiting.len() >= sets
    }

    /// The sets of the next transaction. A set that is too large for
    /// it becomes the one that is written ahead, unless there is one; those that must not pass
    /// such a set stay in the queue.
    fn take_batch(
        &self,
        sets_max: usize,
        parts: Option<Parts>,
        ahead: &mut Option<Submission<C>>,
    ) -> TakenBatch<C> {
        let mut queue = self.queue();
        let (mut batch, mut bytes) = (Vec::new(), 0);
        let (mut passed, mut stay) = (Passed::default(), Vec::new());
        if let Some(ahead) = ahead {
            passed.add(&ahead.set);
        }
        // With a set that was written ahead no other one can be.
        let mut has_ahead = ahead.is_some();
        while batch.len() < sets_max && bytes < BATCH_BYTES {
            let Some(submission) = queue.waiting.pop_front() else {
                break;
            };
            let Submission {
                set, turns_ahead, ..
            } = &submission;
            let is_too_large = |parts: Parts| parts.is_too_large(set, *turns_ahead);
            if passed.hold_back(set) || (has_ahead && parts.is_some_and(is_too_large)) {
                passed.add(set);
                stay.push(submission);
            } else if parts.is_some_and(is_too_large) {
                passed.add(set);
                has_ahead = true;
                *ahead = Some(submission);
            } else {
                has_ahead |= *turns_ahead > 0;
                bytes += parts::unwritten_bytes(set, *turns_ahead);
                batch.push(submission);
            }
        }
        let held_back = stay.len();
        for submission in stay.into_iter().rev() {
            queue.waiting.push_front(submission);
        }
        TakenBatch {
            batch,
            bytes,
            held_back,
        }
    }

    /// Puts sets back to where they were taken from.
    fn put_back(&self, batch: Vec<Submission<C>>) {
        let mut queue = self.queue();
        let waiting = &mut queue.waiting;
        for submission in batch.into_iter().rev() {
            waiting.push_front(submission);
        }
        // They may have passed some.
        waiting
            .make_contiguous()
            .sort_by_key(|submission| submission.ticket);
    }

    /// Tells that the committer took all sets up to this ticket, and that they are written or
    /// refused, but for the one that is written ahead and those that stay in the queue.
    fn reach(
        &self,
        last_ticket: u64,
        ahead: Option<&Submission<C>>,
        tenant_of: impl Fn(&C) -> TenantId,
    ) {
        let reached = self.progress.borrow().reached.max(last_ticket);
        let (processed, passed) = {
            let queue = self.queue();
            let is_passed = |submission: &&Submission<C>| submission.ticket < reached;
            let waiting = queue.waiting.iter().take_while(is_passed);
            let ahead = ahead.into_iter().filter(is_passed);
            let passed = waiting.chain(ahead).map(|submission| PassedSet {
                ticket: submission.ticket,
                tenant: tenant_of(&submission.context),
            });
            let passed: Vec<PassedSet> = passed.collect();
            let next = passed.iter().map(|passed| passed.ticket).min();
            (next.map_or(reached, |next| next - 1), passed)
        };
        self.progress.send_modify(|progress| {
            progress.processed = progress.processed.max(processed);
            progress.reached = reached;
            progress.passed = passed;
            progress.batches += 1;
        });
    }

    /// Closes the queue if it is empty; true when it is closed.
    fn close(&self) -> bool {
        let mut queue = self.queue();
        queue.is_closed = queue.waiting.is_empty();
        queue.is_closed
    }

    /// Closes the queue, whatever it holds; gives how many sets that were, and the last
    /// ticket.
    fn close_and_drop(&self) -> (usize, u64) {
        let (waiting, last_ticket) = {
            let mut queue = self.queue();
            queue.is_closed = true;
            (std::mem::take(&mut queue.waiting), queue.last_ticket)
        };
        (waiting.len(), last_ticket)
    }
}

#[cfg(test)]
mod tests;
