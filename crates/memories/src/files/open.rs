//! Opening a tenant's file: whose it is is looked at before anything is written.

use std::ffi::{c_char, c_int};
use std::path::Path;

use memoird_store::sqlite_file::{SqliteFile, damaged, look_only};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OptionalExtension, ffi};

use super::schema;
use crate::FileError;

const FILE: SqliteFile = SqliteFile {
    application_id: schema::APPLICATION_ID,
    schema_known: schema::KNOWN,
    // Ten thousand memories of a subject with their vectors' bits fit.
    cache_kib: 8 << 10,
    // 8 MiB.
    checkpoint_pages: 2_048,
    log_bytes_kept: 8 << 20,
    statements_kept: 128,
};

/// Opens the one connection that writes; makes the file where it is missing.
pub(super) fn writer(
    path: &Path,
    tenant: &str,
    pages_max: Option<u32>,
) -> Result<Connection, FileError> {
    let schema = look(path, tenant)?;
    let mut connection = FILE.writer(path, schema == 0)?;
    connection.pragma_update(None, "secure_delete", "ON")?;
    if let Some(pages) = pages_max {
        connection.pragma_update(None, "max_page_count", pages)?;
    }
    prepare(&connection)?;
    schema::migrate(&mut connection, schema, tenant)?;
    Ok(connection)
}

/// Opens a connection that reads while the writer writes.
pub(super) fn reader(path: &Path) -> Result<Connection, FileError> {
    let connection = FILE.reader(path)?;
    prepare(&connection)?;
    Ok(connection)
}

/// Whose file it is; `None` when that cannot be told.
pub(super) fn tenant_of(path: &Path) -> Result<Option<String>, FileError> {
    let connection = look_only(path)?;
    Ok(tenant(&connection).unwrap_or(None))
}

/// Looks at an existing file without changing it; gives its schema's version.
fn look(path: &Path, wanted: &str) -> Result<i64, FileError> {
    let Some(look) = FILE.look(path)? else {
        return Ok(0);
    };
    let is_wanted = match look.schema {
        None => false,
        Some(0) => true,
        Some(_) => {
            let found = tenant(&look.connection).map_err(|error| damaged(path, error))?;
            found.is_some_and(|found| found == wanted)
        }
    };
    match look.schema.filter(|_| is_wanted) {
        Some(schema) => Ok(schema),
        None => Err(FileError::NotOfTenant {
            path: path.to_owned(),
            tenant: wanted.to_owned(),
        }),
    }
}

fn tenant(connection: &Connection) -> rusqlite::Result<Option<String>> {
    let sql = "SELECT value FROM meta WHERE name = 'tenant'";
    connection.query_row(sql, [], |row| row.get(0)).optional()
}

fn prepare(connection: &Connection) -> Result<(), FileError> {
    // A plan that was made once is kept, whatever is asked.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    add_vector_functions(connection)
}

/// Gives this connection sqlite-vec's functions, and no other: the journal has none.
#[allow(unsafe_code)]
fn add_vector_functions(connection: &Connection) -> Result<(), FileError> {
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
