//! Opening the journal without harming it: look first, write later.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags};

use super::schema;
use crate::lock::private;
use crate::{SqliteOptions, StoreError};

/// What every SQLite file begins with.
const MAGIC: &[u8; 16] = b"SQLite format 3\0";
/// Bytes of the header, this included: <https://www.sqlite.org/fileformat.html>, 1.3.
const HEADER_BYTES: usize = 100;
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
    let unusable = |source| StoreError::DirUnusable {
        dir: dir.to_owned(),
        source,
    };
    let size = std::fs::metadata(path).map_or(0, |meta| meta.len());
    let log_bytes = std::fs::metadata(path.with_extension("db-wal")).map_or(0, |meta| meta.len());
    let found = match (size, log_bytes) {
        (0, 0) => 0,
        // SQLite would throw away the log, and with it the newest turns.
        (0, _) => {
            let detail = "it is empty or missing, but its -wal is there".to_owned();
            return Err(StoreError::Corrupt {
                path: path.to_owned(),
                detail,
            });
        }
        _ => look(dir, path, log_bytes == 0, size <= options.check_bytes_max)?,
    };

    // The system says best why a file cannot be written.
    private::file_options()
        .create(true)
        .append(true)
        .open(path)
        .map_err(unusable)?;
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
fn look(dir: &Path, path: &Path, is_alone: bool, whole: bool) -> Result<i64, StoreError> {
    let corrupt = |detail: String| StoreError::Corrupt {
        path: path.to_owned(),
        detail,
    };
    let mut header = [0; HEADER_BYTES];
    let length = File::open(path).and_then(|mut file| {
        file.read_exact(&mut header)?;
        Ok(file.metadata()?.len())
    });
    let length = match length {
        Ok(length) if header.starts_with(MAGIC) => length,
        Err(source) if source.kind() != ErrorKind::UnexpectedEof => {
            return Err(StoreError::DirUnusable {
                dir: dir.to_owned(),
                source,
            });
        }
        _ => return Err(corrupt("it does not begin like a SQLite file".to_owned())),
    };
    // Whoever reads "damaged" moves the file away; no full disk may lead there. `Unknown`
    // is what SQLite says of a schema or a format that it cannot make sense of.
    let damaged = |error: rusqlite::Error| match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase | ErrorCode::Unknown) => {
            corrupt(error.to_string())
        }
        _ => error.into(),
    };
    let connection = Connection::open_with_flags(path, flags(false)).map_err(damaged)?;
    // The log of a crash must still be there when somebody else opens the file; where there
    // is none, closing leaves none.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, !is_alone)?;
    let pragma = |name| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    match pragma("application_id").map_err(damaged)? {
        schema::APPLICATION_ID => {}
        // A first start that was cut off before it made a table.
        0 if schema::is_empty(&connection).map_err(damaged)? => return Ok(0),
        _ => {
            return Err(StoreError::NotAJournal {
                path: path.to_owned(),
            });
        }
    }
    // While there is a log, the file may lack what the log still holds.
    if is_alone && length < length_of(&header) {
        return Err(corrupt("its end is missing".to_owned()));
    }
    let found = pragma("user_version").map_err(damaged)?;
    if found > schema::known() {
        let known = schema::known();
        return Err(StoreError::TooNew {
            path: path.to_owned(),
            found,
            known,
        });
    }
    if whole {
        let verdict: String = connection
            .query_row("PRAGMA quick_check(1)", [], |row| row.get(0))
            .map_err(damaged)?;
        if verdict != "ok" {
            return Err(corrupt(verdict));
        }
    }
    Ok(found)
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
