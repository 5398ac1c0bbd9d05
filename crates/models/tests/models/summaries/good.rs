//! Requests of summarizers, and how a model's reply is read.

use std::sync::Arc;
use std::time::Duration;

use memoird_core::compaction::prompt;
use memoird_engine::{Summarizer, SummarizerReply, TextEnd};
use memoird_models::{
    AnthropicSummarizerConfig, OpenAiSummarizerConfig, RemoteSummarizer, TokenLimit,
    WebhookSummarizerConfig,
};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::time::sleep;

use super::{MODELS, Outcome, TEXT, WIRES, Wire, ask, exchange};
use crate::kit::configured;
use crate::service::{Request, Service};

const GOOD: &str =
    r#"{"standing_instructions":["tea only"],"details":"They want tea. Größe: 2 🦀"}"#;

fn text(text: &str, end: TextEnd) -> Outcome {
    Ok(SummarizerReply::Text {
        text: text.to_owned(),
        end,
    })
}

fn the_prompt() -> String {
    let ask = ask();
    prompt::prompt(&prompt::SummaryPrompt {
        previous: ask.previous.as_deref(),
        pieces: &ask.chunks,
        turns: &ask.turns,
        tokens_max: ask.tokens_max,
        nonce: ask.nonce,
    })
}

#[track_caller]
fn has_lines(request: &Request, lines: &[&str]) {
    for line in lines {
        assert!(
            request.head.lines().any(|found| found == *line),
            "{line}: {}",
            request.head
        );
    }
}

async fn asked(summarizer: Arc<dyn Summarizer>, service: &Service, wire: Wire) -> Request {
    let body = wire.saying(GOOD);
    let answer = service.answer("200 OK", "", &body);
    let (outcome, got) = exchange(&summarizer, answer).await;
    assert_eq!(outcome, text(GOOD, TextEnd::Complete));
    got
}

#[tokio::test(start_paused = true)]
async fn anthropic_request_has_system_prompt_and_limit() {
    let service = Service::bind().await;
    let summarizer = Wire::Anthropic.to(&service);
    assert_eq!(summarizer.name(), "anthropic:small");
    assert!(summarizer.is_remote() && summarizer.input_tokens_max() == 150_000);
    let got = asked(summarizer, &service, Wire::Anthropic).await;
    assert_eq!(got.line, "POST /v1/messages");
    has_lines(
        &got,
        &[
            "x-api-key: sk-hunter2",
            "anthropic-version: 2023-06-01",
            "content-type: application/json",
        ],
    );
    assert!(!got.head.contains("authorization"), "{}", got.head);
    let expected = json!({
        "model": "small",
        "max_tokens": 1_000,
        "system": prompt::system(),
        "messages": [{"role": "user", "content": the_prompt()}],
    });
    assert_eq!(got.body, expected);
    let url = service.url();
    let base_url = url.trim_end_matches("/v1");
    let config: AnthropicSummarizerConfig =
        configured(json!({"base_url": base_url, "model": "small"}));
    let summarizer = RemoteSummarizer::anthropic(&config, None).expect("a good configuration");
    let got = asked(Arc::new(summarizer), &service, Wire::Anthropic).await;
    assert_eq!(got.line, "POST /v1/messages");
    assert!(!got.head.contains("x-api-key"), "{}", got.head);
}

#[tokio::test(start_paused = true)]
async fn chat_completions_request_has_two_messages_and_configured_fields() {
    let service = Service::bind().await;
    let summarizer = Wire::OpenAi.to(&service);
    assert_eq!(summarizer.name(), "openai:small");
    assert!(summarizer.is_remote() && summarizer.input_tokens_max() == 16_000);
    let got = asked(summarizer, &service, Wire::OpenAi).await;
    assert_eq!(got.line, "POST /v1/chat/completions");
    has_lines(
        &got,
        &[
            "authorization: bearer sk-hunter2",
            "content-type: application/json",
        ],
    );
    let mut expected = json!({
        "model": "small",
        "messages": [
            {"role": "system", "content": prompt::system()},
            {"role": "user", "content": the_prompt()},
        ],
        "max_tokens": 1_000,
    });
    assert_eq!(got.body, expected);
    let config = OpenAiSummarizerConfig {
        token_limit: TokenLimit::MaxCompletionTokens,
        thinking_tokens: 500,
        json_object: true,
        ..configured(json!({"base_url": service.url(), "model": "small"}))
    };
    let summarizer = RemoteSummarizer::openai(&config, None).expect("a good configuration");
    let got = asked(Arc::new(summarizer), &service, Wire::OpenAi).await;
    assert!(!got.head.contains("authorization"), "{}", got.head);
    let fields = expected.as_object_mut().expect("an object");
    fields.remove("max_tokens");
    fields.insert("max_completion_tokens".to_owned(), json!(1_500));
    fields.insert("response_format".to_owned(), json!({"type": "json_object"}));
    assert_eq!(got.body, expected);
}

