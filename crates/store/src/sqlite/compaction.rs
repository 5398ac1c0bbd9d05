//! Rows of summaries and of compaction status.
//!
//! They are written rarely, so they bypass the pending table.

use std::sync::Arc;

use rusqlite::{Connection, Transaction, params};

use memoird_core::change::SummaryChange;
use memoird_core::compaction::{CompactionStatus, Summary};
use memoird_core::ids::Generation;

use crate::{StoreError, summaries};

/// Writes the status of a compaction and the change to its summary.
pub(super) fn write(
    transaction: &Transaction<'_>,
    generation: Generation,
    status: &Arc<CompactionStatus>,
    summary: &SummaryChange,
) -> Result<(), StoreError> {
    let status = corrected(transaction, generation, status, summary)?;
    let generation = generation.to_bytes();
    transaction
        .prepare_cached("INSERT OR REPLACE INTO compactions (generation, status) VALUES (?, ?)")?
        .execute(params![generation, summaries::encode_status(&status)])?;
    match summary {
        SummaryChange::Stays => {}
        SummaryChange::Made(made) => {
            // Numbers only grow. If the status was damaged they restart, and an old summary with a
            // higher number must not be taken for a newer one.
            transaction
                .prepare_cached("DELETE FROM summaries WHERE generation = ? AND number >= ?")?
                .execute(params![generation, made.number])?;
            transaction
                .prepare_cached(
                    "INSERT INTO summaries (generation, number, body) VALUES (?, ?, ?)",
                )?
                .execute(params![generation, made.number, summaries::encode(made)])?;
        }
        SummaryChange::Undone(number) => {
            transaction
                .prepare_cached("DELETE FROM summaries WHERE generation = ? AND number = ?")?
                .execute(params![generation, number])?;
        }
        SummaryChange::Rewound { after_seq } => {
            let standing = standing(transaction, generation, *after_seq)?;
            let number = standing.map_or(0, |summary| summary.number);
            transaction
                .prepare_cached("DELETE FROM summaries WHERE generation = ? AND number > ?")?
                .execute(params![generation, number])?;
        }
    }
    Ok(())
}

/// Returns the status after a change. Only the store knows the current summary after a rewind.
pub(super) fn corrected(
    connection: &Connection,
    generation: Generation,
    status: &Arc<CompactionStatus>,
    summary: &SummaryChange,
) -> Result<Arc<CompactionStatus>, StoreError> {
    let status = summaries::kept_status(status);
    let SummaryChange::Rewound { after_seq } = summary else {
        return Ok(status);
    };
    let standing = standing(connection, generation.to_bytes(), *after_seq)?;
    Ok(summaries::status_through(&status, standing.as_ref()))
}

/// Returns the newest summary that decodes and covers no turn after this one.
fn standing(
    connection: &Connection,
    generation: [u8; 16],
    after_seq: u64,
) -> Result<Option<Summary>, StoreError> {
    let sql = "SELECT body FROM summaries WHERE generation = ? ORDER BY number DESC";
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows = statement.query([generation])?;
    while let Some(row) = rows.next()? {
        let summary = summaries::decode(&row.get::<_, Vec<u8>>(0)?);
        if let Some(summary) = summary.filter(|summary| summary.through_seq <= after_seq) {
            return Ok(Some(summary));
        }
    }
    Ok(None)
}

/// Returns the current summary: the newest that decodes.
pub(super) fn newest(
    connection: &Connection,
    generation: Generation,
) -> Result<Option<Arc<Summary>>, StoreError> {
    let sql = "SELECT body FROM summaries WHERE generation = ? ORDER BY number DESC";
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows = statement.query([generation.to_bytes()])?;
    while let Some(row) = rows.next()? {
        if let Some(summary) = summaries::decode(&row.get::<_, Vec<u8>>(0)?) {
            return Ok(Some(Arc::new(summary)));
        }
    }
    Ok(None)
}

/// Returns the summaries with these numbers that exist and decode.
pub(super) fn numbered(
    connection: &Connection,
    generation: Generation,
    numbers: impl Iterator<Item = u32>,
) -> Result<Vec<Arc<Summary>>, StoreError> {
    let sql = "SELECT body FROM summaries WHERE generation = ? AND number = ?";
    let mut statement = connection.prepare_cached(sql)?;
    let mut found = Vec::new();
    for number in numbers {
        let mut rows = statement.query(params![generation.to_bytes(), number])?;
        if let Some(row) = rows.next()? {
            found.extend(summaries::decode(&row.get::<_, Vec<u8>>(0)?).map(Arc::new));
        }
    }
    Ok(found)
}

/// Deletes at most `rows_max` summaries of a generation, and returns how many.
pub(super) fn forget(
    transaction: &Transaction<'_>,
    generation: [u8; 16],
    rows_max: usize,
) -> rusqlite::Result<usize> {
    transaction
        .prepare_cached(
            "DELETE FROM summaries WHERE generation = ?1 AND number IN
                 (SELECT number FROM summaries WHERE generation = ?1 ORDER BY number LIMIT ?2)",
        )?
        .execute(params![
            generation,
            i64::try_from(rows_max).unwrap_or(i64::MAX)
        ])
}
