//! Providers that reject requests, none of which is retried.
//!
//! They reject permanently, until the configuration changes, or until there are fewer turns.

use serde_json::json;

use super::{CHATTY, MODELS, WIRES, Wire, exchange, failed};
use crate::service::{Request, Service};

async fn refused(wire: Wire, status: &str, body: &str) -> (&'static str, String) {
    let service = Service::bind().await;
    let answer = service.answer(status, "location: http://127.0.0.1:1/\r\n", body);
    let (outcome, _) = exchange(&wire.to(&service), answer).await;
    failed(outcome)
}

#[tokio::test(start_paused = true)]
async fn configuration_error_is_reported_immediately_with_advice() {
    for wire in WIRES {
        for (status, hint) in [
            ("401 Unauthorized", "api_key"),
            ("403 Forbidden", "api_key"),
            ("404 Not Found", "model"),
            ("307 Temporary Redirect", "base_url"),
        ] {
            let (kind, problem) = refused(wire, status, CHATTY).await;
            assert_eq!(kind, "misconfigured");
            assert!(
                problem.contains(&format!("{status} (some_error); ")),
                "{problem}"
            );
            assert!(problem.contains(hint), "{problem}");
        }
    }
    let unsupported = r#"{"error":{"message":"Unsupported parameter: 'response_format'",
        "type":"invalid_request_error","param":"response_format","code":"unsupported_parameter"}}"#;
    let (kind, problem) = refused(Wire::OpenAi, "400 Bad Request", unsupported).await;
    assert_eq!(kind, "misconfigured");
    assert!(
        problem.contains("(invalid_request_error, unsupported_parameter)"),
        "{problem}"
    );
    let poor = r#"{"type":"error","error":{"type":"invalid_request_error",
        "message":"Your credit balance is too low to access the Anthropic API."}}"#;
    let (kind, _) = refused(Wire::Anthropic, "400 Bad Request", poor).await;
    assert_eq!(kind, "misconfigured");
}

/// OpenAI's error for an unsupported field.
fn unsupported(field: &str) -> String {
    json!({"error": {
        "message": format!("Unsupported parameter: '{field}' is not supported with this model."),
        "type": "invalid_request_error", "param": field, "code": "unsupported_parameter",
    }})
    .to_string()
}

#[tokio::test(start_paused = true)]
async fn rejected_limit_field_is_replaced_by_other_name() {
    let [old, new] = ["max_tokens", "max_completion_tokens"];
    let wire = Wire::OpenAi;
    let service = Service::bind().await;
    let summarizer = wire.to(&service);
    let good = wire.saying("{}");
    let fields = |request: &Request| {
        let has = |field| request.body.get(field).is_some();
        (has(old), has(new))
    };
    // Switched, remembered, and switched back when the provider changes.
    for (refused, first, second) in [
        (Some(old), (true, false), (false, true)),
        (None, (false, true), (false, true)),
        (Some(new), (false, true), (true, false)),
    ] {
        let (outcome, ()) = exchange(&summarizer, async {
            if let Some(field) = refused {
                let got = service
                    .answer("400 Bad Request", "", &unsupported(field))
                    .await;
                assert_eq!(fields(&got), first);
            }
            let got = service.answer("200 OK", "", &good).await;
            assert_eq!(fields(&got), second);
        })
        .await;
        outcome.expect("an answer");
    }
    // Both fields are rejected: exactly two requests.
    let (outcome, ()) = exchange(&summarizer, async {
        for field in [old, new] {
            service
                .answer("400 Bad Request", "", &unsupported(field))
                .await;
        }
    })
    .await;
    let (kind, problem) = failed(outcome);
    assert_eq!(kind, "misconfigured");
    assert!(problem.contains("unsupported_parameter"), "{problem}");
}

#[tokio::test(start_paused = true)]
async fn content_rejected_by_provider_is_a_refusal() {
    for wire in WIRES {
        for status in ["400 Bad Request", "422 Unprocessable Entity"] {
            let (kind, problem) = refused(wire, status, CHATTY).await;
            assert_eq!(kind, "refused");
            assert!(problem.contains(&status[..3]), "{problem}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn oversized_request_is_too_long() {
    for wire in WIRES {
        let (kind, _) = refused(wire, "413 Payload Too Large", CHATTY).await;
        assert_eq!(kind, "too long", "{wire:?}");
    }
    let anthropic = r#"{"type":"error","error":{"type":"invalid_request_error",
        "message":"prompt is too long: 213462 tokens > 200000 maximum"}}"#;
    let openai = r#"{"error":{"message":"This model's maximum context length is 8192 tokens.",
        "type":"invalid_request_error","param":"messages","code":"context_length_exceeded"}}"#;
    let vllm = r#"{"object":"error","message":"This model's maximum context length is 4096",
        "type":"BadRequestError","param":null,"code":400}"#;
    let llama = r#"{"error":{"code":500,"type":"exceed_context_size_error","message":
        "the request exceeds the available context size. try increasing the context size"}}"#;
    for (wire, status, body) in [
        (Wire::Anthropic, "400 Bad Request", anthropic),
        (Wire::OpenAi, "400 Bad Request", openai),
        (Wire::OpenAi, "400 Bad Request", vllm),
        (Wire::OpenAi, "500 Internal Server Error", llama),
    ] {
        let (kind, problem) = refused(wire, status, body).await;
        assert_eq!(kind, "too long", "{problem}");
        assert!(problem.contains(status), "{problem}");
    }
    for wire in MODELS {
        let (kind, _) = refused(wire, "200 OK", llama).await;
        assert_eq!(kind, "too long", "{wire:?}");
    }
}
