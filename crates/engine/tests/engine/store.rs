//! An in-memory journal with injected failures and delays that records all commits.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use memoird_core::change::{Change, ChangeKind, ChangeSet, SummaryChange};
use memoird_core::idempotency::{Fingerprint, Keys};
use memoird_core::ids::{DeliveryId, ErasureId, Generation, HookName, SessionKey, TenantId};
use memoird_core::outbox::Delivery;
use memoird_core::seq_ranges::SeqRanges;
use memoird_core::session::{Head, SavedSession};
use memoird_core::time::Steady;
use memoird_store::{
    CleanupPending, ClockAnchor, DeliveryCount, DeliveryFilter, DeliveryOutcome, DueDeliveries,
    EndedPage, EndedQuery, EndedRecord, ErasedRows, Erasure, ErasureScope, EventExchange,
    ExchangedEvents, GenerationOwner, JournalPage, JournalRange, PrewritePart, PruneBefore,
    PruneBounds, PruningPending, SessionToLoad, StaleBase, Store, StoreError, WrittenTurn,
    WrittenTurns,
};
use tokio::sync::watch;

use crate::model::MemoryStore;
use crate::record::Record;

#[derive(Debug, Default)]
pub(crate) struct FaultyStore {
    inner: MemoryStore,
    faults: Arc<Faults>,
}

/// Faults to inject, and counters of operations.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    record: Mutex<Record>,
    /// Fates of the next commits, in order.
    fates: Mutex<VecDeque<Fate>>,
    /// Whether every commit finds the disk full.
    is_full: AtomicBool,
    commits: Gate,
    loads: Gate,
    journals: Gate,
    /// Tenants whose journal was read, in the order the reads began.
    journal_reads: Mutex<Vec<TenantId>>,
    loads_to_fail: AtomicU64,
    reads_to_fail: AtomicU64,
    outcomes_to_fail: AtomicU64,
    summaries_to_fail: AtomicU64,
    /// Polls for due deliveries.
    looks: AtomicU64,
    /// Reads of a session's idempotency keys.
    key_reads: AtomicU64,
    /// Wipes of freed pages.
    cleanings: AtomicU64,
    /// Whether a reader holds an old snapshot of the write-ahead log.
    is_log_read: AtomicBool,
    /// Checkpoints of the write-ahead log.
    log_moves: AtomicU64,
    /// Whether turns of large sets are prewritten.
    can_prewrite: AtomicBool,
    /// Number of prewritten turns in each commit that prewrote any.
    prewritten_turns: Mutex<Vec<usize>>,
    /// Checks of session versions.
    version_looks: AtomicU64,
    /// Loads for a caller that has the turns of an earlier version.
    reloads: AtomicU64,
    /// Rejected change sets.
    rejections: AtomicU64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Written,
    Full,
}

/// Blocks callers while it is closed. Only for threads that may block.
#[derive(Debug, Default)]
struct Gate {
    closed: Mutex<bool>,
    opened: Condvar,
    /// Number of callers that reached it.
    came: watch::Sender<u64>,
    /// Number of callers that may pass although it is closed.
    tickets: AtomicU64,
}

impl Gate {
    fn pass(&self) {
        self.came.send_modify(|came| *came += 1);
        let mut closed = self.closed.lock().unwrap();
        while *closed && !self.take_ticket() {
            // A test that fails while the gate is closed must not hang forever.
            let (again, timeout) = self
                .opened
                .wait_timeout(closed, Duration::from_secs(10))
                .unwrap();
            closed = again;
            if timeout.timed_out() {
                return;
            }
        }
    }

    fn take_ticket(&self) -> bool {
        take_one(&self.tickets)
    }

    fn set_closed(&self, closed: bool) {
        *self.closed.lock().unwrap() = closed;
        self.opened.notify_all();
    }

    fn let_one_pass(&self) {
        let _closed = self.closed.lock().unwrap();
        self.tickets.fetch_add(1, Ordering::Relaxed);
        self.opened.notify_all();
    }

    async fn when_came(&self, count: u64) {
        self.came
            .subscribe()
            .wait_for(|came| *came >= count)
            .await
            .unwrap();
    }
}

/// Decrements a counter. Returns false if it was already zero.
fn take_one(count: &AtomicU64) -> bool {
    let less = |left: u64| left.checked_sub(1);
    count
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less)
        .is_ok()
}

impl Deref for FaultyStore {
    type Target = Faults;

    fn deref(&self) -> &Faults {
        &self.faults
    }
}

impl FaultyStore {
    /// The same journal as seen by another daemon, with the same faults.
    pub(crate) fn shared(&self, process: u128) -> Self {
        Self {
            inner: self.inner.shared(process),
            faults: Arc::clone(&self.faults),
        }
    }

