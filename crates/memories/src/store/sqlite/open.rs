//! Opens a tenant's file and migrates it to the newest schema.
//!
//! Verifies that the file belongs to the tenant before it writes anything.

use std::ffi::{c_char, c_int};
use std::path::Path;

use memoird_store::DataKey;
use memoird_store::sqlite_file::{SqliteFile, damaged, open_for_inspection};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OptionalExtension, ffi};

use super::files::FilesOptions;
use super::terms;
use crate::FileError;

/// SQLite application id of memory files: "memm".
const APPLICATION_ID: i64 = 0x6d65_6d6d;

/// Migration steps. `PRAGMA user_version` counts the steps taken.
///
/// A released step is never changed. New steps are appended.
const MIGRATIONS: [&str; 9] = [V1, V2, V3, V4, V5, V6, V7, V8, V9];

/// The initial schema.
///
/// The `no` of a memory consists of its partition and a number in it. The memories that one subject
/// may recall privately are therefore one range in every table and index, regardless of other
/// subjects. Partition 0 is the team's. The number of a partition is never reused. The name of a
/// subject is only in `partitions`: without that row its memories have no owner, and no query finds
/// them.
///
/// The word index (`words`, now `terms`) and the vectors contain only current memories, no history.
/// `vector_blocks` contains one bit per dimension and the filter properties, for 32 memories per
/// row, so that selecting candidates among ten thousand reads a few hundred rows. Times are stored
/// as integers that sort correctly (`time.rs`), ids as 16 bytes. `format` is the version of the
/// row. The text is the last column, so that queries for other columns do not read it.
///
/// The word index uses small pages. For a term on more than four pages, FTS5 stores where the rows
/// on each page start, and can skip to a partition. With the default of 4,050 bytes, a search for a
/// subject with 100 of 100,000 memories took twice as long. Descending order skips further than
/// ascending order.
const V1: &str = include_str!("schema_1.sql");

/// Adds forget jobs by source: a session, or generations of 16 bytes each.
const V2: &str = "
ALTER TABLE forget_jobs ADD COLUMN session TEXT;
ALTER TABLE forget_jobs ADD COLUMN generations BLOB;
";

/// Adds an index of words split by memoird itself. It replaces that of `V1`, which SQLite split.
///
/// `places` contains the positions of current memories in conversations. `said` is a digest of
/// partition, session and generation.
const V3: &str = "
ALTER TABLE partitions ADD COLUMN languages INTEGER NOT NULL DEFAULT 1;
CREATE VIRTUAL TABLE terms USING fts5(
    forms, content = '', detail = none, columnsize = 0, tokenize = 'ascii'
);
INSERT INTO terms (terms, rank) VALUES ('secure-delete', 1);
INSERT INTO terms (terms, rank) VALUES ('pgsz', 512);
CREATE TABLE places (
    no   INTEGER NOT NULL,
    said INTEGER NOT NULL,
    seq  INTEGER NOT NULL,
    PRIMARY KEY (no, seq)
) STRICT, WITHOUT ROWID;
CREATE INDEX places_said ON places (said, seq);
INSERT INTO meta VALUES ('words_at', -1), ('words_left', (SELECT memories FROM state));
";

/// Adds the commits of leases, to recognize repeated ones.
///
/// `content` is a salted digest of the committed facts, and `results` are their outcomes.
const V4: &str = "
CREATE TABLE extractions (
    no         INTEGER PRIMARY KEY,
    lease      BLOB    NOT NULL UNIQUE,
    content    BLOB    NOT NULL,
    generation BLOB    NOT NULL,
    owner      INTEGER,
    seq        INTEGER NOT NULL,
    results    BLOB    NOT NULL,
    at         INTEGER NOT NULL
) STRICT;
CREATE INDEX extractions_owner ON extractions (owner);
CREATE INDEX extractions_generation ON extractions (generation);
";

