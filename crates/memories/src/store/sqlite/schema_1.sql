CREATE TABLE meta (
    name  TEXT PRIMARY KEY,
    value ANY NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE state (
    id             INTEGER PRIMARY KEY CHECK (id = 1),
    memories       INTEGER NOT NULL,
    born           INTEGER NOT NULL,
    next_partition INTEGER NOT NULL
) STRICT;
INSERT INTO state VALUES (1, 0, 0, 1);

CREATE TABLE partitions (
    no      INTEGER PRIMARY KEY,
    subject TEXT    NOT NULL UNIQUE,
    next    INTEGER NOT NULL
) STRICT;
INSERT INTO partitions VALUES (0, '', 1);

CREATE TABLE memories (
    no            INTEGER PRIMARY KEY,
    format        INTEGER NOT NULL,
    partition     INTEGER NOT NULL,
    id            BLOB    NOT NULL UNIQUE,
    owner         INTEGER NOT NULL,
    born          INTEGER NOT NULL,
    revision      INTEGER NOT NULL,
    kind          INTEGER NOT NULL,
    polarity      INTEGER,
    importance    REAL    NOT NULL,
    observed      INTEGER NOT NULL,
    created       INTEGER NOT NULL,
    updated       INTEGER NOT NULL,
    expires       INTEGER,
    superseded_by BLOB,
    reinforced    INTEGER NOT NULL,
    recalls       INTEGER NOT NULL,
    recalled      INTEGER,
    pin           INTEGER,
    pin_changed   INTEGER,
    apart         INTEGER NOT NULL,
    origin        INTEGER NOT NULL,
    says          INTEGER NOT NULL,
    session       TEXT,
    generation    BLOB,
    seqs          BLOB,
    tags          BLOB,
    content       TEXT    NOT NULL
) STRICT;
CREATE INDEX memories_owner ON memories (owner, id);
CREATE INDEX memories_says ON memories (owner, says) WHERE superseded_by IS NULL;
CREATE INDEX memories_told ON memories
    (partition, (pin IS NULL), importance DESC, id DESC, expires) WHERE superseded_by IS NULL;
CREATE INDEX memories_history ON memories (superseded_by) WHERE superseded_by IS NOT NULL;
CREATE INDEX memories_expiry ON memories (expires) WHERE expires IS NOT NULL;

CREATE TABLE tags (
    tag TEXT    NOT NULL,
    no  INTEGER NOT NULL,
    PRIMARY KEY (tag, no)
) STRICT, WITHOUT ROWID;

CREATE VIEW current_words AS SELECT no, content FROM memories WHERE superseded_by IS NULL;
CREATE VIRTUAL TABLE words USING fts5(
    content, content = 'current_words', content_rowid = 'no', detail = none, columnsize = 0,
    tokenize = 'porter unicode61 remove_diacritics 2'
);
INSERT INTO words (words, rank) VALUES ('secure-delete', 1);
INSERT INTO words (words, rank) VALUES ('pgsz', 512);

CREATE TABLE models (
    no        INTEGER PRIMARY KEY,
    name      TEXT    NOT NULL UNIQUE,
    dimension INTEGER NOT NULL
) STRICT;
CREATE TABLE vectors (
    no     INTEGER PRIMARY KEY,
    model  INTEGER NOT NULL,
    vector BLOB    NOT NULL
) STRICT;
CREATE INDEX vectors_model ON vectors (model);
CREATE TABLE vector_blocks (
    no    INTEGER PRIMARY KEY,
    block BLOB    NOT NULL
) STRICT;

CREATE TABLE embeddings_due (
    no      INTEGER PRIMARY KEY,
    due     INTEGER NOT NULL,
    tries   INTEGER NOT NULL,
    failed  INTEGER NOT NULL,
    problem TEXT    NOT NULL
) STRICT;
CREATE INDEX embeddings_due_at ON embeddings_due (due) WHERE failed = 0;
CREATE INDEX embeddings_failed ON embeddings_due (no) WHERE failed = 1;

CREATE TABLE recall_events (
    no      INTEGER PRIMARY KEY,
    at      INTEGER NOT NULL,
    memory  BLOB    NOT NULL,
    session BLOB,
    query   BLOB    NOT NULL,
    rank    INTEGER NOT NULL,
    score   REAL    NOT NULL
) STRICT;
CREATE INDEX recall_events_memory ON recall_events (memory);
CREATE INDEX recall_events_session ON recall_events (session, no) WHERE session IS NOT NULL;

CREATE TABLE keys (
    no      INTEGER PRIMARY KEY,
    key     BLOB    NOT NULL UNIQUE,
    content BLOB    NOT NULL,
    memory  BLOB    NOT NULL,
    outcome INTEGER NOT NULL,
    at      INTEGER NOT NULL
) STRICT;
CREATE INDEX keys_memory ON keys (memory);

CREATE TABLE remembered (
    generation BLOB    NOT NULL,
    session    BLOB    NOT NULL,
    seq        INTEGER NOT NULL,
    PRIMARY KEY (generation, session, seq)
) STRICT, WITHOUT ROWID;

CREATE TABLE cursors (
    generation  BLOB    PRIMARY KEY,
    session     TEXT    NOT NULL,
    owner       INTEGER,
    seq         INTEGER NOT NULL,
    lease       BLOB,
    lease_to    INTEGER NOT NULL,
    lease_until INTEGER NOT NULL,
    failures    INTEGER NOT NULL,
    failed_at   INTEGER,
    not_before  INTEGER,
    touched     INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX cursors_lease ON cursors (lease) WHERE lease IS NOT NULL;
CREATE INDEX cursors_owner ON cursors (owner) WHERE owner IS NOT NULL;
CREATE INDEX cursors_touched ON cursors (touched);

CREATE TABLE forgotten (
    subject BLOB    PRIMARY KEY,
    at      INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE forget_jobs (
    job        BLOB    PRIMARY KEY,
    at         INTEGER NOT NULL,
    born       INTEGER NOT NULL,
    whole      INTEGER NOT NULL,
    owner      INTEGER,
    memory     BLOB,
    kinds      INTEGER NOT NULL,
    tags       BLOB    NOT NULL,
    after      INTEGER,
    before     INTEGER,
    position   BLOB    NOT NULL,
    counts     BLOB    NOT NULL
) STRICT, WITHOUT ROWID;
