//! Several stores over one database.
//!
//! Only one of two concurrent changes to a session is written. The outcomes of unanswered commits
//! are resolved, and late commits are fenced off.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use memoird_core::change::Change;
use memoird_core::ids::{Generation, SessionKey, TenantId};
use memoird_core::time::Steady;
use memoird_core::turn::Role;
use memoird_postgres::{DatabaseUse, PgOptions, PgStore};
use memoird_store::{
    EventExchange, EventSubscription, ExchangedEvents, InDoubtCommits, IndexBounds, LiveQuery,
    PostedEvent, PruneBefore, SearchFilter, SearchIndex, SessionOrder, Store, StoreError,
};

use crate::chat::{Chat, begun, named};
use crate::erase::says;
use crate::kit::*;
use crate::late::{until, waiting};
use crate::outbox::owing_end;
use crate::proxy::{NetworkFaults, behind_proxy};
use crate::seeds::seeds;
use crate::server::{Database, RUNTIME, database};
use crate::start::say;
use crate::update;
use crate::walk::walk_beside_memory;

#[test]
fn random_operations_match_memory_store() {
    for seed in seeds(8) {
        println!("seed {seed}");
        let Some(database) = database() else { return };
        walk_beside_memory(seed, || Box::new(database.store()));
    }
}

#[test]
fn change_on_stale_version_is_rejected_for_any_writer() {
    let Some(database) = database() else { return };
    let (one, other) = (database.store(), database.store());
    let mut chat = begun(&one, "s", 1);
    must_write(&one, [chat.append("u a", 2)]);
    let mut twin = chat.reloaded(&other);
    must_write(&other, [twin.append("u", 3)]);
    // The first store still considers its version current.
    let stale = chat.clone();
    for change in [
        stale.clone().append_command(&named("a", 7, 1), 4),
        stale.clone().patch("{}", 4),
        stale.clone().touch(4),
        owing_end(&stale, 4, &["a"]),
    ] {
        must_refuse(&one, change);
        assert_eq!(seqs(&one, &chat.key, None), Some(vec![1, 2, 3]));
    }
    assert!(one.open_deliveries().unwrap().is_empty());
    assert!(one.keys(&chat.key, Default::default()).unwrap().is_empty());
    // After reloading, it can continue.
    let mut chat = chat.reloaded(&one);
    must_write(&one, [chat.append("a", 5)]);
    assert_eq!(seqs(&other, &chat.key, None), Some(vec![1, 2, 3, 4]));
}

#[test]
fn change_on_other_version_with_same_revision_is_rejected() {
    let Some(database) = database() else { return };
    let one = database.store();
    let mut chat = begun(&one, "s", 1);
    must_write(&one, [chat.append("u a", 2)]);
    // As if a failover lost a commit, and a different one was written.
    database.run("UPDATE memoird.generations SET stamp = stamp + 1");
    must_refuse(&one, chat.clone().append("u", 3));
    let mut chat = chat.reloaded(&one);
    must_write(&one, [chat.append("u", 3)]);
}

#[test]
fn concurrent_starts_create_one_session() {
    let Some(database) = database() else { return };
    let (one, other) = (database.store(), database.store());
    for round in 0..20 {
        let key = key("t", &format!("s{round}"));
        let begin = |store: &PgStore, name: u128| {
            let (mut chat, begin) = Chat::begin(&key, Generation::new(1, name), 1);
            let sets = [set([begin, chat.append("u a", 2)])];
            write(store, &sets)[0].is_ok()
        };
        let begun = thread::scope(|scope| {
            let first = scope.spawn(|| begin(&one, 2 * round));
            let second = begin(&other, 2 * round + 1);
            [first.join().unwrap(), second]
        });
        assert_eq!(begun.iter().filter(|is_begun| **is_begun).count(), 1);
        assert_eq!(seqs(&one, &key, None), Some(vec![1, 2]));
    }
    assert_eq!(live_heads(&one).len(), 20);
    assert_eq!(database.number("SELECT count(*) FROM memoird.turns"), 40);
}

