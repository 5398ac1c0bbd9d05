//! Late actions of a daemon that was paused, disconnected, idle, or the leader until recently.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use memoird_core::ids::Generation;
use memoird_core::outbox::DeliveryState;
use memoird_core::time::Steady;
use memoird_postgres::{DatabaseUse, PgOptions, PgStore, SchemaMigrations, Transactions};
use memoird_store::{DeliveryOutcome, PruneBefore, PruneBounds, PruningPending, Store};
use tokio_postgres::Client;

use crate::chat::{Chat, begun, named};
use crate::kit::*;
use crate::outbox::{id, outcome, owing};
use crate::proxy::{NetworkFaults, behind_proxy};
use crate::prune::check_prune_step_bytes;
use crate::server::{Database, RUNTIME, database};

const BEFORE: PruneBefore = PruneBefore {
    ended: Steady(1_000),
    keys: Steady(0),
};

fn prune(store: &PgStore) -> PruningPending {
    let bounds = PruneBounds {
        rows_max: 1_000,
        pages_max: 0,
    };
    store.prune(BEFORE, bounds).unwrap_or_default()
}

/// Number of statements that wait for a lock.
pub(crate) fn waiting(database: &Database) -> i64 {
    database.number(
        "SELECT count(*) FROM pg_stat_activity
         WHERE datname = current_database() AND wait_event_type = 'Lock'",
    )
}

/// Options of a cluster member.
fn member(database: &Database) -> PgOptions {
    let mut options = database.options();
    options.sharing = DatabaseUse::Cluster;
    options
}

