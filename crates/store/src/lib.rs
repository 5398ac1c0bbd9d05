//! Bytes at rest: the journal of all turns, which is the truth after a crash.
//!
//! Everything here is synchronous; the engine decides where it runs. [`SqliteStore`], [`MemoryStore`]
//! and the store of `memoird-postgres` pass one conformance suite.

pub mod checksum;
pub mod conversion;
pub mod data_key;
pub mod encoding;
mod erasure;
mod error;
mod exchange;
mod live;
mod lock;
mod memory;
pub mod options;
pub mod snapshot;
mod sqlite;
pub mod sqlite_file;
pub mod sqlite_gaps;
pub mod summaries;
pub mod transfer;
pub mod verify;
pub mod windows;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use memoird_core::change::{ChangeSet, EndReason};
use memoird_core::compaction::Summary;
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
pub use erasure::{EraseTarget, ErasedCounts, ErasedRows, Erasure, ErasureScope, ErasureStage};
pub use error::StoreError;
pub use exchange::{EventExchange, ExchangedEvents, PostedEvent, Watched};
pub use live::{LiveOrder, LiveQuery};
pub use lock::{DirLock, private};
pub use memory::MemoryStore;
pub use sqlite::{SqliteOptions, SqliteStore, SqliteTransfer};

/// Locks also what a panic left locked: nothing is kept here that a panic could leave half
/// changed, and a transaction was rolled back when it was dropped.
pub fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A change set that was built on something that is not so, and was not written.
/// The caller must read the store again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The generation whose change did not fit.
    pub generation: Generation,
}

/// Ties memoird's steady time line to the clocks of the machine, so that the line
/// goes on across a restart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClockAnchor {
    /// The moment on the steady line.
    pub steady: Steady,
    /// The same moment on the wall clock.
    pub wall: Timestamp,
    /// Names the boot of the machine; empty where the system has no name for it.
    pub boot_id: String,
    /// The same moment in milliseconds since that boot.
    pub boot_ms: u64,
}

/// Turns of one generation from the journal.
#[derive(Clone, Debug, Default)]
pub struct JournalPage {
    /// Which generation's; of every page that a store gives it is there.
    pub generation: Option<Generation>,
    /// Whose memories the generation's facts become, where it knows.
    pub subject: Option<Subject>,
    /// Seq and encoded content, ascending.
    pub turns: Vec<(u64, Arc<[u8]>)>,
    /// The seqs of those that were rewound, ascending.
    pub rewound: Vec<u64>,
    /// True when the generation has turns after the last of these.
    pub more: bool,
}

/// How much of a journal to read.
#[derive(Clone, Copy, Debug)]
pub struct JournalRange {
    /// Only turns after this one.
    pub after_seq: u64,
    /// Only turns before this one.
    pub before_seq: u64,
    /// True: the last turns of those, not the first.
    pub last: bool,
    /// True: also turns that were rewound.
    pub with_rewound: bool,
    /// The most turns to read.
    pub turns_max: usize,
    /// No further turn is read once this many bytes were.
    pub bytes_max: usize,
}

impl JournalRange {
    /// All that a journal has.
    pub const ALL: Self = Self {
        after_seq: 0,
        before_seq: u64::MAX,
        last: false,
        with_rewound: false,
        turns_max: usize::MAX,
        bytes_max: usize::MAX,
    };
}

/// A turn, with its number in the order in which the journal took it.
#[derive(Clone, Debug)]
pub struct WrittenTurn {
    /// Counts the turns of all sessions, from 1. No number is given twice, also not after its
    /// turn was forgotten.
    pub number: u64,
    /// Whose turn it is.
    pub generation: Generation,
    /// Its place in the generation.
    pub seq: u64,
    /// Encoded.
    pub content: Arc<[u8]>,
}

/// Turns of all sessions, in the order in which the journal took them.
#[derive(Clone, Debug, Default)]
pub struct WrittenTurns {
    /// The turns, by ascending numbers.
    pub turns: Vec<WrittenTurn>,
    /// The highest number that was given so far; 0 before the first turn.
    pub last_number: u64,
    /// The last change of a turn's content so far, as [`TurnChange`] counts them; 0: none that is
    /// not forgotten.
    pub last_change: u64,
}

