//! One tenant's memories: one writer, which takes what waits as one transaction, and a few
//! readers, which never wait for it.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use memoird_core::ids::TenantId;
use memoird_store::DataKey;
use memoird_store::sqlite_file::empty_log;
use memoird_store::sqlite_gaps;
use rusqlite::{Connection, Transaction, TransactionBehavior};

use super::index::{Pending, Touch};
use super::{FilesOptions, MemoryReader, MemoryWriter, open};
use crate::{MemoryError, locked};

/// Something to write. Where the rules refuse it, all that it wrote is undone, and no other job.
pub type WriteJob = Box<dyn FnOnce(&MemoryWriter<'_>) -> Result<(), MemoryError> + Send>;

/// The memories of one tenant.
#[derive(Debug)]
pub struct TenantFile {
    path: PathBuf,
    key: Option<DataKey>,
    readers_max: usize,
    /// Closed before the writer: only the last connection moves the log into the file, and
    /// these cannot.
    readers: Mutex<Readers>,
    /// Notified when a reader is given back: callers wait for it when all are taken.
    reader_is_back: Condvar,
    writer: Mutex<Connection>,
}

#[derive(Debug, Default)]
struct Readers {
    idle: Vec<Connection>,
    taken: usize,
}

/// How long emptying the log waits for readers; only writes wait meanwhile.
const TRUNCATE_TIMEOUT: Duration = Duration::from_millis(250);
/// Pages that are given back to the file system at a time.
const VACUUM: &str = "PRAGMA incremental_vacuum(1024)";

impl TenantFile {
    pub(super) fn open(
        path: &Path,
        tenant: &TenantId,
        options: &FilesOptions,
    ) -> Result<Self, MemoryError> {
        let writer = open::writer(path, tenant.as_str(), options)?;
        Ok(Self {
            path: path.to_owned(),
            key: options.key,
            readers_max: options.readers_max.max(1),
            readers: Mutex::default(),
            reader_is_back: Condvar::new(),
            writer: Mutex::new(writer),
        })
    }

    /// Does all jobs in one transaction, in their order, each whole or not at all. The
    /// answers are in the order of the jobs: whose manifests a job makes old, or why it was
    /// refused, which undoes that job only. A panic in a job undoes all of them and goes on;
    /// the file can be used after it.
    ///
    /// # Errors
    /// When the transaction failed: then nothing of any job was written.
    pub fn write(
        &self,
        jobs: Vec<WriteJob>,
    ) -> Result<Vec<Result<Touch, MemoryError>>, MemoryError> {
        let mut writer = locked(&self.writer);
        let transaction = writer.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let pending = RefCell::new(Pending::default());
        let mut answers = Vec::with_capacity(jobs.len());
        for job in jobs {
            answers.push(self.try_job(&transaction, &pending, job)?);
        }
        pending.borrow_mut().apply(&transaction)?;
        transaction.commit()?;
        Ok(answers)
    }

    /// Does one job in a transaction of its own, and gives what it gave.
    ///
    /// # Errors
    /// Those of `job`, and when the transaction failed: then nothing was written.
    pub fn write_one<T: Send + 'static>(
        &self,
        job: impl FnOnce(&MemoryWriter<'_>) -> Result<T, MemoryError> + Send + 'static,
    ) -> Result<T, MemoryError> {
        let (give, take) = std::sync::mpsc::channel();
        let answers = self.write(vec![Box::new(move |writer| {
            // The receiver is in this function.
            let _ = give.send(job(writer)?);
            Ok(())
        })])?;
        answers.into_iter().collect::<Result<Vec<_>, _>>()?;
        // A job that was done has given something.
        take.recv()
            .map_err(|_| rusqlite::Error::QueryReturnedNoRows.into())
    }

    /// Does one job within a savepoint. What it changes of the index waits until all jobs
    /// are done: FTS5 would write a segment of its own for each savepoint.
    fn try_job(
        &self,
        transaction: &Transaction<'_>,
        pending: &RefCell<Pending>,
        job: WriteJob,
    ) -> Result<Result<Touch, MemoryError>, MemoryError> {
        let mark = pending.borrow().mark();
        let changes = transaction.total_changes();
        transaction.prepare_cached("SAVEPOINT job")?.execute([])?;
        let done = job(&MemoryWriter::new(transaction, pending, &self.path));
        let is_decided = pending.borrow_mut().end_job();
        let outcome = match done {
            Ok(()) => Ok(std::mem::take(&mut pending.borrow_mut().touch)),
            Err(refusal) if is_decided && transaction.total_changes() == changes => {
                pending.borrow_mut().reset(mark);
                match refusal.is_refusal() {
                    true => Err(refusal),
                    false => return Err(refusal),
                }
            }
            Err(refusal) if refusal.is_refusal() && !is_decided => {
                pending.borrow_mut().reset(mark);
                transaction.prepare_cached("ROLLBACK TO job")?.execute([])?;
                Err(refusal)
            }
            // The transaction is lost, and may be over already: SQLite ends it when the
            // disk is full.
            Err(error) => return Err(error),
        };
        if !is_decided {
            transaction.prepare_cached("RELEASE job")?.execute([])?;
        }
        Ok(outcome)
    }

    /// Looks at one moment.
    ///
    /// # Errors
    /// Those of `look`, and when the file cannot be read.
    pub fn read<T>(
        &self,
        look: impl FnOnce(&MemoryReader<'_>) -> Result<T, MemoryError>,
    ) -> Result<T, MemoryError> {
        let reader = self.take_reader()?;
        let view = match &reader.connection {
            Some(connection) => connection.unchecked_transaction()?,
            None => return Err(rusqlite::Error::InvalidQuery.into()),
        };
        look(&MemoryReader::new(&view, None, &self.path))
    }

    /// Moves the log into the file and empties it, so that what was forgotten is gone from
    /// there too. True when the log is empty now; false while a reader is open: try again.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn truncate_log(&self) -> Result<bool, MemoryError> {
        let connection = locked(&self.writer);
        let mut vacuum = connection.prepare_cached(VACUUM)?;
        let mut pages = vacuum.query([])?;
        // Each row of the answer is one page that was given back.
        while pages.next()?.is_some() {}
        drop(pages);
        drop(vacuum);
        let is_empty = empty_log(&connection, TRUNCATE_TIMEOUT)?;
        drop(connection);
        if !is_empty {
            return Ok(false);
        }
        let key = self.key.as_ref();
        let pages = sqlite_gaps::find(&self.path, key)?;
        let writer = || locked(&self.writer);
        Ok(sqlite_gaps::clear(
            &self.path,
            key,
            &pages,
            TRUNCATE_TIMEOUT,
            writer,
        )?)
    }

    fn take_reader(&self) -> Result<TakenReader<'_>, MemoryError> {
        let mut readers = locked(&self.readers);
        while readers.idle.is_empty() && readers.taken >= self.readers_max {
            let woken = self.reader_is_back.wait(readers);
            readers = woken.unwrap_or_else(PoisonError::into_inner);
        }
        readers.taken += 1;
        let idle = readers.idle.pop();
        drop(readers);
        // From here on it is given back, also where it cannot be opened.
        let mut taken = TakenReader {
            memories: self,
            connection: idle,
        };
        if taken.connection.is_none() {
            taken.connection = Some(open::reader(&self.path, self.key.as_ref())?);
        }
        Ok(taken)
    }
}

/// A reading connection that goes back when it is dropped.
struct TakenReader<'a> {
    memories: &'a TenantFile,
    connection: Option<Connection>,
}

impl Drop for TakenReader<'_> {
    fn drop(&mut self) {
        let mut readers = locked(&self.memories.readers);
        readers.taken -= 1;
        readers.idle.extend(self.connection.take());
        drop(readers);
        self.memories.reader_is_back.notify_one();
    }
}
