//! Opens SQLite files without damaging them: they are inspected before anything is written.

use std::path::Path;
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags};

use crate::StoreError;
use crate::data_key::{DataKey, FileForm, check_key};
use crate::lock::private;

/// Page size in bytes of all files of memoird. The default of SQLite and of SQLCipher.
pub(crate) const PAGE_BYTES: usize = 4_096;
/// Maximum time that a connection waits for a lock.
pub const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// Settings of one kind of SQLite file and its connections.
#[derive(Clone, Copy, Debug)]
pub struct SqliteFile {
    /// Identifies the kind of file (`PRAGMA application_id`).
    pub application_id: i64,
    /// Newest supported schema (`PRAGMA user_version`).
    pub schema_known: i64,
    /// Page cache of each connection, in KiB.
    pub cache_kib: i64,
    /// Pages in the write-ahead log that trigger a checkpoint.
    pub checkpoint_pages: i64,
    /// Size in bytes that the log file is truncated to after a checkpoint.
    pub log_bytes_kept: i64,
    /// Prepared statements cached per connection.
    pub statements_cached: usize,
}

/// Result of inspecting an existing file without changing it.
#[derive(Debug)]
pub struct FileInspection {
    /// Connection for further inspection. Closing it leaves the log as it is.
    pub connection: Connection,
    /// Schema version. `None` if the file is of another kind.
    ///
    /// 0 if the first start was interrupted before it created a table.
    pub schema: Option<i64>,
}

impl SqliteFile {
    /// Inspects a file before anything is written to it. `None` if it does not exist.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`], [`StoreError::TooNew`], [`StoreError::DirUnusable`], and those of
    /// [`check_key`].
    pub fn inspect(
        &self,
        path: &Path,
        key: Option<&DataKey>,
    ) -> Result<Option<FileInspection>, StoreError> {
        let size = std::fs::metadata(path).map_or(0, |meta| meta.len());
        let log = log_bytes(path);
        match (size, log) {
            (0, 0) => return Ok(None),
            // SQLite would discard the log, and with it the most recent commits.
            (0, _) => {
                let detail = "it is empty or missing, but its -wal is there";
                return Err(corrupt(path, detail));
            }
            _ => {}
        }
        check_key(path, key)?;
        if FileForm::of(path)? == FileForm::Unknown {
            return Err(corrupt(path, "it has no SQLite header"));
        }
        let damaged = |error| damaged(path, error);
        let connection = open_for_inspection(path, key).map_err(damaged)?;
        let pragma = |name| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
        let application_id = pragma("application_id").map_err(damaged)?;
        let empty = "SELECT NOT EXISTS (SELECT 1 FROM sqlite_schema)";
        let schema = if application_id == self.application_id {
            Some(pragma("user_version").map_err(damaged)?)
        } else if application_id == 0
            && connection
                .query_row(empty, [], |row| row.get(0))
                .map_err(damaged)?
        {
            Some(0)
        } else {
            None
        };
        if let Some(found) = schema.filter(|found| *found > self.schema_known) {
            return Err(StoreError::TooNew {
                path: path.to_owned(),
                found,
                known: self.schema_known,
            });
        }
        // SQLite detects missing pages, but no incomplete last one. It may be in the log.
        let is_cut_off = log == 0 && !size.is_multiple_of(PAGE_BYTES as u64);
        if is_cut_off && schema.is_some_and(|schema| schema > 0) {
            return Err(corrupt(path, "its end is missing"));
        }
        Ok(Some(FileInspection { connection, schema }))
    }

