//! The full-text index: the changes of a transaction are collected, and written at its end.

use std::collections::BTreeMap;

use memoird_core::ids::Subject;
use rusqlite::{Connection, params};

use crate::MemoryError;
use crate::rules::{Memory, Visibility};

/// Changes of the index that are not written yet. A group of jobs then becomes one segment,
/// written in the order of its rows, where FTS5 would make one for each savepoint and for
/// each row that comes out of order.
#[derive(Debug, Default)]
pub(super) struct Pending {
    changes: Vec<(i64, Change)>,
    applied: usize,
    /// The manifests that the current job makes old.
    pub(super) touch: Touch,
}

#[derive(Debug)]
enum Change {
    /// This text is found there from now on.
    Add(String),
    /// This text is not found there any more.
    Remove(String),
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
    pub(super) fn add(&mut self, no: i64, text: &str) {
        self.changes.push((no, Change::Add(text.to_owned())));
    }

    pub(super) fn remove(&mut self, no: i64, text: &str) {
        self.changes.push((no, Change::Remove(text.to_owned())));
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
        let mut rows: BTreeMap<i64, (Option<&str>, Option<&str>)> = BTreeMap::new();
        for (no, change) in &self.changes[self.applied..] {
            let (was, is) = rows.entry(*no).or_default();
            match change {
                Change::Add(text) => *is = Some(text),
                // An addition that is not written yet is only dropped.
                Change::Remove(_) if is.is_some() => *is = None,
                Change::Remove(text) => *was = Some(text),
            }
        }
        let remove = "INSERT INTO words (words, rowid, content) VALUES ('delete', ?, ?)";
        let mut remove = connection.prepare_cached(remove)?;
        let mut add =
            connection.prepare_cached("INSERT INTO words (rowid, content) VALUES (?, ?)")?;
        for (no, (was, is)) in rows.into_iter().filter(|(_, (was, is))| was != is) {
            if let Some(text) = was {
                remove.execute(params![no, text])?;
            }
            if let Some(text) = is {
                add.execute(params![no, text])?;
            }
        }
        self.applied = self.changes.len();
        Ok(())
    }
}
