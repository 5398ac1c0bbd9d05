//! Providers that fail, send wrong data, hang or leak secrets.

use std::time::Duration;

use memoird_memories::Embedder;
use memoird_models::OpenAiEmbedderConfig;
use tokio::io::AsyncWriteExt;

use crate::kit::{SECRET, config, embedder, exchange, later, misconfigured, now, refused};
use crate::service::{Service, data};

/// A text that must never occur in an error.
const TEXT: &str = "my_password_is_swordfish";

/// An error response that repeats the key and the text, as some providers' do.
const CHATTY: &str = r#"{"error":{"message":"my_password_is_swordfish by sk-hunter2",
    "type":"some_error","code":"my_password_is_swordfish","param":"sk-hunter2"}}"#;

#[track_caller]
fn tells_nothing(problem: &str) {
    for private in [TEXT, SECRET, "swordfish", "hunter2"] {
        assert!(!problem.contains(private), "{problem}");
    }
    assert!(problem.starts_with("embeddings of 127.0.0.1:"), "{problem}");
}

#[tokio::test(start_paused = true)]
async fn busy_provider_is_retried_after_requested_pause() {
    let service = Service::bind().await;
    let embedder = embedder(&config(service.url()));
    let start = now();
    let (vectors, got) = exchange(&embedder, &[TEXT], async {
        service
            .answer("429 Slow", "retry-after: 7\r\n", CHATTY)
            .await;
        service.good().await
    })
    .await;
    assert_eq!(vectors.expect("vectors").len(), 1);
    assert_eq!(got.texts(), [TEXT]);
    let waited = start.elapsed();
    assert!((7_000..9_000).contains(&waited.as_millis()), "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn long_pause_is_left_to_the_caller() {
    let service = Service::bind().await;
    let embedder = embedder(&config(service.url()));
    let answer = service.answer("429 Slow", "retry-after: 60\r\n", CHATTY);
    let (outcome, _) = exchange(&embedder, &[TEXT], answer).await;
    let after = Some(Duration::from_secs(60));
    let is_so = matches!(&outcome, Err(fault) if fault.after == after);
    assert!(is_so, "{outcome:?}");
    let problem = later(outcome);
    assert!(
        problem.ends_with("429 Too Many Requests (some_error)"),
        "{problem}"
    );
    tells_nothing(&problem);
}

#[tokio::test(start_paused = true)]
async fn failing_provider_is_called_three_times() {
    let service = Service::bind().await;
    let embedder = embedder(&config(service.url()));
    let start = now();
    let (outcome, ()) = exchange(&embedder, &[TEXT], async {
        service.answer("500 Oops", "", CHATTY).await;
        service.answer("503 Busy", "", "<html>").await;
        service.answer("502 Gone", "", "").await;
    })
    .await;
    let problem = later(outcome);
    assert!(problem.ends_with("502 Bad Gateway"), "{problem}");
    tells_nothing(&problem);
    let waited = start.elapsed();
    assert!((1_500..4_000).contains(&waited.as_millis()), "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn configuration_error_is_reported_immediately_with_advice() {
    for (status, hint) in [
        ("401 Unauthorized", "api_key"),
        ("403 Forbidden", "api_key"),
        ("404 Not Found", "model"),
        ("307 Temporary Redirect", "base_url"),
    ] {
        let service = Service::bind().await;
        let embedder = embedder(&config(service.url()));
        let (outcome, _) = exchange(
            &embedder,
            &[TEXT],
            service.answer(status, "location: /\r\n", CHATTY),
        )
        .await;
        let problem = misconfigured(outcome);
        assert!(
            problem.contains(&format!("{status} (some_error); ")),
            "{problem}"
        );
        assert!(problem.contains(hint), "{problem}");
        tells_nothing(&problem);
    }
}

#[tokio::test(start_paused = true)]
async fn rejected_text_is_isolated_and_test_word_is_tried() {
    let service = Service::bind().await;
    let embedder = embedder(&config(service.url()));
    let (outcome, sizes) = exchange(&embedder, &["a", "b", TEXT], async {
        let mut sizes = vec![
            service
                .answer("400 Bad Request", "", CHATTY)
                .await
                .texts()
                .len(),
        ];
        sizes.push(service.good().await.texts().len());
        sizes.push(
            service
                .answer("422 Too Many", "", CHATTY)
                .await
                .texts()
                .len(),
        );
        sizes.push(service.good().await.texts().len());
        sizes.push(
            service
                .answer("400 Bad Request", "", CHATTY)
                .await
                .texts()
                .len(),
        );
        assert_eq!(service.good().await.texts(), ["memory"]);
        sizes
    })
    .await;
    assert_eq!(sizes, [3, 1, 2, 1, 1]);
    let problem = refused(outcome);
    assert!(
        problem.ends_with("400 Bad Request (some_error)"),
        "{problem}"
    );
    tells_nothing(&problem);
}

#[tokio::test(start_paused = true)]
async fn rejected_test_word_is_a_configuration_error() {
    let service = Service::bind().await;
    let embedder = embedder(&config(service.url()));
    let (outcome, ()) = exchange(&embedder, &[TEXT], async {
        service.answer("400 Bad Request", "", CHATTY).await;
        service.answer("400 Bad Request", "", CHATTY).await;
    })
    .await;
    let problem = misconfigured(outcome);
    assert!(
        problem.contains("even for a test word; check model"),
        "{problem}"
    );
    tells_nothing(&problem);
}

#[tokio::test(start_paused = true)]
async fn too_large_batch_is_split_and_truncated() {
    let service = Service::bind().await;
    let embedder = embedder(&config(service.url()));
    let long = "x".repeat(3_000);
    let (vectors, sizes) = exchange(&embedder, &[&long, "a"], async {
        let mut sizes = Vec::new();
        for is_good in [false, false, false, true, true] {
            let got = if is_good {
                service.good().await
            } else {
                service.answer("413 Too Large", "", CHATTY).await
            };
            sizes.push(
                got.texts()
                    .iter()
                    .map(|text| text.len())
                    .collect::<Vec<_>>(),
            );
        }
        sizes
    })
    .await;
    assert_eq!(vectors.expect("vectors").len(), 2);
    assert_eq!(
        sizes,
        [vec![3_000, 1], vec![3_000], vec![750], vec![256], vec![1]]
    );
}

#[tokio::test(start_paused = true)]
async fn invalid_response_is_a_transient_failure() {
    let one = vec![1.0, 2.0];
    let twice = data([(0, &one), (1, &one)].into_iter());
    let large = format!("{{\"data\":[],\"x\":\"{}\"}}", "x".repeat(500_000));
    for (body, expected) in [
        (TEXT, "not a JSON object"),
        (
            r#"{"data":[{"index":0,"embedding":[NaN]}]}"#,
            "not a JSON object",
        ),
        (&twice, "2 vectors for 1 texts"),
        (&large, "more than 393216 bytes"),
    ] {
        let service = Service::bind().await;
        let config = OpenAiEmbedderConfig {
            tries_max: 1,
            ..config(service.url())
        };
        let answer = service.answer("200 OK", "", body);
        let (outcome, _) = exchange(&embedder(&config), &[TEXT], answer).await;
        let problem = later(outcome);
        assert!(problem.contains(expected), "{problem}");
        tells_nothing(&problem);
    }
}

#[tokio::test(start_paused = true)]
async fn unusable_vector_is_the_fault_of_its_text() {
    for embedding in ["[null,1]", "[0,0]"] {
        let service = Service::bind().await;
        let embedder = embedder(&config(service.url()));
        let body = format!(r#"{{"data":[{{"index":0,"embedding":{embedding}}}]}}"#);
        let (outcome, ()) = exchange(&embedder, &[TEXT], async {
            service.answer("200 OK", "", &body).await;
            service.good().await;
        })
        .await;
        let problem = refused(outcome);
        assert!(problem.contains("no usable vector"), "{problem}");
        tells_nothing(&problem);
    }
}

#[tokio::test(start_paused = true)]
async fn changed_dimensions_are_a_configuration_error() {
    let service = Service::bind().await;
    let body = data([(0, &vec![1.0, 2.0, 3.0])].into_iter());
    let asking = OpenAiEmbedderConfig {
        dimensions: Some(2),
        ..config(service.url())
    };
    let answer = service.answer("200 OK", "", &body);
    let (outcome, _) = exchange(&embedder(&asking), &[TEXT], answer).await;
    let problem = misconfigured(outcome);
    assert!(
        problem.contains("returns 3 dimensions instead of the requested 2"),
        "{problem}"
    );
    let embedder = embedder(&config(service.url()));
    let (outcome, _) = exchange(&embedder, &[TEXT], service.good()).await;
    outcome.expect("two dimensions");
    let (outcome, _) = exchange(&embedder, &[TEXT], service.answer("200 OK", "", &body)).await;
    let problem = misconfigured(outcome);
    assert!(
        problem.contains("returns 3 dimensions, and returned 2 before"),
        "{problem}"
    );
    tells_nothing(&problem);
}

#[tokio::test(start_paused = true)]
async fn hanging_provider_times_out_before_and_within_response() {
    for said in [
        "",
        "HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n{",
        "HTTP/1.1 200",
    ] {
        let service = Service::bind().await;
        let config = OpenAiEmbedderConfig {
            tries_max: 1,
            ..config(service.url())
        };
        let embedder = embedder(&config);
        let start = now();
        let (outcome, _held) = exchange(&embedder, &[TEXT], async {
            let (_, mut stream) = service.take().await;
            stream.write_all(said.as_bytes()).await.expect("a reader");
            stream
        })
        .await;
        let problem = later(outcome);
        assert!(problem.ends_with("no answer within 10s"), "{problem}");
        tells_nothing(&problem);
        let waited = start.elapsed();
        assert!((10_000..11_000).contains(&waited.as_millis()), "{waited:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn unreachable_provider_is_a_transient_failure() {
    let service = Service::bind().await;
    let embedder = embedder(&config(service.url()));
    let (outcome, ()) = exchange(&embedder, &[TEXT], async {
        for said in [
            "",
            "HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n{",
            "nonsense\r\n\r\n",
        ] {
            let (_, mut stream) = service.take().await;
            stream.write_all(said.as_bytes()).await.expect("a reader");
        }
    })
    .await;
    tells_nothing(&later(outcome));
    drop(service);
    let start = now();
    let (outcome, ()) = exchange(&embedder, &[TEXT], async {}).await;
    let problem = later(outcome);
    assert!(problem.contains("refused"), "{problem}");
    tells_nothing(&problem);
    assert!(
        start.elapsed() >= Duration::from_millis(1_500),
        "it was not tried again"
    );
    assert!(!format!("{embedder:?} {}", embedder.model()).contains(SECRET));
}
