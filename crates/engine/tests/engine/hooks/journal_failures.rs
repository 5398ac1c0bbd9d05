//! Journal failures while a delivery or its outcome is recorded.
//!
//! A call may be repeated, but none is lost.

use std::time::Duration;

use memoird_core::outbox::DeliveryState;
use tokio::time::sleep;

use super::script::{HookStep, ScriptedHook};
use super::{deliveries, hooked, only_delivery, states, turn_texts, with_hooks};
use crate::bot::Bot;
use crate::kit::{TTL, World, settle, unswept, unswept_with_cap};

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn outcome_that_failed_to_commit_is_written_later() {
    for concurrency in [1, 4] {
        for step in [HookStep::Ok, HookStep::Never] {
            let hook = ScriptedHook::always(step);
            let mut config = hooked("a", &hook);
            config.concurrency = concurrency;
            let world = World::new(with_hooks(unswept(), [config]));
            let engine = world.open().await;
            let bot = Bot::acme(&engine);
            world.store.fail_outcomes(3);
            bot.say("s", "hello").await.unwrap();
            bot.end("s").await.unwrap();
            sleep(5 * SECOND).await;
            let settled = only_delivery(&engine).await;
            assert_ne!(
                settled.state,
                DeliveryState::Pending,
                "{concurrency} {step:?}"
            );
            assert_eq!(
                (settled.tries, hook.count()),
                (1, 1),
                "{concurrency} {step:?}"
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn unwritable_outcomes_stop_calls_without_busy_loop() {
    let hook = ScriptedHook::new([]);
    let mut config = hooked("a", &hook);
    config.concurrency = 2;
    let world = World::new(with_hooks(unswept(), [config]));
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    world.store.fail_outcomes(u64::MAX);
    for id in 0..10 {
        bot.say(&id.to_string(), "hello").await.unwrap();
        bot.end(&id.to_string()).await.unwrap();
    }
    let before = world.store.looks();
    sleep(600 * SECOND).await;
    assert!(
        world.store.looks() - before < 100,
        "{} looks",
        world.store.looks() - before
    );
    assert!(
        hook.count() <= 2,
        "no call is made that could not be written down"
    );
    world.store.fail_outcomes(0);
    sleep(60 * SECOND).await;
    assert_eq!(
        (states(&engine).await, hook.count()),
        (vec![DeliveryState::Done; 10], 10)
    );
}

#[tokio::test(start_paused = true)]
async fn end_whose_commit_fails_creates_no_delivery() {
    let hook = ScriptedHook::new([]);
    let world = World::new(with_hooks(unswept_with_cap(1), [hooked("a", &hook)]));
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    bot.say("s", "hello").await.unwrap();
    world.store.fail_commits(1);
    bot.end("s").await.unwrap_err();
    world.store.fail_commits(1);
    bot.say("t", "make room").await.unwrap_err();
    settle().await;
    assert_eq!((hook.count(), deliveries(&engine).await.len()), (0, 0));
    assert_eq!(bot.live("s").await.unwrap(), ["hello"]);
    sleep(TTL).await;
    world.store.fail_commits(1);
    engine.sessions.sweep(None).await.unwrap_err();
    settle().await;
    assert_eq!((hook.count(), deliveries(&engine).await.len()), (0, 0));
    engine.sessions.sweep(None).await.unwrap();
    settle().await;
    assert_eq!(turn_texts(&hook.only()), ["hello"]);
}

#[tokio::test(start_paused = true)]
async fn store_is_not_polled_without_due_deliveries() {
    let hook = ScriptedHook::always(HookStep::Later);
    let world = World::new(with_hooks(unswept(), [hooked("a", &hook)]));
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    settle().await;
    let before = world.store.looks();
    for text in 0..100 {
        bot.say("s", &text.to_string()).await.unwrap();
    }
    sleep(TTL / 2).await;
    assert_eq!(world.store.looks(), before);
    bot.end("s").await.unwrap();
    sleep(1_000 * SECOND).await;
    let looks = world.store.looks() - before;
    assert!(looks < 20, "{looks} looks for five tries");
}
