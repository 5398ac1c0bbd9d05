//! Writes change sets in one transaction per batch. Each set is written whole or rejected.
//!
//! The batch is planned before any of it is written, so a rejected set needs no rollback.

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, ToSql, Transaction, TransactionBehavior, params};

use memoird_core::change::{ChangeKind, ChangeSet, SummaryChange, UpdatedTurn};
use memoird_core::ids::{ErasureId, Generation};

use super::compaction;
use super::outbox;
use super::pending::{
    PendingChanges, PendingTable, PendingTurn, UnflushedSessions, indexed_live, indexed_row,
};
use super::prewrite::{self, Prewrite, PrewrittenPart};
use super::prune::has_keys_before;
use super::rewound;
use super::row::{PLACES, whole};
use super::search::IndexLock;
use super::tables::SqliteTables;
use crate::checksum::{Protection, TurnKey, protect};
use crate::plan::{Base, NewKey, Plan, RowChange, plan};
use crate::retention::{self, Pruned};
use crate::rows::GenerationRow;
use crate::{
    ClockAnchor, ErasedRows, PrewritePart, PruneBefore, PruneBounds, StaleBase, StoreError, Tables,
    erase, options, windows,
};

/// Changes flushed before a pruning step, because rows in the pending table cannot be pruned.
const FLUSHED_BEFORE_PRUNE_CHANGES: usize = 1_024;

/// The write side of the journal.
#[derive(Debug)]
pub(super) struct Writer {
    connection: Connection,
    pending_table: PendingTable,
    /// Id of the next turn. Ids are never reused, even after pruning.
    next_turn: i64,
    prewrite: Prewrite,
}

/// The result of each set, and the number of prewritten turns.
type CommitResults = (Vec<Result<(), StaleBase>>, usize);

impl Writer {
    /// Opens a journal and flushes what a crash left in the pending table.
    ///
    /// `pending_changes_max` is the approximate maximum number of changes in the pending table.
    pub(super) fn open(
        connection: Connection,
        pending_changes_max: usize,
        unflushed: Arc<UnflushedSessions>,
    ) -> Result<Self, StoreError> {
        let pending_table = PendingTable::restore(&connection, pending_changes_max, unflushed)?;
        let sql = "SELECT max(placed, (SELECT ifnull(max(id), 0) FROM turns)) + 1 FROM progress";
        let next_turn = connection.query_row(sql, [], |row| row.get(0))?;
        let prewrite = Prewrite::open(&connection)?;
        let mut writer = Self {
            connection,
            pending_table,
            next_turn,
            prewrite,
        };
        match writer.flush_all() {
            // The disk is full, but the journal can be read.
            Ok(()) | Err(StoreError::Full) => Ok(writer),
            Err(error) => Err(error),
        }
    }

    /// Returns the newest state of a generation in the pending table, and the ids of its unflushed
    /// turns.
    pub(super) fn pending_state(
        &self,
        generation: Generation,
    ) -> (Option<GenerationRow>, Vec<i64>) {
        (
            self.pending_table.row(generation).cloned(),
            self.pending_table.turns(generation),
        )
    }

    /// Returns the newest state of every generation in the pending table.
    pub(super) fn pending_rows(&self) -> impl Iterator<Item = &GenerationRow> {
        self.pending_table.rows()
    }

    /// Returns the newest states of generations in the pending table that have ended.
    pub(super) fn pending_ended_rows(&self) -> impl Iterator<Item = &GenerationRow> {
        self.pending_table.ended_rows()
    }

    /// Flushes the whole pending table.
    pub(super) fn flush_all(&mut self) -> Result<(), StoreError> {
        while !self.pending_table.is_empty() {
            self.flush_step(usize::MAX)?;
        }
        Ok(())
    }

    /// Flushes about `changes` changes in a transaction of its own.
    fn flush_step(&mut self, changes: usize) -> Result<(), StoreError> {
        if self.pending_table.is_empty() {
            return Ok(());
        }
        self.pending_table
            .begin_flush(&self.connection, self.next_turn - 1)?;
        let behavior = TransactionBehavior::Immediate;
        let transaction = self.connection.transaction_with_behavior(behavior)?;
        let flushed = self.pending_table.flush(&transaction, changes)?;
        transaction.commit()?;
        self.pending_table.advance(flushed);
        Ok(())
    }

