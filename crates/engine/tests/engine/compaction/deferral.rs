//! Deferred compactions and their time limits.
//!
//! A compaction waits for tool results, for streaming replies, and for the minimum number of turns
//! since the last one.

use std::sync::Arc;
use std::time::Duration;

use memoird_core::turn::Role;
use memoird_engine::EngineError;
use tokio::sync::Notify;
use tokio::time::sleep;

use super::opened;
use super::script::{ModelStep, Script};
use super::talk::{Talk, answering, calling, command, text_turn};
use crate::bot::Bot;
use crate::kit::{poll_once, settle};

const MINUTE: Duration = Duration::from_secs(60);

/// A conversation whose next turn triggers a compaction.
async fn full(bot: &Bot) -> Talk {
    let mut talk = Talk::new(bot, "a");
    loop {
        talk.exchange().await;
        // Just below the soft watermark of a 4,000-token window.
        if talk.window().await.report.blocks.total() > 2_580 {
            settle().await;
            return talk;
        }
    }
}

/// Adds a turn with two tool calls, which brings the window over the soft watermark.
async fn calls(talk: &mut Talk) -> Vec<String> {
    let ids = talk.ids(2);
    talk.add(vec![text_turn(
        Role::User,
        &format!("look {}", "x".repeat(200)),
    )])
    .await;
    talk.add(vec![calling("I look", &ids)]).await;
    ids
}

#[tokio::test(start_paused = true)]
async fn pending_call_defers_compaction_until_its_last_result() {
    let script = Script::new([]);
    let (_world, bot) = opened(&script).await;
    let mut talk = full(&bot).await;
    let ids = calls(&mut talk).await;
    for _ in 0..3 {
        assert!(talk.window().await.report.blocks.total() > 2_800);
        settle().await;
        sleep(MINUTE).await;
    }
    talk.add(vec![answering("one", &ids[0])]).await;
    talk.window().await;
    settle().await;
    assert_eq!(script.times(), 0, "one result is not all of them");
    let refused = talk.compact(None).await.expect_err("a call is pending");
    assert!(matches!(refused, EngineError::CallPending), "{refused}");
    talk.add(vec![answering("two", &ids[1])]).await;
    settle().await;
    assert_eq!(script.times(), 1, "it needs no window to go on");
    assert!(talk.has_summary().await);
}

#[tokio::test(start_paused = true)]
async fn call_pending_forever_defers_compaction_for_ten_minutes() {
    for partial in [false, true] {
        let script = Script::new([]);
        let (_world, bot) = opened(&script).await;
        let mut talk = full(&bot).await;
        if partial {
            talk.exchanges(1).await;
            let mut streaming = command(vec![text_turn(Role::Assistant, "I th")]);
            streaming.partial = true;
            bot.append("a", streaming).await.unwrap();
        } else {
            calls(&mut talk).await;
        }
        for minute in 0..10 {
            talk.window().await;
            settle().await;
            assert_eq!(script.times(), 0, "minute {minute}, partial: {partial}");
            sleep(MINUTE).await;
        }
        talk.window().await;
        settle().await;
        assert_eq!(script.times(), 1, "partial: {partial}");
        assert!(talk.has_summary().await);
    }
}

#[tokio::test(start_paused = true)]
async fn finished_streaming_reply_does_not_defer_compaction() {
    let script = Script::new([]);
    let (_world, bot) = opened(&script).await;
    let mut talk = full(&bot).await;
    talk.add(vec![text_turn(Role::User, &"x".repeat(200))])
        .await;
    let mut streaming = command(vec![text_turn(Role::Assistant, "I th")]);
    streaming.partial = true;
    bot.append("a", streaming).await.unwrap();
    talk.window().await;
    settle().await;
    let refused = talk.compact(None).await.expect_err("a reply is streaming");
    assert!(matches!(refused, EngineError::CallPending), "{refused}");
    assert_eq!(script.times(), 0);
    bot.append("a", command(vec![text_turn(Role::Assistant, "ink so")]))
        .await
        .unwrap();
    settle().await;
    assert_eq!(script.times(), 1);
}

#[tokio::test(start_paused = true)]
async fn abandoned_call_does_not_defer_compaction() {
    let script = Script::new([]);
    let (_world, bot) = opened(&script).await;
    let mut talk = full(&bot).await;
    calls(&mut talk).await;
    talk.add(vec![text_turn(Role::User, "never mind")]).await;
    talk.window().await;
    settle().await;
    assert_eq!(script.times(), 1);
    assert!(talk.has_summary().await);
    talk.compact(Some(1)).await.unwrap();
    talk.window().await;
}

