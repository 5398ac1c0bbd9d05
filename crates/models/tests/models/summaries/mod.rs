//! Remote summarizers: their requests, and how they handle every wrong response.
//!
//! All three run through the same tests.

mod failures;
mod good;
mod refusals;

use std::sync::Arc;
use std::time::Duration;

use memoird_core::compaction::transcript::{Call, TranscriptTurn};
use memoird_core::compaction::{ModelSections, Summary, SummaryBody};
use memoird_core::ids::{Generation, SessionId, TenantId};
use memoird_core::nonce::Nonce;
use memoird_core::time::Timestamp;
use memoird_core::turn::Role;
use memoird_engine::{FaultKind, ModelFault, Summarizer, SummarizerReply, SummaryRequest};
use memoird_models::{
    AnthropicSummarizerConfig, ApiKey, OpenAiSummarizerConfig, RemoteSummarizer,
    WebhookSummarizerConfig,
};
use serde_json::json;

use crate::kit::{SECRET, configured, while_ticking};
use crate::service::Service;

/// A text that must never occur in an error.
const TEXT: &str = "my_password_is_swordfish";
/// An error response that repeats the key and a turn, in the formats of all providers.
const CHATTY: &str = r#"{"type":"error","error":{"type":"some_error",
    "message":"my_password_is_swordfish by sk-hunter2","code":"my_password_is_swordfish",
    "param":"sk-hunter2"}}"#;
/// Timeout of all attempts and pauses of a summary.
const LIMIT: Duration = Duration::from_secs(20);

type Outcome = Result<SummarizerReply, ModelFault>;

/// Protocol of the service.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Wire {
    Anthropic,
    OpenAi,
    Webhook,
}

const WIRES: [Wire; 3] = [Wire::Anthropic, Wire::OpenAi, Wire::Webhook];
/// Protocols that wrap the text of a model.
const MODELS: [Wire; 2] = [Wire::Anthropic, Wire::OpenAi];

impl Wire {
    /// A summarizer for this service, with a key.
    fn to(self, service: &Service) -> Arc<dyn Summarizer> {
        let api_key = Some(ApiKey::parse(SECRET).expect("a key"));
        let url = service.url();
        match self {
            Self::Anthropic => {
                let config = AnthropicSummarizerConfig {
                    timeout: LIMIT,
                    ..configured(json!({"base_url": url, "model": "small"}))
                };
                Arc::new(
                    RemoteSummarizer::anthropic(&config, api_key).expect("a good configuration"),
                )
            }
            Self::OpenAi => {
                let config = OpenAiSummarizerConfig {
                    timeout: LIMIT,
                    ..configured(json!({"base_url": url, "model": "small"}))
                };
                Arc::new(RemoteSummarizer::openai(&config, api_key).expect("a good configuration"))
            }
            Self::Webhook => {
                let config = WebhookSummarizerConfig {
                    timeout: LIMIT,
                    ..configured(json!({"url": url}))
                };
                Arc::new(RemoteSummarizer::webhook(&config, api_key).expect("a good configuration"))
            }
        }
    }

    /// A complete response with this text.
    fn saying(self, text: &str) -> String {
        let message = json!({"role": "assistant", "content": text, "refusal": null});
        match self {
            Self::Anthropic => json!({
                "id": "msg_1", "type": "message", "role": "assistant", "model": "small",
                "content": [{"type": "text", "text": text}],
                "stop_reason": "end_turn", "stop_sequence": null,
                "usage": {"input_tokens": 9, "output_tokens": 9},
            })
            .to_string(),
            Self::OpenAi => json!({
                "id": "chatcmpl-1", "object": "chat.completion", "model": "small",
                "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            })
            .to_string(),
            Self::Webhook => text.to_owned(),
        }
    }
}

/// A request for a summary of two turns after a previous summary.
fn ask() -> Arc<SummaryRequest> {
    let body = SummaryBody {
        recent: "user: tea".to_owned(),
        ..SummaryBody::default()
    };
    let previous = Summary {
        number: 1,
        first_seq: 2,
        through_seq: 6,
        turns: 5,
        made_at: Timestamp::from_ms(0),
        by: "extractive".into(),
        body,
        text: "They want tea.".into(),
    };
    let mut said = TranscriptTurn::new(7, Role::User, TEXT);
    said.said_at = Timestamp::new(1_700_000_000, 0);
    Arc::new(SummaryRequest {
        tenant: TenantId::parse("acme").expect("a tenant"),
        session: SessionId::parse("telegram:4711").expect("a session"),
        generation: Generation::new(1_700_000_000_000, 7),
        previous: Some(Arc::new(previous)),
        chunks: vec![ModelSections {
            standing: vec!["Never with sugar.".to_owned()],
            details: "They want tea.".to_owned(),
            ..ModelSections::default()
        }],
        turns: [
            said,
            TranscriptTurn::new(8, Role::Assistant, "No \"milk\"?\n🦀").with_call(Call {
                id: "c1".to_owned(),
                name: "order_tea".to_owned(),
                input: r#"{"cups":2}"#.to_owned(),
            }),
        ]
        .into(),
        tokens_max: 800,
        nonce: Nonce::default(),
    })
}

/// Runs a summary and the service concurrently, with a paused clock.
async fn exchange<T>(
    summarizer: &Arc<dyn Summarizer>,
    service: impl Future<Output = T>,
) -> (Outcome, T) {
    while_ticking(summarizer.summarize(ask()), service).await
}

#[track_caller]
fn tells_nothing(problem: &str) {
    for private in [TEXT, SECRET, "swordfish", "hunter2"] {
        assert!(!problem.contains(private), "{problem}");
    }
    assert!(problem.starts_with("summaries of 127.0.0.1:"), "{problem}");
}

/// Kind and message of the error, after checking that it leaks nothing.
#[track_caller]
fn failed(outcome: Outcome) -> (&'static str, String) {
    let fault = outcome.expect_err("a failure");
    let kind = match fault.kind {
        FaultKind::Later | FaultKind::Unusable => "later",
        FaultKind::Misconfigured => "misconfigured",
        FaultKind::TooLong => "too long",
        FaultKind::Refused => "refused",
    };
    let problem = fault.problem;
    tells_nothing(&problem);
    (kind, problem)
}
