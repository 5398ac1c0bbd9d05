//! The index of words: the changes of a transaction are collected, and written at its end.

use std::collections::BTreeMap;

use memoird_core::ids::Subject;
use memoird_core::words::{self, Languages, add_index_words};
use rusqlite::params;

#[cfg(feature = "postgres")]
use super::postgres;
use super::row::{limit, partition_of, range};
use super::sql::{Answer, Connection, Sql};
use super::sqlite::terms;
use super::{MemoryReader, MemoryWriter};
use crate::MemoryError;
use crate::rules::{Memory, Visibility, wording};

/// Version of the indexed words and of [`content_hash`](super::row::content_hash). Memories of another
/// version are indexed again.
pub(super) const VERSION: i64 = words::VERSION * 100 + wording::VERSION;

/// Segments of which an index may consist: a search looks for each of its words in all of them.
const SEGMENTS_MAX: u64 = 6;
/// Memories of a partition that a term is looked up in, the newest: whatever more memories
/// have says next to nothing.
pub(super) const MATCHES_MAX: usize = 8_192;

/// Changes of the index that are not written yet. A group of jobs then becomes one segment,
/// written in the order of its rows, where FTS5 would make one for each savepoint and for
/// each row that comes out of order.
#[derive(Debug, Default)]
pub(super) struct Pending {
    changes: Vec<(i64, Change)>,
    applied: usize,
    /// The manifests that the current job makes old.
    pub(super) touch: Touch,
    /// True when nothing refuses the current job any more.
    is_decided: bool,
}

#[derive(Debug)]
enum Change {
    /// This text is found there from now on; with its words, where they were looked for before.
    Add(String, Option<IndexWords>),
    /// This text is not found there any more.
    Remove(String),
}

/// What the index has of a text.
#[derive(Clone, Debug)]
pub(super) struct IndexWords {
    /// One after the other, with spaces between them.
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

/// What the index has of a memory, and what it is to have.
#[derive(Debug, Default)]
struct RowChange<'a> {
    was: Option<&'a str>,
    is: Option<&'a str>,
    /// The words of the latter.
    words: Option<&'a IndexWords>,
}

/// The subjects whose manifests are old after a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Touch {
    /// None.
    #[default]
    Nothing,
    /// This one.
    One(Subject),
    /// Any.
    All,
}

impl Touch {
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

/// Where [`Pending`] stood.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
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

    /// Says that nothing refuses the current job any more; true when that was said before.
    pub(super) fn decide(&mut self) -> bool {
        std::mem::replace(&mut self.is_decided, true)
    }

    /// Ends a job; true when it was [decided](Self::decide).
    pub(super) fn end_job(&mut self) -> bool {
        std::mem::take(&mut self.is_decided)
    }

    pub(super) fn mark(&self) -> Mark {
        Mark {
            changes: self.changes.len(),
            applied: self.applied,
        }
    }

    /// Goes back to an earlier state; the caller rolls back the writes since then.
    pub(super) fn reset(&mut self, mark: Mark) {
        self.changes.truncate(mark.changes);
        self.applied = mark.applied;
        self.touch = Touch::Nothing;
    }

    /// Writes the changes that are not written yet.
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
                // An addition that is not written yet is only dropped.
                Change::Remove(_) if row.is.is_some() => row.is = None,
                Change::Remove(text) => row.was = Some(text),
            }
        }
        // Behind where it stands, the walk comes to them.
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

/// A term that is looked up in a partition: any of its forms.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sought<'a> {
    pub(super) forms: &'a [String],
    pub(super) partition: i64,
}

/// How far a term was looked up.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Looked {
    pub(super) found: usize,
    /// The last memory that has it and was seen.
    pub(super) last: i64,
}

impl Looked {
    /// How many memories of the partition have the term, if it is spread evenly.
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

/// Looks terms up, each in its partition, the newest memories first: `note` is told which of them
/// is in which memory. Any may be in a memory that is not indexed anew yet: its text decides.
pub(super) fn look_up(
    connection: Connection<'_>,
    sought: &[Sought<'_>],
    mut note: impl FnMut(usize, &[i64]),
) -> Answer<Vec<Looked>> {
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

/// Adds the words of a memory that the index does not have, and notes their language.
pub(super) fn add(connection: Connection<'_>, no: i64, text: &str) -> Answer<()> {
    add_words(connection, no, &IndexWords::of(text))
}

fn add_words(connection: Connection<'_>, no: i64, added: &IndexWords) -> Answer<()> {
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

/// Removes the words of a memory.
pub(super) fn remove(connection: Connection<'_>, no: i64, text: &str) -> Answer<()> {
    let removed = IndexWords::of(text);
    match connection {
        Connection::Sqlite(file) => terms::remove(file, no, &removed),
        #[cfg(feature = "postgres")]
        Connection::Postgres(transaction) => postgres::remove_terms(transaction, no, &removed),
    }
}

/// Up to which memory the words were indexed anew; `None`: all are.
fn moving_at(connection: Connection<'_>) -> Answer<Option<i64>> {
    connection.value("SELECT value FROM meta WHERE name = 'words_at'", &[])
}

impl MemoryReader<'_> {
    /// Of how many segments the index of words consists; 0 where it has none.
    ///
    /// # Errors
    /// When the memories cannot be read.
    pub fn word_segments(&self) -> Answer<u64> {
        match self.connection {
            Connection::Sqlite(file) => terms::segments(file),
            #[cfg(feature = "postgres")]
            Connection::Postgres(_) => Ok(0),
        }
    }
}

impl MemoryWriter<'_> {
    /// Merges segments of the index of words, where it consists of many, and writes at most about
    /// `pages` pages of 512 bytes. False when there is nothing more to merge.
    ///
    /// # Errors
    /// When the memories cannot be written.
    pub fn merge_words_step(&self, pages: usize) -> Answer<bool> {
        match self.connection {
            Connection::Sqlite(file) => terms::merge_step(file, pages),
            #[cfg(feature = "postgres")]
            Connection::Postgres(_) => Ok(false),
        }
    }
}

/// True where words are looked for in too many segments.
pub(crate) fn is_scattered(segments: u64) -> bool {
    segments > SEGMENTS_MAX
}
