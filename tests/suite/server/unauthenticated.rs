//! Clients without a key or with a wrong one: they never prevent others from being served.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use h2::Reason;
use memoird_proto::v1::session_service_client::SessionServiceClient;
use memoird_proto::v1::{GetHistoryRequest, WatchEventsRequest};
use prost::Message;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tonic::codegen::http::{self, StatusCode};
use tonic::{Code, Request};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;

use crate::harness::{
    Daemon, Http2, Setup, UnreadHttp2, append, channel, closed, connect_from, eventually, framed,
    http_get, many_calls, refused, refused_code, say, user,
};

const CHECK: &str = "/grpc.health.v1.Health/Check";
const WATCH: &str = "/grpc.health.v1.Health/Watch";
const REFLECTION: &str = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
const APPEND: &str = "/memoird.v1.SessionService/Append";
const STATS: &str = "/memoird.v1.AdminService/GetStats";
const HTTP2_HELLO: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
/// Generous limit for authenticated calls to succeed.
const SERVED_WITHIN: Duration = Duration::from_secs(20);

/// A daemon with two tenants and these connection settings.
async fn daemon(connections: &str, server: &str) -> Daemon {
    let mut setup = Setup::default().two_tenants("", "");
    for setting in [connections, server] {
        setup = match setting {
            "" => setup,
            setting => setup.server(setting),
        };
    }
    Daemon::with(setup).await
}

/// Asserts that clients with a key and health probes are served.
async fn authenticated_clients_are_served(daemon: &Daemon) {
    let served = async {
        say(&mut daemon.sessions_of(Setup::ALPHA), "chat", "hi").await;
        say(&mut daemon.sessions_of(Setup::BETA), "chat", "hi").await;
        let mut health = HealthClient::new(channel(daemon.grpc_addr()));
        let asked = HealthCheckRequest::default();
        health.check(asked).await.expect("a probe is answered");
    };
    timeout(SERVED_WITHIN, served).await.expect("served");
}

async fn metric(daemon: &Daemon, name: &str) -> u64 {
    let (_, page) = http_get(daemon.admin_addr(), "/metrics").await;
    let value = page.lines().find_map(|line| line.strip_prefix(name));
    let value = value.unwrap_or_else(|| panic!("no {name}"));
    value.trim().parse().expect("a number")
}

fn question() -> Bytes {
    let symbol = "memoird.v1.AppendRequest".to_owned();
    let asked = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::FileContainingSymbol(symbol)),
    };
    framed(&asked.encode_to_vec())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unfinished_probes_take_no_call_permits() {
    let daemon = daemon("", "max_calls_in_flight: 64").await;
    let mut held = Vec::new();
    let mut anonymous_connections = Vec::new();
    for path in [CHECK, WATCH, REFLECTION, APPEND, CHECK] {
        let mut anonymous = Http2::connect(daemon.grpc_addr()).await;
        for _ in 0..64 {
            let Ok(begun) = anonymous.begin(path, None, "").await else {
                break;
            };
            held.push(begun);
        }
        anonymous_connections.push(anonymous);
    }
    authenticated_clients_are_served(&daemon).await;
    // Well-formed health watches that never end.
    let mut anonymous = Http2::connect(daemon.grpc_addr()).await;
    for _ in 0..64 {
        held.extend(anonymous.begin(WATCH, None, framed(b"")).await.ok());
    }
    authenticated_clients_are_served(&daemon).await;
    drop((held, anonymous_connections));
}

#[tokio::test]
async fn unauthenticated_probe_is_limited_in_size_and_time() {
    let daemon = daemon("connections: { request_timeout: 300ms }", "").await;
    let mut anonymous = Http2::connect(daemon.grpc_addr()).await;
    let large = HealthCheckRequest {
        service: "x".repeat(2_000),
    };
    let begun = anonymous.begin(CHECK, None, framed(&large.encode_to_vec()));
    let refusal = begun.await.expect("a stream").refusal().await;
    assert_eq!(refused_code(&refusal), "REQUEST_TOO_LARGE", "{refusal:?}");
    let begun = anonymous.begin(CHECK, None, "").await.expect("a stream");
    let refusal = begun.refusal().await;
    assert_eq!(refused_code(&refusal), "REQUEST_TOO_SLOW", "{refusal:?}");
    assert_eq!(refusal.code(), Code::DeadlineExceeded);
}

