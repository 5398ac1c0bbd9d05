-- Queries that load a session. Like the commit, they are functions so that plans are cached: planning took longer than
-- executing. Each sees the snapshot of the calling statement. See docs/cluster.md.

-- The idempotency keys of a session, newest first, as arrays.
CREATE FUNCTION memoird.session_keys(
    of_tenant bytea, of_session bytea, since bigint, most bigint,
    OUT keys bytea[], OUT contents bytea[], OUT generations uuid[], OUT first_seqs bigint[],
    OUT last_seqs bigint[], OUT dropped bigint[], OUT ats bigint[], OUT rewound boolean[]
) LANGUAGE plpgsql STABLE
    SET plan_cache_mode = force_generic_plan
    SET enable_seqscan = off
    SET jit = off
AS $body$
BEGIN
    SELECT array_agg(k.key), array_agg(k.content), array_agg(k.generation), array_agg(k.first_seq),
        array_agg(k.last_seq), array_agg(k.dropped), array_agg(k.at), array_agg(
            CASE WHEN k.first_seq <= k.last_seq THEN coalesce((
                SELECT run.runs && int8range(k.first_seq, k.last_seq, '[]')
                FROM memoird.rewound AS run WHERE run.generation = k.generation), false)
            ELSE false END)
    INTO keys, contents, generations, first_seqs, last_seqs, dropped, ats, rewound
    FROM (SELECT * FROM memoird.idempotency AS i
        -- `+ 0` avoids the index on `at`, which has the keys of all sessions.
        WHERE i.tenant = of_tenant AND i.session = of_session AND i.at + 0 >= since
        ORDER BY i.at + 0 DESC, i.generation DESC, i.last_seq DESC, i.key DESC LIMIT most) AS k;
END
$body$;

-- Other tables' data of a generation: its state, all rewound ranges, and its cuts.
CREATE FUNCTION memoird.beside_generation(
    of_generation uuid,
    OUT json bytea, OUT first_seqs bigint[], OUT last_seqs bigint[], OUT cuts bytea
) LANGUAGE plpgsql STABLE
    SET plan_cache_mode = force_generic_plan
    SET enable_seqscan = off
    SET jit = off
AS $body$
BEGIN
    json := (SELECT s.json FROM memoird.states AS s WHERE s.generation = of_generation);
    SELECT array_agg(lower(run)), array_agg(upper(run) - 1) INTO first_seqs, last_seqs
        FROM memoird.rewound AS r, unnest(r.runs) AS run WHERE r.generation = of_generation;
    cuts := (SELECT w.cuts FROM memoird.windows AS w WHERE w.generation = of_generation);
END
$body$;

-- The turns in a live set: those from `floor` on except `holes`, plus `apart`. Each row has the session's stamp.
CREATE FUNCTION memoird.kept_turns(of_generation uuid, floor bigint, apart bigint[], holes bigint[])
RETURNS TABLE (seq bigint, content bytea, header bytea, checksum bigint, stamp bigint)
LANGUAGE plpgsql STABLE
    SET plan_cache_mode = force_generic_plan
    SET enable_seqscan = off
    SET jit = off
AS $body$
DECLARE
    stamp_now bigint := (SELECT g.stamp FROM memoird.generations AS g
        WHERE g.generation = of_generation AND g.ended_at IS NULL);
BEGIN
    RETURN QUERY SELECT t.seq, t.content, t.header, t.checksum, stamp_now
        FROM memoird.turns AS t WHERE t.generation = of_generation
            AND (t.seq = ANY (apart) OR t.seq >= floor AND t.seq <> ALL (holes) AND NOT coalesce(t.seq <@
                (SELECT run.runs FROM memoird.rewound AS run WHERE run.generation = of_generation), false))
        ORDER BY t.seq;
END
$body$;
