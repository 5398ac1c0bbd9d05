//! The webhook hook: signed POSTs to a service that may be slow, broken or temporarily gone.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use memoird_proto::v1::{DeliveryState, HookDelivery};
use serde_json::Value;
use sha2::Sha256;

use crate::harness::{
    Answer, Daemon, Posted, Service, Setup, deliveries, end, eventually, in_state, reload, run,
    say, wall_ms,
};

const FINE: Answer = Answer::Says("200 OK", "");
const SECRET: &str = "whsec_bWVtb2lyZCB0ZXN0cyBpdHNlbGY=";

/// A daemon with a webhook to this service.
async fn telling(service: &Service, more: &str) -> Daemon {
    let hook = format!(
        "hooks: [ {{ name: web, retry: {{ tries: 8, pause: 20ms, pause_max: 5s }}, {more} \
         webhook: {{ url: \"http://127.0.0.1:{}/in?token=hidden\", allow_private: true, \
         secret: {{ env: SIGNS }}, headers: {{ x-bot: yes }} }} }} ]",
        service.port
    );
    Daemon::with(Setup::default().section(hook).env("SIGNS", SECRET)).await
}

async fn end_one(daemon: &Daemon) -> String {
    let mut client = daemon.sessions();
    say(&mut client, "chat", "tell ☃ this").await;
    end(&mut client, "chat").await
}

async fn one_in(daemon: &Daemon, state: DeliveryState) -> HookDelivery {
    let mut admin = daemon.admin();
    eventually("the delivery is in that state", async || {
        deliveries(&mut admin, in_state(state)).await.pop()
    })
    .await
}

#[track_caller]
fn check_signature(posted: &Posted) {
    check_signature_of(posted, SECRET);
}

#[track_caller]
fn check_signature_of(posted: &Posted, secret: &str) {
    let signed = format!(
        "{}.{}.",
        posted.header("webhook-id"),
        posted.header("webhook-timestamp")
    );
    let key = STANDARD
        .decode(secret.trim_start_matches("whsec_"))
        .expect("base64");
    let mut mac = Hmac::<Sha256>::new_from_slice(&key).expect("any length");
    mac.update(signed.as_bytes());
    mac.update(&posted.body);
    let expected = format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()));
    assert_eq!(posted.header("webhook-signature"), expected);
    let at: i64 = posted.header("webhook-timestamp").parse().expect("seconds");
    assert!((at - wall_ms() / 1_000).abs() < 120, "{at}");
}

#[tokio::test]
async fn failing_service_gets_signed_retries() {
    let broken = Answer::Says("500 Internal Server Error", "");
    let service = Service::start(&[broken, broken, Answer::Breaks, broken, FINE]).await;
    let daemon = telling(&service, "").await;
    let generation = end_one(&daemon).await;
    let done = one_in(&daemon, DeliveryState::Done).await;
    assert_eq!((done.tries, done.last_error.as_str()), (5, ""));
    let calls = service.calls();
    assert_eq!(calls.len(), 5);
    for (attempt, posted) in (1_u64..).zip(&calls) {
        check_signature(posted);
        assert!(
            posted.head.starts_with("POST /in?token=hidden HTTP/1.1"),
            "{}",
            posted.head
        );
        assert_eq!(posted.header("webhook-id"), format!("{generation}/web"));
        assert_eq!(
            (posted.header("content-type"), posted.header("x-bot")),
            ("application/json", "yes")
        );
        let body: Value = serde_json::from_slice(&posted.body).expect("JSON");
        assert_eq!(
            (&body["attempt"], &body["reason"]),
            (&attempt.into(), &"ended".into())
        );
        assert_eq!(body["turns"][0]["parts"][0]["text"], "tell ☃ this");
    }
    let works = async || daemon.log().contains("a hook works again").then_some(());
    eventually("the log says so", works).await;
    let log = daemon.log();
    assert_eq!(log.matches("a hook fails").count(), 1, "{log}");
    assert!(!log.contains("hidden"), "{log}");
}

#[tokio::test]
async fn rotated_secret_signs_next_delivery() {
    const ROTATED: &str = "whsec_cm90YXRlZCwgYW5kIHdlbGw=";
    let service = Service::start(&[FINE]).await;
    let hook = format!(
        "hooks: [ {{ name: web, webhook: {{ url: \"http://127.0.0.1:{}/\", \
         allow_private: true, secret: {{ file: ./secret }} }} }} ]",
        service.port
    );
    let script = format!("printf {SECRET} > secret; exec \"$@\"");
    let setup = Setup::default()
        .section(hook)
        .wrapper(&["sh", "-c", &script, "sh"]);
    let daemon = Daemon::with(setup).await;
    end_one(&daemon).await;
    one_in(&daemon, DeliveryState::Done).await;
    check_signature(&service.calls()[0]);
    std::fs::write(daemon.path("secret"), ROTATED).expect("a file");
    reload(&mut daemon.admin()).await;
    end_one(&daemon).await;
    let second = eventually("it is told again", async || service.calls().get(1).cloned()).await;
    check_signature_of(&second, ROTATED);
}

