//! The journal in one SQLite file: one writer, and readers that never wait for it.

mod open;
mod read;
mod schema;
mod write;

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rusqlite::Connection;

use memoird_core::change::ChangeSet;
use memoird_core::idempotency::Keys;
use memoird_core::ids::{Generation, SessionKey};
use memoird_core::session::{Head, SavedSession};
use memoird_core::time::Steady;

use crate::lock::DirLock;
use crate::{ClockAnchor, JournalPage, JournalRange, PruneBefore, Refused, Store, StoreError};

/// How the journal is kept.
#[derive(Clone, Copy, Debug)]
pub struct SqliteOptions {
    /// A file up to this size is checked whole when it is opened; of a larger one
    /// only the header and the schema. In bytes.
    pub check_bytes_max: u64,
    /// Pages of 4 KiB after which no more are added: SQLite says that the disk is
    /// full. For tests; `None` otherwise.
    pub pages_max: Option<u32>,
}

impl Default for SqliteOptions {
    fn default() -> Self {
        Self { check_bytes_max: 1 << 30, pages_max: None }
    }
}

/// The journal in `journal.db` of a data directory.
#[derive(Debug)]
pub struct SqliteStore {
    path: PathBuf,
    /// Taken and given back by reads; grows to as many as read at once. Closed before the
    /// writer: only the last connection moves the log into the file, and these cannot.
    readers: Mutex<Vec<Connection>>,
    writer: Mutex<Connection>,
    /// Last, so that the connections are closed first.
    _lock: DirLock,
}

/// Connections that are kept open between reads.
const READERS_KEPT: usize = 4;

impl SqliteStore {
    /// Opens the journal of `dir`, or makes an empty one, and takes the directory for
    /// this process.
    ///
    /// # Errors
    /// When the directory cannot be used or is in use, or the file is damaged, some
    /// other program's or too new. Then nothing was changed.
    pub fn open(dir: &Path, options: SqliteOptions) -> Result<Self, StoreError> {
        let lock = DirLock::take(dir)?;
        let path = dir.join("journal.db");
        let writer = open::writer(dir, &path, options)?;
        Ok(Self { path, writer: Mutex::new(writer), readers: Mutex::new(Vec::new()), _lock: lock })
    }

    fn write<T>(
        &self,
        action: impl FnOnce(&mut Connection) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        // A transaction that was cut off by a panic was rolled back when it was dropped.
        action(&mut relock(&self.writer))
    }

    fn read<T>(
        &self,
        action: impl FnOnce(&Connection) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let kept = relock(&self.readers).pop();
        let connection = match kept {
            Some(connection) => connection,
            None => open::reader(&self.path)?,
        };
        let outcome = action(&connection);
        let mut readers = relock(&self.readers);
        if readers.len() < READERS_KEPT {
            readers.push(connection);
        }
        outcome
    }
}

fn relock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Store for SqliteStore {
    fn commit(
        &self,
        clock: &ClockAnchor,
        sets: &[ChangeSet],
    ) -> Result<Vec<Result<(), Refused>>, StoreError> {
        self.write(|connection| write::commit(connection, clock, sets))
    }

    fn clock(&self) -> Result<Option<ClockAnchor>, StoreError> {
        self.read(read::clock)
    }

    fn live_heads(&self, visit: &mut dyn FnMut(SessionKey, Head)) -> Result<(), StoreError> {
        self.read(|connection| read::live_heads(connection, visit))
    }

    fn load(
        &self,
        key: &SessionKey,
        keys_since: Steady,
    ) -> Result<Option<SavedSession>, StoreError> {
        self.read(|connection| read::load(connection, key, keys_since))
    }

    fn keys(&self, key: &SessionKey, since: Steady) -> Result<Keys, StoreError> {
        self.read(|connection| read::keys(connection, key, since))
    }

    fn journal(
        &self,
        key: &SessionKey,
        generation: Option<Generation>,
        range: JournalRange,
    ) -> Result<Option<JournalPage>, StoreError> {
        self.read(|connection| read::journal(connection, key, generation, range))
    }

    fn prune(&self, before: PruneBefore, rows_max: usize) -> Result<bool, StoreError> {
        self.write(|connection| write::prune(connection, before, rows_max))
    }
}
