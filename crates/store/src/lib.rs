//! The durable journal of all turns. State is recovered from it after a crash.
//!
//! All calls are synchronous; the engine decides which thread runs them. [`SqliteStore`] and the
//! store of `memoird-postgres` pass the same conformance suite.

pub mod checksum;
pub mod conversion;
pub mod data_key;
pub mod encoding;
mod ended_list;
mod erase;
mod erasure;
mod error;
mod exchange;
mod live;
mod lock;
pub mod options;
mod outbox;
pub mod plan;
mod retention;
pub mod rows;
mod search;
pub mod snapshot;
mod sqlite;
pub mod sqlite_file;
pub mod sqlite_gaps;
pub mod summaries;
mod tables;
pub mod transfer;
pub mod verify;
pub mod windows;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use memoird_core::change::{ChangeSet, EndReason};
use memoird_core::compaction::Summary;
use memoird_core::history::KnownTurns;
use memoird_core::idempotency::{Fingerprint, Keys};
use memoird_core::ids::{
    DeliveryId, ErasureId, Generation, HookName, SessionKey, Subject, TenantId,
};
use memoird_core::outbox::{Delivery, DeliveryState};
use memoird_core::seq_ranges::SeqRanges;
use memoird_core::session::{Head, SavedSession};
use memoird_core::state::State;
use memoird_core::time::{Now, Steady, Timestamp};

pub use checksum::{DAMAGED_TEXT, TurnCounts};
pub use data_key::{DataKey, DataKeyError};
pub use ended_list::{EndedGeneration, EndedPage, EndedPosition, EndedQuery};
pub use erasure::{EraseTarget, ErasedCounts, ErasedRows, Erasure, ErasureScope, ErasureStage};
pub use error::StoreError;
pub use exchange::{EventExchange, EventSubscription, ExchangedEvents, PostedEvent};
pub use live::{LiveQuery, SessionOrder};
pub use lock::{DirLock, private};
pub use search::{
    CALL_TURNS, IndexBounds, IndexEntry, IndexStep, PurgeStep, SearchCandidate, SearchFilter,
    SearchIndex, SearchMatches, SearchedTurn, index_entries, role_word, tool_word,
};
pub use sqlite::{RetainedStore, SqliteOptions, SqliteStore, SqliteTransfer, index_file};
pub use tables::{DeletedTurns, Dialect, Param, TableBody, Tables};

/// Locks a mutex, ignoring poisoning.
///
/// Safe here because a panic cannot leave the guarded data half changed: an open transaction is
/// rolled back on drop.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A change set rejected because its base is stale. Nothing of it was written.
///
/// The caller must reload from the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StaleBase {
    pub generation: Generation,
}

/// Maps memoird's monotonic timeline to the system clocks, so that it continues after a restart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClockAnchor {
    /// Time on the monotonic timeline.
    pub steady: Steady,
    /// The same instant on the wall clock.
    pub wall: Timestamp,
    /// Identifies the boot of the machine. Empty if the system has no boot id.
    pub boot_id: String,
    /// The same instant in milliseconds since that boot.
    pub boot_ms: u64,
}

/// Turns of one generation from the journal.
#[derive(Clone, Debug, Default)]
pub struct JournalPage {
    /// Always set by stores.
    pub generation: Option<Generation>,
    /// Owner of the memories extracted from this generation, if known.
    pub subject: Option<Subject>,
    /// Seq and encoded content, ascending.
    pub turns: Vec<(u64, Arc<[u8]>)>,
    /// Seqs of the rewound turns in `turns`, ascending.
    pub rewound: Vec<u64>,
    /// Whether the requested range has more turns than these.
    pub more: bool,
}

/// Which turns of a generation to read.
#[derive(Clone, Copy, Debug)]
pub struct JournalRange {
    /// Exclusive lower bound.
    pub after_seq: u64,
    /// Exclusive upper bound.
    pub before_seq: u64,
    /// Read the last turns of the range instead of the first.
    pub last: bool,
    pub with_rewound: bool,
    pub turns_max: usize,
    /// Stop reading once the turns read have at least this many bytes.
    pub bytes_max: usize,
}

