//! A working provider, with each of the three APIs.

use memoird_proto::v1::BreakerState;
use serde_json::Value;

use crate::harness::{
    Daemon, Events, Summaries, SummaryReply, Wire, detail, eventually, without_nonce,
};
use crate::windows::bot::report;

use super::bot::{
    Bot, ROOMY, STRICT, counted, daemon, event_maker, event_text, order, sum, summary,
};

/// Asserts that a request follows the provider's API documentation.
#[track_caller]
fn is_well_formed(wire: Wire, body: &Value) {
    match wire {
        Wire::Anthropic => {
            assert_eq!(
                (&body["model"], &body["messages"][0]["role"]),
                (&"small".into(), &"user".into())
            );
            assert!(
                body["max_tokens"].as_u64() > Some(100) && body["system"].is_string(),
                "{body}"
            );
        }
        Wire::OpenAi => {
            assert_eq!(body["model"], "small");
            let roles = [0, 1].map(|place| body["messages"][place]["role"].clone());
            assert_eq!(roles, ["system", "user"]);
            assert!(body["max_tokens"].as_u64() > Some(100), "{body}");
        }
        Wire::Webhook => {
            assert_eq!(
                (&body["tenant"], &body["session_id"]),
                (&"default".into(), &"chat".into())
            );
            let turns = body["turns"].as_array().expect("turns");
            let roles = ["user", "assistant", "tool"];
            for turn in turns {
                assert!(roles.iter().any(|role| turn["role"] == *role), "{turn}");
                assert!(turn["text"].is_string() && turn["seq"].is_u64(), "{turn}");
            }
            assert!(
                body["version"] == 2 && body["tokens_max"].is_u64(),
                "{body}"
            );
        }
    }
}

/// Three summaries in a row, each with all facts of the previous ones.
async fn check_three_summaries(wire: Wire) {
    let provider = Summaries::start(SummaryReply::Well).await;
    let daemon = daemon(&provider, wire, "").await;
    let mut bot = Bot::patient(&daemon);
    let mut events = Events::now(&mut daemon.sessions()).await;
    let mut through_seq = 0;
    for number in 1..=3_u32 {
        let event = bot.until(&mut events, "compacted").await;
        let told_of = detail(&event);
        assert_eq!(told_of["number"], number);
        assert_eq!(told_of["first_seq"], through_seq + 1);
        assert_eq!(
            (event_maker(&event), event.session_id.as_str()),
            (wire.made_by().to_owned(), "chat")
        );
        assert_eq!(
            event_text(&event, "trigger"),
            "COMPACTION_TRIGGER_PREEMPTIVE"
        );
        assert!(
            told_of["tokens_before"].as_u64() > told_of["tokens_after"].as_u64(),
            "{told_of}"
        );
        through_seq = told_of["through_seq"].as_u64().expect("a seq");
        let text = bot.until_shown(number).await;
        let window = bot.window().await;
        let info = report(&window).summary.clone().expect("a summary");
        assert_eq!((info.number, info.through_seq), (number, through_seq));
        assert_eq!(info.model, wire.made_by());
        assert!(
            report(&window).tokens_total <= 5_000,
            "a sixth is free: {window:?}"
        );
        let seen = bot.session_detail().await;
        assert_eq!(seen.summary_text, without_nonce(&text));
        let state = seen
            .session
            .and_then(|session| session.compaction)
            .expect("its state");
        assert_eq!(
            (state.breaker(), state.consecutive_failures),
            (BreakerState::Closed, 0)
        );
        assert_eq!((state.last_error.as_str(), state.summaries), ("", number));
        // The last summary still has the first one's facts: no other turn mentions order 1.
        assert!(text.contains(&order(1)), "{text}");
    }
    for call in provider.calls() {
        is_well_formed(wire, &call.body);
        assert!(
            wire.prompt(&call.body).contains("<transcript "),
            "{}",
            call.body
        );
    }
    let last = provider.calls().pop().expect("a call");
    assert!(
        wire.prompt(&last.body).contains("<earlier "),
        "the summary before it is given"
    );
    bot.journal_is_whole().await;
    assert_eq!(
        (
            counted(&daemon, "made").await,
            counted(&daemon, "failed").await
        ),
        (3, 0)
    );
    assert!(sum(&daemon, "memoird_compaction_tokens_before_total{", "").await > 3_000);
    assert_eq!(
        sum(&daemon, "memoird_summarizer_breaker{", wire.made_by()).await,
        0
    );
    assert_eq!(
        sum(&daemon, "memoird_compaction_seconds_count", "").await,
        3
    );
}

#[tokio::test]
async fn anthropic_provider_summarizes() {
    check_three_summaries(Wire::Anthropic).await;
}

#[tokio::test]
async fn openai_compatible_provider_summarizes() {
    check_three_summaries(Wire::OpenAi).await;
}

#[tokio::test]
async fn webhook_provider_summarizes() {
    check_three_summaries(Wire::Webhook).await;
}

