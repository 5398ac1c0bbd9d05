//! Deletes rows past their retention, a bounded number at a time.

use memoird_store::{PruneBefore, PruneBounds, PruningPending, REMOVED_BYTES_PER_STEP, StoreError};
use tokio_postgres::Client;
use tokio_postgres::types::Type;

use crate::connect::{Arg, change, query};
use crate::values::{Ulid, count, get, limit, whole};

/// Deletes the oldest rows first, so that an interrupted run continues where it stopped.
///
/// The row of a generation is deleted after its turns.
pub(crate) async fn prune(
    client: &Client,
    before: PruneBefore,
    bounds: PruneBounds,
) -> Result<PruningPending, StoreError> {
    let rows_max = bounds.rows_max;
    let sql = "DELETE FROM memoird.idempotency WHERE ctid IN (
                   SELECT ctid FROM memoird.idempotency WHERE at < $1 ORDER BY at LIMIT $2
                   FOR UPDATE SKIP LOCKED) AND at < $1
               RETURNING 1";
    let args: [Arg<'_>; 2] = [
        (&whole(before.keys.0), Type::INT8),
        (&limit(rows_max), Type::INT8),
    ];
    let mut rows = change(client, sql, &args).await?;
    // Several daemons may prune concurrently. Each locks different rows.
    let sql = "SELECT generation, EXISTS (SELECT 1 FROM memoird.outbox AS owed
                   WHERE owed.generation = g.generation AND owed.state <> 'done')
               FROM memoird.generations AS g
               WHERE ended_at IS NOT NULL AND NOT held AND ended_at < $1
               ORDER BY ended_at LIMIT $2 FOR UPDATE SKIP LOCKED";
    let args: [Arg<'_>; 2] = [
        (&whole(before.ended.0), Type::INT8),
        (&limit(rows_max), Type::INT8),
    ];
    let mut bytes = 0;
    for row in query(client, sql, &args).await? {
        if rows >= rows_max || bytes >= REMOVED_BYTES_PER_STEP {
            break;
        }
        let generation: Ulid = get(&row, 0)?;
        if get(&row, 1)? {
            // An outcome written in the meantime waits for this transaction, then clears `held`.
            let sql = "UPDATE memoird.generations AS g SET held = true WHERE generation = $1
                           AND EXISTS (SELECT 1 FROM memoird.outbox AS owed
                               WHERE owed.generation = g.generation AND owed.state <> 'done')
                       RETURNING 1";
            rows += change(client, sql, &[(&generation, Type::UUID)]).await?;
            continue;
        }
        let bytes_left = REMOVED_BYTES_PER_STEP - bytes;
        let deleted =
            delete_generation_rows(client, generation, rows_max - rows, bytes_left).await?;
        rows += deleted.turns + deleted.summaries + 1;
        bytes += deleted.bytes;
    }
    Ok(PruningPending {
        rows: rows >= rows_max || bytes >= REMOVED_BYTES_PER_STEP,
        pages: false,
    })
}

/// Number of rows deleted of a generation.
pub(crate) struct DeletedRows {
    pub(crate) turns: usize,
    pub(crate) summaries: usize,
    /// Content bytes of the deleted turns.
    pub(crate) bytes: usize,
    /// Whether nothing of the generation is left.
    pub(crate) is_all: bool,
}

/// Deletes turns and summaries of a generation, and all of its other rows after the last turn.
///
/// At most `rows_max` rows, and no further turn once `bytes_max` bytes are deleted, but at least
/// one.
pub(crate) async fn delete_generation_rows(
    client: &Client,
    generation: Ulid,
    rows_max: usize,
    bytes_max: usize,
) -> Result<DeletedRows, StoreError> {
    // `octet_length` does not read TOASTed content.
    let sql = "DELETE FROM memoird.turns WHERE generation = $1 AND seq IN (
                   SELECT seq FROM (
                       SELECT seq, octet_length(content) AS bytes,
                           sum(octet_length(content)) OVER (ORDER BY seq) AS bytes_through
                       FROM memoird.turns WHERE generation = $1 ORDER BY seq LIMIT $2) AS first
                   WHERE bytes_through - bytes < $3)
               RETURNING octet_length(content)::int8";
    let args: [Arg<'_>; 3] = [
        (&generation, Type::UUID),
        (&limit(rows_max), Type::INT8),
        (&limit(bytes_max), Type::INT8),
    ];
    let (mut turns, mut bytes) = (0, 0);
    for row in query(client, sql, &args).await? {
        turns += 1;
        bytes += usize::try_from(count(&row, 0)?).unwrap_or(usize::MAX);
    }
    let sql = "DELETE FROM memoird.summaries WHERE generation = $1 AND number IN (
                   SELECT number FROM memoird.summaries WHERE generation = $1
                   ORDER BY number LIMIT $2)
               RETURNING 1";
    let args: [Arg<'_>; 2] = [
        (&generation, Type::UUID),
        (&limit(rows_max - turns), Type::INT8),
    ];
    let summaries = change(client, sql, &args).await?;
    let deleted = DeletedRows {
        turns,
        summaries,
        bytes,
        is_all: turns + summaries < rows_max && bytes < bytes_max,
    };
    if !deleted.is_all {
        let sql = "UPDATE memoird.generations SET journal_bytes = journal_bytes - $2
                   WHERE generation = $1";
        let args: [Arg<'_>; 2] = [(&generation, Type::UUID), (&limit(bytes), Type::INT8)];
        query(client, sql, &args).await?;
        return Ok(deleted);
    }
    for table in [
        "states",
        "windows",
        "rewound",
        "rewinds",
        "turn_changes",
        "outbox",
        "generations",
    ] {
        let sql = format!("DELETE FROM memoird.{table} WHERE generation = $1");
        query(client, &sql, &[(&generation, Type::UUID)]).await?;
    }
    Ok(deleted)
}
