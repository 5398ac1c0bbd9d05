//! Turns of a large change set that are written ahead of it: in parts, each in an earlier
//! transaction together with the sets of others, so that nobody's commit waits for all of it.
//!
//! Their contents stand in a table of their own, where nobody looks for them. The set's own
//! transaction writes the turns, which only name their contents, and moves `progress.claimed`
//! behind these. What stands behind that mark and is not being written is left over: of a set
//! that was not written after all, or of a crash.
//!
//! One set is written ahead at a time. What is left over goes at the next start, with retention,
//! with an erasure, or before the next set is written ahead.

use std::sync::Arc;

use rusqlite::{Connection, Transaction, params};

use memoird_core::ids::Generation;

use crate::checksum::{Protection, TurnPlace, protect};
use crate::{StoreError, TurnsAhead};

/// The content of a row of `turns`. A missing one is as good as a damaged one.
pub(crate) const CONTENT: &str = "CASE WHEN turns.content_id IS NULL THEN turns.content
     ELSE ifnull((SELECT contents.content FROM contents
         WHERE contents.id = turns.content_id), x'') END";

/// Contents that are left over and are removed at once: about as many bytes as a part has.
const LEFTOVERS_AT_ONCE: usize = 16;

/// What is written ahead of one change set.
#[derive(Debug)]
pub(super) struct Ahead {
    generation: Option<Generation>,
    /// The first turns of an append to it.
    turns: Vec<TurnAhead>,
    /// Ids are not used twice while the journal is open.
    next_id: i64,
    has_leftovers: bool,
}

/// A turn whose content is written.
#[derive(Debug)]
pub(super) struct TurnAhead {
    seq: u64,
    /// Kept, so that another content cannot be at the same place in memory.
    content: Arc<[u8]>,
    pub(super) content_id: i64,
    pub(super) protection: Protection,
}

/// What a transaction did for a set that comes later.
#[derive(Debug, Default)]
pub(super) struct Part {
    turns: Vec<TurnAhead>,
    are_leftovers_gone: bool,
}

impl Part {
    /// So many turns are written.
    pub(super) fn turns(&self) -> usize {
        self.turns.len()
    }
}

impl Ahead {
    /// Removes what a crash left. Where the disk is full that is done later.
    pub(super) fn open(connection: &Connection) -> Result<Self, StoreError> {
        let sql = "SELECT max(claimed, (SELECT ifnull(max(id), 0) FROM contents)) + 1
                   FROM progress";
        let next_id = connection.query_row(sql, [], |row| row.get(0))?;
        let has_leftovers = match remove_leftovers(connection, usize::MAX) {
            Ok(_) => false,
            Err(StoreError::Full) => true,
            Err(error) => return Err(error),
        };
        Ok(Self {
            generation: None,
            turns: Vec::new(),
            next_id,
            has_leftovers,
        })
    }

    /// Forgets what is written ahead unless it is of this generation.
    pub(super) fn retain(&mut self, generation: Option<Generation>) {
        if self.generation != generation {
            self.has_leftovers |= !self.turns.is_empty();
            self.turns.clear();
            self.generation = generation;
        }
    }

    /// Writes contents. What is left over goes first, because it would be claimed with them.
    pub(super) fn write(
        &self,
        transaction: &Transaction<'_>,
        ahead: &TurnsAhead,
    ) -> Result<Part, StoreError> {
        if self.has_leftovers {
            let removed = remove_leftovers(transaction, LEFTOVERS_AT_ONCE)?;
            return Ok(Part {
                turns: Vec::new(),
                are_leftovers_gone: removed < LEFTOVERS_AT_ONCE,
            });
        }
        let mut insert =
            transaction.prepare_cached("INSERT INTO contents (id, content) VALUES (?, ?)")?;
        let mut turns = Vec::with_capacity(ahead.turns.len());
        for ((seq, content), content_id) in ahead.turns.iter().zip(self.next_id..) {
            insert.execute(params![content_id, &**content])?;
            let place = TurnPlace {
                generation: ahead.generation,
                seq: *seq,
            };
            turns.push(TurnAhead {
                seq: *seq,
                content: Arc::clone(content),
                content_id,
                protection: protect(place, content),
            });
        }
        Ok(Part {
            turns,
            are_leftovers_gone: false,
        })
    }

    /// The set is committed: what was written has its turns.
    pub(super) fn end_claimed(&mut self) {
        self.turns.clear();
        self.generation = None;
    }

    /// What [`Self::write`] did is committed.
    pub(super) fn extend(&mut self, part: Part) {
        self.next_id += part.turns.len() as i64;
        self.turns.extend(part.turns);
        self.has_leftovers &= !part.are_leftovers_gone;
    }

    /// What is written ahead of an append: of its first turns, or nothing.
    pub(super) fn of(&self, generation: Generation, turns: &[(u64, Arc<[u8]>)]) -> &[TurnAhead] {
        let is_same = |(ahead, (seq, content)): (&TurnAhead, &(u64, Arc<[u8]>))| {
            ahead.seq == *seq && Arc::ptr_eq(&ahead.content, content)
        };
        let is_of_them = self.generation == Some(generation)
            && self.turns.len() <= turns.len()
            && self.turns.iter().zip(turns).all(is_same);
        if is_of_them { &self.turns } else { &[] }
    }

    /// Removes about `rows_max` contents of no turn; true when none is left.
    pub(super) fn remove_leftovers(
        &mut self,
        connection: &Connection,
        rows_max: usize,
    ) -> Result<bool, StoreError> {
        if self.has_leftovers {
            self.has_leftovers = remove_leftovers(connection, rows_max)? >= rows_max;
        }
        Ok(!self.has_leftovers)
    }

    pub(super) fn has_leftovers(&self) -> bool {
        self.has_leftovers
    }
}

/// Contents up to this one belong to turns from now on.
pub(super) fn claim(transaction: &Transaction<'_>, last_id: i64) -> Result<(), StoreError> {
    transaction
        .prepare_cached("UPDATE progress SET claimed = max(claimed, ?)")?
        .execute([last_id])?;
    Ok(())
}

/// Removes the content of a turn, where it stands apart.
pub(super) fn remove_content(transaction: &Transaction<'_>, turn: i64) -> Result<(), StoreError> {
    let sql = "DELETE FROM contents WHERE id = (SELECT content_id FROM turns WHERE id = ?)";
    transaction.prepare_cached(sql)?.execute([turn])?;
    Ok(())
}

fn remove_leftovers(connection: &Connection, rows_max: usize) -> Result<usize, StoreError> {
    let sql = "DELETE FROM contents WHERE id IN
                   (SELECT id FROM contents WHERE id > (SELECT claimed FROM progress)
                    ORDER BY id LIMIT ?)";
    let rows_max = i64::try_from(rows_max).unwrap_or(i64::MAX);
    Ok(connection.prepare_cached(sql)?.execute([rows_max])?)
}
