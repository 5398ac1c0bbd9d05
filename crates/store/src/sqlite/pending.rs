//! The pending table: committed changes that are not yet flushed to the indexed tables.
//!
//! It works like the log of an LSM tree. A commit only appends rows, and sorting is done later for
//! many changes at once. Until then memory holds the newest state of each changed generation, which
//! later changes are checked against.
//!
//! Once there are enough changes, a flush begins (see `flush.rs`). The following commits carry it
//! out step by step, while their own changes go to a new one.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

use rusqlite::{Connection, OptionalExtension, Transaction, params};

use memoird_core::ids::{Generation, SessionKey};
use memoird_core::time::Steady;

use super::flush::{Flush, FlushProgress, KEYS_BETWEEN_CUTS};
use super::row::{find_row, visit_rows};
use crate::rows::GenerationRow;
use crate::{StoreError, lock};

/// Cost of flushing the end of a generation, in changes.
///
/// The row has usually not been touched for long, and it moves from one index to up to four others.
const END_WEIGHT: usize = 12;
/// Cost of flushing an idempotency key, in changes.
///
/// It is added to two indexes, and an old key of the same session is deleted.
pub(super) const KEY_WEIGHT: usize = 2;

/// Maximum number of steps of a flush.
const STEPS: usize = 64;
/// Maximum number of sessions whose keys are counted. Beyond it, counting starts from scratch.
const COUNTED_SESSIONS_MAX: usize = 100_000;

/// An unflushed turn.
#[derive(Clone, Copy, Debug)]
pub(super) struct PendingTurn {
    pub(super) seq: i64,
    pub(super) id: i64,
}

/// Changes of some transactions, with the newest state of every changed generation.
#[derive(Debug, Default)]
pub(super) struct PendingChanges {
    rows: HashMap<Generation, GenerationRow>,
    /// Generations that have ended. Few, since each costs [`END_WEIGHT`].
    ended: Vec<Generation>,
    /// Live generation of every changed session. `None` if it has none.
    live: HashMap<SessionKey, Option<Generation>>,
    /// Turns that are not indexed yet, ascending.
    turns: HashMap<Generation, Vec<PendingTurn>>,
    /// Number of new idempotency keys per session.
    keys: HashMap<SessionKey, usize>,
    /// Maximum cost of flushing them. Deleting rows of the pending table adds up to a quarter.
    cost: usize,
    /// Part of `cost` caused by keys.
    ///
    /// They do not count towards the start of a flush, because flushing many keys at once saves
    /// nothing.
    key_cost: usize,
}

/// The unflushed changes of all transactions.
#[derive(Debug)]
pub(super) struct PendingTable {
    /// Maximum number of changes. Keys and up to two transactions may exceed it.
    changes_max: usize,
    /// Changes since the last flush began.
    newest: PendingChanges,
    flushing: Option<Flush>,
    /// Changes since the last step of the flush.
    since_last_step: usize,
    /// New keys per session since its old keys were last deleted, including those already flushed.
    keys: HashMap<SessionKey, usize>,
    unflushed: Arc<UnflushedSessions>,
}

/// Sessions that have, or are about to have, rows in the pending table.
///
/// Reads of other sessions need not search the pending table.
#[derive(Debug, Default)]
pub(super) struct UnflushedSessions {
    sessions: Mutex<UnflushedKeys>,
}

#[derive(Debug, Default)]
struct UnflushedKeys {
    newest: HashSet<SessionKey>,
    flushing: HashSet<SessionKey>,
}

impl PendingChanges {
    /// Records the newest state of a generation.
    pub(super) fn put(&mut self, row: GenerationRow) {
        self.cost += row_weight(&row);
        let live = self.live.entry(row.key.clone()).or_default();
        if row.ended.is_none() {
            *live = Some(row.head.generation);
        } else {
            if *live == Some(row.head.generation) {
                *live = None;
            }
            self.ended.push(row.head.generation);
        }
        self.rows.insert(row.head.generation, row);
    }

    pub(super) fn put_turn(&mut self, generation: Generation, turn: PendingTurn) {
        self.cost += 1;
        self.turns.entry(generation).or_default().push(turn);
    }

    pub(super) fn count_key(&mut self, key: &SessionKey) {
        self.cost += KEY_WEIGHT;
        self.key_cost += KEY_WEIGHT;
        *self.keys.entry(key.clone()).or_default() += 1;
    }

    pub(super) fn row(&self, generation: Generation) -> Option<&GenerationRow> {
        self.rows.get(&generation)
    }

    /// Returns the live generation of a session, if the session changed.
    pub(super) fn live(&self, key: &SessionKey) -> Option<Option<Generation>> {
        self.live.get(key).copied()
    }

