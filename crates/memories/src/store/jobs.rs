//! Write jobs. Queued jobs share one transaction, but each is atomic.

use std::cell::RefCell;
use std::fmt;
use std::path::Path;

use super::batch::{Batch, FactLookup};
use super::checksum::DamageLog;
use super::sql::Connection;
use super::writer::MemoryWriter;
use crate::MemoryError;

type Run = Box<dyn FnOnce(&MemoryWriter<'_>) -> Result<(), MemoryError> + Send>;

/// A write. If it is rejected, everything it wrote is rolled back, and no other job.
pub struct WriteJob {
    run: Run,
    /// The fact that it remembers.
    fact: Option<FactLookup>,
}

impl WriteJob {
    pub fn new(
        run: impl FnOnce(&MemoryWriter<'_>) -> Result<(), MemoryError> + Send + 'static,
    ) -> Self {
        Self {
            run: Box::new(run),
            fact: None,
        }
    }

    /// Looks up this fact together with those of other jobs.
    #[must_use]
    pub fn with_fact(self, fact: Option<FactLookup>) -> Self {
        Self { fact, ..self }
    }
}

impl fmt::Debug for WriteJob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WriteJob")
    }
}

/// Per job: why it was rejected, if it was.
pub(super) type JobResults = Result<Vec<Result<(), MemoryError>>, MemoryError>;

/// Runs all jobs in order within a transaction.
///
/// Their index changes and counters are written after the last job. FTS5 would write a segment per
/// savepoint.
pub(super) fn do_jobs(
    transaction: Connection<'_>,
    path: Option<&Path>,
    jobs: Vec<WriteJob>,
) -> JobResults {
    let batch = RefCell::new(Batch::default());
    let damage = DamageLog::default();
    let facts: Vec<FactLookup> = jobs.iter().filter_map(|job| job.fact.clone()).collect();
    if !facts.is_empty() {
        let found = transaction.look_up_facts(&facts)?;
        batch.borrow_mut().note(&facts, &found);
    }
    let mut answers = Vec::with_capacity(jobs.len());
    for job in jobs {
        let writer = MemoryWriter::new(transaction, &batch, &damage, path);
        answers.push(try_job(transaction, writer, &batch, job)?);
    }
    batch.borrow_mut().finish(transaction)?;
    Ok(answers)
}

/// Runs one job, and rolls it back if it is rejected.
fn try_job(
    transaction: Connection<'_>,
    writer: MemoryWriter<'_>,
    batch: &RefCell<Batch>,
    job: WriteJob,
) -> Result<Result<(), MemoryError>, MemoryError> {
    let mark = batch.borrow().mark();
    transaction.begin_job()?;
    match (job.run)(&writer) {
        Err(refusal) if refusal.is_refusal() => {
            batch.borrow_mut().reset(mark);
            transaction.end_job(false)?;
            Ok(Err(refusal))
        }
        // The transaction has failed, and may be over already: SQLite ends it when the disk is
        // full.
        Err(error) => Err(error),
        Ok(()) => {
            transaction.end_job(true)?;
            Ok(Ok(()))
        }
    }
}
