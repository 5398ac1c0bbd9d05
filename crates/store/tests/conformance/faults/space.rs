//! Pruning frees rows in steps of the requested size, and then disk space.

use memoird_core::outbox::DeliveryState;
use memoird_core::session::AppendCommand;
use memoird_core::time::Steady;
use memoird_store::{DeliveryOutcome, PruneBefore};

use super::*;
use crate::chat::{begun, command, large, named};
use crate::outbox::{id, owing};
use crate::prune::{self, prune_all};
use crate::update::decide;

const TABLES: [&str; 4] = ["generations", "turns", "states", "idempotency"];
const EVERYTHING: PruneBefore = PruneBefore {
    ended: Steady(u64::MAX),
    keys: Steady(u64::MAX),
};

fn rows(dir: &Path) -> i64 {
    let raw = raw(dir);
    TABLES
        .iter()
        .map(|table| number(&raw, &format!("SELECT count(*) FROM {table}")))
        .sum()
}

#[test]
fn prune_step_deletes_about_the_given_number_of_rows() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    for at in 1..=3 {
        let mut chat = begun(&store, &format!("s{at}"), at);
        for name in 0..10 {
            must_write(&store, [chat.append_command(&named("u a", name, 1), at)]);
        }
        must_write(&store, [chat.patch("{}", at), chat.end(at)]);
    }
    // Reopening flushes the pending table, so that all rows are counted in the indexed tables.
    drop(store);
    let store = open(dir.path());
    let mut left = rows(dir.path());
    assert_eq!(left, 3 * (1 + 20 + 1 + 10));
    loop {
        let more = store.prune(EVERYTHING, prune::rows(7)).unwrap().rows;
        let now = rows(dir.path());
        // A generation is deleted together with its state.
        assert!((0..=9).contains(&(left - now)), "{left} to {now}");
        assert!(more || now == 0, "it stops only when nothing is left");
        left = now;
        if !more {
            break;
        }
    }
}

#[test]
fn pruned_data_is_returned_to_disk() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let empty = number(&raw(dir.path()), "PRAGMA page_count");
    let mut chat = begun(&store, "s", 1);
    let append = AppendCommand {
        turns: vec![large(1 << 20), large(1 << 20)],
        ..command("")
    };
    must_write(&store, [chat.append_command(&append, 2)]);
    must_write(&store, [chat.end(3)]);
    let full = number(&raw(dir.path()), "PRAGMA page_count");
    assert!(full - empty > 500, "{empty} to {full} pages");
    // In small steps, so that none blocks the writer for long.
    for _ in 0..4 {
        store.prune(EVERYTHING, prune::rows(100)).unwrap();
    }
    let after = number(&raw(dir.path()), "PRAGMA page_count");
    assert!(after < empty + 10, "{empty} to {full} to {after} pages");
    must_work(&store);
    drop(store);
    let size = fs::metadata(dir.path().join("journal.db")).unwrap().len();
    assert!(size < 200 << 10, "{size} bytes");
}

/// Queries that run per message, or on large journals, must not scan a table.
#[test]
fn frequent_queries_use_indexes() {
    let dir = tempfile::tempdir().unwrap();
    let _store = open(dir.path());
    let raw = raw(dir.path());
    let of_session = "FROM generations WHERE tenant = 'a' AND session = 'b'";
    for sql in [
        format!("SELECT kept {of_session} AND ended_at IS NULL"),
        format!(
            "SELECT generation {of_session} AND ended_at IS NOT NULL
             ORDER BY ended_at DESC, generation DESC"
        ),
        "SELECT tenant, session FROM idempotency WHERE (tenant, session) > ('a', 'b')
             ORDER BY tenant, session LIMIT 1"
            .into(),
        "SELECT place.seq, turns.content
             FROM turn_places AS place JOIN turns ON turns.id = place.id
             WHERE place.generation = x'' AND place.seq >= 1 ORDER BY 1"
            .into(),
        "SELECT generation FROM generations WHERE ended_at < 1 AND held = 0
             ORDER BY ended_at LIMIT 5"
            .into(),
        "SELECT tenant FROM generations WHERE ended_at IS NULL".into(),
        "SELECT key FROM idempotency WHERE tenant = 'a' AND session = 'b' AND at >= 1".into(),
        "DELETE FROM idempotency WHERE (tenant, session, key) IN
             (SELECT tenant, session, key FROM idempotency WHERE at < 1 ORDER BY at LIMIT 5)"
            .into(),
    ] {
        let mut plan = raw.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
        let steps = plan.query_map([], |row| row.get::<_, String>(3)).unwrap();
        for step in steps.map(Result::unwrap) {
            let reads_all = step.starts_with("SCAN") && !step.contains("generations_live");
            assert!(!reads_all && !step.contains("TEMP B-TREE"), "{step}: {sql}");
        }
    }
}

