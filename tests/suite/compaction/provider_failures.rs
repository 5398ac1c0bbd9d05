//! Providers that fail, reply with garbage, or hang.
//!
//! The session continues, its windows are cut, and an invalid reply never becomes a summary.

use crate::harness::{Daemon, Events, Summaries, SummaryReply, Wire, ask_as, detail, fails};
use crate::windows::bot::report;
use memoird_proto::v1::BreakerState;

use super::bot::{Bot, counted, daemon, event_text, order, sum, summary};

/// How a failure is reported.
struct ExpectedFailure {
    reason: &'static str,
    /// A word of the error message.
    word: &'static str,
    /// Label in the metrics.
    outcome: &'static str,
}

const fn failed(reason: &'static str, word: &'static str) -> ExpectedFailure {
    ExpectedFailure {
        reason,
        word,
        outcome: "failed",
    }
}

const fn rejected(reason: &'static str, word: &'static str) -> ExpectedFailure {
    ExpectedFailure {
        reason,
        word,
        outcome: "rejected",
    }
}

/// Three failures of this kind under traffic, and then a provider that works again.
async fn check_failures_then_recovery(wire: Wire, reply: SummaryReply, expected: ExpectedFailure) {
    let provider = Summaries::start(reply).await;
    let daemon = daemon(&provider, wire, "tries: 1, timeout: 300ms,").await;
    let mut bot = Bot::new(daemon.sessions());
    let mut events = Events::now(&mut daemon.sessions()).await;
    for failure in 1..=3_u32 {
        let event = bot.until(&mut events, "compaction_failed").await;
        let breaker = if failure == 3 { "OPEN" } else { "CLOSED" };
        let breaker = format!("BREAKER_STATE_{breaker}");
        assert_eq!(event_text(&event, "breaker"), breaker, "{event:?}");
        assert_eq!(event_text(&event, "reason"), expected.reason, "{event:?}");
        assert!(
            event_text(&event, "error").contains(expected.word),
            "{event:?}"
        );
        assert_eq!(event.session_id, "chat");
        let seen = bot.session_detail().await;
        let state = seen
            .session
            .and_then(|session| session.compaction)
            .expect("its state");
        assert!(state.consecutive_failures >= failure, "{state:?}");
        assert!(state.last_error.starts_with(expected.reason), "{state:?}");
        assert!(state.last_error.contains(expected.word), "{state:?}");
        assert_eq!((seen.summary, seen.summary_text.as_str()), (None, ""));
    }
    let state = bot
        .session_detail()
        .await
        .session
        .and_then(|session| session.compaction);
    // If the state is read late, a trial may have failed too.
    assert!(state.expect("its state").consecutive_failures >= 3);
    assert!(counted(&daemon, expected.outcome).await >= 3);
    assert_eq!(counted(&daemon, "made").await, 0);
    assert_eq!(
        sum(&daemon, "memoird_compaction_breakers_opened_total{", "").await,
        1
    );
    bot.exchanges(10).await;
    assert!(summary(&bot.window().await).is_none());
    bot.journal_is_whole().await;
    check_recovery(&provider, &daemon, &mut bot, &mut events).await;
}

async fn check_recovery(provider: &Summaries, daemon: &Daemon, bot: &mut Bot, events: &mut Events) {
    provider.set_reply(SummaryReply::Well);
    let event = bot.until(events, "compacted").await;
    assert_eq!(
        detail(&event)["first_seq"],
        1,
        "nothing was lost meanwhile: {event:?}"
    );
    let state = bot
        .session_detail()
        .await
        .session
        .and_then(|session| session.compaction);
    let state = state.expect("its state");
    assert_eq!(
        (state.breaker(), state.consecutive_failures),
        (BreakerState::Closed, 0)
    );
    assert_eq!(state.last_error, "");
    assert_eq!(
        sum(daemon, "memoird_compaction_breakers_open{", "").await,
        0
    );
    let window = bot.window().await;
    let text = summary(&window).expect("a summary");
    assert!(
        text.contains(&order(0)) && text.contains("The assistant looked orders up."),
        "the task, and what the model wrote: {text}"
    );
    bot.journal_is_whole().await;
}

