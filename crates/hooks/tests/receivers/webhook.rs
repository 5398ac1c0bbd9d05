//! Requests to a web service, and how its responses are interpreted.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use memoird_engine::{HookCall, HookError, Retry};
use memoird_hooks::payload::payload;
use memoird_hooks::webhook::{WebhookConfig, WebhookHook};
use serde_json::json;
use sha2::Sha256;

use crate::kit::{AT_SECONDS, Variables, call, deliver, in_time, large_call, variable};
use crate::service::{Request, Service};

/// A webhook that may contact this machine.
pub(crate) fn config(url: impl Into<String>) -> WebhookConfig {
    let config = json!({"url": url.into(), "allow_private": true, "connect_timeout": "30s"});
    serde_json::from_value(config).expect("a configuration")
}

pub(crate) fn new(config: &WebhookConfig) -> Result<WebhookHook, String> {
    WebhookHook::new(
        config,
        &Variables(&[("SESAME", "open sesame"), ("TOKEN", "hunter2")]),
    )
}

pub(crate) fn hook(url: impl Into<String>) -> WebhookHook {
    new(&config(url)).expect("a good configuration")
}

/// Runs a delivery and the service concurrently.
pub(crate) async fn exchange<T>(
    hook: &WebhookHook,
    call: HookCall,
    service: impl Future<Output = T>,
) -> (Result<(), HookError>, T) {
    in_time(async { tokio::join!(deliver(hook, call), service) }).await
}

/// Delivers to a service with this response. The delivery must fail.
async fn refused(status: &str, more: &str, body: &str) -> HookError {
    let service = Service::bind().await;
    let hook = hook(service.url("/hook"));
    exchange(&hook, call(), service.answer(status, more, body))
        .await
        .0
        .expect_err("a failure")
}

#[tokio::test]
async fn service_receives_payload_and_headers() {
    let service = Service::bind().await;
    let headers = [("Authorization", "Bearer t"), ("X-Team", "blue")];
    let hook = new(&WebhookConfig {
        secret: Some(variable("SESAME")),
        headers: headers
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into(),
        ..config(service.url("/hook?token=1"))
    });
    let (answer, got) = exchange(
        &hook.unwrap(),
        call(),
        service.answer("200 OK", "", "thanks"),
    )
    .await;
    assert_eq!(answer, Ok(()));
    assert_eq!(got.line, "POST /hook?token=1");
    assert_eq!(String::from_utf8_lossy(&got.body), payload(&call()));
    let id = format!("{}/receiver", call().content.generation);
    let timestamp = AT_SECONDS.to_string();
    for (name, value) in [
        ("content-type", "application/json"),
        ("user-agent", concat!("memoird/", env!("CARGO_PKG_VERSION"))),
        ("authorization", "Bearer t"),
        ("x-team", "blue"),
        ("webhook-id", &id),
        ("webhook-timestamp", &timestamp),
        ("host", &format!("127.0.0.1:{}", service.port())),
    ] {
        assert_eq!(got.header(name), Some(value), "{name}");
    }
    for name in ["cookie", "accept-encoding", "referer", "transfer-encoding"] {
        assert_eq!(got.header(name), None, "{name}");
    }
    assert_eq!(
        got.header("webhook-signature").unwrap(),
        signature("open sesame", &got)
    );
}

/// The signature as a receiver computes it.
fn signature(key: &str, got: &Request) -> String {
    let header = |name| got.header(name).expect(name);
    let mut mac = Hmac::<Sha256>::new_from_slice(key.as_bytes()).expect("any key is one");
    mac.update(format!("{}.{}.", header("webhook-id"), header("webhook-timestamp")).as_bytes());
    mac.update(&got.body);
    format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()))
}

#[tokio::test]
async fn request_without_secret_is_unsigned() {
    let service = Service::bind().await;
    let hook = hook(service.url("/"));
    let (answer, got) = exchange(
        &hook,
        large_call(10_000_000),
        service.answer("204 No Content", "", ""),
    )
    .await;
    assert_eq!(answer, Ok(()));
    assert_eq!(got.header("webhook-signature"), None);
    assert!(got.body == payload(&large_call(10_000_000)).as_bytes());
}

#[tokio::test]
async fn failed_request_is_retried_with_same_id() {
    let service = Service::bind().await;
    let hook = hook(service.url("/"));
    let (answer, first) = exchange(
        &hook,
        call(),
        service.answer("500 Oops", "", "no\x1b[2J\nroom"),
    )
    .await;
    let problem = r"500 Internal Server Error: no\u{1b}[2J\nroom";
    assert_eq!(answer, Err(HookError::later(problem)));
    let again = HookCall {
        attempt: 2,
        ..call()
    };
    let (answer, second) = exchange(&hook, again, service.answer("200 OK", "", "")).await;
    assert_eq!(answer, Ok(()));
    assert_eq!(first.header("webhook-id"), second.header("webhook-id"));
}

#[tokio::test]
async fn retry_after_is_respected() {
    let error = refused("429 Slow Down", "retry-after: 7\r\n", "").await;
    assert_eq!(error.problem, "429 Too Many Requests");
    assert_eq!(error.retry, Retry::After(Duration::from_secs(7)));
    // The call is made at 22:15:23.9.
    let until = "retry-after: Tue, 14 Nov 2023 22:16:24 GMT\r\n";
    let error = refused("503 Busy", until, "").await;
    assert_eq!(error.retry, Retry::After(Duration::from_millis(60_100)));
}

#[tokio::test]
async fn permanent_rejection_is_not_retried() {
    for status in [
        "404 Not Found",
        "410 Gone",
        "401 Unauthorized",
        "304 Not Modified",
    ] {
        let error = refused(status, "retry-after: 7\r\n", "").await;
        assert_eq!(error, HookError::never(status));
    }
    let error = refused("400 Bad Request", "", &"x".repeat(5_000)).await;
    assert_eq!(
        error.problem,
        format!("400 Bad Request: {}…", "x".repeat(199))
    );
}