/// Adds documents.
///
/// `path` is a [`crate::rules::documents::NamespacePath`]. A namespace exists as long as it has
/// documents. The value is the last column, so that queries for other columns do not read it.
/// `bytes` counts values, keys and paths.
const V5: &str = "
CREATE TABLE namespaces (
    no        INTEGER PRIMARY KEY,
    path      BLOB    NOT NULL UNIQUE,
    documents INTEGER NOT NULL
) STRICT;
CREATE TABLE documents (
    no        INTEGER PRIMARY KEY,
    namespace INTEGER NOT NULL,
    key       BLOB    NOT NULL,
    version   INTEGER NOT NULL,
    created   INTEGER NOT NULL,
    updated   INTEGER NOT NULL,
    expires   INTEGER,
    form      INTEGER NOT NULL,
    value     BLOB    NOT NULL
) STRICT;
CREATE UNIQUE INDEX documents_key ON documents (namespace, key);
CREATE INDEX documents_expiry ON documents (expires) WHERE expires IS NOT NULL;
CREATE TABLE document_state (
    id        INTEGER PRIMARY KEY CHECK (id = 1),
    documents INTEGER NOT NULL,
    bytes     INTEGER NOT NULL
) STRICT;
INSERT INTO document_state VALUES (1, 0, 0);
";

/// Adds external keys, unique among the current memories of a subject, and metadata.
const V6: &str = "
ALTER TABLE memories ADD COLUMN external_key TEXT;
ALTER TABLE memories ADD COLUMN metadata TEXT;
CREATE UNIQUE INDEX memories_external ON memories (owner, external_key)
    WHERE external_key IS NOT NULL AND superseded_by IS NULL;
CREATE INDEX memories_metadata ON memories (partition) WHERE metadata IS NOT NULL;
";

/// Drops the word index of `V1`.
const V7: &str = "
DROP TABLE IF EXISTS words;
DROP VIEW IF EXISTS current_words;
";

/// Adds the checksums of memories and documents (`checksum.rs`).
///
/// Those of existing rows are computed in the background, which finds them by the indexes.
const V8: &str = "
ALTER TABLE memories ADD COLUMN checksum INTEGER;
ALTER TABLE documents ADD COLUMN checksum INTEGER;
CREATE INDEX memories_unchecked ON memories (no) WHERE checksum IS NULL;
CREATE INDEX documents_unchecked ON documents (no) WHERE checksum IS NULL;
";

/// Adds idempotency keys of puts of documents, with the version and the creation time of the document.
///
/// `memory` is a digest of the document's name then.
const V9: &str = "
ALTER TABLE keys ADD COLUMN version INTEGER;
ALTER TABLE keys ADD COLUMN created INTEGER;
";

/// First schema with checksums.
const CHECKSUMS_SINCE: i64 = 8;

/// Version of the newest schema.
const KNOWN: i64 = MIGRATIONS.len() as i64;

const FILE: SqliteFile = SqliteFile {
    application_id: APPLICATION_ID,
    schema_known: KNOWN,
    // Fits the vector bits of a subject with ten thousand memories.
    cache_kib: 8 << 10,
    // 32 MiB, which stay allocated. Facts of many subjects change the same pages repeatedly, and a
    // checkpoint moves each page once. Overwriting a WAL is faster to sync than extending it.
    checkpoint_pages: 8_192,
    log_bytes_kept: 32 << 20,
    statements_cached: 128,
};

/// Opens the single writer connection, and creates the file if it is missing.
pub(super) fn writer(
    path: &Path,
    tenant: &str,
    options: &FilesOptions,
) -> Result<Connection, FileError> {
    let key = options.key.as_ref();
    let schema = inspect(path, key, tenant)?;
    let mut connection = FILE.writer(path, key, schema == 0)?;
    connection.pragma_update(None, "secure_delete", "ON")?;
    if let Some(pages) = options.pages_max {
        connection.pragma_update(None, "max_page_count", pages)?;
    }
    prepare(&connection)?;
    migrate(&mut connection, schema, tenant)?;
    Ok(connection)
}

/// Opens a connection that can read while the writer writes.
pub(super) fn reader(path: &Path, key: Option<&DataKey>) -> Result<Connection, FileError> {
    let connection = FILE.reader(path, key)?;
    prepare(&connection)?;
    Ok(connection)
}