    /// Opens the single write connection, and creates the file if it is missing.
    ///
    /// `is_new` is true as long as the file has no table.
    ///
    /// # Errors
    /// [`StoreError::DirUnusable`] or [`StoreError::Sqlite`].
    pub fn writer(
        &self,
        path: &Path,
        key: Option<&DataKey>,
        is_new: bool,
    ) -> Result<Connection, StoreError> {
        // Open the file first: the operating system reports best why it is not writable.
        private::file_options()
            .create(true)
            .append(true)
            .open(path)
            .map_err(|source| unusable(path, source))?;
        let connection = self.connect(path, key, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
        if is_new {
            connection.pragma_update(None, "auto_vacuum", "INCREMENTAL")?;
        }
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.pragma_update(None, "synchronous", "FULL")?;
        connection.pragma_update(None, "wal_autocheckpoint", self.checkpoint_pages)?;
        connection.pragma_update(None, "journal_size_limit", self.log_bytes_kept)?;
        Ok(connection)
    }

    /// Opens a read-only connection, usable while the writer writes.
    ///
    /// # Errors
    /// [`StoreError::Sqlite`].
    pub fn reader(&self, path: &Path, key: Option<&DataKey>) -> Result<Connection, StoreError> {
        self.connect(path, key, OpenFlags::SQLITE_OPEN_READ_ONLY)
    }

    fn connect(
        &self,
        path: &Path,
        key: Option<&DataKey>,
        mode: OpenFlags,
    ) -> Result<Connection, StoreError> {
        let connection = open(path, key, mode)?;
        connection.busy_timeout(BUSY_TIMEOUT)?;
        connection.set_prepared_statement_cache_capacity(self.statements_cached);
        connection.pragma_update(None, "cache_size", -self.cache_kib)?;
        connection.pragma_update(None, "temp_store", "MEMORY")?;
        Ok(connection)
    }
}

/// Sets a soft limit in bytes on the page cache of all SQLite connections. 0 disables it.
///
/// It applies in addition to the limits of the connections. A statement may exceed it if it needs
/// to.
///
/// # Errors
/// [`StoreError::Sqlite`].
pub fn limit_caches(bytes: u64) -> Result<(), StoreError> {
    let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
    let connection = Connection::open_in_memory()?;
    connection.pragma_update(None, "soft_heap_limit", bytes)?;
    Ok(())
}

/// Opens any SQLite file. A key must be the first statement, as SQLCipher requires.
///
/// # Errors
/// If SQLite cannot open the file. A wrong key is detected only by the first read.
pub(crate) fn open(
    path: &Path,
    key: Option<&DataKey>,
    mode: OpenFlags,
) -> rusqlite::Result<Connection> {
    let connection = Connection::open_with_flags(path, mode | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    if let Some(key) = key {
        let is_new = std::fs::metadata(path).map_or(0, |meta| meta.len()) == 0;
        connection.pragma_update(None, "key", key.pragma(is_new)?)?;
    }
    Ok(connection)
}

/// Opens a connection that changes nothing in the file or its log.
///
/// # Errors
/// If SQLite cannot open the file.
pub fn open_for_inspection(path: &Path, key: Option<&DataKey>) -> rusqlite::Result<Connection> {
    let connection = open(path, key, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    // The log of a crash must survive for the next process that opens the file. If there is none,
    // do not create one.
    let has_log = log_bytes(path) > 0;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, has_log)?;
    Ok(connection)
}

/// Checkpoints and truncates the log, so that no deleted bytes remain in it.
///
/// Waits up to `wait` for readers of older snapshots. Returns whether the log is empty.
///
/// # Errors
/// If SQLite cannot write.
pub fn empty_log(connection: &Connection, wait: Duration) -> rusqlite::Result<bool> {
    connection.busy_timeout(wait)?;
    let sql = "PRAGMA wal_checkpoint(TRUNCATE)";
    let is_busy = connection.query_row(sql, [], |row| row.get::<_, i64>(0));
    connection.busy_timeout(BUSY_TIMEOUT)?;
    Ok(is_busy? == 0)
}

/// Maps an error of inspecting a file.
///
/// Operators move damaged files away, so an error such as a full disk must not be reported as
/// damage. SQLite returns `Unknown` for a schema or a format that it cannot parse.
pub fn damaged(path: &Path, error: rusqlite::Error) -> StoreError {
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase | ErrorCode::Unknown) => {
            corrupt(path, &error.to_string())
        }
        _ => error.into(),
    }
}

pub(crate) fn corrupt(path: &Path, detail: &str) -> StoreError {
    StoreError::Corrupt {
        path: path.to_owned(),
        detail: detail.to_owned(),
    }
}

/// Returns the size of the file's write-ahead log in bytes.
pub(crate) fn log_bytes(path: &Path) -> u64 {
    std::fs::metadata(path.with_extension("db-wal")).map_or(0, |meta| meta.len())
}

pub(crate) fn unusable(path: &Path, source: std::io::Error) -> StoreError {
    StoreError::DirUnusable {
        dir: path.parent().unwrap_or(path).to_owned(),
        source,
    }
}
