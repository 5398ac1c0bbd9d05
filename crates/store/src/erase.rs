//! Erasures: the job is stored first, then rows are deleted in bounded steps.
//!
//! The scope of a job (`erasure_generations`) outlives the rows it was collected from. So after a
//! crash at any point, the job has everything it needs to continue.

use memoird_core::ids::{ErasureId, Generation, HookName, SessionId, Subject, TenantId};

use crate::retention::delete_generation_rows;
use crate::rows::{StoredRow, damaged};
use crate::tables::{Param, Tables};
use crate::transfer::Row;
use crate::{
    EraseTarget, ErasedCounts, ErasedRows, Erasure, ErasureScope, ErasureStage,
    REMOVED_BYTES_PER_STEP, StoreError,
};

const COLUMNS: &str = "job, tenant, stage, session, generation, subject, counts, outside, position";

/// Generations scanned per row budgeted, when those of a subject are collected.
const SCANNED_PER_ROW: usize = 16;
/// Maximum number of generations in one step that deletes rows.
const GENERATIONS_PER_STEP: usize = 64;
/// Maximum number of finished erasures retained.
const FINISHED_JOBS_MAX: usize = 10_000;
/// Separates the lines of `outside`.
const LINE: &str = "\n";
/// Position before the first generation.
const START: [u8; 16] = [0; 16];

pub(crate) fn save(tables: &dyn Tables, erasure: &Erasure) -> Result<(), StoreError> {
    let (mut session, mut generation, mut subject) = (None, None, None);
    match &erasure.target {
        Some(EraseTarget::Session {
            session: of,
            generation: only,
        }) => (session, generation) = (Some(of), *only),
        Some(EraseTarget::Subject(of)) => subject = Some(of),
        None => {}
    }
    let sql = format!(
        "INSERT INTO erasures ({COLUMNS}) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
         ON CONFLICT (job) DO UPDATE SET stage = excluded.stage, counts = excluded.counts,
             outside = excluded.outside"
    );
    let params = [
        erasure.id.into(),
        (&erasure.tenant).into(),
        Param::Word(erasure.stage.name()),
        session.into(),
        generation.into(),
        subject.into(),
        Param::Bytes(&erasure.counts.pack()),
        Param::Text(&erasure.outside.join(LINE)),
        Param::Id(START),
    ];
    tables.change(&sql, &params)?;
    if erasure.stage == ErasureStage::Done {
        let sql = "DELETE FROM erasures WHERE stage = 'done' AND job <
                       (SELECT job FROM erasures ORDER BY job DESC LIMIT 1 OFFSET ?1)";
        tables.change(sql, &[FINISHED_JOBS_MAX.into()])?;
    }
    Ok(())
}

pub(crate) fn erasure(tables: &dyn Tables, job: ErasureId) -> Result<Option<Erasure>, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM erasures WHERE job = ?1");
    Ok(read_all(tables, &sql, job.into())?
        .pop()
        .map(|(erasure, _)| erasure))
}

pub(crate) fn open_erasures(tables: &dyn Tables, max: usize) -> Result<Vec<Erasure>, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM erasures WHERE stage <> 'done' ORDER BY job LIMIT ?1");
    let open = read_all(tables, &sql, max.into())?.into_iter();
    Ok(open.map(|(erasure, _)| erasure).collect())
}

