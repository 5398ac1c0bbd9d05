CREATE TABLE state (
    id              INTEGER PRIMARY KEY CHECK (id = 1),
    words_version   INTEGER NOT NULL,
    indexed         INTEGER NOT NULL DEFAULT 0,
    last_generation BLOB,
    last_seq        INTEGER,
    unclean         INTEGER NOT NULL DEFAULT 0
) STRICT;

CREATE TABLE tenants (
    no        INTEGER PRIMARY KEY,
    name      TEXT    NOT NULL UNIQUE,
    next      INTEGER NOT NULL,
    languages INTEGER NOT NULL
) STRICT;

CREATE TABLE generations (
    no         INTEGER PRIMARY KEY,
    generation BLOB    NOT NULL UNIQUE,
    tenant     INTEGER NOT NULL,
    session    TEXT    NOT NULL,
    subject    TEXT
) STRICT;
CREATE INDEX generations_session ON generations (tenant, session);
CREATE INDEX generations_subject ON generations (tenant, subject) WHERE subject IS NOT NULL;

CREATE TABLE turns (
    no         INTEGER PRIMARY KEY,
    number     INTEGER NOT NULL UNIQUE,
    generation INTEGER NOT NULL,
    at         INTEGER NOT NULL,
    is_stale   INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX turns_stale ON turns (no) WHERE is_stale;

CREATE TABLE days (
    tenant INTEGER NOT NULL,
    day    INTEGER NOT NULL,
    first  INTEGER NOT NULL,
    last   INTEGER NOT NULL,
    PRIMARY KEY (tenant, day)
) STRICT, WITHOUT ROWID;

CREATE VIRTUAL TABLE words USING fts5(
    stems, content = '', contentless_delete = 1, detail = none, tokenize = 'ascii'
);
