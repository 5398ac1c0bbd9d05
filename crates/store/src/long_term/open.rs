//! Opening a tenant's file: whose it is is looked at before anything is written.

use std::ffi::{c_char, c_int};
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension, ffi};

use super::schema;
use crate::StoreError;
use crate::lock::private;

/// What every SQLite file begins with.
const MAGIC: &[u8; 16] = b"SQLite format 3\0";
pub(super) const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// Of each connection; ten thousand memories of a subject with their vectors' bits fit.
const CACHE_KIB: i64 = 8 << 10;
/// Pages of the write-ahead log after which they are moved into the file: 8 MiB.
const CHECKPOINT_PAGES: i64 = 2_048;
/// What is left of the log's file when all of it was moved.
const LOG_BYTES_KEPT: i64 = 8 << 20;
const STATEMENTS_KEPT: usize = 128;

/// Opens the one connection that writes; makes the file where it is missing.
pub(super) fn writer(
    path: &Path,
    tenant: &str,
    pages_max: Option<u32>,
) -> Result<Connection, StoreError> {
    let dir = path.parent().unwrap_or(path).to_owned();
    let unusable = |source| StoreError::DirUnusable {
        dir: dir.clone(),
        source,
    };
    let size = std::fs::metadata(path).map_or(0, |meta| meta.len());
    let log_bytes = std::fs::metadata(path.with_extension("db-wal")).map_or(0, |meta| meta.len());
    let found = match (size, log_bytes) {
        (0, 0) => 0,
        // SQLite would throw away the log, and with it the newest memories.
        (0, _) => {
            let detail = "it is empty or missing, but its -wal is there".to_owned();
            return Err(StoreError::Corrupt {
                path: path.to_owned(),
                detail,
            });
        }
        _ => look(path, tenant)?,
    };
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
    connection.pragma_update(None, "secure_delete", "ON")?;
    connection.pragma_update(None, "wal_autocheckpoint", CHECKPOINT_PAGES)?;
    connection.pragma_update(None, "journal_size_limit", LOG_BYTES_KEPT)?;
    if let Some(pages) = pages_max {
        connection.pragma_update(None, "max_page_count", pages)?;
    }
    schema::migrate(&mut connection, found, tenant)?;
    Ok(connection)
}

/// Opens a connection that reads while the writer writes.
pub(super) fn reader(path: &Path) -> Result<Connection, StoreError> {
    let connection = Connection::open_with_flags(path, flags(true))?;
    prepare(&connection)?;
    Ok(connection)
}

/// Whose file it is; `None` when that cannot be told.
pub(super) fn tenant_of(path: &Path) -> Result<Option<String>, StoreError> {
    let connection = look_only(path)?;
    Ok(tenant(&connection).unwrap_or(None))
}

/// Looks at an existing file without changing it; gives its schema's version.
fn look(path: &Path, wanted: &str) -> Result<i64, StoreError> {
    let corrupt = |detail: String| StoreError::Corrupt {
        path: path.to_owned(),
        detail,
    };
    let mut magic = [0; MAGIC.len()];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut magic));
    if read.is_err() || magic != *MAGIC {
        return Err(corrupt("it does not begin like a SQLite file".to_owned()));
    }
    // Whoever reads "damaged" moves the file away; no full disk may lead there.
    let damaged = |error: rusqlite::Error| match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase | ErrorCode::Unknown) => {
            corrupt(error.to_string())
        }
        _ => error.into(),
    };
    let connection = look_only(path)?;
    let pragma = |name| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    let empty = "SELECT NOT EXISTS (SELECT 1 FROM sqlite_schema)";
    let not_ours = || StoreError::NotOfTenant {
        path: path.to_owned(),
        tenant: wanted.to_owned(),
    };
    match pragma("application_id").map_err(damaged)? {
        schema::APPLICATION_ID => {}
        // A first start that was cut off before it made a table.
        0 if connection
            .query_row(empty, [], |row| row.get(0))
            .map_err(damaged)? =>
        {
            return Ok(0);
        }
        _ => return Err(not_ours()),
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
    match tenant(&connection).map_err(damaged)? {
        Some(found_tenant) if found_tenant == wanted => Ok(found),
        _ => Err(not_ours()),
    }
}

fn look_only(path: &Path) -> Result<Connection, StoreError> {
    let connection = Connection::open_with_flags(path, flags(false))?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    // The log of a crash must still be there when somebody else opens the file; where there
    // is none, closing leaves none.
    let has_log = std::fs::metadata(path.with_extension("db-wal")).is_ok_and(|log| log.len() > 0);
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, has_log)?;
    Ok(connection)
}

fn tenant(connection: &Connection) -> rusqlite::Result<Option<String>> {
    let sql = "SELECT value FROM meta WHERE name = 'tenant'";
    connection.query_row(sql, [], |row| row.get(0)).optional()
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
    // A plan that was made once is kept, whatever is asked.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    connection.pragma_update(None, "cache_size", -CACHE_KIB)?;
    connection.pragma_update(None, "temp_store", "MEMORY")?;
    add_vector_functions(connection)
}

/// Gives this connection sqlite-vec's functions, and no other: the journal has none.
#[allow(unsafe_code)]
fn add_vector_functions(connection: &Connection) -> Result<(), StoreError> {
    /// As sqlite3ext.h has it.
    type Init = unsafe extern "C" fn(
        *mut ffi::sqlite3,
        *mut *mut c_char,
        *const ffi::sqlite3_api_routines,
    ) -> c_int;
    let mut message: *mut c_char = std::ptr::null_mut();
    // SAFETY: the crate declares the function without its parameters; sqlite-vec.c defines
    // it as `Init`. Compiled with SQLITE_CORE it uses the linked SQLite and leaves the third
    // one unread. The handle lives as long as `connection`, and functions that are added to
    // it go with it. The message is SQLite's to free, also where there is none.
    let code = unsafe {
        let init =
            std::mem::transmute::<unsafe extern "C" fn(), Init>(sqlite_vec::sqlite3_vec_init);
        let code = init(connection.handle(), &raw mut message, std::ptr::null());
        ffi::sqlite3_free(message.cast());
        code
    };
    match code {
        ffi::SQLITE_OK => Ok(()),
        code => Err(rusqlite::Error::SqliteFailure(ffi::Error::new(code), None).into()),
    }
}