/// Both statements have started before either has written the key.
#[test]
fn key_is_applied_once_by_concurrent_generations_that_end() {
    let Some(database) = database() else { return };
    let (one, other) = (database.store(), database.store());
    let key = key("t", "s");
    let apply = |store: &PgStore, name: u128| {
        let (mut chat, begin) = Chat::begin(&key, Generation::new(1, name), 1);
        let append = chat.append_command(&named("u a", 7, 1), 2);
        write(store, &[set([begin, append]), set([chat.end(3)])])
    };
    let held = database.hold("LOCK TABLE memoird.idempotency IN EXCLUSIVE MODE");
    let results = thread::scope(|scope| {
        let first = scope.spawn(|| apply(&one, 1));
        let second = scope.spawn(|| apply(&other, 2));
        until(|| waiting(&database) == 2);
        drop(held);
        [first.join().unwrap(), second.join().unwrap()]
    });
    let applied = results.iter().filter(|sets| sets.iter().all(Result::is_ok));
    assert_eq!(applied.count(), 1, "{results:?}");
    assert_eq!(database.number("SELECT count(*) FROM memoird.turns"), 2);
    let generations = "SELECT count(*) FROM memoird.generations WHERE ended_at = 3";
    assert_eq!(database.number(generations), 1);
    assert!(live_heads(&one).is_empty());
    assert_eq!(one.live_counts().unwrap(), []);
}

/// The end and the start in one set are written by a statement of their own.
#[test]
fn set_of_several_generations_is_rejected_whole() {
    let Some(database) = database() else { return };
    let (one, other) = (database.store(), database.store());
    let mut chats = ["a", "b"].map(|session| begun(&one, session, 1 + u64::from(session == "b")));
    let stale = chats[1].clone();
    let mut twin = chats[1].reloaded(&other);
    must_write(&other, [twin.append("u", 3)]);
    let mut third = begun(&one, "c", 9);
    let both = set([chats[0].append("u", 4), owing_end(&stale, 4, &["h"])]);
    let alone = set([third.append("u a", 4)]);
    let answers = write(&one, &[both, alone]);
    assert!(answers[0].is_err() && answers[1].is_ok(), "{answers:?}");
    assert_eq!(seqs(&one, &chats[0].key, None), Some(vec![]));
    assert_eq!(seqs(&one, &third.key, None), Some(vec![1, 2]));
    assert!(one.open_deliveries().unwrap().is_empty());
    let (mut next, begin) = Chat::begin(&chats[0].key, Generation::new(50, 50), 5);
    let change = chats[0].reloaded(&one).end(5);
    must_write(&one, [change, begin, next.append("u", 5)]);
    assert_eq!(seqs(&other, &next.key, None), Some(vec![1]));
}

/// Delays commits that write a state, after they have drawn their numbers.
fn dawdle(database: &Database) {
    database.run(
        "CREATE FUNCTION public.dawdle() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN PERFORM pg_sleep(0.5); RETURN NULL; END $$;
         CREATE TRIGGER dawdle AFTER INSERT ON memoird.states FOR EACH ROW
             EXECUTE FUNCTION public.dawdle()",
    );
}

fn wait_for_number(database: &Database, sequence: &str, number: i64) {
    let sql =
        format!("SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM memoird.{sequence}");
    while database.number(&sql) < number {
        thread::yield_now();
    }
}

#[test]
fn commit_in_progress_delays_follower() {
    let Some(database) = database() else { return };
    let (one, other) = (database.store(), database.store());
    let mut chat = begun(&one, "s", 1);
    let mut slow = begun(&other, "slow", 2);
    let slow_name = Generation::new(2, 2);
    dawdle(&database);
    thread::scope(|scope| {
        let dawdling = scope.spawn(|| {
            let patch = slow.patch("{}", 3);
            let append = slow.append("u a", 3);
            must_write(&other, [patch, append]);
        });
        wait_for_number(&database, "turn_numbers", 2);
        must_write(&one, [chat.append("u", 4)]);
        let written = one.written_after(0, usize::MAX, usize::MAX).unwrap();
        let names: Vec<Generation> = written.turns.iter().map(|turn| turn.generation).collect();
        assert_eq!(names[..2], [slow_name; 2], "the earlier numbers are there");
        assert_eq!(names.len(), 3);
        dawdling.join().unwrap();
    });
}

/// Returns the journal numbers of the turns found.
fn found(store: &PgStore, filter: &SearchFilter, query: &str) -> Vec<u64> {
    let matches = store.find(filter, query, 9).unwrap().unwrap();
    let mut numbers: Vec<u64> = matches.candidates.iter().map(|it| it.number).collect();
    numbers.sort_unstable();
    numbers
}

