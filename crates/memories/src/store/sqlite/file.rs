//! One tenant's file, with a single writer and a few readers.
//!
//! The writer writes queued jobs in one transaction. Readers never wait for it.

use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use memoird_core::ids::TenantId;
use memoird_store::DataKey;
use memoird_store::sqlite_file::empty_log;
use memoird_store::sqlite_gaps;
use rusqlite::TransactionBehavior;

use super::files::FilesOptions;
use super::open;
use crate::store::backend::{Action, TenantBackend};
use crate::store::sql::StoreResult;
use crate::{MemoryError, lock};

#[derive(Debug)]
pub(super) struct TenantFile {
    path: PathBuf,
    key: Option<DataKey>,
    readers_max: usize,
    /// Declared before the writer so that they are closed first.
    ///
    /// Only the last connection checkpoints the WAL, and readers cannot.
    readers: Mutex<Readers>,
    /// Notified when a reader is returned. Callers wait for it when all readers are in use.
    reader_is_back: Condvar,
    writer: Mutex<rusqlite::Connection>,
}

#[derive(Debug, Default)]
struct Readers {
    idle: Vec<rusqlite::Connection>,
    taken: usize,
}

/// Time for which truncating the WAL waits for readers. Writes wait in the meantime.
const TRUNCATE_TIMEOUT: Duration = Duration::from_millis(250);
/// Maximum pages returned to the file system at a time.
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

    fn take_reader(&self) -> Result<TakenReader<'_>, MemoryError> {
        let mut readers = lock(&self.readers);
        while readers.idle.is_empty() && readers.taken >= self.readers_max {
            let woken = self.reader_is_back.wait(readers);
            readers = woken.unwrap_or_else(PoisonError::into_inner);
        }
        readers.taken += 1;
        let idle = readers.idle.pop();
        drop(readers);
        // From here on, dropping it returns the reader, even if it cannot be opened.
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

impl TenantBackend for TenantFile {
    fn path(&self) -> Option<&Path> {
        Some(&self.path)
    }

    fn transact(&self, action: Action<'_>) -> StoreResult<()> {
        let mut writer = lock(&self.writer);
        let transaction = writer.transaction_with_behavior(TransactionBehavior::Immediate)?;
        action(&*transaction)?;
        Ok(transaction.commit()?)
    }

    fn read(&self, look: Action<'_>) -> StoreResult<()> {
        let reader = self.take_reader()?;
        match &reader.connection {
            Some(connection) => look(&*connection.unchecked_transaction()?),
            None => Err(rusqlite::Error::InvalidQuery.into()),
        }
    }

    fn truncate_log(&self) -> Result<bool, MemoryError> {
        let connection = lock(&self.writer);
        let mut vacuum = connection.prepare_cached(VACUUM)?;
        let mut pages = vacuum.query([])?;
        // Each row is one page returned to the file system.
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
        let writer = || lock(&self.writer);
        Ok(sqlite_gaps::clear(
            &self.path,
            key,
            &pages,
            TRUNCATE_TIMEOUT,
            writer,
        )?)
    }
}

/// A reader connection that is returned on drop.
struct TakenReader<'a> {
    memories: &'a TenantFile,
    connection: Option<rusqlite::Connection>,
}

impl Drop for TakenReader<'_> {
    fn drop(&mut self) {
        let mut readers = lock(&self.memories.readers);
        readers.taken -= 1;
        readers.idle.extend(self.connection.take());
        drop(readers);
        self.memories.reader_is_back.notify_one();
    }
}