#[tokio::test(start_paused = true)]
async fn call_made_while_compaction_is_queued_defers_it() {
    // Two hanging compactions take the tenant's slots, so the third is queued.
    let script = Script::new([ModelStep::Never, ModelStep::Never]);
    let (_world, bot) = opened(&script).await;
    let mut hanging = Vec::new();
    for session in ["b", "c"] {
        let mut talk = Talk::new(&bot, session);
        talk.exchanges(8).await;
        hanging.push(Box::pin(async move { talk.compact(Some(2)).await }));
    }
    for compacting in &mut hanging {
        assert!(poll_once(compacting).await.is_none());
        settle().await;
    }
    let mut talk = full(&bot).await;
    talk.exchanges(2).await;
    talk.window().await;
    let ids = calls(&mut talk).await;
    drop(hanging);
    sleep(Duration::from_secs(121)).await;
    assert_eq!(script.times(), 2, "never while a call is pending");
    talk.add(vec![answering("one", &ids[0]), answering("two", &ids[1])])
        .await;
    settle().await;
    assert_eq!(script.times(), 3);
}

#[tokio::test(start_paused = true)]
async fn compactions_are_at_least_turns_between_min_apart() {
    let script = Script::new([]);
    let mut config = super::compacting(&script);
    config.compaction.policy.turns_between_min = 9;
    // Low, so that every summary is soon followed by the next trigger.
    config.compaction.policy.soft_watermark_percent = 30;
    let world = crate::kit::World::new(config);
    let bot = Bot::acme(&world.open().await);
    let mut talk = Talk::new(&bot, "a");
    let mut made_at = Vec::new();
    for _ in 0..60 {
        talk.exchange().await;
        talk.window().await;
        settle().await;
        let status = talk.status().await;
        // An attempt on turns that are shorter than their summary makes none.
        if made_at.len() < status.summaries as usize {
            made_at.push(status.at_seq);
        }
    }
    assert!(made_at.len() > 3, "{made_at:?}");
    assert!(
        made_at.windows(2).all(|pair| pair[1] - pair[0] >= 9),
        "{made_at:?}"
    );
    assert_eq!(made_at.len(), script.times(), "nobody is asked in between");
}

#[tokio::test(start_paused = true)]
async fn concurrent_compact_commands_one_succeeds_one_is_refused() {
    let allowed = Arc::new(Notify::new());
    let script = Script::new([ModelStep::Waits(allowed.clone())]);
    let (_world, bot) = opened(&script).await;
    let mut talk = Talk::new(&bot, "a");
    talk.exchanges(8).await;
    let others = [talk.clone(), talk.clone()];
    let mut first = Box::pin(others[0].compact(Some(2)));
    let mut second = Box::pin(others[1].compact(Some(4)));
    assert!(poll_once(&mut first).await.is_none());
    assert!(poll_once(&mut second).await.is_none());
    settle().await;
    assert_eq!(script.times(), 1);
    let late = talk.compact(Some(1)).await.expect_err("one is under way");
    assert!(matches!(late, EngineError::CompactionRunning), "{late}");
    allowed.notify_one();
    let outcomes = [first.await, second.await];
    let done = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
    let told =
        |outcome: &&Result<_, EngineError>| matches!(outcome, Err(EngineError::CompactionRunning));
    assert_eq!(
        (done, outcomes.iter().filter(told).count()),
        (1, 1),
        "{outcomes:?}"
    );
    assert_eq!(talk.breaker().await.1, 0);
}

#[tokio::test(start_paused = true)]
async fn compact_keeps_requested_exchanges() {
    for (keep, through) in [
        (0, 16),
        (1, 14),
        (2, 12),
        (7, 2),
        (8, 0),
        (1_000, 0),
        (u32::MAX, 0),
    ] {
        let script = Script::new([]);
        let (_world, bot) = opened(&script).await;
        let mut talk = Talk::new(&bot, "a");
        talk.exchanges(8).await;
        if through == 2 {
            // The first exchange alone is too short for a summary to save anything.
            assert!(!talk.compact(Some(keep)).await.unwrap().is_new);
            continue;
        }
        let done = talk.compact(Some(keep)).await.unwrap();
        assert_eq!(done.is_new, through > 0, "keep {keep}");
        let summary = done.summary.map_or(0, |summary| summary.through_seq);
        assert_eq!(summary, through, "keep {keep}");
        talk.window().await;
        talk.exchange_with_tools(2).await;
        talk.window().await;
        talk.check_journal().await;
    }
}