#[test]
fn index_follows_appends_updates_and_deletions_of_all_stores() {
    let Some(database) = database() else { return };
    let (one, other) = (database.store(), database.store());
    let mut chat = begun(&one, "s", 1);
    must_write(&one, [chat.append_command(&says("green tea"), 2)]);
    let mut second = begun(&other, "t", 2);
    must_write(&other, [second.append_command(&says("black tea"), 3)]);
    must_write(
        &other,
        [second.append_command(&says("it's a pot of tea"), 3)],
    );
    let of = |session: Option<&SessionKey>| SearchFilter {
        tenant: chat.key.tenant.clone(),
        session: session.map(|key| key.session.clone()),
        subject: None,
        after: None,
        before: None,
        roles: vec![Role::User],
        tool: None,
        turns: None,
    };
    let all = of(None);
    assert!(one.find(&all, "tea", 9).unwrap().is_none());
    let bounds = IndexBounds {
        turns_max: 2,
        bytes_max: usize::MAX,
        stale_max: 9,
    };
    let step = one.index_step(bounds).unwrap();
    assert!(step.is_new && step.has_more && step.indexed == 2);
    assert!(!one.has_indexed(&chat.key.tenant, 3).unwrap());
    let step = other.index_step(bounds).unwrap();
    assert!(!step.is_new && !step.has_more && step.indexed == 1);
    assert!(one.has_indexed(&chat.key.tenant, 3).unwrap());
    assert_eq!(found(&one, &all, "tea"), [1, 2, 3]);
    assert_eq!(found(&other, &all, "green"), [1]);
    assert_eq!(found(&one, &all, ""), [1, 2, 3]);
    assert_eq!(found(&one, &of(Some(&second.key)), "tea"), [2, 3]);
    assert_eq!(found(&one, &all, &"x".repeat(3_000)), [0; 0]);
    must_write(
        &one,
        update::decide(&mut chat, 1, "coffee", None, 4).changes,
    );
    assert!(!other.has_indexed(&chat.key.tenant, 3).unwrap());
    let step = other.index_step(bounds).unwrap();
    assert_eq!((step.replaced, step.indexed), (1, 0));
    assert_eq!(found(&one, &all, "green"), [0; 0]);
    assert_eq!(found(&one, &all, "coffee"), [1]);
    must_write(&other, [second.end(5)]);
    let before = PruneBefore {
        ended: Steady(9),
        keys: Steady(0),
    };
    crate::prune::prune_all(&one, before, 100);
    assert_eq!(found(&one, &all, "tea"), [0; 0]);
    assert_eq!(found(&one, &all, "coffee"), [1]);
    one.remove_index().unwrap();
    assert!(one.find(&all, "coffee", 9).unwrap().is_none());
    assert_eq!(other.index_step(bounds).unwrap().indexed, 1);
    assert_eq!(found(&one, &all, "coffee"), [1]);
}

#[test]
fn timeline_continues_from_the_later_clock() {
    let Some(database) = database() else { return };
    let (one, other) = (database.store(), database.store());
    one.commit(&clock(50), &[]).unwrap();
    other.commit(&clock(40), &[]).unwrap();
    assert_eq!(database.store().clock().unwrap(), Some(clock(50)));
}

/// Opens a store through a proxy.
fn store_behind_proxy(
    database: &Database,
    faults: &Arc<NetworkFaults>,
    has_fence: bool,
) -> Option<PgStore> {
    let Some(words) = behind_proxy(&database.words, faults) else {
        say("skipped: the server has no Unix socket");
        return None;
    };
    let mut options = PgOptions::parse(&words, None, None).unwrap();
    options.has_fence = has_fence;
    Some(database.store_with(options))
}

#[test]
fn lost_commit_is_resent_and_lost_reply_is_not() {
    let Some(database) = database() else { return };
    let faults = Arc::<NetworkFaults>::default();
    let Some(store) = store_behind_proxy(&database, &faults, true) else {
        return;
    };
    let mut chat = begun(&store, "s", 1);
    let flags = [&faults.before, &faults.after, &faults.before, &faults.after];
    for (round, flag) in (1_u32..).zip(flags) {
        flag.store(true, Ordering::Relaxed);
        let ends = set([chat.append_command(&named("u a", round.into(), 1), 2)]);
        let (fresh, begin) = Chat::begin(&key("t", &format!("f{round}")), generation(round), 3);
        let stale = set([fresh.end(3)]);
        let answers = write(
            &store,
            &[ends, set([begin]), set([stale.changes[0].clone()])],
        );
        assert_eq!(answers, [Ok(()), Ok(()), Ok(())], "round {round}");
        assert_eq!(faults.cuts.load(Ordering::Relaxed), round);
        assert_eq!(known(&store, &chat.key).unwrap().head, *chat.session.head());
    }
    let doubts = InDoubtCommits {
        written: 2,
        unwritten: 2,
        ..InDoubtCommits::default()
    };
    assert_eq!(store.in_doubt_commits(), doubts);
    assert_eq!(seqs(&store, &chat.key, None), Some((1..=8).collect()));
    assert_eq!(database.number("SELECT count(*) FROM memoird.turns"), 8);
}