    /// Writes all sets, prewrites turns of a later set, and runs a step of the flush in progress.
    ///
    /// Sets that replace contents of turns need the search index.
    pub(super) fn commit(
        &mut self,
        clock: &ClockAnchor,
        sets: &[ChangeSet],
        part_to_prewrite: Option<&PrewritePart>,
        index: Option<&mut IndexLock<'_>>,
    ) -> Result<CommitResults, StoreError> {
        if let Some(part) = part_to_prewrite {
            self.prewrite.retain(Some(part.generation));
        }
        self.pending_table
            .begin_flush_if_due(&self.connection, self.next_turn - 1)?;
        let behavior = TransactionBehavior::Immediate;
        let transaction = self.connection.transaction_with_behavior(behavior)?;
        let base = read_base(&transaction, &self.pending_table, sets)?;
        let plan = plan(sets, &base, false);
        let mut writer = PlanWriter {
            transaction: &transaction,
            pending_table: &self.pending_table,
            prewrite: &self.prewrite,
            pending: PendingChanges::default(),
            next_turn: self.next_turn,
            claimed: None,
            replaced: Vec::new(),
        };
        writer.write(&plan)?;
        let results = plan.results;
        let PlanWriter {
            pending,
            next_turn,
            claimed,
            replaced,
            ..
        } = writer;
        if let Some(index) = index {
            index.mark_stale(&replaced)?;
        }
        if let Some(last_id) = claimed {
            prewrite::claim(&transaction, last_id)?;
        }
        let prewritten = match part_to_prewrite {
            Some(part) => self.prewrite.write(&transaction, part)?,
            None => PrewrittenPart::default(),
        };
        let columns = GenerationRow::COLUMNS;
        let sql = format!("INSERT INTO intake_heads ({columns}) VALUES ({PLACES})");
        let mut insert = transaction.prepare_cached(&sql)?;
        for row in pending.rows_in_order() {
            row.write(&mut insert)?;
        }
        drop(insert);
        save_clock(&transaction, clock)?;
        let flushed = match self.pending_table.step_of(&pending) {
            Some(changes) => self.pending_table.flush(&transaction, changes)?,
            None => None,
        };
        self.pending_table.announce(&pending);
        transaction.commit()?;
        self.next_turn = next_turn;
        self.pending_table.extend(pending, flushed);
        if claimed.is_some() {
            self.prewrite.end_claimed();
        }
        if part_to_prewrite.is_none() {
            self.prewrite.retain(None);
        }
        let prewritten_turns = prewritten.turns();
        self.prewrite.extend(prewritten);
        Ok((results, prewritten_turns))
    }

    /// Removes prewritten contents of sets that were given up.
    pub(super) fn remove_leftovers(&mut self) -> Result<(), StoreError> {
        self.prewrite
            .remove_leftovers(&self.connection, usize::MAX)?;
        Ok(())
    }

    /// Returns the connection, for operations that do not involve the pending table.
    pub(super) fn connection(&mut self) -> &mut Connection {
        &mut self.connection
    }

    /// Runs `body` in a transaction. Rows of the pending table are not in its tables.
    ///
    /// A body that deletes turns needs the search index.
    pub(super) fn transact<T>(
        &mut self,
        index: Option<&mut IndexLock<'_>>,
        body: impl FnOnce(&dyn Tables) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let behavior = TransactionBehavior::Immediate;
        let transaction = self.connection.transaction_with_behavior(behavior)?;
        let tables = SqliteTables::new(&transaction, Some(&self.pending_table));
        let outcome = body(&tables)?;
        let deleted = tables.deleted_turns.into_inner();
        if let Some(index) = index {
            index.mark_stale(&deleted)?;
        }
        transaction.commit()?;
        Ok(outcome)
    }

    /// Deletes rows that an erasure covers, after flushing those of its next generations.
    pub(super) fn erase_rows(
        &mut self,
        job: ErasureId,
        rows_max: usize,
        index: &mut IndexLock<'_>,
    ) -> Result<ErasedRows, StoreError> {
        let is_any_unflushed = self.transact(None, |tables| {
            let next = erase::next_generations(tables, job)?;
            // For example, it may have just ended.
            Ok(next
                .iter()
                .any(|(generation, _)| tables.is_unflushed(*generation)))
        })?;
        if is_any_unflushed {
            self.flush_all()?;
        }
        self.transact(Some(index), |tables| erase::rows(tables, job, rows_max))
    }

    /// Returns the connection by shared reference.
    pub(super) fn shared_connection(&self) -> &Connection {
        &self.connection
    }

