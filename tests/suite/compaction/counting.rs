//! Near the watermark, the provider's token count decides whether to compact.

use crate::harness::{Daemon, Events, Setup, Summaries, SummaryReply};

use super::bot::{BUDGET, Bot, EARLY, ROOMY, counted, event_text};

/// A model whose tokens are counted by this provider.
fn setup(provider: &Summaries, counter: &str) -> Setup {
    let port = provider.port();
    let counter = counter.replace("PORT", &port.to_string());
    let models = format!(
        "ours: {{ provider: anthropic, context_window: 90000, tokenizer: estimate, counter: {counter} }}"
    );
    let context = format!("context: {{ default_model: ours, models: {{ {models} }} }}");
    Setup::default()
        .section(context)
        .section(ROOMY)
        .section(EARLY)
}

const ANTHROPIC: &str = "{ anthropic: { base_url: 'http://127.0.0.1:PORT' } }";
const VLLM: &str = "{ openai: { base_url: 'http://127.0.0.1:PORT/v1', endpoint: tokenize } }";
const OPENAI: &str =
    "{ openai: { base_url: 'http://127.0.0.1:PORT/v1', endpoint: responses_input_tokens } }";

/// A compaction is due at this number of tokens.
const DUE: u64 = BUDGET / 100 * 70;

#[tokio::test]
async fn large_token_count_triggers_compaction_before_estimate() {
    for counter in [ANTHROPIC, VLLM, OPENAI] {
        let provider = Summaries::start(SummaryReply::Well).await;
        provider.counts(200);
        let daemon = Daemon::with(setup(&provider, counter)).await;
        let mut bot = Bot::patient(&daemon);
        let mut events = Events::now(&mut daemon.sessions()).await;
        let event = bot.until(&mut events, "compacted").await;
        assert_eq!(
            event_text(&event, "trigger"),
            "COMPACTION_TRIGGER_PREEMPTIVE"
        );
        let session = bot.session_detail().await.session.expect("a session");
        assert!(session.history_tokens < DUE, "{counter}: {session:?}");
        let asked = provider.counted();
        // The next window may trigger a count before the first one returns.
        assert!(asked.len() <= 3, "{counter}: {} questions", asked.len());
        let (call, tokens) = &asked[0];
        assert!(*tokens >= DUE, "{counter}: {tokens}");
        let body = call.body.to_string();
        assert!(
            body.contains("ORD-00001") && body.contains("\"ours\""),
            "{body}"
        );
        bot.journal_is_whole().await;
    }
}

#[tokio::test]
async fn small_token_count_defers_compaction_and_is_cached() {
    let provider = Summaries::start(SummaryReply::Well).await;
    provider.counts(85);
    let daemon = Daemon::with(setup(&provider, ANTHROPIC)).await;
    let mut bot = Bot::patient(&daemon);
    let mut events = Events::now(&mut daemon.sessions()).await;
    for number in 1..=2_u64 {
        // Turns are always appended between two windows, which must not affect the decision.
        let event = bot.until(&mut events, "compacted").await;
        assert_eq!(
            event_text(&event, "trigger"),
            "COMPACTION_TRIGGER_PREEMPTIVE"
        );
        assert_eq!(counted(&daemon, "made").await, number);
        let (_, tokens) = provider.counted().pop().expect("it is asked");
        assert!(tokens >= DUE, "by its own count: {tokens}");
    }
    let counts: Vec<u64> = provider
        .counted()
        .iter()
        .map(|(_, tokens)| *tokens)
        .collect();
    assert!(counts.iter().any(|tokens| *tokens < DUE), "{counts:?}");
    assert!(counted(&daemon, "nothing").await > 0);
    let mut bodies: Vec<String> = provider
        .counted()
        .iter()
        .map(|(call, _)| call.body.to_string())
        .collect();
    let all = bodies.len();
    bodies.sort_unstable();
    bodies.dedup();
    assert_eq!(bodies.len(), all, "nothing is counted twice");
    bot.journal_is_whole().await;
}

#[tokio::test]
async fn failing_token_counter_falls_back_to_estimate_and_is_paused() {
    let provider = Summaries::start(SummaryReply::Well).await;
    provider.counts(0);
    let daemon = Daemon::with(setup(&provider, VLLM)).await;
    let mut bot = Bot::patient(&daemon);
    bot.exchange().await;
    for number in 1..=3 {
        bot.until_shown(number).await;
    }
    bot.exchanges(40).await;
    let asked = provider.counted().len();
    // Two counts may be in flight when the third one fails.
    assert!(
        (3..=5).contains(&asked),
        "{asked}: after three failures it is left alone"
    );
    bot.journal_is_whole().await;
}
