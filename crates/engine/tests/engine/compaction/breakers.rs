//! Circuit breakers of a session and of the provider.
//!
//! Covers when they open, when a trial runs, and that they never fail a call.

use std::sync::Arc;
use std::time::Duration;

use memoird_core::breaker::BreakerState::{Closed, HalfOpen, Open};
use memoird_core::turn::LABEL;
use memoird_core::window::OmissionReason;
use memoird_engine::{FaultKind, ModelFault, TenantLimits};
use tokio::sync::Notify;
use tokio::time::sleep;

use super::script::{ModelStep, Script};
use super::talk::{Talk, opened as turns_of};
use super::{compacting, opened};
use crate::bot::Bot;
use crate::kit::{ACME, World, poll_once, settle, tenant};

fn refused() -> ModelStep {
    ModelStep::Fails(ModelFault::new(FaultKind::Refused, "no"))
}

fn later() -> ModelStep {
    ModelStep::Fails(ModelFault::new(FaultKind::Later, "down"))
}

/// Talks until the session's breaker opens.
async fn broken(script: &Arc<Script>, talk: &mut Talk) {
    for _ in 0..60 {
        talk.exchange_with_tools(1).await;
        talk.window().await;
        settle().await;
        if talk.breaker().await.0 == Open {
            assert_eq!(talk.breaker().await, (Open, 3));
            assert_eq!(script.times(), 3);
            return;
        }
    }
    panic!("it never opened");
}

#[tokio::test(start_paused = true)]
async fn breaker_opens_after_three_failures_and_tries_every_five_turns() {
    let script = Script::always(refused());
    let (_world, bot) = opened(&script).await;
    let mut talk = Talk::new(&bot, "a");
    broken(&script, &mut talk).await;
    let opened_at = talk.bot.view("a").await.unwrap().head.last_seq;
    let mut has_cut = false;
    for trial in 1..=4 {
        // The summarizer is not called while the breaker is open.
        for _ in 0..2 {
            talk.exchange().await;
            let outcome = talk.window().await;
            settle().await;
            let cut =
                |omission: &memoird_core::window::Omission| omission.reason == OmissionReason::Cut;
            if outcome.report.omissions.iter().any(cut) {
                let turns = turns_of(&outcome.turns);
                let labels = turns.iter().filter_map(|turn| turn.metadata.get(LABEL));
                assert!(
                    labels.into_iter().any(|label| label == "elision"),
                    "it is marked"
                );
                has_cut = true;
            }
        }
        assert_eq!(talk.breaker().await.0, Open);
        assert_eq!(
            script.times(),
            2 + trial,
            "nobody is asked while it is open"
        );
        talk.exchange().await;
        assert_eq!(talk.breaker().await.0, HalfOpen);
        if trial == 4 {
            script.will_now(ModelStep::Well);
        }
        talk.window().await;
        settle().await;
        assert_eq!(script.times(), 3 + trial, "one trial");
    }
    assert!(talk.bot.view("a").await.unwrap().head.last_seq > opened_at);
    assert!(has_cut, "windows are cut meanwhile");
    assert_eq!(talk.breaker().await, (Closed, 0));
    assert!(talk.window().await.report.summary.is_some());
    talk.check_journal().await;
}

#[tokio::test(start_paused = true)]
async fn breaker_allows_one_trial_after_cool_down_across_restarts() {
    let script = Script::always(refused());
    let (world, bot) = opened(&script).await;
    let mut talk = Talk::new(&bot, "a");
    broken(&script, &mut talk).await;
    let before = talk.status().await;
    assert_eq!(bot.stats().compaction.breakers_open, 1);
    bot.engine.close().await;
    let bot = Bot::acme(&world.open().await);
    let mut talk = talk.again(&bot);
    assert_eq!(talk.breaker().await, (Open, 3), "it survives");
    assert_eq!(talk.status().await.last_error, before.last_error);
    assert_eq!(bot.stats().compaction.breakers_open, 1);
    talk.window().await;
    settle().await;
    assert_eq!(script.times(), 3);
    sleep(Duration::from_secs(5 * 60)).await;
    assert_eq!(talk.breaker().await.0, HalfOpen);
    // Several windows cause only one trial.
    for _ in 0..3 {
        talk.window().await;
    }
    settle().await;
    assert_eq!((script.times(), talk.breaker().await), (4, (Open, 4)));
    sleep(Duration::from_secs(5 * 60)).await;
    script.will_now(ModelStep::Well);
    talk.window().await;
    settle().await;
    assert_eq!(talk.breaker().await, (Closed, 0));
    assert_eq!(bot.stats().compaction.breakers_open, 0);
    talk.exchange().await;
    talk.check_journal().await;
}

#[tokio::test(start_paused = true)]
async fn breaker_is_removed_with_its_session() {
    for way in 0..3 {
        let script = Script::always(refused());
        let (_world, bot) = opened(&script).await;
        let mut talk = Talk::new(&bot, "a");
        broken(&script, &mut talk).await;
        assert_eq!(bot.stats().compaction.breakers_open, 1);
        match way {
            0 => drop(bot.end("a").await.unwrap()),
            1 => drop(bot.reset("a").await.unwrap()),
            _ => drop(bot.reset_with_hooks("a").await.unwrap()),
        }
        assert_eq!(bot.stats().compaction.breakers_open, 0, "way {way}");
        let mut talk = Talk::new(&bot, "a");
        talk.exchange().await;
        assert_eq!(talk.breaker().await, (Closed, 0));
    }
}