pub(crate) fn scope(tables: &dyn Tables, job: ErasureId) -> Result<ErasureScope, StoreError> {
    let mut scope = ErasureScope::default();
    let sql = "SELECT generation, session FROM erasure_generations WHERE job = ?1 ORDER BY 1";
    for row in tables.query(sql, &[job.into()])? {
        let of = (row.generation(0)?, row.id(1, SessionId::parse)?);
        scope.generations.push(of);
    }
    let sql = "SELECT generation, hook FROM erasure_given WHERE job = ?1 ORDER BY 1, 2";
    for row in tables.query(sql, &[job.into()])? {
        let of = (row.generation(0)?, row.id(1, HookName::parse)?);
        scope.delivered.push(of);
    }
    let is_other = "NOT IN (SELECT generation FROM erasure_generations WHERE job = ?1) ORDER BY 1";
    let generations = |sql: &str, params: &[Param<'_>]| {
        let rows = tables.query(&format!("{sql} {is_other}"), params)?;
        rows.iter()
            .map(|row| row.generation(0))
            .collect::<Result<Vec<_>, _>>()
    };
    let sql = "SELECT DISTINCT copies.generation FROM copies JOIN erasure_generations AS erased
                   ON erased.generation = copies.source
               WHERE erased.job = ?1 AND copies.generation";
    scope.copies = generations(sql, &[job.into()])?;
    let erasure = erasure(tables, job)?;
    if let Some((EraseTarget::Subject(subject), tenant)) =
        erasure.and_then(|erasure| Some((erasure.target?, erasure.tenant)))
    {
        let sql = "SELECT generation FROM former_subjects
                   WHERE tenant = ?2 AND subject = ?3 AND generation";
        let params = [job.into(), (&tenant).into(), (&subject).into()];
        scope.formerly_owned = generations(sql, &params)?;
    }
    Ok(scope)
}

/// Records the generations of a session, or those of a subject within the next range.
///
/// All rows must have been flushed.
pub(crate) fn collect(
    tables: &dyn Tables,
    job: ErasureId,
    rows_max: usize,
) -> Result<bool, StoreError> {
    let Some((erasure, position)) = lock(tables, job)? else {
        return Ok(true);
    };
    match &erasure.target {
        None => Ok(true),
        Some(EraseTarget::Session {
            session,
            generation,
        }) => {
            let mut params = vec![job.into(), (&erasure.tenant).into(), session.into()];
            params.extend(generation.map(Param::from));
            let only = generation.map_or("", |_| "AND generation = ?4");
            // Live and ended generations are in two different indexes.
            for ended in ["ended_at IS NULL", "ended_at IS NOT NULL"] {
                let those = format!("tenant = ?2 AND session = ?3 AND {ended} {only}");
                record_generations(tables, &those, &params)?;
            }
            Ok(true)
        }
        Some(EraseTarget::Subject(subject)) => {
            collect_subject(tables, &erasure, position, subject, rows_max)
        }
    }
}

/// Scans the generations by id, from where the previous step stopped.
///
/// An index over subjects would slow down every append for a rare operation.
fn collect_subject(
    tables: &dyn Tables,
    erasure: &Erasure,
    position: [u8; 16],
    subject: &Subject,
    rows_max: usize,
) -> Result<bool, StoreError> {
    let scanned_max = rows_max.max(1).saturating_mul(SCANNED_PER_ROW);
    let sql = "SELECT generation FROM generations WHERE generation > ?1
               ORDER BY generation LIMIT 1 OFFSET ?2";
    let last = tables.query(sql, &[Param::Id(position), (scanned_max - 1).into()])?;
    let is_last = last.is_empty();
    let last = last.first().map(|row| row.ulid(0));
    let until = Param::Id(last.transpose()?.unwrap_or([0xff; 16]));
    let params = [
        erasure.id.into(),
        Param::Id(position),
        until,
        (&erasure.tenant).into(),
        subject.into(),
    ];
    let those = "generation > ?2 AND generation <= ?3 AND tenant = ?4 AND subject = ?5";
    record_generations(tables, those, &params)?;
    let sql = "UPDATE erasures SET position = ?2 WHERE job = ?1";
    tables.change(sql, &[erasure.id.into(), until])?;
    Ok(is_last)
}

/// Adds generations that match a condition to the scope of the job `?1`.
fn record_generations(
    tables: &dyn Tables,
    those: &str,
    params: &[Param<'_>],
) -> Result<(), StoreError> {
    let sql = format!(
        "INSERT INTO erasure_generations (job, generation, session, is_erased)
         SELECT ?1, generation, session, {} FROM generations WHERE {those}
         ON CONFLICT DO NOTHING",
        tables.dialect().no
    );
    tables.change(&sql, params).map(drop)
}

/// Returns the next generations to erase, and whether each is live.
pub(crate) fn next_generations(
    tables: &dyn Tables,
    job: ErasureId,
) -> Result<Vec<(Generation, bool)>, StoreError> {
    let sql = format!(
        "SELECT generation, (SELECT count(*) FROM generations AS g
             WHERE g.generation = erasure_generations.generation AND g.ended_at IS NULL)
         FROM erasure_generations WHERE job = ?1 AND is_erased = {} ORDER BY generation LIMIT ?2",
        tables.dialect().no
    );
    let rows = tables.query(&sql, &[job.into(), GENERATIONS_PER_STEP.into()])?;
    let next = rows.iter();
    next.map(|row| Ok((row.generation(0)?, row.is_true(1)?)))
        .collect()
}