#[tokio::test]
async fn appends_and_windows_continue_during_compaction() {
    let provider = Summaries::start(SummaryReply::Held).await;
    let daemon = daemon(&provider, Wire::Anthropic, "").await;
    let mut bot = Bot::new(daemon.sessions());
    let mut events = Events::now(&mut daemon.sessions()).await;
    while provider.calls().is_empty() {
        bot.exchange().await;
        assert!(
            bot.session_detail()
                .await
                .session
                .expect("a session")
                .last_seq
                < 200,
            "it is asked"
        );
    }
    let info = bot.session_detail().await.session.expect("a session");
    assert!(info.compaction.expect("its state").running);
    // More than a window holds. Nothing waits for the provider.
    bot.exchanges(40).await;
    assert_eq!((provider.calls().len(), provider.answered()), (1, 0));
    let window = bot.window().await;
    assert!(
        summary(&window).is_none() && !report(&window).omissions.is_empty(),
        "it is cut"
    );
    assert!(
        report(&window).degraded || !report(&window).notes.is_empty(),
        "and says so"
    );
    provider.set_reply(SummaryReply::Well);
    provider.let_through(1);
    let made = loop {
        let event = events.next().await;
        if event.word() == "compacted" {
            break detail(&event);
        }
    };
    let through_seq = made["through_seq"].as_u64().expect("a seq");
    let window = bot.window().await;
    assert!(summary(&window).expect("a summary").contains(&order(1)));
    let cut = report(&window)
        .omissions
        .iter()
        .filter(|gap| gap.first_seq > through_seq);
    assert!(
        cut.count() <= 2,
        "what came meanwhile is shown, or cut: {:?}",
        report(&window)
    );
    // Turns appended in the meantime are part of the next summary.
    let next = bot.until(&mut events, "compacted").await;
    assert_eq!(detail(&next)["first_seq"], through_seq + 1);
    let text = bot.until_shown(2).await;
    assert!(
        text.contains(&order(0)) && text.contains(&order(20)),
        "{text}"
    );
    bot.journal_is_whole().await;
}

#[tokio::test]
async fn summary_is_byte_identical_until_the_next_one() {
    let provider = Summaries::start(SummaryReply::Well).await;
    let daemon = daemon(&provider, Wire::OpenAi, "").await;
    let mut bot = Bot::new(daemon.sessions());
    let mut events = Events::now(&mut daemon.sessions()).await;
    bot.until(&mut events, "compacted").await;
    let text = bot.until_shown(1).await;
    loop {
        let window = bot.exchange().await;
        let info = report(&window).summary.clone().expect("a summary");
        match info.number {
            1 => assert_eq!(summary(&window), Some(&*text)),
            _ => break assert_ne!(summary(&window), Some(&*text)),
        }
    }
}

#[tokio::test]
async fn span_longer_than_input_limit_is_summarized_in_chunks() {
    let provider = Summaries::start(SummaryReply::Well).await;
    let daemon = daemon(&provider, Wire::Webhook, "input_tokens: 1000,").await;
    let mut bot = Bot::new(daemon.sessions());
    let mut events = Events::now(&mut daemon.sessions()).await;
    let event = bot.until(&mut events, "compacted").await;
    let calls = provider.calls();
    assert!(calls.len() >= 3, "{} calls", calls.len());
    let pieces = |body: &Value| body["pieces"].as_array().map_or(0, Vec::len);
    let last = calls.last().expect("a call");
    assert!(pieces(&last.body) >= 2, "they become one: {}", last.body);
    // The pieces cover the span exactly, and none splits a tool call.
    let parts = calls.iter().filter(|call| pieces(&call.body) == 0);
    let seqs: Vec<u64> = parts
        .flat_map(|call| call.body["turns"].as_array().expect("turns").clone())
        .filter_map(|turn| turn["seq"].as_u64())
        .collect();
    let through_seq = detail(&event)["through_seq"].as_u64().expect("a seq");
    assert!(seqs.iter().copied().eq(1..=through_seq), "{seqs:?}");
    let text = bot.until_shown(1).await;
    assert!(text.contains(&order(1)), "{text}");
}

#[tokio::test]
async fn busy_provider_is_retried_after_retry_after() {
    let provider = Summaries::start(SummaryReply::Well).await;
    provider.set_replies(
        &[SummaryReply::Busy(1), SummaryReply::Broken],
        SummaryReply::Well,
    );
    let daemon = Daemon::with(
        provider
            .setup(Wire::OpenAi, "tries: 3,", STRICT)
            .section(ROOMY),
    );
    let daemon = daemon.await;
    let mut bot = Bot::new(daemon.sessions());
    let mut events = Events::now(&mut daemon.sessions()).await;
    bot.until(&mut events, "compacted").await;
    let calls = eventually("three tries", async || {
        let calls = provider.calls();
        (calls.len() >= 3).then_some(calls)
    });
    let times: Vec<i64> = calls.await.iter().map(|call| call.at_ms).collect();
    assert!(
        times[1] - times[0] >= 990,
        "Retry-After is heeded: {times:?}"
    );
    assert!(
        times[2] - times[1] >= 400,
        "and there is a pause of one's own: {times:?}"
    );
    assert_eq!(
        (
            counted(&daemon, "made").await,
            counted(&daemon, "failed").await
        ),
        (1, 0)
    );
    let state = bot
        .session_detail()
        .await
        .session
        .and_then(|session| session.compaction);
    assert_eq!(
        state.expect("its state").consecutive_failures,
        0,
        "a try is no failure"
    );
}