/// As after a failover that lost commits, and after a restore.
#[test]
fn unknown_and_lost_commits_are_counted() {
    let Some(database) = database() else { return };
    let faults = Arc::<NetworkFaults>::default();
    let Some(store) = store_behind_proxy(&database, &faults, true) else {
        return;
    };
    let mut chat = begun(&store, "s", 1);
    must_write(&store, [chat.append("u a", 2)]);
    let mut counts = InDoubtCommits::default();
    let fails = |damage: &str, is_cut: bool| {
        database.run(damage);
        faults.after.store(is_cut, Ordering::Relaxed);
        let change = set([chat.reloaded(&store).append("u", 3)]);
        let error = store.commit(&clock(1), &[change]).unwrap_err();
        assert!(matches!(error, StoreError::Database { .. }), "{error}");
        store.in_doubt_commits()
    };
    // The commit itself finds that the earlier ones are gone.
    let back = "UPDATE memoird.lanes SET number = number - 1";
    counts.set_back = 1;
    assert_eq!(fails(back, false), counts);
    // Its reply is lost, and so is its effect.
    database.run(
        "CREATE FUNCTION public.lose() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN NEW.number := 0; RETURN NEW; END $$;
         CREATE TRIGGER lose BEFORE UPDATE OF number ON memoird.lanes FOR EACH ROW
             EXECUTE FUNCTION public.lose()",
    );
    (counts.unknown, counts.set_back) = (1, 2);
    assert_eq!(fails("SELECT 1", true), counts);
    // The row itself is gone.
    database.run(
        "DROP TRIGGER lose ON memoird.lanes;
         CREATE OR REPLACE FUNCTION public.lose() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN DELETE FROM memoird.lanes; RETURN NULL; END $$;
         CREATE TRIGGER lose AFTER UPDATE OF number ON memoird.lanes FOR EACH ROW
             EXECUTE FUNCTION public.lose()",
    );
    counts.unknown = 2;
    assert_eq!(fails("SELECT 1", true), counts);
    database.run("DROP TRIGGER lose ON memoird.lanes");
    let mut chat = chat.reloaded(&store);
    must_write(&store, [chat.append("u", 4)]);
    assert_eq!(store.in_doubt_commits(), counts);
}

fn generation(round: u32) -> Generation {
    Generation::new(9, round.into())
}

/// Delays commits in the network until the store has given them up.
///
/// Returns how many turns exist that were reported as not written.
fn ghosts(has_fence: bool) -> Option<i64> {
    let mut ghosts = 0;
    for round in 1..=3 {
        let database = database()?;
        let faults = Arc::<NetworkFaults>::default();
        let store = store_behind_proxy(&database, &faults, has_fence)?;
        let (mut chat, begin) = Chat::begin(&key("t", "s"), generation(round), 3);
        // The number of attempts of the store.
        faults.late.store(3, Ordering::Relaxed);
        let sets = [set([begin, chat.append("u a", 2)])];
        let error = store.commit(&clock(1), &sets).unwrap_err();
        assert!(matches!(error, StoreError::Unavailable { .. }), "{error}");
        while faults.arrived.load(Ordering::Relaxed) < 3 {
            thread::sleep(Duration::from_millis(10));
        }
        let is_idle = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
                       AND state = 'active' AND pid <> pg_backend_pid()";
        // The server reads received bytes within a moment.
        let mut idle = 0;
        while idle < 20 {
            idle = if database.number(is_idle) == 0 {
                idle + 1
            } else {
                0
            };
            thread::sleep(Duration::from_millis(5));
        }
        ghosts += database.number("SELECT count(*) FROM memoird.turns");
    }
    Some(ghosts)
}

#[test]
fn late_commit_is_fenced_off_by_epoch() {
    if let Some(ghosts) = ghosts(true) {
        assert_eq!(ghosts, 0);
    }
}