#[tokio::test]
async fn hanging_provider_opens_breaker_and_recovers() {
    check_failures_then_recovery(
        Wire::Anthropic,
        SummaryReply::Never,
        failed("provider_failed", "no answer within 300ms"),
    )
    .await;
}

#[tokio::test]
async fn busy_provider_opens_breaker_and_recovers() {
    let expected = failed("provider_failed", "429 Too Many Requests");
    check_failures_then_recovery(Wire::OpenAi, SummaryReply::Busy(0), expected).await;
}

#[tokio::test]
async fn failing_provider_opens_breaker_and_recovers() {
    let expected = failed("provider_failed", "500 Internal Server Error");
    check_failures_then_recovery(Wire::Webhook, SummaryReply::Broken, expected).await;
}

#[tokio::test]
async fn truncated_summary_opens_breaker_and_recovers() {
    check_failures_then_recovery(
        Wire::Anthropic,
        SummaryReply::HalfSummary,
        rejected("cut_off", ""),
    )
    .await;
    check_failures_then_recovery(
        Wire::Webhook,
        SummaryReply::HalfSummary,
        rejected("cut_off", ""),
    )
    .await;
}

#[tokio::test]
async fn truncated_response_opens_breaker_and_recovers() {
    let expected = failed("provider_failed", "not a JSON object");
    check_failures_then_recovery(Wire::OpenAi, SummaryReply::HalfAnswer, expected).await;
}

#[tokio::test]
async fn empty_json_summary_opens_breaker_and_recovers() {
    check_failures_then_recovery(
        Wire::OpenAi,
        SummaryReply::Braces,
        rejected("field_missing", "details"),
    )
    .await;
    check_failures_then_recovery(
        Wire::Webhook,
        SummaryReply::Braces,
        rejected("field_missing", "details"),
    )
    .await;
}

#[tokio::test]
async fn apology_as_summary_opens_breaker_and_recovers() {
    check_failures_then_recovery(
        Wire::Anthropic,
        SummaryReply::Apology,
        rejected("refusal", ""),
    )
    .await;
}

#[tokio::test]
async fn closed_connection_opens_breaker_and_recovers() {
    check_failures_then_recovery(
        Wire::Anthropic,
        SummaryReply::Closes,
        failed("provider_failed", "no answer"),
    )
    .await;
}

#[tokio::test]
async fn input_always_too_long_opens_breaker_and_recovers() {
    let expected = failed("too_long", "400 Bad Request");
    check_failures_then_recovery(Wire::OpenAi, SummaryReply::Narrow(0), expected).await;
}

#[tokio::test]
async fn input_too_long_is_summarized_in_chunks() {
    for wire in Wire::ALL {
        let provider = Summaries::start(SummaryReply::Narrow(5_000)).await;
        let daemon = daemon(&provider, wire, "tries: 1,").await;
        let mut bot = Bot::new(daemon.sessions());
        let mut events = Events::now(&mut daemon.sessions()).await;
        for _ in 0..2 {
            bot.until(&mut events, "compacted").await;
        }
        let calls = provider.calls();
        assert!(calls.len() >= 4, "{wire:?}: {} calls", calls.len());
        assert!(wire.prompt(&calls[0].body).len() > 5_000);
        assert_eq!(counted(&daemon, "failed").await, 0, "{wire:?}");
        let window = bot.window().await;
        assert!(
            summary(&window).expect("a summary").contains(&order(1)),
            "{wire:?}"
        );
        bot.journal_is_whole().await;
    }
}

#[tokio::test]
async fn failed_manual_compaction_is_reported_to_caller() {
    let provider = Summaries::start(SummaryReply::Apology).await;
    let daemon = daemon(&provider, Wire::Anthropic, "tries: 1,").await;
    let mut bot = Bot::new(daemon.sessions());
    bot.exchanges(8).await;
    let asked = ["sessions", "compact", "chat"];
    fails(&ask_as(&daemon, &asked, "").await, 1, "COMPACTION_FAILED");
    let window = bot.window().await;
    assert!(report(&window).summary.is_none());
    bot.journal_is_whole().await;
}
