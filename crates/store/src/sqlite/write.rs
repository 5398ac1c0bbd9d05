//! Writes change sets in one transaction per batch. Each set is written whole or rejected.
//!
//! A set is validated before any of it is written, so a rejected one needs no rollback.

use std::collections::HashMap;
use std::sync::Arc;

use rusqlite::types::Null;
use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior, params};

use memoird_core::change::{Appended, Change, ChangeKind, ChangeSet, Rewound, UpdatedTurn};
use memoird_core::history::LiveSet;
use memoird_core::idempotency::{Fingerprint, KeyRecord};
use memoird_core::ids::{Generation, SessionKey};
use memoird_core::session::Head;
use memoird_core::window::SavedCut;

use super::compaction;
use super::outbox;
use super::pending::{
    PendingChanges, PendingTable, PendingTurn, UnflushedSessions, indexed_live, indexed_row,
};
use super::prewrite::{self, Prewrite, PrewrittenPart};
use super::prune::{Pruned, has_keys_before, prune};
use super::rewound;
use super::row::{COLUMNS, GenerationRow, PLACES, whole};
use crate::checksum::{Protection, TurnKey, protect};
use crate::{
    ClockAnchor, PrewritePart, PruneBefore, PruneBounds, StaleBase, StoreError, options, windows,
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

enum Fault {
    /// Its base is stale.
    StaleBase(StaleBase),
    /// The whole transaction failed.
    Store(StoreError),
}

impl From<StoreError> for Fault {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

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
    pub(super) fn commit(
        &mut self,
        clock: &ClockAnchor,
        sets: &[ChangeSet],
        part_to_prewrite: Option<&PrewritePart>,
    ) -> Result<CommitResults, StoreError> {
        if let Some(part) = part_to_prewrite {
            self.prewrite.retain(Some(part.generation));
        }
        self.pending_table
            .begin_flush_if_due(&self.connection, self.next_turn - 1)?;
        let behavior = TransactionBehavior::Immediate;
        let transaction = self.connection.transaction_with_behavior(behavior)?;
        let mut decider = Decider {
            transaction: &transaction,
            pending_table: &self.pending_table,
            pending: PendingChanges::default(),
        };
        let mut answers = Vec::with_capacity(sets.len());
        let mut next_turn = self.next_turn;
        let mut content = Content {
            transaction: &transaction,
            pending_table: &self.pending_table,
            prewrite: &self.prewrite,
            next_turn: &mut next_turn,
            claimed: None,
        };
        for set in sets {
            answers.push(match decider.decide(set) {
                Err(Fault::Store(error)) => return Err(error),
                Err(Fault::StaleBase(refused)) => Err(refused),
                Ok(()) => {
                    for change in &set.changes {
                        content.write(change, &mut decider.pending)?;
                        decider.owe(change)?;
                    }
                    Ok(())
                }
            });
        }
        let claimed = content.claimed;
        if let Some(last_id) = claimed {
            prewrite::claim(&transaction, last_id)?;
        }
        let prewritten = match part_to_prewrite {
            Some(part) => self.prewrite.write(&transaction, part)?,
            None => PrewrittenPart::default(),
        };
        let pending = decider.pending;
        let sql = format!("INSERT INTO intake_heads ({COLUMNS}) VALUES ({PLACES})");
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
        Ok((answers, prewritten_turns))
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
    ) -> Result<Pruned, StoreError> {
        let has_room = match self.flush_step(FLUSHED_BEFORE_PRUNE_CHANGES) {
            Ok(()) => true,
            // Pruning frees space.
            Err(StoreError::Full) => false,
            Err(error) => return Err(error),
        };
        let mut pruned = prune(&mut self.connection, &self.pending_table, before, bounds)?;
        if self.prewrite.has_leftovers() {
            let rows_max = bounds.rows_max.max(1);
            let are_gone = self.prewrite.remove_leftovers(&self.connection, rows_max)?;
            pruned.unpruned.rows |= !are_gone;
            pruned.has_deleted_content = true;
        }
        pruned.unpruned.rows |= has_room
            && (self.pending_table.has_ended_before(before.ended)
                || has_keys_before(&self.connection, before.keys)?);
        Ok(pruned)
    }
}

/// Validates sets one after the other, each based on the result of the previous ones.
struct Decider<'a> {
    transaction: &'a Transaction<'a>,
    /// Changes of earlier transactions.
    pending_table: &'a PendingTable,
    /// Changes of this transaction.
    pending: PendingChanges,
}