/// A turn whose content was replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TurnChange {
    /// Counts such changes, from 1.
    pub change: u64,
    /// Whose turn it is.
    pub generation: Generation,
    /// Its number in the order in which the journal took the turns.
    pub number: u64,
}

/// Whose a generation is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GenerationOwner {
    /// Which one.
    pub generation: Generation,
    /// The session that it is a life of.
    pub key: SessionKey,
    /// Whose memories its facts become, where it knows.
    pub subject: Option<Subject>,
}

/// Which deliveries to look at.
#[derive(Clone, Debug, Default)]
pub struct DeliveryFilter {
    /// Only of this tenant.
    pub tenant: Option<TenantId>,
    /// Only of this hook.
    pub hook: Option<HookName>,
    /// Only in this state.
    pub state: Option<DeliveryState>,
}

/// The deliveries of one hook that are due.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DueDeliveries {
    /// Tenants in turn, of each those that are due longest first.
    pub due: Vec<Delivery>,
    /// When the next one is due that is not yet.
    pub next: Option<Steady>,
}

/// What became of a delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeliveryOutcome {
    /// Which one.
    pub id: DeliveryId,
    /// How far it is now.
    pub state: DeliveryState,
    /// Tries so far.
    pub tries: u32,
    /// Why the last one failed.
    pub last_error: String,
    /// When the next one is due, or when it was done or given up.
    pub due: Steady,
}

impl DeliveryOutcome {
    /// False where a delivery in this state is settled, and this came of a try that was under way
    /// then, as at a daemon that led before: it may not be owed again for it. That a hook has got it
    /// counts whenever it is told, and so does an operator's wish to have it tried anew, with no tries
    /// behind it.
    pub fn changes(&self, state: DeliveryState) -> bool {
        state == DeliveryState::Pending || self.state == DeliveryState::Done || self.tries == 0
    }
}

/// How many deliveries of one hook for one tenant are in one state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeliveryCount {
    /// The tenant.
    pub tenant: TenantId,
    /// The hook.
    pub hook: HookName,
    /// Pending or dead.
    pub state: DeliveryState,
    /// So many.
    pub count: u64,
}

/// A generation that ended, whole.
#[derive(Clone, Debug)]
pub struct EndedRecord {
    /// Whose it was.
    pub key: SessionKey,
    /// All but its turns, as it was at its end.
    pub head: Head,
    /// When it ended.
    pub at: Now,
    /// Why.
    pub reason: EndReason,
    /// Its newest turns, ascending: all of them unless they are too large, without those that were
    /// rewound.
    pub turns: Vec<(u64, Arc<[u8]>)>,
    /// How many were rewound.
    pub rewound_turns: u64,
    /// Its JSON, where it had one.
    pub state: Option<State>,
    /// What stood for its oldest exchanges, where something did.
    pub summary: Option<Arc<Summary>>,
}

/// From which age on rows are deleted.
#[derive(Clone, Copy, Debug)]
pub struct PruneBefore {
    /// Generations that ended before this moment.
    pub ended: Steady,
    /// Idempotency keys that were used before this moment.
    pub keys: Steady,
}

/// How much of one pruning is done at once.
#[derive(Clone, Copy, Debug)]
pub struct PruneBounds {
    /// About so many rows are forgotten.
    pub rows_max: usize,
    /// At most so many pages (4 KiB) are given back to the disk.
    pub pages_max: usize,
}

/// What a pruning left to be done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unpruned {
    /// There is more to forget.
    pub rows: bool,
    /// There may be more space to give back to the disk.
    pub pages: bool,
}

/// What of the disk's pages may still hold what was removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unclean {
    /// There are more free pages.
    pub pages: bool,
    /// The log could not be emptied: somebody reads an older moment.
    pub log: bool,
}

/// Commits whose answer did not come, by what was found out about them. Nobody was answered before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommitDoubts {
    /// They had been written.
    pub written: u64,
    /// They had not been, and never will be.
    pub unwritten: u64,
    /// Nobody can know: the database no longer has what it would be told by.
    pub unknown: u64,
    /// How often the database had lost commits that it had acknowledged before.
    pub set_back: u64,
}

/// Turns of a change set that is committed later: the next ones of its append.
#[derive(Clone, Debug)]
pub struct TurnsAhead {
    /// Whose they are.
    pub generation: Generation,
    /// Seqs and contents. Those of the set must be the same ones in memory.
    pub turns: Vec<(u64, Arc<[u8]>)>,
}

