//! Erasures: the job is stored first, then rows are deleted in bounded steps.
//!
//! The scope of a job (`erasure_generations`) outlives the rows it was collected from. So after a
//! crash at any point, the job has everything it needs to continue.

use memoird_core::ids::{ErasureId, Generation, HookName, SessionId, Subject, TenantId};
use rusqlite::{Connection, OptionalExtension, Row, Transaction, TransactionBehavior, params};

use super::prune::delete_generation_rows;
use super::row::{damaged, id};
use super::write::Writer;
use crate::{
    EraseTarget, ErasedCounts, ErasedRows, Erasure, ErasureScope, ErasureStage,
    REMOVED_BYTES_PER_STEP, StoreError,
};

const SELECT: &str =
    "SELECT job, tenant, stage, session, generation, subject, counts, outside FROM erasures";

/// Generations scanned per row budgeted, when those of a subject are collected.
const SCANNED_PER_ROW: usize = 16;
/// Maximum number of generations in one step that deletes rows.
const GENERATIONS_PER_STEP: usize = 64;
/// Maximum number of finished erasures retained.
const FINISHED_JOBS_MAX: i64 = 10_000;
/// Separates the lines of `outside`.
const LINE: char = '\n';

pub(super) fn save(connection: &Connection, erasure: &Erasure) -> Result<(), StoreError> {
    let (mut session, mut generation, mut subject) = (None, None, None);
    match &erasure.target {
        Some(EraseTarget::Session {
            session: of,
            generation: only,
        }) => (session, generation) = (Some(of.as_str()), *only),
        Some(EraseTarget::Subject(of)) => subject = Some(of.as_str()),
        None => {}
    }
    let sql = "INSERT INTO erasures
                   (job, tenant, stage, session, generation, subject, position, counts, outside)
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, x'', ?7, ?8)
               ON CONFLICT (job) DO UPDATE SET stage = excluded.stage,
                   counts = excluded.counts, outside = excluded.outside";
    connection.prepare_cached(sql)?.execute(params![
        erasure.id.to_bytes(),
        erasure.tenant.as_str(),
        erasure.stage.name(),
        session,
        generation.map(Generation::to_bytes),
        subject,
        erasure.counts.pack(),
        erasure.outside.join(&LINE.to_string()),
    ])?;
    if erasure.stage == ErasureStage::Done {
        let sql = "DELETE FROM erasures WHERE stage = 'done' AND job <
                       (SELECT job FROM erasures ORDER BY job DESC LIMIT 1 OFFSET ?)";
        connection
            .prepare_cached(sql)?
            .execute([FINISHED_JOBS_MAX])?;
    }
    Ok(())
}

pub(super) fn erasure(
    connection: &Connection,
    job: ErasureId,
) -> Result<Option<Erasure>, StoreError> {
    let sql = format!("{SELECT} WHERE job = ?");
    let mut statement = connection.prepare_cached(&sql)?;
    Ok(statement.query_row([job.to_bytes()], read).optional()?)
}

pub(super) fn open_erasures(
    connection: &Connection,
    max: usize,
) -> Result<Vec<Erasure>, StoreError> {
    let sql = format!("{SELECT} WHERE stage <> 'done' ORDER BY job LIMIT ?");
    let mut statement = connection.prepare_cached(&sql)?;
    let rows = statement.query_map([limit(max)], read)?;
    Ok(rows.collect::<Result<_, _>>()?)
}

pub(super) fn scope(connection: &Connection, job: ErasureId) -> Result<ErasureScope, StoreError> {
    let view = connection.unchecked_transaction()?;
    let sql = "SELECT generation, session FROM erasure_generations WHERE job = ? ORDER BY 1";
    let generations = view
        .prepare_cached(sql)?
        .query_map([job.to_bytes()], |row| {
            let generation = Generation::from_bytes(row.get(0)?);
            Ok((generation, id(row, 1, SessionId::parse)?))
        })?
        .collect::<Result<_, _>>()?;
    let sql = "SELECT generation, hook FROM erasure_given WHERE job = ? ORDER BY 1, 2";
    let delivered = view
        .prepare_cached(sql)?
        .query_map([job.to_bytes()], |row| {
            let generation = Generation::from_bytes(row.get(0)?);
            Ok((generation, id(row, 1, HookName::parse)?))
        })?
        .collect::<Result<_, _>>()?;
    Ok(ErasureScope {
        generations,
        delivered,
    })
}

