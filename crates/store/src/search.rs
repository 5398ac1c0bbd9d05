//! The search index of a journal: types, and the port that a store with an index implements.

mod candidates;
mod prepare;
mod turn_text;

use memoird_core::ids::{SessionId, Subject, TenantId};
use memoird_core::time::Timestamp;
use memoird_core::turn::Role;
use memoird_core::words::ranking::{Query, Statistics};

pub(crate) use prepare::MARK;
pub use prepare::{CALL_TURNS, IndexEntry, index_entries, role_word, tool_word};
pub use turn_text::SearchedTurn;

use crate::StoreError;

/// Full-text index of the turns of all tenants.
///
/// It is derived from the journal and may lag. In doubt, it is removed and built again.
pub trait SearchIndex: Send + Sync {
    /// Indexes changed turns again, removes deleted ones, and indexes the next new turns.
    ///
    /// Creates the index if it is missing, damaged, of another version or of another journal.
    fn index_step(&self, bounds: IndexBounds) -> Result<IndexStep, StoreError>;

    /// Runs one step of removing the words of changed and deleted turns from the file.
    fn purge_step(&self) -> Result<PurgeStep, StoreError>;

    /// Overwrites and removes the index, if there is one.
    fn remove_index(&self) -> Result<(), StoreError>;

    /// Whether the index has the current version of a tenant's turns up to this journal number.
    fn has_indexed(&self, tenant: &TenantId, number: u64) -> Result<bool, StoreError>;

    /// Looks up at most `max` candidates. `None` while the index has not been opened.
    fn find(
        &self,
        filter: &SearchFilter,
        query: &str,
        max: usize,
    ) -> Result<Option<SearchMatches>, StoreError>;
}

/// Limits of one indexing step.
#[derive(Clone, Copy, Debug)]
pub struct IndexBounds {
    /// Maximum number of new turns.
    pub turns_max: usize,
    /// Bytes of new turns after which no further turn is read.
    pub bytes_max: usize,
    /// Maximum number of changed and deleted turns.
    pub stale_max: usize,
}

/// Result of one indexing step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IndexStep {
    /// Whether the index was created.
    pub is_new: bool,
    pub indexed: u64,
    /// Turns indexed again with their new content.
    pub replaced: u64,
    /// Turns removed because the journal deleted them.
    pub removed: u64,
    /// Journal turns that are not indexed yet.
    pub behind: u64,
    pub has_more: bool,
    /// Whether pages may contain words of changed or deleted turns.
    pub is_unclean: bool,
    /// Size in bytes of the file and its log.
    pub file_bytes: u64,
}

/// Result of one step of removing words from the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PurgeStep {
    /// No page contains words of turns that changed or were deleted before.
    Done,
    More,
    /// A reader holds an older snapshot.
    Blocked,
}

/// Which turns may be found.
#[derive(Clone, Debug)]
pub struct SearchFilter {
    pub tenant: TenantId,
    pub session: Option<SessionId>,
    pub subject: Option<Subject>,
    pub after: Option<Timestamp>,
    pub before: Option<Timestamp>,
    pub roles: Vec<Role>,
    pub tool: Option<String>,
    /// Only turns up to this number within the tenant. `None` for all.
    pub turns: Option<u64>,
}

impl SearchFilter {
    /// Returns the first and the last millisecond that the filter allows.
    ///
    /// The exact check is repeated when the turn is read.
    pub fn times(&self) -> (i64, i64) {
        let after = self.after.map_or(i64::MIN, Timestamp::as_ms);
        (after, self.before.map_or(i64::MAX, Timestamp::as_ms))
    }
}

/// A turn that may be a hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SearchCandidate {
    /// Number within the tenant.
    pub turn: u64,
    /// Number in the journal.
    pub number: u64,
}

/// Result of a lookup.
#[derive(Clone, Debug)]
pub struct SearchMatches {
    /// The query, parsed for the languages of the tenant's turns.
    pub query: Query,
    /// Best candidates by index data, best and newest first.
    pub candidates: Vec<SearchCandidate>,
    /// Weights of the words.
    pub statistics: Statistics,
    /// Number of turns the tenant has had.
    pub turns: u64,
    /// Without words: number of the last turn considered, if older ones may match too.
    pub more_before: Option<u64>,
}
