//! Concurrency limits per hook and in total; a hanging hook does not block the others.

use std::time::Duration;

use memoird_core::outbox::DeliveryState;
use memoird_engine::Engine;
use tokio::time::sleep;

use super::script::{HookStep, ScriptedHook};
use super::{LIMIT, hooked, states, with_hooks};
use crate::bot::Bot;
use crate::kit::{TTL, World, capped, poll_once, settle, unswept};

const SECOND: Duration = Duration::from_secs(1);

async fn end_many(engine: &Engine, count: usize) {
    let bot = Bot::acme(engine);
    for id in 0..count {
        bot.say(&id.to_string(), "hello").await.unwrap();
        bot.end(&id.to_string()).await.unwrap();
    }
    settle().await;
}

#[tokio::test(start_paused = true)]
async fn hook_concurrency_limits_its_calls() {
    for concurrency in [1, 3] {
        let hook = ScriptedHook::always(HookStep::Slow(SECOND));
        let mut config = hooked("a", &hook);
        config.concurrency = concurrency;
        let engine = World::new(with_hooks(unswept(), [config])).open().await;
        end_many(&engine, 12).await;
        assert_eq!(hook.under_way(), concurrency);
        sleep(13 * SECOND / u32::try_from(concurrency).unwrap()).await;
        assert_eq!((hook.count(), hook.most()), (12, concurrency));
        assert_eq!(states(&engine).await, [DeliveryState::Done; 12]);
    }
}

#[tokio::test(start_paused = true)]
async fn total_hook_concurrency_is_shared() {
    let hooks = ["a", "b", "c"].map(|name| (name, ScriptedHook::always(HookStep::Slow(SECOND))));
    let configs = hooks.iter().map(|(name, hook)| hooked(name, hook));
    let mut config = with_hooks(unswept(), configs);
    config.hooks.concurrency = 5;
    let engine = World::new(config).open().await;
    end_many(&engine, 6).await;
    for second in 0..3 {
        let under_way: usize = hooks.iter().map(|(_, hook)| hook.under_way()).sum();
        assert_eq!(under_way, 5, "second {second}");
        assert!(
            hooks.iter().all(|(_, hook)| hook.under_way() > 0),
            "second {second}"
        );
        sleep(SECOND).await;
    }
    sleep(3 * SECOND).await;
    assert!(hooks.iter().all(|(_, hook)| hook.count() == 6));
}

#[tokio::test(start_paused = true)]
async fn hanging_hook_does_not_delay_other_hooks() {
    // Also if its own limit exceeds the total.
    for (name, other) in [("a", "b"), ("b", "a")] {
        let (hanging, quick) = (ScriptedHook::always(HookStep::Hang), ScriptedHook::new([]));
        let mut greedy = hooked(name, &hanging);
        greedy.concurrency = 100;
        let mut config = with_hooks(unswept(), [greedy, hooked(other, &quick)]);
        config.hooks.concurrency = 8;
        let engine = World::new(config).open().await;
        end_many(&engine, 100).await;
        assert_eq!(quick.count(), 100, "{other} waits for {name}");
        sleep(LIMIT + SECOND).await;
        end_many(&engine, 100).await;
        assert_eq!(quick.count(), 200, "{other} waits for {name}");
        assert_eq!(hanging.most(), 7, "one is left for the other");
    }
}

#[tokio::test(start_paused = true)]
async fn slow_deliveries_of_one_tenant_do_not_delay_others() {
    for concurrency in [1, 4] {
        let hook = ScriptedHook::always(HookStep::Slow(SECOND));
        let mut hooked = hooked("a", &hook);
        hooked.concurrency = concurrency;
        let mut config = with_hooks(unswept(), [hooked]);
        config.tenants.push(capped("other", 100));
        let engine = World::new(config).open().await;
        end_many(&engine, 100).await;
        let other = Bot::new(&engine, "other");
        for id in ["x", "y", "z"] {
            other.say(id, "hello").await.unwrap();
            other.end(id).await.unwrap();
        }
        settle().await;
        // The calls in flight finish; then the tenants alternate.
        sleep(7 * SECOND).await;
        let calls = hook.calls();
        let is_other = |id: &str| ["x", "y", "z"].contains(&id);
        let served = calls
            .iter()
            .filter(|call| is_other(call.content.session.as_str()));
        assert_eq!(served.count(), 3, "with {concurrency}, of {}", calls.len());
    }
}