/// Records the generations of a session, or those of a subject within the next range.
///
/// The pending table must have been flushed.
pub(super) fn collect(
    connection: &mut Connection,
    job: ErasureId,
    rows_max: usize,
) -> Result<bool, StoreError> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let Some(erasure) = erasure(&transaction, job)? else {
        return Ok(true);
    };
    let name = job.to_bytes();
    let is_done = match &erasure.target {
        None => true,
        Some(EraseTarget::Session {
            session,
            generation,
        }) => {
            // Live and ended generations are in two different indexes.
            for ended in ["ended_at IS NULL", "ended_at IS NOT NULL"] {
                let sql = format!(
                    "INSERT OR IGNORE INTO erasure_generations
                         (job, generation, session, is_erased)
                     SELECT ?1, generation, session, 0 FROM generations
                     WHERE tenant = ?2 AND session = ?3 AND {ended}
                         AND (?4 IS NULL OR generation = ?4)"
                );
                transaction.prepare_cached(&sql)?.execute(params![
                    name,
                    erasure.tenant.as_str(),
                    session.as_str(),
                    generation.map(Generation::to_bytes),
                ])?;
            }
            true
        }
        Some(EraseTarget::Subject(subject)) => {
            collect_subject(&transaction, &erasure, subject, rows_max)?
        }
    };
    transaction.commit()?;
    Ok(is_done)
}

/// Scans the generations by id, from where the previous step stopped.
///
/// An index over subjects would slow down every append for a rare operation.
fn collect_subject(
    transaction: &Transaction<'_>,
    erasure: &Erasure,
    subject: &Subject,
    rows_max: usize,
) -> Result<bool, StoreError> {
    let job = erasure.id.to_bytes();
    let looked_at_max = rows_max.max(1).saturating_mul(SCANNED_PER_ROW);
    let position: Vec<u8> = transaction
        .prepare_cached("SELECT position FROM erasures WHERE job = ?")?
        .query_row([job], |row| row.get(0))?;
    let sql = "SELECT generation FROM generations WHERE generation > ?
               ORDER BY generation LIMIT 1 OFFSET ?";
    let last: Option<[u8; 16]> = transaction
        .prepare_cached(sql)?
        .query_row(params![position, limit(looked_at_max - 1)], |row| {
            row.get(0)
        })
        .optional()?;
    let until = last.unwrap_or([0xff; 16]);
    let sql = "INSERT OR IGNORE INTO erasure_generations (job, generation, session, is_erased)
               SELECT ?1, generation, session, 0 FROM generations
               WHERE generation > ?2 AND generation <= ?3 AND +tenant = ?4 AND subject = ?5";
    transaction.prepare_cached(sql)?.execute(params![
        job,
        position,
        until,
        erasure.tenant.as_str(),
        subject.as_str()
    ])?;
    transaction
        .prepare_cached("UPDATE erasures SET position = ? WHERE job = ?")?
        .execute(params![until, job])?;
    Ok(last.is_none())
}

/// Whether a generation of the next step has rows in the pending table.
///
/// For example, it may have just ended.
pub(super) fn is_any_unflushed(writer: &mut Writer, job: ErasureId) -> Result<bool, StoreError> {
    let next = next_generations(writer.connection(), job)?;
    Ok(next
        .iter()
        .any(|next| writer.pending_state(*next).0.is_some()))
}

