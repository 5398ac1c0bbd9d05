//! Leadership of a cluster, and the counters that the leader keeps.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use memoird_core::ids::{Generation, TenantId};
use memoird_postgres::{DatabaseUse, PgStore, StoredPolicy, replace_policy};
use memoird_store::Store;
use tokio::time::timeout;

use crate::chat::{Chat, begun};
use crate::kit::*;
use crate::late::until;
use crate::server::{Database, RUNTIME, database};

/// Longer than a lease and the heartbeats until it is taken.
const SOON: Duration = Duration::from_secs(20);

fn member(database: &Database) -> PgStore {
    let mut options = database.options();
    options.sharing = DatabaseUse::Cluster;
    database.store_with(options)
}

/// Waits until the store leads. Returns false if it does not within [`SOON`].
fn leads(store: &PgStore) -> bool {
    let mut leads = store.leads();
    let leading = async { timeout(SOON, leads.wait_for(|leads| *leads)).await.is_ok() };
    RUNTIME.block_on(leading)
}

/// A leader that was killed before the database's clock stepped back by an hour.
fn killed_before_clock_step() -> Option<Database> {
    let database = database()?;
    let killed = member(&database);
    assert!(leads(&killed));
    drop(killed);
    database.run(
        "UPDATE memoird.owner SET expires_at = expires_at + interval '1 hour';
         UPDATE memoird.members SET seen = seen + interval '1 hour'",
    );
    Some(database)
}

#[test]
fn killed_leader_is_replaced_after_clock_of_database_steps_back() {
    let Some(database) = killed_before_clock_step() else {
        return;
    };
    let next = member(&database);
    assert!(leads(&next));
    let members = next.membership(Default::default()).unwrap().members;
    let here = members.iter().filter(|member| member.is_here);
    assert_eq!(here.count(), 1, "{members:?}");
}

#[test]
fn standby_takes_over_after_clock_of_database_steps_back() {
    let Some(database) = killed_before_clock_step() else {
        return;
    };
    let mut options = database.options();
    options.sharing = DatabaseUse::Exclusive;
    let (opened, opens) = mpsc::channel();
    thread::spawn(move || {
        let store = PgStore::open(options, RUNTIME.handle());
        // The test may have failed since.
        let _ = opened.send(store.is_ok());
    });
    assert_eq!(opens.recv_timeout(SOON), Ok(true));
}

#[test]
fn live_leader_keeps_lease_after_clock_of_database_steps_back() {
    let Some(database) = database() else { return };
    let (first, second) = (member(&database), member(&database));
    assert!(leads(&first));
    database.run("UPDATE memoird.owner SET expires_at = expires_at + interval '1 hour'");
    until(|| {
        let sql = "SELECT count(*) FROM memoird.owner
                   WHERE expires_at < now() + interval '10 seconds'";
        database.number(sql) == 1
    });
    assert!(*first.leads().borrow() && !*second.leads().borrow());
}

fn sessions_in_table(database: &Database) -> i64 {
    database.number("SELECT count(*) FROM memoird.generations WHERE ended_at IS NULL")
}

fn counted(store: &PgStore) -> Vec<(TenantId, u64)> {
    let mut counts = store.live_counts().unwrap();
    counts.sort();
    counts
}

#[test]
fn count_of_live_sessions_reads_no_session() {
    let Some(database) = database() else { return };
    let store = database.store();
    begun(&store, "a", 1);
    begun(&store, "b", 2);
    let held = database.hold("LOCK TABLE memoird.generations IN ACCESS EXCLUSIVE MODE");
    let (counted, counts) = mpsc::channel();
    thread::spawn(move || counted.send(store.live_counts().unwrap()));
    let counts = counts.recv_timeout(SOON).expect("it waits for no lock");
    drop(held);
    assert_eq!(counts, [(key("t", "a").tenant, 2)]);
}

