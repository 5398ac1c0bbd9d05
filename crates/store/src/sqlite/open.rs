//! Opens the journal without damaging it: it is inspected before anything is written.

use std::path::Path;

use rusqlite::Connection;

use super::schema;
use crate::sqlite_file::{SqliteFile, corrupt, damaged};
use crate::{READERS_MAX, SqliteOptions, StoreError};

const JOURNAL: SqliteFile = SqliteFile {
    application_id: schema::APPLICATION_ID,
    schema_known: schema::KNOWN,
    // Overridden for each connection by its share of `SqliteOptions::cache_bytes`.
    cache_kib: 2 << 10,
    // 32 MiB.
    checkpoint_pages: 8_192,
    log_bytes_kept: 64 << 20,
    statements_cached: 64,
};

/// Reciprocal of the readers' share of the page cache.
///
/// It is the smaller share, because readers rarely read the same pages again.
const READERS_SHARE: u64 = 3;

pub(super) fn writer(path: &Path, options: SqliteOptions) -> Result<Connection, StoreError> {
    let schema = inspect(path, options)?;
    let mut connection = JOURNAL.writer(path, options.key.as_ref(), schema == 0)?;
    // Overwrite deleted rows: in pages immediately, in the log when it is emptied.
    connection.pragma_update(None, "secure_delete", "ON")?;
    let of_readers = options.cache_bytes / READERS_SHARE;
    set_cache(&connection, options.cache_bytes - of_readers)?;
    schema::migrate(&mut connection, schema)?;
    if let Some(pages) = options.pages_max {
        connection.pragma_update(None, "max_page_count", pages)?;
    }
    Ok(connection)
}

pub(super) fn reader(path: &Path, options: SqliteOptions) -> Result<Connection, StoreError> {
    let connection = JOURNAL.reader(path, options.key.as_ref())?;
    let of_readers = options.cache_bytes / READERS_SHARE;
    set_cache(&connection, of_readers / READERS_MAX as u64)?;
    Ok(connection)
}

fn set_cache(connection: &Connection, bytes: u64) -> Result<(), StoreError> {
    let kib = i64::try_from(bytes >> 10).unwrap_or(i64::MAX);
    connection.pragma_update(None, "cache_size", -kib)?;
    Ok(())
}

/// Inspects an existing file without changing it, and returns its schema version.
fn inspect(path: &Path, options: SqliteOptions) -> Result<i64, StoreError> {
    let Some(existing) = JOURNAL.inspect(path, options.key.as_ref())? else {
        return Ok(0);
    };
    let Some(schema) = existing.schema else {
        return Err(StoreError::NotAJournal {
            path: path.to_owned(),
        });
    };
    let size = std::fs::metadata(path).map_or(0, |meta| meta.len());
    if schema > 0 && size <= options.check_bytes_max {
        let check = "PRAGMA quick_check(1)";
        let verdict: String = existing
            .connection
            .query_row(check, [], |row| row.get(0))
            .map_err(|error| damaged(path, error))?;
        if verdict != "ok" {
            return Err(corrupt(path, &verdict));
        }
    }
    Ok(schema)
}