    /// The same journal as seen by another process, without faults.
    pub(crate) fn elsewhere(&self, process: u128) -> MemoryStore {
        self.inner.shared(process)
    }
}

impl Faults {
    pub(crate) fn cleanings(&self) -> u64 {
        self.cleanings.load(Ordering::Relaxed)
    }

    /// Simulates a reader that holds an old snapshot of the write-ahead log.
    pub(crate) fn read_log(&self, is_read: bool) {
        self.is_log_read.store(is_read, Ordering::Relaxed);
    }

    pub(crate) fn record(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap()
    }

    /// Makes the next `count` commits find the disk full.
    pub(crate) fn fail_commits(&self, count: usize) {
        self.fate(std::iter::repeat_n(Fate::Full, count));
    }

    /// Makes all commits find the disk full, until [`Self::forgive`].
    pub(crate) fn fail_all_commits(&self) {
        self.is_full.store(true, Ordering::Relaxed);
    }

    pub(crate) fn fate(&self, fates: impl IntoIterator<Item = Fate>) {
        self.fates.lock().unwrap().extend(fates);
    }

    /// Prewrites turns of large sets, effective for engines opened from now on.
    pub(crate) fn write_ahead(&self, is_on: bool) {
        self.can_prewrite.store(is_on, Ordering::Relaxed);
    }

    pub(crate) fn prewritten_turns(&self) -> Vec<usize> {
        self.prewritten_turns.lock().unwrap().clone()
    }

    /// Clears all injected failures, except those of session loads.
    pub(crate) fn forgive(&self) {
        self.fates.lock().unwrap().clear();
        self.is_full.store(false, Ordering::Relaxed);
        self.fail_reads(0);
        self.fail_outcomes(0);
        self.fail_summaries(0);
    }

    /// Number of attempted commits.
    pub(crate) fn commits(&self) -> u64 {
        *self.commits.came.borrow()
    }

    /// Blocks commits until they are released. Requires commits on a thread pool.
    pub(crate) fn hold_commits(&self) {
        self.commits.set_closed(true);
    }

    pub(crate) fn let_commits_go(&self) {
        self.commits.set_closed(false);
    }

    pub(crate) fn let_one_commit_go(&self) {
        self.commits.let_one_pass();
    }

    /// Waits until `count` commits have begun.
    pub(crate) async fn commit_begun(&self, count: u64) {
        self.commits.when_came(count).await;
    }

    /// Blocks session loads until they are released.
    pub(crate) fn hold_loads(&self) {
        self.loads.set_closed(true);
    }

    pub(crate) fn let_loads_go(&self) {
        self.loads.set_closed(false);
    }

    /// Blocks journal reads until they are released.
    pub(crate) fn hold_journals(&self) {
        self.journals.set_closed(true);
    }

    pub(crate) fn let_journals_go(&self) {
        self.journals.set_closed(false);
    }

    pub(crate) fn let_one_journal_go(&self) {
        self.journals.let_one_pass();
    }

    /// Waits until `count` journal reads have begun.
    pub(crate) async fn journal_begun(&self, count: u64) {
        self.journals.when_came(count).await;
    }

    pub(crate) fn log_moves(&self) -> u64 {
        self.log_moves.load(Ordering::Relaxed)
    }

    pub(crate) fn version_looks(&self) -> u64 {
        self.version_looks.load(Ordering::Relaxed)
    }

    pub(crate) fn reloads(&self) -> u64 {
        self.reloads.load(Ordering::Relaxed)
    }

    pub(crate) fn rejections(&self) -> u64 {
        self.rejections.load(Ordering::Relaxed)
    }

    pub(crate) fn journal_reads(&self) -> Vec<TenantId> {
        self.journal_reads.lock().unwrap().clone()
    }

    /// Makes the next `count` session loads fail.
    pub(crate) fn fail_loads(&self, count: u64) {
        self.loads_to_fail.fetch_add(count, Ordering::Relaxed);
    }

    /// Makes the next `count` reads on behalf of calls fail.
    pub(crate) fn fail_reads(&self, count: u64) {
        self.reads_to_fail.store(count, Ordering::Relaxed);
    }

    fn read(&self) -> Result<(), StoreError> {
        if take_one(&self.reads_to_fail) {
            Err(unreadable())
        } else {
            Ok(())
        }
    }

    /// Makes the next `count` writes of delivery outcomes find the disk full.
    pub(crate) fn fail_outcomes(&self, count: u64) {
        self.outcomes_to_fail.store(count, Ordering::Relaxed);
    }

    /// Makes the next `count` commits with a new summary find the disk full.
    pub(crate) fn fail_summaries(&self, count: u64) {
        self.summaries_to_fail.store(count, Ordering::Relaxed);
    }

    pub(crate) fn looks(&self) -> u64 {
        self.looks.load(Ordering::Relaxed)
    }

