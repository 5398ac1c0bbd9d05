-- Derived from the journal, like a file `search.db` next to a journal in a file. `next` is the number
-- of the tenant's next turn. `words` has stems, and filter words for role and tools.
CREATE TABLE memoird.search_state (
    id            int    NOT NULL PRIMARY KEY CHECK (id = 1),
    words_version bigint NOT NULL,
    indexed       bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 10);
INSERT INTO memoird.search_state (id, words_version) VALUES (1, 0);

CREATE TABLE memoird.search_generations (
    generation uuid  NOT NULL PRIMARY KEY,
    tenant     bytea NOT NULL,
    session    bytea NOT NULL,
    subject    bytea
);
CREATE INDEX search_generations_session ON memoird.search_generations (tenant, session);
CREATE INDEX search_generations_subject ON memoird.search_generations (tenant, subject)
    WHERE subject IS NOT NULL;

CREATE TABLE memoird.search_tenants (
    next      bigint NOT NULL,
    languages bigint NOT NULL,
    tenant    bytea  NOT NULL PRIMARY KEY
);

CREATE TABLE memoird.search_days (
    day    bigint NOT NULL,
    first  bigint NOT NULL,
    last   bigint NOT NULL,
    tenant bytea  NOT NULL,
    PRIMARY KEY (tenant, day)
);

CREATE TABLE memoird.search_turns (
    turn       bigint   NOT NULL,
    number     bigint   NOT NULL,
    seq        bigint   NOT NULL,
    at         bigint   NOT NULL,
    generation uuid     NOT NULL,
    tenant     bytea    NOT NULL,
    words      tsvector NOT NULL,
    PRIMARY KEY (tenant, turn)
);
CREATE UNIQUE INDEX search_turns_place ON memoird.search_turns (generation, seq);
CREATE INDEX search_turns_words ON memoird.search_turns USING gin (words);
