//! Clients over HTTP that are slow, greedy, or send garbage.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::timeout;

use crate::harness::{Daemon, Http1, Seed, Setup, eventually, http_get, say};

const APPEND: &str = "/memoird.v1.SessionService/Append";
const HISTORY: &str = "/memoird.v1.SessionService/GetHistory";
const LIST: &str = "/memoird.v1.SessionService/ListSessions";

async fn nothing_is_held(daemon: &Daemon) {
    eventually("nothing is held for calls", async || {
        let (_, page) = http_get(daemon.admin_addr(), "/metrics").await;
        let held = "memoird_memory_used_bytes{of=\"calls\"} 0";
        page.lines().any(|line| line == held).then_some(())
    })
    .await;
}

fn error(status: u16, code: &str, reason: &str) -> (u16, String, String) {
    (status, code.to_owned(), reason.to_owned())
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_order() {
    let daemon = Daemon::start().await;
    let mut client = Http1::connect(daemon.grpc_addr(), "").await;
    let mut requests = String::new();
    for number in 0..20 {
        let body = if number % 3 == 1 {
            "{".to_owned()
        } else {
            let turn = json!({ "role": "ROLE_USER", "parts": [{ "text": "hi" }] });
            json!({ "sessionId": format!("chat{number}"), "turns": [turn] }).to_string()
        };
        let headers = format!(
            "content-type: application/json\r\ncontent-length: {}\r\n",
            body.len()
        );
        requests += &client.head(&format!("POST {APPEND}"), &headers);
        requests += &body;
    }
    client.send(&requests).await;
    for number in 0..20 {
        let reply = client.reply().await;
        if number % 3 == 1 {
            let expected = error(400, "invalid_argument", "REQUEST_MALFORMED");
            assert_eq!(reply.error(), expected);
        } else {
            let session = &reply.ok()["session"]["sessionId"];
            assert_eq!(*session, format!("chat{number}"));
        }
    }
    nothing_is_held(&daemon).await;
}

#[tokio::test]
async fn requests_above_the_limit_are_rejected_from_their_head() {
    let daemon = Daemon::start().await;
    for headers in [
        // Nothing but the head arrives.
        "content-length: 100000\r\n",
        "transfer-encoding: chunked\r\n",
    ] {
        let mut client = Http1::connect(daemon.grpc_addr(), "").await;
        let headers = format!("content-type: application/json\r\n{headers}");
        let head = client.head(&format!("POST {LIST}"), &headers);
        client.send(head).await;
        if headers.contains("chunked") {
            let chunk = " ".repeat(0x8000);
            for _ in 0..3 {
                client.send(format!("8000\r\n{chunk}\r\n")).await;
            }
        }
        let expected = error(429, "resource_exhausted", "REQUEST_TOO_LARGE");
        assert_eq!(client.reply().await.error(), expected);
    }
    nothing_is_held(&daemon).await;
}

#[tokio::test]
async fn slow_requests_end_with_an_error() {
    let setup = Setup::default().server("connections: { request_timeout: 300ms }");
    let daemon = Daemon::with(setup).await;
    let mut client = Http1::connect(daemon.grpc_addr(), "").await;
    let headers = "content-type: application/json\r\ncontent-length: 20\r\n";
    let head = client.head(&format!("POST {LIST}"), headers);
    client.send(head + "{").await;
    let expected = error(504, "deadline_exceeded", "REQUEST_TOO_SLOW");
    assert_eq!(client.reply().await.error(), expected);
    let mut client = Http1::connect(daemon.grpc_addr(), "").await;
    let headers = format!("{headers}connect-timeout-ms: 50\r\n");
    let head = client.head(&format!("POST {LIST}"), &headers);
    client.send(head + "{").await;
    let expected = error(504, "deadline_exceeded", "DEADLINE_EXCEEDED");
    assert_eq!(client.reply().await.error(), expected);
    nothing_is_held(&daemon).await;
}

#[tokio::test]
async fn slow_heads_are_closed_and_idle_connections_with_a_key_are_not() {
    let limits = "connections: { handshake_timeout: 200ms, keyless_timeout: 500ms }";
    let setup = Setup::default().two_tenants("", "").server(limits);
    let daemon = Daemon::with(setup).await;
    for part in [
        "",
        "POST",
        "POST /memoird.v1.SessionService/Append HTTP/1.1\r\nhost: a\r\n",
    ] {
        let mut slow = Http1::connect(daemon.grpc_addr(), "").await;
        slow.send(part).await;
        assert!(slow.rest().await.is_empty(), "{part}");
    }
    let mut idle = Http1::connect(daemon.grpc_addr(), Setup::ALPHA).await;
    idle.say("chat", "hi").await.ok();
    // Longer than an unauthenticated connection may be idle.
    let mut anonymous = Http1::connect(daemon.grpc_addr(), "").await;
    anonymous.say("chat", "hi").await.error();
    assert!(anonymous.rest().await.is_empty());
    idle.say("chat", "hi").await.ok();
}

#[tokio::test]
async fn unauthenticated_requests_are_limited() {
    let daemon = Daemon::with(Setup::default().two_tenants("", "")).await;
    for line in ["GET /", "OPTIONS /", &format!("POST {APPEND}")] {
        let mut anonymous = Http1::connect(daemon.grpc_addr(), "").await;
        let headers = "content-type: application/json\r\ncontent-length: 0\r\n";
        let requests = anonymous.head(line, headers).repeat(100);
        anonymous.send(requests).await;
        let said = String::from_utf8(anonymous.rest().await).expect("UTF-8");
        let answers = said.matches("HTTP/1.1 ").count();
        assert!((1..=16).contains(&answers), "{line}: {answers}");
    }
}

#[tokio::test]
async fn large_heads_are_rejected() {
    let daemon = Daemon::start().await;
    let mut client = Http1::connect(daemon.grpc_addr(), "").await;
    let headers = format!("x: {}\r\n", "x".repeat(32 << 10));
    let head = client.head(&format!("POST {APPEND}"), &headers);
    client.send(head).await;
    assert_eq!(client.reply_head().await.status, 431);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reply_that_is_not_read_is_released() {
    let setup = Setup::default().server("connections: { write_timeout: 500ms }");
    let daemon = Daemon::with(setup).await;
    for _ in 0..12 {
        say(&mut daemon.sessions(), "chat", &"x".repeat(300 << 10)).await;
    }
    let mut client = Http1::connect(daemon.grpc_addr(), "").await;
    let headers = "content-type: application/json\r\ncontent-length: 21\r\n";
    let head = client.head(&format!("POST {HISTORY}"), headers);
    let body = r#"{"sessionId": "chat"}"#;
    client.send((head + body).repeat(20)).await;
    nothing_is_held(&daemon).await;
    client.rest().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn json_of_many_tiny_values_uses_no_more_than_its_bytes() {
    let daemon = Daemon::with(Setup::default().section("limits: { memory: 64MiB }")).await;
    let mut client = Http1::connect(daemon.grpc_addr(), "").await;
    client.say("chat", "hi").await.ok();
    let before = daemon.resident_bytes();
    let deep = 4_000_000;
    let bombs = [
        format!(r#"{{"turns": [{}{{}}]}}"#, "{},".repeat(2_600_000)),
        format!("{}1{}", "[".repeat(deep), "]".repeat(deep)),
        format!(r#"{{"sessionId": {}}}"#, "[".repeat(deep)),
        format!(r#"{{"turns": [{}]}}"#, r#"{"metadata": {"#.repeat(500_000)),
        format!(r#"{{"turns": [{}7]}}"#, "null, ".repeat(1_300_000)),
        format!(
            r#"{{"turns": [{{"metadata": {{{}}}}}]}}"#,
            r#""":"","#.repeat(1_000_000)
        ),
    ];
    for bomb in &bombs {
        let reply = client.call_text(APPEND, "", bomb.as_bytes()).await;
        let expected = error(400, "invalid_argument", "REQUEST_MALFORMED");
        assert_eq!(reply.error(), expected, "{}", &bomb[..40]);
        let used = daemon.resident_bytes().saturating_sub(before);
        assert!(used < 64 << 20, "{used} bytes after {}", &bomb[..40]);
    }
    client.say("chat", "hi").await.ok();
    nothing_is_held(&daemon).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_requests_never_crash_the_daemon() {
    let mut daemon = Daemon::start().await;
    let mut seed = Seed::new(0x687474705f676172);
    let words = [
        "POST ",
        "GET ",
        APPEND,
        " HTTP/1.1\r\n",
        "\r\n",
        "\r\n\r\n",
        "content-length: 2\r\n",
        "content-length: 99999999999999999999\r\n",
        "transfer-encoding: chunked\r\n",
        "content-type: application/json\r\n",
        "content-type: application/connect+json\r\n",
        "{}",
        "{\"sessionId\":",
        "\u{0}",
        "ffffffffffffffff\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "authorization: Bearer x\r\n",
        "connect-timeout-ms: 0\r\n",
        "expect: 100-continue\r\n",
        "host: x\r\n",
        "?message=%ff&base64=1",
        "upgrade: h2c\r\nconnection: upgrade\r\n",
    ];
    for _ in 0..300 {
        let mut client = Http1::connect(daemon.grpc_addr(), "").await;
        let count = 1 + seed.below(12);
        let picks = (0..count).map(|_| words[seed.below(words.len())]);
        let text: String = picks.collect();
        client.send(&text).await;
        // Most are incomplete, and wait for more.
        let _ = timeout(Duration::from_millis(5), client.rest()).await;
    }
    let mut client = Http1::connect(daemon.grpc_addr(), "").await;
    client.say("chat", "hi").await.ok();
    let _: Value = client
        .call(HISTORY, &json!({ "sessionId": "chat" }))
        .await
        .ok();
    assert!(!daemon.log().contains("panicked"), "{}", daemon.log());
    daemon.stop().await;
}
