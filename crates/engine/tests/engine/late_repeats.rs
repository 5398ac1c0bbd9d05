//! Ends, resets and updates of turns that are repeated, or arrive late, when the session has moved on.

use std::time::Duration;

use memoird_core::CoreError;
use memoird_core::ids::Generation;
use memoird_engine::{Durability, EndCommand, EndOutcome, EngineError, TurnRef};

use crate::bot::{Bot, named, text_of};
use crate::cluster::Daemons;
use crate::kit::{World, unswept};
use tokio::time::sleep;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

fn keyed(name: &str) -> EndCommand {
    EndCommand {
        expected_generation: None,
        idempotency: named(name, &["end"]).idempotency,
    }
}

fn world(durability: Durability) -> World {
    let mut config = unswept();
    config.sessions.session_ttl = DAY * 10;
    config.journal.durability = durability;
    World::new(config)
}

/// Restarts the daemon, unless that ends all sessions.
async fn restarted(world: &World, bot: Bot) -> Bot {
    if world.config.journal.durability == Durability::Off {
        return bot;
    }
    bot.engine.close().await;
    Bot::acme(&world.open().await)
}

fn is_duplicate(outcome: &EndOutcome, ended: Generation) -> bool {
    outcome.duplicate && outcome.ended_generation == ended
}

fn is_reuse<T>(answer: &Result<T, EngineError>) -> bool {
    matches!(
        answer,
        Err(EngineError::Core(CoreError::IdempotencyKeyReused))
    )
}

#[tokio::test(start_paused = true)]
async fn repeated_end_changes_nothing() {
    for durability in [Durability::Sync, Durability::Interval, Durability::Off] {
        let world = world(durability);
        let mut bot = Bot::acme(&world.open().await);
        bot.append("a", named("1", &["old"])).await.unwrap();
        // The session is unloaded.
        bot = restarted(&world, bot).await;
        let first = bot.end_by("a", keyed("k")).await.unwrap();
        assert!(!first.duplicate && first.session.is_some());
        let ended = first.ended_generation;
        for _ in 0..2 {
            let again = bot.end_by("a", keyed("k")).await.unwrap();
            assert!(is_duplicate(&again, ended) && again.session.is_none());
            bot = restarted(&world, bot).await;
        }
        let absent = bot.end_by("a", keyed("other")).await.unwrap_err();
        assert!(matches!(absent, EngineError::SessionNotFound { .. }));
        // The new generation starts without its keys in memory.
        bot.say("a", "new").await.unwrap();
        for _ in 0..2 {
            let again = bot.end_by("a", keyed("k")).await.unwrap();
            assert!(is_duplicate(&again, ended), "{durability:?}");
            let live = bot.reset_by("a", false, keyed("k")).await.unwrap();
            assert!(is_duplicate(&live, ended) && live.session.is_some());
            assert_eq!(bot.live("a").await.unwrap(), ["new"]);
            bot = restarted(&world, bot).await;
        }
        let reused = EndCommand {
            idempotency: named("k", &["other content"]).idempotency,
            ..EndCommand::default()
        };
        assert!(is_reuse(&bot.end_by("a", reused).await));
        assert!(is_reuse(&bot.append("a", named("k", &["x"])).await));
        assert_eq!(bot.live("a").await.unwrap(), ["new"]);
        sleep(DAY).await;
        let later = bot.end_by("a", keyed("k")).await.unwrap();
        assert!(!later.duplicate, "it has expired");
        bot.recount().await;
    }
}

#[tokio::test(start_paused = true)]
async fn repeated_reset_changes_nothing() {
    for durability in [Durability::Sync, Durability::Interval, Durability::Off] {
        let world = world(durability);
        let mut bot = Bot::acme(&world.open().await);
        bot.append("a", named("1", &["old"])).await.unwrap();
        bot = restarted(&world, bot).await;
        let first = bot.reset_by("a", false, keyed("k")).await.unwrap();
        assert!(!first.duplicate);
        let ended = first.ended_generation;
        let started = first.session.unwrap().head.generation;
        bot.say("a", "new").await.unwrap();
        for _ in 0..2 {
            let again = bot.reset_by("a", false, keyed("k")).await.unwrap();
            assert!(is_duplicate(&again, ended), "{durability:?}");
            assert_eq!(again.session.unwrap().head.generation, started);
            assert_eq!(bot.live("a").await.unwrap(), ["new"]);
            bot = restarted(&world, bot).await;
        }
        bot.end("a").await.unwrap();
        let again = bot.reset_by("a", false, keyed("k")).await.unwrap();
        assert!(is_duplicate(&again, ended) && again.session.is_none());
        let absent = bot.reset_by("a", false, keyed("other")).await.unwrap_err();
        assert!(matches!(absent, EngineError::SessionNotFound { .. }));
        bot.recount().await;
    }
}

