//! Opening a SQLite file without harming it: look first, write later.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags};

use crate::StoreError;
use crate::data_key::{DataKey, PLAIN_HEAD, check_key};
use crate::lock::private;

/// Bytes of the header: <https://www.sqlite.org/fileformat.html>, 1.3.
const HEADER_BYTES: usize = 100;
/// Bytes of a page: SQLite's default, and SQLCipher's, which all files of memoird have.
pub(crate) const PAGE_BYTES: usize = 4_096;
/// How long a connection waits for another one.
pub const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// A kind of SQLite file, and how its connections are set up.
#[derive(Clone, Copy, Debug)]
pub struct SqliteFile {
    /// Marks the file as one of this kind (`PRAGMA application_id`).
    pub application_id: i64,
    /// The newest schema that is known (`PRAGMA user_version`).
    pub schema_known: i64,
    /// The page cache of each connection, in KiB.
    pub cache_kib: i64,
    /// Pages of the write-ahead log after which they are moved into the file.
    pub checkpoint_pages: i64,
    /// Bytes that are left of the log's file when all of it was moved.
    pub log_bytes_kept: i64,
    /// Prepared statements that each connection keeps.
    pub statements_kept: usize,
}

/// An existing file that was looked at and not changed.
#[derive(Debug)]
pub struct Look {
    /// A connection to look further. Closing it leaves the log as it is.
    pub connection: Connection,
    /// Its schema; 0: a first start was cut off before it made a table. `None`: the file is
    /// of another kind.
    pub schema: Option<i64>,
    /// True when the file is shorter than its header says.
    pub is_cut_off: bool,
}

impl SqliteFile {
    /// Looks at a file before anything is written; `None` where there is none yet.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`], [`StoreError::TooNew`], [`StoreError::DirUnusable`], and those of
    /// [`check_key`].
    pub fn look(&self, path: &Path, key: Option<&DataKey>) -> Result<Option<Look>, StoreError> {
        let size = std::fs::metadata(path).map_or(0, |meta| meta.len());
        match (size, log_bytes(path)) {
            (0, 0) => return Ok(None),
            // SQLite would throw away the log, and with it what was written last.
            (0, _) => {
                let detail = "it is empty or missing, but its -wal is there";
                return Err(corrupt(path, detail));
            }
            _ => {}
        }
        check_key(path, key)?;
        let mut header = [0; HEADER_BYTES];
        let length = File::open(path).and_then(|mut file| {
            file.read_exact(&mut header)?;
            Ok(file.metadata()?.len())
        });
        let length = match length {
            Ok(length) if key.is_some() || header.starts_with(PLAIN_HEAD) => length,
            Err(source) if source.kind() != ErrorKind::UnexpectedEof => {
                return Err(unusable(path, source));
            }
            _ => return Err(corrupt(path, "it does not begin like a SQLite file")),
        };
        let damaged = |error| damaged(path, error);
        let connection = look_only(path, key).map_err(damaged)?;
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
        let whole = match key {
            None => length_of(&header),
            // The header is encrypted, but for the salt.
            Some(_) => PAGE_BYTES as u64 * pragma("page_count").map_err(damaged)?.unsigned_abs(),
        };
        Ok(Some(Look {
            connection,
            schema,
            is_cut_off: length < whole,
        }))
    }

    /// Opens the one connection that writes; makes the file where it is missing. A file
    /// `is_new` as long as it has no table.
    ///
    /// # Errors
    /// [`StoreError::DirUnusable`], [`StoreError::Sqlite`].
    pub fn writer(
        &self,
        path: &Path,
        key: Option<&DataKey>,
        is_new: bool,
    ) -> Result<Connection, StoreError> {
        // The system says best why a file cannot be written.
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

    /// Opens a connection that reads while the writer writes.
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
        connection.set_prepared_statement_cache_capacity(self.statements_kept);
        connection.pragma_update(None, "cache_size", -self.cache_kib)?;
        connection.pragma_update(None, "temp_store", "MEMORY")?;
        Ok(connection)
    }
}

/// From now on all SQLite files of the process together keep about so many bytes of pages in
/// memory, whatever each connection may have; 0: no limit. It is no hard one: what a statement needs
/// it gets.
///
/// # Errors
/// [`StoreError::Sqlite`].
pub fn limit_caches(bytes: u64) -> Result<(), StoreError> {
    let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
    let connection = Connection::open_in_memory()?;
    connection.pragma_update(None, "soft_heap_limit", bytes)?;
    Ok(())
}

/// Opens any SQLite file. Where there is a key it is the first statement, as SQLCipher wants it.
///
/// # Errors
/// When SQLite cannot open the file. A key is found to be wrong by the first read.
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

/// A connection that looks and changes nothing.
///
/// # Errors
/// When SQLite cannot open the file.
pub fn look_only(path: &Path, key: Option<&DataKey>) -> rusqlite::Result<Connection> {
    let connection = open(path, key, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    // The log of a crash must still be there when somebody else opens the file; where there
    // is none, closing leaves none.
    let has_log = log_bytes(path) > 0;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, has_log)?;
    Ok(connection)
}

/// Moves the log into the file and empties it, so that nothing is left in it of what was removed.
/// Waits so long for readers of an older moment; true when it is empty.
///
/// # Errors
/// When SQLite cannot write.
pub fn empty_log(connection: &Connection, wait: Duration) -> rusqlite::Result<bool> {
    connection.busy_timeout(wait)?;
    let sql = "PRAGMA wal_checkpoint(TRUNCATE)";
    let is_busy = connection.query_row(sql, [], |row| row.get::<_, i64>(0));
    connection.busy_timeout(BUSY_TIMEOUT)?;
    Ok(is_busy? == 0)
}

/// What a look at a file failed with. Whoever reads "damaged" moves the file away; no full
/// disk may lead there. `Unknown` is what SQLite says of a schema or a format that it cannot
/// make sense of.
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

/// Bytes of the file's write-ahead log.
pub(crate) fn log_bytes(path: &Path) -> u64 {
    std::fs::metadata(path.with_extension("db-wal")).map_or(0, |meta| meta.len())
}

pub(crate) fn unusable(path: &Path, source: std::io::Error) -> StoreError {
    StoreError::DirUnusable {
        dir: path.parent().unwrap_or(path).to_owned(),
        source,
    }
}

/// How long the header says that the file is.
fn length_of(header: &[u8; HEADER_BYTES]) -> u64 {
    let page_bytes = match u16::from_be_bytes([header[16], header[17]]) {
        1 => 65_536,
        bytes => u64::from(bytes),
    };
    let pages = u32::from_be_bytes([header[28], header[29], header[30], header[31]]);
    page_bytes * u64::from(pages)
}
