//! The journal queue: change sets are committed in order, in groups, and each caller is notified.
//!
//! A change set is submitted under the lock of its session, so the queue order is the order of
//! decisions. A single worker, the [`Committer`], writes everything queued as one transaction
//! (group commit). A set that is too large for that is written in parts while other sets overtake
//! it ([`parts`]).
//!
//! With [`Durability::Interval`], changes are acknowledged before they are written, and must not be
//! lost while the process lives. While commits fail, queued sets stay queued in order, and new ones
//! are rejected.
//!
//! If there are several tenants, each may have [`JOURNAL_SHARE`] sets in the queue, so that a
//! flooding tenant does not delay the others. A reply waits only for the last change of its
//! session, a list or search for the changes of its tenant, and an erasure for the changes of its
//! target.
//!
//! After a failed commit, changes that only record a use are not submitted, and an empty commit
//! probes whether the store can be written again.

mod committer;
mod parts;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use memoird_core::change::ChangeSet;
use memoird_core::config::{AsText, Problems, Size, Span};
use memoird_core::ids::TenantId;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot, watch};

pub(crate) use committer::{CommitHandler, Committer};

use crate::error::EngineError;
use crate::store_handle::CommitHandle;
use crate::tenants::{JOURNAL_SHARE, Tenant, ms};
use parts::{OvertakenSessions, Parts};

/// Bytes covered by one permit of the queue.
const PERMIT_BYTES: usize = 1 << 10;
/// Bytes covered by one permit of a tenant's [`JOURNAL_SHARE`]. A set takes at least one.
const SHARE_BYTES: usize = 16 << 10;
/// A transaction takes no further sets once it has this many bytes.
const BATCH_BYTES: usize = 8 << 20;
/// How long a change waits for a retry of a failed commit, before it is refused.
const RETRY_WAIT_MAX: Duration = Duration::from_millis(400);

/// When a change is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// Once it is on disk. Acknowledged changes survive a crash of the machine.
    Sync,
    /// Immediately. It is on disk within `flush_interval`.
    ///
    /// While the disk cannot be written, changes are rejected.
    Interval,
    /// Immediately. There is no journal, and nothing survives the process.
    Off,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct JournalConfig {
    pub durability: Durability,
    /// With [`Durability::Interval`], the maximum time until a change is on disk.
    #[serde(with = "AsText::<Span>")]
    pub flush_interval: Duration,
    /// How long the turns of an ended generation remain readable.
    #[serde(with = "AsText::<Span>")]
    pub retention: Duration,
    /// Maximum bytes of changes in the queue.
    #[serde(with = "AsText::<Size>")]
    pub queue_bytes: usize,
    /// How long a call waits for room in the queue before it is rejected.
    #[serde(with = "AsText::<Span>")]
    pub queue_wait: Duration,
    /// Maximum change sets per transaction.
    #[serde(skip)]
    pub batch_sets: usize,
    /// Approximate bytes of a part when a large change set is written in parts.
    #[serde(skip)]
    pub part_bytes: usize,
}

/// The queue of change sets.
///
/// Each set carries a context of type `C` that is returned to the [`CommitHandler`]. Without a
/// store, changes are final as soon as they are decided.
#[derive(Debug)]
pub(crate) struct Journal<C> {
    durability: Durability,
    queue_wait_ms: AtomicU64,
    flush_interval_ms: AtomicU64,
    batch_sets_max: usize,
    /// Set if the store can prewrite turns.
    parts: Option<Parts>,
    backend: Option<Backend<C>>,
}

struct Backend<C> {
    store: CommitHandle,
    permits: Arc<Semaphore>,
    permits_max: u32,
    queue: Mutex<Queue<C>>,
    /// Notified when the queue holds enough sets for the committer.
    arrived: Notify,
    /// Tells the committer to commit without waiting for more sets.
    flush: Notify,
    /// Tells the committer to retry a failed commit soon, because changes are refused until then.
    retry: Notify,
    progress: watch::Sender<Progress>,
    /// Set from a failed commit until the next success.
    is_failing: AtomicBool,
}

