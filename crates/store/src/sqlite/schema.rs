//! Table definitions and migrations of the journal.

use rusqlite::Connection;

use crate::StoreError;

/// "memo" in ASCII.
pub(super) const APPLICATION_ID: i64 = 0x6d65_6d6f;

/// Schema migrations. A released one is never changed, only followed by another.
///
/// `PRAGMA user_version` is the number of migrations applied.
pub(super) const MIGRATIONS: [&str; 12] = [V1, V2, V3, V4, V5, V6, V7, V8, V9, V10, V11, V12];

/// The initial schema. Commits append to `turns`, `intake_heads` and `intake_keys`.
///
/// So a commit of a hundred appends writes a few pages instead of a hundred. A flush (see
/// `pending.rs`) later moves the rows to the indexed tables `turn_places`, `generations` and
/// `idempotency`. `progress.placed` is the last flushed turn.
///
/// `format` is the version of a generation's row and of the encoding of its turns. The partial
/// unique index allows one live generation per session.
const V1: &str = "
CREATE TABLE clock (
    id      INTEGER PRIMARY KEY CHECK (id = 1),
    steady  INTEGER NOT NULL,
    wall    INTEGER NOT NULL,
    boot_id TEXT    NOT NULL,
    boot    INTEGER NOT NULL
) STRICT;

CREATE TABLE progress (
    id     INTEGER PRIMARY KEY CHECK (id = 1),
    placed INTEGER NOT NULL
) STRICT;
INSERT INTO progress (id, placed) VALUES (1, 0);

CREATE TABLE turns (
    id         INTEGER PRIMARY KEY,
    generation BLOB    NOT NULL,
    seq        INTEGER NOT NULL,
    content    BLOB    NOT NULL
) STRICT;

CREATE TABLE turn_places (
    generation BLOB    NOT NULL,
    seq        INTEGER NOT NULL,
    id         INTEGER NOT NULL,
    PRIMARY KEY (generation, seq)
) STRICT, WITHOUT ROWID;