#[tokio::test(start_paused = true)]
async fn hanging_hook_does_not_delay_calls_or_sweeps() {
    let hanging = ScriptedHook::always(HookStep::Hang);
    let engine = World::new(with_hooks(unswept(), [hooked("a", &hanging)]))
        .open()
        .await;
    end_many(&engine, 20).await;
    assert_eq!(hanging.under_way(), 4);
    let bot = Bot::acme(&engine);
    bot.say("s", "hello").await.unwrap();
    assert_eq!(bot.live("s").await.unwrap(), ["hello"]);
    bot.end("s").await.unwrap();
    for id in 0..20 {
        bot.say(&id.to_string(), "again").await.unwrap();
    }
    sleep(TTL).await;
    // The sweep waits only for the disk, so it finishes before the clock advances.
    let mut sweep = Box::pin(engine.sessions.sweep(None));
    assert!(poll_once(&mut sweep).await.is_none());
    settle().await;
    assert_eq!(poll_once(&mut sweep).await.unwrap().unwrap().len(), 20);
}

#[tokio::test(start_paused = true)]
async fn failing_deliveries_do_not_delay_new_ones() {
    let hook = ScriptedHook::always(HookStep::Later);
    let mut config = hooked("a", &hook);
    config.concurrency = 1;
    let engine = World::new(with_hooks(unswept(), [config])).open().await;
    end_many(&engine, 50).await;
    hook.will_now(HookStep::Ok);
    let bot = Bot::acme(&engine);
    bot.say("fresh", "hello").await.unwrap();
    bot.end("fresh").await.unwrap();
    settle().await;
    let calls = hook.calls();
    assert_eq!(calls.len(), 51);
    assert_eq!(calls[50].content.session.as_str(), "fresh");
}

#[tokio::test(start_paused = true)]
async fn concurrency_zero_means_one() {
    let hooks = ["a", "b"].map(|name| (name, ScriptedHook::new([])));
    let configs = hooks.iter().map(|(name, hook)| {
        let mut config = hooked(name, hook);
        config.concurrency = 0;
        config
    });
    let mut config = with_hooks(unswept(), configs);
    config.hooks.concurrency = 0;
    let engine = World::new(config).open().await;
    end_many(&engine, 3).await;
    assert!(
        hooks
            .iter()
            .all(|(_, hook)| (hook.count(), hook.most()) == (3, 1))
    );
}

#[tokio::test(start_paused = true)]
async fn hook_with_long_queue_yields_to_other_hooks() {
    for names in [["a", "b"], ["b", "a"]] {
        let (busy, other) = (
            ScriptedHook::always(HookStep::Slow(SECOND)),
            ScriptedHook::new([]),
        );
        let mut config = with_hooks(
            unswept(),
            [hooked(names[0], &busy), hooked(names[1], &other)],
        );
        config.hooks.concurrency = 1;
        let engine = World::new(config).open().await;
        end_many(&engine, 50).await;
        sleep(50 * SECOND).await;
        assert!(
            other.count() > 40,
            "{} while the other has {}",
            other.count(),
            busy.count()
        );
    }
}

#[tokio::test(start_paused = true)]
async fn idle_hooks_reserve_at_most_half_of_the_concurrency() {
    let busy = ScriptedHook::always(HookStep::Slow(SECOND));
    let mut greedy = hooked("busy", &busy);
    greedy.concurrency = 100;
    let mut configs = vec![greedy];
    for name in 0..20 {
        let mut config = hooked(&format!("idle-{name}"), &ScriptedHook::new([]));
        config.subscription.on = Vec::new();
        configs.push(config);
    }
    let mut config = with_hooks(unswept(), configs);
    config.hooks.concurrency = 8;
    let engine = World::new(config).open().await;
    end_many(&engine, 20).await;
    assert_eq!(busy.under_way(), 4);
}
