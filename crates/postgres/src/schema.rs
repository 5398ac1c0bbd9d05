//! Tables, and schema migrations.
//!
//! Each migration step runs in its own transaction, which locks the row of `schema_version`.
//! Everything here needs that lock only.

use std::time::Duration;

use memoird_store::StoreError;
use tokio::time::sleep;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;

use crate::error::failed;

/// All migration steps of one schema.
#[derive(Clone, Copy, Debug)]
pub struct SchemaMigrations {
    pub schema: &'static str,
    /// Version that the first step creates. A schema of an older version is rejected.
    pub first_version: i32,
    /// SQL of each step. A released step is never changed.
    ///
    /// A step that older daemons cannot work with raises `schema_version.min_reader`, the oldest
    /// version that a daemon must support.
    pub steps: &'static [&'static str],
}

pub(crate) const JOURNAL: SchemaMigrations = SchemaMigrations {
    schema: "memoird",
    first_version: 7,
    steps: &[V7, V8, V9, V10, V11, V12, V13, V14, V15, V16],
};

/// Oldest supported server version, for multiranges and their functions.
const SERVER_MIN: i32 = 150_000;

/// Maximum attempts to create the schema. Two processes that start together can conflict.
const TRIES_MAX: usize = 5;

/// Lock timeout of a step.
///
/// Other statements queue after a waiting table lock. This includes the commits of running daemons,
/// which wait about as long three times.
const LOCK_TIME_MAX: &str = "SET LOCAL lock_timeout = '1500ms'";
/// Pause between two attempts. Other statements can proceed in the meantime.
const LOCK_PAUSE: Duration = Duration::from_secs(5);
/// Maximum number of attempts for a step.
const LOCK_TRIES_MAX: usize = 12;