/// The control: shows that the test above would detect a late write.
#[test]
fn late_commit_without_fence_is_written() {
    if let Some(ghosts) = ghosts(false) {
        assert_eq!(ghosts, 6);
    }
}

#[test]
fn terminated_backends_lose_and_duplicate_nothing() {
    let Some(database) = database() else { return };
    for seed in seeds(1) {
        println!("seed {seed}");
        let store = database.store();
        // Long enough to be found.
        database.run(
            "CREATE OR REPLACE FUNCTION public.linger() RETURNS trigger LANGUAGE plpgsql AS
                 $$ BEGIN PERFORM pg_sleep(0.01); RETURN NULL; END $$;
             CREATE OR REPLACE TRIGGER linger AFTER UPDATE OF number ON memoird.lanes FOR EACH ROW
                 EXECUTE FUNCTION public.linger()",
        );
        let is_over = AtomicBool::new(false);
        let (said, kills) = thread::scope(|scope| {
            let killer = scope.spawn(|| {
                let done = "SELECT sum(number)::int8 FROM memoird.lanes";
                let (mut kills, mut last, mut of_this) = (0, 0, 0);
                while !is_over.load(Ordering::Relaxed) {
                    // A commit is tried three times. Do not interrupt the last attempt.
                    if of_this > 1 {
                        of_this = if database.number(done) == last { 2 } else { 0 };
                        continue;
                    }
                    let sql = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                               WHERE datname = current_database() AND pid <> pg_backend_pid()
                                   AND query LIKE 'SELECT memoird.commit_batch%' AND state = 'active'";
                    let killed = database.number(sql);
                    if killed > 0 {
                        last = database.number(done);
                        (kills, of_this) = (kills + killed, of_this + killed);
                    }
                }
                kills
            });
            let mut said = BTreeMap::<SessionKey, BTreeSet<u64>>::new();
            let mut chats: Vec<Chat> = (0..8)
                .map(|number| begun(&store, &format!("{seed}-{number}"), seed * 100 + number))
                .collect();
            for at in 1..400 {
                let chat = &mut chats[at % 8];
                let before = chat.session.head().last_seq;
                let append = chat.append("u a", 5);
                match store.commit(&clock(1), &[set([append])]) {
                    Ok(answers) if answers[0].is_ok() => {
                        let seqs = before + 1..=before + 2;
                        said.entry(chat.key.clone()).or_default().extend(seqs);
                    }
                    _ => *chat = chat.reloaded(&store),
                }
            }
            is_over.store(true, Ordering::Relaxed);
            (said, killer.join().unwrap())
        });
        println!("{kills} backends were terminated");
        assert!(kills > 0);
        for (key, expected) in said {
            let found = seqs(&store, &key, None).unwrap();
            assert_eq!(found, expected.into_iter().collect::<Vec<_>>());
        }
    }
}

#[test]
fn read_on_closed_connection_is_retried() {
    let Some(database) = database() else { return };
    let store = database.store();
    let mut chat = begun(&store, "s", 1);
    must_write(&store, [chat.append("u a", 2)]);
    for _ in 0..20 {
        let ended = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                     WHERE datname = current_database() AND pid <> pg_backend_pid()";
        assert!(database.number(ended) > 0);
        assert_eq!(known(&store, &chat.key).unwrap().head, *chat.session.head());
        assert_eq!(seqs(&store, &chat.key, None), Some(vec![1, 2]));
    }
}

#[test]
fn lease_excludes_second_daemon_until_released() {
    let Some(database) = database() else { return };
    let options = || {
        let mut options = database.options();
        options.name = "the first one".to_owned();
        options.sharing = DatabaseUse::Exclusive;
        options
    };
    // Opens a store while the first one has the database. Releases the first one during the wait.
    let standby = |first: PgStore, meanwhile: &dyn Fn()| {
        let options = options();
        let mut waits_for = options.waits_for.subscribe();
        thread::scope(|scope| {
            let opening = scope.spawn(|| PgStore::open(options, RUNTIME.handle()));
            let told = RUNTIME.block_on(waits_for.wait_for(Option::is_some));
            assert_eq!(told.unwrap().as_deref(), Some("the first one"));
            meanwhile();
            first.release();
            opening.join().unwrap()
        })
    };
    let first = database.store_with(options());
    let second = standby(first, &|| ()).unwrap();
    // A schema that became too new in the meantime is rejected.
    let newer = "UPDATE memoird.schema_version SET version = version + 90, min_reader = 99";
    let error = standby(second, &|| database.run(newer)).unwrap_err();
    assert!(
        error.to_string().contains("Run the newer memoird"),
        "{error}"
    );
    database.run("UPDATE memoird.schema_version SET version = version - 90, min_reader = 1");
    let second = database.store_with(options());
    // As if this daemon had been paused for too long.
    database.run("UPDATE memoird.owner SET node = '00000000-0000-0000-0000-000000000000'");
    RUNTIME.block_on(second.lost());
}