/// Deletes rows that an erasure covers, and counts them.
///
/// The rows of the next generations must have been flushed.
pub(crate) fn rows(
    tables: &dyn Tables,
    job: ErasureId,
    rows_max: usize,
) -> Result<ErasedRows, StoreError> {
    let Some((erasure, _)) = lock(tables, job)? else {
        return Ok(ErasedRows::AllGone);
    };
    let next = next_generations(tables, job)?;
    if next.iter().any(|(_, is_live)| *is_live) {
        return Ok(ErasedRows::Live);
    }
    let mut step = EraseStep {
        tables,
        erasure: &erasure,
        counts: erasure.counts,
        rows_left: rows_max,
        bytes_left: REMOVED_BYTES_PER_STEP,
    };
    let mut is_all = next.len() < GENERATIONS_PER_STEP;
    for (generation, _) in next {
        if !step.erase(generation)? {
            is_all = false;
            break;
        }
    }
    if let (true, Some(session)) = (is_all, erasure.whole_session()) {
        // Keys of generations pruned earlier. Those of a generation started since stay.
        let those = "tenant = ?1 AND session = ?2 AND NOT EXISTS (SELECT 1 FROM generations AS g
                         WHERE g.generation = idempotency.generation)";
        let params = [(&session.tenant).into(), (&session.session).into()];
        is_all = step.forget_keys(those, &params)?;
    }
    let sql = "UPDATE erasures SET counts = ?2 WHERE job = ?1";
    tables.change(sql, &[job.into(), Param::Bytes(&step.counts.pack())])?;
    Ok(if is_all {
        ErasedRows::AllGone
    } else {
        ErasedRows::More
    })
}

/// One step that deletes rows, with what remains of its limits.
struct EraseStep<'a> {
    tables: &'a dyn Tables,
    erasure: &'a Erasure,
    counts: ErasedCounts,
    rows_left: usize,
    bytes_left: usize,
}

impl EraseStep<'_> {
    /// Deletes rows of a generation. Returns false if some may be left.
    fn erase(&mut self, generation: Generation) -> Result<bool, StoreError> {
        if self.rows_left == 0 || self.bytes_left == 0 {
            return Ok(false);
        }
        self.cancel_deliveries(generation)?;
        let those = "tenant = ?1 AND generation = ?2 AND session =
            (SELECT session FROM erasure_generations WHERE job = ?3 AND generation = ?2)";
        let job = self.erasure.id.into();
        let params = [(&self.erasure.tenant).into(), generation.into(), job];
        if !self.forget_keys(those, &params)? {
            return Ok(false);
        }
        let rows_max = self.rows_left.max(1);
        let deleted = delete_generation_rows(self.tables, generation, rows_max, self.bytes_left)?;
        self.counts.turns += deleted.turns as u64;
        self.counts.summaries += deleted.summaries as u64;
        self.spend(1 + deleted.turns + deleted.summaries);
        self.bytes_left = self.bytes_left.saturating_sub(deleted.bytes);
        if deleted.is_all {
            let sql = "UPDATE erasure_generations SET is_erased = TRUE
                       WHERE job = ?1 AND generation = ?2";
            self.tables.change(sql, &[job, generation.into()])?;
        }
        Ok(deleted.is_all)
    }

    /// Drops the deliveries of a generation, and records which hooks received it or may have.
    fn cancel_deliveries(&mut self, generation: Generation) -> Result<(), StoreError> {
        let sql = "DELETE FROM outbox WHERE generation = ?1 RETURNING hook, state, tries";
        let dropped = self.tables.query(sql, &[generation.into()])?;
        self.spend(dropped.len());
        for row in dropped {
            let hook = row.id(0, HookName::parse)?;
            let is_done = row.text(1)? == "done";
            self.counts.deliveries += u64::from(!is_done);
            if is_done || row.count(2)? > 0 {
                let sql = "INSERT INTO erasure_given (job, generation, hook) VALUES (?1, ?2, ?3)
                           ON CONFLICT DO NOTHING";
                let params = [self.erasure.id.into(), generation.into(), (&hook).into()];
                self.tables.change(sql, &params)?;
            }
        }
        Ok(())
    }

    /// Deletes idempotency keys that match a condition. Returns false if some may be left.
    fn forget_keys(&mut self, those: &str, params: &[Param<'_>]) -> Result<bool, StoreError> {
        let keys_max = self.rows_left.max(1);
        let sql = format!(
            "DELETE FROM idempotency WHERE ({0}) IN
                 (SELECT {0} FROM idempotency WHERE {those} LIMIT ?{1})",
            self.tables.dialect().key_row,
            params.len() + 1
        );
        let keys = self
            .tables
            .change(&sql, &[params, &[keys_max.into()]].concat())?;
        self.counts.keys += keys as u64;
        self.spend(keys);
        Ok(keys < keys_max)
    }

    fn spend(&mut self, rows: usize) {
        self.rows_left = self.rows_left.saturating_sub(rows);
    }
}