/// Opens an empty file of the newest schema, in memory.
pub(in crate::store) fn empty_schema() -> Result<Connection, FileError> {
    Ok(create(&MIGRATIONS)?)
}

/// Creates an empty file of a version in memory. `None` if the version is newer.
///
/// # Errors
/// If SQLite cannot allocate memory.
pub fn schema_of_version(version: i64) -> rusqlite::Result<Option<Connection>> {
    let steps = MIGRATIONS.get(..usize::try_from(version).unwrap_or(0));
    steps.map(create).transpose()
}

fn create(steps: &[&str]) -> rusqlite::Result<Connection> {
    let connection = Connection::open_in_memory()?;
    for step in steps {
        connection.execute_batch(step)?;
    }
    Ok(connection)
}

/// Whether the rows of a file may have checksums.
pub(in crate::store) fn has_checksums(connection: &Connection) -> rusqlite::Result<bool> {
    let version: i64 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
    Ok(version >= CHECKSUMS_SINCE)
}

/// Returns the tenant of a file, or `None` if it cannot be determined.
pub(super) fn tenant_of(path: &Path, key: Option<&DataKey>) -> Result<Option<String>, FileError> {
    let connection = open_for_inspection(path, key)?;
    Ok(tenant(&connection).unwrap_or(None))
}

/// Checks an existing file without changing it. Returns the version of its schema.
fn inspect(path: &Path, key: Option<&DataKey>, wanted: &str) -> Result<i64, FileError> {
    let Some(existing) = FILE.inspect(path, key)? else {
        return Ok(0);
    };
    let is_wanted = match existing.schema {
        None => false,
        Some(0) => true,
        Some(_) => {
            let found = tenant(&existing.connection).map_err(|error| damaged(path, error))?;
            found.is_some_and(|found| found == wanted)
        }
    };
    match existing.schema.filter(|_| is_wanted) {
        Some(schema) => Ok(schema),
        None => Err(FileError::NotOfTenant {
            path: path.to_owned(),
            tenant: wanted.to_owned(),
        }),
    }
}

/// Runs the missing migration steps, each in a transaction of its own. A new file gets this tenant.
///
/// Also deletes the word index if other word rules created it.
fn migrate(connection: &mut Connection, from: i64, tenant: &str) -> Result<(), FileError> {
    let done = usize::try_from(from).unwrap_or(0);
    for (version, step) in (1_i64..).zip(MIGRATIONS).skip(done) {
        let transaction = connection.transaction()?;
        transaction.execute_batch(step)?;
        if version == 1 {
            let salt = "INSERT INTO meta VALUES ('salt', randomblob(16)), ('tenant', ?)";
            transaction.execute(salt, [tenant])?;
        }
        transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
        transaction.pragma_update(None, "user_version", version)?;
        transaction.commit()?;
    }
    let transaction = connection.transaction()?;
    terms::renew(&transaction)?;
    transaction.commit()?;
    Ok(())
}

fn tenant(connection: &Connection) -> rusqlite::Result<Option<String>> {
    let sql = "SELECT value FROM meta WHERE name = 'tenant'";
    connection.query_row(sql, [], |row| row.get(0)).optional()
}

fn prepare(connection: &Connection) -> Result<(), FileError> {
    // Query plans must not depend on the values of parameters.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    add_vector_functions(connection)
}

/// Adds the functions of sqlite-vec to this connection only.
///
/// The journal's connections do not have them.
#[allow(unsafe_code)]
fn add_vector_functions(connection: &Connection) -> Result<(), FileError> {
    /// As declared in sqlite3ext.h.
    type Init = unsafe extern "C" fn(
        *mut ffi::sqlite3,
        *mut *mut c_char,
        *const ffi::sqlite3_api_routines,
    ) -> c_int;
    let mut message: *mut c_char = std::ptr::null_mut();
    // SAFETY: the crate declares the function without its parameters; sqlite-vec.c defines it as
    // `Init`. Compiled with SQLITE_CORE, it uses the linked SQLite and does not read the third
    // parameter. The handle is valid as long as `connection`, and the functions added to it are
    // removed with it. The message must be freed by SQLite, and may be null.
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