/// Progress of the committer.
#[derive(Clone, Debug, Default)]
struct Progress {
    /// Every set up to this ticket is finished: written or rejected.
    processed: u64,
    /// Every set up to this ticket is finished, except those in `overtaken`.
    reached: u64,
    /// Unfinished sets that others overtook.
    overtaken: Vec<OvertakenSet>,
    batches: u64,
    /// Number of failed commits that will be retried.
    failed_tries: u64,
    /// Error of the last commit, or `None` if it succeeded.
    failure: Option<EngineError>,
}

/// An unfinished set that others overtook.
#[derive(Clone, Debug)]
struct OvertakenSet {
    ticket: u64,
    tenant: TenantId,
}

struct Queue<C> {
    last_ticket: u64,
    waiting: VecDeque<Submission<C>>,
    /// The committer is woken once this many sets are queued.
    wake_at: usize,
    /// Set when the engine has stopped. Later submissions are never written.
    is_closed: bool,
}

struct Submission<C> {
    ticket: u64,
    set: ChangeSet,
    context: C,
    reply: Option<oneshot::Sender<Result<(), EngineError>>>,
    /// Number of its turns that are already prewritten.
    prewritten_turns: usize,
    _permit: Permit,
}

/// The sets that one transaction takes from the queue.
struct TakenBatch<C> {
    batch: Vec<Submission<C>>,
    bytes: usize,
    /// Number of sets that were checked but must remain queued.
    held_back: usize,
}

/// A reservation in the queue for one change set.
#[derive(Debug)]
pub(crate) struct Permit {
    _room: Option<OwnedSemaphorePermit>,
    /// Reservation in the tenant's share of the queue.
    _share: Option<OwnedSemaphorePermit>,
}

impl Permit {
    fn new(room: Option<OwnedSemaphorePermit>) -> Self {
        Self {
            _room: room,
            _share: None,
        }
    }
}

#[derive(Debug)]
#[must_use = "a submitted change is not durable yet"]
pub(crate) struct Submitted {
    pub(crate) ticket: u64,
    reply: Option<oneshot::Receiver<Result<(), EngineError>>>,
}

impl JournalConfig {
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
    /// Waits until the change is as durable as configured.
    pub(crate) async fn written(self) -> Result<(), EngineError> {
        match self.reply {
            None => Ok(()),
            Some(reply) => reply.await.unwrap_or(Err(EngineError::Stopping)),
        }
    }
}

