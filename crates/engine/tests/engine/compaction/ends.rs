//! Sessions that end while a summary is made.
//!
//! The summary is discarded, nothing hangs, and hooks receive the last committed one.

use std::sync::Arc;
use std::time::Duration;

use memoird_core::turn::Role;
use memoird_engine::EngineError;
use tokio::sync::Notify;
use tokio::time::sleep;

use super::compacting;
use super::script::{ModelStep, Script};
use super::talk::{Talk, text_turn};
use crate::bot::Bot;
use crate::hooks::script::ScriptedHook;
use crate::hooks::{hooked, with_hooks};
use crate::kit::{TTL, World, capped, poll_once, settle, soon};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Ending {
    Ends,
    Expires,
    Evicted,
    Reset,
    ResetWithHooks,
    /// Expires, and is replaced by a new generation on the next append.
    Succeeded,
}

async fn end_session(way: Ending, bot: &Bot) {
    match way {
        Ending::Ends => drop(bot.end("a").await.unwrap()),
        Ending::Reset => drop(bot.reset("a").await.unwrap()),
        Ending::ResetWithHooks => drop(bot.reset_with_hooks("a").await.unwrap()),
        Ending::Evicted => drop(bot.say("b", "I take the place").await.unwrap()),
        Ending::Expires => {
            sleep(TTL + Duration::from_secs(1)).await;
            bot.engine.sessions.sweep(None).await.unwrap();
        }
        Ending::Succeeded => {
            sleep(TTL + Duration::from_secs(1)).await;
            bot.say("a", "I come back").await.unwrap();
        }
    }
}

async fn check_ending_during_summary(way: Ending, waits_for_commit: bool) {
    let allowed = Arc::new(Notify::new());
    let script = Script::new([ModelStep::Well, ModelStep::Waits(allowed.clone())]);
    let hook = ScriptedHook::new([]);
    let mut config = with_hooks(compacting(&script), [hooked("a", &hook)]);
    config.tenants = vec![capped(crate::kit::ACME, 1)];
    config.sessions.session_ttl = TTL;
    let world = World::new(config);
    let bot = Bot::acme(&world.open().await);
    let mut talk = Talk::new(&bot, "a");
    talk.exchanges(8).await;
    talk.compact(Some(5)).await.unwrap();
    let generation = bot.view("a").await.unwrap().head.generation;
    let other = talk.clone();
    let mut second = Box::pin(other.compact(Some(2)));
    assert!(poll_once(&mut second).await.is_none());
    settle().await;
    assert_eq!(script.times(), 2);
    if waits_for_commit {
        // The commits of the end and of the summary are in flight together.
        allowed.notify_one();
    }
    end_session(way, &bot).await;
    allowed.notify_one();
    let outcome = soon(second).await;
    let is_made = outcome.is_ok();
    assert!(!is_made || waits_for_commit, "{outcome:?}");
    settle().await;
    if way != Ending::Reset {
        let ended = hook.only();
        assert_eq!(ended.generation, generation);
        let number = ended.summary.as_ref().map(|summary| summary.number);
        assert_eq!(number, Some(if is_made { 2 } else { 1 }), "{way:?}");
        assert_eq!(crate::hooks::turn_texts(&ended), talk.said);
    }
    if matches!(
        way,
        Ending::Reset | Ending::ResetWithHooks | Ending::Succeeded
    ) {
        let status = talk.status().await;
        assert_eq!(
            (status.summaries, status.failures, status.running),
            (0, 0, false),
            "{way:?}"
        );
        let mut fresh = Talk::new(&bot, "a");
        fresh.exchanges(6).await;
        let made = fresh.compact(Some(2)).await.unwrap().summary.unwrap();
        assert_eq!(made.number, 1);
        assert!(!made.text.contains("#14"), "of another life: {}", made.text);
        fresh.window().await;
    } else {
        assert!(matches!(
            bot.view("a").await,
            Err(EngineError::SessionNotFound { .. })
        ));
    }
    bot.recount().await;
}

