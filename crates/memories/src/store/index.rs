//! The word index. Changes are collected during a transaction and written at its end.

use std::collections::BTreeMap;

use memoird_core::ids::Subject;
use memoird_core::words::{self, Languages, add_index_words};
use rusqlite::params;

#[cfg(feature = "postgres")]
use super::postgres;
use super::row::{limit, partition_of, range};
use super::sql::{Connection, Sql, StoreResult};
use super::sqlite::terms;
use super::{MemoryReader, MemoryWriter};
use crate::MemoryError;
use crate::rules::{Memory, Visibility, wording};

/// Version of the indexed words and of [`content_hash`](super::row::content_hash).
///
/// Memories indexed with another version are reindexed.
pub(super) const VERSION: i64 = words::VERSION * 100 + wording::VERSION;

/// Segments of the index that trigger a merge. A search looks up each word in all segments.
const SEGMENTS_MAX: u64 = 6;
/// Maximum memories per lookup of a term in a partition: the newest.
///
/// A term that occurs in more hardly distinguishes memories.
pub(super) const MATCHES_MAX: usize = 8_192;

/// Index changes of a transaction that are not written yet.
///
/// Collecting them turns a group of jobs into one segment, written in row order. Otherwise FTS5
/// would write a segment per savepoint, and per row that comes out of order.
#[derive(Debug, Default)]
pub(super) struct Pending {
    changes: Vec<(i64, Change)>,
    applied: usize,
    /// Manifests invalidated by the current job.
    pub(super) touch: TouchedManifests,
    /// Whether the current job can no longer be rejected.
    is_decided: bool,
}

#[derive(Debug)]
enum Change {
    /// Index this text, with its words if they were already extracted.
    Add(String, Option<IndexWords>),
    /// Remove this text from the index.
    Remove(String),
}

/// The indexed form of a text.
#[derive(Clone, Debug)]
pub(super) struct IndexWords {
    /// Separated by spaces.
    pub(super) words: String,
    language: Languages,
}

impl IndexWords {
    pub(super) fn of(text: &str) -> Self {
        let mut words = String::with_capacity(text.len() + 16);
        let language = add_index_words(text, &mut words);
        Self { words, language }
    }
}

/// The indexed text of a memory before and after the transaction.
#[derive(Debug, Default)]
struct RowChange<'a> {
    was: Option<&'a str>,
    is: Option<&'a str>,
    /// Words of the new text, if they were already extracted.
    words: Option<&'a IndexWords>,
}

/// The manifests that a job invalidated, by subject.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum TouchedManifests {
    #[default]
    Nothing,
    One(Subject),
    /// All subjects.
    All,
}

impl TouchedManifests {
    /// Adds the subjects that see this memory.
    pub(super) fn add(&mut self, memory: &Memory) {
        let is_shared = memory.visibility == Visibility::Team;
        *self = match std::mem::take(self) {
            Self::Nothing if !is_shared => Self::One(memory.subject.clone()),
            Self::One(subject) if !is_shared && subject == memory.subject => Self::One(subject),
            _ => Self::All,
        };
    }
}

/// A position in [`Pending`] to roll back to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Savepoint {
    changes: usize,
    applied: usize,
}

impl Pending {
    pub(super) fn add(&mut self, no: i64, text: &str, words: Option<IndexWords>) {
        self.changes.push((no, Change::Add(text.to_owned(), words)));
    }

    pub(super) fn remove(&mut self, no: i64, text: &str) {
        self.changes.push((no, Change::Remove(text.to_owned())));
    }

    /// Marks the current job as no longer rejectable. Returns whether it was marked before.
    pub(super) fn decide(&mut self) -> bool {
        std::mem::replace(&mut self.is_decided, true)
    }

    /// Ends the current job. Returns whether it was marked by [`decide`](Self::decide).
    pub(super) fn end_job(&mut self) -> bool {
        std::mem::take(&mut self.is_decided)
    }

    pub(super) fn mark(&self) -> Savepoint {
        Savepoint {
            changes: self.changes.len(),
            applied: self.applied,
        }
    }

    /// Restores an earlier state. The caller rolls back the writes since then.
    pub(super) fn reset(&mut self, mark: Savepoint) {
        self.changes.truncate(mark.changes);
        self.applied = mark.applied;
        self.touch = TouchedManifests::Nothing;
    }