/// Values chosen by clients are `bytea`, because `text` does not allow NUL.
///
/// Times are milliseconds. `steady` and the columns named `_at` are on memoird's own timeline. Of a
/// member, `steady` is the position of its timeline at its last heartbeat.
///
/// Columns that change with an append are not indexed, so that updates are heap-only (HOT). `used`
/// is the time of a session's last use in steps of 4 minutes: updates are HOT except once per step.
///
/// Each commit creates a version of its lane's row. While a snapshot is open (a dump, or a query on
/// a standby), no version can be vacuumed, and a commit would visit all of them. With `step` it
/// visits at most 64. In return, one in 64 updates is not HOT.
///
/// - `rewinds`: the seqs removed by rewinds with an idempotency key.
/// - `turn_changes`: replaced turns until they are indexed again.
/// - `members`: digest of the settings, and watched tenants.
/// - `secrets`: each is created by the first daemon that needs it.
/// - `events`: `number` counts the events of a member. They may be lost if the database crashes.
/// - `migration`: has a row, with the source journal, while a migration into this database is
///   unfinished.
///
/// The functions of `load.sql` load sessions. Planning a load took longer than executing it.
const V7: &str = concat!(
    "
CREATE TABLE memoird.lanes (
    node    uuid     NOT NULL,
    lane    smallint NOT NULL,
    epoch   bigint   NOT NULL,
    number  bigint   NOT NULL,
    missed  int[]    NOT NULL DEFAULT '{}',
    steady  bigint,
    wall    bigint,
    boot_id text,
    boot_ms bigint,
    seen    timestamptz NOT NULL DEFAULT now(),
    step    bigint GENERATED ALWAYS AS (number >> 6) STORED,
    PRIMARY KEY (node, lane, step)
) WITH (fillfactor = 10);

CREATE TABLE memoird.owner (
    id         int PRIMARY KEY CHECK (id = 1),
    node       uuid NOT NULL,
    name       text NOT NULL,
    is_shared  boolean NOT NULL DEFAULT false,
    expires_at timestamptz NOT NULL
) WITH (fillfactor = 10);

CREATE TABLE memoird.generations (
    generation    uuid     NOT NULL PRIMARY KEY,
    revision      bigint   NOT NULL,
    stamp         bigint   NOT NULL,
    last_seq      bigint   NOT NULL,
    newest_seq    bigint   NOT NULL,
    last_access   bigint   NOT NULL,
    turns         bigint   NOT NULL,
    bytes         bigint   NOT NULL,
    tokens        bigint   NOT NULL,
    state_version bigint   NOT NULL,
    journal_bytes bigint   NOT NULL,
    created_ms    bigint   NOT NULL,
    ended_ms      bigint,
    ended_at      bigint,
    format        smallint NOT NULL DEFAULT 1,
    partial       boolean  NOT NULL,
    held          boolean  NOT NULL DEFAULT false,
    reason        text,
    tenant        bytea    NOT NULL,
    session       bytea    NOT NULL,
    subject       bytea,
    kept          bytea    NOT NULL,
    compaction    bytea,
    options       bytea,
    used          bigint   GENERATED ALWAYS AS (last_access >> 18) STORED
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02);
CREATE UNIQUE INDEX generations_live ON memoird.generations (tenant, session)
    WHERE ended_at IS NULL;
CREATE INDEX generations_ended ON memoird.generations (tenant, session, ended_at)
    WHERE ended_at IS NOT NULL;
CREATE INDEX generations_age ON memoird.generations (ended_at)
    WHERE ended_at IS NOT NULL AND NOT held;
CREATE INDEX generations_used ON memoird.generations (tenant, used) WHERE ended_at IS NULL;

CREATE SEQUENCE memoird.turn_numbers;
CREATE TABLE memoird.turns (
    seq        bigint NOT NULL,
    number     bigint NOT NULL,
    checksum   bigint NOT NULL,
    generation uuid   NOT NULL,
    header     bytea  NOT NULL,
    content    bytea  NOT NULL,
    PRIMARY KEY (generation, seq)
);
ALTER TABLE memoird.turns ALTER COLUMN content SET STORAGE EXTERNAL;
CREATE INDEX turns_number ON memoird.turns (number);

CREATE SEQUENCE memoird.change_numbers;
CREATE TABLE memoird.turn_changes (
    change     bigint NOT NULL PRIMARY KEY,
    number     bigint NOT NULL,
    generation uuid   NOT NULL
);
CREATE INDEX turn_changes_place ON memoird.turn_changes (generation);

CREATE TABLE memoird.rewound (
    generation uuid           NOT NULL PRIMARY KEY,
    runs       int8multirange NOT NULL
);

CREATE TABLE memoird.rewinds (
    generation uuid           NOT NULL,
    key        bytea          NOT NULL,
    runs       int8multirange NOT NULL,
    PRIMARY KEY (generation, key)
);

CREATE TABLE memoird.states (
    generation uuid  NOT NULL PRIMARY KEY,
    json       bytea NOT NULL
);

CREATE TABLE memoird.windows (
    generation uuid  NOT NULL PRIMARY KEY,
    cuts       bytea NOT NULL
);

CREATE TABLE memoird.summaries (
    generation uuid   NOT NULL,
    number     bigint NOT NULL,
    body       bytea  NOT NULL,
    PRIMARY KEY (generation, number)
);

CREATE TABLE memoird.idempotency (
    at         bigint NOT NULL,
    first_seq  bigint NOT NULL,
    last_seq   bigint NOT NULL,
    dropped    bigint NOT NULL,
    generation uuid   NOT NULL,
    tenant     bytea  NOT NULL,
    session    bytea  NOT NULL,
    key        bytea  NOT NULL,
    content    bytea  NOT NULL,
    PRIMARY KEY (tenant, session, key)
);
CREATE INDEX idempotency_age ON memoird.idempotency (at);

CREATE TABLE memoird.outbox (
    due        bigint NOT NULL,
    tries      bigint NOT NULL DEFAULT 0,
    generation uuid   NOT NULL,
    hook       text   COLLATE \"C\" NOT NULL,
    tenant     bytea  NOT NULL,
    session    bytea  NOT NULL,
    reason     text   NOT NULL,
    state      text   NOT NULL DEFAULT 'pending',
    last_error bytea  NOT NULL DEFAULT '',
    PRIMARY KEY (generation, hook)
) WITH (fillfactor = 70);
CREATE INDEX outbox_pending ON memoird.outbox (hook, tenant, due, generation)
    WHERE state = 'pending';
CREATE INDEX outbox_open ON memoird.outbox (generation) WHERE state <> 'done';

CREATE TABLE memoird.erasures (
    job        uuid  NOT NULL PRIMARY KEY,
    tenant     bytea NOT NULL,
    stage      text  NOT NULL,
    session    bytea,
    generation uuid,
    subject    bytea,
    position   uuid,
    counts     bytea NOT NULL,
    outside    bytea NOT NULL
);
CREATE INDEX erasures_open ON memoird.erasures (job) WHERE stage <> 'done';

CREATE TABLE memoird.erasure_generations (
    job        uuid    NOT NULL,
    generation uuid    NOT NULL,
    session    bytea   NOT NULL,
    is_erased  boolean NOT NULL DEFAULT false,
    PRIMARY KEY (job, generation)
);
CREATE INDEX erasure_generations_left ON memoird.erasure_generations (job, generation)
    WHERE NOT is_erased;
CREATE INDEX erasure_generations_name ON memoird.erasure_generations (generation);

CREATE TABLE memoird.erasure_given (
    job        uuid NOT NULL,
    generation uuid NOT NULL,
    hook       text COLLATE \"C\" NOT NULL,
    PRIMARY KEY (job, generation, hook)
);

CREATE TABLE memoird.members (
    node        uuid    NOT NULL PRIMARY KEY,
    name        text    NOT NULL,
    version     text    NOT NULL,
    leads       boolean NOT NULL,
    steady      bigint,
    seen        timestamptz NOT NULL,
    config      bytea   NOT NULL DEFAULT '',
    watches_all boolean NOT NULL DEFAULT false,
    watches     bytea[] NOT NULL DEFAULT '{}'
) WITH (fillfactor = 10);

CREATE TABLE memoird.secrets (
    name  text  NOT NULL PRIMARY KEY,
    value bytea NOT NULL
);

CREATE UNLOGGED TABLE memoird.events (
    node   uuid   NOT NULL,
    number bigint NOT NULL,
    at     timestamptz NOT NULL,
    tenant bytea  NOT NULL,
    body   bytea  NOT NULL,
    PRIMARY KEY (node, number)
);
CREATE INDEX events_at ON memoird.events (at);

CREATE TABLE memoird.migration (
    id         int  PRIMARY KEY CHECK (id = 1),
    source     text NOT NULL,
    min_reader int  NOT NULL
);
",
    include_str!("load.sql")
);

