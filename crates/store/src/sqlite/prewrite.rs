//! Prewrites turns of a large change set, so that no other commit waits for the whole set.
//!
//! The contents are written in parts, each in an earlier transaction together with the sets of
//! others. They go to the table `contents`, which no reader searches. The set's own transaction
//! writes the rows of `turns`, which reference their contents, and advances `progress.claimed` past
//! these. Contents after `claimed` that are not being prewritten are leftovers of a set that was
//! not committed, or of a crash.
//!
//! Only one set is prewritten at a time. Leftovers are removed at the next start, by retention, by
//! an erasure, or before the next set is prewritten.

use std::sync::Arc;

use rusqlite::{Connection, Transaction, params};

use memoird_core::ids::Generation;

use crate::checksum::{Protection, TurnKey, protect};
use crate::{PrewritePart, StoreError};

/// SQL expression for the content of a row of `turns`.
///
/// A missing content becomes an empty one, which fails its checksum.
pub(crate) const CONTENT: &str = "CASE WHEN turns.content_id IS NULL THEN turns.content
     ELSE ifnull((SELECT contents.content FROM contents
         WHERE contents.id = turns.content_id), x'') END";

/// SQL expression for the size of the content of a row of `turns`. It does not read the content.
pub(super) const CONTENT_BYTES: &str = "octet_length(turns.content) +
     ifnull((SELECT octet_length(contents.content) FROM contents
         WHERE contents.id = turns.content_id), 0)";

/// Leftover contents deleted at once. They have about as many bytes as a part.
const LEFTOVERS_AT_ONCE: usize = 16;

/// The prewritten turns of one change set.
#[derive(Debug)]
pub(super) struct Prewrite {
    generation: Option<Generation>,
    /// The first turns of an append to the generation.
    turns: Vec<PrewrittenTurn>,
    /// Ids are not reused while the journal is open.
    next_id: i64,
    has_leftovers: bool,
}

/// A turn with prewritten content.
#[derive(Debug)]
pub(super) struct PrewrittenTurn {
    seq: u64,
    /// Retained so that no other content can be allocated at the same address.
    content: Arc<[u8]>,
    pub(super) content_id: i64,
    pub(super) protection: Protection,
}

/// Result of a transaction that prewrote turns.
#[derive(Debug, Default)]
pub(super) struct PrewrittenPart {
    turns: Vec<PrewrittenTurn>,
    are_leftovers_gone: bool,
}

impl PrewrittenPart {
    pub(super) fn turns(&self) -> usize {
        self.turns.len()
    }
}

impl Prewrite {
    /// Removes leftovers of a crash. If the disk is full, that is deferred.
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

    /// Discards the prewritten turns unless they belong to this generation.
    pub(super) fn retain(&mut self, generation: Option<Generation>) {
        if self.generation != generation {
            self.has_leftovers |= !self.turns.is_empty();
            self.turns.clear();
            self.generation = generation;
        }
    }

    /// Prewrites contents.
    ///
    /// If there are leftovers it removes some of those instead: otherwise they would be claimed
    /// with the new contents.
    pub(super) fn write(
        &self,
        transaction: &Transaction<'_>,
        part: &PrewritePart,
    ) -> Result<PrewrittenPart, StoreError> {
        if self.has_leftovers {
            let removed = remove_leftovers(transaction, LEFTOVERS_AT_ONCE)?;
            return Ok(PrewrittenPart {
                turns: Vec::new(),
                are_leftovers_gone: removed < LEFTOVERS_AT_ONCE,
            });
        }
        let mut insert =
            transaction.prepare_cached("INSERT INTO contents (id, content) VALUES (?, ?)")?;
        let mut turns = Vec::with_capacity(part.turns.len());
        for ((seq, content), content_id) in part.turns.iter().zip(self.next_id..) {
            insert.execute(params![content_id, &**content])?;
            let place = TurnKey {
                generation: part.generation,
                seq: *seq,
            };
            turns.push(PrewrittenTurn {
                seq: *seq,
                content: Arc::clone(content),
                content_id,
                protection: protect(place, content),
            });
        }
        Ok(PrewrittenPart {
            turns,
            are_leftovers_gone: false,
        })
    }

    /// Must be called once the set is committed and its contents are claimed.
    pub(super) fn end_claimed(&mut self) {
        self.turns.clear();
        self.generation = None;
    }

    /// Must be called once the transaction of [`Self::write`] is committed.
    pub(super) fn extend(&mut self, part: PrewrittenPart) {
        self.next_id += part.turns.len() as i64;
        self.turns.extend(part.turns);
        self.has_leftovers &= !part.are_leftovers_gone;
    }

    /// Returns the prewritten part of an append: a prefix of its turns, possibly empty.
    pub(super) fn of(
        &self,
        generation: Generation,
        turns: &[(u64, Arc<[u8]>)],
    ) -> &[PrewrittenTurn] {
        let is_same = |(turn, (seq, content)): (&PrewrittenTurn, &(u64, Arc<[u8]>))| {
            turn.seq == *seq && Arc::ptr_eq(&turn.content, content)
        };
        let is_of_them = self.generation == Some(generation)
            && self.turns.len() <= turns.len()
            && self.turns.iter().zip(turns).all(is_same);
        if is_of_them { &self.turns } else { &[] }
    }

    /// Removes about `rows_max` contents that belong to no turn. Returns whether none is left.
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

/// Assigns the contents up to this id to turns.
pub(super) fn claim(transaction: &Transaction<'_>, last_id: i64) -> Result<(), StoreError> {
    transaction
        .prepare_cached("UPDATE progress SET claimed = max(claimed, ?)")?
        .execute([last_id])?;
    Ok(())
}

/// Removes the content of a turn if it is stored in `contents`.
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