#[test]
fn counts_follow_starts_ends_and_deletions() {
    let Some(database) = database() else { return };
    let store = database.store();
    let mut chats: Vec<Chat> = (1..=9)
        .map(|number| begun(&store, &format!("s{number}"), number))
        .collect();
    for chat in &mut chats[..3] {
        must_write(&store, [chat.end(20)]);
    }
    // A generation that starts and ends in one batch, and one that loses the race for its session.
    let (other, begin) = Chat::begin(&key("t", "both"), Generation::new(30, 30), 30);
    write(&store, &[set([begin]), set([other.end(31)])]);
    let (_, taken) = Chat::begin(&key("t", "s9"), Generation::new(32, 32), 32);
    assert!(write(&store, &[set([taken])])[0].is_err());
    let (_, elsewhere) = Chat::begin(&key("other", "s"), Generation::new(33, 33), 33);
    must_write(&store, [elsewhere]);
    database.run("DELETE FROM memoird.generations WHERE session = 's8'");
    let expected = [(key("other", "s").tenant, 1), (key("t", "s").tenant, 5)];
    assert_eq!(counted(&store), expected);
    assert_eq!(sessions_in_table(&database), 6);
    // Adding up changes no count.
    let leader = member(&database);
    assert!(leads(&leader));
    until(|| database.number("SELECT count(*) FROM memoird.live_changes") == 0);
    assert_eq!(counted(&leader), expected);
    assert_eq!(counted(&store), expected);
    must_write(&store, [chats[3].end(40)]);
    assert_eq!(counted(&leader)[1].1, 4);
}

/// A daemon of an older version starts sessions while a newer one migrates the schema.
#[test]
fn migration_counts_sessions_that_start_meanwhile_once() {
    let Some(database) = database() else { return };
    let older = database.store();
    database.run(
        "DROP TRIGGER live_started ON memoird.generations;
         DROP TRIGGER live_ended ON memoird.generations;
         DROP TRIGGER live_deleted ON memoird.generations;
         DROP FUNCTION memoird.count_live, memoird.load_heads, memoird.load_turns;
         DROP TABLE memoird.live_counts, memoird.live_changes, memoird.policy;
         DROP INDEX memoird.generations_listed, memoird.generations_subject;
         UPDATE memoird.schema_version SET version = 10",
    );
    let is_migrated = AtomicBool::new(false);
    let newer = thread::scope(|scope| {
        let starting = scope.spawn(|| {
            let mut number = 0;
            while number < 50 || !is_migrated.load(Ordering::Relaxed) {
                number += 1;
                let chat = begun(&older, &format!("s{number}"), number);
                if number.is_multiple_of(3) {
                    must_write(&older, [chat.end(number)]);
                }
            }
        });
        until(|| sessions_in_table(&database) > 10);
        let newer = database.store();
        is_migrated.store(true, Ordering::Relaxed);
        starting.join().unwrap();
        newer
    });
    let live = sessions_in_table(&database).unsigned_abs();
    assert_eq!(counted(&newer), [(key("t", "s").tenant, live)]);
}

#[test]
fn first_offered_policy_stays_until_its_version_is_replaced() {
    let Some(database) = database() else { return };
    let (one, other) = (database.store(), database.store());
    let policy = |version, body: &[u8]| StoredPolicy {
        version,
        body: body.to_vec(),
    };
    assert_eq!(one.membership(Default::default()).unwrap().policy, None);
    assert_eq!(one.policy(b"a").unwrap(), policy(1, b"a"));
    assert_eq!(other.policy(b"b").unwrap(), policy(1, b"a"));
    assert_eq!(other.replace_policy(1, b"b").unwrap(), policy(2, b"b"));
    // Of two replacements of one version, the first is written.
    assert_eq!(one.replace_policy(1, b"c").unwrap(), policy(2, b"b"));
    // The same policy is no new version.
    assert_eq!(one.replace_policy(2, b"b").unwrap(), policy(2, b"b"));
    let replaced = replace_policy(database.options(), RUNTIME.handle(), b"d").unwrap();
    assert_eq!(replaced, (Some(policy(2, b"b")), policy(3, b"d")));
    let seen = one.membership(Default::default()).unwrap().policy;
    assert_eq!(seen, Some(policy(3, b"d")));
}
