
-- Writes a batch: compares and swaps the versions of generations, and writes the content of those that were swapped or
-- inserted. Returns the positions of rows that were not written. If the lane's epoch or number differs, returns NULL
-- and writes nothing. See docs/cluster.md.
--
-- It is a function so that plans are cached. Plans use no statistics: rows are found by primary key, whatever the
-- tables contained when a backend planned. An array that is not passed counts as NULL for every row. Positions count
-- from 1.
CREATE FUNCTION memoird.commit_batch(
    of_node uuid, of_lane smallint, of_epoch bigint, of_number bigint,
    clock_steady bigint, clock_wall bigint, clock_boot_id text, clock_boot_ms bigint,
    -- If true, all rows are written or none.
    is_whole boolean,
    -- Sorted, which is the order in which rows are locked.
    row_generation    uuid[]    DEFAULT NULL,
    row_is_new        boolean[] DEFAULT NULL,
    row_was_revision  bigint[]  DEFAULT NULL,
    row_was_stamp     bigint[]  DEFAULT NULL,
    row_revision      bigint[]  DEFAULT NULL,
    row_stamp         bigint[]  DEFAULT NULL,
    row_last_seq      bigint[]  DEFAULT NULL,
    row_added_bytes   bigint[]  DEFAULT NULL,
    row_newest_seq    bigint[]  DEFAULT NULL,
    row_last_access   bigint[]  DEFAULT NULL,
    row_turns         bigint[]  DEFAULT NULL,
    row_bytes         bigint[]  DEFAULT NULL,
    row_tokens        bigint[]  DEFAULT NULL,
    row_partial       boolean[] DEFAULT NULL,
    row_state_version bigint[]  DEFAULT NULL,
    row_subject       bytea[]   DEFAULT NULL,
    row_kept          bytea[]   DEFAULT NULL,
    row_compaction    bytea[]   DEFAULT NULL,
    row_options       bytea[]   DEFAULT NULL,
    row_ended_ms      bigint[]  DEFAULT NULL,
    row_ended_at      bigint[]  DEFAULT NULL,
    row_reason        text[]    DEFAULT NULL,
    -- Of generations that start or end.
    row_created_ms    bigint[]  DEFAULT NULL,
    row_tenant        bytea[]   DEFAULT NULL,
    row_session       bytea[]   DEFAULT NULL,
    -- In journal order.
    turn_row          int[]     DEFAULT NULL,
    turn_seq          bigint[]  DEFAULT NULL,
    turn_content      bytea[]   DEFAULT NULL,
    turn_header       bytea[]   DEFAULT NULL,
    turn_checksum     bigint[]  DEFAULT NULL,
    -- Replaced turns.
    replaced_row      int[]     DEFAULT NULL,
    replaced_seq      bigint[]  DEFAULT NULL,
    replaced_content  bytea[]   DEFAULT NULL,
    replaced_header   bytea[]   DEFAULT NULL,
    replaced_checksum bigint[]  DEFAULT NULL,
    key_row           int[]     DEFAULT NULL,
    key_tenant        bytea[]   DEFAULT NULL,
    key_session       bytea[]   DEFAULT NULL,
    key_name          bytea[]   DEFAULT NULL,
    key_content       bytea[]   DEFAULT NULL,
    key_generation    uuid[]    DEFAULT NULL,
    key_first_seq     bigint[]  DEFAULT NULL,
    key_last_seq      bigint[]  DEFAULT NULL,
    key_dropped       bigint[]  DEFAULT NULL,
    key_at            bigint[]  DEFAULT NULL,
    state_row         int[]     DEFAULT NULL,
    state_json        bytea[]   DEFAULT NULL,
    window_row        int[]     DEFAULT NULL,
    window_cuts       bytea[]   DEFAULT NULL,
    rewound_row       int[]     DEFAULT NULL,
    rewound_runs      text[]    DEFAULT NULL,
    rewind_row        int[]     DEFAULT NULL,
    rewind_key        bytea[]   DEFAULT NULL,
    rewind_runs       text[]    DEFAULT NULL,
    summary_row       int[]     DEFAULT NULL,
    summary_number    bigint[]  DEFAULT NULL,
    summary_body      bytea[]   DEFAULT NULL,
    gone_row          int[]     DEFAULT NULL,
    gone_number       bigint[]  DEFAULT NULL,
    owed_row          int[]     DEFAULT NULL,
    owed_hook         text[]    DEFAULT NULL,
    copy_row          int[]     DEFAULT NULL,
    copy_source       uuid[]    DEFAULT NULL,
    former_row        int[]     DEFAULT NULL,
    former_subject    bytea[]   DEFAULT NULL
) RETURNS int[] LANGUAGE plpgsql
    SET lock_timeout = '2s'
    SET plan_cache_mode = force_generic_plan
    SET enable_seqscan = off
    SET enable_nestloop = off
    SET jit = off
