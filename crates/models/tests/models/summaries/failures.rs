//! Providers that are busy, hang, close the connection, or reply with invalid data.

use std::time::Duration;

use memoird_engine::ModelFault;
use tokio::io::AsyncWriteExt;

use super::{CHATTY, MODELS, TEXT, WIRES, exchange, failed};
use crate::kit::now;
use crate::service::Service;

#[tokio::test(start_paused = true)]
async fn busy_provider_is_retried_after_requested_pause() {
    for wire in WIRES {
        let service = Service::bind().await;
        let start = now();
        let (outcome, (first, second)) = exchange(&wire.to(&service), async {
            let first = service
                .answer("429 Slow", "retry-after: 12\r\n", CHATTY)
                .await;
            (
                first,
                service.answer("200 OK", "", &wire.saying("{}")).await,
            )
        })
        .await;
        outcome.expect("an answer");
        assert_eq!(first.body, second.body);
        let waited = start.elapsed();
        assert!((12_000..14_000).contains(&waited.as_millis()), "{waited:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn pause_beyond_time_limit_is_left_to_the_caller() {
    for wire in WIRES {
        let service = Service::bind().await;
        let start = now();
        let answer = service.answer("429 Slow", "retry-after: 60\r\n", CHATTY);
        let (outcome, _) = exchange(&wire.to(&service), answer).await;
        let is_so = |fault: &ModelFault| fault.after.is_some_and(|after| after.as_secs() == 60);
        assert!(outcome.as_ref().is_err_and(is_so), "{outcome:?}");
        let (_, problem) = failed(outcome);
        assert!(
            problem.ends_with("429 Too Many Requests (some_error)"),
            "{problem}"
        );
        assert!(start.elapsed() < Duration::from_secs(5), "it waited");
    }
}

#[tokio::test(start_paused = true)]
async fn one_failure_is_retried_and_three_fail() {
    for wire in WIRES {
        let service = Service::bind().await;
        let summarizer = wire.to(&service);
        let (outcome, _) = exchange(&summarizer, async {
            service.answer("500 Oops", "", CHATTY).await;
            service.answer("200 OK", "", &wire.saying("{}")).await
        })
        .await;
        outcome.expect("an answer");
        let overloaded =
            r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#;
        let (outcome, ()) = exchange(&summarizer, async {
            service.answer("503 Busy", "", "<html>").await;
            service.answer("502 Gone", "", "").await;
            service.answer("529 Overloaded", "", overloaded).await;
        })
        .await;
        let (kind, problem) = failed(outcome);
        assert_eq!(kind, "later");
        assert!(problem.ends_with(": 529 (overloaded_error)"), "{problem}");
    }
}

#[tokio::test(start_paused = true)]
async fn silent_provider_times_out_after_common_limit() {
    for wire in WIRES {
        for said in [
            "",
            "HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n{",
            "HTTP/1.1 200",
        ] {
            let service = Service::bind().await;
            let start = now();
            let (outcome, _held) = exchange(&wire.to(&service), async {
                service.answer("500 Oops", "", CHATTY).await;
                let (_, mut stream) = service.take().await;
                stream.write_all(said.as_bytes()).await.expect("a reader");
                stream
            })
            .await;
            let (kind, problem) = failed(outcome);
            assert_eq!(kind, "later");
            assert!(problem.ends_with("no answer within 20s"), "{problem}");
            let waited = start.elapsed();
            assert!((20_000..21_000).contains(&waited.as_millis()), "{waited:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn broken_connection_is_retried_and_transient() {
    for wire in WIRES {
        let service = Service::bind().await;
        let summarizer = wire.to(&service);
        let (outcome, _) = exchange(&summarizer, async {
            service.say(b"").await;
            service.say(b"\x16\x03\xff\x00\xfe garbage \r\n\r\n").await;
            service.answer("200 OK", "", &wire.saying("{}")).await
        })
        .await;
        outcome.expect("an answer");
        let half = b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n{\"content\":[{\"ty";
        let (outcome, ()) = exchange(&summarizer, async {
            for _ in 0..3 {
                service.say(half).await;
            }
        })
        .await;
        let (kind, problem) = failed(outcome);
        assert!(
            kind == "later" && problem.contains("no answer: "),
            "{problem}"
        );
        drop(service);
        let start = now();
        let (outcome, ()) = exchange(&summarizer, async {}).await;
        let (kind, problem) = failed(outcome);
        assert!(kind == "later" && problem.contains("refused"), "{problem}");
        assert!(
            start.elapsed() >= Duration::from_millis(1_500),
            "it was not tried again"
        );
    }
}

/// An invalid reply has been paid for and is not requested again: the service replies only once.
#[tokio::test(start_paused = true)]
async fn invalid_response_is_transient_and_not_retried() {
    for wire in MODELS {
        let whole = wire.saying(TEXT);
        for (body, expected) in [
            (TEXT, "not a JSON object"),
            ("", "not a JSON object"),
            (&whole[..whole.len() / 2], "not a JSON object"),
            ("[]", "not a JSON object"),
            ("{}", "the response has no "),
            (r#"{"content":"a","choices":[{}]}"#, "the response has no "),
            (CHATTY, "the response is an error"),
        ] {
            let service = Service::bind().await;
            let answer = service.answer("200 OK", "", body);
            let (outcome, _) = exchange(&wire.to(&service), answer).await;
            let (kind, problem) = failed(outcome);
            assert!(
                kind == "later" && problem.contains(expected),
                "{wire:?} {body}: {problem}"
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn non_text_and_oversized_responses_are_rejected() {
    for wire in WIRES {
        let service = Service::bind().await;
        let summarizer = wire.to(&service);
        let garbage = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n\xff\xfe\x00\x80";
        let (outcome, _) = exchange(&summarizer, service.say(garbage)).await;
        let (kind, problem) = failed(outcome);
        assert!(
            kind == "later" && problem.contains("the response is not "),
            "{problem}"
        );
        let huge = wire.saying(&"x".repeat(1024 * 1024));
        let huge = format!("{huge} ");
        let (outcome, _) = exchange(&summarizer, service.answer("200 OK", "", &huge)).await;
        let (kind, problem) = failed(outcome);
        assert!(
            kind == "later" && problem.ends_with("more than 1048576 bytes"),
            "{problem}"
        );
    }
}
