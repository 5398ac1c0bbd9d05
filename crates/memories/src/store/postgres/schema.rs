//! The tables.
//!
//! All client-chosen columns are `bytea`, because they may contain any byte, and `text` cannot
//! contain NUL. The SQLite schema has the same tables, and documents the columns.
//!
//! The tables are in `memoird_memories`. Statements never name them, but the views of
//! `memoird_tenant`, which show only the rows of the transaction's tenant. Rows inserted through a
//! view belong to that tenant.

use memoird_postgres::SchemaMigrations;

/// All tables but vectors.
pub(super) const TABLES: SchemaMigrations = SchemaMigrations {
    schema: "memoird_memories",
    first_version: 1,
    steps: &[V1, V2, V3, V4, V5, V6, V7],
};

/// The table of vectors, if the database has pgvector.
pub(super) const VECTORS: SchemaMigrations = SchemaMigrations {
    schema: "memoird_vectors",
    first_version: 1,
    steps: &[VECTORS_V1],
};

/// The initial schema.
///
/// The number of a tenant is a hash of its name, so that it stays the same even if a failover lost
/// the row. `learnt` is the journal position up to which extraction is done.
const V1: &str = "
CREATE SCHEMA IF NOT EXISTS memoird_tenant;

CREATE FUNCTION memoird_memories.tenant() RETURNS bigint LANGUAGE sql STABLE PARALLEL SAFE
    AS $$ SELECT current_setting('memoird.tenant')::bigint $$;

CREATE TABLE memoird_memories.tenants (
    no   bigint PRIMARY KEY,
    name bytea NOT NULL UNIQUE,
    salt bytea NOT NULL DEFAULT uuid_send(gen_random_uuid())
) WITH (fillfactor = 50);

CREATE TABLE memoird_memories.learnt (
    id     int PRIMARY KEY CHECK (id = 1),
    number bigint NOT NULL
);

CREATE TABLE memoird_memories.meta (
    tenant bigint NOT NULL DEFAULT memoird_memories.tenant(),
    name   bytea NOT NULL,
    value  bytea NOT NULL,
    PRIMARY KEY (tenant, name)
);

