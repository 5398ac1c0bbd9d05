//! Bytes at rest: the journal of all turns, which is the truth after a crash.
//!
//! Everything here is synchronous; the engine decides where it runs. [`SqliteStore`]
//! and [`MemoryStore`] pass one conformance suite.

pub mod encoding;
mod error;
mod lock;
mod memory;
mod sqlite;
pub mod sqlite_file;
mod summaries;
mod windows;

use std::sync::Arc;

use memoird_core::change::{ChangeSet, EndReason};
use memoird_core::compaction::Summary;
use memoird_core::idempotency::Keys;
use memoird_core::ids::{DeliveryId, Generation, HookName, SessionKey, Subject, TenantId};
use memoird_core::outbox::{Delivery, DeliveryState};
use memoird_core::session::{Head, SavedSession};
use memoird_core::state::State;
use memoird_core::time::{Now, Steady, Timestamp};

pub use error::StoreError;
pub use lock::{DirLock, private};
pub use memory::MemoryStore;
pub use sqlite::{SqliteOptions, SqliteStore};

/// A change set that was built on something that is not so, and was not written.
/// Whoever built it must look at the store again.
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
    /// True when the generation has turns after the last of these.
    pub more: bool,
}

/// How much of a journal to read.
#[derive(Clone, Copy, Debug)]
pub struct JournalRange {
    /// Only turns after this one.
    pub after_seq: u64,
    /// At most so many turns.
    pub turns_max: usize,
    /// No further turn once so many bytes were read.
    pub bytes_max: usize,
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
    /// Those that are due longest first.
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
    /// Its newest turns, ascending: all of them unless they are too large.
    pub turns: Vec<(u64, Arc<[u8]>)>,
    /// Its JSON, where it had one.
    pub state: Option<State>,
    /// What stood for its oldest exchanges, where something did.
    pub summary: Option<Arc<Summary>>,
}

/// What is old enough to be forgotten.
#[derive(Clone, Copy, Debug)]
pub struct PruneBefore {
    /// Generations that ended before this moment.
    pub ended: Steady,
    /// Idempotency keys that were used before this moment.
    pub keys: Steady,
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

    /// Turns of a generation of this session, ended or not; without a generation, of
    /// the newest. `None` when the session has no such generation.
    ///
    /// # Errors
    /// When the store cannot be read.
    fn journal(
        &self,
        key: &SessionKey,
        generation: Option<Generation>,
        range: JournalRange,
    ) -> Result<Option<JournalPage>, StoreError>;

    /// The deliveries after this one that pass the filter, ordered by id, at most so many.
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

    /// The pending deliveries of a hook that are due, at most so many.
    ///
    /// # Errors
    /// When the store cannot be read.
    fn due(&self, hook: &HookName, now: Steady, max: usize) -> Result<DueDeliveries, StoreError>;

    /// How many deliveries are pending or dead.
    ///
    /// # Errors
    /// When the store cannot be read.
    fn open_deliveries(&self) -> Result<Vec<DeliveryCount>, StoreError>;

    /// Writes what became of deliveries, in one transaction; those that were dropped
    /// meanwhile stay so.
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

    /// Bytes of the turns that it has, by tenant, in no order. Looks at every turn.
    ///
    /// # Errors
    /// When the store cannot be read.
    fn turn_bytes(&self) -> Result<Vec<(TenantId, u64)>, StoreError>;

    /// Forgets what is old enough, at most about `rows_max` rows; not what a delivery
    /// that is pending or dead still needs. True when there is more to forget.
    ///
    /// # Errors
    /// When the store cannot be written; what was forgotten stays so.
    fn prune(&self, before: PruneBefore, rows_max: usize) -> Result<bool, StoreError>;
}

/// The newest idempotency keys that are read back for one session.
const KEYS_MAX: usize = 1_024;