/// Changes of a set that is not fully validated yet.
#[derive(Default)]
struct Draft {
    rows: HashMap<Generation, GenerationRow>,
    live: HashMap<SessionKey, Option<Generation>>,
    order: Vec<Generation>,
}

impl Decider<'_> {
    fn decide(&mut self, set: &ChangeSet) -> Result<(), Fault> {
        let mut draft = Draft::default();
        for change in &set.changes {
            let row = self.changed(&draft, change)?;
            let generation = row.head.generation;
            let live = row.ended.is_none().then_some(generation);
            draft.live.insert(row.key.clone(), live);
            draft.order.retain(|known| *known != generation);
            draft.order.push(generation);
            draft.rows.insert(generation, row);
        }
        for generation in draft.order {
            draft
                .rows
                .remove(&generation)
                .into_iter()
                .for_each(|row| self.pending.put(row));
        }
        Ok(())
    }

    /// Inserts the deliveries caused by the end of a generation.
    fn owe(&self, change: &Change) -> Result<(), StoreError> {
        let ChangeKind::End { reason, at, owed } = &change.kind else {
            return Ok(());
        };
        match self.pending.row(change.generation) {
            Some(row) => outbox::owe(self.transaction, row, *reason, at.steady, owed),
            None => Ok(()),
        }
    }

    /// Returns the row of a generation after a change.
    fn changed(&self, draft: &Draft, change: &Change) -> Result<GenerationRow, Fault> {
        let generation = change.generation;
        let refused = || Fault::StaleBase(StaleBase { generation });
        if let ChangeKind::Begin {
            key,
            created_at,
            last_access,
        } = &change.kind
        {
            let is_free = self.live(draft, key)?.is_none();
            let is_new = self.row(draft, generation)?.is_none();
            let head = Head::begin(generation, *created_at, *last_access);
            let row = GenerationRow {
                key: key.clone(),
                head,
                kept: LiveSet::default(),
                ended: None,
            };
            return (is_free && is_new).then_some(row).ok_or_else(refused);
        }
        let mut row = self
            .row(draft, generation)?
            .filter(|row| row.ended.is_none())
            .ok_or_else(refused)?;
        if change.expected_revision != row.head.revision {
            return Err(refused());
        }
        row.head.revision += 1;
        match &change.kind {
            ChangeKind::Begin { .. } => {}
            ChangeKind::Append(appended) => take_turns(&mut row, appended).ok_or_else(refused)?,
            ChangeKind::Rewind(rewound) => take_back(&mut row, rewound).ok_or_else(refused)?,
            ChangeKind::UpdateTurn(updated) => {
                row.head.totals = updated.totals;
                row.kept.clone_from(&updated.kept);
            }
            ChangeKind::PatchState(patched) => {
                row.head.state_version = patched.version;
                row.head.last_access = patched.last_access;
            }
            ChangeKind::SetOptions(options) => row.head.options = Some(Arc::clone(options)),
            ChangeKind::Touch { last_access, .. } => row.head.last_access = *last_access,
            ChangeKind::Compact {
                status, summary, ..
            } => {
                let status = compaction::corrected(self.transaction, generation, status, summary)?;
                row.head.compaction = Some(status);
            }
            ChangeKind::End { reason, at, .. } => row.ended = Some((*at, *reason)),
        }
        Ok(row)
    }

    fn row(&self, draft: &Draft, generation: Generation) -> Result<Option<GenerationRow>, Fault> {
        let noted = draft
            .rows
            .get(&generation)
            .or_else(|| self.pending.row(generation));
        match noted.or_else(|| self.pending_table.row(generation)) {
            Some(row) => Ok(Some(row.clone())),
            None => Ok(indexed_row(self.transaction, generation)?),
        }
    }

    fn live(&self, draft: &Draft, key: &SessionKey) -> Result<Option<Generation>, Fault> {
        let noted = draft
            .live
            .get(key)
            .copied()
            .or_else(|| self.pending.live(key));
        match noted.or_else(|| self.pending_table.live(key)) {
            Some(live) => Ok(live),
            None => Ok(indexed_live(self.transaction, key)?),
        }
    }
}

