//! Erasure jobs: recorded first, then executed in steps with a bounded number of rows.
//!
//! The scope of a job (`erasure_generations`) outlives the rows used to collect it, so that the job
//! can be resumed after a crash at any point.

use memoird_core::ids::{ErasureId, Generation, HookName, SessionId, Subject, TenantId};
use memoird_store::{
    EraseTarget, ErasedCounts, ErasedRows, Erasure, ErasureScope, ErasureStage,
    REMOVED_BYTES_PER_STEP, StoreError,
};
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Row};

use crate::connect::{Arg, change, first, query};
use crate::prune::delete_generation_rows;
use crate::values::{Ulid, count, damaged, generation, get, id, limit};

const SELECT: &str = "SELECT job, tenant, stage, session, generation, subject, counts, outside
    FROM memoird.erasures";

/// Generations scanned per generation that may be recorded, when collecting those of a subject.
const SCANNED_PER_ROW: usize = 16;
/// Maximum number of generations per step that removes rows.
const GENERATIONS_PER_STEP: usize = 64;
/// Number of finished jobs that can still be queried.
const FINISHED_JOBS_MAX: i64 = 10_000;
/// Separates the lines of the column `outside`.
const LINE: &str = "\n";

pub(crate) async fn save(client: &Client, erasure: &Erasure) -> Result<(), StoreError> {
    let (mut session, mut only, mut subject) = (None, None, None);
    match &erasure.target {
        Some(EraseTarget::Session {
            session: of,
            generation,
        }) => (session, only) = (Some(of.as_str().as_bytes()), generation.map(Ulid::from)),
        Some(EraseTarget::Subject(of)) => subject = Some(of.as_str().as_bytes()),
        None => {}
    }
    let sql = "INSERT INTO memoird.erasures
                   (job, tenant, stage, session, generation, subject, counts, outside)
               VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
               ON CONFLICT (job) DO UPDATE SET stage = excluded.stage,
                   counts = excluded.counts, outside = excluded.outside";
    let outside = erasure.outside.join(LINE);
    let args: [Arg<'_>; 8] = [
        (&job(erasure.id), Type::UUID),
        (&erasure.tenant.as_str().as_bytes(), Type::BYTEA),
        (&erasure.stage.name(), Type::TEXT),
        (&session, Type::BYTEA),
        (&only, Type::UUID),
        (&subject, Type::BYTEA),
        (&erasure.counts.pack(), Type::BYTEA),
        (&outside.as_bytes(), Type::BYTEA),
    ];
    query(client, sql, &args).await?;
    if erasure.stage == ErasureStage::Done {
        let sql = "DELETE FROM memoird.erasures WHERE stage = 'done' AND job <
                       (SELECT job FROM memoird.erasures ORDER BY job DESC LIMIT 1 OFFSET $1)";
        query(client, sql, &[(&FINISHED_JOBS_MAX, Type::INT8)]).await?;
    }
    Ok(())
}

pub(crate) async fn erasure(client: &Client, id: ErasureId) -> Result<Option<Erasure>, StoreError> {
    let sql = format!("{SELECT} WHERE job = $1");
    let row = first(client, &sql, &[(&job(id), Type::UUID)]).await?;
    row.as_ref().map(read).transpose()
}

pub(crate) async fn open_erasures(client: &Client, max: usize) -> Result<Vec<Erasure>, StoreError> {
    let sql = format!("{SELECT} WHERE stage <> 'done' ORDER BY job LIMIT $1");
    let rows = query(client, &sql, &[(&limit(max), Type::INT8)]).await?;
    rows.iter().map(read).collect()
}

