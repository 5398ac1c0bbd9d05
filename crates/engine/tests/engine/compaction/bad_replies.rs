//! Summarizers that fail, hang, write garbage or panic.
//!
//! They do not disturb the conversation, and the next good reply is accepted.

use std::sync::Arc;

use memoird_core::breaker::BreakerState;
use memoird_core::compaction::ModelSections;
use memoird_core::turn::Role;
use memoird_engine::{EngineError, FaultKind, ModelFault};

use super::opened;
use super::script::{ModelStep, Script};
use super::talk::{Talk, answering, calling, check_window, text_turn};
use crate::kit::poll_once;

/// Returns every misbehavior of a summarizer with its failure reason.
pub(super) fn bad() -> Vec<(ModelStep, &'static str)> {
    let problem = || "as it was told".to_owned();
    let apology = "I'm sorry, but I can't help with that.";
    vec![
        (ModelStep::Never, "timeout"),
        (
            ModelStep::Fails(ModelFault::new(FaultKind::Later, problem())),
            "provider_failed",
        ),
        (
            ModelStep::Fails(ModelFault::new(FaultKind::Misconfigured, problem())),
            "provider_misconfigured",
        ),
        (
            ModelStep::Fails(ModelFault::new(FaultKind::Refused, problem())),
            "provider_refused",
        ),
        (ModelStep::Writes(""), "empty"),
        (ModelStep::Writes("{\"details\": \"to ta"), "cut_off"),
        (ModelStep::Writes("{}"), "field_missing"),
        (ModelStep::Writes("[1, 2]"), "not_the_structure"),
        (ModelStep::Writes(apology), "refusal"),
        (ModelStep::Writes("Internal Server Error"), "refusal"),
        (ModelStep::Details(apology.to_owned()), "refusal"),
        (
            ModelStep::Details("Error: upstream request timed out".to_owned()),
            "refusal",
        ),
        (ModelStep::CutOff, "cut_off"),
        (ModelStep::Answers(ModelSections::default()), "empty"),
        (ModelStep::Panics, "panicked"),
    ]
}

/// A conversation with tool calls whose window has not been cut yet.
async fn talked(script: &Arc<Script>) -> (crate::kit::World, Talk) {
    let (world, bot) = opened(script).await;
    let mut talk = Talk::new(&bot, "a");
    for calls in [0, 1, 2, 3] {
        talk.exchange_with_tools(calls).await;
        talk.exchange().await;
    }
    (world, talk)
}

#[tokio::test(start_paused = true)]
async fn bad_summarizer_reply_does_not_disturb_conversation() {
    for (step, reason) in bad() {
        println!("{step:?}");
        let script = Script::new([step.clone()]);
        let (_world, mut talk) = talked(&script).await;
        let before = talk.window().await;
        let other = talk.clone();
        let mut compacting = Box::pin(other.compact(Some(2)));
        assert!(poll_once(&mut compacting).await.is_none());
        // Also while tool calls are pending.
        let ids = talk.ids(2);
        talk.add(vec![text_turn(Role::User, "and #500?")]).await;
        talk.add(vec![calling("I look", &ids)]).await;
        talk.window().await;
        talk.add(vec![answering("one", &ids[0])]).await;
        talk.add(vec![answering("two", &ids[1])]).await;
        let during = talk.window().await;
        talk.add(vec![text_turn(Role::Assistant, "both of them")])
            .await;
        let failure = compacting.await.expect_err("no summary");
        let EngineError::CompactionFailed { reason: told, .. } = &failure else {
            panic!("{step:?}: {failure}")
        };
        assert_eq!(*told, reason, "{failure}");
        let after = talk.window().await;
        assert!(after.report.summary.is_none(), "{step:?}");
        for longer in [&during, &after] {
            let sent = longer.turns.iter().zip(before.turns.iter());
            assert!(sent.clone().count() == before.turns.len());
            assert!(
                sent.clone().all(|(new, old)| new.content == old.content),
                "{step:?}"
            );
        }
        assert_eq!(talk.breaker().await, (BreakerState::Closed, 1), "{step:?}");
        assert!(
            talk.status().await.last_error.starts_with(reason),
            "{:?}",
            talk.status().await
        );
        assert!(!talk.status().await.running);
        talk.check_journal().await;
        // The next good reply is accepted.
        let done = talk.compact(Some(2)).await.expect("the next one is good");
        assert!(done.is_new);
        assert!(talk.window().await.report.summary.is_some());
        assert_eq!(talk.breaker().await, (BreakerState::Closed, 0), "{step:?}");
        assert!(talk.status().await.last_error.is_empty());
        talk.exchange_with_tools(2).await;
        talk.window().await;
        talk.check_journal().await;
    }
}

#[tokio::test(start_paused = true)]
async fn permanently_bad_summarizer_never_corrupts_windows() {
    for (step, _) in bad() {
        println!("{step:?}");
        let script = Script::always(step.clone());
        let (_world, bot) = opened(&script).await;
        let mut talk = Talk::new(&bot, "a");
        let mut most = 0;
        for number in 0..40 {
            talk.exchange_with_tools(number % 4).await;
            let outcome = talk.window().await;
            assert!(outcome.report.summary.is_none(), "{step:?}");
            most = most.max(outcome.report.turns_omitted);
            // Long enough for a hanging summarizer to time out eventually.
            tokio::time::sleep(std::time::Duration::from_secs(20)).await;
        }
        assert!(most > 0, "a cut was made");
        assert_ne!(talk.breaker().await.0, BreakerState::Closed, "{step:?}");
        talk.check_journal().await;
        assert!(
            script.times() < 25,
            "{step:?}: it was asked {} times",
            script.times()
        );
    }
}

#[tokio::test(start_paused = true)]
async fn error_text_never_becomes_a_summary() {
    let texts = [
        "I'm sorry, but I can't help with that.",
        "Error code: 429 - rate limit exceeded",
        "HTTP 500 Internal Server Error",
        "As an AI language model, I cannot summarize this conversation.",
    ];
    let object = "{\"error\": {\"message\": \"context_length_exceeded\"}}";
    for text in texts.into_iter().chain([object]) {
        let details = ModelStep::Details(text.to_owned());
        let is_prose = text != object;
        for step in [ModelStep::Writes(text)]
            .into_iter()
            .chain(is_prose.then_some(details))
        {
            let script = Script::new([step.clone()]);
            let (_world, talk) = talked(&script).await;
            let reason = talk.fails(Some(2)).await;
            println!("{step:?}: {reason}");
            let outcome = talk.window().await;
            assert!(outcome.report.summary.is_none());
            check_window(&outcome);
        }
    }
}