impl JournalRange {
    /// The whole journal of a generation.
    pub const ALL: Self = Self {
        after_seq: 0,
        before_seq: u64::MAX,
        last: false,
        with_rewound: false,
        turns_max: usize::MAX,
        bytes_max: usize::MAX,
    };
}

/// A session to load.
#[derive(Clone, Debug)]
pub struct SessionToLoad {
    pub key: SessionKey,
    /// Turns of an earlier version. The store returns them again if they are unchanged.
    ///
    /// If set, the store may leave out all idempotency keys except `idempotency_key`.
    pub known: Option<KnownTurns>,
    pub idempotency_key: Option<Fingerprint>,
}

/// A turn with its position in the journal.
#[derive(Clone, Debug)]
pub struct WrittenTurn {
    /// Position in the journal across all sessions, from 1. Never reused, even after pruning.
    pub number: u64,
    pub generation: Generation,
    pub seq: u64,
    /// Encoded turn.
    pub content: Arc<[u8]>,
}

/// Turns of all sessions in journal order.
#[derive(Clone, Debug, Default)]
pub struct WrittenTurns {
    /// Ascending by number.
    pub turns: Vec<WrittenTurn>,
    /// Highest number assigned so far. 0 before the first turn.
    pub last_number: u64,
}

/// The session and the owner of a generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GenerationOwner {
    pub generation: Generation,
    pub key: SessionKey,
    /// Owner of the memories extracted from this generation, if known.
    pub subject: Option<Subject>,
}

/// Filter for listing deliveries. `None` matches all.
#[derive(Clone, Debug, Default)]
pub struct DeliveryFilter {
    pub tenant: Option<TenantId>,
    pub hook: Option<HookName>,
    pub state: Option<DeliveryState>,
}

/// Deliveries of one hook that are due.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DueDeliveries {
    /// Interleaved by tenant. Within a tenant, the longest due come first.
    pub due: Vec<Delivery>,
    /// When the next delivery that is not yet due becomes due.
    pub next: Option<Steady>,
}

/// Result of a delivery attempt, or an operator's change to a delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeliveryOutcome {
    pub id: DeliveryId,
    /// New state.
    pub state: DeliveryState,
    /// Attempts made.
    pub tries: u32,
    pub last_error: String,
    /// When the next attempt is due, or when the delivery was finished.
    pub due: Steady,
}

impl DeliveryOutcome {
    /// Whether this outcome may replace the current `state`.
    ///
    /// A pending delivery accepts any outcome. A finished one accepts only a success or an
    /// operator's retry (`tries == 0`). Otherwise a late failure, for example from a former leader,
    /// would reopen it.
    pub fn changes(&self, state: DeliveryState) -> bool {
        state == DeliveryState::Pending || self.state == DeliveryState::Done || self.tries == 0
    }
}

/// Number of deliveries of one hook for one tenant in one state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeliveryCount {
    pub tenant: TenantId,
    pub hook: HookName,
    /// Pending or dead.
    pub state: DeliveryState,
    pub count: u64,
}

/// An ended generation with its content.
#[derive(Clone, Debug)]
pub struct EndedRecord {
    pub key: SessionKey,
    /// Metadata at the end of the generation, without its turns.
    pub head: Head,
    pub at: Now,
    pub reason: EndReason,
    /// Newest turns, ascending, without rewound ones.
    ///
    /// Older turns are missing if all would exceed the reader's byte limit.
    pub turns: Vec<(u64, Arc<[u8]>)>,
    pub rewound_turns: u64,
    pub state: Option<State>,
    /// Summary that covers its oldest exchanges, if any.
    pub summary: Option<Arc<Summary>>,
}

/// Age limits for pruning.
#[derive(Clone, Copy, Debug)]
pub struct PruneBefore {
    /// Delete generations that ended before this time.
    pub ended: Steady,
    /// Delete idempotency keys last used before this time.
    pub keys: Steady,
}