/// The tenants `acme` and `other` with the same summarizer.
async fn two_tenants(script: &Arc<Script>) -> (World, Bot, Bot) {
    let mut config = compacting(script);
    config.tenants = [ACME, "other"]
        .map(|id| tenant(id, TenantLimits::default()))
        .into();
    let world = World::new(config);
    let engine = world.open().await;
    let bots = (Bot::acme(&engine), Bot::new(&engine, "other"));
    (world, bots.0, bots.1)
}

#[tokio::test(start_paused = true)]
async fn provider_breaker_opens_for_all_sessions_but_not_session_breakers() {
    let script = Script::always(later());
    let (_world, acme, other) = two_tenants(&script).await;
    let mut talks = Vec::new();
    for session in ["a", "b", "c"] {
        let mut talk = Talk::new(&acme, session);
        talk.exchanges(6).await;
        talks.push(talk);
    }
    for talk in &talks {
        assert_eq!(talk.fails(Some(2)).await, "provider_failed");
    }
    assert_eq!(script.times(), 3);
    assert_eq!(
        acme.engine.compaction.summarizer_state(),
        Some(("script".to_owned(), Open))
    );
    // The provider is not called again, and the sessions' own breakers stay closed.
    let mut innocent = Talk::new(&other, "a");
    for _ in 0..40 {
        innocent.exchange().await;
        innocent.window().await;
        settle().await;
    }
    assert_eq!(innocent.fails(Some(2)).await, "provider_down");
    assert_eq!((script.times(), innocent.breaker().await), (3, (Closed, 0)));
    // After its cool-down one trial is admitted.
    let allowed = Arc::new(Notify::new());
    script.will_now(ModelStep::Waits(allowed.clone()));
    sleep(Duration::from_secs(60)).await;
    let state = acme.engine.compaction.summarizer_state().unwrap().1;
    assert_eq!(state, HalfOpen);
    let tried = talks[0].clone();
    let mut trial = Box::pin(tried.compact(Some(2)));
    assert!(poll_once(&mut trial).await.is_none());
    settle().await;
    assert_eq!(script.times(), 4);
    assert_eq!(innocent.fails(Some(2)).await, "provider_down");
    assert_eq!(script.times(), 4, "one trial");
    allowed.notify_one();
    trial.await.unwrap();
    script.will_now(ModelStep::Well);
    innocent.compact(Some(2)).await.unwrap();
    innocent.check_journal().await;
}

#[tokio::test(start_paused = true)]
async fn retry_after_of_provider_is_respected_by_all_sessions() {
    let script = Script::always(ModelStep::Fails(ModelFault {
        after: Some(Duration::from_secs(600)),
        ..ModelFault::new(FaultKind::Later, "busy")
    }));
    let (_world, acme, other) = two_tenants(&script).await;
    let mut talk = Talk::new(&acme, "a");
    talk.exchanges(6).await;
    let mut neighbour = Talk::new(&other, "a");
    neighbour.exchanges(6).await;
    assert_eq!(talk.fails(Some(2)).await, "provider_failed");
    script.will_now(ModelStep::Well);
    for asked in [&talk, &neighbour] {
        assert_eq!(asked.fails(Some(2)).await, "provider_down");
    }
    sleep(Duration::from_secs(599)).await;
    assert_eq!(neighbour.fails(Some(2)).await, "provider_down");
    assert_eq!(script.times(), 1, "nobody called it");
    sleep(Duration::from_secs(1)).await;
    talk.compact(Some(2)).await.unwrap();
    neighbour.compact(Some(2)).await.unwrap();
    assert_eq!(script.times(), 3);
}

#[tokio::test(start_paused = true)]
async fn hanging_provider_opens_the_breaker_and_a_local_summarizer_has_none() {
    let script = Script::always(ModelStep::Never);
    let (_world, bot) = opened(&script).await;
    for session in ["a", "b", "c"] {
        let mut talk = Talk::new(&bot, session);
        talk.exchanges(6).await;
        assert_eq!(talk.fails(Some(2)).await, "timeout");
    }
    let mut talk = Talk::new(&bot, "d");
    talk.exchanges(6).await;
    assert_eq!(talk.fails(Some(2)).await, "provider_down");
    let state = bot.engine.compaction.summarizer_state();
    assert_eq!(state, Some(("script".to_owned(), Open)));

    let mut scripted = Script::then([], ModelStep::Never);
    scripted.is_remote = false;
    let script = Arc::new(scripted);
    let (_world, bot) = opened(&script).await;
    let mut talk = Talk::new(&bot, "a");
    talk.exchanges(6).await;
    assert!(talk.compact(Some(2)).await.unwrap().is_new);
    assert_eq!(script.times(), 0, "it is not called");
    assert_eq!(bot.engine.compaction.summarizer_state(), None);
}

#[tokio::test(start_paused = true)]
async fn compact_commands_without_gain_do_not_open_breaker() {
    let script = Script::new([]);
    let (_world, bot) = opened(&script).await;
    let mut talk = Talk::new(&bot, "a");
    talk.add(vec![super::talk::text_turn(
        memoird_core::turn::Role::User,
        "hi",
    )])
    .await;
    talk.add(vec![super::talk::text_turn(
        memoird_core::turn::Role::Assistant,
        "hello",
    )])
    .await;
    for _ in 0..4 {
        assert!(!talk.compact(Some(0)).await.unwrap().is_new);
    }
    assert_eq!((script.times(), talk.breaker().await), (0, (Closed, 0)));
    talk.exchanges(6).await;
    assert!(talk.compact(Some(0)).await.unwrap().is_new);
}
