//! Idempotency keys: repeated appends take effect once. Also preconditions of appends.

use std::time::Duration;

use memoird_core::CoreError;
use memoird_core::ids::Generation;
use memoird_core::session::AppendCommand;
use memoird_engine::{Durability, EngineConfig, EngineError, JournalConfig};
use tokio::time::sleep;

use crate::bot::{Bot, named, saying};
use crate::kit::{TTL, World, poll_once, settle, soon, unswept};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Sessions that outlive their idempotency keys.
fn long_lived(durability: Durability) -> EngineConfig {
    let mut config = unswept();
    config.sessions.session_ttl = DAY * 10;
    config.journal.durability = durability;
    config
}

fn is_reuse<T>(answer: &Result<T, EngineError>) -> bool {
    matches!(
        answer,
        Err(EngineError::Core(CoreError::IdempotencyKeyReused))
    )
}

#[tokio::test(start_paused = true)]
async fn duplicate_append_returns_first_result_and_adds_nothing() {
    for durability in [Durability::Sync, Durability::Interval, Durability::Off] {
        let engine = World::new(long_lived(durability)).open().await;
        let bot = Bot::acme(&engine);
        for place in ["first", "later"] {
            let first = bot.append("a", named(place, &["x", "y"])).await.unwrap();
            bot.say("a", "between").await.unwrap();
            let again = bot.append("a", named(place, &["x", "y"])).await.unwrap();
            assert!(again.duplicate && !first.duplicate);
            assert_eq!(again.record, first.record);
            assert_eq!(
                again.session.unwrap().head.last_seq,
                first.record.last_seq + 1
            );
            assert!(is_reuse(&bot.append("a", named(place, &["other"])).await));
        }
        assert_eq!(
            bot.live("a").await.unwrap(),
            ["x", "y", "between", "x", "y", "between"]
        );
        sleep(JournalConfig::default().flush_interval * 2).await;
        assert_eq!(bot.stats().turns_appended, 6);
        bot.recount().await;
    }
}

#[tokio::test(start_paused = true)]
async fn idempotency_key_is_known_for_a_day_with_every_durability() {
    for durability in [Durability::Sync, Durability::Interval, Durability::Off] {
        let engine = World::new(long_lived(durability)).open().await;
        let bot = Bot::acme(&engine);
        bot.append("a", named("key", &["x"])).await.unwrap();
        sleep(DAY - Duration::from_millis(1)).await;
        assert!(
            bot.append("a", named("key", &["x"]))
                .await
                .unwrap()
                .duplicate
        );
        sleep(Duration::from_millis(1)).await;
        assert!(
            !bot.append("a", named("key", &["y"]))
                .await
                .unwrap()
                .duplicate
        );
        assert!(
            bot.append("a", named("key", &["y"]))
                .await
                .unwrap()
                .duplicate
        );
        assert_eq!(bot.live("a").await.unwrap(), ["x", "y"]);
    }
}

