//! Requesting a window is a use: it prolongs the session, also across restarts, with few writes.

use std::time::Duration;

use memoird_core::time::Steady;
use memoird_engine::{ContextRequest, EngineConfig};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::{TAIL, asking, long, one_model, peeking};
use crate::bot::{Bot, saying};
use crate::kit::{ACME, Dice, TTL, World, capped, poll_once, settle, soon};
use crate::seeds::seeds;

const MS: Duration = Duration::from_millis(1);
/// Maximum delay of an expiry after a restart.
const LATE: Duration = Duration::from_millis(60_000 / 64);

#[tokio::test(start_paused = true)]
async fn window_moves_session_to_back_of_lru_list() {
    let world = World::new(EngineConfig {
        tenants: vec![capped(ACME, 2)],
        ..one_model()
    });
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    for id in ["a", "b"] {
        settle().await;
        bot.say(id, "hello").await.unwrap();
    }
    settle().await;
    bot.context("b", peeking()).await.unwrap();
    bot.window("a").await.unwrap();
    settle().await;
    assert_eq!(bot.list().await, ["a", "b"]);
    bot.say("c", "hello").await.unwrap();
    assert_eq!(bot.list().await, ["c", "a"]);
}

/// Windows at random moments, and a daemon killed at random moments.
///
/// The kill may come before a submitted use is written.
#[tokio::test(start_paused = true)]
async fn restart_at_random_moments_keeps_expiry_accurate() {
    for seed in seeds(60) {
        println!("seed {seed}");
        let mut dice = Dice(seed);
        let world = World::new(one_model());
        let mut engine = world.open().await;
        Bot::acme(&engine).say("a", "hello").await.unwrap();
        let mut used = world.machine_now();
        for _ in 0..1 + dice.below(12) {
            let most_ms = *dice.one_of(&[3, 900, 59_000]);
            sleep(Duration::from_millis(dice.below(most_ms))).await;
            let bot = Bot::acme(&engine);
            used = world.machine_now();
            match dice.below(4) {
                0 => drop(bot.say("a", "more").await.unwrap()),
                1 => drop(bot.patch("a", "{}", None).await.unwrap()),
                _ => drop(bot.window("a").await.unwrap()),
            }
            if dice.once_in(3) {
                // Nothing that the old engine still submits is written.
                world.store.fail_commits(1_000_000);
                settle().await;
                engine.close().await;
                world.store.forgive();
                engine = world.open().await;
            }
        }
        world.store.fail_commits(1_000_000);
        engine.close().await;
        world.store.forgive();
        let dies = Duration::from_millis(used.0) + TTL;
        let at = |time: Duration| time.saturating_sub(Duration::from_millis(world.machine_now().0));
        sleep(at(dies - MS)).await;
        let engine = world.open().await;
        assert!(Bot::acme(&engine).view("a").await.is_ok(), "too early");
        sleep(at(dies + LATE)).await;
        assert!(Bot::acme(&engine).view("a").await.is_err(), "too late");
    }
}

#[tokio::test(start_paused = true)]
async fn many_windows_cause_few_writes() {
    let world = World::new(one_model());
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    bot.say("a", "hello").await.unwrap();
    let before = world.store.commits();
    for _ in 0..1_000 {
        sleep(10 * MS).await;
        bot.window("a").await.unwrap();
    }
    let commits = world.store.commits() - before;
    // Ten seconds, with one write per 937 ms.
    assert!((10..=12).contains(&commits), "{commits}");
}