#[tokio::test]
async fn unfinished_request_releases_its_permit_after_timeout() {
    let limits = "connections: { request_timeout: 300ms }";
    let daemon = daemon(limits, "max_calls_in_flight: 2").await;
    let mut slow = Http2::connect(daemon.grpc_addr()).await;
    let begun = slow.begin(APPEND, Some(Setup::ALPHA), "\0\0").await;
    let refusal = begun.expect("a stream").refusal().await;
    assert_eq!(refused_code(&refusal), "REQUEST_TOO_SLOW", "{refusal:?}");
    authenticated_clients_are_served(&daemon).await;
}

#[tokio::test]
async fn reflection_requires_key_when_keys_are_configured() {
    let daemon = daemon("", "").await;
    let mut anonymous = Http2::connect(daemon.grpc_addr()).await;
    let begun = anonymous.begin(REFLECTION, None, question()).await;
    let refusal = begun.expect("a stream").refusal().await;
    assert_eq!(refused_code(&refusal), "NO_KEY", "{refusal:?}");
}

#[tokio::test]
async fn reflection_can_be_switched_off() {
    let daemon = Daemon::with(Setup::default().server("reflection: false")).await;
    let mut client = Http2::connect(daemon.grpc_addr()).await;
    let begun = client.begin(REFLECTION, None, question()).await;
    let code = begun.expect("a stream").code().await;
    assert_eq!(code, Code::Unimplemented);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unread_reflection_replies_use_bounded_memory() {
    let setup = Setup::default().two_tenants("", "");
    let daemon = Daemon::with(setup.section("limits: { memory: 64MiB }")).await;
    let before = daemon.resident_bytes();
    let mut many = BytesMut::new();
    (0..16).for_each(|_| many.extend_from_slice(&question()));
    let many = many.freeze();
    let mut deaf = Vec::new();
    for _ in 0..4 {
        let mut client = UnreadHttp2::connect(daemon.grpc_addr()).await;
        client
            .begin_calls(REFLECTION, Setup::ALPHA, &many, 200)
            .await;
        deaf.push(client);
    }
    authenticated_clients_are_served(&daemon).await;
    let used = daemon.resident_bytes().saturating_sub(before) >> 20;
    assert!(used < 100, "{used} MiB for answers that nobody reads");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_connections_do_not_lock_out_authenticated_clients() {
    let daemon = daemon("", "max_connections: 8").await;
    let mut silent = Vec::new();
    for number in 0..200 {
        let mut stream = connect_from("127.0.0.1", daemon.grpc_addr()).await;
        if number % 2 == 0 {
            let _ = stream.write_all(HTTP2_HELLO).await;
        }
        silent.push(stream);
        if number % 50 == 49 {
            authenticated_clients_are_served(&daemon).await;
        }
    }
    // A connection that has authenticated is kept, however many others arrive.
    let mut early = daemon.sessions_of(Setup::ALPHA);
    let watching = WatchEventsRequest::default();
    let events = early.watch_events(watching).await.expect("it watches");
    let mut events = events.into_inner();
    for _ in 0..50 {
        silent.push(connect_from("127.0.0.1", daemon.grpc_addr()).await);
    }
    say(&mut daemon.sessions_of(Setup::ALPHA), "watched", "hi").await;
    let seen = timeout(SERVED_WITHIN, events.message()).await;
    assert!(seen.expect("in time").expect("no error").is_some());
}

#[tokio::test]
async fn silent_connection_is_closed_after_timeout() {
    let limits = "connections: { handshake_timeout: 300ms, keyless_timeout: 300ms }";
    let daemon = daemon(limits, "").await;
    for hello in [
        &b""[..],
        b"PRI * HTTP/2",
        b"GET / HTTP/1.1\r\n\r\n",
        HTTP2_HELLO,
    ] {
        let mut stream = connect_from("127.0.0.1", daemon.grpc_addr()).await;
        stream.write_all(hello).await.expect("sent");
        closed(&mut stream).await;
    }
    for hello in [
        &b""[..],
        b"GET / HT",
        b"GET /healthz HTTP/1.1\r\nHost: a\r\n",
    ] {
        let mut stream = connect_from("127.0.0.1", daemon.admin_addr()).await;
        stream.write_all(hello).await.expect("sent");
        closed(&mut stream).await;
    }
    authenticated_clients_are_served(&daemon).await;
}

#[tokio::test]
async fn authenticated_connection_is_closed_when_idle_or_too_old() {
    for limits in [
        "idle_timeout: 300ms",
        "max_age: 300ms, max_age_grace: 300ms",
    ] {
        // The timeout without a key is shorter, so it passes before the other limits are checked.
        let limits = format!("connections: {{ keyless_timeout: 100ms, {limits} }}");
        let daemon = daemon(&limits, "").await;
        // gRPC clients reconnect by themselves.
        let sessions = daemon.sessions_of(Setup::ALPHA);
        for _ in 0..3 {
            let mut client = Http2::connect(daemon.grpc_addr()).await;
            let begun = client.begin(APPEND, Some(Setup::ALPHA), framed(b"")).await;
            drop(begun.expect("a stream"));
            client.closed().await;
            // A call that starts while its connection is closing is retried.
            eventually("it connects again", async || {
                let mut sessions = sessions.clone();
                sessions.append(append("chat", [user("hi")])).await.ok()
            })
            .await;
        }
    }
}

#[tokio::test]
async fn running_call_keeps_its_connection_open() {
    let limits = "connections: { idle_timeout: 200ms, keyless_timeout: 200ms }";
    let daemon = daemon(limits, "").await;
    let mut client = daemon.sessions_of(Setup::ALPHA);
    let watching = client.watch_events(WatchEventsRequest::default()).await;
    let mut events = watching.expect("it watches").into_inner();
    // Wait until an idle connection has been closed.
    let mut idle = connect_from("127.0.0.1", daemon.grpc_addr()).await;
    idle.write_all(HTTP2_HELLO).await.expect("sent");
    closed(&mut idle).await;
    say(&mut daemon.sessions_of(Setup::ALPHA), "chat", "hi").await;
    let seen = timeout(SERVED_WITHIN, events.message()).await;
    assert!(seen.expect("in time").expect("no error").is_some());
}

#[tokio::test]
async fn connections_per_address_are_limited() {
    let daemon = daemon("connections: { max_per_address: 3 }", "").await;
    let mut known = Vec::new();
    for _ in 0..3 {
        let mut client = Http2::connect(daemon.grpc_addr()).await;
        let begun = client.begin(STATS, Some(Setup::ALPHA), "").await;
        let code = begun.expect("a stream").code().await;
        assert_eq!(code, Code::PermissionDenied, "the key is good");
        known.push(client);
    }
    let mut fourth = connect_from("127.0.0.1", daemon.grpc_addr()).await;
    closed(&mut fourth).await;
    let other = connect_from("127.0.0.2", daemon.grpc_addr()).await;
    let mut other = Http2::over(other).await;
    let begun = other.begin(STATS, Some(Setup::BETA), "").await;
    assert_eq!(
        begun.expect("a stream").code().await,
        Code::PermissionDenied
    );
    assert!(known.iter_mut().all(Http2::is_open), "they had a key");
}

#[tokio::test]
async fn unfinished_admin_requests_use_few_descriptors() {
    let daemon = daemon("connections: { admin_max: 16 }", "").await;
    let mut half: Vec<TcpStream> = Vec::new();
    for _ in 0..300 {
        let mut stream = connect_from("127.0.0.1", daemon.admin_addr()).await;
        let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\n").await;
        half.push(stream);
    }
    let page = timeout(SERVED_WITHIN, http_get(daemon.admin_addr(), "/healthz")).await;
    assert_eq!(page.expect("in time").0, 200);
    eventually("few sockets are open", async || {
        let open = std::fs::read_dir(format!("/proc/{}/fd", daemon.pid()));
        (open.expect("its descriptors").count() < 150).then_some(())
    })
    .await;
    authenticated_clients_are_served(&daemon).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_keys_are_counted_and_delayed_good_keys_are_not() {
    let daemon = daemon("", "").await;
    let counted = "memoird_calls_denied_total{reason=\"WRONG_KEY\"}";
    let hello = || append("chat", [user("hi")]);
    let guess = async |number: usize| {
        let mut guessing = daemon.sessions_of(&format!("guess-{number}"));
        let answer = guessing.append(hello()).await;
        refused(answer, Code::Unauthenticated, "WRONG_KEY");
    };
    for number in 0..20 {
        guess(number).await;
    }
    assert_eq!(metric(&daemon, counted).await, 20);
    assert!(daemon.log().contains("127.0.0.1"), "{}", daemon.log());
    assert!(!daemon.log().contains("guess-"), "it logs keys");
    // A wrong key is answered later than a good key sent after it.
    let mut guesses = JoinSet::new();
    for number in 0..8 {
        let mut guessing = daemon.sessions_of(&format!("late-guess-{number}"));
        guesses.spawn(async move { guessing.append(append("chat", [user("hi")])).await });
    }
    authenticated_clients_are_served(&daemon).await;
    assert!(guesses.try_join_next().is_none(), "a guess was as fast");
    for answer in guesses.join_all().await {
        refused(answer, Code::Unauthenticated, "WRONG_KEY");
    }
}

#[tokio::test]
async fn most_of_many_wrong_keys_get_no_reply() {
    let daemon = daemon("", "").await;
    let mut answered = 0;
    for connection in 0..2 {
        let mut anonymous = Http2::connect(daemon.grpc_addr()).await;
        let mut guesses = JoinSet::new();
        for number in 0..60 {
            let key = format!("guess-{connection}-{number}");
            let Ok(begun) = anonymous.begin(APPEND, Some(&key), "").await else {
                break;
            };
            guesses.spawn(begun.answer());
        }
        let answers = guesses.join_all().await;
        answered += answers.iter().filter(|answer| answer.is_ok()).count();
        anonymous.closed().await;
    }
    // The immediate answers, plus two per second for the duration of the test.
    assert!((10..50).contains(&answered), "{answered} of 120");
    authenticated_clients_are_served(&daemon).await;
}

#[tokio::test]
async fn failed_calls_on_shared_connection_do_not_close_it() {
    let daemon = daemon("", "").await;
    let mut shared = Http2::connect(daemon.grpc_addr()).await;
    let good = async |shared: &mut Http2| {
        let begun = shared.begin(STATS, Some(Setup::ALPHA), "").await;
        let code = begun.expect("it is open").code().await;
        assert_eq!(code, Code::PermissionDenied, "the key is good");
    };
    good(&mut shared).await;
    let mut others = Vec::new();
    for number in 0..40 {
        let key = format!("wrong-key-{number}");
        others.push(shared.begin(APPEND, Some(&key), "").await.expect("a call"));
        others.push(shared.begin(CHECK, None, "").await.expect("a probe"));
    }
    for _ in 0..20 {
        good(&mut shared).await;
    }
    assert!(shared.is_open());
}

#[tokio::test]
async fn connection_with_only_refused_calls_is_closed() {
    let daemon = daemon("", "").await;
    let mut anonymous = Http2::connect(daemon.grpc_addr()).await;
    let mut refusals = 0;
    while let Ok(begun) = anonymous.begin(APPEND, None, framed(b"")).await {
        if begun.answer().await.is_err() {
            break;
        }
        refusals += 1;
        assert!(refusals < 2_000, "it may go on for ever");
    }
    anonymous.closed().await;
    authenticated_clients_are_served(&daemon).await;
}

#[tokio::test]
async fn most_unauthenticated_calls_of_one_write_are_dropped() {
    let daemon = daemon("", "").await;
    for path in [APPEND, CHECK] {
        let mut anonymous = connect_from("127.0.0.1", daemon.grpc_addr()).await;
        let sent = anonymous.write_all(&many_calls(path, 1_000)).await;
        sent.expect("sent");
        closed(&mut anonymous).await;
    }
    let looked_at = metric(&daemon, "memoird_calls_denied_total{reason=\"NO_KEY\"}").await;
    assert!((1..200).contains(&looked_at), "{looked_at} of 1000");
    authenticated_clients_are_served(&daemon).await;
}

#[tokio::test]
async fn unauthenticated_connections_and_health_watches_do_not_delay_stop() {
    let mut daemon = daemon("", "shutdown_grace: 30s").await;
    let idle = Http2::connect(daemon.grpc_addr()).await;
    let mut half = Http2::connect(daemon.grpc_addr()).await;
    let probe = half.begin(CHECK, None, "").await.expect("a probe");
    let mut waiting = Http2::connect(daemon.grpc_addr()).await;
    let guesses = waiting.begin(APPEND, Some("a-wrong-key"), "").await;
    // A load-balancing client that watches health on the connection of its calls.
    let shared = channel(daemon.grpc_addr());
    let mut hello = Request::new(append("chat", [user("hi")]));
    let key = format!("Bearer {}", Setup::ALPHA).parse().expect("ASCII");
    hello.metadata_mut().insert("authorization", key);
    let mut sessions = SessionServiceClient::new(shared.clone());
    sessions.append(hello).await.expect("the key is good");
    let mut watches = Vec::new();
    for channel in [shared, channel(daemon.grpc_addr())] {
        let asked = HealthCheckRequest::default();
        let watch = HealthClient::new(channel).watch(asked).await;
        let mut watch = watch.expect("it watches").into_inner();
        let status = watch.message().await.expect("an answer").expect("one");
        assert_eq!(status.status(), ServingStatus::Serving);
        watches.push(watch);
    }
    daemon.stop().await;
    for mut watch in watches {
        let status = watch.message().await.expect("an answer").expect("one");
        assert_eq!(status.status(), ServingStatus::NotServing);
    }
    assert!(daemon.log().contains("all calls are finished"));
    drop((idle, half, probe, waiting, guesses, sessions));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_health_watches_do_not_block_another() {
    let daemon = daemon("", "max_connections: 100").await;
    let watch = async || {
        let mut health = HealthClient::new(channel(daemon.grpc_addr()));
        let watch = health.watch(HealthCheckRequest::default()).await;
        let mut watch = watch.expect("it watches").into_inner();
        let told = timeout(SERVED_WITHIN, watch.message()).await;
        let status = told.expect("in time").expect("an answer").expect("one");
        assert_eq!(status.status(), ServingStatus::Serving);
        watch
    };
    let mut watches = Vec::new();
    for _ in 0..130 {
        watches.push(watch().await);
    }
    authenticated_clients_are_served(&daemon).await;
    watches.push(watch().await);
}

#[tokio::test]
async fn unauthenticated_health_watch_is_closed_after_timeout() {
    let limits = "connections: { keyless_timeout: 100ms, handshake_timeout: 300ms }";
    let daemon = daemon(limits, "").await;
    let mut health = HealthClient::new(channel(daemon.grpc_addr()));
    let watch = health.watch(HealthCheckRequest::default()).await;
    let mut watch = watch.expect("it watches").into_inner();
    let ended = async { while let Ok(Some(_)) = watch.message().await {} };
    timeout(SERVED_WITHIN, ended).await.expect("it ends");
}

#[tokio::test]
async fn probe_with_valid_key_authenticates_and_wrong_key_is_refused() {
    let daemon = daemon("connections: { keyless_timeout: 100ms }", "").await;
    let mut known = Http2::connect(daemon.grpc_addr()).await;
    let probe = known.begin(CHECK, Some(Setup::ALPHA), "").await;
    let mut other = Http2::connect(daemon.grpc_addr()).await;
    let wrong = other.begin(CHECK, Some("a-wrong-key"), "").await;
    let refusal = wrong.expect("a probe").refusal().await;
    assert_eq!(refused_code(&refusal), "WRONG_KEY", "{refusal:?}");
    other.closed().await;
    assert!(known.is_open());
    drop(probe);
}

#[tokio::test]
async fn invalid_grpc_request_gets_matching_status() {
    let daemon = daemon("", "").await;
    let mut anonymous = Http2::connect(daemon.grpc_addr()).await;
    let request = || {
        let request = http::Request::post(format!("http://memoird{APPEND}"));
        request.header("authorization", format!("Bearer {}", Setup::ALPHA))
    };
    let grpc = || request().header("content-type", "application/grpc+proto");
    let large = "x".repeat(9_000);
    for (request, expected) in [
        (request(), StatusCode::UNSUPPORTED_MEDIA_TYPE),
        (grpc().method("GET"), StatusCode::METHOD_NOT_ALLOWED),
        (
            grpc().header("large", large),
            StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
        ),
        (grpc(), StatusCode::OK),
    ] {
        let request = request.body(()).expect("a request");
        assert_eq!(anonymous.http_status(request).await, expected);
    }
    let mut answers = Vec::new();
    for path in [APPEND, CHECK] {
        let mut streams = Http2::connect(daemon.grpc_addr()).await;
        let keys = [Setup::ALPHA, "a-wrong-key"];
        let begun = streams.begin_with_keys(path, &keys, "").await;
        answers.push(begun.expect("a call").refusal().await);
    }
    for refusal in answers {
        assert_eq!(refused_code(&refusal), "SEVERAL_KEYS", "{refusal:?}");
    }
}

#[tokio::test]
async fn reply_without_window_updates_is_cancelled_and_released() {
    let setup = Setup::default().server("connections: { write_timeout: 500ms }");
    let daemon = Daemon::with(setup).await;
    let mut sessions = daemon.sessions();
    say(&mut sessions, "small", "hello").await;
    say(&mut sessions, "large", &"x".repeat(300 << 10)).await;
    for (session, window, is_json) in [
        ("small", 0, false),
        ("small", 0, true),
        ("none", 0, true),
        ("large", 0, false),
        ("large", 0, true),
        ("large", 1, false),
        ("large", 50_000, false),
        ("large", 50_000, true),
    ] {
        let mut client = Http2::with_window(daemon.grpc_addr(), window).await;
        let request = GetHistoryRequest {
            session_id: session.to_owned(),
            ..GetHistoryRequest::default()
        };
        let path = "/memoird.v1.SessionService/GetHistory";
        let (content_type, message) = if is_json {
            let json = format!("{{\"sessionId\": {session:?}}}");
            ("application/json", json.into())
        } else {
            ("application/grpc", framed(&request.encode_to_vec()))
        };
        let (read, error) = client.take_nothing(content_type, path, message).await;
        assert_eq!(read, window as usize, "what the window lets through");
        assert_eq!(error.reason(), Some(Reason::CANCEL), "{error}");
        assert!(client.is_open(), "other calls of the connection go on");
        eventually("nothing is held for the call", async || {
            let (_, page) = http_get(daemon.admin_addr(), "/metrics").await;
            let held = "memoird_memory_used_bytes{of=\"calls\"} 0";
            page.lines().any(|line| line == held).then_some(())
        })
        .await;
    }
}
