//! Bytes at rest: the journal of all turns, which is the truth after a crash.
//!
//! Everything here is synchronous; the engine decides where it runs. [`SqliteStore`]
//! and [`MemoryStore`] pass one conformance suite.

pub mod encoding;
mod error;
mod lock;
mod memory;
mod sqlite;

use std::sync::Arc;

use memoird_core::change::ChangeSet;
use memoird_core::idempotency::Keys;
use memoird_core::ids::{Generation, SessionKey};
use memoird_core::session::{Head, SavedSession};
use memoird_core::time::{Steady, Timestamp};

pub use error::StoreError;
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

    /// Forgets what is old enough, at most about `rows_max` rows. True when there is
    /// more to forget.
    ///
    /// # Errors
    /// When the store cannot be written; what was forgotten stays so.
    fn prune(&self, before: PruneBefore, rows_max: usize) -> Result<bool, StoreError>;
}

/// The newest idempotency keys that are read back for one session.
const KEYS_MAX: usize = 1_024;