#[tokio::test(start_paused = true)]
async fn last_access_is_never_in_the_future() {
    for fails in [false, true] {
        let world = World::new(one_model());
        let mut engine = world.open().await;
        let bot = Bot::acme(&engine);
        for id in ["a", "b"] {
            bot.say(id, "hello").await.unwrap();
            sleep(100 * MS).await;
        }
        bot.window("a").await.unwrap();
        settle().await;
        let used = world.machine_now();
        sleep(10 * MS).await;
        bot.window("b").await.unwrap();
        settle().await;
        if fails {
            world.store.fail_commits(1);
            assert!(bot.say("a", "lost").await.is_err());
            settle().await;
        } else {
            engine.close().await;
            engine = world.open().await;
        }
        let bot = Bot::acme(&engine);
        let now = world.machine_now();
        bot.live("a").await.unwrap();
        let view = bot.view("a").await.unwrap();
        assert!(view.head.last_access <= now, "{view:?} at {now:?}");
        assert!(view.head.last_access >= Steady(used.0 - 1));
        sleep(500 * MS).await;
        bot.live("b").await.unwrap();
        let view = bot.view("b").await.unwrap();
        assert!(
            view.head.last_access <= now,
            "a read is no use: {view:?} at {now:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn full_queue_does_not_block_windows_or_touches() {
    let mut config = one_model();
    config.journal.queue_bytes = 1 << 10;
    let world = World::with_pool(config);
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    for id in ["a", "b"] {
        bot.say(id, "hello").await.unwrap();
    }
    sleep(TTL / 2).await;
    world.store.hold_commits();
    let mut calls = JoinSet::new();
    let other = bot.clone();
    calls.spawn(async move { other.say("b", "fills the queue").await.is_ok() });
    world.store.commit_begun(world.store.commits() + 1).await;
    let mut window = Box::pin(bot.window("a"));
    assert_eq!(poll_once(&mut window).await.unwrap().unwrap(), ["hello"]);
    world.store.let_commits_go();
    assert!(soon(calls.join_next()).await.unwrap().unwrap());
    sleep(TTL / 2 + MS).await;
    assert!(bot.view("a").await.is_ok(), "it was used");
    assert_eq!(bot.window("a").await.unwrap(), ["hello"]);
}

#[tokio::test(start_paused = true)]
async fn peek_changes_nothing() {
    let world = World::new(one_model());
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    for id in ["a", "b"] {
        for number in 0..10 {
            bot.say(id, &long(number)).await.unwrap();
        }
        settle().await;
    }
    let (commits, head) = (world.store.commits(), bot.view("a").await.unwrap().head);
    for tokens in [320, 500, 100_000] {
        let ask = ContextRequest {
            policy: Some(TAIL),
            peek: true,
            ..asking("large", tokens)
        };
        bot.context("a", ask).await.unwrap();
        sleep(MS).await;
    }
    assert!(
        bot.context(
            "a",
            ContextRequest {
                peek: true,
                ..asking("large", 1)
            }
        )
        .await
        .is_err()
    );
    assert_eq!(bot.view("a").await.unwrap().head, head);
    assert_eq!(
        (world.store.commits(), bot.list().await),
        (commits, vec!["b".into(), "a".into()])
    );
    let windows = bot.stats().windows;
    assert_eq!((windows.built, windows.refused, windows.cuts), (0, 0, 0));
    // The decisions of a peek do not bind the next window.
    let ask = ContextRequest {
        policy: Some(TAIL),
        ..asking("large", 600)
    };
    let answer = bot.context("a", ask).await.unwrap();
    let ask = ContextRequest {
        policy: Some(TAIL),
        ..asking("large", 600)
    };
    let (twin, _) = (bot.context("b", ask).await.unwrap(), ());
    assert_eq!(super::texts(&answer.turns), super::texts(&twin.turns));
    assert_eq!(
        answer.report.stable_prefix_tokens, 0,
        "nothing was sent before"
    );
}

#[tokio::test(start_paused = true)]
async fn append_with_window_is_one_write() {
    let world = World::new(one_model());
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    let request = || ContextRequest {
        append: Some(saying(&["hello"])),
        ..ContextRequest::default()
    };
    bot.context("a", request()).await.unwrap();
    settle().await;
    let before = world.store.commits();
    for _ in 0..100 {
        sleep(10_000 * MS).await;
        bot.context("a", request()).await.unwrap();
        settle().await;
    }
    let cuts = bot.stats().windows.cuts;
    assert_eq!(world.store.commits() - before, 100 + cuts);
}

#[tokio::test(start_paused = true)]
async fn touches_while_commits_fail_do_not_reload_sessions() {
    let world = World::new(one_model());
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    for id in ["a", "b"] {
        bot.say(id, "hello").await.unwrap();
    }
    sleep(2 * LATE).await;
    world.store.fail_commits(1_000_000);
    assert!(bot.say("b", "lost").await.is_err());
    settle().await;
    let commits = world.store.commits();
    for _ in 0..5 {
        sleep(2 * LATE).await;
        assert_eq!(bot.window("a").await.unwrap(), ["hello"]);
        settle().await;
        let stats = bot.stats();
        assert_eq!(
            (stats.sessions_live, stats.turns_live),
            (2, 2),
            "nothing is reloaded"
        );
    }
    assert_eq!(
        world.store.commits(),
        commits,
        "nobody tries what is only to be noted"
    );
    assert_eq!(engine.stats().commit_failures, 1);
    // The session lives on, because memory has its last use.
    sleep(TTL - 4 * LATE).await;
    assert_eq!(bot.window("a").await.unwrap(), ["hello"]);
    world.store.forgive();
    bot.say("a", "there is room").await.unwrap();
    assert_eq!(bot.live("a").await.unwrap(), ["hello", "there is room"]);
}

#[tokio::test(start_paused = true)]
async fn touches_are_written_again_once_disk_has_room() {
    for somebody_writes in [false, true] {
        let world = World::new(one_model());
        let engine = world.open().await;
        let bot = Bot::acme(&engine);
        for id in ["a", "b"] {
            bot.say(id, "hello").await.unwrap();
        }
        world.store.fail_commits(1_000_000);
        assert!(bot.say("b", "lost").await.is_err());
        sleep(TTL / 2).await;
        bot.window("a").await.unwrap();
        world.store.forgive();
        if somebody_writes {
            bot.say("b", "there is room").await.unwrap();
        } else {
            // The engine also retries the journal from time to time without any append.
            sleep(TTL / 2 - 4 * LATE).await;
        }
        bot.window("a").await.unwrap();
        settle().await;
        let used = Duration::from_millis(world.machine_now().0);
        world.store.fail_commits(1_000_000);
        engine.close().await;
        world.store.forgive();
        let dies = used + TTL - Duration::from_millis(world.machine_now().0);
        sleep(dies - MS).await;
        let engine = world.open().await;
        assert!(
            Bot::acme(&engine).view("a").await.is_ok(),
            "the look was written"
        );
    }
}