#[tokio::test]
async fn redirect_on_same_host_is_followed_with_body() {
    let service = Service::bind().await;
    let hook = hook(service.url("/old"));
    let (answer, (first, second, third)) = exchange(&hook, call(), async {
        let absolute = format!("location: {}\r\n", service.url("/newer"));
        let first = service
            .answer("307 Moved", "location: /new?a=b\r\n", "")
            .await;
        let second = service.answer("308 Moved", &absolute, "").await;
        (first, second, service.answer("200 OK", "", "").await)
    })
    .await;
    assert_eq!(answer, Ok(()));
    let lines = [&*first.line, &*second.line, &*third.line];
    assert_eq!(lines, ["POST /old", "POST /new?a=b", "POST /newer"]);
    assert_eq!(third.body, first.body);
    assert_eq!(third.header("webhook-id"), first.header("webhook-id"));
}

#[tokio::test]
async fn redirect_to_other_host_is_reported_and_not_followed() {
    let (service, other) = (Service::bind().await, Service::bind().await);
    let hook = hook(service.url("/"));
    let places = [
        other.url("/x?secret=1"),
        format!("https://127.0.0.1:{}/x", service.port()),
    ];
    for place in places {
        let more = format!("location: {place}\r\n");
        let (answer, _) = tokio::select! {
            done = exchange(&hook, call(), service.answer("307 Go", &more, "")) => done,
            _ = other.accept() => panic!("it went to {place}"),
        };
        let error = answer.unwrap_err();
        assert_eq!(error.retry, Retry::Later);
        assert!(
            error.problem.contains("another host") && error.problem.contains("/x"),
            "{error}"
        );
        assert!(!error.problem.contains("secret"), "{error}");
    }
}

#[tokio::test]
async fn redirect_that_loses_body_is_not_followed() {
    for status in ["301 Moved", "302 Found", "303 See Other"] {
        let error = refused(status, "location: /new\r\n", "").await;
        assert_eq!(error.retry, Retry::Later);
        assert!(error.problem.contains("only 307 and 308"), "{error}");
    }
    for more in ["", "location: http://[\r\n"] {
        let error = refused("307 Go", more, "").await;
        assert_eq!(error.problem, "307 Temporary Redirect without a location");
    }
    let service = Service::bind().await;
    let hook = hook(service.url("/"));
    let (answer, ()) = exchange(&hook, call(), async {
        for _ in 0..4 {
            service.answer("308 Round", "location: /\r\n", "").await;
        }
    })
    .await;
    assert_eq!(answer, Err(HookError::later("redirects more than 3 times")));
}

#[test]
fn invalid_configuration_is_rejected() {
    let new = |url: &str| new(&config(url)).map(|_| ());
    for (url, problem) in [
        ("not a url", "the URL of the webhook is not valid: "),
        ("http://", "the URL of the webhook is not valid: "),
        (
            "ftp://a.example",
            "the URL of the webhook has the unsupported scheme ftp",
        ),
        (
            "https://ann:pw@a.example",
            "the URL of the webhook has a user",
        ),
    ] {
        let error = new(url).expect_err(url);
        assert!(error.starts_with(problem), "{error}");
    }
    assert_eq!(new("http://127.0.0.1:1/"), Ok(()));
    let with = |name: &str, value: &str| {
        let headers = [(name.to_owned(), value.to_owned())].into();
        super::webhook::new(&WebhookConfig {
            headers,
            ..config("http://a.example")
        })
        .map(|_| ())
    };
    let invalid = |name: &str| {
        Err(format!(
            "the name or the value of the header {name:?} has invalid characters"
        ))
    };
    assert_eq!(with("X-A", "b"), Ok(()));
    assert_eq!(with("X A", "b"), invalid("X A"));
    assert_eq!(with("X-A", "b\r\nX-B: c"), invalid("X-A"));
    for name in ["Webhook-Signature", "Content-Length", "host"] {
        assert_eq!(
            with(name, "b"),
            Err(format!("the header {name} is set by memoird; leave it out"))
        );
    }
}

#[test]
fn private_address_in_url_is_rejected_unless_allowed() {
    for host in [
        "127.0.0.1",
        "127.1",
        "0x7f.1",
        "2130706433",
        "10.0.0.1",
        "169.254.169.254",
        "[::1]",
        "[fd00::1]",
        "[::ffff:10.0.0.1]",
        "localhost",
        "LOCALHOST.",
        "a.localhost",
    ] {
        let open = config(format!("http://{host}/"));
        let closed = WebhookConfig {
            allow_private: false,
            ..open.clone()
        };
        let refused = new(&closed).expect_err(host);
        assert!(
            refused.ends_with("is a private address; set allow_private: true if that is meant"),
            "{host}: {refused}"
        );
        new(&open).expect(host);
    }
    let public = WebhookConfig {
        allow_private: false,
        ..config("http://a.example/")
    };
    new(&public).expect("a name is looked up later");
}

#[test]
fn secrets_are_hidden_in_debug() {
    let config = WebhookConfig {
        secret: Some(variable("TOKEN")),
        headers: [("authorization".to_owned(), "hunter2".to_owned())].into(),
        secret_headers: [("x-token".to_owned(), variable("TOKEN"))].into(),
        ..config("https://a.example/hook?token=hunter2")
    };
    let shown = format!("{config:?} {:?}", new(&config).unwrap());
    assert!(
        shown.contains("a.example/hook") && !shown.contains("hunter2"),
        "{shown}"
    );
}