/// Deletes rows that an erasure covers, and counts them.
///
/// The pending rows of the next generations must have been flushed.
pub(super) fn rows(
    connection: &mut Connection,
    job: ErasureId,
    rows_max: usize,
) -> Result<ErasedRows, StoreError> {
    let name = job.to_bytes();
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let next = next_generations(&transaction, job)?;
    let Some(erasure) = erasure(&transaction, job)? else {
        return Ok(ErasedRows::AllGone);
    };
    let (mut counts, mut rows, mut bytes) = (erasure.counts, 0, 0);
    let is_last = next.len() < GENERATIONS_PER_STEP;
    let mut is_all = true;
    for generation in next {
        if rows >= rows_max || bytes >= REMOVED_BYTES_PER_STEP {
            is_all = false;
            break;
        }
        if is_live(&transaction, generation)? {
            return Ok(ErasedRows::Live);
        }
        rows += 1 + cancel_deliveries(&transaction, job, generation, &mut counts)?;
        rows += forget_keys(&transaction, &erasure, generation, &mut counts)?;
        let left = rows_max.saturating_sub(rows).max(1);
        let bytes_left = REMOVED_BYTES_PER_STEP - bytes;
        let of = generation.to_bytes();
        let deleted = delete_generation_rows(&transaction, of, left, bytes_left)?;
        bytes += deleted.bytes;
        counts.turns += deleted.turns as u64;
        counts.summaries += deleted.summaries as u64;
        rows += deleted.turns + deleted.summaries;
        if !deleted.is_all {
            is_all = false;
            break;
        }
        transaction
            .prepare_cached(
                "UPDATE erasure_generations SET is_erased = 1 WHERE job = ? AND generation = ?",
            )?
            .execute(params![name, generation.to_bytes()])?;
    }
    let is_all = is_all && is_last;
    if let (true, Some(session)) = (is_all, erasure.whole_session()) {
        // Delete the keys of generations pruned earlier. Those of a generation started since stay.
        let sql = "DELETE FROM idempotency WHERE tenant = ?1 AND session = ?2
                   AND generation NOT IN (SELECT generation FROM generations)";
        let parameters = params![session.tenant.as_str(), session.session.as_str()];
        counts.keys += transaction.prepare_cached(sql)?.execute(parameters)? as u64;
    }
    transaction
        .prepare_cached("UPDATE erasures SET counts = ? WHERE job = ?")?
        .execute(params![counts.pack(), name])?;
    transaction.commit()?;
    Ok(if is_all {
        ErasedRows::AllGone
    } else {
        ErasedRows::More
    })
}

/// Returns the next generations to erase.
fn next_generations(
    connection: &Connection,
    job: ErasureId,
) -> Result<Vec<Generation>, StoreError> {
    let sql = "SELECT generation FROM erasure_generations WHERE job = ? AND is_erased = 0
               ORDER BY generation LIMIT ?";
    let mut statement = connection.prepare_cached(sql)?;
    let parameters = params![job.to_bytes(), limit(GENERATIONS_PER_STEP)];
    let found = statement.query_map(parameters, |row| Ok(Generation::from_bytes(row.get(0)?)))?;
    Ok(found.collect::<Result<_, _>>()?)
}

fn is_live(transaction: &Transaction<'_>, generation: Generation) -> Result<bool, StoreError> {
    let sql = "SELECT 1 FROM generations WHERE generation = ? AND ended_at IS NULL";
    let mut statement = transaction.prepare_cached(sql)?;
    Ok(statement.exists([generation.to_bytes()])?)
}

/// Drops the deliveries of a generation, and records which hooks received it or may have.
///
/// Returns the number of rows deleted.
fn cancel_deliveries(
    transaction: &Transaction<'_>,
    job: ErasureId,
    generation: Generation,
    counts: &mut ErasedCounts,
) -> Result<usize, StoreError> {
    let of = generation.to_bytes();
    let sql = "INSERT OR IGNORE INTO erasure_given (job, generation, hook)
               SELECT ?1, generation, hook FROM outbox
               WHERE generation = ?2 AND (state = 'done' OR tries > 0)";
    let mut delivered = transaction.prepare_cached(sql)?;
    delivered.execute(params![job.to_bytes(), of])?;
    let sql = "SELECT count(*) FROM outbox WHERE generation = ? AND state <> 'done'";
    let mut owed = transaction.prepare_cached(sql)?;
    counts.deliveries += owed.query_row([of], |row| super::row::count(row, 0))?;
    let mut cancel = transaction.prepare_cached("DELETE FROM outbox WHERE generation = ?")?;
    Ok(cancel.execute([of])?)
}

