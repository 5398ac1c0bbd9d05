//! Failed deliveries: retries with exponential backoff, and manual retry or cancellation.

use std::time::Duration;

use memoird_core::ids::{DeliveryId, Generation};
use memoird_core::outbox::DeliveryState;
use memoird_engine::EngineError;
use tokio::time::sleep;

use super::script::{HookStep, ScriptedHook};
use super::{LIMIT, deliveries, hook_name, hooked, only_delivery, turn_texts, views, with_hooks};
use crate::bot::Bot;
use crate::kit::{World, settle, unswept};

const SECOND: Duration = Duration::from_secs(1);

/// The pauses between the calls in milliseconds.
fn pauses(hook: &ScriptedHook) -> Vec<i64> {
    hook.times_ms()
        .windows(2)
        .map(|pair| pair[1] - pair[0])
        .collect()
}

async fn end_one(world: &World) -> memoird_engine::Engine {
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    bot.say("s", "hello").await.unwrap();
    bot.end("s").await.unwrap();
    settle().await;
    engine
}

#[tokio::test(start_paused = true)]
async fn retry_pauses_double_with_jitter_until_given_up() {
    let hook = ScriptedHook::always(HookStep::Later);
    let world = World::new(with_hooks(unswept(), [hooked("a", &hook)]));
    let engine = end_one(&world).await;
    let owed = only_delivery(&engine).await;
    assert_eq!(
        (owed.state, owed.tries, &*owed.last_error),
        (DeliveryState::Pending, 1, "no")
    );
    sleep(100 * SECOND).await;
    let pauses = pauses(&hook);
    assert_eq!(pauses.len(), 4, "five tries: {pauses:?}");
    for (pause, most) in pauses.iter().zip([1_000, 2_000, 4_000, 8_000]) {
        // A worker may run slightly late.
        assert!(
            (most / 2..=most + 10).contains(pause),
            "{pause} ms of {most} ms"
        );
    }
    let attempts: Vec<u32> = hook.calls().iter().map(|call| call.attempt).collect();
    assert_eq!(attempts, [1, 2, 3, 4, 5]);
    let dead = only_delivery(&engine).await;
    assert_eq!(
        (dead.state, dead.tries, &*dead.last_error),
        (DeliveryState::Dead, 5, "no")
    );
    sleep(10_000 * SECOND).await;
    assert_eq!(hook.count(), 5);
    assert!(
        hook.seen()
            .iter()
            .all(|ended| turn_texts(ended) == ["hello"])
    );
}

#[tokio::test(start_paused = true)]
async fn retry_pauses_of_concurrent_failures_spread_out() {
    let hook = ScriptedHook::always(HookStep::Later);
    let world = World::new(with_hooks(unswept(), [hooked("a", &hook)]));
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    for id in 0..20 {
        bot.say(&id.to_string(), "hello").await.unwrap();
        bot.end(&id.to_string()).await.unwrap();
    }
    settle().await;
    let mut due: Vec<_> = deliveries(&engine)
        .await
        .iter()
        .map(|owed| owed.due.0)
        .collect();
    due.sort_unstable();
    due.dedup();
    assert!(due.len() > 10, "they would all come back at once: {due:?}");
    assert!(due.last().unwrap() - due[0] <= 510, "{due:?}");
}

#[tokio::test(start_paused = true)]
async fn retry_pause_never_exceeds_maximum() {
    let hook = ScriptedHook::always(HookStep::Later);
    let mut config = hooked("a", &hook);
    (config.retry.tries_max, config.retry.pause_ms_max) = (30, 3_000);
    let world = World::new(with_hooks(unswept(), [config]));
    end_one(&world).await;
    sleep(200 * SECOND).await;
    assert_eq!(hook.count(), 30);
    assert!(
        pauses(&hook).iter().all(|pause| *pause <= 3_010),
        "{:?}",
        pauses(&hook)
    );
}

#[tokio::test(start_paused = true)]
async fn retry_after_of_receiver_is_respected() {
    let hook = ScriptedHook::new([
        HookStep::After(30 * SECOND),
        HookStep::After(Duration::MAX),
        HookStep::Ok,
    ]);
    let world = World::new(with_hooks(unswept(), [hooked("a", &hook)]));
    let engine = end_one(&world).await;
    let view = views(&engine).await.remove(0);
    let due_ms = view.due_at.as_ms() - hook.times_ms()[0];
    assert!((30_000..=30_010).contains(&due_ms), "{due_ms}");
    sleep(200 * SECOND).await;
    let pauses = pauses(&hook);
    assert!((30_000..=30_010).contains(&pauses[0]), "{pauses:?}");
    assert!(
        (60_000..=60_010).contains(&pauses[1]),
        "but no longer than the longest: {pauses:?}"
    );
    assert_eq!(only_delivery(&engine).await.state, DeliveryState::Done);
}

#[tokio::test(start_paused = true)]
async fn permanent_failure_is_dead_at_once() {
    let hook = ScriptedHook::always(HookStep::Never);
    let world = World::new(with_hooks(unswept(), [hooked("a", &hook)]));
    let engine = end_one(&world).await;
    sleep(1_000 * SECOND).await;
    assert_eq!(
        (hook.count(), only_delivery(&engine).await.state),
        (1, DeliveryState::Dead)
    );
}