CREATE TABLE memoird_memories.state (
    tenant         bigint NOT NULL PRIMARY KEY DEFAULT memoird_memories.tenant(),
    memories       bigint NOT NULL,
    born           bigint NOT NULL,
    next_partition bigint NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE memoird_memories.partitions (
    tenant    bigint NOT NULL DEFAULT memoird_memories.tenant(),
    no        bigint NOT NULL,
    next      bigint NOT NULL,
    languages bigint NOT NULL DEFAULT 1,
    subject   bytea NOT NULL,
    PRIMARY KEY (tenant, no),
    UNIQUE (tenant, subject)
) WITH (fillfactor = 80);

CREATE TABLE memoird_memories.memories (
    tenant        bigint NOT NULL DEFAULT memoird_memories.tenant(),
    no            bigint NOT NULL,
    format        bigint NOT NULL,
    partition     bigint NOT NULL,
    owner         bigint NOT NULL,
    born          bigint NOT NULL,
    revision      bigint NOT NULL,
    kind          bigint NOT NULL,
    polarity      bigint,
    importance    double precision NOT NULL,
    observed      bigint NOT NULL,
    created       bigint NOT NULL,
    updated       bigint NOT NULL,
    expires       bigint,
    reinforced    bigint NOT NULL,
    recalls       bigint NOT NULL,
    recalled      bigint,
    pin           bigint,
    pin_changed   bigint,
    apart         bigint NOT NULL,
    origin        bigint NOT NULL,
    says          bigint NOT NULL,
    id            bytea NOT NULL,
    superseded_by bytea,
    session       bytea,
    generation    bytea,
    seqs          bytea,
    tags          bytea,
    external_key  bytea,
    metadata      bytea,
    content       bytea NOT NULL,
    PRIMARY KEY (tenant, no),
    UNIQUE (tenant, id)
) WITH (fillfactor = 90);
CREATE INDEX memories_owner ON memoird_memories.memories (tenant, owner, id);
CREATE INDEX memories_says ON memoird_memories.memories (tenant, owner, says)
    WHERE superseded_by IS NULL;
CREATE INDEX memories_told ON memoird_memories.memories
    (tenant, partition, (pin IS NULL), importance DESC, id DESC) WHERE superseded_by IS NULL;
CREATE INDEX memories_history ON memoird_memories.memories (tenant, superseded_by)
    WHERE superseded_by IS NOT NULL;
CREATE INDEX memories_expiry ON memoird_memories.memories (tenant, expires)
    WHERE expires IS NOT NULL;
CREATE UNIQUE INDEX memories_external ON memoird_memories.memories (tenant, owner, external_key)
    WHERE external_key IS NOT NULL AND superseded_by IS NULL;
CREATE INDEX memories_metadata ON memoird_memories.memories (tenant, partition)
    WHERE metadata IS NOT NULL;

CREATE TABLE memoird_memories.tags (
    tenant bigint NOT NULL DEFAULT memoird_memories.tenant(),
    no     bigint NOT NULL,
    tag    bytea NOT NULL,
    PRIMARY KEY (tenant, tag, no)
);

CREATE TABLE memoird_memories.terms (
    tenant    bigint NOT NULL DEFAULT memoird_memories.tenant(),
    partition bigint NOT NULL,
    no        bigint NOT NULL,
    form      int    NOT NULL,
    PRIMARY KEY (tenant, partition, form, no)
);

CREATE TABLE memoird_memories.places (
    tenant bigint NOT NULL DEFAULT memoird_memories.tenant(),
    no     bigint NOT NULL,
    said   bigint NOT NULL,
    seq    bigint NOT NULL,
    PRIMARY KEY (tenant, no, seq)
);
CREATE INDEX places_said ON memoird_memories.places (tenant, said, seq, no);

CREATE TABLE memoird_memories.models (
    tenant    bigint NOT NULL DEFAULT memoird_memories.tenant(),
    no        bigint NOT NULL,
    dimension bigint NOT NULL,
    name      bytea NOT NULL,
    PRIMARY KEY (tenant, no),
    UNIQUE (tenant, name)
);

CREATE TABLE memoird_memories.embeddings_due (
    tenant  bigint NOT NULL DEFAULT memoird_memories.tenant(),
    no      bigint NOT NULL,
    due     bigint NOT NULL,
    tries   bigint NOT NULL,
    failed  bigint NOT NULL,
    problem bytea NOT NULL,
    PRIMARY KEY (tenant, no)
);
CREATE INDEX embeddings_due_at ON memoird_memories.embeddings_due (tenant, due) WHERE failed = 0;

CREATE TABLE memoird_memories.recall_events (
    tenant  bigint NOT NULL DEFAULT memoird_memories.tenant(),
    no      bigint NOT NULL,
    at      bigint NOT NULL,
    rank    bigint NOT NULL,
    score   double precision NOT NULL,
    memory  bytea NOT NULL,
    session bytea,
    query   bytea NOT NULL,
    PRIMARY KEY (tenant, no)
);
CREATE INDEX recall_events_memory ON memoird_memories.recall_events (tenant, memory);
CREATE INDEX recall_events_session ON memoird_memories.recall_events (tenant, session, no)
    WHERE session IS NOT NULL;

CREATE TABLE memoird_memories.keys (
    tenant  bigint NOT NULL DEFAULT memoird_memories.tenant(),
    no      bigint NOT NULL,
    outcome bigint NOT NULL,
    at      bigint NOT NULL,
    key     bytea NOT NULL,
    content bytea NOT NULL,
    memory  bytea NOT NULL,
    PRIMARY KEY (tenant, no),
    UNIQUE (tenant, key)
);
CREATE INDEX keys_memory ON memoird_memories.keys (tenant, memory);

CREATE TABLE memoird_memories.remembered (
    tenant     bigint NOT NULL DEFAULT memoird_memories.tenant(),
    seq        bigint NOT NULL,
    generation bytea NOT NULL,
    session    bytea NOT NULL,
    PRIMARY KEY (tenant, generation, session, seq)
);

CREATE TABLE memoird_memories.cursors (
    tenant      bigint NOT NULL DEFAULT memoird_memories.tenant(),
    owner       bigint,
    seq         bigint NOT NULL,
    lease_to    bigint NOT NULL,
    lease_until bigint NOT NULL,
    failures    bigint NOT NULL,
    failed_at   bigint,
    not_before  bigint,
    touched     bigint NOT NULL,
    generation  bytea NOT NULL,
    session     bytea NOT NULL,
    lease       bytea,
    PRIMARY KEY (tenant, generation)
);
CREATE UNIQUE INDEX cursors_lease ON memoird_memories.cursors (tenant, lease)
    WHERE lease IS NOT NULL;
CREATE INDEX cursors_owner ON memoird_memories.cursors (tenant, owner) WHERE owner IS NOT NULL;
CREATE INDEX cursors_touched ON memoird_memories.cursors (tenant, touched);

CREATE TABLE memoird_memories.forgotten (
    tenant  bigint NOT NULL DEFAULT memoird_memories.tenant(),
    at      bigint NOT NULL,
    subject bytea NOT NULL,
    PRIMARY KEY (tenant, subject)
);

CREATE TABLE memoird_memories.forget_jobs (
    tenant      bigint NOT NULL DEFAULT memoird_memories.tenant(),
    at          bigint NOT NULL,
    born        bigint NOT NULL,
    whole       bigint NOT NULL,
    owner       bigint,
    kinds       bigint NOT NULL,
    after       bigint,
    before      bigint,
    job         bytea NOT NULL,
    memory      bytea,
    tags        bytea NOT NULL,
    position    bytea NOT NULL,
    counts      bytea NOT NULL,
    session     bytea,
    generations bytea,
    PRIMARY KEY (tenant, job)
);

CREATE TABLE memoird_memories.extractions (
    tenant     bigint NOT NULL DEFAULT memoird_memories.tenant(),
    no         bigint NOT NULL,
    owner      bigint,
    seq        bigint NOT NULL,
    at         bigint NOT NULL,
    lease      bytea NOT NULL,
    content    bytea NOT NULL,
    generation bytea NOT NULL,
    results    bytea NOT NULL,
    PRIMARY KEY (tenant, no),
    UNIQUE (tenant, lease)
);
CREATE INDEX extractions_owner ON memoird_memories.extractions (tenant, owner);
CREATE INDEX extractions_generation ON memoird_memories.extractions (tenant, generation);

CREATE TABLE memoird_memories.namespaces (
    tenant    bigint NOT NULL DEFAULT memoird_memories.tenant(),
    no        bigint NOT NULL,
    documents bigint NOT NULL,
    path      bytea NOT NULL,
    PRIMARY KEY (tenant, no),
    UNIQUE (tenant, path)
);

CREATE TABLE memoird_memories.documents (
    tenant    bigint NOT NULL DEFAULT memoird_memories.tenant(),
    no        bigint NOT NULL,
    namespace bigint NOT NULL,
    version   bigint NOT NULL,
    created   bigint NOT NULL,
    updated   bigint NOT NULL,
    expires   bigint,
    form      bigint NOT NULL,
    key       bytea NOT NULL,
    value     bytea NOT NULL,
    PRIMARY KEY (tenant, no),
    UNIQUE (tenant, namespace, key)
);
CREATE INDEX documents_expiry ON memoird_memories.documents (tenant, expires)
    WHERE expires IS NOT NULL;

CREATE TABLE memoird_memories.document_state (
    tenant    bigint NOT NULL PRIMARY KEY DEFAULT memoird_memories.tenant(),
    documents bigint NOT NULL,
    bytes     bigint NOT NULL
) WITH (fillfactor = 50);

DO $$
DECLARE name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['meta', 'state', 'partitions', 'memories', 'tags', 'terms',
        'places', 'models', 'embeddings_due', 'recall_events', 'keys', 'remembered', 'cursors',
        'forgotten', 'forget_jobs', 'extractions', 'namespaces', 'documents', 'document_state']
    LOOP
        EXECUTE format('CREATE VIEW memoird_tenant.%1$I AS SELECT * FROM memoird_memories.%1$I
            WHERE tenant = memoird_memories.tenant()', name);
    END LOOP;
END $$;
";

/// Migrates a table with one counter row per tenant, to find this row by its newest `step`.
///
/// Each write creates a new version of the row, and dead versions stay as long as a transaction
/// uses an older snapshot, such as a dump or a query on a standby. Every statement had to scan all
/// of them. The view finds the row by the newest `step` through an index, and scans at most 64
/// versions. An update leaves its page only once per 64. A daemon of version 1 uses the same view
/// name.
///
/// With `step` in the primary key, inserting the row of an existing tenant no longer conflicts. A
/// trigger drops the second row instead. This is safe because the writes of a tenant, and those
/// that create it, are serialized.
///
/// Each table has a migration step of its own, so that a step that waits for the lock of one table
/// does not hold the lock of another.
macro_rules! find_by_step {
    ($table:literal) => {
        concat!(
            "
DO $do$ BEGIN EXECUTE format($sql$
    LOCK TABLE memoird_tenant.%1$I IN ACCESS EXCLUSIVE MODE;
    ALTER TABLE memoird_memories.%1$I
        ADD COLUMN changes bigint NOT NULL DEFAULT 0,
        ADD COLUMN step bigint GENERATED ALWAYS AS (changes >> 6) STORED;
    ALTER TABLE memoird_memories.%1$I
        DROP CONSTRAINT %1$s_pkey, ADD PRIMARY KEY (tenant, step);
    CREATE TRIGGER changed BEFORE INSERT OR UPDATE ON memoird_memories.%1$I
        FOR EACH ROW EXECUTE FUNCTION memoird_memories.changed();
    CREATE OR REPLACE VIEW memoird_tenant.%1$I AS SELECT * FROM memoird_memories.%1$I
        WHERE tenant = memoird_memories.tenant() AND step = (
            SELECT newest.step FROM memoird_memories.%1$I AS newest
            WHERE newest.tenant = memoird_memories.tenant()
            ORDER BY newest.step DESC LIMIT 1);
$sql$, '",
            $table,
            "'); END $do$;
"
        )
    };
}

const V2: &str = concat!(
    "
CREATE FUNCTION memoird_memories.changed() RETURNS trigger LANGUAGE plpgsql AS $body$
DECLARE
    is_there boolean;
BEGIN
    IF TG_OP = 'UPDATE' THEN
        NEW.changes := OLD.changes + 1;
        RETURN NEW;
    END IF;
    EXECUTE format('SELECT EXISTS (SELECT FROM memoird_memories.%I WHERE tenant = $1)',
        TG_TABLE_NAME) INTO is_there USING NEW.tenant;
    RETURN CASE WHEN NOT is_there THEN NEW END;
END
$body$;
",
    find_by_step!("state")
);

const V3: &str = find_by_step!("document_state");

/// Adds checksums to a table (`checksum.rs`).
///
/// Those of existing rows are computed in the background, which finds them by the index. A daemon of
/// an older version changes rows without their checksum: then the trigger removes it, so that it is
/// computed again.
macro_rules! add_checksums {
    ($table:literal, $covered:literal) => {
        concat!(
            "
LOCK TABLE memoird_tenant.",
            $table,
            " IN ACCESS EXCLUSIVE MODE;
ALTER TABLE memoird_memories.",
            $table,
            " ADD COLUMN checksum bigint;
CREATE INDEX ",
            $table,
            "_unchecked ON memoird_memories.",
            $table,
            " (tenant, no) WHERE checksum IS NULL;
CREATE TRIGGER unchecked BEFORE UPDATE OF ",
            $covered,
            " ON memoird_memories.",
            $table,
            " FOR EACH ROW WHEN (OLD.checksum = NEW.checksum AND OLD IS DISTINCT FROM NEW)
    EXECUTE FUNCTION memoird_memories.unchecked();
CREATE OR REPLACE VIEW memoird_tenant.",
            $table,
            " AS SELECT * FROM memoird_memories.",
            $table,
            " WHERE tenant = memoird_memories.tenant();
"
        )
    };
}

const V4: &str = concat!(
    "
CREATE FUNCTION memoird_memories.unchecked() RETURNS trigger LANGUAGE plpgsql AS $body$
BEGIN
    NEW.checksum := NULL;
    RETURN NEW;
END
$body$;
",
    add_checksums!(
        "memories",
        "no, id, owner, kind, polarity, importance, observed, created, updated, expires,
         superseded_by, reinforced, pin, origin, session, generation, seqs, tags, content,
         external_key, metadata"
    )
);

const V5: &str = add_checksums!(
    "documents",
    "namespace, key, version, created, updated, expires, form, value"
);

/// Adds idempotency keys of puts of documents. A daemon of an older version stores none.
const V6: &str = "
LOCK TABLE memoird_tenant.keys IN ACCESS EXCLUSIVE MODE;
ALTER TABLE memoird_memories.keys ADD COLUMN version bigint, ADD COLUMN created bigint;
CREATE OR REPLACE VIEW memoird_tenant.keys AS SELECT * FROM memoird_memories.keys
    WHERE tenant = memoird_memories.tenant();
";

/// Stores the beginning of a word in the key of the word, instead of in a row of its own (`terms.rs`).
///
/// Words are indexed again in the background. Memories without words are found by their text until
/// then.
const V7: &str = "
LOCK TABLE memoird_tenant.terms IN ACCESS EXCLUSIVE MODE;
DROP VIEW memoird_tenant.terms;
TRUNCATE memoird_memories.terms;
ALTER TABLE memoird_memories.terms ALTER COLUMN form TYPE bigint;
CREATE VIEW memoird_tenant.terms AS SELECT * FROM memoird_memories.terms
    WHERE tenant = memoird_memories.tenant();
INSERT INTO memoird_memories.meta (tenant, name, value)
    SELECT tenant, walk.name, convert_to(walk.value, 'UTF8') FROM memoird_memories.state,
        LATERAL (VALUES ('words_at'::bytea, '0'), ('words_left', memories::text))
            AS walk (name, value)
    WHERE memories > 0 ON CONFLICT (tenant, name) DO UPDATE SET value = excluded.value;
";

/// Each vector is stored with the columns that a search filters by.
const VECTORS_V1: &str = "
CREATE TABLE memoird_vectors.vectors (
    tenant    bigint NOT NULL DEFAULT memoird_memories.tenant(),
    no        bigint NOT NULL,
    model     bigint NOT NULL,
    kind      bigint NOT NULL,
    observed  bigint NOT NULL,
    expires   bigint,
    embedding vector NOT NULL,
    PRIMARY KEY (tenant, no)
);
CREATE VIEW memoird_tenant.vectors AS SELECT * FROM memoird_vectors.vectors
    WHERE tenant = memoird_memories.tenant();
";