    /// Deletes the oldest rows first, so that an interrupted run resumes where it stopped.
    ///
    /// A generation is deleted after its turns, and only once it has no rows in the pending table.
    pub(super) fn prune(
        &mut self,
        before: PruneBefore,
        bounds: PruneBounds,
        index: &mut IndexLock<'_>,
    ) -> Result<Pruned, StoreError> {
        let has_room = match self.flush_step(FLUSHED_BEFORE_PRUNE_CHANGES) {
            Ok(()) => true,
            // Pruning frees space.
            Err(StoreError::Full) => false,
            Err(error) => return Err(error),
        };
        let mut pruned = self.transact(Some(index), |tables| {
            retention::prune(tables, before, bounds)
        })?;
        if self.prewrite.has_leftovers() {
            let rows_max = bounds.rows_max.max(1);
            let are_gone = self.prewrite.remove_leftovers(&self.connection, rows_max)?;
            pruned.has_more |= !are_gone;
            pruned.has_deleted_content = true;
        }
        pruned.has_more |= has_room
            && (self.pending_table.has_ended_before(before.ended)
                || has_keys_before(&self.connection, before.keys)?);
        Ok(pruned)
    }
}

/// Reads the rows that a batch changes, and what may conflict with the generations it starts.
fn read_base<'a>(
    transaction: &Transaction<'_>,
    pending_table: &'a PendingTable,
    sets: &[ChangeSet],
) -> Result<Base<Cow<'a, GenerationRow>>, StoreError> {
    let mut base = Base::default();
    let mut known = HashSet::new();
    for change in sets.iter().flat_map(|set| &set.changes) {
        let generation = change.generation;
        if known.insert(generation) {
            let row = match pending_table.row(generation) {
                Some(row) => Some(Cow::Borrowed(row)),
                None => indexed_row(transaction, generation)?.map(Cow::Owned),
            };
            base.rows.extend(row.map(|row| (generation, row)));
        }
        match &change.kind {
            ChangeKind::Begin { key, .. } => {
                let live = match pending_table.live(key) {
                    Some(live) => live,
                    None => indexed_live(transaction, key)?,
                };
                base.live.extend(live.map(|_| key.clone()));
            }
            ChangeKind::Compact { summary, .. } => {
                let with_bodies = matches!(summary, SummaryChange::Rewound { .. });
                if with_bodies || !base.summaries.contains_key(&generation) {
                    let stored = compaction::stored(transaction, generation, with_bodies)?;
                    base.summaries.insert(generation, stored);
                }
            }
            _ => {}
        }
    }
    Ok(base)
}

/// Writes the rows of a plan.
struct PlanWriter<'a> {
    transaction: &'a Transaction<'a>,
    /// Changes of earlier transactions.
    pending_table: &'a PendingTable,
    /// Contents already prewritten.
    prewrite: &'a Prewrite,
    /// Changes of this transaction.
    pending: PendingChanges,
    next_turn: i64,
    /// Id of the last prewritten content that now has its turn.
    claimed: Option<i64>,
    /// Ids of turns whose content was replaced.
    replaced: Vec<i64>,
}