/// A `commit_batch` that applies a key once if two daemons start and end a generation with it.
///
/// It accepts the same arguments as the one before, and refuses more.
const V8: &str = concat!(
    "DROP FUNCTION IF EXISTS memoird.commit_batch;",
    include_str!("commit.sql")
);

/// Tables of the search index.
const V9: &str = include_str!("search.sql");

/// Generations that an erasure lists in its report and does not erase. `commit_batch` writes them.
///
/// - `copies`: the generations that the turns of a generation are a copy of, also indirectly.
/// - `former_subjects`: subjects of a generation before its current one.
const V10: &str = concat!(
    "
CREATE TABLE memoird.copies (
    generation uuid NOT NULL,
    source     uuid NOT NULL,
    PRIMARY KEY (generation, source)
);
CREATE INDEX copies_source ON memoird.copies (source);
CREATE TABLE memoird.former_subjects (
    generation uuid  NOT NULL,
    tenant     bytea NOT NULL,
    subject    bytea NOT NULL,
    PRIMARY KEY (tenant, subject, generation)
);
CREATE INDEX former_subjects_place ON memoird.former_subjects (generation);
DROP FUNCTION IF EXISTS memoird.commit_batch;
",
    include_str!("commit.sql")
);

/// Counters of live sessions, so that no count reads the sessions.
///
/// A change of a tenant's count is a row of its own: a row for each tenant would make all commits
/// that start or end one of its sessions wait for each other. One daemon adds up the changes
/// (`live_counts.rs`). Triggers count whatever statement starts, ends or deletes a generation. The new
/// `commit_batch` ends generations by a statement of its own, so that no trigger fires for an append.
const V11: &str = concat!(
    "
CREATE TABLE memoird.live_counts (
    live   bigint NOT NULL,
    tenant bytea  NOT NULL PRIMARY KEY
) WITH (fillfactor = 50);

CREATE TABLE memoird.live_changes (
    change smallint NOT NULL,
    tenant bytea    NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000);

CREATE FUNCTION memoird.count_live() RETURNS trigger LANGUAGE plpgsql AS $body$
BEGIN
    INSERT INTO memoird.live_changes (change, tenant)
        VALUES (TG_ARGV[0]::smallint, coalesce(NEW.tenant, OLD.tenant));
    RETURN NULL;
END
$body$;
CREATE TRIGGER live_started AFTER INSERT ON memoird.generations FOR EACH ROW
    WHEN (NEW.ended_at IS NULL) EXECUTE FUNCTION memoird.count_live('1');
CREATE TRIGGER live_ended AFTER UPDATE OF ended_at ON memoird.generations FOR EACH ROW
    WHEN (OLD.ended_at IS NULL AND NEW.ended_at IS NOT NULL)
    EXECUTE FUNCTION memoird.count_live('-1');
CREATE TRIGGER live_deleted AFTER DELETE ON memoird.generations FOR EACH ROW
    WHEN (OLD.ended_at IS NULL) EXECUTE FUNCTION memoird.count_live('-1');
DROP FUNCTION memoird.commit_batch;
",
    include_str!("commit.sql")
);

