//! Durability `off`: pending deliveries and their content are held in memory, within a limit.

use std::time::Duration;

use memoird_core::change::EndReason;
use memoird_core::outbox::DeliveryState;
use memoird_engine::{Blocking, Durability, Engine, EngineConfig, HookConfig};
use tokio::time::sleep;

use super::script::{HookStep, ScriptedHook};
use super::{deliveries, hooked, only_delivery, states, turn_texts, with_hooks};
use crate::bot::{Bot, saying};
use crate::compaction::script::Script;
use crate::kit::{TTL, World, session_id, settle, soon, unswept};

const SECOND: Duration = Duration::from_secs(1);

pub(super) fn off(hooks: impl IntoIterator<Item = HookConfig>) -> EngineConfig {
    let mut config = with_hooks(unswept(), hooks);
    config.journal.durability = Durability::Off;
    config
}

pub(super) async fn open(config: EngineConfig) -> Engine {
    let machine = World::new(config.clone()).machine;
    Engine::open(config, None, machine, Blocking::Inline)
        .await
        .unwrap()
}

#[tokio::test(start_paused = true)]
async fn every_end_is_delivered_with_turns_still_in_history() {
    let hook = ScriptedHook::new([]);
    let mut config = off([hooked("a", &hook)]);
    config.limits.max_history_turns = 2;
    config.tenants[0].limits.max_sessions = Some(1);
    let engine = open(config).await;
    let bot = Bot::acme(&engine);
    bot.append("ended", saying(&["0", "1", "2", "3", "4"]))
        .await
        .unwrap();
    bot.patch("ended", r#"{"a":1}"#, None).await.unwrap();
    bot.end("ended").await.unwrap();
    bot.say("evicted", "x").await.unwrap();
    bot.say("reset", "x").await.unwrap();
    bot.reset("reset").await.unwrap();
    bot.say("reset", "y").await.unwrap();
    bot.reset_with_hooks("reset").await.unwrap();
    bot.say("reset", "first").await.unwrap();
    sleep(TTL).await;
    bot.say("reset", "second").await.unwrap();
    sleep(TTL).await;
    engine.sessions.sweep(None).await.unwrap();
    settle().await;
    let seen: Vec<_> = hook
        .seen()
        .iter()
        .map(|ended| (ended.reason, turn_texts(ended)))
        .collect();
    let texts = |texts: &[&str]| {
        texts
            .iter()
            .map(|text| (*text).to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        seen,
        [
            (EndReason::Ended, texts(&["0", "3", "4"])),
            (EndReason::Evicted, texts(&["x"])),
            (EndReason::Reset, texts(&["y"])),
            (EndReason::Expired, texts(&["first"])),
            (EndReason::Expired, texts(&["second"])),
        ]
    );
    let first = &hook.seen()[0];
    assert_eq!((first.turns_omitted, &*first.state.json), (2, r#"{"a":1}"#));
}

#[tokio::test(start_paused = true)]
async fn summary_is_delivered_with_its_turns() {
    let hook = ScriptedHook::new([]);
    let mut config = off([hooked("a", &hook)]);
    config.compaction.summarizer = Some(Script::new([]));
    let engine = open(config).await;
    let bot = Bot::acme(&engine);
    let text = |number| format!("what of #{number}? {}", "x".repeat(400));
    let texts: Vec<String> = (0..8).map(text).collect();
    for text in &texts {
        bot.say("s", text).await.unwrap();
    }
    engine
        .compaction
        .compact_session(&bot.tenant, &session_id("s"), Some(2))
        .await
        .unwrap();
    bot.end("s").await.unwrap();
    settle().await;
    let ended = hook.only();
    let summary = ended.summary.as_ref().expect("it was compacted");
    assert_eq!(
        (summary.number, &*summary.by, summary.through_seq),
        (1, "script", 6)
    );
    assert_eq!(turn_texts(&ended), texts);
}

#[tokio::test(start_paused = true)]
async fn failing_delivery_is_retried_and_given_up() {
    let hook = ScriptedHook::new([HookStep::Later, HookStep::PanicLater, HookStep::Never]);
    let engine = open(off([hooked("a", &hook)])).await;
    let bot = Bot::acme(&engine);
    bot.say("s", "hello").await.unwrap();
    bot.end("s").await.unwrap();
    sleep(10 * SECOND).await;
    let dead = only_delivery(&engine).await;
    assert_eq!(
        (hook.count(), dead.state, dead.tries),
        (3, DeliveryState::Dead, 3)
    );
    sleep(1_000 * SECOND).await;
    engine.hooks.retry_delivery(dead.id).await.unwrap();
    settle().await;
    assert_eq!(
        (hook.count(), states(&engine).await),
        (4, vec![DeliveryState::Done])
    );
    assert!(
        hook.seen()
            .iter()
            .all(|ended| turn_texts(ended) == ["hello"])
    );
}

#[tokio::test(start_paused = true)]
async fn pending_deliveries_have_a_memory_limit() {
    let hook = ScriptedHook::always(HookStep::Hang);
    let mut config = off([hooked("a", &hook)]);
    config.hooks.memory_bytes = 64 << 10;
    let engine = open(config).await;
    let bot = Bot::acme(&engine);
    let large = "x".repeat(10 << 10);
    for id in 0..20 {
        bot.say(&id.to_string(), &large).await.unwrap();
        bot.end(&id.to_string()).await.unwrap();
    }
    let owed = deliveries(&engine).await.len();
    assert!((5..=6).contains(&owed), "{owed}");
    // The hanging calls time out, and their next attempts succeed.
    hook.will_now(HookStep::Ok);
    sleep(30 * SECOND).await;
    assert!(
        states(&engine)
            .await
            .iter()
            .all(|state| *state == DeliveryState::Done)
    );
    let before = hook.count();
    for id in 0..200 {
        bot.say(&id.to_string(), &large).await.unwrap();
        bot.end(&id.to_string()).await.unwrap();
        settle().await;
    }
    assert_eq!(
        hook.count() - before,
        200,
        "nothing was owed, so there was room for each"
    );
}

#[tokio::test(start_paused = true)]
async fn states_and_empty_sessions_count_against_memory_limit() {
    let hook = ScriptedHook::always(HookStep::Hang);
    let mut config = off([hooked("a", &hook)]);
    config.hooks.memory_bytes = 256 << 10;
    let engine = open(config).await;
    let bot = Bot::acme(&engine);
    let large = format!(r#"{{"a":"{}"}}"#, "x".repeat(60 << 10));
    for id in 0..20 {
        bot.say(&id.to_string(), "hello").await.unwrap();
        bot.patch(&id.to_string(), &large, None).await.unwrap();
        bot.end(&id.to_string()).await.unwrap();
    }
    let owed = deliveries(&engine).await.len();
    assert!(
        (1..=4).contains(&owed),
        "{owed} states of 60 KiB are kept in 256 KiB"
    );
    bot.say("empty", "hello").await.unwrap();
    for _ in 0..3_000 {
        bot.reset_with_hooks("empty").await.unwrap();
    }
    let owed = deliveries(&engine).await.len();
    assert!(owed < 1_000, "{owed} deliveries are kept in 256 KiB");
}

#[tokio::test(start_paused = true)]
async fn shutdown_delivers_every_live_session() {
    let (hook, batched) = (
        ScriptedHook::new([HookStep::Later]),
        ScriptedHook::batched(100, []),
    );
    let engine = open(off([hooked("a", &hook), hooked("b", &batched)])).await;
    let bot = Bot::acme(&engine);
    for id in 0..250 {
        bot.say(&id.to_string(), &id.to_string()).await.unwrap();
    }
    soon(engine.close()).await;
    assert_eq!(
        (hook.count(), batched.count()),
        (251, 250),
        "one of them at its second try"
    );
    let mut seen: Vec<_> = hook.seen();
    seen.extend(batched.seen());
    assert!(seen.iter().all(|ended| ended.reason == EndReason::Shutdown));
    let mut texts: Vec<String> = seen
        .iter()
        .map(|ended| turn_texts(ended).concat())
        .collect();
    texts.sort_unstable();
    texts.dedup();
    assert_eq!(texts.len(), 250);
    assert!(
        states(&engine)
            .await
            .iter()
            .all(|state| *state == DeliveryState::Done)
    );
}

#[tokio::test(start_paused = true)]
async fn shutdown_with_short_drain_delivers_immediate_batches() {
    let hook = ScriptedHook::batched(100, []);
    let mut config = off([hooked("a", &hook)]);
    config.hooks.drain = Duration::from_millis(20);
    let engine = open(config).await;
    let bot = Bot::acme(&engine);
    for id in 0..10 {
        bot.say(&id.to_string(), "hello").await.unwrap();
    }
    soon(engine.close()).await;
    assert_eq!(
        hook.count(),
        10,
        "nobody else will come to keep them company"
    );
}
