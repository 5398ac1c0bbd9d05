//! Opening the journal without harming it: look first, write later.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

use super::schema;
use crate::{SqliteOptions, StoreError};

/// What every SQLite file begins with.
const MAGIC: &[u8; 16] = b"SQLite format 3\0";
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
const CACHE_KIB: i64 = 64 << 10;
/// Pages of the write-ahead log after which they are moved into the file: 32 MiB.
const CHECKPOINT_PAGES: i64 = 8_192;
/// What is left of the log's file when all of it was moved.
const LOG_BYTES_KEPT: i64 = 64 << 20;
const STATEMENTS_KEPT: usize = 64;

/// Opens the one connection that writes; makes the file where it is missing.
pub(super) fn writer(
    dir: &Path,
    path: &Path,
    options: SqliteOptions,
) -> Result<Connection, StoreError> {
    let unusable = |source| StoreError::DirUnusable { dir: dir.to_owned(), source };
    let size = std::fs::metadata(path).map_or(0, |meta| meta.len());
    let found = if size == 0 { 0 } else { look(path, size <= options.check_bytes_max)? };

    // The system says best why a file cannot be written.
    File::options().create(true).append(true).open(path).map_err(unusable)?;
    let mut connection = Connection::open_with_flags(path, flags(false))?;
    prepare(&connection)?;
    if found == 0 {
        connection.pragma_update(None, "auto_vacuum", "INCREMENTAL")?;
    }
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.pragma_update(None, "wal_autocheckpoint", CHECKPOINT_PAGES)?;
    connection.pragma_update(None, "journal_size_limit", LOG_BYTES_KEPT)?;
    schema::migrate(&mut connection, found)?;
    if let Some(pages) = options.pages_max {
        connection.pragma_update(None, "max_page_count", pages)?;
    }
    Ok(connection)
}

/// Opens a connection that reads while the writer writes.
pub(super) fn reader(path: &Path) -> Result<Connection, StoreError> {
    let connection = Connection::open_with_flags(path, flags(true))?;
    prepare(&connection)?;
    Ok(connection)
}

/// Looks at an existing file without changing it; gives its schema's version.
fn look(path: &Path, whole: bool) -> Result<i64, StoreError> {
    let corrupt = |detail: String| StoreError::Corrupt { path: path.to_owned(), detail };
    let mut magic = [0; MAGIC.len()];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut magic));
    if read.is_err() || magic != *MAGIC {
        return Err(corrupt("it does not begin like a SQLite file".to_owned()));
    }
    let damaged = |error: rusqlite::Error| corrupt(error.to_string());
    let connection = Connection::open_with_flags(path, flags(false)).map_err(damaged)?;
    // The log of a crash must still be there when somebody else opens the file.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    let pragma = |name| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    if pragma("application_id").map_err(damaged)? != schema::APPLICATION_ID {
        return Err(StoreError::NotAJournal { path: path.to_owned() });
    }
    let found = pragma("user_version").map_err(damaged)?;
    if found > schema::known() {
        let known = schema::known();
        return Err(StoreError::TooNew { path: path.to_owned(), found, known });
    }
    if whole {
        let verdict: String =
            connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0)).map_err(damaged)?;
        if verdict != "ok" {
            return Err(corrupt(verdict));
        }
    }
    Ok(found)
}

fn flags(read_only: bool) -> OpenFlags {
    let mode = match read_only {
        true => OpenFlags::SQLITE_OPEN_READ_ONLY,
        false => OpenFlags::SQLITE_OPEN_READ_WRITE,
    };
    mode | OpenFlags::SQLITE_OPEN_NO_MUTEX
}

fn prepare(connection: &Connection) -> Result<(), StoreError> {
    connection.busy_timeout(BUSY_TIMEOUT)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS_KEPT);
    connection.pragma_update(None, "cache_size", -CACHE_KIB)?;
    connection.pragma_update(None, "temp_store", "MEMORY")?;
    Ok(())
}