#[tokio::test(start_paused = true)]
async fn webhook_receives_all_fields() {
    let service = Service::bind().await;
    let url = format!("{}/summarize?a=b", service.url());
    let config: WebhookSummarizerConfig = configured(json!({"url": url}));
    let plain = RemoteSummarizer::webhook(&config, None).expect("a good configuration");
    let got = asked(Arc::new(plain), &service, Wire::Webhook).await;
    assert_eq!(got.line, "POST /v1/summarize?a=b");
    assert!(!got.head.contains("authorization"), "{}", got.head);
    let summarizer = Wire::Webhook.to(&service);
    assert_eq!(
        (summarizer.name(), summarizer.input_tokens_max()),
        ("webhook", 100_000)
    );
    let got = asked(summarizer, &service, Wire::Webhook).await;
    has_lines(
        &got,
        &[
            "authorization: bearer sk-hunter2",
            "content-type: application/json",
        ],
    );
    let previous = json!({
        "text": "They want tea.",
        "standing": [], "user_turns": [], "done": [], "open_questions": [], "written": "",
        "recent": "user: tea", "until": 0,
    });
    let piece = json!({
        "standing_instructions": ["Never with sugar."], "withdrawn": [], "open_questions": [],
        "details": "They want tea.",
    });
    let expected = json!({
        "version": 2,
        "tenant": "acme",
        "session_id": "telegram:4711",
        "generation": ask().generation.to_string(),
        "previous": previous,
        "pieces": [piece],
        "turns": [
            {"seq": 7, "role": "user", "said_at": 1_700_000_000, "text": TEXT},
            {
                "seq": 8, "role": "assistant", "said_at": null,
                "text": "No \"milk\"?\n🦀\norder_tea({\"cups\":2})",
            },
        ],
        "changes": ["order_tea(2)"],
        "tokens_max": 800,
        "system": prompt::system(),
        "prompt": the_prompt(),
    });
    assert_eq!(got.body, expected);
}

#[tokio::test(start_paused = true)]
async fn reply_contains_text_and_end_reason() {
    let anthropic = |content: Value, stop: Value| {
        (
            Wire::Anthropic,
            json!({"content": content, "stop_reason": stop}),
        )
    };
    let openai = |message: Value, finish: Value| {
        (
            Wire::OpenAi,
            json!({"choices": [{"message": message, "finish_reason": finish}]}),
        )
    };
    let one = json!([{"type": "text", "text": "a"}]);
    let two = json!([{"type": "thinking", "thinking": "x"}, {"type": "text", "text": "a"},
        {"type": "text", "text": "b"}]);
    let said = |text: &str| json!({"content": text});
    for ((wire, body), expected) in [
        (
            anthropic(two.clone(), json!("end_turn")),
            text("ab", TextEnd::Complete),
        ),
        (
            anthropic(one.clone(), json!("stop_sequence")),
            text("a", TextEnd::Complete),
        ),
        (
            anthropic(one.clone(), json!("max_tokens")),
            text("a", TextEnd::CutOff),
        ),
        (
            anthropic(one, json!("model_context_window_exceeded")),
            text("a", TextEnd::CutOff),
        ),
        (
            anthropic(json!([]), json!("refusal")),
            text("", TextEnd::Refused),
        ),
        (
            anthropic(json!([]), Value::Null),
            text("", TextEnd::Complete),
        ),
        (
            openai(said("a"), json!("stop")),
            text("a", TextEnd::Complete),
        ),
        (
            openai(said("a"), json!("length")),
            text("a", TextEnd::CutOff),
        ),
        (
            openai(said(""), json!("content_filter")),
            text("", TextEnd::Refused),
        ),
        (
            openai(json!({"content": two}), Value::Null),
            text("ab", TextEnd::Complete),
        ),
        (
            openai(
                json!({"content": null, "refusal": "I cannot"}),
                json!("stop"),
            ),
            text("I cannot", TextEnd::Refused),
        ),
        (
            openai(said("<think>well</think>\na"), json!("stop")),
            text("a", TextEnd::Complete),
        ),
    ] {
        let service = Service::bind().await;
        let body = body.to_string();
        let answer = service.answer("200 OK", "", &body);
        let (outcome, _) = exchange(&wire.to(&service), answer).await;
        assert_eq!(outcome, expected, "{body}");
    }
}

#[tokio::test(start_paused = true)]
async fn model_text_is_returned_unvalidated() {
    for wire in MODELS {
        for said in [
            "I'm sorry, but I can't help with that.",
            "{}",
            "{\"session_intent\":",
            "",
        ] {
            let service = Service::bind().await;
            let body = wire.saying(said);
            let answer = service.answer("200 OK", "", &body);
            let (outcome, _) = exchange(&wire.to(&service), answer).await;
            assert_eq!(outcome, text(said, TextEnd::Complete), "{wire:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn slow_reply_within_limit_is_accepted() {
    for wire in WIRES {
        let service = Service::bind().await;
        let body = wire.saying(GOOD);
        let (outcome, ()) = exchange(&wire.to(&service), async {
            let (_, mut stream) = service.take().await;
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
            for bytes in [
                head.as_bytes(),
                &body.as_bytes()[..20],
                &body.as_bytes()[20..],
            ] {
                sleep(Duration::from_secs(6)).await;
                stream.write_all(bytes).await.expect("a reader");
            }
        })
        .await;
        assert_eq!(outcome, text(GOOD, TextEnd::Complete), "{wire:?}");
    }
}
