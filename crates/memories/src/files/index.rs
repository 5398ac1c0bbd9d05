//! The full-text index: the changes of a transaction are collected, and written at its end.
//!
//! The table `terms` has the words of current memories as `core::words` cuts them. Before it
//! there was `words`, which SQLite cut: of a file from that time a walk moves memory by memory,
//! in the order of their numbers. Up to where it stands they are in `terms`, behind it in
//! `words`; that table goes with the last of them.

use std::collections::BTreeMap;

use memoird_core::ids::Subject;
use memoird_core::words::{Languages, add_index_words};
use rusqlite::{Connection, OptionalExtension, params};

use super::row::{limit, partition_of};
use super::sql::{Answer, Sql};
use super::{MemoryReader, MemoryWriter};
use crate::MemoryError;
use crate::rules::{Memory, Visibility};

/// Segments of which an index may consist: a search looks for each of its words in all of them.
const SEGMENTS_MAX: u64 = 6;
/// Of so many segments of one size a merge makes a larger one.
const MERGED_MIN: i64 = 2;

const REMOVE_OLD: &str = "INSERT INTO words (words, rowid, content) VALUES ('delete', ?, ?)";
const ADD_OLD: &str = "INSERT INTO words (rowid, content) VALUES (?, ?)";

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
    words: String,
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
    pub(super) fn apply(&mut self, connection: &Connection) -> Result<(), MemoryError> {
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
        let moving_at = moving_at(connection)?;
        for (no, row) in rows.into_iter().filter(|(_, row)| row.was != row.is) {
            let is_old = moving_at.is_some_and(|at| no > at);
            if let Some(text) = row.was {
                match is_old {
                    true => connection.run(REMOVE_OLD, params![no, text])?,
                    false => remove(connection, no, text)?,
                }
            }
            match (row.is, row.words) {
                (Some(text), _) if is_old => connection.run(ADD_OLD, params![no, text])?,
                (Some(_), Some(words)) => add_words(connection, no, words)?,
                (Some(text), None) => add(connection, no, text)?,
                (None, _) => {}
            }
        }
        self.applied = self.changes.len();
        Ok(())
    }
}

/// Adds the words of a memory that the index does not have, and notes their language.
pub(super) fn add(connection: &Connection, no: i64, text: &str) -> Answer<()> {
    add_words(connection, no, &IndexWords::of(text))
}

fn add_words(connection: &Connection, no: i64, added: &IndexWords) -> Answer<()> {
    let sql = "INSERT INTO terms (rowid, forms) VALUES (?, ?)";
    connection.run(sql, params![no, added.words])?;
    if added.language == Languages::default() {
        return Ok(());
    }
    let sql = "UPDATE partitions SET languages = languages | ?1
               WHERE no = ?2 AND languages & ?1 = 0";
    connection.run(sql, params![added.language.bits(), partition_of(no)])
}

/// Removes the words of a memory.
pub(super) fn remove(connection: &Connection, no: i64, text: &str) -> Answer<()> {
    let removed = IndexWords::of(text);
    let sql = "INSERT INTO terms (terms, rowid, forms) VALUES ('delete', ?, ?)";
    connection.run(sql, params![no, removed.words])
}

/// Up to which memory the words were moved; `None`: all are.
pub(super) fn moving_at(connection: &Connection) -> rusqlite::Result<Option<i64>> {
    let sql = "SELECT value FROM meta WHERE name = 'words_at'";
    let mut statement = connection.prepare_cached(sql)?;
    statement.query_row([], |row| row.get(0)).optional()
}

/// Removes the table that words were moved from.
pub(super) fn end_moving(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute_batch(
        "DROP TABLE IF EXISTS words; DROP VIEW IF EXISTS current_words;
         DELETE FROM meta WHERE name IN ('words_at', 'words_left')",
    )
}

/// In a file without memories there is nothing to move.
pub(super) fn end_moving_if_empty(connection: &Connection) -> rusqlite::Result<()> {
    let sql = "SELECT memories FROM state";
    let memories: i64 = connection.query_row(sql, [], |row| row.get(0))?;
    match memories {
        0 => end_moving(connection),
        _ => Ok(()),
    }
}

impl MemoryReader<'_> {
    /// Of how many segments the index of words consists.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn word_segments(&self) -> Answer<u64> {
        self.count("SELECT count(DISTINCT segid) FROM terms_idx", [])
    }
}

impl MemoryWriter<'_> {
    /// Merges segments of the index of words, where it consists of many, and writes at most about
    /// `pages` pages of 512 bytes. False when there is nothing more to merge.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn merge_words_step(&self, pages: usize) -> Answer<bool> {
        let wanted = "SELECT 1 FROM terms_config WHERE k = 'usermerge' AND v = ?";
        if !self.has(wanted, [MERGED_MIN])? {
            let set = "INSERT INTO terms (terms, rank) VALUES ('usermerge', ?)";
            self.run(set, [MERGED_MIN])?;
        }
        let before = self.connection.total_changes();
        let merge = "INSERT INTO terms (terms, rank) VALUES ('merge', ?)";
        self.run(merge, [limit(pages)])?;
        // So FTS5 says that it has done something.
        Ok(self.connection.total_changes() - before >= 2)
    }
}

/// True where words are looked for in too many segments.
pub(crate) fn is_scattered(segments: u64) -> bool {
    segments > SEGMENTS_MAX
}