fn forget_keys(
    transaction: &Transaction<'_>,
    erasure: &Erasure,
    generation: Generation,
    counts: &mut ErasedCounts,
) -> Result<usize, StoreError> {
    let sql = "DELETE FROM idempotency WHERE tenant = ?1 AND generation = ?2 AND session =
                   (SELECT session FROM erasure_generations WHERE job = ?3 AND generation = ?2)";
    let keys = transaction.prepare_cached(sql)?.execute(params![
        erasure.tenant.as_str(),
        generation.to_bytes(),
        erasure.id.to_bytes()
    ])?;
    counts.keys += keys as u64;
    Ok(keys)
}

/// Records that a hook was processing a generation when its rows were deleted.
pub(super) fn note_delivered(
    transaction: &Transaction<'_>,
    generation: Generation,
    hook: &HookName,
) -> rusqlite::Result<()> {
    let sql = "INSERT OR IGNORE INTO erasure_given (job, generation, hook)
               SELECT job, generation, ?2 FROM erasure_generations WHERE generation = ?1";
    transaction
        .prepare_cached(sql)?
        .execute(params![generation.to_bytes(), hook.as_str()])?;
    Ok(())
}

/// Removes the names from an erasure: those of sessions first, its own last.
pub(super) fn forget_names(
    connection: &mut Connection,
    job: ErasureId,
    rows_max: usize,
) -> Result<bool, StoreError> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let (name, mut rows) = (job.to_bytes(), 0);
    for table in ["erasure_generations", "erasure_given"] {
        let sql = format!(
            "DELETE FROM {table} WHERE job = ?1 AND generation IN
                 (SELECT generation FROM {table} WHERE job = ?1 LIMIT ?2)"
        );
        let mut delete = transaction.prepare_cached(&sql)?;
        rows += delete.execute(params![name, limit(rows_max)])?;
    }
    if rows == 0 {
        let sql = "UPDATE erasures SET session = NULL, generation = NULL, subject = NULL
                   WHERE job = ?";
        transaction.prepare_cached(sql)?.execute([name])?;
    }
    transaction.commit()?;
    Ok(rows == 0)
}

fn read(row: &Row<'_>) -> rusqlite::Result<Erasure> {
    let stage = row.get_ref(2)?.as_str()?;
    let generation: Option<[u8; 16]> = row.get(4)?;
    let is_null =
        |column| Ok::<_, rusqlite::Error>(row.get_ref(column)?.as_str_or_null()?.is_none());
    let target = if !is_null(3)? {
        Some(EraseTarget::Session {
            session: id(row, 3, SessionId::parse)?,
            generation: generation.map(Generation::from_bytes),
        })
    } else if !is_null(5)? {
        Some(EraseTarget::Subject(id(row, 5, Subject::parse)?))
    } else {
        None
    };
    let outside = row.get_ref(7)?.as_str()?.split(LINE);
    Ok(Erasure {
        id: ErasureId::from_bytes(row.get(0)?),
        tenant: id(row, 1, TenantId::parse)?,
        target,
        stage: ErasureStage::named(stage).ok_or_else(|| damaged(2, "stage"))?,
        counts: ErasedCounts::unpack(row.get_ref(6)?.as_blob()?),
        outside: outside
            .filter(|line| !line.is_empty())
            .map(str::to_owned)
            .collect(),
    })
}

fn limit(rows: usize) -> i64 {
    i64::try_from(rows).unwrap_or(i64::MAX)
}
