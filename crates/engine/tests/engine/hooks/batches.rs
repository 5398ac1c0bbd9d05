//! A hook that accepts batches is called few times for many ends.

use std::time::Duration;

use memoird_core::outbox::DeliveryState;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::script::{HookStep, ScriptedHook};
use super::{deliveries, hooked, states, turn_texts, with_hooks};
use crate::bot::{Bot, saying};
use crate::kit::{TTL, World, settle, unswept};

/// Opens an engine and ends `sessions` sessions in one sweep.
async fn swept(world: &World, sessions: usize) -> memoird_engine::Engine {
    let engine = world.open().await;
    let mut calls = JoinSet::new();
    for id in 0..sessions {
        let bot = Bot::acme(&engine);
        calls.spawn(async move {
            bot.append(&id.to_string(), saying(&[&id.to_string(), "more"]))
                .await
                .unwrap()
        });
    }
    calls.join_all().await;
    sleep(TTL).await;
    assert_eq!(engine.sessions.sweep(None).await.unwrap().len(), sessions);
    engine
}

#[tokio::test(start_paused = true)]
async fn sweep_of_1000_sessions_is_delivered_in_few_batches() {
    let hook = ScriptedHook::batched(100, []);
    let world = World::new(with_hooks(unswept(), [hooked("a", &hook)]));
    let engine = swept(&world, 1_000).await;
    sleep(Duration::from_secs(1)).await;
    let sizes: Vec<usize> = hook.batches().iter().map(Vec::len).collect();
    assert!(sizes.len() <= 12, "{sizes:?}");
    assert!(sizes.iter().all(|size| *size <= 100), "{sizes:?}");
    let mut seen: Vec<String> = hook
        .seen()
        .iter()
        .map(|ended| turn_texts(ended).concat())
        .collect();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!((seen.len(), hook.count()), (1_000, 1_000));
    assert_eq!(states(&engine).await, [DeliveryState::Done; 1_000]);
}

#[tokio::test(start_paused = true)]
async fn single_end_waits_briefly_for_a_batch() {
    let hook = ScriptedHook::batched(100, []);
    let world = World::new(with_hooks(unswept(), [hooked("a", &hook)]));
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    for (round, ids) in [vec!["a"], vec!["b", "c", "d"]].into_iter().enumerate() {
        for id in ids {
            bot.say(id, "hello").await.unwrap();
            bot.end(id).await.unwrap();
            sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(hook.batches().len(), round, "it waits");
        sleep(Duration::from_millis(100)).await;
        assert_eq!(hook.batches().len(), round + 1);
    }
    assert_eq!(hook.batches()[1].len(), 3);
}

#[tokio::test(start_paused = true)]
async fn steady_ends_do_not_delay_the_first_delivery() {
    let hook = ScriptedHook::batched(100, []);
    let world = World::new(with_hooks(unswept(), [hooked("a", &hook)]));
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    for id in 0..100 {
        bot.say(&id.to_string(), "hello").await.unwrap();
        bot.end(&id.to_string()).await.unwrap();
        sleep(Duration::from_millis(10)).await;
    }
    sleep(Duration::from_millis(200)).await;
    for call in hook.calls() {
        let waited_ms = call.at.as_ms() - call.content.ended_at.as_ms();
        assert!(waited_ms <= 110, "{waited_ms}");
    }
    let batches = hook.batches().len();
    assert!(hook.count() == 100 && batches <= 20, "{batches} calls");
}

#[tokio::test(start_paused = true)]
async fn each_delivery_of_a_batch_has_its_own_outcome() {
    let hook = ScriptedHook::batched(10, [HookStep::Fewer(4), HookStep::More, HookStep::Never]);
    let world = World::new(with_hooks(unswept(), [hooked("a", &hook)]));
    let engine = swept(&world, 10).await;
    sleep(Duration::from_millis(200)).await;
    let all = deliveries(&engine).await;
    let failed: Vec<_> = all
        .iter()
        .filter(|owed| owed.state == DeliveryState::Pending)
        .collect();
    assert_eq!(failed.len(), 6);
    assert!(
        failed
            .iter()
            .all(|owed| owed.tries == 1 && owed.last_error.contains("no answer"))
    );
    sleep(Duration::from_secs(60)).await;
    assert_eq!(hook.count(), 16);
    let second: Vec<_> = hook.batches()[1..].concat();
    assert!(second.iter().all(|call| call.attempt == 2));
    let first: Vec<_> = hook.batches()[0]
        .iter()
        .take(4)
        .map(|call| call.delivery.clone())
        .collect();
    assert!(second.iter().all(|call| !first.contains(&call.delivery)));
}

#[tokio::test(start_paused = true)]
async fn delivery_without_room_in_batch_is_not_counted_as_try() {
    let hook = ScriptedHook::batched(100, []);
    let mut config = with_hooks(unswept(), [hooked("a", &hook)]);
    config.hooks.content_bytes = 200;
    let world = World::new(config);
    let engine = swept(&world, 50).await;
    sleep(Duration::from_secs(1)).await;
    assert_eq!(hook.count(), 50);
    assert!(hook.batches().iter().all(|batch| batch.len() < 10));
    assert!(
        hook.calls()
            .iter()
            .all(|call| call.attempt == 1 && call.content.turns_omitted == 0)
    );
    assert_eq!(states(&engine).await, [DeliveryState::Done; 50]);
}

#[tokio::test(start_paused = true)]
async fn batch_that_panics_or_hangs_is_retried_whole() {
    for step in [HookStep::PanicAtOnce, HookStep::PanicLater, HookStep::Hang] {
        let hook = ScriptedHook::batched(10, [step]);
        let world = World::new(with_hooks(unswept(), [hooked("a", &hook)]));
        let engine = swept(&world, 10).await;
        sleep(Duration::from_secs(20)).await;
        settle().await;
        let all = deliveries(&engine).await;
        assert!(
            all.iter()
                .all(|owed| (owed.state, owed.tries) == (DeliveryState::Done, 2))
        );
        assert_eq!((all.len(), hook.count()), (10, 20), "{step:?}");
    }
}
