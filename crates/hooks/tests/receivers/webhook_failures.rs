//! Services that hang, close the connection, never end, or are unreachable.

use std::time::Duration;

use memoird_engine::{Hook, HookError, Retry};
use memoird_hooks::webhook::WebhookConfig;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::kit::{call, deliver, in_time, large_call};
use crate::service::Service;
use crate::webhook::{config, exchange, hook, new};

/// Delivers to a service that sends these bytes and closes the connection.
async fn after(raw: &str) -> Result<(), HookError> {
    let service = Service::bind().await;
    let hook = hook(service.url("/hook?token=hunter2"));
    exchange(&hook, call(), service.say(raw)).await.0
}

#[track_caller]
fn is_later(answer: Result<(), HookError>, why: &str) {
    let error = answer.expect_err("a failure");
    assert_eq!(error.retry, Retry::Later, "{error}");
    assert!(error.problem.contains(why), "{error}");
    assert!(!error.problem.contains("hunter2"), "{error}");
}

#[tokio::test]
async fn cancelled_delivery_closes_connection_to_hanging_service() {
    let service = Service::bind().await;
    let hook = hook(service.url("/"));
    let mut delivery = hook.deliver(vec![call()]);
    let (_, mut stream) = tokio::select! {
        answers = &mut delivery => panic!("{answers:?}"),
        taken = in_time(service.take()) => taken,
    };
    drop(delivery);
    let end = in_time(stream.read(&mut [0; 16])).await;
    assert!(
        matches!(end, Ok(0) | Err(_)),
        "the connection is still open: {end:?}"
    );
}

#[tokio::test]
async fn connection_closed_before_or_in_response_is_retried() {
    is_later(after("").await, "no answer from http://127.0.0.1:");
    is_later(
        after("HTTP/1.1 200 OK\r\ncontent-le").await,
        "no answer from",
    );
    is_later(after("no HTTP at all\r\n\r\n").await, "no answer from");
}

#[tokio::test]
async fn connection_closed_in_request_is_retried() {
    let service = Service::bind().await;
    let hook = hook(service.url("/"));
    let (answer, ()) = exchange(&hook, large_call(20_000_000), async {
        let mut stream = service.accept().await;
        stream
            .read_exact(&mut [0; 1_000])
            .await
            .expect("a beginning");
    })
    .await;
    is_later(answer, "no answer from");
}

#[tokio::test]
async fn success_status_counts_despite_broken_body() {
    let broken = "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf";
    assert_eq!(after(broken).await, Ok(()));
}

#[tokio::test]
async fn error_status_counts_despite_broken_or_hanging_body() {
    let broken = "HTTP/1.1 503 Busy\r\nretry-after: 3\r\ncontent-length: 100\r\n\r\nhalf";
    let expected = HookError {
        problem: "503 Service Unavailable: half".to_owned(),
        retry: Retry::After(Duration::from_secs(3)),
    };
    assert_eq!(after(broken).await, Err(expected.clone()));
    let service = Service::bind().await;
    let hook = hook(service.url("/"));
    let (answer, _open) = exchange(&hook, call(), async {
        let (_, mut stream) = service.take().await;
        stream.write_all(broken.as_bytes()).await.unwrap();
        stream
    })
    .await;
    assert_eq!(answer, Err(expected));
}

#[tokio::test]
async fn endless_response_is_aborted() {
    for (status, is_made) in [("200 OK", true), ("404 Not Found", false)] {
        let service = Service::bind().await;
        let hook = hook(service.url("/"));
        let (answer, sent) = exchange(&hook, call(), async {
            let (_, mut stream) = service.take().await;
            let head = format!("HTTP/1.1 {status}\r\ncontent-type: text/plain\r\n\r\n");
            stream.write_all(head.as_bytes()).await.unwrap();
            let mut sent = 0_u64;
            while stream.write_all(&[b'x'; 10_000]).await.is_ok() {
                sent += 10_000;
            }
            sent
        })
        .await;
        if is_made {
            assert_eq!(answer, Ok(()));
        } else {
            assert_eq!(answer.unwrap_err().retry, Retry::Never);
        }
        // The capacity of the buffers of two sockets.
        assert!(sent < 50_000_000, "{sent}");
    }
}

#[tokio::test]
async fn endless_headers_are_aborted() {
    let service = Service::bind().await;
    let hook = hook(service.url("/"));
    let (answer, sent) = exchange(&hook, call(), async {
        let (_, mut stream) = service.take().await;
        stream
            .write_all(b"HTTP/1.1 200 OK\r\nx-long: ")
            .await
            .unwrap();
        let mut sent = 0_u64;
        while stream.write_all(&[b'x'; 10_000]).await.is_ok() {
            sent += 10_000;
        }
        sent
    })
    .await;
    is_later(answer, "no answer from");
    assert!(sent < 50_000_000, "{sent}");
}

#[tokio::test]
async fn refused_connection_is_retried() {
    let service = Service::bind().await;
    let url = service.url("/hook?token=hunter2");
    drop(service);
    is_later(deliver(&hook(url), call()).await, "refused");
    is_later(
        deliver(&hook("http://nowhere.invalid/"), call()).await,
        "http://nowhere.invalid/",
    );
}

#[tokio::test]
async fn hanging_tls_handshake_times_out() {
    let service = Service::bind().await;
    let hook = new(&WebhookConfig {
        connect_timeout: Duration::from_millis(50),
        ..config(format!("https://127.0.0.1:{}/", service.port()))
    });
    let (answer, _open) = exchange(&hook.unwrap(), call(), service.accept()).await;
    is_later(answer, "no answer from https://127.0.0.1:");
}
