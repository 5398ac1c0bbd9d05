//! Rerankers: their requests, and services that fail, send wrong data, hang or leak secrets.

use std::time::Duration;

use memoird_engine::ModelFault;
use memoird_memories::Reranker;
use memoird_models::RemoteReranker;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

use crate::kit::{SECRET, configured, key, now, strings, while_ticking};
use crate::service::{Request, Service};

const QUERY: &str = "my_password_is_swordfish";

fn jina(url: &str, more: &Value) -> RemoteReranker {
    let mut config = json!({"base_url": url, "model": "small", "timeout": "2s"});
    for (name, value) in more.as_object().expect("settings") {
        config[name] = value.clone();
    }
    RemoteReranker::jina(&configured(config), key()).expect("a good configuration")
}

fn tei(url: &str) -> RemoteReranker {
    let config = json!({"base_url": url});
    RemoteReranker::tei(&configured(config), key()).expect("a good configuration")
}

async fn asked<T>(
    reranker: &RemoteReranker,
    texts: &[&str],
    service: impl Future<Output = T>,
) -> (Result<Vec<f64>, ModelFault>, T) {
    while_ticking(reranker.rerank(QUERY.to_owned(), strings(texts)), service).await
}

fn texts<'a>(request: &'a Request, name: &str) -> Vec<&'a str> {
    let texts = request.body[name].as_array().expect("a list");
    texts
        .iter()
        .map(|text| text.as_str().expect("a text"))
        .collect()
}

#[tokio::test(start_paused = true)]
async fn requests_use_format_of_each_service() {
    let service = Service::bind().await;
    let results = json!({"results": [
        {"index": 1, "relevance_score": 0.75, "document": {"text": "b"}},
        {"index": 0, "relevance_score": 0.5},
    ]});
    let reranker = jina(&service.url(), &json!({}));
    let (scores, got) = asked(&reranker, &["a", "b"], async {
        service.answer("200 OK", "", &results.to_string()).await
    })
    .await;
    assert_eq!(scores.expect("scores"), [0.5, 0.75]);
    assert_eq!(got.line, "POST /v1/rerank");
    assert!(
        got.head
            .contains(&format!("authorization: bearer {SECRET}")),
        "{}",
        got.head
    );
    assert_eq!(texts(&got, "documents"), ["a", "b"]);
    let rest = (&got.body["model"], &got.body["query"], &got.body["top_n"]);
    assert_eq!(rest, (&json!("small"), &json!(QUERY), &json!(2)));

    let scores = json!([{"index": 1, "score": 0.75}, {"index": 0, "score": 0.5}]);
    let reranker = tei(&service.url());
    let (scores, got) = asked(&reranker, &["a", "b"], async {
        service.answer("200 OK", "", &scores.to_string()).await
    })
    .await;
    assert_eq!(scores.expect("scores"), [0.5, 0.75]);
    assert_eq!(got.line, "POST /v1/rerank");
    assert_eq!(texts(&got, "texts"), ["a", "b"]);
    assert_eq!(
        (&got.body["query"], &got.body["truncate"]),
        (&json!(QUERY), &json!(true))
    );
    assert_eq!(reranker.documents_max(), 32);
}

#[tokio::test(start_paused = true)]
async fn long_text_is_truncated_between_letters() {
    let service = Service::bind().await;
    let reranker = jina(&service.url(), &json!({}));
    let long = "ä".repeat(10_000);
    let (_, got) = asked(&reranker, &[&long, "b"], async {
        service.answer("200 OK", "", "{}").await
    })
    .await;
    assert_eq!(texts(&got, "documents"), ["ä".repeat(750).as_str(), "b"]);
}

#[tokio::test(start_paused = true)]
async fn failures_hide_the_request_content() {
    let good =
        r#"{"results":[{"index":0,"relevance_score":0.1},{"index":1,"relevance_score":0.2}]}"#;
    let chatty = format!(r#"{{"error":{{"code":"{QUERY}","message":"{SECRET}"}}}}"#);
    for (status, body, word) in [
        ("500 Oops", chatty.as_str(), "500"),
        ("401 Unauthorized", &chatty, "api_key"),
        ("404 Not Found", &chatty, "model"),
        ("413 Too Large", &chatty, "413"),
        ("422 Unprocessable", &chatty, "422"),
        ("200 OK", &chatty, "an error"),
        ("200 OK", &good[..40], "not JSON"),
        (
            "200 OK",
            r#"{"results":[{"index":0,"relevance_score":0.1}]}"#,
            "1 scores for 2 texts",
        ),
        (
            "200 OK",
            r#"[{"index":0,"score":0.1},{"index":7,"score":0.2}]"#,
            "has wrong score indexes",
        ),
        (
            "200 OK",
            r#"[{"index":0,"score":0.1},{"index":1,"score":NaN}]"#,
            "not JSON",
        ),
        (
            "200 OK",
            r#"[{"index":0,"score":0.1},{"index":1,"score":null}]"#,
            "a score that is not a number",
        ),
        ("200 OK", &"x".repeat(200_000), "bytes"),
    ] {
        let service = Service::bind().await;
        let reranker = jina(&service.url(), &json!({}));
        // One attempt: the service would not reply to a second one.
        let (outcome, _) = asked(&reranker, &["a", "b"], service.answer(status, "", body)).await;
        let problem = outcome.expect_err(body).problem;
        assert!(problem.contains(word), "{word}: {problem}");
        assert!(problem.starts_with("reranking of 127.0.0.1:"), "{problem}");
        for private in [QUERY, SECRET, "swordfish", "hunter2"] {
            assert!(!problem.contains(private), "{problem}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn slow_service_times_out_as_configured() {
    let service = Service::bind().await;
    let reranker = jina(&service.url(), &json!({"timeout": "500ms"}));
    let start = now();
    let (outcome, _) = asked(&reranker, &["a"], service.take()).await;
    let problem = outcome.expect_err("nobody answers").problem;
    assert!(problem.contains("no answer within 500ms"), "{problem}");
    let waited = start.elapsed();
    assert!((500..700).contains(&waited.as_millis()), "{waited:?}");

    // The head arrives in time, the body never ends.
    let start = now();
    let (outcome, _) = asked(&reranker, &["a"], async {
        let (_, mut stream) = service.take().await;
        let head = b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n[";
        stream.write_all(head).await.expect("a reader");
        stream
    })
    .await;
    let problem = outcome.expect_err("half an answer").problem;
    assert!(problem.contains("no answer within 500ms"), "{problem}");
    assert!(start.elapsed() < Duration::from_millis(700));
}

#[tokio::test(start_paused = true)]
async fn slow_response_within_limit_is_accepted() {
    let service = Service::bind().await;
    let reranker = jina(&service.url(), &json!({}));
    let (outcome, ()) = asked(&reranker, &["a"], async {
        let (_, mut stream) = service.take().await;
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        let body = r#"[{"index":0,"score":0.5}]"#;
        let head = format!(
            "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(head.as_bytes()).await.expect("a reader");
    })
    .await;
    assert_eq!(outcome.expect("a score"), [0.5]);
}