/// Applies an append to a row. `None` unless its seqs continue those of the generation.
fn take_turns(row: &mut GenerationRow, appended: &Appended) -> Option<()> {
    let head = &mut row.head;
    for (seq, _) in &appended.turns {
        if *seq != head.last_seq + 1 {
            return None;
        }
        head.last_seq = *seq;
        head.newest_seq = *seq;
    }
    head.totals = appended.totals;
    head.partial = appended.partial;
    head.last_access = appended.last_access;
    if appended.subject.is_some() {
        head.subject.clone_from(&appended.subject);
    }
    row.kept.clone_from(&appended.kept);
    Some(())
}

/// Applies a rewind to a row. `None` if the newest turn is not the expected one.
fn take_back(row: &mut GenerationRow, rewound: &Rewound) -> Option<()> {
    let head = &mut row.head;
    if rewound.through_seq != head.last_seq || rewound.after_seq > head.last_seq {
        return None;
    }
    head.newest_seq = rewound.newest_seq;
    head.totals = rewound.totals;
    head.partial = rewound.partial;
    head.last_access = rewound.last_access;
    row.kept.clone_from(&rewound.kept);
    Some(())
}

/// Writes the content of changes, other than the state of their generations.
struct Content<'a> {
    transaction: &'a Transaction<'a>,
    /// Changes of earlier transactions.
    pending_table: &'a PendingTable,
    /// Contents already prewritten.
    prewrite: &'a Prewrite,
    next_turn: &'a mut i64,
    /// Id of the last prewritten content that now has its turn.
    claimed: Option<i64>,
}

