//! Remote token counters: their requests, and that they reply soon or fail.

use std::sync::Arc;
use std::time::Duration;

use memoird_core::turn::MessageFormat;
use memoird_engine::{CountRequest, ModelFault, TokenCounter};
use memoird_models::{AnthropicCounterConfig, CountEndpoint, OpenAiCounterConfig, RemoteCounter};
use serde_json::json;

use crate::kit::{configured, key, now, while_ticking};
use crate::service::{Request, Service};

const MESSAGES: &str = r#"[{"role":"user","content":"my_password_is_swordfish 🦀"}]"#;
const TOOLS: &str = r#"[{"type":"function","function":{"name":"f","parameters":{"a":1.50}}}]"#;
const CHATTY: &str = r#"{"error":{"message":"my_password_is_swordfish by sk-hunter2",
    "type":"some_error","code":"my_password_is_swordfish"}}"#;

type Outcome = Result<u64, ModelFault>;

fn ask() -> CountRequest {
    CountRequest {
        system: "Be \"kind\".".to_owned(),
        tools_json: TOOLS.to_owned(),
        messages_json: MESSAGES.to_owned(),
    }
}

fn anthropic(service: &Service) -> Arc<dyn TokenCounter> {
    let config: AnthropicCounterConfig =
        configured(json!({"base_url": service.url(), "model": "small"}));
    Arc::new(RemoteCounter::anthropic(&config, key()).expect("a good configuration"))
}

fn openai(service: &Service, endpoint: CountEndpoint) -> Arc<dyn TokenCounter> {
    let config = OpenAiCounterConfig {
        endpoint,
        ..configured(json!({"base_url": service.url(), "model": "small"}))
    };
    Arc::new(RemoteCounter::openai(&config, key()).expect("a good configuration"))
}