#[tokio::test]
async fn retry_after_of_service_is_respected() {
    let wait = Answer::Says("429 Too Many Requests", "retry-after: 2\r\n");
    let service = Service::start(&[wait, FINE]).await;
    let daemon = telling(&service, "").await;
    end_one(&daemon).await;
    let pending = eventually("it was asked to wait", async || {
        let mut admin = daemon.admin();
        let pending = deliveries(&mut admin, in_state(DeliveryState::Pending))
            .await
            .pop()?;
        (pending.tries == 1).then_some(pending)
    })
    .await;
    assert_eq!(pending.last_error, "429 Too Many Requests");
    let done = one_in(&daemon, DeliveryState::Done).await;
    assert_eq!(done.tries, 2);
    let calls = service.calls();
    let at = |posted: &Posted| {
        posted
            .header("webhook-timestamp")
            .parse::<i64>()
            .expect("seconds")
    };
    assert!(at(&calls[1]) - at(&calls[0]) >= 1, "{calls:?}");
}

#[tokio::test]
async fn hanging_service_times_out_and_is_retried() {
    let service = Service::start(&[Answer::Hangs, FINE]).await;
    let daemon = telling(&service, "timeout: 500ms,").await;
    end_one(&daemon).await;
    say(&mut daemon.sessions(), "other", "calls go on").await;
    let done = one_in(&daemon, DeliveryState::Done).await;
    assert_eq!(done.tries, 2);
}

#[tokio::test]
async fn redirect_to_another_host_is_not_followed() {
    let other = Service::start(&[FINE]).await;
    let away: &'static str = format!("location: http://127.0.0.1:{}/\r\n", other.port).leak();
    let service = Service::start(&[
        Answer::Says("307 Temporary Redirect", away),
        Answer::Says("307 Temporary Redirect", "location: /here\r\n"),
        FINE,
    ])
    .await;
    let daemon = telling(&service, "").await;
    end_one(&daemon).await;
    one_in(&daemon, DeliveryState::Done).await;
    let calls = service.calls();
    assert_eq!(calls.len(), 3, "the one within the host is followed");
    assert!(
        calls[2].head.starts_with("POST /here HTTP"),
        "{}",
        calls[2].head
    );
    assert_eq!(calls[1].body, calls[2].body);
    check_signature(&calls[2]);
    assert!(other.calls().is_empty(), "nothing went elsewhere");
}

#[tokio::test]
async fn permanent_refusal_is_dead_at_once() {
    let service = Service::start(&[Answer::Says("410 Gone", "")]).await;
    let daemon = telling(&service, "").await;
    end_one(&daemon).await;
    let dead = one_in(&daemon, DeliveryState::Dead).await;
    assert_eq!((dead.tries, dead.last_error.as_str()), (1, "410 Gone"));
}

#[tokio::test]
async fn private_address_is_refused_unless_allowed() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("memoird.yaml");
    for (url, is_private) in [
        ("http://127.0.0.1:1/", true),
        ("http://localhost:1/", true),
        ("http://[::1]:1/", true),
        ("http://[::ffff:10.0.0.1]/", true),
        ("http://192.168.1.1/", true),
        ("http://169.254.169.254/latest", true),
        ("http://2130706433/", true),
        ("http://0/", true),
        ("https://crm.example/memoird", false),
    ] {
        for allow in [false, true] {
            let hook = format!(
                "server: {{ allow_without_keys: true }}\n\
                 hooks: [ {{ name: web, webhook: {{ url: \"{url}\", allow_private: {allow} }} }} ]"
            );
            std::fs::write(&path, hook).expect("a file");
            let outcome = run(&["config", "check", path.to_str().expect("UTF-8")], &[]).await;
            let refused = is_private && !allow;
            assert_eq!(
                outcome.code,
                Some(if refused { 64 } else { 0 }),
                "{url} {outcome:?}"
            );
            let said = outcome.stderr.contains("hooks[0].webhook")
                && outcome.stderr.contains("allow_private: true");
            assert_eq!(said, refused, "{url} {outcome:?}");
        }
    }
}