/// Limits of one pruning step.
#[derive(Clone, Copy, Debug)]
pub struct PruneBounds {
    /// Approximate maximum number of rows to delete.
    pub rows_max: usize,
    /// Maximum number of free 4 KiB pages to release to the file system.
    pub pages_max: usize,
}

/// Work remaining after a pruning step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PruningPending {
    /// More rows to delete.
    pub rows: bool,
    /// There may be more free pages to release.
    pub pages: bool,
}

/// Cleanup still required before deleted bytes are gone from disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CleanupPending {
    /// More free pages to release.
    pub pages: bool,
    /// The WAL could not be emptied because a reader holds an older snapshot.
    pub log: bool,
}

/// Commits whose reply was lost, by their outcome.
///
/// Their callers were not answered until it was known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InDoubtCommits {
    /// Had been committed.
    pub written: u64,
    /// Had not been committed, and never will be.
    pub unwritten: u64,
    /// Outcome cannot be determined: the database no longer has the record that would show it.
    pub unknown: u64,
    /// Number of times the database turned out to have lost acknowledged commits.
    pub set_back: u64,
}

/// The next turns of an append to prewrite. Their change set is committed later.
#[derive(Clone, Debug)]
pub struct PrewritePart {
    pub generation: Generation,
    /// Seqs and contents. The contents must be the same allocations as in the change set.
    pub turns: Vec<(u64, Arc<[u8]>)>,
}

