//! Removed hooks: their deliveries stay pending until the hook is back.

use memoird_core::change::EndReason;
use memoird_core::outbox::DeliveryState;
use std::time::Duration;
use tokio::time::sleep;

use super::script::{HookStep, ScriptedHook};
use super::{deliveries, hook_name, hooked, only_delivery, states, with_hooks};
use crate::bot::Bot;
use crate::kit::{World, settle, unswept};

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn deliveries_of_removed_hook_stay_pending_until_it_returns() {
    let (hook, other) = (ScriptedHook::always(HookStep::Later), ScriptedHook::new([]));
    let mut world = World::new(with_hooks(unswept(), [hooked("a", &hook)]));
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    bot.say("s", "hello").await.unwrap();
    bot.end("s").await.unwrap();
    settle().await;
    engine
        .reconfigure(with_hooks(unswept(), [hooked("b", &other)]))
        .await;
    let tries = hook.count();
    bot.say("t", "hello").await.unwrap();
    bot.end("t").await.unwrap();
    sleep(1_000 * SECOND).await;
    assert_eq!((hook.count(), other.count()), (tries, 1));
    let owed = &deliveries(&engine).await[0];
    assert_eq!(
        (&owed.id.hook, owed.state),
        (&hook_name("a"), DeliveryState::Pending)
    );
    assert_eq!(engine.hooks.count_deliveries().await.unwrap()[0].count, 1);
    engine.close().await;

    // Also across a restart without the hook.
    world.config = with_hooks(unswept(), []);
    let engine = world.open().await;
    sleep(1_000 * SECOND).await;
    assert_eq!(
        states(&engine).await,
        [DeliveryState::Pending, DeliveryState::Done]
    );
    let back = ScriptedHook::new([]);
    engine
        .reconfigure(with_hooks(unswept(), [hooked("a", &back)]))
        .await;
    settle().await;
    assert_eq!(back.only().session.as_str(), "s");
    assert_eq!(states(&engine).await, [DeliveryState::Done; 2]);
}

#[tokio::test(start_paused = true)]
async fn call_in_flight_of_removed_hook_is_recorded() {
    let hook = ScriptedHook::new([HookStep::Slow(SECOND)]);
    let world = World::new(with_hooks(unswept(), [hooked("a", &hook)]));
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    for id in ["s", "t"] {
        bot.say(id, "hello").await.unwrap();
        bot.end(id).await.unwrap();
    }
    settle().await;
    engine.reconfigure(unswept()).await;
    sleep(2 * SECOND).await;
    assert_eq!(states(&engine).await, [DeliveryState::Done; 2]);
    // The hook returns both while idle and while a call is in flight.
    for pause in [SECOND / 2, SECOND * 2] {
        hook.will_now(HookStep::Slow(SECOND));
        engine
            .reconfigure(with_hooks(unswept(), [hooked("a", &hook)]))
            .await;
        bot.say("s", "hello").await.unwrap();
        bot.end("s").await.unwrap();
        settle().await;
        engine.reconfigure(unswept()).await;
        sleep(pause).await;
        engine
            .reconfigure(with_hooks(unswept(), [hooked("a", &hook)]))
            .await;
        bot.say("t", "hello").await.unwrap();
        bot.end("t").await.unwrap();
        sleep(3 * SECOND).await;
        assert!(
            states(&engine)
                .await
                .iter()
                .all(|state| *state == DeliveryState::Done)
        );
    }
    assert_eq!(hook.count(), 6, "each once");
}

#[tokio::test(start_paused = true)]
async fn new_hook_of_same_name_takes_over_pending_deliveries() {
    let (first, second) = (ScriptedHook::always(HookStep::Later), ScriptedHook::new([]));
    let world = World::new(with_hooks(unswept(), [hooked("a", &first)]));
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    bot.say("s", "hello").await.unwrap();
    bot.end("s").await.unwrap();
    settle().await;
    engine
        .reconfigure(with_hooks(unswept(), [hooked("a", &second)]))
        .await;
    sleep(2 * SECOND).await;
    assert_eq!((first.count(), second.count()), (1, 1));
    assert_eq!(
        (
            second.calls()[0].attempt,
            only_delivery(&engine).await.state
        ),
        (2, DeliveryState::Done)
    );
}

#[tokio::test(start_paused = true)]
async fn changed_subscription_applies_to_later_ends() {
    let hook = ScriptedHook::new([]);
    let mut config = hooked("a", &hook);
    config.subscription.on = vec![EndReason::Expired];
    let world = World::new(with_hooks(unswept(), [config]));
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    bot.say("s", "before").await.unwrap();
    bot.end("s").await.unwrap();
    bot.say("t", "after").await.unwrap();
    engine
        .reconfigure(with_hooks(unswept(), [hooked("a", &hook)]))
        .await;
    bot.end("t").await.unwrap();
    settle().await;
    assert_eq!(hook.only().session.as_str(), "t");
}
