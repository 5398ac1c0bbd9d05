//! Opens a tenant's file, and brings an older one to the newest schema. That the file belongs
//! to the tenant is checked before anything is written.

use std::ffi::{c_char, c_int};
use std::path::Path;

use memoird_store::DataKey;
use memoird_store::sqlite_file::{SqliteFile, damaged, look_only};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OptionalExtension, ffi};

use super::terms;
use crate::FileError;
use crate::store::FilesOptions;

/// Marks the file as memoird's memories: "memm".
const APPLICATION_ID: i64 = 0x6d65_6d6d;

/// Each step leads from one schema to the next; a released step is never
/// changed, only followed. `PRAGMA user_version` counts the steps taken.
const MIGRATIONS: [&str; 7] = [V1, V2, V3, V4, V5, V6, V7];

/// The `no` of a memory is its partition, and a number in it: what one subject may recall
/// privately is one range in every table and index, whatever others have. Partition 0 is
/// the team's. A partition's number is never used twice, and a subject's name is in
/// `partitions` only: without its row the memories have no owner, and no query finds them.
///
/// `words`, which is `terms` now, and the vectors hold current memories only, without history. `vector_blocks` has
/// one bit for each dimension and what filters ask, 32 memories a row: a first look over
/// ten thousand reads a few hundred rows. Moments sort as integers (`time.rs`), ids are
/// 16 bytes. `format` is the version of the row. The text is the last column, so that
/// a query for the other columns does not read it.
///
/// Small pages let `words` find its way to a partition's rows: of a term on more than four
/// of them it knows where they begin. With the usual 4,050 bytes, a subject of 100 among
/// 100,000 took twice as long; backwards it jumps further than forwards.
const V1: &str = include_str!("schema_1.sql");

/// A job that forgets by the sources of memories: a session, or generations (16 bytes each).
const V2: &str = "
ALTER TABLE forget_jobs ADD COLUMN session TEXT;
ALTER TABLE forget_jobs ADD COLUMN generations BLOB;
";

/// The index of words that memoird cuts itself, in the place of that of `V1`, whose words SQLite cut.
/// `places` says where in
/// conversations current memories were said (`said`: a digest of whose, session and generation).
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

/// The commits of leases, by which a repeated one is known: `content` is a salted digest of what was
/// committed, `results` what became of each fact.
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

/// Documents. A path is that of [`crate::rules::documents::NamespacePath`]; a namespace is there as
/// long as it has documents. The value is the last column, so that a query for the other columns
/// does not read it. `bytes` counts values, keys and paths.
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

/// Names that bots give to memories, one for a current memory of a subject, and what they note.
const V6: &str = "
ALTER TABLE memories ADD COLUMN external_key TEXT;
ALTER TABLE memories ADD COLUMN metadata TEXT;
CREATE UNIQUE INDEX memories_external ON memories (owner, external_key)
    WHERE external_key IS NOT NULL AND superseded_by IS NULL;
CREATE INDEX memories_metadata ON memories (partition) WHERE metadata IS NOT NULL;
";

/// The index of `V1` goes.
const V7: &str = "
DROP TABLE IF EXISTS words;
DROP VIEW IF EXISTS current_words;
";

/// The newest schema.
const KNOWN: i64 = MIGRATIONS.len() as i64;

const FILE: SqliteFile = SqliteFile {
    application_id: APPLICATION_ID,
    schema_known: KNOWN,
    // Ten thousand memories of a subject with their vectors' bits fit.
    cache_kib: 8 << 10,
    // 32 MiB, all of which are kept: facts of many subjects change the same pages again and again,
    // which are moved once, and a log that is written over is synced faster than one that grows.
    checkpoint_pages: 8_192,
    log_bytes_kept: 32 << 20,
    statements_kept: 128,
};

/// Opens the one connection that writes; makes the file where it is missing.
pub(super) fn writer(
    path: &Path,
    tenant: &str,
    options: &FilesOptions,
) -> Result<Connection, FileError> {
    let key = options.key.as_ref();
    let schema = look(path, key, tenant)?;
    let mut connection = FILE.writer(path, key, schema == 0)?;
    connection.pragma_update(None, "secure_delete", "ON")?;
    if let Some(pages) = options.pages_max {
        connection.pragma_update(None, "max_page_count", pages)?;
    }
    prepare(&connection)?;
    migrate(&mut connection, schema, tenant)?;
    Ok(connection)
}

/// Opens a connection that reads while the writer writes.
pub(super) fn reader(path: &Path, key: Option<&DataKey>) -> Result<Connection, FileError> {
    let connection = FILE.reader(path, key)?;
    prepare(&connection)?;
    Ok(connection)
}

/// The tenant of a file; `None` when it cannot be determined.
pub(super) fn tenant_of(path: &Path, key: Option<&DataKey>) -> Result<Option<String>, FileError> {
    let connection = look_only(path, key)?;
    Ok(tenant(&connection).unwrap_or(None))
}

/// Looks at an existing file without changing it; gives its schema's version.
fn look(path: &Path, key: Option<&DataKey>, wanted: &str) -> Result<i64, FileError> {
    let Some(look) = FILE.look(path, key)? else {
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

/// Takes the steps that are missing, each in a transaction of its own; a new file is this
/// tenant's. Words that were cut by other rules go.
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