#[tokio::test(start_paused = true)]
async fn repeated_update_keeps_the_newer_edit() {
    for durability in [Durability::Sync, Durability::Interval, Durability::Off] {
        let world = world(durability);
        let mut bot = Bot::acme(&world.open().await);
        bot.append("a", named("1", &["x", "y"])).await.unwrap();
        let (seq, edit) = (|| TurnRef::Seq(2), named("edit", &["first"]).idempotency);
        let first = bot.update_by("a", seq(), "first", edit).await.unwrap();
        assert!(!first.duplicate);
        bot.update_by("a", seq(), "second", None).await.unwrap();
        for _ in 0..2 {
            let again = bot.update_by("a", seq(), "first", edit).await.unwrap();
            assert!(again.duplicate, "{durability:?}");
            assert_eq!(text_of(&again.content.unwrap()), "second");
            assert!(again.session.is_some());
            assert_eq!(bot.live("a").await.unwrap(), ["x", "second"]);
            // The turn has no client id, so only the key can be found.
            let by_id = TurnRef::ClientId("gone".into());
            assert!(
                bot.update_by("a", by_id, "first", edit)
                    .await
                    .unwrap()
                    .duplicate
            );
            bot = restarted(&world, bot).await;
        }
        let reused = named("edit", &["other"]).idempotency;
        assert!(is_reuse(&bot.update_by("a", seq(), "other", reused).await));
        bot.end("a").await.unwrap();
        let again = bot.update_by("a", seq(), "first", edit).await.unwrap();
        assert!(again.duplicate && again.session.is_none());
        assert_eq!(again.content.is_some(), durability != Durability::Off);
        bot.append("a", named("2", &["p", "q"])).await.unwrap();
        assert!(
            bot.update_by("a", seq(), "first", edit)
                .await
                .unwrap()
                .duplicate
        );
        assert_eq!(bot.live("a").await.unwrap(), ["p", "q"]);
        bot.recount().await;
    }
}

#[tokio::test(start_paused = true)]
async fn end_and_reset_with_stale_generation_are_refused() {
    let bot = Bot::acme(&World::new(unswept()).open().await);
    bot.say("a", "old").await.unwrap();
    let (view, old) = bot.reset("a").await.unwrap();
    let stale = EndCommand {
        expected_generation: Some(old),
        ..keyed("k")
    };
    let actual = Some(view.head.generation);
    for refused in [
        bot.end_by("a", stale).await.unwrap_err(),
        bot.reset_by("a", false, stale).await.unwrap_err(),
    ] {
        let expected = CoreError::StaleGeneration {
            expected: old,
            actual,
        };
        assert!(matches!(refused, EngineError::Core(error) if error == expected));
    }
    let current = EndCommand {
        expected_generation: actual,
        ..keyed("k")
    };
    assert!(!bot.end_by("a", current).await.unwrap().duplicate);
    assert!(bot.end_by("a", current).await.unwrap().duplicate);
}

#[tokio::test(start_paused = true)]
async fn end_that_was_not_written_uses_no_key() {
    let world = world(Durability::Sync);
    let bot = Bot::acme(&world.open().await);
    bot.append("a", named("1", &["x"])).await.unwrap();
    world.store.fail_commits(1);
    let failed = bot.end_by("a", keyed("k")).await.unwrap_err();
    assert!(matches!(failed, EngineError::JournalFull));
    assert_eq!(bot.live("a").await.unwrap(), ["x"]);
    assert!(!bot.end_by("a", keyed("k")).await.unwrap().duplicate);
}

/// The call is repeated at the second daemon, and the original arrives at the first one later.
#[tokio::test(start_paused = true)]
async fn late_original_at_another_daemon_changes_nothing() {
    let daemons = Daemons::open_in(&world(Durability::Sync), 2).await;
    let [a, b] = &daemons.bots[..] else {
        panic!("two were asked for")
    };
    // The first daemon knows the old generation, no generation, or the new one.
    for knows in ["old", "none", "new"] {
        for way in ["end", "reset", "update"] {
            let session = format!("{way} {knows}");
            let start = if knows == "none" { b } else { a };
            start.append(&session, named("1", &["x"])).await.unwrap();
            let edit = named("k", &["edited"]).idempotency;
            let call = async |bot: &Bot| match way {
                "end" => bot.end_by(&session, keyed("k")).await.unwrap().duplicate,
                "reset" => {
                    let reset = bot.reset_by(&session, false, keyed("k")).await;
                    reset.unwrap().duplicate
                }
                _ => {
                    let update = bot.update_by(&session, TurnRef::Seq(1), "edited", edit);
                    update.await.unwrap().duplicate
                }
            };
            assert!(!call(b).await);
            if way == "update" {
                b.end(&session).await.unwrap();
            }
            let next = if knows == "new" { a } else { b };
            next.say(&session, "new").await.unwrap();
            assert!(call(a).await, "{session}");
            for bot in [a, b] {
                assert_eq!(bot.live(&session).await.unwrap(), ["new"], "{session}");
            }
            b.end(&session).await.unwrap();
            assert!(call(a).await && call(b).await, "{session}");
        }
    }
}