#[tokio::test(start_paused = true)]
async fn idempotency_key_outlives_its_generation() {
    for durability in [Durability::Sync, Durability::Interval, Durability::Off] {
        let mut config = unswept();
        config.journal.durability = durability;
        let engine = World::new(config).open().await;
        let bot = Bot::acme(&engine);
        for id in [
            "ended",
            "expired",
            "reset",
            "started anew",
            "used by another key",
        ] {
            bot.append(id, named("key", &["x"])).await.unwrap();
        }
        sleep(TTL / 2).await;
        for id in ["ended", "started anew", "used by another key"] {
            bot.end(id).await.unwrap();
        }
        bot.reset("reset").await.unwrap();
        bot.say("started anew", "fresh").await.unwrap();
        bot.append("used by another key", named("other", &["fresh"]))
            .await
            .unwrap();
        sleep(TTL / 2).await;

        let live = [
            ("ended", 0),
            ("expired", 0),
            ("reset", 0),
            ("started anew", 1),
        ];
        for (id, turns) in live.into_iter().chain([("used by another key", 1)]) {
            let again = bot.append(id, named("key", &["x"])).await.unwrap();
            assert!(again.duplicate, "{id} with {durability:?}");
            assert!(
                is_reuse(&bot.append(id, named("key", &["y"])).await),
                "{id}"
            );
            assert_eq!(bot.live(id).await.unwrap_or_default().len(), turns, "{id}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn idempotency_key_is_scoped_to_session_and_tenant() {
    let mut config = unswept();
    config.tenants.push(crate::kit::capped("other", 0));
    let engine = World::new(config).open().await;
    let (bot, other) = (Bot::acme(&engine), Bot::new(&engine, "other"));
    for (bot, id) in [(&bot, "a"), (&bot, "b"), (&other, "a")] {
        assert!(
            !bot.append(id, named("key", &["x"]))
                .await
                .unwrap()
                .duplicate
        );
    }
}

#[tokio::test(start_paused = true)]
async fn oldest_idempotency_keys_are_evicted_first() {
    let mut config = unswept();
    config.limits.idempotency_keys = 3;
    let engine = World::new(config).open().await;
    let bot = Bot::acme(&engine);
    for name in ["1", "2", "3", "4"] {
        bot.append("a", named(name, &[name])).await.unwrap();
    }
    for (name, known) in [("2", true), ("4", true), ("1", false)] {
        let again = bot.append("a", named(name, &[name])).await.unwrap();
        assert_eq!(again.duplicate, known, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn at_most_1024_idempotency_keys_are_restored_after_restart() {
    let mut config = unswept();
    config.limits.max_history_turns = 5;
    let world = World::new(config);
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    for key in 0..1_030 {
        bot.append("a", named(&format!("{key:04}"), &["x"]))
            .await
            .unwrap();
    }
    engine.close().await;
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    for (key, known) in [(1_029, true), (6, true), (5, false), (0, false)] {
        let again = bot
            .append("a", named(&format!("{key:04}"), &["x"]))
            .await
            .unwrap();
        assert_eq!(again.duplicate, known, "{key}");
    }
}

#[tokio::test(start_paused = true)]
async fn append_with_stale_precondition_is_refused_whole() {
    let engine = World::new(unswept()).open().await;
    let bot = Bot::acme(&engine);
    let seq = |expected| AppendCommand {
        expected_seq: Some(expected),
        ..saying(&["x"])
    };
    let life = |expected| AppendCommand {
        expected_generation: Some(expected),
        ..saying(&["x"])
    };
    let nobody = Generation::new(1, 1);

    // Without a live session there is no generation, and the newest seq is 0.
    let refused = bot.append("a", life(nobody)).await;
    let stale = CoreError::StaleGeneration {
        expected: nobody,
        actual: None,
    };
    assert!(matches!(refused, Err(EngineError::Core(error)) if error == stale));
    let refused = bot.append("a", seq(1)).await;
    let stale = CoreError::StaleSeq {
        expected: 1,
        actual: 0,
    };
    assert!(matches!(refused, Err(EngineError::Core(error)) if error == stale));
    assert!(bot.list().await.is_empty());
    assert_eq!(bot.stats().sessions_created, 0);

    let first = bot.append("a", seq(0)).await.unwrap().record;
    bot.append(
        "a",
        AppendCommand {
            expected_seq: Some(1),
            ..life(first.generation)
        },
    )
    .await
    .unwrap();
    for bad in [seq(1), life(nobody)] {
        assert!(matches!(
            bot.append("a", bad).await,
            Err(EngineError::Core(_))
        ));
    }
    assert_eq!(bot.live("a").await.unwrap().len(), 2);

    // An expired session is not live.
    sleep(TTL).await;
    assert!(matches!(
        bot.append("a", life(first.generation)).await,
        Err(EngineError::Core(_))
    ));
    assert!(matches!(
        bot.append("a", seq(2)).await,
        Err(EngineError::Core(_))
    ));
    assert!(bot.append("a", seq(0)).await.is_ok());
    bot.recount().await;
}

#[tokio::test(start_paused = true)]
async fn duplicate_is_detected_before_precondition_check() {
    let engine = World::new(unswept()).open().await;
    let bot = Bot::acme(&engine);
    let command = AppendCommand {
        expected_seq: Some(0),
        ..named("key", &["x"])
    };
    bot.append("a", command.clone()).await.unwrap();
    bot.say("a", "y").await.unwrap();
    assert!(bot.append("a", command).await.unwrap().duplicate);
}

#[tokio::test(start_paused = true)]
async fn duplicate_is_answered_while_commits_fail() {
    let world = World::new(long_lived(Durability::Sync));
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    let first = bot.append("a", named("key", &["x"])).await.unwrap();
    world.store.fail_commits(1_000_000);
    assert!(bot.say("a", "lost").await.is_err());
    let commits = world.store.commits();
    for _ in 0..3 {
        let again = bot.append("a", named("key", &["x"])).await.unwrap();
        assert_eq!((again.duplicate, again.record), (true, first.record));
        assert_eq!(bot.stats().turns_live, 1);
    }
    assert_eq!(
        (world.store.commits(), engine.stats().commit_failures),
        (commits, 1)
    );
    assert!(is_reuse(&bot.append("a", named("key", &["y"])).await));
    bot.recount().await;
}

/// The original may still be in flight.
///
/// Its duplicate waits, and is applied itself if the original fails.
#[tokio::test(start_paused = true)]
async fn duplicate_of_uncommitted_append_waits_for_its_commit() {
    for fails in [false, true] {
        let world = World::new(long_lived(Durability::Sync));
        let engine = world.open().await;
        let bot = Bot::acme(&engine);
        bot.append("a", named("before", &["x"])).await.unwrap();
        world.store.fail_commits(1 + usize::from(fails));
        assert!(bot.say("b", "lost").await.is_err());
        let mut first = Box::pin(bot.append("a", named("key", &["y"])));
        assert!(poll_once(&mut first).await.is_none());
        let mut again = Box::pin(bot.append("a", named("key", &["y"])));
        assert!(
            poll_once(&mut again).await.is_none(),
            "it waits for the first one"
        );
        assert_eq!(soon(first).await.is_err(), fails);
        assert_eq!(soon(again).await.unwrap().duplicate, !fails);
        assert_eq!(bot.live("a").await.unwrap(), ["x", "y"]);
        assert_eq!(bot.journal("a", None).await.unwrap(), ["x", "y"]);
        bot.recount().await;
    }
}

#[tokio::test(start_paused = true)]
async fn keyed_append_reads_journal_only_if_keys_may_exist() {
    let world = World::new(unswept());
    let engine = world.open().await;
    settle().await;
    let bot = Bot::acme(&engine);
    for id in ["a", "b", "c"] {
        bot.append(id, named("key", &["x"])).await.unwrap();
        bot.end(id).await.unwrap();
    }
    bot.say("without", "hello").await.unwrap();
    bot.append("without", named("key", &["x"])).await.unwrap();
    assert_eq!(world.store.key_reads(), 0);
    assert!(
        bot.append("a", named("key", &["x"]))
            .await
            .unwrap()
            .duplicate
    );
    assert_eq!(world.store.key_reads(), 1);

    engine.close().await;
    let engine = world.open().await;
    settle().await;
    let bot = Bot::acme(&engine);
    assert!(
        bot.append("b", named("key", &["x"]))
            .await
            .unwrap()
            .duplicate
    );
    assert_eq!(world.store.key_reads(), 2);
    bot.append("new", named("key", &["x"])).await.unwrap();
    assert_eq!(world.store.key_reads(), 2);
}
