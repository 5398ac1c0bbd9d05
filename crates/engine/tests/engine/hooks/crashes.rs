//! Crashes between an end and its delivery, or between the hook's success and its record.
//!
//! The next start delivers at least once.

use std::time::Duration;

use memoird_core::outbox::DeliveryState;
use memoird_engine::Engine;
use tokio::time::sleep;

use super::script::{HookStep, ScriptedHook};
use super::{hooked, only_delivery, states, turn_texts, with_hooks};
use crate::bot::{Bot, saying};
use crate::kit::{Daemon, TTL, settle, unswept};

const SECOND: Duration = Duration::from_secs(1);

async fn end_one(engine: &Engine) {
    let bot = Bot::acme(engine);
    bot.append("s", saying(&["one", "two"])).await.unwrap();
    bot.end("s").await.unwrap();
}

#[test]
fn pending_delivery_is_made_after_crash() {
    // The hook waits to fill a batch, so the crash falls between end and delivery.
    let hook = ScriptedHook::batched(10, []);
    let mut daemon = Daemon::new(with_hooks(unswept(), [hooked("a", &hook)]));
    daemon.live(async |engine| end_one(engine).await);
    assert_eq!(hook.count(), 0);
    daemon.live(async |engine| {
        sleep(SECOND).await;
        assert_eq!(states(engine).await, [DeliveryState::Done]);
    });
    assert_eq!(turn_texts(&hook.only()), ["one", "two"]);
    daemon.live(async |_| sleep(10 * TTL).await);
    assert_eq!(hook.count(), 1, "what was written down is not repeated");
}

#[test]
fn delivery_in_flight_at_crash_is_repeated() {
    let hook = ScriptedHook::new([HookStep::Slow(SECOND)]);
    let mut daemon = Daemon::new(with_hooks(unswept(), [hooked("a", &hook)]));
    daemon.live(async |engine| {
        end_one(engine).await;
        sleep(SECOND / 2).await;
    });
    assert_eq!((hook.count(), hook.under_way()), (1, 0));
    daemon.live(async |engine| {
        settle().await;
        assert_eq!(only_delivery(engine).await.state, DeliveryState::Done);
    });
    let calls = hook.calls();
    assert_eq!((calls.len(), &calls[0].delivery), (2, &calls[1].delivery));
    assert_eq!(calls[0].content, calls[1].content, "to the last byte");
}

#[test]
fn delivery_whose_outcome_was_not_written_is_repeated() {
    let hook = ScriptedHook::new([]);
    let mut daemon = Daemon::new(with_hooks(unswept(), [hooked("a", &hook)]));
    daemon.store.fail_outcomes(u64::MAX);
    daemon.live(async |engine| {
        end_one(engine).await;
        sleep(SECOND).await;
    });
    assert_eq!(hook.count(), 1);
    daemon.store.fail_outcomes(0);
    daemon.live(async |engine| {
        settle().await;
        assert_eq!(only_delivery(engine).await.state, DeliveryState::Done);
    });
    assert_eq!(
        (hook.count(), hook.calls()[1].attempt),
        (2, 1),
        "its first try was not counted"
    );
}

#[test]
fn tries_and_pauses_continue_after_crash() {
    let hook = ScriptedHook::always(HookStep::After(50 * SECOND));
    let mut daemon = Daemon::new(with_hooks(unswept(), [hooked("a", &hook)]));
    for life in 1..=8_u32 {
        daemon.live(async |engine| {
            if life == 1 {
                end_one(engine).await;
            }
            sleep(26 * SECOND).await;
            let owed = only_delivery(engine).await;
            assert_eq!(owed.tries, 26 * life / 50 + 1, "life {life}");
        });
    }
    let times = hook.times_ms();
    assert!(
        times.windows(2).all(|pair| pair[1] - pair[0] >= 50_000),
        "{times:?}"
    );
}

#[test]
fn many_crashes_amid_deliveries_lose_none() {
    let hook = ScriptedHook::always(HookStep::Slow(SECOND));
    let mut daemon = Daemon::new(with_hooks(unswept(), [hooked("a", &hook)]));
    daemon.live(async |engine| {
        let bot = Bot::acme(engine);
        for id in 0..40 {
            bot.say(&id.to_string(), &id.to_string()).await.unwrap();
            bot.end(&id.to_string()).await.unwrap();
        }
    });
    for _ in 0..20 {
        daemon.live(async |_| sleep(SECOND * 5 / 2).await);
    }
    daemon.live(async |engine| assert_eq!(states(engine).await, [DeliveryState::Done; 40]));
    let mut seen: Vec<String> = hook
        .seen()
        .iter()
        .map(|ended| turn_texts(ended).concat())
        .collect();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), 40);
    // Each crash repeats at most the calls in flight.
    assert!(hook.count() <= 40 + 20 * 4, "{} calls", hook.count());
}
