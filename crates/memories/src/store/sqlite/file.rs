//! One tenant's file, with a single writer and as many readers as there are concurrent reads.
//!
//! The writer writes queued jobs in one transaction. Readers never wait for it.

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use memoird_core::ids::TenantId;
use memoird_store::DataKey;
use memoird_store::sqlite_file::empty_log;
use memoird_store::sqlite_gaps::GapFile;
use rusqlite::{Connection, TransactionBehavior};

use super::files::FilesOptions;
use super::open;
use crate::store::backend::{Action, TenantBackend};
use crate::store::sql::StoreResult;
use crate::{MemoryError, lock};

/// Maximum unused reader connections per file.
pub const READERS_KEPT: usize = 2;

#[derive(Debug)]
pub(super) struct TenantFile {
    path: PathBuf,
    key: Option<DataKey>,
    /// Unused readers, declared before the writer so that they are closed first.
    ///
    /// Only the last connection checkpoints the WAL, and readers cannot.
    readers: Mutex<Vec<Connection>>,
    writer: Mutex<Connection>,
    /// Declared after the connections, which it must outlive.
    gaps: GapFile,
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
            readers: Mutex::default(),
            writer: Mutex::new(writer),
            gaps: GapFile::new(path),
        })
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
        let unused = lock(&self.readers).pop();
        let connection = match unused {
            Some(connection) => connection,
            None => open::reader(&self.path, self.key.as_ref())?,
        };
        let view = connection.unchecked_transaction()?;
        let outcome = look(&*view);
        drop(view);
        let mut readers = lock(&self.readers);
        if readers.len() < READERS_KEPT {
            readers.push(connection);
        }
        outcome
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
        let pages = self.gaps.find(key)?;
        let writer = || lock(&self.writer);
        Ok(self.gaps.clear(key, &pages, TRUNCATE_TIMEOUT, writer)?)
    }
}