pub(crate) fn until(mut is_so: impl FnMut() -> bool) {
    while !is_so() {
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn start_with_idempotency_key_used_concurrently_is_rejected() {
    let Some(database) = database() else { return };
    let (one, other) = (database.store(), database.store());
    let key = key("t", "s");
    let (mut late, begin_late) = Chat::begin(&key, Generation::new(1, 1), 10);
    let said_late = late.append_command(&named("u", 7, 1), 10);
    // The bot got no reply and retried at another daemon, where the session has ended since.
    let (mut chat, begin) = Chat::begin(&key, Generation::new(2, 2), 20);
    must_write(&other, [begin, chat.append_command(&named("u", 7, 1), 20)]);
    must_write(&other, [chat.end(30)]);
    let with_another = set([begin_late.clone(), said_late.clone()]);
    let (mut third, begin) = Chat::begin(&crate::kit::key("t", "other"), Generation::new(3, 3), 40);
    let answers = write(&one, &[with_another, set([begin, third.append("u", 40)])]);
    assert!(answers[0].is_err() && answers[1].is_ok(), "{answers:?}");
    assert!(known(&one, &key).is_none(), "it was not started");
    assert_eq!(database.number("SELECT count(*) FROM memoird.turns"), 2);
    // As part of a set that is written completely or not at all.
    let answers = write(&one, &[set([third.end(50), begin_late, said_late])]);
    assert!(answers[0].is_err(), "{answers:?}");
    assert!(known(&one, &third.key).is_some());
    // A day later the key can be used again.
    let day: u32 = 24 * 60 * 60 * 1_000;
    let (mut anew, begin) = Chat::begin(&key, Generation::new(day.into(), 4), u64::from(day) + 20);
    must_write(
        &one,
        [
            begin,
            anew.append_command(&named("u", 7, 1), u64::from(day) + 20),
        ],
    );
}

/// Creates two ended generations: the first has a pending delivery, the second has none.
///
/// A pruner then holds the first, and waits for a row of the second until the client is dropped.
/// Also returns the outcome that finishes the delivery.
fn a_pruning_that_waits(database: &Database, store: &PgStore) -> (Client, DeliveryOutcome) {
    let owed = owing(store, "a", 1, &["h"]);
    let mut free = begun(store, "b", 11);
    must_write(store, [free.append("u a", 11)]);
    must_write(store, [free.end(12)]);
    let waited_for = database.hold("SELECT FROM memoird.turns WHERE seq = 1 FOR UPDATE");
    let done = outcome(&id(owed.generation(), "h"), DeliveryState::Done, 5);
    (waited_for, done)
}

/// The pruner has seen the pending delivery, but its transaction is still open.
#[test]
fn generation_delivered_during_prune_is_pruned() {
    let Some(database) = database() else { return };
    let (one, other) = (database.store(), database.store());
    let (held, done) = a_pruning_that_waits(&database, &one);
    thread::scope(|scope| {
        let pruning = scope.spawn(|| prune(&one));
        until(|| waiting(&database) == 1);
        let telling = scope.spawn(|| other.record_outcomes(&[done]).unwrap());
        until(|| telling.is_finished() || waiting(&database) == 2);
        drop(held);
        pruning.join().unwrap();
        telling.join().unwrap();
    });
    prune(&one);
    assert_eq!(
        database.number("SELECT count(*) FROM memoird.generations"),
        0
    );
}

/// A paused daemon with row locks must not block its successor.
#[test]
fn connection_lost_in_transaction_does_not_block_others() {
    let Some(database) = database() else { return };
    let faults = Arc::<NetworkFaults>::default();
    let Some(words) = behind_proxy(&database.words, &faults) else {
        return;
    };
    let one = database.store_with(PgOptions::parse(&words, None, None).unwrap());
    let other = database.store();
    let (held, done) = a_pruning_that_waits(&database, &one);
    thread::scope(|scope| {
        let pruning = scope.spawn(|| prune(&one));
        until(|| waiting(&database) == 1);
        faults.stalls.store(true, Ordering::Relaxed);
        drop(held);
        other.record_outcomes(&[done]).unwrap();
        faults.clear();
        pruning.join().unwrap();
    });
}

/// A backend that waits for a lock does not notice that its client is gone.
#[test]
fn lock_timeout_frees_connection() {
    let Some(database) = database() else { return };
    let _store = database.store_with(member(&database));
    let held = database.hold("LOCK TABLE memoird.members");
    let newest = "SELECT coalesce(extract(epoch FROM max(backend_start)) * 1000000, 0)::int8
                  FROM pg_stat_activity
                  WHERE datname = current_database() AND wait_event_type = 'Lock'";
    let mut waited = BTreeSet::new();
    until(|| {
        waited.insert(database.number(newest));
        waited.remove(&0);
        waited.len() == 3
    });
    assert!(waiting(&database) < 3, "one for each heartbeat");
    drop(held);
}

/// The leader locks the lease row until its commit is on disk.
#[test]
fn follower_does_not_wait_for_leader() {
    let Some(database) = database() else { return };
    drop(database.store());
    database.run(
        "INSERT INTO memoird.owner (id, node, name, is_shared, expires_at)
         VALUES (1, gen_random_uuid(), 'leader', true, now() + interval '1 hour')",
    );
    let store = database.store_with(member(&database));
    let held = database.hold("SELECT FROM memoird.owner FOR UPDATE");
    let seen = "SELECT (extract(epoch FROM seen) * 1000000)::int8 FROM memoird.members";
    let mut beats = BTreeSet::new();
    until(|| {
        beats.insert(database.number(seen));
        beats.len() == 4 || store.away().borrow().is_some()
    });
    assert_eq!(*store.away().borrow(), None);
    drop(held);
}

/// As if a firewall dropped the connections silently.
#[test]
fn silent_connections_are_closed_when_a_new_one_works() {
    let Some(database) = database() else { return };
    let faults = Arc::<NetworkFaults>::default();
    let Some(words) = behind_proxy(&database.words, &faults) else {
        return;
    };
    let mut options = PgOptions::parse(&words, None, None).unwrap();
    options.sharing = DatabaseUse::Cluster;
    let store = database.store_with(options);
    let mut chat = begun(&store, "s", 1);
    faults.silence();
    thread::scope(|scope| {
        let read = || seqs(&store, &chat.key, None);
        let reads = [0; 4].map(|_| scope.spawn(read));
        for read in reads {
            assert_eq!(read.join().unwrap(), Some(vec![]));
        }
    });
    must_write(&store, [chat.append("u a", 2)]);
    assert_eq!(seqs(&store, &chat.key, None), Some(vec![1, 2]));
    faults.clear();
}

/// Replicas and WAL should receive deletions in small steps.
#[test]
fn prune_step_is_limited_in_bytes() {
    let Some(database) = database() else { return };
    check_prune_step_bytes(&database.store());
}

/// An open snapshot, as of a dump, keeps all versions of a row.
#[test]
fn commits_stay_fast_while_old_snapshot_is_held() {
    const COMMITS: i64 = 2_000;
    let Some(database) = database() else { return };
    let store = database.store();
    let mut chat = begun(&store, "s", 1);
    let look = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; SELECT FROM memoird.lanes";
    let looking = database.hold(look);
    for _ in 0..COMMITS {
        store.commit(&clock(1), &[]).unwrap();
    }
    must_write(&store, [chat.append("u", 2)]);
    drop((store, looking));
    // A backend reports its statistics at the latest when it exits.
    let others = "SELECT count(*) FROM pg_stat_activity
                  WHERE datname = current_database() AND pid <> pg_backend_pid()
                      AND backend_type = 'client backend'";
    until(|| database.number(others) == 0);
    let sum = "SELECT sum(idx_tup_read)::int8 FROM pg_stat_user_indexes WHERE relname = 'lanes'";
    let mut read = 0;
    until(|| {
        read = database.number(sum);
        read >= COMMITS
    });
    println!("{read} entries were read");
    assert!(read < 8 * COMMITS, "{read}");
}

/// A dump locks tables while it runs, and a waiting lock blocks all later ones.
#[test]
fn migration_step_yields_to_table_locks_and_retries() {
    const FIRST: &str = "CREATE TABLE other.kept (id int)";
    const SECOND: &str = "ALTER TABLE other.kept ADD COLUMN more int";
    let steps = |steps| SchemaMigrations {
        schema: "other",
        first_version: 1,
        steps,
    };
    let Some(database) = database() else { return };
    let transactions = Transactions::new(database.options(), RUNTIME.handle(), 1).unwrap();
    transactions.prepare(&steps(&[FIRST])).unwrap();
    let dump = database.hold("SELECT FROM other.kept");
    thread::scope(|scope| {
        let stepping = scope.spawn(|| transactions.prepare(&steps(&[FIRST, SECOND])));
        until(|| waiting(&database) == 1);
        // The lock timeout of a commit.
        database.run("SET lock_timeout = '2s'; SELECT FROM other.kept");
        drop(dump);
        stepping.join().unwrap().unwrap();
    });
    assert_eq!(
        database.number("SELECT version::int8 FROM other.schema_version"),
        2
    );
}

/// A pooler may assign this connection to another client after each statement.
#[test]
fn standalone_statement_changes_no_session_setting() {
    let Some(database) = database() else { return };
    let faults = Arc::<NetworkFaults>::default();
    let Some(words) = behind_proxy(&database.words, &faults) else {
        return;
    };
    database.run(&format!(
        "ALTER DATABASE {} SET statement_timeout = '7s'",
        database.name()
    ));
    let options = PgOptions::parse(&words, None, None).unwrap();
    let transactions = Transactions::new(options, RUNTIME.handle(), 1).unwrap();
    let seen = |name: &str| {
        let see = format!(
            "CREATE TABLE public.{name} AS SELECT setting, source FROM pg_settings
             WHERE name = 'statement_timeout'"
        );
        transactions.run_standalone(&see).unwrap();
        database.text(&format!("SELECT * FROM public.{name}"))
    };
    assert_eq!(seen("of_a_server"), "0|client");
    faults.refuses_settings.store(true, Ordering::Relaxed);
    assert_eq!(seen("of_a_pooler"), "7000|database");
}

#[test]
fn daemon_without_commits_for_a_week_commits_again() {
    let Some(database) = database() else { return };
    let one = database.store();
    let mut chat = begun(&one, "s", 1);
    must_write(&one, [chat.append("u a", 2)]);
    // The newest clock is in another row.
    database.store().commit(&clock(90), &[]).unwrap();
    database.run("UPDATE memoird.lanes SET seen = now() - interval '8 days'");
    let other = database.store();
    assert_eq!(database.number("SELECT count(*) FROM memoird.lanes"), 2);
    must_write(&one, [chat.append("u", 5)]);
    assert_eq!(seqs(&other, &chat.key, None), Some(vec![1, 2, 3]));
}

#[test]
fn database_clock_step_does_not_age_sessions() {
    let Some(database) = database() else { return };
    let (one, other) = (
        database.store_with(member(&database)),
        database.store_with(member(&database)),
    );
    let hour = 60 * 60 * 1_000;
    one.sync_clock(Steady(1_000)).unwrap();
    database.run("UPDATE memoird.members SET seen = seen - interval '1 hour'");
    // Until both have sent a heartbeat.
    let behind = "SELECT count(*) FROM memoird.members WHERE seen < now() - interval '1 minute'";
    until(|| database.number(behind) == 0);
    // If the other member's heartbeat came first, it deleted this row as that of a dead member.
    // Then the row is inserted again, without a timeline until the next `sync_clock`.
    let steady = other.steady().unwrap();
    assert!(
        steady.is_none_or(|steady| steady < Steady(hour)),
        "{steady:?}"
    );
    let mut steady = None;
    // Its row may be missing until its next heartbeat.
    until(|| {
        one.sync_clock(Steady(2_000)).unwrap();
        steady = other.steady().unwrap();
        steady.is_some()
    });
    assert!(steady < Some(Steady(hour)), "{steady:?}");
}

/// Wall clocks do not matter: the database knows how long ago the last commit was.
#[test]
fn timeline_continues_by_database_clock() {
    let Some(database) = database() else { return };
    let store = database.store();
    assert_eq!(store.steady().unwrap(), None);
    store.commit(&clock(50), &[]).unwrap();
    database.run("UPDATE memoird.lanes SET seen = seen - interval '1 hour', wall = 0");
    let steady = store.steady().unwrap().unwrap().0;
    let hour = 60 * 60 * 1_000;
    assert!((50 + hour..50 + 2 * hour).contains(&steady), "{steady}");
}