impl Content<'_> {
    fn write(&mut self, change: &Change, pending: &mut PendingChanges) -> Result<(), StoreError> {
        let (transaction, generation) = (self.transaction, change.generation);
        match &change.kind {
            ChangeKind::Append(appended) => {
                write_cuts(transaction, generation, appended.cuts.as_deref())?;
                self.write_turns(generation, appended, pending)?;
                write_key(
                    transaction,
                    &appended.key,
                    appended.idempotency.as_ref(),
                    pending,
                )
            }
            ChangeKind::Rewind(rewind) => {
                write_cuts(transaction, generation, rewind.cuts.as_deref())?;
                rewound::add(
                    transaction,
                    generation,
                    rewind.after_seq + 1,
                    rewind.through_seq,
                )?;
                if let Some((key, seqs)) = &rewind.taken {
                    rewound::note_taken(transaction, generation, key, seqs)?;
                }
                write_key(
                    transaction,
                    &rewind.key,
                    rewind.idempotency.as_ref(),
                    pending,
                )
            }
            ChangeKind::UpdateTurn(updated) => {
                write_cuts(transaction, generation, updated.cuts.as_deref())?;
                self.replace_turn(generation, updated, pending)
            }
            ChangeKind::Touch { cuts, .. } => write_cuts(transaction, generation, cuts.as_deref()),
            ChangeKind::PatchState(patched) => {
                transaction
                    .prepare_cached(
                        "INSERT OR REPLACE INTO states (generation, json) VALUES (?, ?)",
                    )?
                    .execute(params![generation.to_bytes(), &*patched.state_json])?;
                write_key(
                    transaction,
                    &patched.key,
                    patched.idempotency.as_ref(),
                    pending,
                )
            }
            ChangeKind::SetOptions(decided) => {
                transaction
                    .prepare_cached(
                        "INSERT OR REPLACE INTO options (generation, options) VALUES (?, ?)",
                    )?
                    .execute(params![generation.to_bytes(), options::encode(decided)])?;
                Ok(())
            }
            ChangeKind::Compact {
                status,
                summary,
                cuts,
            } => {
                write_cuts(transaction, generation, cuts.as_deref())?;
                compaction::write(transaction, generation, status, summary)
            }
            ChangeKind::Begin { .. } | ChangeKind::End { .. } => Ok(()),
        }
    }

    fn write_turns(
        &mut self,
        generation: Generation,
        appended: &Appended,
        pending: &mut PendingChanges,
    ) -> Result<(), StoreError> {
        let id_bytes = generation.to_bytes();
        let mut insert = self.transaction.prepare_cached(
            "INSERT INTO turns (id, generation, seq, content, header, checksum, content_id)
             VALUES (?, ?, ?, ?, ?, ?, ?)",
        )?;
        let mut prewritten = self.prewrite.of(generation, &appended.turns).iter();
        for (seq, content) in &appended.turns {
            let place = TurnKey {
                generation,
                seq: *seq,
            };
            let id = *self.next_turn;
            match prewritten.next() {
                Some(written) => {
                    let Protection { header, checksum } = &written.protection;
                    let content_id = written.content_id;
                    insert.execute(params![
                        id,
                        id_bytes,
                        whole(*seq),
                        [0_u8; 0],
                        header,
                        checksum,
                        content_id
                    ])?;
                    self.claimed = self.claimed.max(Some(content_id));
                }
                None => {
                    let Protection { header, checksum } = protect(place, content);
                    insert.execute(params![
                        id,
                        id_bytes,
                        whole(*seq),
                        &**content,
                        header,
                        checksum,
                        Null
                    ])?;
                }
            }
            let turn = PendingTurn {
                seq: whole(*seq),
                id,
            };
            pending.put_turn(generation, turn);
            *self.next_turn += 1;
        }
        Ok(())
    }

    /// Replaces the content of a turn, and records that for followers of the journal.
    fn replace_turn(
        &self,
        generation: Generation,
        updated: &UpdatedTurn,
        pending: &PendingChanges,
    ) -> Result<(), StoreError> {
        let (transaction, name, seq) = (self.transaction, generation.to_bytes(), updated.seq);
        let unindexed = pending
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
        if transaction.prepare_cached(sql)?.execute(parameters)? > 0 {
            transaction
                .prepare_cached("INSERT INTO turn_changes (generation, turn) VALUES (?, ?)")?
                .execute(params![name, number])?;
        }
        Ok(())
    }
}

fn write_cuts(
    transaction: &Transaction<'_>,
    generation: Generation,
    cuts: Option<&[SavedCut]>,
) -> Result<(), StoreError> {
    let Some(cuts) = cuts else { return Ok(()) };
    transaction
        .prepare_cached("INSERT OR REPLACE INTO windows (generation, cuts) VALUES (?, ?)")?
        .execute(params![generation.to_bytes(), windows::encode(cuts)])?;
    Ok(())
}

/// Writes the idempotency key of a change, if it has one.
fn write_key(
    transaction: &Transaction<'_>,
    session: &SessionKey,
    idempotency: Option<&(Fingerprint, KeyRecord)>,
    pending: &mut PendingChanges,
) -> Result<(), StoreError> {
    let Some((key, record)) = idempotency else {
        return Ok(());
    };
    pending.count_key(session);
    transaction
        .prepare_cached(
            "INSERT INTO intake_keys
                 (tenant, session, key, content, generation, first_seq, last_seq, dropped, at)
             VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        )?
        .execute(params![
            session.tenant.as_str(),
            session.session.as_str(),
            key,
            record.content,
            record.generation.to_bytes(),
            whole(record.first_seq),
            whole(record.last_seq),
            whole(record.dropped_turns),
            whole(record.at.0),
        ])?;
    Ok(())
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