    pub(super) fn apply(&mut self, connection: Connection<'_>) -> Result<(), MemoryError> {
        if self.applied == self.changes.len() {
            return Ok(());
        }
        let mut rows: BTreeMap<i64, RowChange<'_>> = BTreeMap::new();
        for (no, change) in &self.changes[self.applied..] {
            let row = rows.entry(*no).or_default();
            match change {
                Change::Add(text, words) => {
                    row.is = Some(text);
                    row.words = words.as_ref();
                }
                // Drops an addition that is not written yet.
                Change::Remove(_) if row.is.is_some() => row.is = None,
                Change::Remove(text) => row.was = Some(text),
            }
        }
        // The reindexing walk will still visit the rows after its position.
        let at = moving_at(connection)?.unwrap_or(i64::MAX);
        let changed = |(no, row): &(i64, RowChange<'_>)| *no <= at && row.was != row.is;
        for (no, row) in rows.into_iter().filter(changed) {
            if let Some(text) = row.was {
                remove(connection, no, text)?;
            }
            match (row.is, row.words) {
                (Some(_), Some(words)) => add_words(connection, no, words)?,
                (Some(text), None) => add(connection, no, text)?,
                (None, _) => {}
            }
        }
        self.applied = self.changes.len();
        Ok(())
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

/// Looks up terms, each in its partition, newest memories first.
///
/// Calls `note` with the index of a term and the memories that contain it. Memories that are not
/// reindexed yet are reported for every term, and the caller checks their text.
pub(super) fn look_up(
    connection: Connection<'_>,
    sought: &[TermLookup<'_>],
    mut note: impl FnMut(usize, &[i64]),
) -> StoreResult<Vec<TermCount>> {
    let mut looked = match connection {
        Connection::Sqlite(file) => terms::look_up(file, sought, &mut note),
        #[cfg(feature = "postgres")]
        Connection::Postgres(transaction) => postgres::look_up(transaction, sought, &mut note),
    }?;
    let Some(at) = moving_at(connection)? else {
        return Ok(looked);
    };
    let sql = "SELECT no FROM memories WHERE no BETWEEN ? AND ? AND superseded_by IS NULL
               ORDER BY no DESC LIMIT ?";
    for (index, (one, looked)) in sought.iter().zip(&mut looked).enumerate() {
        let (first, last) = range(one.partition);
        let parameters = params![first.max(at + 1), last, limit(MATCHES_MAX)];
        let found: Vec<i64> = connection.all(sql, parameters, |row| row.get(0))?;
        note(index, &found);
        looked.found += found.len();
        if looked.last == 0 {
            looked.last = found.last().copied().unwrap_or_default();
        }
    }
    Ok(looked)
}

/// Indexes the words of a memory that is missing in the index, and records their language.
pub(super) fn add(connection: Connection<'_>, no: i64, text: &str) -> StoreResult<()> {
    add_words(connection, no, &IndexWords::of(text))
}

fn add_words(connection: Connection<'_>, no: i64, added: &IndexWords) -> StoreResult<()> {
    match connection {
        Connection::Sqlite(file) => terms::add(file, no, added)?,
        #[cfg(feature = "postgres")]
        Connection::Postgres(transaction) => postgres::add_terms(transaction, no, added)?,
    }
    if added.language == Languages::default() {
        return Ok(());
    }
    let sql = "UPDATE partitions SET languages = languages | ?1
               WHERE no = ?2 AND languages & ?1 = 0";
    connection.run(sql, params![added.language.bits(), partition_of(no)])
}

/// Removes the words of a memory from the index.
pub(super) fn remove(connection: Connection<'_>, no: i64, text: &str) -> StoreResult<()> {
    let removed = IndexWords::of(text);
    match connection {
        Connection::Sqlite(file) => terms::remove(file, no, &removed),
        #[cfg(feature = "postgres")]
        Connection::Postgres(transaction) => postgres::remove_terms(transaction, no, &removed),
    }
}

/// Number of the last reindexed memory. `None` if all memories are reindexed.
fn moving_at(connection: Connection<'_>) -> StoreResult<Option<i64>> {
    connection.value("SELECT value FROM meta WHERE name = 'words_at'", &[])
}

impl MemoryReader<'_> {
    /// Number of segments of the word index. 0 for a database, whose index has none.
    pub fn word_segments(&self) -> StoreResult<u64> {
        match self.connection {
            Connection::Sqlite(file) => terms::segments(file),
            #[cfg(feature = "postgres")]
            Connection::Postgres(_) => Ok(0),
        }
    }
}

impl MemoryWriter<'_> {
    /// Merges segments of the word index if there are many.
    ///
    /// Writes at most about `pages` pages of 512 bytes.
    ///
    /// Returns `false` if there is nothing left to merge.
    pub fn merge_words_step(&self, pages: usize) -> StoreResult<bool> {
        match self.connection {
            Connection::Sqlite(file) => terms::merge_step(file, pages),
            #[cfg(feature = "postgres")]
            Connection::Postgres(_) => Ok(false),
        }
    }
}

/// Whether the index has so many segments that they should be merged.
pub(crate) fn is_scattered(segments: u64) -> bool {
    segments > SEGMENTS_MAX
}
