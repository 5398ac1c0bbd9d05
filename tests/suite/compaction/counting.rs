//! Near the watermark the provider's own count decides whether a session is compacted.

use memoird_proto::v1::GetContextRequest;

use crate::harness::{Daemon, Events, Says, Setup, Summaries, eventually};
use crate::windows::bot::{ask, report};

use super::bot::{BUDGET, Bot, ROOMY, counted, summary};

/// A model whose tokens are counted by this provider.
fn setup(provider: &Summaries, counter: &str) -> Setup {
    let port = provider.port();
    let counter = counter.replace("PORT", &port.to_string());
    let models = format!(
        "ours: {{ provider: anthropic, context_window: 90000, tokenizer: estimate, counter: {counter} }}"
    );
    let context = format!("context: {{ default_model: ours, models: {{ {models} }} }}");
    Setup::default().section(context).section(ROOMY)
}

const ANTHROPIC: &str = "{ anthropic: { base_url: 'http://127.0.0.1:PORT' } }";
const VLLM: &str = "{ openai: { base_url: 'http://127.0.0.1:PORT/v1', endpoint: tokenize } }";
const OPENAI: &str =
    "{ openai: { base_url: 'http://127.0.0.1:PORT/v1', endpoint: responses_input_tokens } }";

/// Talks until the window has about so many percent of the budget.
async fn filled(bot: &mut Bot, percent: u64) {
    for _ in 0..60 {
        let window = bot.window().await;
        if report(&window).tokens_total * 100 >= percent * BUDGET {
            return;
        }
        bot.exchange().await;
    }
    panic!("it is never full");
}

#[tokio::test]
async fn a_large_count_compacts_before_the_estimate_would() {
    for counter in [ANTHROPIC, VLLM, OPENAI] {
        let provider = Summaries::start(Says::Well).await;
        provider.counts(BUDGET * 75 / 100);
        let daemon = Daemon::with(setup(&provider, counter)).await;
        let mut bot = Bot::new(daemon.sessions());
        let mut events = Events::now(&mut daemon.sessions()).await;
        let event = bot.until(&mut events, "compacted").await;
        assert_eq!(super::bot::told(&event, "trigger"), "preemptive");
        let asked = provider.counted();
        assert_eq!(asked.len(), 1, "{counter}: one question, one answer");
        let body = asked[0].body.to_string();
        assert!(body.contains("ORD-00001") && body.contains("\"ours\""), "{body}");
    }
}

#[tokio::test]
async fn a_small_count_says_that_there_is_room_and_is_remembered() {
    let provider = Summaries::start(Says::Well).await;
    provider.counts(BUDGET * 40 / 100);
    let daemon = Daemon::with(setup(&provider, ANTHROPIC)).await;
    let mut bot = Bot::new(daemon.sessions());
    filled(&mut bot, 72).await;
    let asked = eventually("it is asked", async || {
        let asked = provider.counted().len();
        (asked > 0).then_some(asked)
    });
    asked.await;
    // The count corrects the estimate, so the same window may not be near any more.
    for _ in 0..5 {
        let request = bot.request();
        ask(&mut bot.client, request).await;
    }
    eventually("nothing came of it", async || {
        (counted(&daemon, "nothing").await > 0).then_some(())
    })
    .await;
    assert_eq!(counted(&daemon, "made").await, 0);
    assert!(summary(&bot.window().await).is_none());
    let bodies: Vec<String> = provider.counted().iter().map(|it| it.body.to_string()).collect();
    let mut different = bodies.clone();
    different.sort_unstable();
    different.dedup();
    assert_eq!(bodies.len(), different.len(), "nothing is counted twice");
    provider.counts(BUDGET * 71 / 100);
    let mut events = Events::now(&mut daemon.sessions()).await;
    bot.until(&mut events, "compacted").await;
    bot.journal_is_whole().await;
}

#[tokio::test]
async fn without_an_answer_the_estimate_decides_and_soon_nobody_is_asked() {
    let provider = Summaries::start(Says::Well).await;
    provider.counts(0);
    let daemon = Daemon::with(setup(&provider, VLLM)).await;
    let mut bot = Bot::new(daemon.sessions());
    let mut events = Events::now(&mut daemon.sessions()).await;
    for _ in 0..3 {
        bot.until(&mut events, "compacted").await;
        assert!(summary(&bot.window().await).is_some());
    }
    let asked = provider.counted().len();
    bot.exchanges(40).await;
    assert!(asked <= 5 && provider.counted().len() <= asked + 3, "it is left alone: {asked}");
    let request = GetContextRequest { peek: true, ..bot.request() };
    ask(&mut bot.client, request).await;
    bot.journal_is_whole().await;
}