    pub(crate) fn key_reads(&self) -> u64 {
        self.key_reads.load(Ordering::Relaxed)
    }

    /// Number of session loads that have begun.
    pub(crate) fn loads(&self) -> u64 {
        *self.loads.came.borrow()
    }

    pub(crate) async fn load_begun(&self, count: u64) {
        self.loads.when_came(count).await;
    }
}

fn unreadable() -> StoreError {
    StoreError::TurnDamaged {
        generation: "a test's".into(),
        seq: 1,
    }
}

impl Store for FaultyStore {
    fn commit(
        &self,
        clock: &ClockAnchor,
        sets: &[ChangeSet],
    ) -> Result<Vec<Result<(), StaleBase>>, StoreError> {
        self.commits.pass();
        let is_summary = |change: &Change| {
            matches!(
                change.kind,
                ChangeKind::Compact {
                    summary: SummaryChange::Made(_),
                    ..
                }
            )
        };
        let has_summary = sets.iter().flat_map(|set| &set.changes).any(is_summary);
        let fate = self.fates.lock().unwrap().pop_front();
        let is_full = fate == Some(Fate::Full) || self.is_full.load(Ordering::Relaxed);
        if is_full || (has_summary && take_one(&self.summaries_to_fail)) {
            self.record().note_full();
            return Err(StoreError::Full);
        }
        // Hold the lock, so that no reader sees the commit before its record.
        let mut record = self.record();
        record.note_room(clock.steady);
        let answers = self.inner.commit(clock, sets)?;
        for (set, answer) in sets.iter().zip(&answers) {
            match answer {
                Ok(()) => record.note(set),
                Err(_) => {
                    self.rejections.fetch_add(1, Ordering::Relaxed);
                    record.note_failure();
                }
            }
        }
        Ok(answers)
    }

    fn can_prewrite(&self) -> bool {
        self.can_prewrite.load(Ordering::Relaxed)
    }

    fn commit_and_prewrite(
        &self,
        clock: &ClockAnchor,
        sets: &[ChangeSet],
        ahead: &PrewritePart,
    ) -> Result<(Vec<Result<(), StaleBase>>, usize), StoreError> {
        let answers = self.commit(clock, sets)?;
        let turns = ahead.turns.len();
        if turns > 0 {
            self.prewritten_turns.lock().unwrap().push(turns);
        }
        Ok((answers, turns))
    }

    fn checkpoint_log(&self) -> Result<(), StoreError> {
        self.log_moves.fetch_add(1, Ordering::Relaxed);
        self.inner.checkpoint_log()
    }

    fn clock(&self) -> Result<Option<ClockAnchor>, StoreError> {
        self.inner.clock()
    }

    fn exchange_events(&self, exchange: EventExchange) -> Result<ExchangedEvents, StoreError> {
        self.inner.exchange_events(exchange)
    }

    fn current_revisions(
        &self,
        generations: &[Generation],
    ) -> Result<Vec<Option<u64>>, StoreError> {
        self.version_looks.fetch_add(1, Ordering::Relaxed);
        self.inner.current_revisions(generations)
    }

    fn live_heads(&self, visit: &mut dyn FnMut(SessionKey, Head)) -> Result<(), StoreError> {
        self.inner.live_heads(visit)
    }

    fn load(&self, key: &SessionKey, since: Steady) -> Result<Option<SavedSession>, StoreError> {
        if take_one(&self.loads_to_fail) {
            return Err(unreadable());
        }
        self.read()?;
        let found = self.inner.load(key, since);
        // Block after the read, so that its result can become stale.
        self.loads.pass();
        found
    }

    /// Leaves out as many idempotency keys as a store may.
    fn load_all(
        &self,
        wanted: &[SessionToLoad],
        since: Steady,
        found: &mut dyn FnMut(usize, Result<SavedSession, StoreError>),
    ) -> Result<(), StoreError> {
        for (place, wanted) in wanted.iter().enumerate() {
            let loaded = self.load(&wanted.key, since).transpose();
            let is_known = wanted.known.is_some();
            self.reloads.fetch_add(is_known.into(), Ordering::Relaxed);
            let reduced = |mut saved: SavedSession| {
                if is_known {
                    saved.keys = saved.keys.into_lookup(wanted.idempotency_key);
                }
                saved
            };
            if let Some(loaded) = loaded {
                found(place, loaded.map(reduced));
            }
        }
        Ok(())
    }

    fn keys(&self, key: &SessionKey, since: Steady) -> Result<Keys, StoreError> {
        self.key_reads.fetch_add(1, Ordering::Relaxed);
        self.read()?;
        self.inner.keys(key, since)
    }

    fn keyed_sessions(
        &self,
        after: Option<&SessionKey>,
        max: usize,
    ) -> Result<Vec<SessionKey>, StoreError> {
        self.inner.keyed_sessions(after, max)
    }