    pub(super) fn turns(&self, generation: Generation) -> &[PendingTurn] {
        self.turns.get(&generation).map_or(&[], Vec::as_slice)
    }

    /// Returns the id of an unflushed turn.
    pub(super) fn turn(&self, generation: Generation, seq: i64) -> Option<i64> {
        let turns = self.turns(generation);
        let progress = turns.binary_search_by_key(&seq, |turn| turn.seq);
        progress.ok().map(|progress| turns[progress].id)
    }

    /// Returns the newest states, ended generations first.
    ///
    /// Otherwise a session's next generation could conflict with the previous one, in the unique
    /// index or when the pending table is restored after a crash.
    pub(super) fn rows_in_order(&self) -> Vec<&GenerationRow> {
        let mut rows: Vec<&GenerationRow> = self.rows.values().collect();
        rows.sort_by_key(|row| (row.ended.is_none(), row.head.generation));
        rows
    }

    /// Merges later changes.
    fn extend(&mut self, newer: Self) {
        self.rows.extend(newer.rows);
        self.ended.extend(newer.ended);
        self.live.extend(newer.live);
        for (generation, turns) in newer.turns {
            self.turns.entry(generation).or_default().extend(turns);
        }
        for (key, count) in newer.keys {
            *self.keys.entry(key).or_default() += count;
        }
        self.cost += newer.cost;
        self.key_cost += newer.key_cost;
    }
}

pub(super) fn row_weight(row: &GenerationRow) -> usize {
    if row.ended.is_some() { END_WEIGHT } else { 1 }
}

impl PendingTable {
    /// Restores the pending table after a restart.
    pub(super) fn restore(
        connection: &Connection,
        changes_max: usize,
        unflushed: Arc<UnflushedSessions>,
    ) -> Result<Self, StoreError> {
        let mut newest = PendingChanges::default();
        visit_rows(connection, "intake_heads", "ORDER BY id", [], |row| {
            newest.put(row);
        })?;
        let sql = "SELECT generation, seq, id FROM turns
                   WHERE id > (SELECT placed FROM progress) ORDER BY id";
        let mut statement = connection.prepare(sql)?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let (seq, id) = (row.get(1)?, row.get(2)?);
            newest.put_turn(Generation::from_bytes(row.get(0)?), PendingTurn { seq, id });
        }
        unflushed.add(newest.rows.values().map(|row| &row.key));
        Ok(Self {
            changes_max,
            newest,
            flushing: None,
            since_last_step: 0,
            keys: HashMap::new(),
            unflushed,
        })
    }

    /// Marks the sessions of a transaction as unflushed.
    ///
    /// Must be called before its commit makes them visible.
    pub(super) fn announce(&self, pending: &PendingChanges) {
        self.unflushed
            .add(pending.rows.values().map(|row| &row.key));
    }

    /// Takes over the changes of a committed transaction and the progress of its flush step.
    pub(super) fn extend(&mut self, mut pending: PendingChanges, flushed: Option<FlushProgress>) {
        for (key, count) in std::mem::take(&mut pending.keys) {
            *self.keys.entry(key).or_default() += count;
        }
        self.since_last_step += pending.cost;
        self.newest.extend(pending);
        self.advance(flushed);
    }

    pub(super) fn row(&self, generation: Generation) -> Option<&GenerationRow> {
        let row = self.newest.row(generation);
        row.or_else(|| self.flushing.as_ref()?.pending.row(generation))
    }

    pub(super) fn live(&self, key: &SessionKey) -> Option<Option<Generation>> {
        let live = self.newest.live(key);
        live.or_else(|| self.flushing.as_ref()?.pending.live(key))
    }

    /// Returns the ids of a generation's turns that may not be indexed yet, ascending.
    pub(super) fn turns(&self, generation: Generation) -> Vec<i64> {
        let flushing = self.flushing.iter().map(|flush| &flush.pending);
        let pending = flushing.chain([&self.newest]);
        let turns = pending.flat_map(|pending| pending.turns(generation));
        turns.map(|turn| turn.id).collect()
    }

    /// Returns the id of a turn, if it may not be indexed yet.
    pub(super) fn turn(&self, generation: Generation, seq: i64) -> Option<i64> {
        let newest = self.newest.turn(generation, seq);
        newest.or_else(|| self.flushing.as_ref()?.pending.turn(generation, seq))
    }

    /// Returns the newest states, in no particular order.
    pub(super) fn rows(&self) -> impl Iterator<Item = &GenerationRow> {
        let flushing = self
            .flushing
            .iter()
            .flat_map(|flush| flush.pending.rows.values());
        let older = flushing.filter(|row| self.newest.row(row.head.generation).is_none());
        self.newest.rows.values().chain(older)
    }

    /// Returns the newest states of the generations that have ended, in no particular order.
    pub(super) fn ended_rows(&self) -> impl Iterator<Item = &GenerationRow> {
        let flushing = self.flushing.iter().map(|flush| &flush.pending);
        let pending = flushing.chain([&self.newest]);
        pending.flat_map(|pending| pending.ended.iter().filter_map(|name| pending.row(*name)))
    }

    pub(super) fn begin_flush_if_due(
        &mut self,
        connection: &Connection,
        last_turn: i64,
    ) -> Result<(), StoreError> {
        let changes = self.newest.cost - self.newest.key_cost;
        if changes >= (self.changes_max / 2).max(1) {
            self.begin_flush(connection, last_turn)
        } else {
            Ok(())
        }
    }

    /// Begins a flush unless one is in progress or there is nothing to flush.
    pub(super) fn begin_flush(
        &mut self,
        connection: &Connection,
        last_turn: i64,
    ) -> Result<(), StoreError> {
        if self.flushing.is_some() || self.newest.rows.is_empty() {
            return Ok(());
        }
        let mut cuts = Vec::new();
        self.keys.retain(|key, count| {
            let is_due = *count >= KEYS_BETWEEN_CUTS;
            if is_due {
                cuts.push(key.clone());
            }
            !is_due
        });
        if self.keys.len() >= COUNTED_SESSIONS_MAX {
            self.keys.clear();
        }
        let pending = std::mem::take(&mut self.newest);
        self.flushing = Some(Flush::begin(connection, pending, last_turn, cuts)?);
        self.since_last_step = 0;
        self.unflushed.begin_flush();
        Ok(())
    }

    /// Returns how many changes a transaction with these changes must flush.
    ///
    /// `None` if no step is due.
    ///
    /// It flushes more than it adds, so that a flush completes before the next one has to begin.
    pub(super) fn step_of(&self, pending: &PendingChanges) -> Option<usize> {
        let since_last_step = self.since_last_step + pending.cost;
        let is_due =
            self.flushing.is_some() && since_last_step >= (self.changes_max / STEPS).max(1);
        is_due.then_some(since_last_step + since_last_step / 2 + 1)
    }

    /// Runs a step of the flush. The returned progress applies once the transaction is committed.
    pub(super) fn flush(
        &self,
        transaction: &Transaction<'_>,
        changes: usize,
    ) -> Result<Option<FlushProgress>, StoreError> {
        let flush = self.flushing.as_ref();
        flush
            .map(|flush| flush.step(transaction, changes))
            .transpose()
    }

    /// Records the progress of [`Self::flush`] after its commit.
    pub(super) fn advance(&mut self, flushed: Option<FlushProgress>) {
        let (Some(progress), Some(flush)) = (flushed, &mut self.flushing) else {
            return;
        };
        self.since_last_step = 0;
        flush.progress = progress;
        if progress.is_finished {
            self.flushing = None;
            self.unflushed.end_flush();
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.newest.rows.is_empty() && self.flushing.is_none()
    }

    /// Whether a generation in the pending table ended before this time.
    pub(super) fn has_ended_before(&self, moment: Steady) -> bool {
        self.ended_rows()
            .any(|row| row.ended.is_some_and(|(at, _)| at.steady < moment))
    }
}

