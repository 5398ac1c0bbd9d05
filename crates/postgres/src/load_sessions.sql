
-- Queries that load several sessions at once. Like the commit, they are functions so that plans are cached, and plans
-- use no statistics: each row is found through an index. Each sees the snapshot of the calling statement. Positions
-- count from 1. See docs/cluster.md.

-- Heads of live sessions, each with the data of other tables except its turns.
--
-- Of a session's idempotency keys, returns all if `row_has_all_keys`, and otherwise the one in `row_key`, if it exists.
CREATE FUNCTION memoird.load_heads(
    since bigint, most bigint,
    row_tenant bytea[], row_session bytea[], row_has_all_keys boolean[], row_key bytea[]
) RETURNS TABLE (
    generation uuid, format smallint, tenant bytea, session bytea, subject bytea, created_ms bigint,
    last_access bigint, revision bigint, last_seq bigint, kept bytea, turns bigint, bytes bigint, tokens bigint,
    partial boolean, state_version bigint, ended_ms bigint, ended_at bigint, reason text, newest_seq bigint,
    compaction bytea, options bytea, stamp bigint, place int,
    keys bytea[], contents bytea[], generations uuid[], first_seqs bigint[],
    last_seqs bigint[], dropped bigint[], ats bigint[], rewound boolean[],
    json bytea, rewound_first bigint[], rewound_last bigint[], cuts bytea
) LANGUAGE plpgsql STABLE
    SET plan_cache_mode = force_generic_plan
    SET enable_seqscan = off
    SET jit = off
AS $body$
#variable_conflict use_column
DECLARE
    runs int8multirange;
BEGIN
    FOR i IN 1 .. cardinality(row_tenant) LOOP
        SELECT g.generation, g.format, g.tenant, g.session, g.subject, g.created_ms, g.last_access, g.revision,
            g.last_seq, g.kept, g.turns, g.bytes, g.tokens, g.partial, g.state_version, g.ended_ms, g.ended_at,
            g.reason, g.newest_seq, g.compaction, g.options, g.stamp,
            (SELECT s.json FROM memoird.states AS s WHERE s.generation = g.generation),
            (SELECT w.cuts FROM memoird.windows AS w WHERE w.generation = g.generation),
            (SELECT r.runs FROM memoird.rewound AS r WHERE r.generation = g.generation)
        INTO generation, format, tenant, session, subject, created_ms, last_access, revision,
            last_seq, kept, turns, bytes, tokens, partial, state_version, ended_ms, ended_at,
            reason, newest_seq, compaction, options, stamp, json, cuts, runs
        FROM memoird.generations AS g
        WHERE g.tenant = row_tenant[i] AND g.session >= row_session[i] AND g.session <= row_session[i]
            AND g.ended_at IS NULL
        -- Without an order, a plan made while the table is small may use the index on `used`.
        ORDER BY g.session LIMIT 1;
        CONTINUE WHEN NOT FOUND;
        place := i;
        rewound_first := NULL;
        rewound_last := NULL;
        IF runs IS NOT NULL THEN
            SELECT array_agg(lower(run)), array_agg(upper(run) - 1) INTO rewound_first, rewound_last
                FROM unnest(runs) AS run;
        END IF;
        IF row_has_all_keys[i] THEN
            SELECT k.* INTO keys, contents, generations, first_seqs, last_seqs, dropped, ats, rewound
                FROM memoird.session_keys(row_tenant[i], row_session[i], since, most) AS k;
        ELSIF row_key[i] IS NOT NULL THEN
            SELECT ARRAY[k.key], ARRAY[k.content], ARRAY[k.generation], ARRAY[k.first_seq], ARRAY[k.last_seq],
                ARRAY[k.dropped], ARRAY[k.at], ARRAY[CASE WHEN k.first_seq <= k.last_seq THEN coalesce((
                    SELECT run.runs && int8range(k.first_seq, k.last_seq, '[]')
                    FROM memoird.rewound AS run WHERE run.generation = k.generation), false) ELSE false END]
            INTO keys, contents, generations, first_seqs, last_seqs, dropped, ats, rewound
            FROM memoird.idempotency AS k
            WHERE k.tenant = row_tenant[i] AND k.session = row_session[i] AND k.key = row_key[i]
                AND k.at + 0 >= since;
        ELSE
            keys := NULL;
        END IF;
        RETURN NEXT;
    END LOOP;
