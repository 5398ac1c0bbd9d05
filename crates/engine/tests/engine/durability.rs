//! When calls return, the limits of the queue, and the state on disk after a close.

use std::sync::Arc;
use std::time::Duration;

use memoird_engine::{Blocking, Durability, Engine, EngineConfig, EngineError};
use memoird_store::{SqliteOptions, SqliteStore};
use tokio::task::JoinSet;
use tokio::time::{advance, sleep};

use crate::bot::{Bot, named};
use crate::kit::{TTL, World, config, poll_once, settle, soon, unswept};

const SECOND: Duration = Duration::from_secs(1);

fn interval(flush: Duration) -> EngineConfig {
    let mut config = unswept();
    config.sessions.session_ttl = 100 * flush;
    config.journal.durability = Durability::Interval;
    config.journal.flush_interval = flush;
    config
}

#[tokio::test(start_paused = true)]
async fn interval_append_returns_at_once_and_is_flushed_later() {
    let world = World::new(interval(SECOND));
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    let said = poll_once(&mut Box::pin(bot.say("a", "hello"))).await;
    assert!(said.is_some_and(|said| said.is_ok()));
    assert_eq!(bot.live("a").await.unwrap(), ["hello"]);
    assert_eq!((world.store.commits(), bot.stats().turns_appended), (0, 0));
    sleep(SECOND + Duration::from_millis(1)).await;
    assert_eq!((world.store.commits(), bot.stats().turns_appended), (1, 1));
    assert_eq!(world.store.record().live.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn interval_journal_read_flushes_first() {
    let world = World::new(interval(1_000 * SECOND));
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    bot.say("a", "hello").await.unwrap();
    assert_eq!(soon(bot.journal("a", None)).await.unwrap(), ["hello"]);
    bot.append("b", named("key", &["x"])).await.unwrap();
    bot.end("b").await.unwrap();
    assert!(
        soon(bot.append("b", named("key", &["x"])))
            .await
            .unwrap()
            .duplicate
    );
}

#[tokio::test(start_paused = true)]
async fn interval_flush_writes_everything_pending() {
    let mut config = interval(SECOND);
    config.journal.batch_sets = 10;
    let world = World::new(config);
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    for text in 0..200 {
        bot.say("a", &text.to_string()).await.unwrap();
    }
    sleep(SECOND + Duration::from_millis(1)).await;
    assert_eq!(
        world
            .store
            .record()
            .lives
            .values()
            .next()
            .unwrap()
            .texts
            .len(),
        200
    );
}

#[tokio::test(start_paused = true)]
async fn interval_many_small_changes_do_not_wait_for_queue_space() {
    let mut config = interval(1_000 * SECOND);
    config.journal.queue_bytes = 16 << 10;
    let world = World::new(config);
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    let before = tokio::time::timeout(SECOND, async {
        for text in 0..200 {
            bot.say("a", &text.to_string()).await.unwrap();
        }
    });
    assert!(
        before.await.is_ok(),
        "the disk is idle and could have been written to"
    );
}

fn is_full<T>(answer: &Result<T, EngineError>) -> bool {
    matches!(answer, Err(EngineError::JournalFull))
}

#[tokio::test(start_paused = true)]
async fn interval_acknowledged_changes_are_written_once_disk_has_room() {
    let world = World::new(interval(SECOND));
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    for id in ["a", "ended"] {
        bot.say(id, "one").await.unwrap();
    }
    sleep(2 * SECOND).await;
    world.store.fail_all_commits();
    bot.say("a", "two").await.unwrap();
    bot.end("ended").await.unwrap();
    bot.append("new", named("key", &["one"])).await.unwrap();
    sleep(2 * SECOND).await;

    assert!(is_full(&bot.say("a", "refused").await));
    assert!(is_full(&bot.say("another", "refused").await));
    assert!(is_full(&bot.patch("a", "{}", None).await));
    assert!(is_full(&bot.end("a").await));
    assert_eq!(bot.live("a").await.unwrap(), ["one", "two"]);
    assert_eq!(bot.live("new").await.unwrap(), ["one"]);
    assert!(bot.view("ended").await.is_err());
    assert!(is_full(&soon(bot.journal("a", None)).await));
    assert_eq!(bot.stats().ended, 0, "an end is announced once it is true");
    sleep(60 * SECOND).await;
    let commits = world.store.commits();
    assert!(commits < 40, "{commits} commits were tried");

    world.store.forgive();
    sleep(6 * SECOND).await;
    assert_eq!(bot.journal("a", None).await.unwrap(), ["one", "two"]);
    assert_eq!(bot.stats().ended, 1);
    bot.say("a", "three").await.unwrap();
    assert!(
        bot.append("new", named("key", &["one"]))
            .await
            .unwrap()
            .duplicate
    );
    bot.recount().await;
    soon(engine.close()).await;
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    assert_eq!(bot.live("a").await.unwrap(), ["one", "two", "three"]);
    assert_eq!(bot.live("new").await.unwrap(), ["one"]);
}

#[tokio::test(start_paused = true)]
async fn interval_write_is_accepted_as_soon_as_disk_has_room() {
    let world = World::new(interval(SECOND));
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    world.store.fail_all_commits();
    bot.say("a", "one").await.unwrap();
    // The pauses between two attempts have grown.
    sleep(60 * SECOND).await;
    assert!(is_full(&bot.say("a", "refused").await));
    world.store.forgive();
    let before = world.machine_now();
    bot.say("a", "two").await.unwrap();
    let waited_ms = world.machine_now().since(before);
    assert!(waited_ms < 500, "{waited_ms} ms");
    assert_eq!(bot.journal("a", None).await.unwrap(), ["one", "two"]);
}

#[tokio::test(start_paused = true)]
async fn interval_flood_of_writes_causes_few_commits_while_disk_is_full() {
    let world = World::new(interval(SECOND));
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    world.store.fail_all_commits();
    bot.say("a", "one").await.unwrap();
    sleep(60 * SECOND).await;
    let (commits, before) = (world.store.commits(), world.machine_now());
    for _ in 0..10 {
        let mut writers = JoinSet::new();
        for number in 0..100 {
            let bot = bot.clone();
            writers.spawn(async move { bot.say(&format!("s{number}"), "refused").await });
        }
        for refused in writers.join_all().await {
            assert!(is_full(&refused));
        }
    }
    let (tries, ms) = (
        world.store.commits() - commits,
        world.machine_now().since(before),
    );
    assert!(tries <= 20 && ms <= 5_000, "{tries} commits in {ms} ms");
}

#[tokio::test(start_paused = true)]
async fn interval_journal_read_retries_commit_at_once() {
    let world = World::new(interval(1_000 * SECOND));
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    bot.say("a", "hello").await.unwrap();
    world.store.fail_commits(8);
    for _ in 0..8 {
        assert!(is_full(&bot.journal("a", None).await));
    }
    let before = world.machine_now();
    assert_eq!(bot.journal("a", None).await.unwrap(), ["hello"]);
    assert_eq!(world.machine_now(), before, "without a pause");
}

#[tokio::test(start_paused = true)]
async fn interval_close_does_not_wait_for_full_disk() {
    let world = World::new(interval(SECOND));
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    bot.say("a", "hello").await.unwrap();
    world.store.fail_all_commits();
    let before = world.machine_now();
    soon(engine.close()).await;
    let waited_ms = world.machine_now().since(before);
    assert!(waited_ms < 5_000, "{waited_ms} ms");
    assert!(matches!(
        soon(bot.say("a", "late")).await,
        Err(EngineError::Stopping | EngineError::JournalFull)
    ));
}

#[tokio::test(start_paused = true)]
async fn close_writes_everything_pending() {
    let mut config = interval(1_000 * SECOND);
    config.journal.batch_sets = 7;
    let world = World::new(config);
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    for id in 0..50 {
        bot.say(&id.to_string(), "hello").await.unwrap();
    }
    assert_eq!(world.store.commits(), 0);
    soon(engine.close()).await;
    assert_eq!(world.store.record().live.len(), 50);
    for durability in [Durability::Sync, Durability::Interval] {
        let mut world = world.clone();
        world.config.journal.durability = durability;
        let engine = world.open().await;
        soon(engine.close()).await;
        let late = soon(Bot::acme(&engine).say("late", "hello")).await;
        assert!(matches!(late, Err(EngineError::Stopping)), "{late:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn append_in_flight_at_close_is_answered() {
    let world = World::new(unswept());
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    let mut append = Box::pin(bot.say("a", "hello"));
    assert!(poll_once(&mut append).await.is_none());
    engine.close().await;
    append.await.unwrap();
    assert_eq!(world.store.record().live.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn call_without_queue_space_is_refused_after_queue_wait() {
    let mut config = unswept();
    config.journal.queue_bytes = 2 << 10;
    let queue_wait = config.journal.queue_wait;
    let world = World::with_pool(config);
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    world.store.hold_commits();
    let mut calls = JoinSet::new();
    for id in ["a", "b"] {
        let bot = bot.clone();
        calls.spawn(async move { bot.say(id, "hello").await });
    }
    world.store.commit_begun(1).await;
    let (mut late, mut read) = (Box::pin(bot.say("c", "hello")), Box::pin(bot.list()));
    assert!(poll_once(&mut late).await.is_none());
    assert!(
        poll_once(&mut read).await.is_none(),
        "a read needs no room; it waits for the disk"
    );
    advance(queue_wait - Duration::from_millis(1)).await;
    assert!(poll_once(&mut late).await.is_none());
    advance(Duration::from_millis(2)).await;
    assert!(matches!(
        poll_once(&mut late).await,
        Some(Err(EngineError::JournalBusy))
    ));
    assert!(poll_once(&mut Box::pin(bot.end("a"))).await.is_none());

    world.store.let_commits_go();
    while let Some(done) = calls.join_next().await {
        done.unwrap().unwrap();
    }
    soon(bot.say("c", "hello")).await.unwrap();
    assert_eq!(bot.list().await.len(), 3);
    assert_eq!(read.await.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn patch_reserves_queue_space_of_whole_state() {
    let mut config = interval(1_000 * SECOND);
    config.journal.queue_bytes = 256 << 10;
    let world = World {
        blocking: Blocking::Pool,
        ..World::new(config)
    };
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    bot.say("a", "hello").await.unwrap();
    let large = format!(r#"{{"a":"{}"}}"#, "x".repeat(60 << 10));
    bot.patch("a", &large, None).await.unwrap();
    bot.journal("a", None).await.unwrap();
    world.store.hold_commits();
    let mut patches = 0;
    while poll_once(&mut Box::pin(bot.patch("a", r#"{"b":1}"#, None)))
        .await
        .is_some()
    {
        patches += 1;
        assert!(
            patches < 10,
            "each of them holds 60 KiB, the queue has 256 KiB"
        );
        // A state that the committer has taken still counts as queued until it is written.
        settle_with_pool().await;
    }
    world.store.let_commits_go();
}

/// Like [`settle`], for when a blocked thread keeps the clock from advancing.
async fn settle_with_pool() {
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn durability_off_supports_everything_but_the_journal() {
    let mut config = config();
    config.journal.durability = Durability::Off;
    config.sessions.max_sessions = 3;
    config.tenants[0].limits.max_sessions = Some(2);
    let world = World::new(config.clone());
    let engine = Engine::open(config, None, world.machine.clone(), Blocking::Inline)
        .await
        .unwrap();
    let bot = Bot::acme(&engine);
    for id in ["a", "b", "c"] {
        let said = poll_once(&mut Box::pin(bot.say(id, "hello"))).await;
        assert!(said.unwrap().is_ok());
    }
    assert_eq!(bot.list().await, ["c", "b"]);
    assert_eq!(bot.live("b").await.unwrap(), ["hello"]);
    assert!(matches!(
        bot.journal("b", None).await,
        Err(EngineError::JournalOff)
    ));
    assert_eq!(bot.patch("b", r#"{"a":1}"#, None).await.unwrap().version, 1);
    bot.reset("b").await.unwrap();
    bot.end("c").await.unwrap();
    assert!(bot.view("c").await.is_err());
    bot.recount().await;
    sleep(TTL * 3 / 2).await;
    settle().await;
    let stats = bot.stats();
    assert_eq!(
        (
            stats.sessions_created,
            stats.evicted,
            stats.ended,
            stats.expired
        ),
        (4, 1, 2, 1)
    );
    assert_eq!(
        (stats.sessions_live, stats.turns_live, stats.bytes_live),
        (0, 0, 0)
    );
    assert_eq!(engine.stats().commits, 0);
    engine.close().await;
}

#[tokio::test(start_paused = true)]
async fn idle_daemon_returns_freed_space_to_disk() {
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(SqliteStore::open(dir.path(), SqliteOptions::default()).unwrap());
    let mut config = unswept();
    config.journal.retention = SECOND;
    let machine = World::new(config.clone()).machine;
    let engine = Engine::open(config, Some(store), machine, Blocking::Inline)
        .await
        .unwrap();
    let bot = Bot::acme(&engine);
    let text = "x".repeat(500_000);
    for _ in 0..40 {
        bot.say("a", &text).await.unwrap();
    }
    bot.end("a").await.unwrap();
    // Three intervals of the pruner: the first one still sees the commits.
    sleep(185 * SECOND).await;
    engine.close().await;
    drop((bot, engine));
    let size = std::fs::metadata(dir.path().join("journal.db")).unwrap();
    assert!(size.len() < 2 << 20, "{} bytes", size.len());
}
