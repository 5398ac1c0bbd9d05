//! Pages of many ended generations read few rows, also before the table was ever analyzed.

use memoird_core::ids::Subject;
use memoird_core::time::Steady;
use memoird_store::{EndedQuery, Store};

use crate::ended_list::{ORDERS, all};
use crate::late::until;
use crate::server::{Database, database};

/// Ten ended generations of each session and in each millisecond, 100 of each subject.
const GENERATIONS: &str = "
    INSERT INTO memoird.generations (generation, revision, stamp, last_seq, newest_seq,
        last_access, turns, bytes, tokens, state_version, journal_bytes, created_ms, ended_ms,
        ended_at, partial, reason, tenant, session, subject, kept)
    SELECT (lpad(to_hex(n), 12, '0') || md5(n::text))::varchar(32)::uuid, 1, 1, 1, 1, 1, 1, 1, 1,
        0, 1, 1, 1, n / 10, false, 'ended', 't', ('chat:' || n % 10000)::bytea,
        ('user:' || n % 1000)::bytea, LIVE_SET
    FROM generate_series(1, 100000) AS n";

/// Returns the number of rows read from indexes and the table, once all connections are closed.
fn rows_read(database: &Database) -> i64 {
    until(|| {
        let others = "SELECT count(*) FROM pg_stat_activity
            WHERE datname = current_database() AND pid <> pg_backend_pid()";
        database.number(others) == 0
    });
    database.number(
        "SELECT (sum(idx_tup_read) + (SELECT sum(seq_tup_read) FROM pg_stat_user_tables
             WHERE relname = 'generations'))::int8
         FROM pg_stat_user_indexes WHERE relname = 'generations'",
    )
}

#[test]
fn page_of_many_ended_generations_reads_few_rows() {
    let Some(database) = database() else { return };
    drop(database.store());
    // Otherwise statistics appear at some time.
    database.run("ALTER TABLE memoird.generations SET (autovacuum_enabled = false)");
    let live_set = memoird_store::encoding::encode_live_set(&Default::default());
    let live_set: String = live_set.iter().map(|byte| format!("{byte:02x}")).collect();
    database.run(&GENERATIONS.replace("LIVE_SET", &format!("'\\x{live_set}'")));
    let cases = ORDERS.into_iter().flat_map(|order| {
        let whole = all(order);
        let of_time = EndedQuery {
            from: Steady(100),
            until: Steady(9_900),
            ..whole.clone()
        };
        let of_subject = EndedQuery {
            subject: Subject::parse("user:7").ok(),
            ..whole.clone()
        };
        let of_prefix = EndedQuery {
            id_prefix: "chat:".into(),
            ..whole.clone()
        };
        [
            (whole, 300),
            (of_time, 2_000),
            (of_subject, 500),
            (of_prefix, 4_500),
        ]
    });
    for (query, rows_max) in cases {
        let before = rows_read(&database);
        let store = database.store();
        let first = store.ended_page(&query).unwrap();
        assert_eq!(first.generations.len(), query.max);
        let second = EndedQuery {
            after: first.next,
            ..query
        };
        let page = store.ended_page(&second).unwrap();
        assert_eq!(page.generations.len(), second.max);
        drop(store);
        let read = rows_read(&database) - before;
        assert!(
            (1..=2 * rows_max).contains(&read),
            "{read} rows: {second:?}"
        );
    }
}
