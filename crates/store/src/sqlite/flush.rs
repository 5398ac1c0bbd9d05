//! Flushes the pending table to the indexed tables, in steps that are each part of a commit.
//!
//! So no commit has to do all of the work. Every step leaves a journal that can be read, and
//! flushed again from the beginning: a turn may be indexed and still count as unflushed, and the
//! newest state of a generation may be in both places. Readers prefer the pending table.

use rusqlite::{Connection, OptionalExtension, Transaction, params};

use memoird_core::ids::{Generation, SessionKey};

use super::pending::{KEY_WEIGHT, PendingChanges, row_weight};
use super::row::PLACES;
use crate::rows::GenerationRow;
use crate::{KEYS_MAX, StoreError};

/// New idempotency keys of a session after which a flush deletes all but the newest [`KEYS_MAX`].
///
/// Large enough to make the cost per key small.
pub(super) const KEYS_BETWEEN_CUTS: usize = 128;
/// Rows of the pending table deleted for the cost of one change.
const ROWS_PER_CHANGE: usize = 4;

/// A flush in progress.
#[derive(Debug)]
pub(super) struct Flush {
    /// The rows to flush. Unchanged until the flush is complete.
    pub(super) pending: PendingChanges,
    /// The generations in write order.
    order: Vec<Generation>,
    /// Sessions to delete old keys of.
    cuts: Vec<SessionKey>,
    /// Last rows that belong to this flush.
    last_turn: i64,
    last_key: i64,
    last_head: i64,
    pub(super) progress: FlushProgress,
}

/// Progress of a flush.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FlushProgress {
    /// Flushed generations.
    generations: usize,
    /// Flushed turns of the next generation.
    turns: usize,
    /// Whether all turns and generations are flushed.
    are_turns_indexed: bool,
    are_keys_moved: bool,
    /// Number of `Flush::cuts` that are done.
    cuts: usize,
    /// Whether all its rows are deleted from the pending table.
    pub(super) is_finished: bool,
}

impl Flush {
    pub(super) fn begin(
        connection: &Connection,
        pending: PendingChanges,
        last_turn: i64,
        cuts: Vec<SessionKey>,
    ) -> Result<Self, StoreError> {
        let last = |table| {
            let sql = format!("SELECT ifnull(max(id), 0) FROM {table}");
            connection
                .prepare_cached(&sql)?
                .query_row([], |row| row.get(0))
        };
        let rows = pending.rows_in_order();
        Ok(Self {
            order: rows.iter().map(|row| row.head.generation).collect(),
            cuts,
            last_turn,
            last_key: last("intake_keys")?,
            last_head: last("intake_heads")?,
            progress: FlushProgress::default(),
            pending,
        })
    }

    /// Does work that costs about `changes`, and returns the progress.
    pub(super) fn step(
        &self,
        transaction: &Transaction<'_>,
        changes: usize,
    ) -> Result<FlushProgress, StoreError> {
        let mut step = FlushStep {
            flush: self,
            transaction,
            left: changes,
            progress: self.progress,
        };
        step.write_generations()?;
        step.move_keys()?;
        step.cut_keys()?;
        step.clear_heads()?;
        Ok(step.progress)
    }
}

/// One step of a flush. Each method is a no-op until the one before it has finished.
struct FlushStep<'a> {
    flush: &'a Flush,
    transaction: &'a Transaction<'a>,
    /// Remaining budget, in changes.
    left: usize,
    progress: FlushProgress,
}

