//! Which turns were rewound. They stay in `turns`, and reads filter them by these tables.
//!
//! Reads omit rewound turns unless `JournalRange::with_rewound` asks for them. `rewound` merges
//! adjacent ranges, so `rewinds` stores per idempotency key which turns the rewind removed. A
//! repeated rewind then returns the original result. The key of a rewind that removed no turns is
//! stored with the keys of appends.

use rusqlite::{Connection, OptionalExtension, Transaction, params};

use memoird_core::history::REWOUND_BEFORE_MAX;
use memoird_core::idempotency::Fingerprint;
use memoird_core::ids::Generation;
use memoird_core::seq_ranges::SeqRanges;

use super::row::{count, whole};
use crate::StoreError;

/// SQL that is 1 if a turn was rewound, else 0. The arguments are SQL expressions.
pub(super) fn is_rewound(generation: &str, seq: &str) -> String {
    format!(
        "ifnull((SELECT run.last_seq >= {seq} FROM rewound AS run
             WHERE run.generation = {generation} AND run.first_seq <= {seq}
             ORDER BY run.first_seq DESC LIMIT 1), 0)"
    )
}

/// SQL that is 1 if a turn appended with an idempotency key was rewound.
pub(super) fn is_key_rewound(table: &str) -> String {
    format!(
        "{table}.first_seq <= {table}.last_seq AND
             ifnull((SELECT run.last_seq >= {table}.first_seq FROM rewound AS run
             WHERE run.generation = {table}.generation AND run.first_seq <= {table}.last_seq
             ORDER BY run.first_seq DESC LIMIT 1), 0)"
    )
}

/// Marks the turns from `first` to `last`, the newest, as rewound.
pub(super) fn add(
    transaction: &Transaction<'_>,
    generation: Generation,
    first: u64,
    last: u64,
) -> Result<(), StoreError> {
    if first > last {
        return Ok(());
    }
    let name = generation.to_bytes();
    // Find the preceding range, to merge with it if adjacent.
    let sql = "SELECT first_seq, last_seq FROM rewound WHERE generation = ? AND first_seq < ?
               ORDER BY first_seq DESC LIMIT 1";
    let before = transaction
        .prepare_cached(sql)?
        .query_row(params![name, whole(first)], |row| {
            Ok((count(row, 0)?, count(row, 1)?))
        })
        .optional()?
        .filter(|(_, last)| last + 1 >= first);
    let first = before.map_or(first, |(first, _)| first);
    transaction
        .prepare_cached("DELETE FROM rewound WHERE generation = ? AND first_seq >= ?")?
        .execute(params![name, whole(first)])?;
    transaction
        .prepare_cached("INSERT INTO rewound (generation, first_seq, last_seq) VALUES (?, ?, ?)")?
        .execute(params![name, whole(first), whole(last)])?;
    Ok(())
}

/// Records which turns a rewind with an idempotency key removed.
pub(super) fn note_taken(
    transaction: &Transaction<'_>,
    generation: Generation,
    key: &Fingerprint,
    seqs: &SeqRanges,
) -> Result<(), StoreError> {
    let name = generation.to_bytes();
    // Remove the record of an earlier use of the key, which has expired.
    transaction
        .prepare_cached("DELETE FROM rewinds WHERE generation = ? AND key = ?")?
        .execute(params![name, key])?;
    let sql = "INSERT INTO rewinds (generation, key, first_seq, last_seq) VALUES (?, ?, ?, ?)";
    let mut insert = transaction.prepare_cached(sql)?;
    for (first, last) in seqs.iter() {
        insert.execute(params![name, key, whole(first), whole(last)])?;
    }
    Ok(())
}

/// Returns the turns that the rewind with an idempotency key removed.
pub(super) fn taken(
    connection: &Connection,
    generation: Generation,
    key: &Fingerprint,
) -> Result<SeqRanges, StoreError> {
    let sql = "SELECT first_seq, last_seq FROM rewinds WHERE generation = ? AND key = ?
               ORDER BY first_seq";
    let mut statement = connection.prepare_cached(sql)?;
    let runs = statement.query_map(params![generation.to_bytes(), key], |row| {
        Ok((count(row, 0)?, count(row, 1)?))
    })?;
    Ok(SeqRanges::restore(runs.collect::<Result<Vec<_>, _>>()?))
}

/// Counts the rewound turns of a generation.
pub(super) fn turns(connection: &Connection, generation: Generation) -> Result<u64, StoreError> {
    let sql = "SELECT ifnull(sum(last_seq - first_seq + 1), 0) FROM rewound WHERE generation = ?";
    let mut statement = connection.prepare_cached(sql)?;
    Ok(statement.query_row([generation.to_bytes()], |row| count(row, 0))?)
}

/// Returns the ranges after the floor of a session's history, and the newest ones before it.
pub(super) fn newest(
    connection: &Connection,
    generation: Generation,
    floor: u64,
) -> Result<SeqRanges, StoreError> {
    let sql = "SELECT first_seq, last_seq FROM rewound WHERE generation = ?
               ORDER BY first_seq DESC";
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows = statement.query([generation.to_bytes()])?;
    let (mut runs, mut before) = (Vec::new(), 0);
    while before < REWOUND_BEFORE_MAX
        && let Some(row) = rows.next()?
    {
        let run = (count(row, 0)?, count(row, 1)?);
        before += usize::from(run.1 < floor);
        runs.push(run);
    }
    Ok(SeqRanges::restore(runs.into_iter().rev()))
}