/// Dead deliveries may be many and old.
#[test]
fn pruning_holds_generations_with_pending_deliveries_once() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let chats: Vec<_> = (1..=20)
        .map(|at| owing(&store, &format!("s{at}"), at, &["git"]))
        .collect();
    let later = owing(&store, "later", 50, &[]);
    let held = || {
        number(
            &raw(dir.path()),
            "SELECT count(*) FROM generations WHERE held = 1",
        )
    };
    assert_eq!(prune_all(&store, EVERYTHING, 5), 5, "in steps, as all else");
    assert_eq!(held(), 20);
    assert!(page(&store, &later.key, None, ALL).is_none());

    let done = DeliveryOutcome {
        id: id(chats[0].generation(), "git"),
        state: DeliveryState::Done,
        tries: 1,
        last_error: String::new(),
        due: Steady(60),
    };
    store.record_outcomes(&[done]).unwrap();
    store
        .drop_delivery(&id(chats[1].generation(), "git"))
        .unwrap();
    assert_eq!(held(), 18);
    prune_all(&store, EVERYTHING, 5);
    assert_eq!(
        number(&raw(dir.path()), "SELECT count(*) FROM generations"),
        18
    );
}

#[test]
fn newest_keys_of_session_with_many_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let options = SqliteOptions {
        pending_changes_max: 300,
        ..SqliteOptions::default()
    };
    let store = SqliteStore::open(dir.path(), options).unwrap();
    let mut chat = begun(&store, "s", 1);
    let mut other = begun(&store, "other", 2);
    must_write(&store, [other.append_command(&named("u", 1, 1), 2)]);
    for name in 0..3_000 {
        must_write(
            &store,
            [chat.append_command(&named("u", name, 1), 10 + name)],
        );
    }
    let stored = number(&raw(dir.path()), "SELECT count(*) FROM idempotency");
    assert!((1_024..1_700).contains(&stored), "{stored} keys are kept");
    assert_eq!(
        Some(&store.keys(&chat.key, Steady(0)).unwrap()),
        chat.session.keys()
    );
    assert_eq!(store.keys(&other.key, Steady(0)).unwrap().len(), 1);
}

/// An update does not search other sessions' turns in the pending table.
#[test]
fn update_uses_turn_position_from_memory() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let mut chat = begun(&store, "s", 1);
    must_write(&store, [chat.append("u u u", 2)]);
    // Add turns after the newest one, where a scan of the pending table would find them.
    let raw = raw(dir.path());
    let copied = raw.execute(
        "INSERT INTO turns (id, generation, seq, content, header, checksum)
         SELECT id + 1000000, generation, seq, content, header, checksum FROM turns",
        [],
    );
    assert_eq!(copied.unwrap(), 3);
    must_write(&store, decide(&mut chat, 2, "it is new", None, 3).changes);
    let sql = "SELECT group_concat(id) FROM turns WHERE content LIKE '%it is new%'";
    let ids: String = raw.query_row(sql, [], |row| row.get(0)).unwrap();
    assert_eq!(ids, "2");
}