#[test]
fn version_is_current_until_another_process_writes() {
    let Some(database) = database() else { return };
    let (one, other) = (database.store(), database.store());
    let mut chat = begun(&one, "s", 1);
    let names = [Generation::new(1, 1), Generation::new(77, 77)];
    let are_current = |store: &PgStore| {
        let revisions = store.current_revisions(&names).unwrap();
        revisions.iter().map(Option::is_some).collect::<Vec<_>>()
    };
    assert_eq!(are_current(&one), [true, false]);
    assert_eq!(are_current(&other), [false, false]);
    must_write(&one, [chat.append("u a", 2)]);
    assert_eq!(are_current(&one), [true, false]);
    let mut twin = chat.reloaded(&other);
    assert_eq!(are_current(&other), [true, false]);
    must_write(&other, [twin.append("u", 3)]);
    assert_eq!(are_current(&one), [false, false]);
    let chat = chat.reloaded(&one);
    assert_eq!(are_current(&one), [true, false]);
    must_write(&one, [chat.end(4)]);
    assert_eq!(are_current(&one), [false, false]);
}

#[test]
fn version_lost_in_failover_is_dropped_from_cache() {
    let Some(database) = database() else { return };
    let one = database.store();
    let names = [Generation::new(1, 1)];
    let is_current = |store: &PgStore| store.current_revisions(&names).unwrap()[0].is_some();
    let mut chat = begun(&one, "s", 1);
    must_write(&one, [chat.append("u a", 2)]);
    database.run("CREATE TABLE memoird.before AS TABLE memoird.generations");
    let before = chat.clone();
    must_write(&one, [chat.append("u", 3)]);
    database.run("DELETE FROM memoird.turns WHERE seq > 2");
    let columns = "revision, stamp, last_seq, newest_seq, last_access, turns, bytes, tokens, \
                   journal_bytes, kept";
    database.run(&format!(
        "UPDATE memoird.generations AS g SET ({columns}) = (SELECT {columns} FROM memoird.before AS b
             WHERE b.generation = g.generation)"
    ));
    assert!(!is_current(&one));
    let mut chat = before.reloaded(&one);
    assert!(is_current(&one));
    must_write(&one, [chat.append("a", 4)]);
    assert_eq!(seqs(&one, &chat.key, None), Some(vec![1, 2, 3]));
}

/// A set based on a refused one must not match another daemon's revision with the same number.
#[test]
fn change_based_on_rejected_one_never_matches_foreign_revision() {
    let Some(database) = database() else { return };
    let mut options = database.options();
    options.sharing = DatabaseUse::Cluster;
    let one = database.store_with(options);
    let other = database.store();
    let mut chat = begun(&one, "s", 1);
    must_write(&one, [chat.append("u a", 2)]);
    let mut stale = chat.clone();
    let mut twin = chat.reloaded(&other);
    must_write(&other, [twin.append("u", 3)]);
    // The newer version is read before, for example for another session in the same call.
    one.load(&chat.key, Default::default()).unwrap();
    let first = set([stale.append("u", 4)]);
    let second = set([stale.append("a", 5)]);
    let answers = write(&one, &[first, second]);
    assert!(answers.iter().all(Result::is_err), "{answers:?}");
    assert_eq!(seqs(&one, &chat.key, None), Some(vec![1, 2, 3]));
}