fn all(service: &Service) -> [(Arc<dyn TokenCounter>, &'static str); 3] {
    [
        (anthropic(service), r#"{"input_tokens":42}"#),
        (
            openai(service, CountEndpoint::ResponsesInputTokens),
            r#"{"object":"response.input_tokens","input_tokens":42}"#,
        ),
        (
            openai(service, CountEndpoint::Auto),
            r#"{"count":42,"max_model_len":8192,"tokens":[1,2,3]}"#,
        ),
    ]
}

async fn exchange<T>(
    counter: &Arc<dyn TokenCounter>,
    ask: CountRequest,
    service: impl Future<Output = T>,
) -> (Outcome, T) {
    while_ticking(counter.count(ask), service).await
}

async fn counted(counter: &Arc<dyn TokenCounter>, service: &Service, said: &str) -> Request {
    let (outcome, got) = exchange(counter, ask(), service.answer("200 OK", "", said)).await;
    assert_eq!(outcome, Ok(42));
    got
}

#[tokio::test(start_paused = true)]
async fn request_is_counted_in_format_of_provider() {
    let service = Service::bind().await;
    let [(anthropic, one), (responses, two), (vllm, three)] = all(&service);
    let messages = json!([{"role": "user", "content": "my_password_is_swordfish 🦀"}]);
    let parameters: serde_json::Value = serde_json::from_str(r#"{"a":1.50}"#).expect("JSON");
    let nested = json!([{"type": "function", "function": {"name": "f", "parameters": parameters}}]);

    assert_eq!(anthropic.name(), "anthropic:small");
    assert_eq!(anthropic.format(), MessageFormat::Anthropic);
    let got = counted(&anthropic, &service, one).await;
    assert_eq!(got.line, "POST /v1/messages/count_tokens");
    for line in ["x-api-key: sk-hunter2", "anthropic-version: 2023-06-01"] {
        assert!(got.head.lines().any(|found| found == line), "{}", got.head);
    }
    let tools = json!([{"name": "f", "input_schema": parameters}]);
    let expected = json!({
        "model": "small", "system": "Be \"kind\".", "tools": tools, "messages": messages,
    });
    assert_eq!(got.body, expected);

    assert_eq!(responses.name(), "openai:small");
    assert_eq!(responses.format(), MessageFormat::OpenAiResponses);
    let got = counted(&responses, &service, two).await;
    assert_eq!(got.line, "POST /v1/responses/input_tokens");
    assert!(
        got.head.contains("authorization: bearer sk-hunter2"),
        "{}",
        got.head
    );
    let expected = json!({
        "model": "small", "instructions": "Be \"kind\".", "input": messages,
        "tools": [{"type": "function", "name": "f", "parameters": parameters}],
    });
    assert_eq!(got.body, expected);

    assert_eq!(vllm.format(), MessageFormat::OpenAi);
    let got = counted(&vllm, &service, three).await;
    assert_eq!(got.line, "POST /tokenize");
    let expected = json!({
        "model": "small",
        "tools": nested,
        "messages": [{"role": "system", "content": "Be \"kind\"."}, messages[0]],
    });
    assert_eq!(got.body, expected);
}

#[tokio::test(start_paused = true)]
async fn empty_fields_and_invalid_json_are_not_sent() {
    let service = Service::bind().await;
    for (counter, said) in all(&service) {
        let bare = CountRequest {
            messages_json: MESSAGES.to_owned(),
            ..CountRequest::default()
        };
        let (outcome, got) = exchange(&counter, bare, service.answer("200 OK", "", said)).await;
        assert_eq!(outcome, Ok(42));
        assert_eq!(
            got.body.as_object().expect("an object").len(),
            2,
            "{}",
            got.body
        );
        let half = CountRequest {
            messages_json: "[{swordfish".to_owned(),
            ..ask()
        };
        let (outcome, ()) = exchange(&counter, half, async {}).await;
        let problem = outcome.expect_err("no JSON").problem;
        assert!(
            problem.contains("of the request") && !problem.contains("swordfish"),
            "{problem}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn count_is_not_retried_and_error_hides_content() {
    let long = format!("{{\"x\":\"{}\"}}", "x".repeat(16 * 1024 * 1024));
    for (status, body, expected) in [
        ("429 Slow", CHATTY, "429 Too Many Requests (some_error)"),
        ("500 Oops", CHATTY, "500 Internal Server Error (some_error)"),
        ("401 Unauthorized", CHATTY, "check api_key"),
        ("307 Temporary Redirect", "", "it redirects"),
        ("200 OK", "{}", "no number named"),
        (
            "200 OK",
            r#"{"input_tokens":-1,"count":"9"}"#,
            "no number named",
        ),
        ("200 OK", r#"{"input_tokens":4"#, "no number named"),
        ("200 OK", &long, "more than 16777216 bytes"),
    ] {
        let service = Service::bind().await;
        for (counter, _) in all(&service) {
            let answer = service.answer(status, "retry-after: 1\r\n", body);
            let (outcome, _) = exchange(&counter, ask(), answer).await;
            let problem = outcome.expect_err("a failure").problem;
            assert!(problem.starts_with("counts of 127.0.0.1:"), "{problem}");
            assert!(problem.contains(expected), "{problem}");
            assert!(
                !problem.contains("swordfish") && !problem.contains("hunter2"),
                "{problem}"
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn count_times_out_after_two_seconds() {
    let service = Service::bind().await;
    for (counter, _) in all(&service) {
        let start = now();
        let (outcome, _held) = exchange(&counter, ask(), service.take()).await;
        let problem = outcome.expect_err("no answer").problem;
        assert!(problem.ends_with("no answer within 2s"), "{problem}");
        let waited = start.elapsed();
        assert!(waited < Duration::from_millis(2_500), "{waited:?}");
    }
    let [(counter, _), ..] = all(&service);
    let (outcome, _) = exchange(&counter, ask(), service.say(b"")).await;
    assert!(
        outcome
            .expect_err("nothing")
            .problem
            .contains("no answer: ")
    );
}
