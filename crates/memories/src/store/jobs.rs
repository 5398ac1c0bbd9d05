//! Jobs that write: those that wait become one transaction, each whole or not at all.

use std::cell::RefCell;
use std::path::Path;

use super::MemoryWriter;
use super::index::{Pending, Touch};
use super::sql::Connection;
use crate::MemoryError;

/// Something to write. Where the rules refuse it, all that it wrote is undone, and no other job.
pub type WriteJob = Box<dyn FnOnce(&MemoryWriter<'_>) -> Result<(), MemoryError> + Send>;

/// Of each job: whose manifests it makes old, or why it was refused.
pub(super) type Answers = Result<Vec<Result<Touch, MemoryError>>, MemoryError>;

/// Does all jobs within a transaction, in their order. What they change of the index waits until
/// all are done: FTS5 would write a segment of its own for each savepoint.
pub(super) fn do_jobs(
    transaction: Connection<'_>,
    path: Option<&Path>,
    jobs: Vec<WriteJob>,
) -> Answers {
    let pending = RefCell::new(Pending::default());
    let mut answers = Vec::with_capacity(jobs.len());
    for job in jobs {
        answers.push(try_job(transaction, path, &pending, job)?);
    }
    pending.borrow_mut().apply(transaction)?;
    Ok(answers)
}

/// Does one job within a savepoint.
fn try_job(
    transaction: Connection<'_>,
    path: Option<&Path>,
    pending: &RefCell<Pending>,
    job: WriteJob,
) -> Result<Result<Touch, MemoryError>, MemoryError> {
    let mark = pending.borrow().mark();
    let changes = transaction.changes();
    transaction.control("SAVEPOINT job")?;
    let done = job(&MemoryWriter::new(transaction, pending, path));
    let is_decided = pending.borrow_mut().end_job();
    let outcome = match done {
        Ok(()) => Ok(std::mem::take(&mut pending.borrow_mut().touch)),
        Err(refusal) if is_decided && transaction.changes() == changes => {
            pending.borrow_mut().reset(mark);
            match refusal.is_refusal() {
                true => Err(refusal),
                false => return Err(refusal),
            }
        }
        Err(refusal) if refusal.is_refusal() && !is_decided => {
            pending.borrow_mut().reset(mark);
            transaction.control("ROLLBACK TO job")?;
            Err(refusal)
        }
        // The transaction is lost, and may be over already: SQLite ends it when the
        // disk is full.
        Err(error) => return Err(error),
    };
    if !is_decided {
        transaction.control("RELEASE job")?;
    }
    Ok(outcome)
}
