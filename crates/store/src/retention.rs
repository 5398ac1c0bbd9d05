//! Deletes rows past their retention, in bounded steps.

use memoird_core::ids::Generation;

use crate::rows::StoredRow;
use crate::tables::Tables;
use crate::{PruneBefore, PruneBounds, REMOVED_BYTES_PER_STEP, StoreError};

/// Result of one pruning step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pruned {
    /// Whether there are more rows to delete.
    pub(crate) has_more: bool,
    /// Whether transcript content was deleted, which the log may still contain.
    pub(crate) has_deleted_content: bool,
}

/// Deletes the oldest rows first, so that an interrupted run resumes where it stopped.
///
/// A generation is deleted after its turns, and only if all its rows are flushed. Several daemons
/// may prune concurrently: each locks different rows.
pub(crate) fn prune(
    tables: &dyn Tables,
    before: PruneBefore,
    bounds: PruneBounds,
) -> Result<Pruned, StoreError> {
    let (dialect, rows_max) = (tables.dialect(), bounds.rows_max);
    let sql = format!(
        "DELETE FROM idempotency WHERE ({0}) IN (
             SELECT {0} FROM idempotency WHERE at < ?1 ORDER BY at LIMIT ?2 {1}) AND at < ?1",
        dialect.key_row, dialect.skip_locked
    );
    let mut rows = tables.change(&sql, &[before.keys.into(), rows_max.into()])?;
    // For EXISTS, PostgreSQL would read the whole outbox.
    let has_owed = "(SELECT count(*) FROM outbox AS owed
        WHERE owed.generation = generations.generation AND owed.state <> 'done') > 0";
    let sql = format!(
        "SELECT generation, {has_owed} FROM generations
         WHERE ended_at IS NOT NULL AND ended_at < ?1 AND held = {} ORDER BY ended_at LIMIT ?2 {}",
        dialect.no, dialect.skip_locked
    );
    let (mut bytes, mut has_deleted_content) = (0, false);
    for row in tables.query(&sql, &[before.ended.into(), rows_max.into()])? {
        if rows >= rows_max || bytes >= REMOVED_BYTES_PER_STEP {
            break;
        }
        let generation = row.generation(0)?;
        if tables.is_unflushed(generation) {
            continue;
        }
        if row.is_true(1)? {
            // An outcome written in the meantime waits for this transaction, then clears `held`.
            let sql =
                format!("UPDATE generations SET held = TRUE WHERE generation = ?1 AND {has_owed}");
            rows += tables.change(&sql, &[generation.into()])?;
            continue;
        }
        let bytes_max = REMOVED_BYTES_PER_STEP - bytes;
        let deleted = delete_generation_rows(tables, generation, rows_max - rows, bytes_max)?;
        rows += deleted.turns + deleted.summaries + 1;
        bytes += deleted.bytes;
        has_deleted_content = true;
    }
    Ok(Pruned {
        has_more: rows >= rows_max || bytes >= REMOVED_BYTES_PER_STEP,
        has_deleted_content,
    })
}

/// Rows of a generation that were deleted.
pub(crate) struct DeletedRows {
    pub(crate) turns: usize,
    pub(crate) summaries: usize,
    /// Bytes of these turns.
    pub(crate) bytes: usize,
    /// Whether the whole generation is deleted.
    pub(crate) is_all: bool,
}

/// Deletes up to `rows_max` turns and summaries of a generation, and at least one.
///
/// Stops once `bytes_max` bytes of turns are deleted. The other rows of the generation are deleted
/// once its turns and summaries are gone.
pub(crate) fn delete_generation_rows(
    tables: &dyn Tables,
    generation: Generation,
    rows_max: usize,
    bytes_max: usize,
) -> Result<DeletedRows, StoreError> {
    let deleted = tables.delete_turns(generation, rows_max, bytes_max)?;
    let sql = "DELETE FROM summaries WHERE generation = ?1 AND number IN (
                   SELECT number FROM summaries WHERE generation = ?1 ORDER BY number LIMIT ?2)";
    let rows_left = rows_max - deleted.turns;
    let summaries = tables.change(sql, &[generation.into(), rows_left.into()])?;
    let is_all = summaries < rows_left && deleted.bytes < bytes_max;
    if is_all {
        let shared = [
            "states",
            "windows",
            "rewound",
            "rewinds",
            "outbox",
            "copies",
            "former_subjects",
            "generations",
        ];
        for table in tables.dialect().own_tables.iter().chain(&shared) {
            let sql = format!("DELETE FROM {table} WHERE generation = ?1");
            tables.change(&sql, &[generation.into()])?;
        }
    }
    Ok(DeletedRows {
        turns: deleted.turns,
        summaries,
        bytes: deleted.bytes,
        is_all,
    })
}
