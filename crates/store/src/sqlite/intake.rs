//! What was taken in and is not yet in its place, and how it gets there.
//!
//! The idea is that of a log-structured store: writing is cheap because it goes to the
//! end, and the sorting is done later, for many changes at once. What a change has to be
//! checked against, the newest state of its generation, is kept in memory until then.

use std::collections::HashMap;

use rusqlite::{Connection, OptionalExtension, TransactionBehavior, params};

use memoird_core::ids::{Generation, SessionKey};

use super::row::{COLUMNS, GenerationRow, PLACES, select_from};
use crate::StoreError;

/// What the end of a generation costs a fold, in changes of other kinds: it is a row that
/// nobody has touched for long, and it moves from one index to two others. Counted as one,
/// a sweep would make the pauses of its folds many times longer.
const END_WEIGHT: usize = 12;

/// The newest state of every generation that changed since the last fold.
#[derive(Debug, Default)]
pub(super) struct Intake {
    rows: HashMap<Generation, GenerationRow>,
    /// The live generation of every session that changed; `None`: it has none.
    live: HashMap<SessionKey, Option<Generation>>,
    /// The ids of turns that have no place yet, ascending.
    turns: HashMap<Generation, Vec<i64>>,
    changes: usize,
}

impl Intake {
    /// What a crash left of the intake.
    pub(super) fn restore(connection: &Connection) -> Result<Self, StoreError> {
        let mut intake = Self::default();
        let sql = format!("{} ORDER BY id", select_from("intake_heads"));
        let mut statement = connection.prepare(&sql)?;
        for row in statement.query_map([], GenerationRow::read)? {
            intake.put(row?);
        }
        let sql = "SELECT generation, id FROM turns WHERE id > (SELECT placed FROM progress)";
        let mut statement = connection.prepare(sql)?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            intake.put_turn(Generation::from_bytes(row.get(0)?), row.get(1)?);
        }
        Ok(intake)
    }

    /// Notes the newest state of a generation.
    pub(super) fn put(&mut self, row: GenerationRow) {
        self.changes += if row.ended.is_some() { END_WEIGHT } else { 1 };
        let live = self.live.entry(row.key.clone()).or_default();
        if row.ended.is_none() {
            *live = Some(row.head.generation);
        } else if *live == Some(row.head.generation) {
            *live = None;
        }
        self.rows.insert(row.head.generation, row);
    }

    /// Notes a turn that has no place yet.
    pub(super) fn put_turn(&mut self, generation: Generation, id: i64) {
        self.changes += 1;
        self.turns.entry(generation).or_default().push(id);
    }

    /// The ids of a generation's turns that have no place yet, ascending.
    pub(super) fn turns(&self, generation: Generation) -> &[i64] {
        self.turns.get(&generation).map_or(&[], Vec::as_slice)
    }

    /// Takes over what another one noted later.
    pub(super) fn extend(&mut self, newer: Self) {
        self.rows.extend(newer.rows);
        self.live.extend(newer.live);
        for (generation, ids) in newer.turns {
            self.turns.entry(generation).or_default().extend(ids);
        }
        self.changes += newer.changes;
    }

    pub(super) fn row(&self, generation: Generation) -> Option<&GenerationRow> {
        self.rows.get(&generation)
    }

    /// The row of a session's live generation, if there is one.
    pub(super) fn live(&self, key: &SessionKey) -> Option<Option<Generation>> {
        self.live.get(key).copied()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    pub(super) fn changes(&self) -> usize {
        self.changes
    }

    /// The newest states, in no order.
    pub(super) fn rows(&self) -> impl Iterator<Item = &GenerationRow> {
        self.rows.values()
    }

    /// Puts everything in its place, in one transaction, and is empty then.
    pub(super) fn fold(&mut self, connection: &mut Connection) -> Result<(), StoreError> {
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        transaction.execute_batch(
            "INSERT INTO turn_places (generation, seq, id)
                 SELECT generation, seq, id FROM turns
                 WHERE id > (SELECT placed FROM progress) ORDER BY generation, seq;
             UPDATE progress SET placed = max(placed, (SELECT ifnull(max(id), 0) FROM turns));
             INSERT OR REPLACE INTO idempotency
                 SELECT tenant, session, key, content, generation, first_seq, last_seq, dropped, at
                 FROM intake_keys ORDER BY id;
             DELETE FROM intake_keys;
             DELETE FROM intake_heads;",
        )?;
        let sql = format!(
            "INSERT INTO generations ({COLUMNS}) VALUES ({PLACES})
             ON CONFLICT (generation) DO UPDATE SET
                 subject = excluded.subject, last_access = excluded.last_access,
                 revision = excluded.revision, last_seq = excluded.last_seq,
                 kept = excluded.kept, turns = excluded.turns, bytes = excluded.bytes,
                 tokens = excluded.tokens, partial = excluded.partial,
                 state_version = excluded.state_version, ended_ms = excluded.ended_ms,
                 ended_at = excluded.ended_at, reason = excluded.reason"
        );
        let mut insert = transaction.prepare_cached(&sql)?;
        // Ends first: a session's next generation must not meet the one before it.
        let mut rows: Vec<&GenerationRow> = self.rows.values().collect();
        rows.sort_by_key(|row| (row.ended.is_none(), row.head.generation));
        for row in rows {
            row.write(&mut insert)?;
        }
        drop(insert);
        transaction.commit()?;
        *self = Self::default();
        Ok(())
    }
}

/// The row of a generation, where it is found once it was folded.
pub(super) fn folded_row(
    connection: &Connection,
    generation: Generation,
) -> Result<Option<GenerationRow>, StoreError> {
    let sql = format!("{} WHERE generation = ?", select_from("generations"));
    let mut statement = connection.prepare_cached(&sql)?;
    Ok(statement
        .query_row([generation.to_bytes()], GenerationRow::read)
        .optional()?)
}

/// The live generation of a session, where it is found once it was folded.
pub(super) fn folded_live(
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