    fn journal(
        &self,
        key: &SessionKey,
        generation: Option<Generation>,
        range: JournalRange,
    ) -> Result<Option<JournalPage>, StoreError> {
        self.journal_reads.lock().unwrap().push(key.tenant.clone());
        self.journals.pass();
        self.read()?;
        self.inner.journal(key, generation, range)
    }

    fn rewound_by(
        &self,
        generation: Generation,
        key: &Fingerprint,
    ) -> Result<SeqRanges, StoreError> {
        self.read()?;
        self.inner.rewound_by(generation, key)
    }

    fn written_after(
        &self,
        number: u64,
        turns_max: usize,
        bytes_max: usize,
    ) -> Result<WrittenTurns, StoreError> {
        self.inner.written_after(number, turns_max, bytes_max)
    }

    fn written_at(&self, numbers: &[u64]) -> Result<Vec<WrittenTurn>, StoreError> {
        self.inner.written_at(numbers)
    }

    fn owners(&self, generations: &[Generation]) -> Result<Vec<GenerationOwner>, StoreError> {
        self.inner.owners(generations)
    }

    fn deliveries(
        &self,
        filter: &DeliveryFilter,
        after: Option<&DeliveryId>,
        max: usize,
    ) -> Result<Vec<Delivery>, StoreError> {
        self.inner.deliveries(filter, after, max)
    }

    fn delivery(&self, id: &DeliveryId) -> Result<Option<Delivery>, StoreError> {
        self.inner.delivery(id)
    }

    fn due(
        &self,
        hook: &HookName,
        after: Option<&TenantId>,
        now: Steady,
        max: usize,
    ) -> Result<DueDeliveries, StoreError> {
        self.looks.fetch_add(1, Ordering::Relaxed);
        self.inner.due(hook, after, now, max)
    }

    fn open_deliveries(&self) -> Result<Vec<DeliveryCount>, StoreError> {
        self.inner.open_deliveries()
    }

    fn record_outcomes(&self, outcomes: &[DeliveryOutcome]) -> Result<(), StoreError> {
        if take_one(&self.outcomes_to_fail) {
            return Err(StoreError::Full);
        }
        self.inner.record_outcomes(outcomes)
    }

    fn drop_delivery(&self, id: &DeliveryId) -> Result<bool, StoreError> {
        self.inner.drop_delivery(id)
    }

    fn ended_page(&self, query: &EndedQuery) -> Result<EndedPage, StoreError> {
        self.read()?;
        self.journals.pass();
        self.inner.ended_page(query)
    }

    fn states(
        &self,
        generations: &[Generation],
    ) -> Result<BTreeMap<Generation, Arc<str>>, StoreError> {
        self.inner.states(generations)
    }

    fn ended(
        &self,
        wanted: &[(SessionKey, Generation)],
        bytes_max: usize,
    ) -> Result<Vec<EndedRecord>, StoreError> {
        self.inner.ended(wanted, bytes_max)
    }

    fn turn_bytes(&self) -> Result<Vec<(TenantId, u64)>, StoreError> {
        self.inner.turn_bytes()
    }

    fn prune(
        &self,
        before: PruneBefore,
        bounds: PruneBounds,
    ) -> Result<PruningPending, StoreError> {
        self.inner.prune(before, bounds)
    }

    fn save_erasure(&self, erasure: &Erasure) -> Result<(), StoreError> {
        self.inner.save_erasure(erasure)
    }

    fn erasure(&self, id: ErasureId) -> Result<Option<Erasure>, StoreError> {
        self.inner.erasure(id)
    }

    fn open_erasures(&self, max: usize) -> Result<Vec<Erasure>, StoreError> {
        self.inner.open_erasures(max)
    }

    fn collect_erased(&self, id: ErasureId, rows_max: usize) -> Result<bool, StoreError> {
        self.inner.collect_erased(id, rows_max)
    }

    fn erasure_scope(&self, id: ErasureId) -> Result<ErasureScope, StoreError> {
        self.inner.erasure_scope(id)
    }

    fn erase_rows(&self, id: ErasureId, rows_max: usize) -> Result<ErasedRows, StoreError> {
        self.inner.erase_rows(id, rows_max)
    }

    fn forget_erasure_names(&self, id: ErasureId, rows_max: usize) -> Result<bool, StoreError> {
        self.inner.forget_erasure_names(id, rows_max)
    }

    fn clean_pages(&self, pages_max: usize) -> Result<CleanupPending, StoreError> {
        self.cleanings.fetch_add(1, Ordering::Relaxed);
        let unclean = self.inner.clean_pages(pages_max)?;
        Ok(CleanupPending {
            log: unclean.log || self.is_log_read.load(Ordering::Relaxed),
            ..unclean
        })
    }
}