impl Progress {
    /// Whether the sets up to this ticket are finished, if no overtaken one matches.
    fn has_passed(&self, ticket: u64, matches: impl Fn(&OvertakenSet) -> bool) -> bool {
        ticket <= self.processed || (ticket <= self.reached && !self.overtaken.iter().any(matches))
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
    /// Creates the queue of a store. Without one, changes stay in memory.
    pub(crate) fn new(config: &JournalConfig, store: Option<CommitHandle>) -> Self {
        let permits_max = (config.queue_bytes / PERMIT_BYTES).clamp(1, Semaphore::MAX_PERMITS);
        let can_prewrite = store.as_ref().is_some_and(CommitHandle::can_prewrite);
        let parts = can_prewrite.then_some(Parts {
            bytes: config.part_bytes.max(1),
        });
        let backend = store.map(|store| Backend {
            store,
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
            retry: Notify::new(),
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

    /// Applies the settings that can change while the journal is open.
    pub(crate) fn reconfigure(&self, config: &JournalConfig) {
        self.queue_wait_ms
            .store(ms(config.queue_wait), Ordering::Relaxed);
        self.flush_interval_ms
            .store(ms(config.flush_interval), Ordering::Relaxed);
    }

    /// Whether changes are written to a store.
    pub(crate) fn is_on(&self) -> bool {
        self.backend.is_some()
    }

    /// Whether a change is final only once it is written.
    pub(crate) fn is_sync(&self) -> bool {
        self.is_on() && self.durability == Durability::Sync
    }

    /// Whether the last commit failed.
    ///
    /// If so, do not submit changes that may be lost: a failed change discards its session's
    /// in-memory state.
    pub(crate) fn is_failing(&self) -> bool {
        let backend = self.backend.as_ref();
        backend.is_some_and(Backend::is_failing)
    }

    pub(crate) fn last_failure(&self) -> Option<EngineError> {
        let backend = self.backend.as_ref()?;
        backend.progress.borrow().failure.clone()
    }

    /// Error for new changes if they would be acknowledged immediately while commits fail.
    fn refusal(&self) -> Option<EngineError> {
        let backend = self.backend.as_ref()?;
        let is_refusing = self.retries_commits() && backend.is_failing();
        is_refusing.then(|| backend.failure())
    }

    /// Waits for one more attempt to write what could not be written.
    async fn wait_for_retry(&self) {
        let Some(backend) = &self.backend else { return };
        let mut progress = backend.progress.subscribe();
        let tries_before = progress.borrow().failed_tries;
        backend.retry.notify_one();
        let is_tried = |progress: &Progress| {
            progress.failure.is_none() || progress.failed_tries > tries_before
        };
        let _ = tokio::time::timeout(RETRY_WAIT_MAX, progress.wait_for(is_tried)).await;
    }

    /// Whether failed commits are retried, because their changes are already acknowledged.
    fn retries_commits(&self) -> bool {
        self.durability == Durability::Interval
    }

    /// Waits for room in the queue.
    ///
    /// # Errors
    /// [`EngineError::JournalBusy`] if there is none within the configured time. With
    /// [`Durability::Interval`], the error of the last commit while commits fail, after one more
    /// attempt.
    pub(crate) async fn permit(&self, bytes: usize) -> Result<Permit, EngineError> {
        if self.refusal().is_some() {
            self.wait_for_retry().await;
        }
        if let Some(refusal) = self.refusal() {
            return Err(refusal);
        }
        // Fast path without a timer.
        if let Some(permit) = self.try_permit(bytes) {
            return Ok(permit);
        }
        let Some(backend) = &self.backend else {
            return Ok(Permit::new(None));
        };
        backend.flush.notify_one();
        let count = backend.permits_of(bytes);
        match self.acquire(&backend.permits, count).await {
            Ok(room) => Ok(Permit::new(Some(room))),
            Err(EngineError::JournalBusy) => {
                Err(self.refusal().unwrap_or(EngineError::JournalBusy))
            }
            Err(error) => Err(error),
        }
    }

    /// Waits for room in the queue and, with several tenants, in the tenant's own share of it.
    pub(crate) async fn permit_of(
        &self,
        tenant: &Tenant,
        bytes: usize,
    ) -> Result<Permit, EngineError> {
        let share = if self.is_sync() && tenant.is_one_of_several() {
            let count = u32::try_from(bytes.div_ceil(SHARE_BYTES)).unwrap_or(u32::MAX);
            let count = count.clamp(1, JOURNAL_SHARE);
            Some(self.acquire(&tenant.journal_share, count).await?)
        } else {
            None
        };
        let permit = self.permit(bytes).await?;
        Ok(Permit {
            _share: share,
            ..permit
        })
    }

    /// Waits for room up to the configured time.
    async fn acquire(
        &self,
        room: &Arc<Semaphore>,
        count: u32,
    ) -> Result<OwnedSemaphorePermit, EngineError> {
        // Fast path without a timer.
        if let Ok(room) = Arc::clone(room).try_acquire_many_owned(count) {
            return Ok(room);
        }
        let wait = Duration::from_millis(self.queue_wait_ms.load(Ordering::Relaxed));
        let acquiring = Arc::clone(room).acquire_many_owned(count);
        let acquired = tokio::time::timeout(wait, acquiring).await;
        // The queue is closed when the engine stops.
        acquired.map_or(Err(EngineError::JournalBusy), |room| {
            room.map_err(|_| EngineError::Stopping)
        })
    }

    /// Reserves room in the queue if it is available immediately.
    pub(crate) fn try_permit(&self, bytes: usize) -> Option<Permit> {
        let Some(backend) = &self.backend else {
            return Some(Permit::new(None));
        };
        let count = backend.permits_of(bytes);
        let room = Arc::clone(&backend.permits).try_acquire_many_owned(count);
        Some(Permit::new(Some(room.ok()?)))
    }

    /// Submits a change set. Must be called under the lock of the session that it changes.
    pub(crate) fn submit(&self, permit: Permit, set: ChangeSet, context: C) -> Submitted {
        let Some(backend) = &self.backend else {
            return Submitted {
                ticket: 0,
                reply: None,
            };
        };
        let mut queue = backend.queue.lock();
        if queue.is_closed {
            // The sender is dropped here, so the caller gets `Stopping`.
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
            prewritten_turns: 0,
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

    /// Waits until the changes of a session up to this ticket are final: written or rejected.
    ///
    /// The ticket must belong to that session. Returns at once if changes are final without a
    /// write.
    pub(crate) async fn wait_durable(&self, ticket: u64) {
        if self.is_sync() {
            // Fails only if commits are retried, which is not the case with `Sync`.
            let _ = self.wait_processed_of_session(ticket).await;
        }
    }

    /// Waits until all changes of a tenant up to this ticket are final.
    pub(crate) async fn wait_durable_of(&self, tenant: &TenantId, ticket: u64) {
        if self.is_sync() {
            // Fails only if commits are retried, which is not the case with `Sync`.
            let _ = self.wait_processed_of(tenant, ticket).await;
        }
    }

    /// Whether every set up to this ticket is finished.
    pub(crate) fn is_processed(&self, ticket: u64) -> bool {
        let backend = self.backend.as_ref();
        backend.is_none_or(|backend| backend.progress.borrow().processed >= ticket)
    }

    /// Waits until the sets of a session up to this ticket, one of its own, are finished.
    ///
    /// # Errors
    /// With [`Durability::Interval`], the error of the next attempt to write them.
    pub(crate) async fn wait_processed_of_session(&self, ticket: u64) -> Result<(), EngineError> {
        self.wait_until(|progress| progress.has_passed(ticket, |set| set.ticket == ticket))
            .await
    }

    /// Waits until the sets of a tenant up to this ticket are finished.
    pub(crate) async fn wait_processed_of(
        &self,
        tenant: &TenantId,
        ticket: u64,
    ) -> Result<(), EngineError> {
        let is_earlier = |set: &OvertakenSet| set.ticket <= ticket && set.tenant == *tenant;
        self.wait_until(|progress| progress.has_passed(ticket, is_earlier))
            .await
    }

    async fn wait_until(&self, is_finished: impl Fn(&Progress) -> bool) -> Result<(), EngineError> {
        let Some(backend) = &self.backend else {
            return Ok(());
        };
        if is_finished(&backend.progress.borrow()) {
            return Ok(());
        }
        let mut progress = backend.progress.subscribe();
        loop {
            let tries_before = progress.borrow().failed_tries;
            backend.flush.notify_one();
            let is_tried =
                |progress: &Progress| is_finished(progress) || progress.failed_tries > tries_before;
            // Cannot fail: `self` holds the sender.
            let Ok(progress) = progress.wait_for(is_tried).await else {
                return Err(EngineError::Stopping);
            };
            match &progress.failure {
                _ if is_finished(&progress) => return Ok(()),
                Some(failure) => return Err(failure.clone()),
                None => {}
            }
        }
    }

    /// Waits until more than `batches` batches are finished, and returns their number.
    ///
    /// Never returns without a store.
    pub(crate) async fn wait_batches_beyond(&self, batches: u64) -> u64 {
        let Some(backend) = &self.backend else {
            return std::future::pending().await;
        };
        let mut progress = backend.progress.subscribe();
        let later = progress.wait_for(|progress| progress.batches > batches);
        // Cannot fail: `self` holds the sender.
        later.await.map_or(batches, |progress| progress.batches)
    }

    /// Waits until every set submitted so far is finished.
    pub(crate) async fn wait_all_processed(&self) -> Result<(), EngineError> {
        let Some(backend) = &self.backend else {
            return Ok(());
        };
        let last = backend.queue.lock().last_ticket;
        self.wait_until(|progress| progress.processed >= last).await
    }
}

impl<C> Backend<C> {
    /// Permits for a set of this size, up to half of the queue.
    ///
    /// A larger set holds its permits until its last part is written. The other half is for sets
    /// that overtake it.
    fn permits_of(&self, bytes: usize) -> u32 {
        let count = u32::try_from(bytes.div_ceil(PERMIT_BYTES)).unwrap_or(u32::MAX);
        count.clamp(1, (self.permits_max / 2).max(1))
    }

    fn failure(&self) -> EngineError {
        let failure = self.progress.borrow().failure.clone();
        // Commits may have just stopped failing.
        failure.unwrap_or(EngineError::JournalBusy)
    }

    fn is_failing(&self) -> bool {
        self.is_failing.load(Ordering::Relaxed)
    }

    async fn wait_for_sets(&self, sets: usize) {
        while !self.has_sets(sets) {
            self.arrived.notified().await;
        }
    }

    /// Whether this many sets are queued.
    ///
    /// If not, the submission that reaches the number wakes the committer.
    fn has_sets(&self, sets: usize) -> bool {
        let mut queue = self.queue.lock();
        queue.wake_at = sets;
        queue.waiting.len() >= sets
    }

    /// Takes the sets of the next transaction from the queue.
    ///
    /// A set that is too large for it moves to `ahead`, to be prewritten, unless another one is.
    /// Sets that must not overtake an unwritten set remain queued.
    fn take_batch(
        &self,
        sets_max: usize,
        parts: Option<Parts>,
        ahead: &mut Option<Submission<C>>,
    ) -> TakenBatch<C> {
        let mut queue = self.queue.lock();
        let (mut batch, mut bytes) = (Vec::new(), 0);
        let (mut overtaken, mut stay) = (OvertakenSessions::default(), Vec::new());
        if let Some(ahead) = ahead {
            overtaken.add(&ahead.set);
        }
        // Only one set can be prewritten at a time, including one that this batch completes.
        let mut has_prewrite = ahead.is_some();
        while batch.len() < sets_max && bytes < BATCH_BYTES {
            let Some(submission) = queue.waiting.pop_front() else {
                break;
            };
            let Submission {
                set,
                prewritten_turns,
                ..
            } = &submission;
            let is_too_large = |parts: Parts| parts.is_too_large(set, *prewritten_turns);
            if overtaken.must_wait(set) || (has_prewrite && parts.is_some_and(is_too_large)) {
                overtaken.add(set);
                stay.push(submission);
            } else if parts.is_some_and(is_too_large) {
                overtaken.add(set);
                has_prewrite = true;
                *ahead = Some(submission);
            } else {
                has_prewrite |= *prewritten_turns > 0;
                bytes += parts::unwritten_bytes(set, *prewritten_turns);
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

    /// Returns sets to their positions in the queue.
    fn put_back(&self, batch: Vec<Submission<C>>) {
        let mut queue = self.queue.lock();
        let waiting = &mut queue.waiting;
        for submission in batch.into_iter().rev() {
            waiting.push_front(submission);
        }
        // They may have overtaken some that remained.
        waiting
            .make_contiguous()
            .sort_by_key(|submission| submission.ticket);
    }

    /// Records that sets up to `last_ticket` are finished, except `ahead` and those still queued.
    fn finish_up_to(
        &self,
        last_ticket: u64,
        ahead: Option<&Submission<C>>,
        tenant_of: impl Fn(&C) -> TenantId,
    ) {
        let reached = self.progress.borrow().reached.max(last_ticket);
        let (processed, overtaken) = {
            let queue = self.queue.lock();
            let is_overtaken = |submission: &&Submission<C>| submission.ticket < reached;
            let waiting = queue.waiting.iter().take_while(is_overtaken);
            let ahead = ahead.into_iter().filter(is_overtaken);
            let overtaken: Vec<OvertakenSet> = waiting
                .chain(ahead)
                .map(|submission| OvertakenSet {
                    ticket: submission.ticket,
                    tenant: tenant_of(&submission.context),
                })
                .collect();
            let next = overtaken.iter().map(|overtaken| overtaken.ticket).min();
            (next.map_or(reached, |next| next - 1), overtaken)
        };
        self.progress.send_modify(|progress| {
            progress.processed = progress.processed.max(processed);
            progress.reached = reached;
            progress.overtaken = overtaken;
            progress.batches += 1;
        });
    }

    /// Closes the queue if it is empty. Returns whether it is closed.
    fn close(&self) -> bool {
        let mut queue = self.queue.lock();
        queue.is_closed = queue.waiting.is_empty();
        queue.is_closed
    }

    /// Closes the queue and drops its sets. Returns their number and the last ticket.
    fn close_and_drop(&self) -> (usize, u64) {
        let (waiting, last_ticket) = {
            let mut queue = self.queue.lock();
            queue.is_closed = true;
            (std::mem::take(&mut queue.waiting), queue.last_ticket)
        };
        (waiting.len(), last_ticket)
    }
}

#[cfg(test)]
mod tests;