#[test]
fn live_sessions_are_listed_in_every_order() {
    let Some(database) = database() else { return };
    let store = database.store();
    for (place, name) in ["b1", "a1", "a2", "c"].into_iter().enumerate() {
        begun(&store, name, 1 + place as u64);
    }
    let tenant = key("t", "s").tenant;
    let ids = |query: &LiveQuery| -> Vec<String> {
        let page = store.live_page(query).unwrap();
        let id = |(key, _): (SessionKey, _)| key.session.as_str().to_owned();
        page.into_iter().map(id).collect()
    };
    let oldest = LiveQuery::oldest(&tenant, 10);
    assert_eq!(ids(&oldest), ["b1", "a1", "a2", "c"]);
    let newest = LiveQuery {
        order: SessionOrder::Newest,
        ..oldest.clone()
    };
    assert_eq!(ids(&newest), ["c", "a2", "a1", "b1"]);
    let by_id = LiveQuery {
        order: SessionOrder::Id,
        id_prefix: "a".into(),
        ..oldest.clone()
    };
    assert_eq!(ids(&by_id), ["a1", "a2"]);
    // In every order, the pages add up to the whole list.
    for order in [SessionOrder::Newest, SessionOrder::Oldest, SessionOrder::Id] {
        let whole = LiveQuery {
            order,
            ..oldest.clone()
        };
        let (mut after, mut found) = (None, Vec::new());
        loop {
            let query = LiveQuery {
                after: after.take(),
                max: 1,
                ..whole.clone()
            };
            let page = store.live_page(&query).unwrap();
            let Some((key, head)) = page.into_iter().next() else {
                break;
            };
            after = Some((head.last_access, key.session.clone()));
            found.push(key.session.as_str().to_owned());
        }
        assert_eq!(found, ids(&whole), "{order:?}");
    }
    let idle = LiveQuery {
        until: Steady(2),
        ..oldest
    };
    assert_eq!(ids(&idle).len(), 2);
    assert_eq!(store.live_counts().unwrap(), [(tenant, 4)]);
}

#[test]
fn one_member_leads_and_another_takes_over() {
    let Some(database) = database() else { return };
    let member = |name: &str| {
        let mut options = database.options();
        options.sharing = DatabaseUse::Cluster;
        options.name = name.to_owned();
        options
            .settings
            .send_replace(format!("of {name}").into_bytes());
        database.store_with(options)
    };
    let first = member("a");
    let leads = |store: &PgStore| {
        let mut leads = store.leads();
        RUNTIME.block_on(async move { leads.wait_for(|leads| *leads).await.map(|_| ()) })
    };
    leads(&first).unwrap();
    let second = member("b");
    assert!(!*second.leads().borrow());
    let membership = first.membership(Steady(0)).unwrap();
    let members: Vec<_> = membership
        .members
        .iter()
        .map(|member| {
            (
                &*member.name,
                member.leads,
                member.is_here,
                &*member.settings,
            )
        })
        .collect();
    let expected: [(_, _, _, &[u8]); 2] = [("a", true, true, b"of a"), ("b", false, true, b"of b")];
    assert_eq!(members, expected);
    assert!(membership.lease_until.is_some());
    // One shared timeline: a member that lags jumps to the most advanced one.
    assert_eq!(
        first.sync_clock(Steady(1_000_000)).unwrap(),
        Steady(1_000_000)
    );
    assert!(second.sync_clock(Steady(5)).unwrap() >= Steady(1_000_000));
    assert!(second.steady().unwrap() >= Some(Steady(1_000_000)));
    // The first offered secret wins.
    assert_eq!(first.secret("marks", b"one").unwrap(), b"one");
    assert_eq!(second.secret("marks", b"two").unwrap(), b"one");
    first.release();
    leads(&second).unwrap();
}

