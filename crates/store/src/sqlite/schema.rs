//! The tables, and how a journal of an older memoird becomes one of this.

use rusqlite::Connection;

use crate::StoreError;

/// Marks the file as memoird's: "memo".
pub(super) const APPLICATION_ID: i64 = 0x6d65_6d6f;

/// Each step leads from one schema to the next; what has been released is never
/// changed, only followed. `PRAGMA user_version` counts the steps taken.
pub(super) const MIGRATIONS: [&str; 9] = [V1, V2, V3, V4, V5, V6, V7, V8, V9];

/// What a call waits for is written in the order in which it comes, at the end of a
/// table: a commit of a hundred appends then writes a few pages, not a hundred. Those are
/// `turns`, `intake_heads` and `intake_keys`. From time to time (see `intake.rs`) the
/// intake is folded into the tables by which things are found: `turn_places`,
/// `generations` and `idempotency`. Until then `progress.placed` is the last turn that
/// has its place.
///
/// `format` is the version of a generation's row and of its turns' encoding. The partial
/// index allows one live generation per session.
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

/// `cuts` is what windows of a session were decided to be: written rarely, found by its
/// generation.
const V2: &str = "
CREATE TABLE windows (
    generation BLOB PRIMARY KEY,
    cuts       BLOB NOT NULL
) STRICT, WITHOUT ROWID;
";

/// All summaries of a generation stay, so that an undo gives the one before back; `status` is
/// how its compaction does. Both are versioned by their first byte, written rarely, and found
/// by their generation.
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

/// `held` is 1 once the pruner found that a hook is still owed the generation, and 0 again when
/// a delivery of it is done or dropped: what is held is not looked at in each of its passes.
/// The last ended generation of a session is that which ended last on the steady time line;
/// names follow the wall clock.
const V4: &str = "
ALTER TABLE generations ADD COLUMN held INTEGER NOT NULL DEFAULT 0;
DROP INDEX generations_age;
CREATE INDEX generations_age ON generations (ended_at)
    WHERE ended_at IS NOT NULL AND held = 0;
DROP INDEX generations_ended;
CREATE INDEX generations_ended ON generations (tenant, session, ended_at)
    WHERE ended_at IS NOT NULL;
";

/// What it takes to notice that the content of a turn was damaged, and to answer for the turn
/// without it: see `checksum.rs`. Turns that were there before have neither.
const V5: &str = "
ALTER TABLE turns ADD COLUMN header BLOB;
ALTER TABLE turns ADD COLUMN checksum INTEGER;
";

/// `erasures` are jobs that remove what is known of a session or a subject. Which generations one
/// covers is found first, and noted beside it: their own rows are soon gone, and what lies
/// elsewhere is found by them. `erasure_given` has the hooks that were given one of them.
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

/// `rewound`: which turns of a generation were rewound, as runs of seqs with at least one seq
/// between two of them. `rewinds`: which of them the rewind of an idempotency key took. Written
/// rarely, so at once where they are found. `newest_seq`: the newest turn that was not rewound;
/// NULL: the newest. `turn_changes`: turns whose content was replaced, in the order of it, for
/// who follows the journal.
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

/// What a bot decided about a session, in one life of it: versioned by its first byte, written
/// rarely, and found by its generation.
const V8: &str = "
CREATE TABLE options (
    generation BLOB PRIMARY KEY,
    options    BLOB NOT NULL
) STRICT, WITHOUT ROWID;
";

/// `contents`: what turns say that were written ahead of their change set, in transactions of
/// their own (see `ahead.rs`). A turn with a `content_id` has its content there. Up to
/// `progress.claimed` all of them belong to turns; those behind it to no turn yet, or never.
const V9: &str = "
CREATE TABLE contents (
    id      INTEGER PRIMARY KEY,
    content BLOB    NOT NULL
) STRICT;
ALTER TABLE turns ADD COLUMN content_id INTEGER;
ALTER TABLE progress ADD COLUMN claimed INTEGER NOT NULL DEFAULT 0;
";

/// `outbox` holds what hooks are owed, written with the end that owes it. The first journals
/// had none, and the version stayed the same when it came: so a journal of any version may
/// lack it, and it is looked for at each start. So is its index, which found deliveries without
/// regard to their tenants once.
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

/// The newest schema.
pub(super) const KNOWN: i64 = MIGRATIONS.len() as i64;

/// Takes the steps that are missing, each in a transaction of its own.
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