/// The journal. Every method may block.
pub trait Store: Send + Sync + 'static {
    /// Writes all sets in one transaction, each whole or not at all, in their order.
    /// The answers are in the order of the sets.
    ///
    /// # Errors
    /// When the transaction failed: then nothing of any set was written.
    fn commit(
        &self,
        clock: &ClockAnchor,
        sets: &[ChangeSet],
    ) -> Result<Vec<Result<(), Refused>>, StoreError>;

    /// True where [`Self::commit_beside`] writes turns ahead of their set. Elsewhere a set is best
    /// committed whole.
    fn writes_ahead(&self) -> bool {
        false
    }

    /// Commits sets, and in the same transaction writes turns of a set that is committed later,
    /// so that its own transaction has less to write. Nobody sees them before that. One set at a
    /// time can be written ahead, from its first turn on, and no turns only say that it is still
    /// to come; the commit that has it, or any other
    /// one that is not beside it, ends that. Gives the answers, and how many turns were written,
    /// which may be none. Whatever of a set is not written ahead is written with it.
    ///
    /// # Errors
    /// As [`Self::commit`].
    fn commit_beside(
        &self,
        clock: &ClockAnchor,
        sets: &[ChangeSet],
        ahead: &TurnsAhead,
    ) -> Result<(Vec<Result<(), Refused>>, usize), StoreError> {
        Ok((self.commit(clock, sets)?, ahead.turns.len()))
    }

    /// The clock of the last commit; `None` before the first.
    ///
    /// # Errors
    /// When the store cannot be read.
    fn clock(&self) -> Result<Option<ClockAnchor>, StoreError>;

    /// Shows every live generation, in no order.
    ///
    /// # Errors
    /// When the store cannot be read.
    fn live_heads(&self, visit: &mut dyn FnMut(SessionKey, Head)) -> Result<(), StoreError>;

    /// How many sessions of each tenant live, in no order.
    ///
    /// # Errors
    /// When the store cannot be read.
    fn live_counts(&self) -> Result<Vec<(TenantId, u64)>, StoreError> {
        live::counts(self)
    }

    /// Live sessions in an order.
    ///
    /// # Errors
    /// When the store cannot be read.
    fn live_page(&self, query: &LiveQuery) -> Result<Vec<(SessionKey, Head)>, StoreError> {
        live::page(self, query)
    }

    /// Says where the time line of this process is; gives where it has to be for those that share
    /// the store to have one.
    ///
    /// # Errors
    /// When the store cannot be written or read.
    fn sync_clock(&self, steady: Steady) -> Result<Steady, StoreError> {
        Ok(steady)
    }

    /// Tells the processes that share the store what is watched and what happened in this one, and
    /// gives what they told. Of a store that only one process has it does nothing.
    ///
    /// # Errors
    /// When the store cannot be written or read. What was posted may have been told then.
    fn exchange_events(&self, exchange: EventExchange) -> Result<ExchangedEvents, StoreError> {
        let _ = exchange;
        Ok(ExchangedEvents::default())
    }

    /// For each of these generations: whether it lives in the version that this process last
    /// loaded or wrote. Always true of a store that only one process has.
    ///
    /// # Errors
    /// When the store cannot be read.
    fn are_current(&self, generations: &[Generation]) -> Result<Vec<bool>, StoreError> {
        Ok(vec![true; generations.len()])
    }

    /// The live generation of a session, whole; `None` when it has none.
    /// `keys_since` is the age up to which idempotency keys still count.
    ///
    /// # Errors
    /// When the store cannot be read.
    fn load(
        &self,
        key: &SessionKey,
        keys_since: Steady,
    ) -> Result<Option<SavedSession>, StoreError>;

    /// The idempotency keys of a session id, of all its generations.
    ///
    /// # Errors
    /// When the store cannot be read.
    fn keys(&self, key: &SessionKey, since: Steady) -> Result<Keys, StoreError>;

    /// The sessions that have idempotency keys of any age and that stand after this one, in
    /// the order of their ids, at most so many.
    ///
    /// # Errors
    /// When the store cannot be read.
    fn keyed_sessions(
        &self,
        after: Option<&SessionKey>,
        max: usize,
    ) -> Result<Vec<SessionKey>, StoreError>;

    /// Turns of a generation of this session, ended or not; without a generation, of
    /// the newest. Those that were rewound only where the range asks for them. `None` when the
    /// session has no such generation.
    ///
    /// # Errors
    /// When the store cannot be read.
    fn journal(
        &self,
        key: &SessionKey,
        generation: Option<Generation>,
        range: JournalRange,
    ) -> Result<Option<JournalPage>, StoreError>;

    /// Which turns of a generation the rewind of this idempotency key took.
    ///
    /// # Errors
    /// When the store cannot be read.
    fn rewound_by(
        &self,
        generation: Generation,
        key: &Fingerprint,
    ) -> Result<SeqRanges, StoreError>;

    /// Turns of all sessions with numbers above `number`, until so many turns or so many bytes
    /// were read; at least one, where there is one; none that was rewound. For whoever follows
    /// the journal.
    ///
    /// # Errors
    /// When the store cannot be read.
    fn written_after(
        &self,
        number: u64,
        turns_max: usize,
        bytes_max: usize,
    ) -> Result<WrittenTurns, StoreError>;

    /// The turns whose content was replaced after this change, in the order of it, at most so
    /// many.
    ///
    /// # Errors
    /// When the store cannot be read.
    fn changed_after(&self, change: u64, max: usize) -> Result<Vec<TurnChange>, StoreError>;

    /// The turns with these numbers, in their order. One that is forgotten, or was rewound, is left
    /// out.
    ///
    /// # Errors
    /// When the store cannot be read.
    fn written_at(&self, numbers: &[u64]) -> Result<Vec<WrittenTurn>, StoreError>;

    /// Whose these generations are, in their order. One that is forgotten is left out.
    ///
    /// # Errors
    /// When the store cannot be read.
    fn owners(&self, generations: &[Generation]) -> Result<Vec<GenerationOwner>, StoreError>;

    /// At most `max` deliveries after this one that pass the filter, ordered by id.
    ///
    /// # Errors
    /// When the store cannot be read.
    fn deliveries(
        &self,
        filter: &DeliveryFilter,
        after: Option<&DeliveryId>,
        max: usize,
    ) -> Result<Vec<Delivery>, StoreError>;

    /// One delivery; `None` when it is not owed, or was dropped.
    ///
    /// # Errors
    /// When the store cannot be read.
    fn delivery(&self, id: &DeliveryId) -> Result<Option<Delivery>, StoreError>;

    /// At most `max` pending deliveries of a hook that are due: one of each tenant, then the next
    /// of each, and so on. Tenants come by name, those behind `after` first.
    ///
    /// # Errors
    /// When the store cannot be read.
    fn due(
        &self,
        hook: &HookName,
        after: Option<&TenantId>,
        now: Steady,
        max: usize,
    ) -> Result<DueDeliveries, StoreError>;

    /// How many deliveries are pending or dead.
    ///
    /// # Errors
    /// When the store cannot be read.
    fn open_deliveries(&self) -> Result<Vec<DeliveryCount>, StoreError>;

    /// Writes what became of deliveries, in one transaction. Those that were dropped meanwhile stay
    /// so, and what is settled changes only as [`DeliveryOutcome::changes`] says.
    ///
    /// # Errors
    /// When the transaction failed: then nothing of it was written.
    fn record_outcomes(&self, outcomes: &[DeliveryOutcome]) -> Result<(), StoreError>;

    /// Forgets that a delivery is owed. False when it was not.
    ///
    /// # Errors
    /// When the store cannot be written.
    fn drop_delivery(&self, id: &DeliveryId) -> Result<bool, StoreError>;

    /// Generations that ended, whole, in the order of `wanted`, until `bytes_max` bytes of
    /// turns were read; at least the first. One larger than that by itself gives its
    /// newest turns. A generation that did not end, or is forgotten, is left out.
    ///
    /// # Errors
    /// When the store cannot be read.
    fn ended(
        &self,
        wanted: &[(SessionKey, Generation)],
        bytes_max: usize,
    ) -> Result<Vec<EndedRecord>, StoreError>;

    /// Moves what was committed so far from a log to its place, beside the commits that go on: they
    /// would have to do it otherwise. A store without a log does nothing.
    ///
    /// # Errors
    /// When the store cannot be written. Nothing is lost, and commits do what is left.
    fn settle_log(&self) -> Result<(), StoreError> {
        Ok(())
    }

    /// Bytes of the turns that it has, by tenant, in no order. Looks at every turn.
    ///
    /// # Errors
    /// When the store cannot be read.
    fn turn_bytes(&self) -> Result<Vec<(TenantId, u64)>, StoreError>;

    /// Forgets what is old enough, within `bounds`; not what a delivery that is pending or
    /// dead still needs. Gives what is left to be done.
    ///
    /// # Errors
    /// When the store cannot be written; what was forgotten stays so.
    fn prune(&self, before: PruneBefore, bounds: PruneBounds) -> Result<Unpruned, StoreError>;

    /// Writes an erasure down, or how far it is. Its counts of rows are the store's own: see
    /// [`Self::erase_rows`].
    ///
    /// # Errors
    /// When the store cannot be written.
    fn save_erasure(&self, erasure: &Erasure) -> Result<(), StoreError>;

    /// An erasure; `None` when there was none of this name, or very long ago.
    ///
    /// # Errors
    /// When the store cannot be read.
    fn erasure(&self, id: ErasureId) -> Result<Option<Erasure>, StoreError>;

    /// The erasures that are not done, oldest first, at most so many.
    ///
    /// # Errors
    /// When the store cannot be read.
    fn open_erasures(&self, max: usize) -> Result<Vec<Erasure>, StoreError>;

    /// Finds generations that an erasure covers, and notes them, about `rows_max` at once. A
    /// session's are noted all at once. True when there are no more.
    ///
    /// # Errors
    /// When the store cannot be read or written.
    fn collect_erased(&self, id: ErasureId, rows_max: usize) -> Result<bool, StoreError>;

    /// What an erasure covers, as far as it was collected.
    ///
    /// # Errors
    /// When the store cannot be read.
    fn erasure_scope(&self, id: ErasureId) -> Result<ErasureScope, StoreError>;

    /// Removes about `rows_max` rows of what an erasure covers, owed deliveries first, and adds
    /// them to its counts in the same transaction. From then on no hook is given a generation
    /// whose rows are gone.
    ///
    /// # Errors
    /// When the store cannot be written; what was removed stays so.
    fn erase_rows(&self, id: ErasureId, rows_max: usize) -> Result<ErasedRows, StoreError>;

    /// Removes the names of sessions and subjects from an erasure, about `rows_max` rows at
    /// once. True when none is left.
    ///
    /// # Errors
    /// When the store cannot be written.
    fn forget_erasure_names(&self, id: ErasureId, rows_max: usize) -> Result<bool, StoreError>;

    /// Gives back at most `pages_max` free pages, and once there are none empties the log: what
    /// was removed is then nowhere in the files.
    ///
    /// # Errors
    /// When the store cannot be written.
    fn clean_pages(&self, pages_max: usize) -> Result<Unclean, StoreError>;

    /// How many turns that were read had no checksum, or did not fit it.
    fn turn_counts(&self) -> TurnCounts {
        TurnCounts::default()
    }

    /// Commits whose answer did not come, by what became of them, since the store was opened.
    fn commit_doubts(&self) -> CommitDoubts {
        CommitDoubts::default()
    }

    /// Checks all turns that are there when it begins by their checksums, and changes nothing;
    /// `None` where they are in a file, which [`verify::check_journal`] reads. Takes minutes; others
    /// may write meanwhile.
    ///
    /// # Errors
    /// When the turns cannot be read for another reason than that they are damaged.
    fn check_turns(&self) -> Result<Option<verify::FileCheck>, StoreError> {
        Ok(None)
    }
}

/// Bytes of turns that one step of a pruning or an erasure removes. In a file they are overwritten,
/// and its log has their pages once more: commits wait no longer than that takes. Of a database the
/// replicas follow step by step.
pub const FORGOTTEN_BYTES_MAX: usize = 4 << 20;

/// Reads at once that a store is made for: more of them wait for each other in vain, and each
/// costs a connection with a cache of its own.
pub const READERS_MAX: usize = 8;

/// The newest idempotency keys that are read back for one session.
pub const KEYS_MAX: usize = 1_024;