/// The journal.
///
/// Every method may block, and fails if the store cannot be read or written.
pub trait Store: Send + Sync + 'static {
    /// Writes all change sets in order, in one transaction.
    ///
    /// Each set is written whole or rejected. The results are in the order of the sets.
    ///
    /// # Errors
    /// If the transaction failed. Nothing of any set was written.
    fn commit(
        &self,
        clock: &ClockAnchor,
        sets: &[ChangeSet],
    ) -> Result<Vec<Result<(), StaleBase>>, StoreError>;

    /// Whether [`Self::commit_and_prewrite`] can prewrite turns.
    ///
    /// If not, sets are best committed whole.
    fn can_prewrite(&self) -> bool {
        false
    }

    /// Commits sets, and in the same transaction prewrites turns of a set that is committed later.
    ///
    /// This shortens the transaction of the later set. Prewritten turns are invisible until that
    /// set is committed. Returns the results of `sets` and the number of turns prewritten, which
    /// may be 0. The later set's commit writes whatever was not prewritten.
    ///
    /// Only one set at a time can be prewritten, starting with its first turn. A call with no turns
    /// announces that the rest of the set is still to come. The prewrite ends with the commit of
    /// its set, or with any commit that does not go through this method.
    ///
    /// # Errors
    /// As [`Self::commit`].
    fn commit_and_prewrite(
        &self,
        clock: &ClockAnchor,
        sets: &[ChangeSet],
        part: &PrewritePart,
    ) -> Result<(Vec<Result<(), StaleBase>>, usize), StoreError> {
        Ok((self.commit(clock, sets)?, part.turns.len()))
    }

    /// Returns the clock of the last commit. `None` before the first.
    fn clock(&self) -> Result<Option<ClockAnchor>, StoreError>;

    /// Visits every live generation, in no particular order.
    fn live_heads(&self, visit: &mut dyn FnMut(SessionKey, Head)) -> Result<(), StoreError>;

    /// Counts the live sessions of each tenant, in no particular order.
    fn live_counts(&self) -> Result<Vec<(TenantId, u64)>, StoreError> {
        live::counts(self)
    }

    /// Returns live sessions that match the query, in its order.
    fn live_page(&self, query: &LiveQuery) -> Result<Vec<(SessionKey, Head)>, StoreError> {
        live::page(self, query)
    }

    /// Returns a page of ended generations that match the query, in its order.
    ///
    /// Examines some thousand rows at most, so a page may be short and not be the last one.
    fn ended_page(&self, query: &EndedQuery) -> Result<EndedPage, StoreError> {
        tables::read(self, |tables| ended_list::page(tables, query, &[]))
    }

    /// Returns the states of those generations that have one.
    fn states(
        &self,
        generations: &[Generation],
    ) -> Result<BTreeMap<Generation, Arc<str>>, StoreError> {
        tables::read(self, |tables| ended_list::states(tables, generations))
    }

    /// Publishes this process's time on the monotonic timeline.
    ///
    /// Returns the time it must advance to, so that all processes that share the store have one
    /// timeline.
    fn sync_clock(&self, steady: Steady) -> Result<Steady, StoreError> {
        Ok(steady)
    }

    /// Publishes this process's subscriptions and events to the processes that share the store.
    ///
    /// Returns theirs. A no-op for a store with a single process.
    ///
    /// # Errors
    /// If the store cannot be written or read. The events may have been published nevertheless.
    fn exchange_events(&self, exchange: EventExchange) -> Result<ExchangedEvents, StoreError> {
        let _ = exchange;
        Ok(ExchangedEvents::default())
    }

    /// Returns the revision of the live version of each generation if this process has last loaded
    /// or written that version, and `None` otherwise.
    ///
    /// A store with a single process returns 0: memory is never older.
    fn current_revisions(
        &self,
        generations: &[Generation],
    ) -> Result<Vec<Option<u64>>, StoreError> {
        Ok(vec![Some(0); generations.len()])
    }

    /// Loads the live generation of a session. `None` if there is none.
    ///
    /// Idempotency keys last used before `keys_since` are ignored.
    fn load(
        &self,
        key: &SessionKey,
        keys_since: Steady,
    ) -> Result<Option<SavedSession>, StoreError>;

    /// Loads those of several sessions that are live. Calls `found` with the position of each.
    ///
    /// Can be cheaper than [`Self::load`] for each of them.
    ///
    /// # Errors
    /// If the sessions for which `found` was not called may be live.
    fn load_all(
        &self,
        wanted: &[SessionToLoad],
        keys_since: Steady,
        found: &mut dyn FnMut(usize, Result<SavedSession, StoreError>),
    ) -> Result<(), StoreError> {
        for (place, wanted) in wanted.iter().enumerate() {
            if let Some(loaded) = self.load(&wanted.key, keys_since).transpose() {
                found(place, loaded);
            }
        }
        Ok(())
    }

    /// Returns the idempotency keys of a session id, across all its generations.
    fn keys(&self, key: &SessionKey, since: Steady) -> Result<Keys, StoreError>;

    /// Returns at most `max` sessions after `after` that have idempotency keys, ordered by id.
    ///
    /// Keys of any age count.
    fn keyed_sessions(
        &self,
        after: Option<&SessionKey>,
        max: usize,
    ) -> Result<Vec<SessionKey>, StoreError>;

    /// Reads turns of a live or ended generation, or of the newest one if `generation` is `None`.
    ///
    /// Rewound turns are included only if the range asks for them. Returns `None` if the session
    /// has no such generation.
    fn journal(
        &self,
        key: &SessionKey,
        generation: Option<Generation>,
        range: JournalRange,
    ) -> Result<Option<JournalPage>, StoreError>;

    /// Returns the turns of a generation that the rewind with this idempotency key removed.
    fn rewound_by(
        &self,
        generation: Generation,
        key: &Fingerprint,
    ) -> Result<SeqRanges, StoreError>;

    /// Returns turns of all sessions numbered above `number`, for a follower of the journal.
    ///
    /// Stops at the maximum number of turns or bytes, but returns at least one turn if there is
    /// one. Rewound turns are omitted.
    fn written_after(
        &self,
        number: u64,
        turns_max: usize,
        bytes_max: usize,
    ) -> Result<WrittenTurns, StoreError>;

    /// Returns the turns with these numbers, in their order. Pruned and rewound turns are omitted.
    fn written_at(&self, numbers: &[u64]) -> Result<Vec<WrittenTurn>, StoreError>;

    /// Returns the owners of these generations, in their order. Pruned generations are omitted.
    fn owners(&self, generations: &[Generation]) -> Result<Vec<GenerationOwner>, StoreError>;

    /// Runs `body` over a snapshot of the tables.
    ///
    /// A store without tables implements every method that uses this one or
    /// [`Self::write_tables`].
    fn read_tables(&self, body: TableBody<'_>) -> Result<(), StoreError> {
        let _ = body;
        Err(tables::unsupported())
    }

    /// Runs `body` in a transaction, which is rolled back if it fails.
    fn write_tables(&self, body: TableBody<'_>) -> Result<(), StoreError> {
        let _ = body;
        Err(tables::unsupported())
    }

    /// Returns at most `max` deliveries after `after` that match the filter, ordered by id.
    fn deliveries(
        &self,
        filter: &DeliveryFilter,
        after: Option<&DeliveryId>,
        max: usize,
    ) -> Result<Vec<Delivery>, StoreError> {
        tables::read(self, |tables| {
            outbox::deliveries(tables, filter, after, max)
        })
    }

    /// Returns a delivery. `None` if it never existed or was dropped.
    fn delivery(&self, id: &DeliveryId) -> Result<Option<Delivery>, StoreError> {
        tables::read(self, |tables| outbox::delivery(tables, id))
    }

    /// Returns at most `max` pending deliveries of a hook that are due, round robin over tenants.
    ///
    /// Tenants are ordered by name, starting after `after`.
    fn due(
        &self,
        hook: &HookName,
        after: Option<&TenantId>,
        now: Steady,
        max: usize,
    ) -> Result<DueDeliveries, StoreError> {
        tables::read(self, |tables| outbox::due(tables, hook, after, now, max))
    }

    /// Counts the pending and the dead deliveries.
    fn open_deliveries(&self) -> Result<Vec<DeliveryCount>, StoreError> {
        tables::read(self, outbox::open_deliveries)
    }

    /// Writes delivery outcomes in one transaction.
    ///
    /// Deliveries dropped in the meantime stay dropped. Finished ones change only as
    /// [`DeliveryOutcome::changes`] allows.
    ///
    /// # Errors
    /// If the transaction failed. Nothing of it was written.
    fn record_outcomes(&self, outcomes: &[DeliveryOutcome]) -> Result<(), StoreError> {
        tables::write(self, |tables| outbox::record_outcomes(tables, outcomes))
    }

    /// Drops a delivery. Returns false if there was none.
    fn drop_delivery(&self, id: &DeliveryId) -> Result<bool, StoreError> {
        tables::write(self, |tables| outbox::drop_delivery(tables, id))
    }

    /// Loads ended generations in the order of `wanted`, with up to `bytes_max` bytes of turns.
    ///
    /// Returns at least the first. A generation that alone exceeds the limit is returned with its
    /// newest turns only. Generations that have not ended or were pruned are omitted.
    fn ended(
        &self,
        wanted: &[(SessionKey, Generation)],
        bytes_max: usize,
    ) -> Result<Vec<EndedRecord>, StoreError>;

    /// Checkpoints the log concurrently with commits, which would have to do it otherwise.
    ///
    /// A no-op for a store without a log.
    ///
    /// # Errors
    /// If the store cannot be written. Nothing is lost, and commits do the remaining work.
    fn checkpoint_log(&self) -> Result<(), StoreError> {
        Ok(())
    }

    /// Checks that no file of the store was deleted, moved or replaced.
    ///
    /// Always successful for a store without files. Commits check it, too.
    ///
    /// # Errors
    /// [`StoreError::Displaced`].
    fn check_in_place(&self) -> Result<(), StoreError> {
        Ok(())
    }

    /// Returns the total bytes of turns per tenant, in no particular order. Reads every turn.
    fn turn_bytes(&self) -> Result<Vec<(TenantId, u64)>, StoreError>;

    /// Deletes old rows within `bounds`, and returns the work that remains.
    ///
    /// Rows that a pending or dead delivery needs are kept.
    ///
    /// # Errors
    /// If the store cannot be written. Completed deletions are permanent.
    fn prune(
        &self,
        before: PruneBefore,
        bounds: PruneBounds,
    ) -> Result<PruningPending, StoreError> {
        let pruned = tables::write(self, |tables| retention::prune(tables, before, bounds))?;
        Ok(PruningPending {
            rows: pruned.has_more,
            pages: false,
        })
    }

    /// Saves an erasure job or its progress.
    ///
    /// Row counts are not taken from `erasure`: [`Self::erase_rows`] maintains them.
    fn save_erasure(&self, erasure: &Erasure) -> Result<(), StoreError> {
        tables::write(self, |tables| erase::save(tables, erasure))
    }

    /// Returns an erasure. `None` if it never existed or is too old.
    fn erasure(&self, id: ErasureId) -> Result<Option<Erasure>, StoreError> {
        tables::read(self, |tables| erase::erasure(tables, id))
    }

    /// Returns at most `max` unfinished erasures, oldest first.
    fn open_erasures(&self, max: usize) -> Result<Vec<Erasure>, StoreError> {
        tables::read(self, |tables| erase::open_erasures(tables, max))
    }

    /// Finds and records about `rows_max` generations that an erasure covers.
    ///
    /// All generations of one session are recorded at once. Returns true once there are no more.
    fn collect_erased(&self, id: ErasureId, rows_max: usize) -> Result<bool, StoreError> {
        tables::write(self, |tables| erase::collect(tables, id, rows_max))
    }

    /// Returns the scope of an erasure, as far as it was collected.
    fn erasure_scope(&self, id: ErasureId) -> Result<ErasureScope, StoreError> {
        tables::read(self, |tables| erase::scope(tables, id))
    }

    /// Deletes about `rows_max` rows that an erasure covers, pending deliveries first.
    ///
    /// The counts of the erasure are updated in the same transaction. From then on no hook receives
    /// a generation whose rows are gone.
    ///
    /// # Errors
    /// If the store cannot be written. Completed deletions are permanent.
    fn erase_rows(&self, id: ErasureId, rows_max: usize) -> Result<ErasedRows, StoreError> {
        tables::write(self, |tables| erase::rows(tables, id, rows_max))
    }

    /// Removes the names of sessions and subjects from an erasure, about `rows_max` rows at once.
    ///
    /// Returns true once none is left.
    fn forget_erasure_names(&self, id: ErasureId, rows_max: usize) -> Result<bool, StoreError> {
        tables::write(self, |tables| erase::forget_names(tables, id, rows_max))
    }

    /// Releases at most `pages_max` free pages, and empties the log once there are none.
    ///
    /// After that, no file contains deleted bytes.
    fn clean_pages(&self, pages_max: usize) -> Result<CleanupPending, StoreError>;

    /// Returns the search index. `None` if the store has none.
    fn search_index(&self) -> Option<&dyn SearchIndex> {
        None
    }

    /// Number of turns read without a checksum, or with a wrong one.
    fn turn_counts(&self) -> TurnCounts {
        TurnCounts::default()
    }

    /// Commits whose reply was lost since the store was opened, by their outcome.
    fn in_doubt_commits(&self) -> InDoubtCommits {
        InDoubtCommits::default()
    }

    /// Verifies the checksums of all turns that exist when it starts. Changes nothing.
    ///
    /// Returns `None` for a store in a file, which [`verify::check_journal`] checks. Takes minutes,
    /// during which others may write.
    ///
    /// # Errors
    /// If the turns cannot be read for a reason other than damage.
    fn check_turns(&self) -> Result<Option<verify::FileCheck>, StoreError> {
        Ok(None)
    }
}

/// Approximate maximum bytes of turns removed by one pruning or erasure step.
///
/// In a file, these bytes are overwritten and their pages written to the log once more, and commits
/// wait until that is done. In a database, replicas apply a step at a time.
pub const REMOVED_BYTES_PER_STEP: usize = 4 << 20;

/// Maximum number of concurrent reads.
///
/// More would wait for each other, and each needs a connection with its own cache.
pub const READERS_MAX: usize = 8;

/// Maximum number of idempotency keys loaded for one session, newest first.
pub const KEYS_MAX: usize = 1_024;
