//! What was taken in and is not yet in its place, and how it gets there.
//!
//! The idea is that of a log-structured store: writing is cheap because it goes to the
//! end, and the sorting is done later, for many changes at once. What a change has to be
//! checked against, the newest state of its generation, is kept in memory until then.

use std::collections::HashMap;

use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior, params};

use memoird_core::ids::{Generation, SessionKey};

use super::row::{COLUMNS, GenerationRow, PLACES, select_from};
use crate::{KEYS_MAX, StoreError};

/// What the end of a generation costs a fold, in changes of other kinds: it is a row that
/// nobody has touched for long, and it moves from one index to two others. Counted as one,
/// a sweep would make the pauses of its folds many times longer.
const END_WEIGHT: usize = 12;

/// A session with so many more idempotency keys than before is cut to the newest
/// [`KEYS_MAX`] at a fold: seldom enough that it costs little for each key.
const KEYS_BETWEEN_CUTS: usize = 128;
/// Once the keys of so many sessions are counted, the counting begins anew.
const COUNTED_SESSIONS_MAX: usize = 100_000;

/// The newest state of every generation that changed since the last fold.
#[derive(Debug, Default)]
pub(super) struct Intake {
    rows: HashMap<Generation, GenerationRow>,
    /// The live generation of every session that changed; `None`: it has none.
    live: HashMap<SessionKey, Option<Generation>>,
    /// The ids of turns that have no place yet, ascending.
    turns: HashMap<Generation, Vec<i64>>,
    changes: usize,
    /// How many keys each session got since its keys were cut, folds included.
    keys: HashMap<SessionKey, usize>,
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

    /// Notes that a session got an idempotency key.
    pub(super) fn count_key(&mut self, key: &SessionKey) {
        *self.keys.entry(key.clone()).or_default() += 1;
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
        for (key, count) in newer.keys {
            *self.keys.entry(key).or_default() += count;
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
        let is_due = |count: usize| count >= KEYS_BETWEEN_CUTS;
        let due = self.keys.iter().filter(|(_, count)| is_due(**count));
        for (key, _) in due {
            cut_keys(&transaction, key)?;
        }
        transaction.commit()?;
        let mut keys = std::mem::take(&mut self.keys);
        keys.retain(|_, count| !is_due(*count));
        if keys.len() >= COUNTED_SESSIONS_MAX {
            keys.clear();
        }
        *self = Self {
            keys,
            ..Self::default()
        };
        Ok(())
    }
}

/// Forgets all idempotency keys of a session but the newest, which alone are read back.
fn cut_keys(transaction: &Transaction<'_>, key: &SessionKey) -> Result<(), StoreError> {
    let (tenant, session) = (key.tenant.as_str(), key.session.as_str());
    transaction
        .prepare_cached(
            "DELETE FROM idempotency WHERE tenant = ?1 AND session = ?2 AND key IN
                 (SELECT key FROM idempotency WHERE tenant = ?1 AND session = ?2
                  ORDER BY at DESC, generation DESC, last_seq DESC LIMIT -1 OFFSET ?3)",
        )?
        .execute(params![tenant, session, KEYS_MAX as i64])?;
    Ok(())
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