/// Counts the sessions that were live before the triggers of [`V11`].
///
/// A step of its own, because creating the triggers locks out writers. One snapshot contains the
/// sessions and exactly their changes.
const V12: &str = "
WITH counted AS (DELETE FROM memoird.live_changes)
INSERT INTO memoird.live_counts (live, tenant)
    SELECT count(*), tenant FROM memoird.generations WHERE ended_at IS NULL GROUP BY tenant;
";

/// The policy of a cluster.
const V13: &str = "
CREATE TABLE memoird.policy (
    id      int PRIMARY KEY CHECK (id = 1),
    version bigint NOT NULL,
    body    bytea  NOT NULL
);
";

/// Functions that load several sessions at once. Older daemons use those of [`V7`].
const V14: &str = include_str!("load_sessions.sql");

/// Index for lists of a tenant's ended generations by time.
///
/// Commits wait while an index is built, so each of the two is a step of its own.
const V15: &str = "
CREATE INDEX generations_listed ON memoird.generations (tenant, ended_at, generation)
    WHERE ended_at IS NOT NULL;
";

/// Index for lists of a subject's ended generations by time.
const V16: &str = "
CREATE INDEX generations_subject ON memoird.generations (tenant, subject, ended_at, generation)
    WHERE ended_at IS NOT NULL AND subject IS NOT NULL;
";

/// SQL that creates a schema and its version table.
fn create_schema_sql(schema: &str) -> String {
    format!(
        "BEGIN;
         CREATE SCHEMA IF NOT EXISTS {schema};
         CREATE TABLE IF NOT EXISTS {schema}.schema_version (
             id         int PRIMARY KEY CHECK (id = 1),
             version    int NOT NULL,
             min_reader int NOT NULL
         );
         INSERT INTO {schema}.schema_version VALUES (1, 0, 1) ON CONFLICT DO NOTHING;
         COMMIT;"
    )
}

/// Checks the server, and applies the missing steps.
///
/// # Errors
/// If the server is too old, the schema is too new, or the role may not create tables.
pub(crate) async fn prepare(client: &Client, steps: &SchemaMigrations) -> Result<(), StoreError> {
    let schema = steps.schema;
    let sql = format!(
        "SELECT current_setting('server_version_num')::int, current_setting('fsync'),
         to_regclass('{schema}.schema_version') IS NOT NULL, current_setting('server_version'),
         current_setting('transaction_isolation')"
    );
    let row = one(client, &sql, schema).await?;
    let (server, fsync): (i32, &str) = (row.get(0), row.get(1));
    if server < SERVER_MIN {
        let detail = format!(
            "the server is PostgreSQL {}; memoird needs 15 or newer",
            row.get::<_, &str>(3)
        );
        return Err(StoreError::Database { detail });
    }
    // A statement that waited for a row lock must see the changes made in the meantime.
    let isolation: &str = row.get(4);
    if isolation != "read committed" {
        let detail = format!(
            "the default isolation level is {isolation}; memoird needs read committed: ALTER ROLE \
             … SET \
             default_transaction_isolation = 'read committed', and likewise for the database"
        );
        return Err(StoreError::Database { detail });
    }
    if fsync == "off" {
        tracing::warn!("the database runs with fsync = off: a crash of its machine loses turns");
    }
    if !row.get::<_, bool>(2) {
        create_version_table(client, schema).await?;
    }
    let mut locked_out = 0;
    loop {
        match step(client, steps).await? {
            StepOutcome::Applied => locked_out = 0,
            StepOutcome::NoneLeft => return Ok(()),
            StepOutcome::LockedOut if locked_out < LOCK_TRIES_MAX => {
                locked_out += 1;
                tracing::warn!(
                    schema,
                    "a schema migration step waits for locked tables: look for a dump, a lock or \
                     an open transaction"
                );
                sleep(LOCK_PAUSE).await;
            }
            StepOutcome::LockedOut => {
                let detail = format!(
                    "a migration step of schema {schema} could not lock its tables for more than \
                     a minute, for example because of a dump; nothing was changed. Start memoird \
                     again \
                     when that is over; pg_locks says who it is"
                );
                return Err(StoreError::Database { detail });
            }
        }
    }
}