AS $body$
DECLARE
    size CONSTANT int := coalesce(cardinality(row_generation), 0);
    written     int[] := '{}';
    begun       int[];
    not_written int[] := '{}';
    is_written  boolean[];
    place       int;
    changed     bigint;
BEGIN
    -- Acknowledged turns must be durable, whatever the role's setting is.
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    -- Uses `step`: while a snapshot is open, for example by a dump, no version of the row is vacuumed. Versions of
    -- other steps are not visited.
    PERFORM FROM memoird.lanes
        WHERE node = of_node AND lane = of_lane AND step = of_number >> 6
            AND epoch = of_epoch AND number = of_number
        FOR UPDATE;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;

    -- The turn cannot change between this read and the swap: its generation would get another version.
    FOR i IN 1 .. coalesce(cardinality(replaced_row), 0) LOOP
        place := replaced_row[i];
        row_added_bytes[place] := row_added_bytes[place] + coalesce(
            (SELECT octet_length(replaced_content[i]) - octet_length(t.content)
                FROM memoird.turns AS t
                WHERE t.generation = row_generation[place] AND t.seq = replaced_seq[i]), 0);
    END LOOP;

    -- The version implies that the generation is live: an ended one has a version on which nothing is based.
    WITH swapped AS (
        UPDATE memoird.generations AS g SET
            revision = row_revision[i], stamp = row_stamp[i], last_seq = row_last_seq[i],
            journal_bytes = g.journal_bytes + row_added_bytes[i],
            newest_seq = coalesce(row_newest_seq[i], g.newest_seq),
            last_access = coalesce(row_last_access[i], g.last_access),
            turns = coalesce(row_turns[i], g.turns), bytes = coalesce(row_bytes[i], g.bytes),
            tokens = coalesce(row_tokens[i], g.tokens),
            partial = coalesce(row_partial[i], g.partial),
            state_version = coalesce(row_state_version[i], g.state_version),
            subject = coalesce(row_subject[i], g.subject), kept = coalesce(row_kept[i], g.kept),
            compaction = coalesce(row_compaction[i], g.compaction),
            options = coalesce(row_options[i], g.options)
        FROM generate_series(1, size) AS i
        -- The redundant first condition makes the planner read the index for these ids only.
        WHERE g.generation = ANY (row_generation) AND g.generation = row_generation[i]
            AND row_is_new[i] IS NOT TRUE
            AND g.revision = row_was_revision[i] AND g.stamp = row_was_stamp[i]
        RETURNING i)
    SELECT coalesce(array_agg(i), '{}') INTO written FROM swapped;
    -- A statement of its own: the trigger that counts ended generations then costs an append nothing.
    IF row_ended_at IS NOT NULL THEN
        UPDATE memoird.generations AS g SET ended_ms = row_ended_ms[i],
                ended_at = row_ended_at[i], reason = row_reason[i]
            FROM unnest(written) AS i
            WHERE g.generation = ANY (row_generation) AND g.generation = row_generation[i]
                AND row_ended_at[i] IS NOT NULL;
    END IF;

    -- After the swap, because a session whose generation ends in this batch may start another one. The unique index on
    -- live generations makes this statement wait for other daemons that start one of the same session. So a generation
    -- that starts and ends in this batch is inserted as live, too, and ended before the next one is inserted. Place 0
    -- stands for all that stay live.
    IF true = ANY (row_is_new) THEN
        begun := '{}';
        FOREACH place IN ARRAY ARRAY(SELECT i FROM generate_series(1, size) AS i
            WHERE row_is_new[i] AND row_ended_at[i] IS NOT NULL ORDER BY i) || 0 LOOP
            WITH made AS (
                INSERT INTO memoird.generations (generation, revision, stamp, last_seq, newest_seq,
                    last_access, turns, bytes, tokens, partial, state_version, journal_bytes,
                    created_ms, tenant, session, subject, kept, compaction, options)
                SELECT row_generation[i], row_revision[i], row_stamp[i], row_last_seq[i],
                    coalesce(row_newest_seq[i], 0), coalesce(row_last_access[i], 0),
                    coalesce(row_turns[i], 0), coalesce(row_bytes[i], 0), coalesce(row_tokens[i], 0),
                    coalesce(row_partial[i], false), coalesce(row_state_version[i], 0),
                    row_added_bytes[i], row_created_ms[i], row_tenant[i], row_session[i],
                    row_subject[i], row_kept[i], row_compaction[i], row_options[i]
                FROM generate_series(1, size) AS i
                WHERE row_is_new[i] AND (i = place OR place = 0 AND row_ended_at[i] IS NULL)
                ON CONFLICT DO NOTHING
                RETURNING generation)
            SELECT begun || coalesce(array_agg(i), '{}') INTO begun
                FROM made JOIN generate_series(1, size) AS i ON made.generation = row_generation[i];
            IF place > 0 THEN
                UPDATE memoird.generations AS g SET ended_ms = row_ended_ms[place],
                        ended_at = row_ended_at[place], reason = row_reason[place]
                    WHERE g.generation = row_generation[place] AND place = ANY (begun);
            END IF;
        END LOOP;
        -- A key that another daemon used after this one checked, in a generation that has started and ended since. This
        -- statement sees all that was written before the new generation was inserted. Timelines differ by less than a
        -- minute.
        IF key_row IS NOT NULL AND cardinality(begun) > 0 THEN
            WITH used AS (
                DELETE FROM memoird.generations AS g USING generate_series(1, cardinality(key_row)) AS k
                WHERE g.generation = row_generation[key_row[k]] AND key_row[k] = ANY (begun)
                    AND (SELECT known.at FROM memoird.idempotency AS known
                        WHERE known.tenant = key_tenant[k] AND known.session = key_session[k]
                            AND known.key = key_name[k]) > key_at[k] - 60000
                RETURNING key_row[k] AS of_row)
            SELECT coalesce(array_agg(i), '{}') INTO begun
                FROM unnest(begun) AS i WHERE i NOT IN (SELECT of_row FROM used);
        END IF;
        written := written || begun;
    END IF;

    is_written := array_fill(cardinality(written) = size, ARRAY[size]);
    IF cardinality(written) < size THEN
        IF is_whole THEN
            RAISE EXCEPTION 'not all of it can be written' USING ERRCODE = 'MD001';
        END IF;
        FOREACH place IN ARRAY written LOOP
            is_written[place] := true;
        END LOOP;
        not_written := ARRAY(SELECT i FROM generate_series(1, size) AS i WHERE NOT is_written[i]);
    END IF;

    -- Numbers are assigned in journal order.
    IF turn_row IS NOT NULL THEN
        INSERT INTO memoird.turns (generation, seq, number, content, header, checksum)
        SELECT row_generation[turn_row[i]], turn_seq[i], nextval('memoird.turn_numbers'),
            turn_content[i], turn_header[i], turn_checksum[i]
        FROM generate_series(1, cardinality(turn_row)) AS i
        WHERE is_written[turn_row[i]];
    END IF;
    FOR i IN 1 .. coalesce(cardinality(replaced_row), 0) LOOP
        CONTINUE WHEN NOT is_written[replaced_row[i]];
        UPDATE memoird.turns AS t SET content = replaced_content[i], header = replaced_header[i],
                checksum = replaced_checksum[i]
            WHERE t.generation = row_generation[replaced_row[i]] AND t.seq = replaced_seq[i]
            RETURNING t.number INTO changed;
        -- For followers of the journal.
        IF FOUND THEN
            INSERT INTO memoird.turn_changes (change, generation, number)
            VALUES (nextval('memoird.change_numbers'), row_generation[replaced_row[i]], changed);
        END IF;
    END LOOP;
    IF key_row IS NOT NULL THEN
        INSERT INTO memoird.idempotency
            (tenant, session, key, content, generation, first_seq, last_seq, dropped, at)
        SELECT key_tenant[i], key_session[i], key_name[i], key_content[i], key_generation[i],
            key_first_seq[i], key_last_seq[i], key_dropped[i], key_at[i]
        FROM generate_series(1, cardinality(key_row)) AS i
        WHERE is_written[key_row[i]]
        ON CONFLICT (tenant, session, key) DO UPDATE SET content = excluded.content,
            generation = excluded.generation, first_seq = excluded.first_seq,
            last_seq = excluded.last_seq, dropped = excluded.dropped, at = excluded.at;
    END IF;
    IF state_row IS NOT NULL THEN
        INSERT INTO memoird.states (generation, json)
        SELECT row_generation[state_row[i]], state_json[i]
        FROM generate_series(1, cardinality(state_row)) AS i
        WHERE is_written[state_row[i]]
        ON CONFLICT (generation) DO UPDATE SET json = excluded.json;
    END IF;
    IF window_row IS NOT NULL THEN
        INSERT INTO memoird.windows (generation, cuts)
        SELECT row_generation[window_row[i]], window_cuts[i]
        FROM generate_series(1, cardinality(window_row)) AS i
        WHERE is_written[window_row[i]]
        ON CONFLICT (generation) DO UPDATE SET cuts = excluded.cuts;
    END IF;
    IF rewound_row IS NOT NULL THEN
        INSERT INTO memoird.rewound AS t (generation, runs)
        SELECT row_generation[rewound_row[i]], rewound_runs[i]::int8multirange
        FROM generate_series(1, cardinality(rewound_row)) AS i
        WHERE is_written[rewound_row[i]]
        ON CONFLICT (generation) DO UPDATE SET runs = t.runs + excluded.runs;
    END IF;
    IF rewind_row IS NOT NULL THEN
        INSERT INTO memoird.rewinds (generation, key, runs)
        SELECT row_generation[rewind_row[i]], rewind_key[i], rewind_runs[i]::int8multirange
        FROM generate_series(1, cardinality(rewind_row)) AS i
        WHERE is_written[rewind_row[i]]
        ON CONFLICT (generation, key) DO UPDATE SET runs = excluded.runs;
    END IF;
    IF summary_row IS NOT NULL THEN
        INSERT INTO memoird.summaries (generation, number, body)
        SELECT row_generation[summary_row[i]], summary_number[i], summary_body[i]
        FROM generate_series(1, cardinality(summary_row)) AS i
        WHERE is_written[summary_row[i]]
        ON CONFLICT (generation, number) DO UPDATE SET body = excluded.body;
    END IF;
    FOR i IN 1 .. coalesce(cardinality(gone_row), 0) LOOP
        CONTINUE WHEN NOT is_written[gone_row[i]];
        DELETE FROM memoird.summaries AS t
            WHERE t.generation = row_generation[gone_row[i]] AND t.number = gone_number[i];
    END LOOP;
    IF owed_row IS NOT NULL THEN
        INSERT INTO memoird.outbox (due, generation, hook, tenant, session, reason)
        SELECT row_ended_at[owed_row[i]], row_generation[owed_row[i]], owed_hook[i],
            row_tenant[owed_row[i]], row_session[owed_row[i]], row_reason[owed_row[i]]
        FROM generate_series(1, cardinality(owed_row)) AS i
        WHERE is_written[owed_row[i]]
        ON CONFLICT DO NOTHING;
    END IF;
    FOR i IN 1 .. coalesce(cardinality(copy_row), 0) LOOP
        CONTINUE WHEN NOT is_written[copy_row[i]];
        INSERT INTO memoird.copies (generation, source)
        SELECT row_generation[copy_row[i]], copy_source[i]
        UNION SELECT row_generation[copy_row[i]], known.source FROM memoird.copies AS known
            WHERE known.generation = copy_source[i]
        ON CONFLICT DO NOTHING;
    END LOOP;
    FOR i IN 1 .. coalesce(cardinality(former_row), 0) LOOP
        CONTINUE WHEN NOT is_written[former_row[i]];
        INSERT INTO memoird.former_subjects (tenant, subject, generation)
        SELECT g.tenant, former_subject[i], g.generation FROM memoird.generations AS g
            WHERE g.generation = row_generation[former_row[i]]
        ON CONFLICT DO NOTHING;
    END LOOP;

    UPDATE memoird.lanes SET number = of_number + 1, missed = not_written,
            steady = clock_steady, wall = clock_wall, boot_id = clock_boot_id,
            boot_ms = clock_boot_ms, seen = now()
        WHERE node = of_node AND lane = of_lane AND step = of_number >> 6 AND number = of_number;
    RETURN not_written;
END
$body$;