impl FlushStep<'_> {
    fn spend(&mut self, changes: usize) {
        self.left = self.left.saturating_sub(changes);
    }

    /// Indexes turns before their generation is written, because the generation makes them visible.
    fn write_generations(&mut self) -> Result<(), StoreError> {
        if self.progress.are_turns_indexed {
            return Ok(());
        }
        let (flush, transaction) = (self.flush, self.transaction);
        // After a crash, some may already be indexed.
        let sql = "INSERT OR IGNORE INTO turn_places (generation, seq, id) VALUES (?, ?, ?)";
        let mut place_turn = transaction.prepare_cached(sql)?;
        let mut write_row = transaction.prepare_cached(&upsert())?;
        while self.left > 0
            && let Some(generation) = flush.order.get(self.progress.generations)
        {
            let turns = &flush.pending.turns(*generation)[self.progress.turns..];
            let placed = turns.len().min(self.left);
            for turn in &turns[..placed] {
                place_turn.execute(params![generation.to_bytes(), turn.seq, turn.id])?;
            }
            self.spend(placed);
            self.progress.turns += placed;
            if placed < turns.len() {
                return Ok(());
            }
            if let Some(row) = flush.pending.row(*generation) {
                row.write(&mut write_row)?;
                self.spend(row_weight(row));
            }
            self.progress.generations += 1;
            self.progress.turns = 0;
        }
        if self.progress.generations == flush.order.len() {
            transaction
                .prepare_cached("UPDATE progress SET placed = max(placed, ?)")?
                .execute([flush.last_turn])?;
            self.progress.are_turns_indexed = true;
        }
        Ok(())
    }

    fn move_keys(&mut self) -> Result<(), StoreError> {
        if !self.progress.are_turns_indexed || self.progress.are_keys_moved || self.left == 0 {
            return Ok(());
        }
        let until = self.oldest(
            "intake_keys",
            self.left.div_ceil(KEY_WEIGHT),
            self.flush.last_key,
        )?;
        let moved = self
            .transaction
            .prepare_cached(
                "INSERT OR REPLACE INTO idempotency
                     SELECT tenant, session, key, content, generation, first_seq, last_seq,
                         dropped, at
                     FROM intake_keys WHERE id <= ? ORDER BY id",
            )?
            .execute([until])?;
        self.transaction
            .prepare_cached("DELETE FROM intake_keys WHERE id <= ?")?
            .execute([until])?;
        self.spend(moved * KEY_WEIGHT);
        self.progress.are_keys_moved = until == self.flush.last_key;
        Ok(())
    }

    /// Deletes all idempotency keys of a session but the newest, which are the only ones loaded.
    fn cut_keys(&mut self) -> Result<(), StoreError> {
        while self.progress.are_keys_moved
            && self.left > 0
            && let Some(key) = self.flush.cuts.get(self.progress.cuts)
        {
            let (tenant, session) = (key.tenant.as_str(), key.session.as_str());
            self.transaction
                .prepare_cached(
                    "DELETE FROM idempotency WHERE tenant = ?1 AND session = ?2 AND key IN
                         (SELECT key FROM idempotency WHERE tenant = ?1 AND session = ?2
                          ORDER BY at DESC, generation DESC, last_seq DESC LIMIT -1 OFFSET ?3)",
                )?
                .execute(params![tenant, session, KEYS_MAX as i64])?;
            self.spend(KEYS_BETWEEN_CUTS);
            self.progress.cuts += 1;
        }
        Ok(())
    }

    /// Deletes the oldest rows first. The last remaining row of a session is then its newest state.
    fn clear_heads(&mut self) -> Result<(), StoreError> {
        let is_ready = self.progress.are_keys_moved && self.progress.cuts == self.flush.cuts.len();
        if !is_ready || self.left == 0 {
            return Ok(());
        }
        let rows_max = self.left.saturating_mul(ROWS_PER_CHANGE);
        let until = self.oldest("intake_heads", rows_max, self.flush.last_head)?;
        self.transaction
            .prepare_cached("DELETE FROM intake_heads WHERE id <= ?")?
            .execute([until])?;
        self.progress.is_finished = until == self.flush.last_head;
        Ok(())
    }

    /// Returns the id of the `rows_max`-th oldest row, but at most `last`.
    fn oldest(&self, table: &str, rows_max: usize, last: i64) -> Result<i64, StoreError> {
        let sql = format!("SELECT id FROM {table} ORDER BY id LIMIT 1");
        let first: Option<i64> = self
            .transaction
            .prepare_cached(&sql)?
            .query_row([], |row| row.get(0))
            .optional()?;
        let rows_max = i64::try_from(rows_max).unwrap_or(i64::MAX);
        Ok(first.map_or(last, |first| first.saturating_add(rows_max - 1).min(last)))
    }
}

fn upsert() -> String {
    let columns = GenerationRow::COLUMNS;
    format!(
        "INSERT INTO generations ({columns}) VALUES ({PLACES})
         ON CONFLICT (generation) DO UPDATE SET
             subject = excluded.subject, last_access = excluded.last_access,
             revision = excluded.revision, last_seq = excluded.last_seq,
             newest_seq = excluded.newest_seq,
             kept = excluded.kept, turns = excluded.turns, bytes = excluded.bytes,
             tokens = excluded.tokens, partial = excluded.partial,
             state_version = excluded.state_version, ended_ms = excluded.ended_ms,
             ended_at = excluded.ended_at, reason = excluded.reason"
    )
}
