//! Deletes turns, and releases their pages to the file system.

use rusqlite::{Connection, params};

use memoird_core::ids::Generation;
use memoird_core::time::Steady;

use super::prewrite::CONTENT_BYTES;
use super::row::{count, whole};
use crate::{DeletedTurns, StoreError};

/// Deletes the first turns of a generation; see [`crate::Tables::delete_turns`].
///
/// Returns their ids, too.
pub(super) fn delete_turns(
    connection: &Connection,
    generation: Generation,
    rows_max: usize,
    bytes_max: usize,
) -> Result<(Vec<i64>, DeletedTurns), StoreError> {
    let generation = generation.to_bytes();
    let (ids, bytes) = turns_within(connection, generation, rows_max, bytes_max)?;
    let turns = ids.len();
    connection
        .prepare_cached(
            "DELETE FROM contents WHERE id IN
                 (SELECT content_id FROM turns WHERE id IN
                     (SELECT id FROM turn_places WHERE generation = ? ORDER BY seq LIMIT ?))",
        )?
        .execute(params![generation, turns as i64])?;
    connection
        .prepare_cached(
            "DELETE FROM turns WHERE id IN
                 (SELECT id FROM turn_places WHERE generation = ? ORDER BY seq LIMIT ?)",
        )?
        .execute(params![generation, turns as i64])?;
    connection
        .prepare_cached(
            "DELETE FROM turn_places WHERE generation = ?1 AND seq IN
                 (SELECT seq FROM turn_places WHERE generation = ?1 ORDER BY seq LIMIT ?2)",
        )?
        .execute(params![generation, turns as i64])?;
    Ok((ids, DeletedTurns { turns, bytes }))
}

/// Returns the first turns of a generation that fill `bytes_max` bytes, and their bytes.
fn turns_within(
    connection: &Connection,
    generation: [u8; 16],
    rows_max: usize,
    bytes_max: usize,
) -> Result<(Vec<i64>, usize), StoreError> {
    let sql = format!(
        "SELECT {CONTENT_BYTES}, turns.id FROM turn_places JOIN turns ON turns.id = turn_places.id
         WHERE turn_places.generation = ? ORDER BY turn_places.seq LIMIT ?"
    );
    let mut statement = connection.prepare_cached(&sql)?;
    let mut lengths = statement.query(params![generation, rows_max as i64])?;
    let (mut turns, mut bytes) = (Vec::new(), 0);
    while bytes < bytes_max
        && let Some(row) = lengths.next()?
    {
        bytes += usize::try_from(count(row, 0)?).unwrap_or(usize::MAX);
        turns.push(row.get(1)?);
    }
    Ok((turns, bytes))
}

/// Releases free pages to the file system. Returns whether there may be more.
pub(super) fn release_pages(connection: &Connection, pages_max: usize) -> Result<bool, StoreError> {
    let mut vacuum =
        connection.prepare_cached(&format!("PRAGMA incremental_vacuum({pages_max})"))?;
    // Each result row is one released page.
    let mut given_back = vacuum.query([])?;
    let mut pages = 0;
    while given_back.next()?.is_some() {
        pages += 1;
    }
    Ok(pages >= pages_max)
}

/// Whether the pending table has idempotency keys last used before this time.
pub(super) fn has_keys_before(connection: &Connection, moment: Steady) -> Result<bool, StoreError> {
    let sql = "SELECT 1 FROM intake_keys WHERE at < ?";
    Ok(connection.prepare_cached(sql)?.exists([whole(moment.0)])?)
}
