//! Rows of summaries and of compaction status.
//!
//! They are written rarely, so they bypass the pending table.

use std::sync::Arc;

use rusqlite::{Connection, Transaction, params};

use memoird_core::compaction::Summary;
use memoird_core::ids::Generation;

use crate::plan::{RowChange, StoredSummaries};
use crate::{StoreError, summaries};

/// Writes the status of a compaction and the changes to summaries.
pub(super) fn write<R>(
    transaction: &Transaction<'_>,
    change: &RowChange<'_, R>,
) -> Result<(), StoreError> {
    let generation = change.generation.to_bytes();
    if let Some(status) = &change.compaction {
        transaction
            .prepare_cached(
                "INSERT OR REPLACE INTO compactions (generation, status) VALUES (?, ?)",
            )?
            .execute(params![generation, summaries::encode_status(status)])?;
    }
    for number in &change.summaries_gone {
        transaction
            .prepare_cached("DELETE FROM summaries WHERE generation = ? AND number = ?")?
            .execute(params![generation, number])?;
    }
    for (number, summary) in &change.summaries_made {
        transaction
            .prepare_cached(
                "INSERT OR REPLACE INTO summaries (generation, number, body) VALUES (?, ?, ?)",
            )?
            .execute(params![generation, number, summaries::encode(summary)])?;
    }
    Ok(())
}

/// Returns the summaries of a generation, by number.
pub(super) fn stored(
    connection: &Connection,
    generation: Generation,
    with_bodies: bool,
) -> Result<StoredSummaries, StoreError> {
    let sql = "SELECT number, CASE WHEN ?2 THEN body END FROM summaries WHERE generation = ?1";
    let mut statement = connection.prepare_cached(sql)?;
    let rows = statement.query_map(params![generation.to_bytes(), with_bodies], |row| {
        let body = row.get_ref(1)?.as_blob_or_null()?;
        Ok((row.get(0)?, body.and_then(summaries::decode)))
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
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