#[tokio::test(start_paused = true)]
async fn dead_delivery_is_made_on_retry_command() {
    let hook = ScriptedHook::new([HookStep::Never]);
    let world = World::new(with_hooks(unswept(), [hooked("a", &hook)]));
    let engine = end_one(&world).await;
    let dead = only_delivery(&engine).await;
    let again = engine
        .hooks
        .retry_delivery(dead.id.clone())
        .await
        .unwrap()
        .delivery;
    assert_eq!(
        (again.state, again.tries, &*again.last_error),
        (DeliveryState::Pending, 0, "")
    );
    settle().await;
    assert_eq!(
        (hook.count(), only_delivery(&engine).await.state),
        (2, DeliveryState::Done)
    );
    // A retry also repeats a delivery that succeeded.
    engine.hooks.retry_delivery(dead.id).await.unwrap();
    settle().await;
    assert_eq!(
        (hook.count(), only_delivery(&engine).await.state),
        (3, DeliveryState::Done)
    );
    assert!(hook.calls().iter().all(|call| call.attempt == 1));
}

#[tokio::test(start_paused = true)]
async fn delivery_waiting_for_retry_is_made_at_once_on_command() {
    let hook = ScriptedHook::new([HookStep::After(60 * SECOND)]);
    let world = World::new(with_hooks(unswept(), [hooked("a", &hook)]));
    let engine = end_one(&world).await;
    engine
        .hooks
        .retry_delivery(only_delivery(&engine).await.id)
        .await
        .unwrap();
    settle().await;
    assert_eq!(
        (hook.count(), only_delivery(&engine).await.state),
        (2, DeliveryState::Done)
    );
}

#[tokio::test(start_paused = true)]
async fn dropped_delivery_is_gone_even_if_in_flight() {
    let hook = ScriptedHook::new([HookStep::Slow(SECOND), HookStep::Later]);
    let world = World::new(with_hooks(unswept(), [hooked("a", &hook)]));
    let engine = end_one(&world).await;
    engine
        .hooks
        .drop_delivery(only_delivery(&engine).await.id)
        .await
        .unwrap();
    sleep(2 * SECOND).await;
    assert_eq!(deliveries(&engine).await, []);
    let bot = Bot::acme(&engine);
    bot.say("s", "again").await.unwrap();
    bot.end("s").await.unwrap();
    settle().await;
    engine
        .hooks
        .drop_delivery(only_delivery(&engine).await.id)
        .await
        .unwrap();
    sleep(100 * SECOND).await;
    assert_eq!((hook.count(), deliveries(&engine).await.len()), (2, 0));
}

#[tokio::test(start_paused = true)]
async fn unknown_delivery_cannot_be_retried_or_dropped() {
    let engine = World::new(unswept()).open().await;
    let id = DeliveryId {
        generation: Generation::new(1, 1),
        hook: hook_name("a"),
    };
    let retried = engine.hooks.retry_delivery(id.clone()).await;
    assert!(
        matches!(retried, Err(EngineError::DeliveryNotFound { .. })),
        "{retried:?}"
    );
    let dropped = engine.hooks.drop_delivery(id).await;
    assert!(
        matches!(dropped, Err(EngineError::DeliveryNotFound { .. })),
        "{dropped:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn hanging_hook_times_out_and_is_retried() {
    let hook = ScriptedHook::new([HookStep::Hang]);
    let world = World::new(with_hooks(unswept(), [hooked("a", &hook)]));
    let engine = end_one(&world).await;
    sleep(LIMIT - 10 * Duration::from_millis(1)).await;
    assert_eq!(
        (hook.under_way(), only_delivery(&engine).await.tries),
        (1, 0)
    );
    sleep(10 * Duration::from_millis(1)).await;
    assert_eq!(hook.under_way(), 0, "it is dropped");
    let owed = only_delivery(&engine).await;
    assert!(
        owed.tries == 1 && owed.last_error.contains("5s"),
        "{owed:?}"
    );
    sleep(2 * SECOND).await;
    assert_eq!(
        (hook.count(), only_delivery(&engine).await.state),
        (2, DeliveryState::Done)
    );
}

#[tokio::test(start_paused = true)]
async fn panicking_hook_fails_delivery_and_engine_survives() {
    let hook = ScriptedHook::new([HookStep::PanicAtOnce, HookStep::PanicLater]);
    let world = World::new(with_hooks(unswept(), [hooked("a", &hook)]));
    let engine = end_one(&world).await;
    let owed = only_delivery(&engine).await;
    assert!(
        owed.tries == 1 && owed.last_error.contains("panicked"),
        "{owed:?}"
    );
    sleep(10 * SECOND).await;
    let done = only_delivery(&engine).await;
    assert_eq!(
        (hook.count(), done.state, done.tries),
        (3, DeliveryState::Done, 3)
    );
    assert!(!engine.broken().is_cancelled());
    Bot::acme(&engine).say("s", "hello").await.unwrap();
}
