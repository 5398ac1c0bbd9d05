//! The word index of a database.

use memoird_core::words::{self, Languages, add_index_words};

use crate::MemoryError;
use crate::rules::wording;

/// Version of the indexed words and of [`content_hash`](super::row::content_hash).
///
/// Memories indexed with another version are reindexed.
pub(super) const VERSION: i64 = words::VERSION * 100 + wording::VERSION;

/// Maximum memories per lookup of a term in a partition: the newest.
///
/// A term that occurs in more hardly distinguishes memories.
pub(super) const MATCHES_MAX: usize = 8_192;

/// The indexed form of a text.
#[derive(Clone, Debug)]
pub(super) struct IndexWords {
    /// Separated by spaces.
    pub(super) words: String,
    pub(super) language: Languages,
}

impl IndexWords {
    pub(super) fn new(text: &str) -> Self {
        let mut words = String::with_capacity(text.len() + 16);
        let language = add_index_words(text, &mut words);
        Self { words, language }
    }
}

/// A term to look up in a partition, in any of its forms.
#[derive(Clone, Copy, Debug)]
pub(super) struct TermLookup<'a> {
    pub(super) forms: &'a [String],
    pub(super) partition: i64,
}

/// Result of looking up a term.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TermCount {
    pub(super) found: usize,
    /// Number of the oldest memory that was found.
    pub(super) last: i64,
}

impl TermCount {
    /// Estimates how many memories of the partition contain the term, assuming an even spread.
    pub(super) fn estimate(self, first: i64, numbers: u64) -> u64 {
        let found = self.found as u64;
        if self.found < MATCHES_MAX {
            return found;
        }
        let seen = numbers
            .saturating_sub((self.last - first).unsigned_abs())
            .max(1);
        (found.saturating_mul(numbers) / seen).min(numbers)
    }
}

/// Finds memories by their words.
pub(super) trait WordIndex {
    /// Indexes the words of a memory that is missing in the index. A new number was never indexed.
    fn add_words(&self, no: i64, words: &IndexWords, is_new: bool) -> Result<(), MemoryError>;

    fn remove_words(&self, no: i64, words: &IndexWords) -> Result<(), MemoryError>;

    /// Looks up terms, each in its partition, newest memories first.
    ///
    /// Calls `note` with the index of a term and the memories that contain it.
    fn look_up_terms(
        &self,
        sought: &[TermLookup<'_>],
        note: &mut dyn FnMut(usize, &[i64]),
    ) -> Result<Vec<TermCount>, MemoryError>;

    /// Number of segments of the index. 0 for an index without segments.
    fn word_segments(&self) -> Result<u64, MemoryError> {
        Ok(0)
    }

    /// Merges segments, and writes at most about `pages` pages of 512 bytes.
    ///
    /// Returns `false` if there is nothing left to merge.
    fn merge_words(&self, _pages: usize) -> Result<bool, MemoryError> {
        Ok(false)
    }
}