impl PlanWriter<'_> {
    fn write(&mut self, plan: &Plan<'_, Cow<'_, GenerationRow>>) -> Result<(), StoreError> {
        for change in plan.rows.values() {
            self.write_row(change)?;
        }
        for (generation, appended) in &plan.appends {
            self.write_turns(*generation, &appended.turns)?;
        }
        for (generation, updated) in &plan.updates {
            self.replace_turn(*generation, updated)?;
        }
        for key in &plan.keys {
            self.write_key(*key)?;
        }
        Ok(())
    }

    /// Writes the changes to a generation, except to its turns and keys.
    fn write_row(
        &mut self,
        change: &RowChange<'_, Cow<'_, GenerationRow>>,
    ) -> Result<(), StoreError> {
        let (transaction, generation) = (self.transaction, change.generation);
        let name = generation.to_bytes();
        let put = |sql: &str, value: &dyn ToSql| {
            let mut statement = transaction.prepare_cached(sql)?;
            statement.execute(params![name, value])
        };
        if let Some(cuts) = change.cuts {
            let sql = "INSERT OR REPLACE INTO windows (generation, cuts) VALUES (?, ?)";
            put(sql, &windows::encode(cuts))?;
        }
        if let Some(patched) = change.patched {
            let sql = "INSERT OR REPLACE INTO states (generation, json) VALUES (?, ?)";
            put(sql, &&*patched.state_json)?;
        }
        if let Some(decided) = change.options {
            let sql = "INSERT OR REPLACE INTO options (generation, options) VALUES (?, ?)";
            put(sql, &options::encode(decided))?;
        }
        for subject in &change.former_subjects {
            let sql = "INSERT OR IGNORE INTO former_subjects (tenant, subject, generation)
                       VALUES (?, ?, ?)";
            let parameters = params![change.key.tenant.as_str(), subject.as_str(), name];
            transaction.prepare_cached(sql)?.execute(parameters)?;
        }
        if let Some(source) = change.copied_from {
            let sql = "INSERT OR IGNORE INTO copies (generation, source) SELECT ?1, ?2
                       UNION SELECT ?1, source FROM copies WHERE generation = ?2";
            put(sql, &source.to_bytes())?;
        }
        for (first, last) in change.rewound.iter() {
            rewound::add(transaction, generation, first, last)?;
        }
        for (key, seqs) in &change.rewinds {
            rewound::note_taken(transaction, generation, key, seqs)?;
        }
        compaction::write(transaction, change)?;
        let row = GenerationRow::changed(change);
        if let Some((at, reason, owed)) = change.ended {
            outbox::owe(transaction, &row, reason, at.steady, owed)?;
        }
        self.pending.put(row);
        Ok(())
    }

    fn write_turns(
        &mut self,
        generation: Generation,
        turns: &[(u64, Arc<[u8]>)],
    ) -> Result<(), StoreError> {
        let id_bytes = generation.to_bytes();
        let mut insert = self.transaction.prepare_cached(
            "INSERT INTO turns (id, generation, seq, content, header, checksum, content_id)
             VALUES (?, ?, ?, ?, ?, ?, ?)",
        )?;
        let mut prewritten = self.prewrite.of(generation, turns).iter();
        for (seq, content) in turns {
            let place = TurnKey {
                generation,
                seq: *seq,
            };
            let id = self.next_turn;
            let new;
            let (stored, content_id, protection) = match prewritten.next() {
                Some(written) => (&[][..], Some(written.content_id), &written.protection),
                None => {
                    new = protect(place, content);
                    (&**content, None, &new)
                }
            };
            let Protection { header, checksum } = protection;
            insert.execute(params![
                id,
                id_bytes,
                whole(*seq),
                stored,
                header,
                checksum,
                content_id
            ])?;
            self.claimed = self.claimed.max(content_id);
            let turn = PendingTurn {
                seq: whole(*seq),
                id,
            };
            self.pending.put_turn(generation, turn);
            self.next_turn += 1;
        }
        Ok(())
    }

    fn replace_turn(
        &mut self,
        generation: Generation,
        updated: &UpdatedTurn,
    ) -> Result<(), StoreError> {
        let (transaction, name, seq) = (self.transaction, generation.to_bytes(), updated.seq);
        let unindexed = self
            .pending
            .turn(generation, whole(seq))
            .or_else(|| self.pending_table.turn(generation, whole(seq)));
        let number: Option<i64> = match unindexed {
            Some(id) => Some(id),
            None => transaction
                .prepare_cached("SELECT id FROM turn_places WHERE generation = ? AND seq = ?")?
                .query_row(params![name, whole(seq)], |row| row.get(0))
                .optional()?,
        };
        let Some(number) = number else { return Ok(()) };
        prewrite::remove_content(transaction, number)?;
        let place = TurnKey { generation, seq };
        let Protection { header, checksum } = protect(place, &updated.content);
        let sql = "UPDATE turns SET content = ?, header = ?, checksum = ?, content_id = NULL
                   WHERE id = ?";
        let parameters = params![&*updated.content, header, checksum, number];
        transaction.prepare_cached(sql)?.execute(parameters)?;
        self.replaced.push(number);
        Ok(())
    }

    fn write_key(&mut self, key: NewKey<'_>) -> Result<(), StoreError> {
        let NewKey {
            session,
            name,
            record,
            ..
        } = key;
        self.pending.count_key(session);
        self.transaction
            .prepare_cached(
                "INSERT INTO intake_keys
                     (tenant, session, key, content, generation, first_seq, last_seq, dropped, at)
                 VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            )?
            .execute(params![
                session.tenant.as_str(),
                session.session.as_str(),
                name,
                record.content,
                record.generation.to_bytes(),
                whole(record.first_seq),
                whole(record.last_seq),
                whole(record.dropped_turns),
                whole(record.at.0),
            ])?;
        Ok(())
    }
}

pub(super) fn save_clock(
    transaction: &Transaction<'_>,
    clock: &ClockAnchor,
) -> Result<(), StoreError> {
    transaction
        .prepare_cached(
            "INSERT OR REPLACE INTO clock (id, steady, wall, boot_id, boot) VALUES (1, ?, ?, ?, ?)",
        )?
        .execute(params![
            whole(clock.steady.0),
            clock.wall.as_ms(),
            clock.boot_id,
            whole(clock.boot_ms)
        ])?;
    Ok(())
}