enum StepOutcome {
    Applied,
    /// The schema is up to date.
    NoneLeft,
    /// Not applied: another transaction has locked a table that the step changes.
    LockedOut,
}

/// Creates the version table. Other processes may try the same concurrently.
async fn create_version_table(client: &Client, schema: &str) -> Result<(), StoreError> {
    let sql = create_schema_sql(schema);
    for _ in 1..TRIES_MAX {
        match client.batch_execute(&sql).await {
            Err(error) if is_race(&error) => {
                client.batch_execute("ROLLBACK").await.map_err(failed)?;
            }
            outcome => return outcome.map_err(failed),
        }
    }
    client.batch_execute(&sql).await.map_err(failed)
}

fn is_race(error: &tokio_postgres::Error) -> bool {
    let races = [
        SqlState::UNIQUE_VIOLATION,
        SqlState::DUPLICATE_SCHEMA,
        SqlState::DUPLICATE_TABLE,
    ];
    error.code().is_some_and(|code| races.contains(code))
}

async fn step(client: &Client, steps: &SchemaMigrations) -> Result<StepOutcome, StoreError> {
    let schema = steps.schema;
    client.batch_execute("BEGIN").await.map_err(failed)?;
    let sql = format!("SELECT version, min_reader FROM {schema}.schema_version FOR UPDATE");
    let row = one(client, &sql, schema).await?;
    let (version, min_reader): (i32, i32) = (row.get(0), row.get(1));
    let first = steps.first_version;
    let (next_version, index) = match version {
        0 => (first, Some(0)),
        _ => {
            let done = usize::try_from(version - first).ok();
            (version + 1, done.map(|done| done + 1))
        }
    };
    let next = index.and_then(|index| steps.steps.get(index));
    let end = match next {
        Some(sql) => format!(
            "{LOCK_TIME_MAX}; {sql};
             UPDATE {schema}.schema_version SET version = {next_version}; COMMIT"
        ),
        None => "COMMIT".to_owned(),
    };
    match client.batch_execute(&end).await {
        Err(error) if error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) => {
            client.batch_execute("ROLLBACK").await.map_err(failed)?;
            return Ok(StepOutcome::LockedOut);
        }
        ended => ended.map_err(failed)?,
    }
    let known = first - 1 + i32::try_from(steps.steps.len()).unwrap_or(0);
    let is_too_new = min_reader > known;
    if is_too_new || (1..first).contains(&version) {
        let other = if is_too_new { "newer" } else { "older" };
        let detail = format!(
            "schema {schema} is version {version}, this memoird knows {first} to {known}; nothing \
             was changed. Run the {other} memoird"
        );
        return Err(StoreError::Database { detail });
    }
    Ok(match next {
        Some(_) => StepOutcome::Applied,
        None => StepOutcome::NoneLeft,
    })
}

async fn one(client: &Client, sql: &str, schema: &str) -> Result<tokio_postgres::Row, StoreError> {
    let none: &[(&(dyn tokio_postgres::types::ToSql + Sync), Type)] = &[];
    let rows = client.query_typed(sql, none).await.map_err(failed)?;
    rows.into_iter().next().ok_or_else(|| StoreError::Database {
        detail: format!("schema {schema} has no version; restore it, or drop it to start empty"),
    })
}
