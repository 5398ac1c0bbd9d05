//! Deletes rows past their retention, in bounded steps.

use rusqlite::types::Value;
use rusqlite::{Connection, Transaction, TransactionBehavior, params};

use memoird_core::ids::Generation;
use memoird_core::time::Steady;

use super::compaction;
use super::pending::PendingTable;
use super::row::{count, whole};
use crate::{PruneBefore, PruneBounds, PruningPending, REMOVED_BYTES_PER_STEP, StoreError};

/// Deletes the oldest rows first, so that an interrupted run resumes where it stopped.
///
/// A generation is deleted after its turns, and only if it has no rows in the pending table.
pub(super) fn prune(
    connection: &mut Connection,
    pending: &PendingTable,
    before: PruneBefore,
    bounds: PruneBounds,
) -> Result<Pruned, StoreError> {
    let rows_max = bounds.rows_max;
    let rows_max_sql = Value::Integer(rows_max as i64);
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let keys = transaction.execute(
        "DELETE FROM idempotency WHERE (tenant, session, key) IN
             (SELECT tenant, session, key FROM idempotency WHERE at < ? ORDER BY at LIMIT ?)",
        params![whole(before.keys.0), rows_max_sql],
    )?;
    let mut oldest = transaction.prepare_cached(
        "SELECT generation, EXISTS (SELECT 1 FROM outbox AS owed
             WHERE owed.generation = generations.generation AND owed.state <> 'done')
         FROM generations WHERE ended_at < ? AND held = 0 ORDER BY ended_at LIMIT ?",
    )?;
    let generations = oldest
        .query_map(params![whole(before.ended.0), rows_max_sql], |row| {
            Ok((row.get::<_, [u8; 16]>(0)?, row.get::<_, bool>(1)?))
        })?
        .collect::<Result<Vec<_>, _>>()?;
    drop(oldest);
    let (mut rows, mut bytes, mut has_deleted_content) = (keys, 0, false);
    for (generation, is_owed) in generations {
        if rows >= rows_max || bytes >= REMOVED_BYTES_PER_STEP {
            break;
        }
        if pending.row(Generation::from_bytes(generation)).is_some() {
            continue;
        }
        if is_owed {
            transaction
                .prepare_cached("UPDATE generations SET held = 1 WHERE generation = ?")?
                .execute([generation])?;
            rows += 1;
            continue;
        }
        let bytes_max = REMOVED_BYTES_PER_STEP - bytes;
        let deleted = delete_generation_rows(&transaction, generation, rows_max - rows, bytes_max)?;
        rows += deleted.turns + deleted.summaries + 1;
        bytes += deleted.bytes;
        has_deleted_content = true;
    }
    transaction.commit()?;
    let unpruned = PruningPending {
        rows: rows >= rows_max || bytes >= REMOVED_BYTES_PER_STEP,
        pages: release_pages(connection, bounds.pages_max)?,
    };
    Ok(Pruned {
        unpruned,
        has_deleted_content,
    })
}

/// Result of one pruning step.
pub(super) struct Pruned {
    pub(super) unpruned: PruningPending,
    /// Whether transcript content was deleted, which the log may still contain.
    pub(super) has_deleted_content: bool,
}

/// Rows of a generation that were deleted.
pub(super) struct DeletedRows {
    pub(super) turns: usize,
    pub(super) summaries: usize,
    /// Bytes of these turns.
    pub(super) bytes: usize,
    /// Whether the whole generation is deleted.
    pub(super) is_all: bool,
}

/// Deletes up to `rows_max` turns and summaries of a generation, and at least one.
///
/// Stops once `bytes_max` bytes of turns are deleted. The other rows of the generation are deleted
/// once its turns and summaries are gone.
pub(super) fn delete_generation_rows(
    transaction: &Transaction<'_>,
    generation: [u8; 16],
    rows_max: usize,
    bytes_max: usize,
) -> Result<DeletedRows, StoreError> {
    let (turns_max, bytes) = turns_within(transaction, generation, rows_max, bytes_max)?;
    transaction
        .prepare_cached(
            "DELETE FROM contents WHERE id IN
                 (SELECT content_id FROM turns WHERE id IN
                     (SELECT id FROM turn_places WHERE generation = ? ORDER BY seq LIMIT ?))",
        )?
        .execute(params![generation, turns_max as i64])?;
    let turns = transaction
        .prepare_cached(
            "DELETE FROM turns WHERE id IN
                 (SELECT id FROM turn_places WHERE generation = ? ORDER BY seq LIMIT ?)",
        )?
        .execute(params![generation, turns_max as i64])?;
    transaction
        .prepare_cached(
            "DELETE FROM turn_places WHERE generation = ?1 AND seq IN
                 (SELECT seq FROM turn_places WHERE generation = ?1 ORDER BY seq LIMIT ?2)",
        )?
        .execute(params![generation, turns as i64])?;
    let summaries = compaction::forget(transaction, generation, rows_max - turns)?;
    let is_all = turns + summaries < rows_max && bytes < bytes_max;
    if is_all {
        for table in [
            "states",
            "windows",
            "compactions",
            "options",
            "rewound",
            "rewinds",
            "turn_changes",
            "outbox",
            "generations",
        ] {
            transaction
                .prepare_cached(&format!("DELETE FROM {table} WHERE generation = ?"))?
                .execute([generation])?;
        }
    }
    Ok(DeletedRows {
        turns,
        summaries,
        bytes,
        is_all,
    })
}

/// Returns how many of the first turns of a generation fill `bytes_max` bytes, and their bytes.
fn turns_within(
    transaction: &Transaction<'_>,
    generation: [u8; 16],
    rows_max: usize,
    bytes_max: usize,
) -> Result<(usize, usize), StoreError> {
    // SQLite determines a length without reading the content.
    let mut statement = transaction.prepare_cached(
        "SELECT ifnull(length(turns.content), 0) + ifnull(
             (SELECT length(contents.content) FROM contents WHERE contents.id = turns.content_id), 0)
         FROM turn_places JOIN turns ON turns.id = turn_places.id
         WHERE turn_places.generation = ? ORDER BY turn_places.seq LIMIT ?",
    )?;
    let mut lengths = statement.query(params![generation, rows_max as i64])?;
    let (mut turns, mut bytes) = (0, 0);
    while bytes < bytes_max
        && let Some(row) = lengths.next()?
    {
        bytes += usize::try_from(count(row, 0)?).unwrap_or(usize::MAX);
        turns += 1;
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