impl UnflushedSessions {
    pub(super) fn contains(&self, key: &SessionKey) -> bool {
        let sessions = lock(&self.sessions);
        sessions.newest.contains(key) || sessions.flushing.contains(key)
    }

    fn add<'a>(&self, keys: impl Iterator<Item = &'a SessionKey>) {
        let mut sessions = lock(&self.sessions);
        for key in keys {
            if !sessions.newest.contains(key) {
                sessions.newest.insert(key.clone());
            }
        }
    }

    fn begin_flush(&self) {
        let mut sessions = lock(&self.sessions);
        sessions.flushing = std::mem::take(&mut sessions.newest);
    }

    fn end_flush(&self) {
        lock(&self.sessions).flushing.clear();
    }
}

/// Reads the flushed row of a generation.
pub(super) fn indexed_row(
    connection: &Connection,
    generation: Generation,
) -> Result<Option<GenerationRow>, StoreError> {
    let parameters = [generation.to_bytes()];
    find_row(
        connection,
        "generations",
        "WHERE generation = ?",
        parameters,
    )
}

/// Reads the flushed live generation of a session.
pub(super) fn indexed_live(
    connection: &Connection,
    key: &SessionKey,
) -> Result<Option<Generation>, StoreError> {
    let sql = "SELECT generation FROM generations
               WHERE tenant = ? AND session = ? AND ended_at IS NULL";
    let found = connection
        .prepare_cached(sql)?
        .query_row(params![key.tenant.as_str(), key.session.as_str()], |row| {
            row.get(0)
        })
        .optional()?;
    Ok(found.map(Generation::from_bytes))
}