/// Removes the names from an erasure: those of sessions first, its own last.
pub(crate) fn forget_names(
    tables: &dyn Tables,
    job: ErasureId,
    rows_max: usize,
) -> Result<bool, StoreError> {
    let mut rows = 0;
    for table in ["erasure_generations", "erasure_given"] {
        let sql = format!(
            "DELETE FROM {table} WHERE job = ?1 AND generation IN
                 (SELECT generation FROM {table} WHERE job = ?1 LIMIT ?2)"
        );
        rows += tables.change(&sql, &[job.into(), rows_max.into()])?;
    }
    if rows == 0 {
        let sql = "UPDATE erasures SET session = NULL, generation = NULL, subject = NULL
                   WHERE job = ?1";
        tables.change(sql, &[job.into()])?;
    }
    Ok(rows == 0)
}

/// Reads a job, and locks it until the end of the transaction.
fn lock(tables: &dyn Tables, job: ErasureId) -> Result<Option<(Erasure, [u8; 16])>, StoreError> {
    let sql = format!("UPDATE erasures SET counts = counts WHERE job = ?1 RETURNING {COLUMNS}");
    Ok(read_all(tables, &sql, job.into())?.pop())
}

/// Reads jobs, each with the last generation that was scanned for it.
fn read_all(
    tables: &dyn Tables,
    sql: &str,
    param: Param<'_>,
) -> Result<Vec<(Erasure, [u8; 16])>, StoreError> {
    tables.query(sql, &[param])?.iter().map(read).collect()
}

fn read(row: &Row) -> Result<(Erasure, [u8; 16]), StoreError> {
    let ulid_or_null = |column| {
        let bytes = row.bytes_or_null(column)?;
        Ok::<_, StoreError>(bytes.and_then(|bytes| bytes.try_into().ok()))
    };
    let target = if row.bytes_or_null(3)?.is_some() {
        Some(EraseTarget::Session {
            session: row.id(3, SessionId::parse)?,
            generation: ulid_or_null(4)?.map(Generation::from_bytes),
        })
    } else if row.bytes_or_null(5)?.is_some() {
        Some(EraseTarget::Subject(row.id(5, Subject::parse)?))
    } else {
        None
    };
    let outside = row.text(7)?.split(LINE).filter(|line| !line.is_empty());
    let erasure = Erasure {
        id: ErasureId::from_bytes(row.ulid(0)?),
        tenant: row.id(1, TenantId::parse)?,
        target,
        stage: ErasureStage::named(row.text(2)?).ok_or(damaged("stage"))?,
        counts: ErasedCounts::unpack(row.bytes(6)?),
        outside: outside.map(str::to_owned).collect(),
    };
    // Jobs of older versions start without a position.
    Ok((erasure, ulid_or_null(8)?.unwrap_or(START)))
}
