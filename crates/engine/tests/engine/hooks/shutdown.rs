//! Closing the engine with hooks.
//!
//! The close always finishes, whatever the hooks do, and with a journal it loses nothing.

use std::time::Duration;

use memoird_core::change::EndReason;
use memoird_core::outbox::DeliveryState;
use tokio::time::{Instant, sleep, timeout};

use super::durability_off::{off, open};
use super::script::{HookStep, ScriptedHook};
use super::{hooked, states, with_hooks};
use crate::bot::Bot;
use crate::kit::{World, settle, unswept};

const SECOND: Duration = Duration::from_secs(1);

/// Returns how long a call takes on the paused clock.
#[allow(
    clippy::disallowed_methods,
    reason = "a test measures the paused clock"
)]
async fn time_of(call: impl Future<Output = ()>) -> Duration {
    let start = Instant::now();
    timeout(1_000 * SECOND, call).await.expect("it hangs");
    start.elapsed()
}

async fn end_many(engine: &memoird_engine::Engine, count: usize) {
    let bot = Bot::acme(engine);
    for id in 0..count {
        bot.say(&id.to_string(), "hello").await.unwrap();
        bot.end(&id.to_string()).await.unwrap();
    }
    settle().await;
}

#[tokio::test(start_paused = true)]
async fn close_waits_for_running_deliveries_and_leaves_rest_pending() {
    let hook = ScriptedHook::always(HookStep::Slow(SECOND));
    let mut config = hooked("a", &hook);
    config.concurrency = 2;
    let world = World::new(with_hooks(unswept(), [config]));
    let engine = world.open().await;
    end_many(&engine, 6).await;
    let bot = Bot::acme(&engine);
    bot.say("live", "hello").await.unwrap();
    let took = time_of(engine.close()).await;
    assert!(took <= SECOND, "{took:?}");
    assert_eq!(hook.count(), 2);
    let done = |states: Vec<DeliveryState>| {
        states
            .iter()
            .filter(|state| **state == DeliveryState::Done)
            .count()
    };
    let engine = world.open().await;
    assert_eq!(done(states(&engine).await), 2);
    sleep(10 * SECOND).await;
    assert_eq!((done(states(&engine).await), hook.count()), (6, 6));
    assert_eq!(
        Bot::acme(&engine).list().await,
        ["live"],
        "a close ends nobody"
    );
}

#[tokio::test(start_paused = true)]
async fn close_waits_for_hanging_hook_at_most_drain_time() {
    for durable in [true, false] {
        let hook = ScriptedHook::always(HookStep::Hang);
        let mut hooks = [hooked("a", &hook)];
        hooks[0].timeout = 10_000 * SECOND;
        let config = if durable {
            with_hooks(unswept(), hooks)
        } else {
            off(hooks)
        };
        let drain = config.hooks.drain;
        let world = World::new(config.clone());
        let engine = if durable {
            world.open().await
        } else {
            open(config).await
        };
        end_many(&engine, 10).await;
        assert_eq!(hook.under_way(), 4);
        let took = time_of(engine.close()).await;
        assert!(
            (drain..drain + SECOND).contains(&took),
            "{took:?}, durable: {durable}"
        );
        assert_eq!(hook.under_way(), 0, "what it does is dropped");
        assert_eq!(hook.count(), 4);
        if durable {
            hook.will_now(HookStep::Ok);
            let engine = world.open().await;
            settle().await;
            assert_eq!(states(&engine).await, [DeliveryState::Done; 10]);
            assert!(hook.calls().iter().all(|call| call.attempt == 1));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn close_without_running_deliveries_is_immediate() {
    for durable in [true, false] {
        let hook = ScriptedHook::new([HookStep::After(50 * SECOND)]);
        let hooks = [hooked("a", &hook)];
        let config = if durable {
            with_hooks(unswept(), hooks)
        } else {
            off(hooks)
        };
        let world = World::new(config.clone());
        let engine = if durable {
            world.open().await
        } else {
            open(config.clone()).await
        };
        end_many(&engine, 1).await;
        let took = time_of(engine.close()).await;
        // Without a journal, the close waits for deliveries up to the drain timeout.
        let most = if durable {
            SECOND
        } else {
            config.hooks.drain + SECOND
        };
        assert!(took < most, "{took:?}, durable: {durable}");
    }
}

#[tokio::test(start_paused = true)]
async fn durability_off_close_delivers_what_slow_hook_can_take() {
    let hook = ScriptedHook::always(HookStep::Slow(SECOND));
    let mut config = off([hooked("a", &hook)]);
    config.hooks.drain = SECOND * 7 / 2;
    let engine = open(config).await;
    let bot = Bot::acme(&engine);
    for id in 0..100 {
        bot.say(&id.to_string(), "hello").await.unwrap();
    }
    time_of(engine.close()).await;
    assert_eq!(
        hook.count(),
        4 * 4,
        "four at once, for three seconds and a half"
    );
    assert!(
        hook.seen()
            .iter()
            .all(|ended| ended.reason == EndReason::Shutdown)
    );
}

#[tokio::test(start_paused = true)]
async fn close_returns_while_outcomes_cannot_be_written() {
    let hook = ScriptedHook::new([]);
    let world = World::new(with_hooks(unswept(), [hooked("a", &hook)]));
    let engine = world.open().await;
    world.store.fail_outcomes(u64::MAX);
    end_many(&engine, 3).await;
    time_of(engine.close()).await;
    world.store.fail_outcomes(0);
    let engine = world.open().await;
    settle().await;
    assert_eq!(states(&engine).await, [DeliveryState::Done; 3]);
    assert!(hook.count() >= 3);
}