#[tokio::test(start_paused = true)]
async fn ended_session_discards_its_running_compaction() {
    for way in [
        Ending::Ends,
        Ending::Expires,
        Ending::Evicted,
        Ending::Reset,
        Ending::ResetWithHooks,
        Ending::Succeeded,
    ] {
        for waits_for_commit in [false, true] {
            check_ending_during_summary(way, waits_for_commit).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn failed_end_keeps_session_compactable() {
    let allowed = Arc::new(Notify::new());
    let script = Script::new([ModelStep::Waits(allowed.clone())]);
    let (world, bot) = super::opened(&script).await;
    let mut talk = Talk::new(&bot, "a");
    talk.exchanges(8).await;
    let other = talk.clone();
    let mut compacting = Box::pin(other.compact(Some(2)));
    assert!(poll_once(&mut compacting).await.is_none());
    settle().await;
    world.store.fail_commits(1);
    assert!(bot.end("a").await.is_err());
    settle().await;
    allowed.notify_one();
    let _ = soon(compacting).await;
    settle().await;
    talk.add(vec![text_turn(Role::User, "still there?")]).await;
    assert!(!talk.status().await.running);
    talk.window().await;
    talk.check_journal().await;
    bot.recount().await;
}

#[tokio::test(start_paused = true)]
async fn compact_and_undo_of_missing_session_are_not_found() {
    let script = Script::new([]);
    let mut config = compacting(&script);
    config.sessions.session_ttl = TTL;
    let world = World::new(config);
    let bot = Bot::acme(&world.open().await);
    let not_found = |outcome: Result<_, EngineError>| {
        matches!(
            outcome.map(|_: ()| ()),
            Err(EngineError::SessionNotFound { .. })
        )
    };
    let mut talk = Talk::new(&bot, "a");
    assert!(not_found(talk.compact(None).await.map(drop)));
    assert!(not_found(talk.undo().await.map(drop)));
    talk.exchanges(8).await;
    talk.compact(Some(5)).await.unwrap();
    sleep(TTL).await;
    assert!(
        not_found(talk.compact(Some(1)).await.map(drop)),
        "it expired"
    );
    assert!(not_found(talk.undo().await.map(drop)), "it expired");
    assert_eq!(script.times(), 1);
}

#[tokio::test(start_paused = true)]
async fn session_that_expires_in_compaction_queue_is_not_compacted() {
    let script = Script::new([ModelStep::Never, ModelStep::Never]);
    let mut config = compacting(&script);
    config.sessions.session_ttl = TTL;
    config.compaction.timeout = TTL * 2;
    let world = World::new(config);
    let bot = Bot::acme(&world.open().await);
    let talks = ["a", "b", "c"].map(|session| Talk::new(&bot, session));
    let mut waiting = Vec::new();
    for mut talk in talks {
        talk.exchanges(8).await;
        waiting.push(Box::pin(async move { talk.compact(Some(2)).await }));
    }
    for compacting in &mut waiting {
        assert!(poll_once(compacting).await.is_none());
        settle().await;
    }
    assert_eq!(script.times(), 2, "two of a tenant at once");
    sleep(TTL * 3).await;
    let last = waiting.pop().unwrap().await;
    assert!(
        matches!(last, Err(EngineError::SessionNotFound { .. })),
        "{last:?}"
    );
    assert_eq!(script.times(), 2, "nobody pays for what is dead");
}

#[tokio::test(start_paused = true)]
async fn close_cancels_running_and_queued_compactions() {
    let script = Script::always(ModelStep::Never);
    let (_world, bot) = super::opened(&script).await;
    let mut waiting = Vec::new();
    for session in ["a", "b", "c", "d"] {
        let mut talk = Talk::new(&bot, session);
        talk.exchanges(8).await;
        waiting.push(Box::pin(async move { talk.compact(Some(2)).await }));
    }
    for compacting in &mut waiting {
        assert!(poll_once(compacting).await.is_none());
        settle().await;
    }
    assert_eq!(script.times(), 2);
    soon(bot.engine.close()).await;
    for compacting in waiting {
        let outcome = soon(compacting).await;
        assert!(matches!(outcome, Err(EngineError::Stopping)), "{outcome:?}");
    }
    let late = Talk::new(&bot, "a");
    let outcome = soon(late.compact(Some(2))).await;
    assert!(matches!(outcome, Err(EngineError::Stopping)), "{outcome:?}");
}
