//! The word index. Changes are collected during a transaction and written at its end.

use std::collections::{BTreeMap, BTreeSet};

use memoird_core::words::Languages;
use rusqlite::params;

use super::row::{content_hash, limit, partition_of, range};
use super::sql::{Connection, Sql, StoreResult};
use super::word_index::{IndexWords, MATCHES_MAX, TermCount, TermLookup};

/// Segments of the index that trigger a merge. A search looks up each word in all segments.
const SEGMENTS_MAX: u64 = 6;
/// Hash and index words of a fact's text.
///
/// Computed before the write job runs, because the writes of a tenant are serialized.
#[derive(Clone, Debug)]
pub struct Prepared {
    pub(super) says: i64,
    pub(super) words: IndexWords,
}

impl Prepared {
    pub fn new(content: &str) -> Self {
        Self {
            says: content_hash(content),
            words: IndexWords::new(content),
        }
    }
}

/// Index changes of a transaction that are not written yet.
///
/// Collecting them turns a group of jobs into one segment, written in row order. Otherwise FTS5
/// would write a segment per savepoint, and per row that comes out of order.
#[derive(Debug, Default)]
pub(super) struct Pending {
    changes: Vec<(i64, Change)>,
    applied: usize,
}

#[derive(Debug)]
enum Change {
    /// Index this text, with its words if they were already extracted.
    Add(String, Option<IndexWords>),
    /// Remove this text from the index.
    Remove(String),
}

/// The indexed text of a memory before and after the transaction.
#[derive(Debug, Default)]
struct RowChange<'a> {
    was: Option<&'a str>,
    is: Option<&'a str>,
    /// Words of the new text, if they were already extracted.
    words: Option<&'a IndexWords>,
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
    }

    pub(super) fn apply(&mut self, connection: Connection<'_>) -> StoreResult<()> {
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
        let mut languages = BTreeSet::new();
        for (no, row) in rows.into_iter().filter(changed) {
            let is_new = row.was.is_none();
            if let Some(text) = row.was {
                remove(connection, no, text)?;
            }
            let extracted;
            let words = match (row.is, row.words) {
                (Some(_), Some(words)) => words,
                (Some(text), None) => {
                    extracted = IndexWords::new(text);
                    &extracted
                }
                (None, _) => continue,
            };
            connection.add_words(no, words, is_new)?;
            languages.insert((partition_of(no), words.language.bits()));
        }
        for (partition, bits) in languages {
            add_language(connection, partition, bits)?;
        }
        self.applied = self.changes.len();
        Ok(())
    }
}

/// Looks up terms as [`look_up_terms`](super::word_index::WordIndex::look_up_terms) does.
///
/// Memories that are not reindexed yet are reported for every term, and the caller checks their
/// text.
pub(super) fn look_up(
    connection: Connection<'_>,
    sought: &[TermLookup<'_>],
    mut note: impl FnMut(usize, &[i64]),
) -> StoreResult<Vec<TermCount>> {
    let mut looked = connection.look_up_terms(sought, &mut note)?;
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
    let words = IndexWords::new(text);
    connection.add_words(no, &words, false)?;
    add_language(connection, partition_of(no), words.language.bits())
}

/// Records a language of a partition.
fn add_language(connection: Connection<'_>, partition: i64, bits: u16) -> StoreResult<()> {
    if bits == Languages::default().bits() {
        return Ok(());
    }
    let sql = "UPDATE partitions SET languages = languages | ?1
               WHERE no = ?2 AND languages & ?1 = 0";
    connection.run(sql, params![bits, partition])
}

/// Removes the words of a memory from the index.
pub(super) fn remove(connection: Connection<'_>, no: i64, text: &str) -> StoreResult<()> {
    connection.remove_words(no, &IndexWords::new(text))
}

/// Number of the last reindexed memory. `None` if all memories are reindexed.
fn moving_at(connection: Connection<'_>) -> StoreResult<Option<i64>> {
    connection.value("SELECT value FROM meta WHERE name = 'words_at'", &[])
}

/// Whether the index has so many segments that they should be merged.
pub(crate) fn is_scattered(segments: u64) -> bool {
    segments > SEGMENTS_MAX
}