END
$body$;

-- The turns in live sets: those from a floor on except holes, plus those apart.
--
-- The caller has turns up to `row_known`. If their number, size and digest are those of the stored ones, `reused` is
-- true, and only later turns are returned. Each row has the session's stamp, also if there is no turn.
CREATE FUNCTION memoird.load_turns(
    row_generation uuid[], row_floor bigint[], row_apart text[], row_holes text[],
    row_known bigint[], row_known_count bigint[], row_known_bytes bigint[], row_known_digest bigint[]
) RETURNS TABLE (
    seq bigint, content bytea, header bytea, checksum bigint, place int, stamp bigint, reused boolean
) LANGUAGE plpgsql STABLE
    SET plan_cache_mode = force_generic_plan
    SET enable_seqscan = off
    SET enable_hashjoin = off
    SET enable_mergejoin = off
    SET jit = off
AS $body$
#variable_conflict use_column
DECLARE
    of_generation uuid;
    stamp_now bigint;
    gone int8multirange;
    apart bigint[];
    holes bigint[];
    floor bigint;
    known bigint;
    is_same boolean;
BEGIN
    FOR i IN 1 .. cardinality(row_generation) LOOP
        of_generation := row_generation[i];
        SELECT g.stamp, (SELECT r.runs FROM memoird.rewound AS r WHERE r.generation = of_generation)
            INTO stamp_now, gone
            FROM memoird.generations AS g WHERE g.generation = of_generation AND g.ended_at IS NULL;
        CONTINUE WHEN NOT FOUND;
        floor := row_floor[i];
        apart := row_apart[i];
        holes := row_holes[i];
        -- Most sessions have none.
        IF holes = '{}' THEN
            holes := NULL;
        END IF;
        known := row_known[i];
        is_same := false;
        IF known > 0 THEN
            -- The lower half is the checksum of the content. See `digest_with` in load.rs.
            SELECT count(*) = row_known_count[i]
                AND coalesce(sum(octet_length(k.content)), 0) = row_known_bytes[i]
                AND coalesce(sum((k.checksum & 4294967295)
                    * ((k.seq & 2147483647) * 1103515245 & 2147483647)), 0)
                    % 9223372036854775808 = row_known_digest[i]
            INTO is_same
            FROM (
                SELECT t.seq, t.content, t.checksum FROM memoird.turns AS t
                WHERE t.generation = of_generation AND t.seq >= floor AND t.seq <= known
                    AND (holes IS NULL OR t.seq <> ALL (holes)) AND (gone IS NULL OR NOT t.seq <@ gone)
                UNION ALL
                SELECT t.seq, t.content, t.checksum FROM memoird.turns AS t
                WHERE t.generation = of_generation AND t.seq = ANY (apart) AND t.seq <= known) AS k;
        END IF;
        IF is_same THEN
            floor := greatest(floor, known + 1);
        ELSE
            known := 0;
        END IF;
        RETURN QUERY SELECT t.seq, t.content, t.header, t.checksum, i, stamp_now, is_same
            FROM memoird.turns AS t
            WHERE t.generation = of_generation AND t.seq >= floor
                AND (holes IS NULL OR t.seq <> ALL (holes)) AND (gone IS NULL OR NOT t.seq <@ gone);
        IF NOT FOUND THEN
            seq := NULL;
            content := NULL;
            header := NULL;
            checksum := NULL;
            place := i;
            stamp := stamp_now;
            reused := is_same;
            RETURN NEXT;
        END IF;
        IF apart[cardinality(apart)] > known THEN
            RETURN QUERY SELECT t.seq, t.content, t.header, t.checksum, i, stamp_now, is_same
                FROM memoird.turns AS t
                WHERE t.generation = of_generation AND t.seq = ANY (apart) AND t.seq > known;
        END IF;
    END LOOP;
END
$body$;
