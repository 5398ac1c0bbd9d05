//! Write jobs. Queued jobs share one transaction, but each is atomic.

use std::cell::RefCell;
use std::path::Path;

use super::checksum::DamageLog;
use super::index::Pending;
use super::sql::Connection;
use super::writer::MemoryWriter;
use crate::MemoryError;

/// A write. If it is rejected, everything it wrote is rolled back, and no other job.
pub type WriteJob = Box<dyn FnOnce(&MemoryWriter<'_>) -> Result<(), MemoryError> + Send>;

/// Per job: why it was rejected, if it was.
pub(super) type JobResults = Result<Vec<Result<(), MemoryError>>, MemoryError>;

/// Runs all jobs in order within a transaction.
///
/// Their index changes are written after the last job, because FTS5 would write a segment per
/// savepoint.
pub(super) fn do_jobs(
    transaction: Connection<'_>,
    path: Option<&Path>,
    jobs: Vec<WriteJob>,
) -> JobResults {
    let pending = RefCell::new(Pending::default());
    let damage = DamageLog::default();
    let mut answers = Vec::with_capacity(jobs.len());
    for job in jobs {
        let writer = MemoryWriter::new(transaction, &pending, &damage, path);
        answers.push(try_job(transaction, writer, &pending, job)?);
    }
    pending.borrow_mut().apply(transaction)?;
    Ok(answers)
}

/// Runs one job within a savepoint.
fn try_job(
    transaction: Connection<'_>,
    writer: MemoryWriter<'_>,
    pending: &RefCell<Pending>,
    job: WriteJob,
) -> Result<Result<(), MemoryError>, MemoryError> {
    let mark = pending.borrow().mark();
    transaction.control("SAVEPOINT job")?;
    let outcome = match job(&writer) {
        Err(refusal) if refusal.is_refusal() => {
            pending.borrow_mut().reset(mark);
            transaction.control("ROLLBACK TO job")?;
            Err(refusal)
        }
        // The transaction has failed, and may be over already: SQLite ends it when the disk is
        // full.
        Err(error) => return Err(error),
        Ok(()) => Ok(()),
    };
    transaction.control("RELEASE job")?;
    Ok(outcome)
}