CREATE TABLE generations (
    generation    BLOB    PRIMARY KEY,
    format        INTEGER NOT NULL,
    tenant        TEXT    NOT NULL,
    session       TEXT    NOT NULL,
    subject       TEXT,
    created_ms    INTEGER NOT NULL,
    last_access   INTEGER NOT NULL,
    revision      INTEGER NOT NULL,
    last_seq      INTEGER NOT NULL,
    kept          BLOB    NOT NULL,
    turns         INTEGER NOT NULL,
    bytes         INTEGER NOT NULL,
    tokens        INTEGER NOT NULL,
    partial       INTEGER NOT NULL,
    state_version INTEGER NOT NULL,
    ended_ms      INTEGER,
    ended_at      INTEGER,
    reason        TEXT
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX generations_live ON generations (tenant, session) WHERE ended_at IS NULL;
CREATE INDEX generations_ended ON generations (tenant, session, generation)
    WHERE ended_at IS NOT NULL;
CREATE INDEX generations_age ON generations (ended_at) WHERE ended_at IS NOT NULL;

CREATE TABLE intake_heads (
    id            INTEGER PRIMARY KEY,
    generation    BLOB    NOT NULL,
    format        INTEGER NOT NULL,
    tenant        TEXT    NOT NULL,
    session       TEXT    NOT NULL,
    subject       TEXT,
    created_ms    INTEGER NOT NULL,
    last_access   INTEGER NOT NULL,
    revision      INTEGER NOT NULL,
    last_seq      INTEGER NOT NULL,
    kept          BLOB    NOT NULL,
    turns         INTEGER NOT NULL,
    bytes         INTEGER NOT NULL,
    tokens        INTEGER NOT NULL,
    partial       INTEGER NOT NULL,
    state_version INTEGER NOT NULL,
    ended_ms      INTEGER,
    ended_at      INTEGER,
    reason        TEXT
) STRICT;

CREATE TABLE states (
    generation BLOB PRIMARY KEY,
    json       TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE idempotency (
    tenant     TEXT    NOT NULL,
    session    TEXT    NOT NULL,
    key        BLOB    NOT NULL,
    content    BLOB    NOT NULL,
    generation BLOB    NOT NULL,
    first_seq  INTEGER NOT NULL,
    last_seq   INTEGER NOT NULL,
    dropped    INTEGER NOT NULL,
    at         INTEGER NOT NULL,
    PRIMARY KEY (tenant, session, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX idempotency_age ON idempotency (at);

CREATE TABLE intake_keys (
    id         INTEGER PRIMARY KEY,
    tenant     TEXT    NOT NULL,
    session    TEXT    NOT NULL,
    key        BLOB    NOT NULL,
    content    BLOB    NOT NULL,
    generation BLOB    NOT NULL,
    first_seq  INTEGER NOT NULL,
    last_seq   INTEGER NOT NULL,
    dropped    INTEGER NOT NULL,
    at         INTEGER NOT NULL
) STRICT;
";

/// `cuts` are the decisions about a session's windows. Rarely written, and looked up by generation.
const V2: &str = "
CREATE TABLE windows (
    generation BLOB PRIMARY KEY,
    cuts       BLOB NOT NULL
) STRICT, WITHOUT ROWID;
";

/// Summaries and compaction status, both with a version in their first byte.
///
/// All summaries of a generation are retained, so that an undo can restore the previous one. The
/// rows are rarely written, and looked up by generation.
const V3: &str = "
CREATE TABLE summaries (
    generation BLOB    NOT NULL,
    number     INTEGER NOT NULL,
    body       BLOB    NOT NULL,
    PRIMARY KEY (generation, number)
) STRICT, WITHOUT ROWID;

CREATE TABLE compactions (
    generation BLOB PRIMARY KEY,
    status     BLOB NOT NULL
) STRICT, WITHOUT ROWID;
";

/// `held` marks generations that the pruner skips.
///
/// It is 1 once the pruner finds that a delivery still needs the generation, and 0 again when one
/// of its deliveries is finished or dropped.
///
/// The newest ended generation of a session is the one that ended last on the monotonic timeline.
/// Generation ids follow the wall clock.
const V4: &str = "
ALTER TABLE generations ADD COLUMN held INTEGER NOT NULL DEFAULT 0;
DROP INDEX generations_age;
CREATE INDEX generations_age ON generations (ended_at)
    WHERE ended_at IS NOT NULL AND held = 0;
DROP INDEX generations_ended;
CREATE INDEX generations_ended ON generations (tenant, session, ended_at)
    WHERE ended_at IS NOT NULL;
";

/// Header and checksum of a turn, to detect a damaged content and replace it: see `checksum.rs`.
///
/// NULL for turns written before.
const V5: &str = "
ALTER TABLE turns ADD COLUMN header BLOB;
ALTER TABLE turns ADD COLUMN checksum INTEGER;
";

/// Erasure jobs, which remove all data of a session or a subject.
///
/// `erasure_generations` is the scope of a job. It is collected first, because the rows it is found
/// by are deleted, while data outside the journal is still found through it. `erasure_given` lists
/// the hooks that received one of these generations.
const V6: &str = "
CREATE TABLE erasures (
    job        BLOB PRIMARY KEY,
    tenant     TEXT NOT NULL,
    stage      TEXT NOT NULL,
    session    TEXT,
    generation BLOB,
    subject    TEXT,
    position   BLOB NOT NULL,
    counts     BLOB NOT NULL,
    outside    TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX erasures_open ON erasures (job) WHERE stage <> 'done';

CREATE TABLE erasure_generations (
    job        BLOB    NOT NULL,
    generation BLOB    NOT NULL,
    session    TEXT    NOT NULL,
    is_erased  INTEGER NOT NULL,
    PRIMARY KEY (job, generation)
) STRICT, WITHOUT ROWID;
CREATE INDEX erasure_generations_left ON erasure_generations (job, generation)
    WHERE is_erased = 0;
CREATE INDEX erasure_generations_name ON erasure_generations (generation);

CREATE TABLE erasure_given (
    job        BLOB NOT NULL,
    generation BLOB NOT NULL,
    hook       TEXT NOT NULL,
    PRIMARY KEY (job, generation, hook)
) STRICT, WITHOUT ROWID;
";

/// Rewinds and turn updates.
///
/// - `rewound`: rewound turns of a generation, as maximal runs of seqs.
/// - `rewinds`: the runs that the rewind with an idempotency key removed.
/// - `turn_changes`: replacements of turn contents, in order, for followers of the journal.
/// - `newest_seq`: the newest turn that was not rewound. NULL means the last turn.
///
/// `rewound` and `rewinds` are rarely written, so they bypass the pending table.
const V7: &str = "
CREATE TABLE rewound (
    generation BLOB    NOT NULL,
    first_seq  INTEGER NOT NULL,
    last_seq   INTEGER NOT NULL,
    PRIMARY KEY (generation, first_seq)
) STRICT, WITHOUT ROWID;
CREATE TABLE rewinds (
    generation BLOB    NOT NULL,
    key        BLOB    NOT NULL,
    first_seq  INTEGER NOT NULL,
    last_seq   INTEGER NOT NULL,
    PRIMARY KEY (generation, key, first_seq)
) STRICT, WITHOUT ROWID;
CREATE TABLE turn_changes (
    change     INTEGER PRIMARY KEY AUTOINCREMENT,
    generation BLOB    NOT NULL,
    turn       INTEGER NOT NULL
) STRICT;
CREATE INDEX turn_changes_place ON turn_changes (generation);
ALTER TABLE generations ADD COLUMN newest_seq INTEGER;
ALTER TABLE intake_heads ADD COLUMN newest_seq INTEGER;
";

/// Options that a bot set for one generation of a session.
///
/// They have a version in their first byte, are rarely written, and are looked up by generation.
const V8: &str = "
CREATE TABLE options (
    generation BLOB PRIMARY KEY,
    options    BLOB NOT NULL
) STRICT, WITHOUT ROWID;
";

/// `contents`: contents of turns prewritten before their change set (see `prewrite.rs`).
///
/// A turn with a `content_id` has its content there. Rows up to `progress.claimed` belong to turns.
/// Those after it have no turn yet, or never will.
const V9: &str = "
CREATE TABLE contents (
    id      INTEGER PRIMARY KEY,
    content BLOB    NOT NULL
) STRICT;
ALTER TABLE turns ADD COLUMN content_id INTEGER;
ALTER TABLE progress ADD COLUMN claimed INTEGER NOT NULL DEFAULT 0;
";

/// `turn_changes` was a list for a search index that followed the journal.
const V10: &str = "
DROP TABLE turn_changes;
";

/// Generations that an erasure lists in its report and does not erase.
///
/// - `copies`: the generations that the turns of a generation are a copy of, also indirectly.
/// - `former_subjects`: subjects of a generation before its current one.
///
/// Both are rarely written, so they bypass the pending table.
const V11: &str = "
CREATE TABLE copies (
    generation BLOB NOT NULL,
    source     BLOB NOT NULL,
    PRIMARY KEY (generation, source)
) STRICT, WITHOUT ROWID;
CREATE INDEX copies_source ON copies (source);
CREATE TABLE former_subjects (
    tenant     TEXT NOT NULL,
    subject    TEXT NOT NULL,
    generation BLOB NOT NULL,
    PRIMARY KEY (tenant, subject, generation)
) STRICT, WITHOUT ROWID;
CREATE INDEX former_subjects_place ON former_subjects (generation);
";

/// Indexes for lists of ended generations by time, of a tenant and of a subject.
const V12: &str = "
CREATE INDEX generations_listed ON generations (tenant, ended_at, generation)
    WHERE ended_at IS NOT NULL;
CREATE INDEX generations_subject ON generations (tenant, subject, ended_at, generation)
    WHERE ended_at IS NOT NULL AND subject IS NOT NULL;
";

/// `outbox` holds the deliveries to hooks, written in the transaction of the end that causes them.
///
/// It was added without a new version, so a journal of any version may lack it, and every start
/// creates it if missing. The same applies to its index, which replaces one that ignored tenants.
const OUTBOX: &str = "
CREATE TABLE IF NOT EXISTS outbox (
    generation BLOB    NOT NULL,
    hook       TEXT    NOT NULL,
    tenant     TEXT    NOT NULL,
    session    TEXT    NOT NULL,
    reason     TEXT    NOT NULL,
    state      TEXT    NOT NULL,
    tries      INTEGER NOT NULL,
    last_error TEXT    NOT NULL,
    due        INTEGER NOT NULL,
    PRIMARY KEY (generation, hook)
) STRICT, WITHOUT ROWID;
DROP INDEX IF EXISTS outbox_open;
CREATE INDEX IF NOT EXISTS outbox_waiting ON outbox (hook, state, tenant, due)
    WHERE state <> 'done';
";

/// The index of `outbox` in the first journals, which `OUTBOX` replaces.
const OLD_OUTBOX_INDEX: &str =
    "CREATE INDEX outbox_open ON outbox (hook, state, due, tenant) WHERE state <> 'done'";

/// Newest schema version.
pub(super) const KNOWN: i64 = MIGRATIONS.len() as i64;

/// Creates an empty journal of a version in memory. `None` if the version is newer.
pub(crate) fn of_version(version: i64) -> rusqlite::Result<Option<Connection>> {
    if version > KNOWN {
        return Ok(None);
    }
    let connection = Connection::open_in_memory()?;
    let steps = usize::try_from(version).unwrap_or(0);
    let outbox = [OUTBOX, OLD_OUTBOX_INDEX];
    for step in MIGRATIONS.iter().take(steps).chain(&outbox) {
        connection.execute_batch(step)?;
    }
    Ok(Some(connection))
}

/// Applies the missing migrations, each in its own transaction.
pub(super) fn migrate(connection: &mut Connection, from: i64) -> Result<(), StoreError> {
    let done = usize::try_from(from).unwrap_or(0);
    for (version, step) in (1_i64..).zip(MIGRATIONS).skip(done) {
        let transaction = connection.transaction()?;
        transaction.execute_batch(step)?;
        transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
        transaction.pragma_update(None, "user_version", version)?;
        transaction.commit()?;
    }
    connection.execute_batch(OUTBOX)?;
    Ok(())
}