#[test]
fn members_exchange_subscriptions_and_events() {
    let Some(database) = database() else { return };
    let member = || {
        let mut options = database.options();
        options.sharing = DatabaseUse::Cluster;
        database.store_with(options)
    };
    let (first, second) = (member(), member());
    let tenant = TenantId::parse("acme").unwrap();
    let watching = |tenants: &[&TenantId]| EventSubscription {
        all: false,
        tenants: tenants.iter().copied().cloned().collect(),
    };
    let event = |body: &str| PostedEvent {
        tenant: tenant.clone(),
        age_ms: 60_000,
        body: body.as_bytes().to_vec(),
    };
    let told = |store: &PgStore, watched: EventSubscription, posted: &[&str]| {
        let posted = posted.iter().copied().map(event).collect();
        let exchange = EventExchange { watched, posted };
        store.exchange_events(exchange).unwrap()
    };
    let bodies = |answer: &ExchangedEvents| -> Vec<String> {
        let text = |event: &PostedEvent| String::from_utf8(event.body.clone()).unwrap();
        answer
            .received
            .iter()
            .map(|(_, event)| text(event))
            .collect()
    };
    // No watchers.
    assert!(
        told(&first, EventSubscription::default(), &[])
            .watched
            .is_empty()
    );
    // One daemon watches: the other one learns that, and posts its events.
    assert!(told(&first, watching(&[&tenant]), &[]).received.is_empty());
    let asked = told(&second, EventSubscription::default(), &[]);
    assert_eq!(asked.watched, watching(&[&tenant]));
    told(&second, EventSubscription::default(), &["one", "two"]);
    let answer = told(&first, watching(&[&tenant]), &["its own"]);
    assert_eq!(bodies(&answer), ["one", "two"]);
    let (node, received) = &answer.received[0];
    assert_eq!((*node, &received.tenant), (second.node(), &tenant));
    assert!((60_000..90_000).contains(&received.age_ms), "{received:?}");
    // Events are received once. A daemon that does not watch receives them later.
    assert!(told(&first, watching(&[&tenant]), &[]).received.is_empty());
    assert!(
        told(&second, EventSubscription::default(), &[])
            .received
            .is_empty()
    );
    let later = told(&second, watching(&[&tenant]), &[]);
    assert_eq!(bodies(&later), ["its own"]);
    // More than one read returns.
    let owned: Vec<String> = (0..1_500).map(|number| number.to_string()).collect();
    let many: Vec<&str> = owned.iter().map(String::as_str).collect();
    told(&first, EventSubscription::default(), &many);
    let some = told(&second, watching(&[]), &[]);
    assert!(some.received.is_empty(), "nothing is watched");
    let some = told(&second, watching(&[&tenant]), &[]);
    let rest = told(&second, watching(&[&tenant]), &[]);
    assert!(some.is_more && !rest.is_more);
    assert_eq!([bodies(&some), bodies(&rest)].concat(), many);
    // A member's watches end when it leaves.
    second.release();
    assert!(
        told(&first, EventSubscription::default(), &[])
            .watched
            .is_empty()
    );
}

#[test]
fn newer_schema_is_rejected_unchanged() {
    let Some(database) = database() else { return };
    drop(database.store());
    database.run("UPDATE memoird.schema_version SET version = 99, min_reader = 1");
    drop(database.store());
    database.run("UPDATE memoird.schema_version SET min_reader = 99");
    let error = PgStore::open(database.options(), RUNTIME.handle()).unwrap_err();
    assert!(matches!(error, StoreError::Database { .. }), "{error:?}");
    assert!(
        error.to_string().contains("Run the newer memoird"),
        "{error}"
    );
    assert_eq!(
        database.number("SELECT version::int8 FROM memoird.schema_version"),
        99
    );
}

/// A commit must see what others wrote while it waited for a lock.
#[test]
fn database_with_repeatable_read_default_is_rejected() {
    let Some(database) = database() else { return };
    database.run(&format!(
        "ALTER DATABASE {} SET default_transaction_isolation = 'repeatable read'",
        database.name()
    ));
    let refused = PgStore::open(database.options(), RUNTIME.handle())
        .unwrap_err()
        .to_string();
    assert!(
        refused.contains("default_transaction_isolation = 'read committed'"),
        "{refused}"
    );
    let schemas = "SELECT count(*) FROM pg_namespace WHERE nspname = 'memoird'";
    assert_eq!(database.number(schemas), 0);
}

#[test]
fn concurrent_opens_create_one_schema() {
    let Some(database) = database() else { return };
    thread::scope(|scope| {
        for number in 0..4 {
            let database = &database;
            scope.spawn(move || {
                let store = database.store();
                let change: Change = Chat::begin(
                    &key("t", &format!("s{number}")),
                    Generation::new(1, number),
                    1,
                )
                .1;
                must_write(&store, [change]);
            });
        }
    });
    assert_eq!(live_heads(&database.store()).len(), 4);
}

#[test]
fn unreachable_database_error_has_advice() {
    let Some(database) = database() else { return };
    let open = |words: &str| {
        let options = PgOptions::parse(words, None, None).unwrap();
        let error = PgStore::open(options, RUNTIME.handle());
        error.unwrap_err().to_string()
    };
    let none = open(&format!("{} dbname=nobodys", database.words));
    assert!(none.contains("create the database"), "{none}");
    let away = open("host=127.0.0.1 port=1 user=a dbname=b");
    assert!(away.contains("check that the server runs"), "{away}");
    for (url, problem) in [
        ("postgres://host", "names no database"),
        ("http://host/database", "is not a PostgreSQL URL"),
        ("postgres:///database", "names no host"),
    ] {
        let told = PgOptions::parse(url, None, None).unwrap_err();
        assert!(told.contains(problem), "{url}: {told}");
    }
}