pub(crate) async fn scope(client: &Client, id: ErasureId) -> Result<ErasureScope, StoreError> {
    let of: [Arg<'_>; 1] = [(&job(id), Type::UUID)];
    let sql = "SELECT generation, session FROM memoird.erasure_generations
               WHERE job = $1 ORDER BY generation";
    let mut scope = ErasureScope::default();
    for row in query(client, sql, &of).await? {
        let session = self::id(&row, 1, SessionId::parse)?;
        scope.generations.push((generation(&row, 0)?, session));
    }
    let sql = "SELECT generation, hook FROM memoird.erasure_given
               WHERE job = $1 ORDER BY generation, hook";
    for row in query(client, sql, &of).await? {
        let hook = HookName::parse(get(&row, 1)?).map_err(|_| damaged("name of a hook"))?;
        scope.delivered.push((generation(&row, 0)?, hook));
    }
    Ok(scope)
}

/// Records the generations of a session, or those of a subject among the next ones scanned.
pub(crate) async fn collect(
    client: &Client,
    id: ErasureId,
    rows_max: usize,
) -> Result<bool, StoreError> {
    let Some(erasure) = erasure(client, id).await? else {
        return Ok(true);
    };
    match &erasure.target {
        None => Ok(true),
        Some(EraseTarget::Session {
            session,
            generation,
        }) => {
            // Two partial indexes: one of live generations, one of ended ones.
            for ended in ["ended_at IS NULL", "ended_at IS NOT NULL"] {
                let sql = format!(
                    "INSERT INTO memoird.erasure_generations (job, generation, session)
                     SELECT $1, generation, session FROM memoird.generations
                     WHERE tenant = $2 AND session = $3 AND {ended}
                         AND ($4::uuid IS NULL OR generation = $4)
                     ON CONFLICT DO NOTHING"
                );
                let args: [Arg<'_>; 4] = [
                    (&job(id), Type::UUID),
                    (&erasure.tenant.as_str().as_bytes(), Type::BYTEA),
                    (&session.as_str().as_bytes(), Type::BYTEA),
                    (&generation.map(Ulid::from), Type::UUID),
                ];
                query(client, &sql, &args).await?;
            }
            Ok(true)
        }
        Some(EraseTarget::Subject(subject)) => {
            collect_subject(client, &erasure, subject, rows_max).await
        }
    }
}

/// Scans generations by id, starting where the last step ended.
///
/// An index over subjects would slow down every append for a rare operation.
async fn collect_subject(
    client: &Client,
    erasure: &Erasure,
    subject: &Subject,
    rows_max: usize,
) -> Result<bool, StoreError> {
    let name = job(erasure.id);
    let looked_at_max = rows_max.max(1).saturating_mul(SCANNED_PER_ROW);
    let sql = "SELECT position FROM memoird.erasures WHERE job = $1 FOR UPDATE";
    let row = first(client, sql, &[(&name, Type::UUID)]).await?;
    let position: Option<Ulid> = row.map_or(Ok(None), |row| get(&row, 0))?;
    let sql = "SELECT generation FROM memoird.generations
               WHERE $1::uuid IS NULL OR generation > $1
               ORDER BY generation LIMIT 1 OFFSET $2";
    let args: [Arg<'_>; 2] = [
        (&position, Type::UUID),
        (&limit(looked_at_max - 1), Type::INT8),
    ];
    let last: Option<Ulid> = first(client, sql, &args)
        .await?
        .map(|row| get(&row, 0))
        .transpose()?;
    let until = last.unwrap_or(Ulid([0xff; 16]));
    let sql = "INSERT INTO memoird.erasure_generations (job, generation, session)
               SELECT $1, generation, session FROM memoird.generations
               WHERE ($2::uuid IS NULL OR generation > $2) AND generation <= $3
                   AND tenant = $4 AND subject = $5
               ON CONFLICT DO NOTHING";
    let args: [Arg<'_>; 5] = [
        (&name, Type::UUID),
        (&position, Type::UUID),
        (&until, Type::UUID),
        (&erasure.tenant.as_str().as_bytes(), Type::BYTEA),
        (&subject.as_str().as_bytes(), Type::BYTEA),
    ];
    query(client, sql, &args).await?;
    let sql = "UPDATE memoird.erasures SET position = $2 WHERE job = $1";
    let args: [Arg<'_>; 2] = [(&name, Type::UUID), (&until, Type::UUID)];
    query(client, sql, &args).await?;
    Ok(last.is_none())
}

/// Deletes rows in the scope of an erasure, and counts them.
pub(crate) async fn rows(
    client: &Client,
    id: ErasureId,
    rows_max: usize,
) -> Result<ErasedRows, StoreError> {
    let name = job(id);
    let sql = "SELECT e.generation, EXISTS (SELECT 1 FROM memoird.generations AS g
                   WHERE g.generation = e.generation AND g.ended_at IS NULL)
               FROM memoird.erasure_generations AS e WHERE job = $1 AND NOT is_erased
               ORDER BY generation LIMIT $2";
    let args: [Arg<'_>; 2] = [
        (&name, Type::UUID),
        (&limit(GENERATIONS_PER_STEP), Type::INT8),
    ];
    let next = query(client, sql, &args).await?;
    let Some(erasure) = erasure(client, id).await? else {
        return Ok(ErasedRows::AllGone);
    };
    for row in &next {
        if get(row, 1)? {
            return Ok(ErasedRows::Live);
        }
    }
    let (mut counts, mut rows, mut bytes) = (erasure.counts, 0, 0);
    let is_last = next.len() < GENERATIONS_PER_STEP;
    let mut is_all = true;
    for row in &next {
        if rows >= rows_max || bytes >= REMOVED_BYTES_PER_STEP {
            is_all = false;
            break;
        }
        let generation: Ulid = get(row, 0)?;
        rows += 1 + cancel_deliveries(client, name, generation, &mut counts).await?;
        rows += forget_keys(client, &erasure, generation, &mut counts).await?;
        let left = rows_max.saturating_sub(rows).max(1);
        let bytes_left = REMOVED_BYTES_PER_STEP - bytes;
        let deleted = delete_generation_rows(client, generation, left, bytes_left).await?;
        bytes += deleted.bytes;
        counts.turns += deleted.turns as u64;
        counts.summaries += deleted.summaries as u64;
        rows += deleted.turns + deleted.summaries;
        if !deleted.is_all {
            is_all = false;
            break;
        }
        let sql = "UPDATE memoird.erasure_generations SET is_erased = true
                   WHERE job = $1 AND generation = $2";
        let args: [Arg<'_>; 2] = [(&name, Type::UUID), (&generation, Type::UUID)];
        query(client, sql, &args).await?;
    }
    let is_all = is_all && is_last;
    if let (true, Some(session)) = (is_all, erasure.whole_session()) {
        // Keys of generations already pruned. Keys of a generation that started since are kept.
        let sql = "DELETE FROM memoird.idempotency AS k WHERE tenant = $1 AND session = $2
                       AND NOT EXISTS (SELECT 1 FROM memoird.generations AS g
                           WHERE g.generation = k.generation)
                   RETURNING 1";
        let args: [Arg<'_>; 2] = [
            (&session.tenant.as_str().as_bytes(), Type::BYTEA),
            (&session.session.as_str().as_bytes(), Type::BYTEA),
        ];
        counts.keys += change(client, sql, &args).await? as u64;
    }
    let sql = "UPDATE memoird.erasures SET counts = $2 WHERE job = $1";
    let args: [Arg<'_>; 2] = [(&name, Type::UUID), (&counts.pack(), Type::BYTEA)];
    query(client, sql, &args).await?;
    Ok(if is_all {
        ErasedRows::AllGone
    } else {
        ErasedRows::More
    })
}

/// Cancels the pending deliveries of a generation and records which hooks may have received it.
///
/// Returns the number of deleted rows.
async fn cancel_deliveries(
    client: &Client,
    job: Ulid,
    generation: Ulid,
    counts: &mut ErasedCounts,
) -> Result<usize, StoreError> {
    let sql = "WITH gone AS (
                   DELETE FROM memoird.outbox WHERE generation = $2 RETURNING hook, state, tries),
               given AS (
                   INSERT INTO memoird.erasure_given (job, generation, hook)
                   SELECT $1, $2, hook FROM gone WHERE state = 'done' OR tries > 0
                   ON CONFLICT DO NOTHING)
               SELECT count(*), count(*) FILTER (WHERE state <> 'done') FROM gone";
    let args: [Arg<'_>; 2] = [(&job, Type::UUID), (&generation, Type::UUID)];
    let Some(row) = first(client, sql, &args).await? else {
        return Ok(0);
    };
    counts.deliveries += count(&row, 1)?;
    Ok(usize::try_from(count(&row, 0)?).unwrap_or(usize::MAX))
}

async fn forget_keys(
    client: &Client,
    erasure: &Erasure,
    generation: Ulid,
    counts: &mut ErasedCounts,
) -> Result<usize, StoreError> {
    let sql = "DELETE FROM memoird.idempotency WHERE tenant = $1 AND generation = $2
                   AND session = (SELECT session FROM memoird.erasure_generations
                       WHERE job = $3 AND generation = $2)
               RETURNING 1";
    let args: [Arg<'_>; 3] = [
        (&erasure.tenant.as_str().as_bytes(), Type::BYTEA),
        (&generation, Type::UUID),
        (&job(erasure.id), Type::UUID),
    ];
    let keys = change(client, sql, &args).await?;
    counts.keys += keys as u64;
    Ok(keys)
}

/// Deletes ids from a job: those of the erased generations first, the job's own target last.
pub(crate) async fn forget_names(
    client: &Client,
    id: ErasureId,
    rows_max: usize,
) -> Result<bool, StoreError> {
    let (name, mut rows) = (job(id), 0);
    for table in ["erasure_generations", "erasure_given"] {
        let sql = format!(
            "DELETE FROM memoird.{table} WHERE job = $1 AND generation IN (
                 SELECT generation FROM memoird.{table} WHERE job = $1 LIMIT $2)
             RETURNING 1"
        );
        let args: [Arg<'_>; 2] = [(&name, Type::UUID), (&limit(rows_max), Type::INT8)];
        rows += change(client, &sql, &args).await?;
    }
    if rows == 0 {
        let sql = "UPDATE memoird.erasures SET session = NULL, generation = NULL, subject = NULL
                   WHERE job = $1";
        query(client, sql, &[(&name, Type::UUID)]).await?;
    }
    Ok(rows == 0)
}

fn job(id: ErasureId) -> Ulid {
    Ulid(id.to_bytes())
}

fn read(row: &Row) -> Result<Erasure, StoreError> {
    let stage: &str = get(row, 2)?;
    let is_there = |column| get::<Option<&[u8]>>(row, column).map(|value| value.is_some());
    let target = if is_there(3)? {
        Some(EraseTarget::Session {
            session: id(row, 3, SessionId::parse)?,
            generation: get::<Option<Ulid>>(row, 4)?.map(Generation::from),
        })
    } else if is_there(5)? {
        Some(EraseTarget::Subject(id(row, 5, Subject::parse)?))
    } else {
        None
    };
    let outside = String::from_utf8_lossy(get(row, 7)?).into_owned();
    Ok(Erasure {
        id: ErasureId::from_bytes(get::<Ulid>(row, 0)?.0),
        tenant: id(row, 1, TenantId::parse)?,
        target,
        stage: ErasureStage::named(stage).ok_or_else(|| damaged("stage"))?,
        counts: ErasedCounts::unpack(get(row, 6)?),
        outside: outside
            .split(LINE)
            .filter(|line| !line.is_empty())
            .map(str::to_owned)
            .collect(),
    })
}
