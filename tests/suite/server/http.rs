//! Calls over HTTP: JSON, errors, streams and server-sent events.

use base64::Engine;
use base64::prelude::BASE64_STANDARD_NO_PAD;
use memoird_proto::v1::{AppendRequest, AppendResponse};
use prost::Message;
use serde_json::{Value, json};
use tokio::net::UnixStream;
use tonic::codegen::http::{Request, StatusCode};

use crate::harness::{
    Authority, Daemon, Http1, Http2, Setup, append, http_get, live, say, text_of, tls_stream, user,
};

const APPEND: &str = "/memoird.v1.SessionService/Append";
const HISTORY: &str = "/memoird.v1.SessionService/GetHistory";
const WATCH: &str = "/memoird.v1.SessionService/WatchEvents";
const STATS: &str = "/memoird.v1.AdminService/GetStats";

async fn with_keys() -> Daemon {
    Daemon::with(Setup::default().two_tenants("", "")).await
}

async fn http1(daemon: &Daemon, key: &str) -> Http1 {
    Http1::connect(daemon.grpc_addr(), key).await
}

/// A message after its flags and length.
fn envelope(flags: u8, message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).expect("a short message");
    [&[flags][..], &length.to_be_bytes(), message].concat()
}

#[tokio::test]
async fn json_calls_work_over_http1_and_http2() {
    let daemon = with_keys().await;
    let mut http1 = http1(&daemon, Setup::ALPHA).await;
    let reply = http1.say("chat", "one \"quoted\" ß").await;
    assert_eq!(reply.header("content-type"), Some("application/json"));
    assert_eq!(reply.ok()["lastSeq"], "1");
    let mut http2 = Http2::connect(daemon.grpc_addr()).await;
    let request = |path| {
        Request::post(format!("http://memoird{path}"))
            .header("content-type", "Application/JSON; charset=utf-8")
            .header("connect-protocol-version", "1")
            .header("authorization", format!("Bearer {}", Setup::ALPHA))
            .body(())
            .expect("a request")
    };
    let body = r#"{"session_id": "chat", "turns": [{"role": 2, "parts": [{"text": "two"}]}]}"#;
    let (status, _) = http2.request(request(APPEND), body).await;
    assert_eq!(status, StatusCode::OK);
    let body = r#"{"sessionId": "chat"}"#;
    let (status, history) = http2.request(request(HISTORY), body).await;
    assert_eq!(status, StatusCode::OK);
    let history: Value = serde_json::from_slice(&history).expect("JSON");
    assert_eq!(history["turns"][0]["parts"][0]["text"], "one \"quoted\" ß");
    assert_eq!(history["turns"][1]["role"], "ROLE_ASSISTANT");
    assert_eq!(history["turns"][1]["seq"], "2");
    // gRPC on the same port has the same turns.
    let turns = live(&mut daemon.sessions_of(Setup::ALPHA), "chat").await;
    assert_eq!(text_of(&turns[1]), "two");
}

#[tokio::test]
async fn protobuf_calls_work() {
    let daemon = Daemon::start().await;
    let mut client = http1(&daemon, "").await;
    let request: AppendRequest = append("chat", [user("hi")]);
    let headers = "content-type: application/proto\r\n";
    let line = format!("POST {APPEND}");
    let reply = client
        .request(&line, headers, &request.encode_to_vec())
        .await;
    assert_eq!(reply.status, 200);
    assert_eq!(reply.header("content-type"), Some("application/proto"));
    let reply = AppendResponse::decode(&*reply.body).expect("a reply");
    assert_eq!(reply.last_seq, 1);
    let reply = client.request(&line, headers, b"\xff\xff\xff").await;
    let expected = (400, "invalid_argument".into(), "REQUEST_MALFORMED".into());
    assert_eq!(reply.error(), expected);
}

#[tokio::test]
async fn large_replies_arrive_whole() {
    let daemon = Daemon::start().await;
    let text = "x\n".repeat(150 << 10);
    say(&mut daemon.sessions(), "chat", &text).await;
    let mut client = http1(&daemon, "").await;
    for _ in 0..2 {
        let reply = client.call(HISTORY, &json!({ "sessionId": "chat" })).await;
        assert_eq!(reply.ok()["turns"][0]["parts"][0]["text"], text);
    }
}

#[tokio::test]
async fn errors_have_code_status_reason_and_field() {
    let daemon = with_keys().await;
    let mut client = http1(&daemon, Setup::ALPHA).await;
    let cases = [
        (
            HISTORY,
            r#"{"sessionId": "none"}"#,
            404,
            "not_found",
            "SESSION_NOT_FOUND",
            "",
        ),
        (
            APPEND,
            r#"{"sessionId": ""}"#,
            400,
            "invalid_argument",
            "ID_INVALID",
            "session_id",
        ),
        (
            APPEND,
            r#"{"turns": [{"x": 1}]}"#,
            400,
            "invalid_argument",
            "REQUEST_MALFORMED",
            "turns[0].x",
        ),
        (
            APPEND,
            "{",
            400,
            "invalid_argument",
            "REQUEST_MALFORMED",
            "request",
        ),
        (
            APPEND,
            "",
            400,
            "invalid_argument",
            "REQUEST_MALFORMED",
            "request",
        ),
        (STATS, "{}", 403, "permission_denied", "ROLE_REQUIRED", ""),
    ];
    for (path, body, status, code, reason, field) in cases {
        let reply = client.call_text(path, "", body.as_bytes()).await;
        assert_eq!(
            reply.error(),
            (status, code.into(), reason.into()),
            "{body}"
        );
        let json = reply.json();
        let metadata = &json["details"][0]["debug"]["metadata"];
        assert_eq!(
            metadata["field"].as_str().unwrap_or_default(),
            field,
            "{json}"
        );
        let value = json["details"][0]["value"].as_str().expect("base64");
        let decoded = BASE64_STANDARD_NO_PAD.decode(value).expect("base64");
        let info = tonic_types::pb::ErrorInfo::decode(&*decoded).expect("an ErrorInfo");
        assert_eq!(info.reason, reason);
    }
    let mut anonymous = http1(&daemon, "").await;
    let reply = anonymous.say("chat", "hi").await;
    assert_eq!(
        reply.error(),
        (401, "unauthenticated".into(), "NO_KEY".into())
    );
    assert_eq!(reply.header("www-authenticate"), Some("Bearer"));
    let mut wrong = http1(&daemon, "a-wrong-key").await;
    let error = wrong.say("chat", "hi").await.error();
    assert_eq!(error, (401, "unauthenticated".into(), "WRONG_KEY".into()));
}

#[tokio::test]
async fn requests_that_are_no_calls_get_the_status_of_http() {
    let daemon = Daemon::start().await;
    let mut client = http1(&daemon, "").await;
    let json = "content-type: application/json\r\n";
    let cases = [
        (
            "POST /memoird.v1.SessionService/None",
            json,
            404,
            "PATH_UNKNOWN",
            "",
        ),
        (
            "POST /grpc.health.v1.Health/Check",
            json,
            404,
            "PATH_UNKNOWN",
            "",
        ),
        ("GET /", "", 404, "PATH_UNKNOWN", ""),
        (
            "GET /memoird.v1.SessionService/Append",
            "",
            405,
            "HTTP_METHOD_INVALID",
            "POST",
        ),
        (
            "DELETE /memoird.v1.SessionService/Append",
            "",
            405,
            "HTTP_METHOD_INVALID",
            "POST",
        ),
        (
            "OPTIONS /memoird.v1.SessionService/Append",
            "",
            405,
            "HTTP_METHOD_INVALID",
            "POST",
        ),
        (
            "PUT /memoird.v1.SessionService/WatchEvents",
            json,
            405,
            "HTTP_METHOD_INVALID",
            "GET, POST",
        ),
        (
            "POST /memoird.v1.SessionService/Append",
            "content-type: application/x-www-form-urlencoded\r\n",
            415,
            "CONTENT_TYPE_UNSUPPORTED",
            "application/json, application/proto",
        ),
        (
            "POST /memoird.v1.SessionService/Append",
            "",
            415,
            "CONTENT_TYPE_UNSUPPORTED",
            "application/json, application/proto",
        ),
        (
            "POST /memoird.v1.SessionService/WatchEvents",
            json,
            415,
            "CONTENT_TYPE_UNSUPPORTED",
            "application/connect+json, application/connect+proto",
        ),
        (
            "POST /memoird.v1.SessionService/Append",
            "content-type: application/grpc+proto\r\n",
            505,
            "HTTP2_REQUIRED",
            "",
        ),
    ];
    for (line, headers, status, reason, accepted) in cases {
        let reply = client.request(line, headers, b"{}").await;
        let expected = (status, "unimplemented".to_owned(), reason.to_owned());
        assert_eq!(reply.error(), expected, "{line}");
        let header = reply.header("allow").or(reply.header("accept-post"));
        assert_eq!(header.unwrap_or_default(), accepted, "{line}");
    }
    // The connection is still usable.
    client.say("chat", "hi").await.ok();
}

#[tokio::test]
async fn headers_of_the_protocol_are_checked() {
    let daemon = Daemon::start().await;
    let mut client = http1(&daemon, "").await;
    for (headers, expected) in [
        (
            "connect-protocol-version: 2\r\n",
            (400, "invalid_argument", "METADATA_INVALID"),
        ),
        (
            "connect-timeout-ms: soon\r\n",
            (400, "invalid_argument", "METADATA_INVALID"),
        ),
        (
            "connect-timeout-ms: 12345678901\r\n",
            (400, "invalid_argument", "METADATA_INVALID"),
        ),
        (
            "memoird-max-reply-bytes: x\r\n",
            (400, "invalid_argument", "METADATA_INVALID"),
        ),
        (
            "content-encoding: gzip\r\n",
            (501, "unimplemented", "ENCODING_UNSUPPORTED"),
        ),
    ] {
        let reply = client.call_text(APPEND, headers, b"{}").await;
        let (status, code, reason) = expected;
        assert_eq!(
            reply.error(),
            (status, code.into(), reason.into()),
            "{headers}"
        );
    }
    let headers = "connect-protocol-version: 1\r\nconnect-timeout-ms: 30000\r\ncontent-encoding: identity\r\n";
    let list = "/memoird.v1.SessionService/ListSessions";
    client.call_text(list, headers, b"{}").await.ok();
}

#[tokio::test]
async fn tenants_are_separate_and_calls_are_counted() {
    let daemon = with_keys().await;
    http1(&daemon, Setup::ALPHA)
        .await
        .say("chat", "hi")
        .await
        .ok();
    let mut beta = http1(&daemon, Setup::BETA).await;
    let error = beta.call(HISTORY, &json!({ "sessionId": "chat" })).await;
    assert_eq!(
        error.error(),
        (404, "not_found".into(), "SESSION_NOT_FOUND".into())
    );
    let mut admin = http1(&daemon, Setup::ADMIN).await;
    admin.call(STATS, &json!({})).await.ok();
    let (_, page) = http_get(daemon.admin_addr(), "/metrics").await;
    let counted = page.lines().filter(|line| line.contains("_count{method="));
    let of = |name: &str| {
        let label = format!("method=\"{name}\"");
        let line = counted.clone().find(|line| line.contains(&label));
        line.and_then(|line| line.rsplit(' ').next())
            .map(str::to_owned)
    };
    assert_eq!(of("Append").as_deref(), Some("1"), "{page}");
    assert_eq!(of("GetHistory").as_deref(), Some("1"), "{page}");
    let failed = "memoird_call_failures_total{method=\"GetHistory\"} 1";
    assert!(page.contains(failed), "{page}");
}

#[tokio::test]
async fn stream_has_enveloped_messages_and_an_end() {
    let daemon = Daemon::start().await;
    let mut client = http1(&daemon, "").await;
    let headers = "content-type: application/connect+json\r\n";
    let line = format!("POST {WATCH}");
    let invalid = envelope(0, br#"{"afterCursor": "none"}"#);
    let reply = client.request(&line, headers, &invalid).await;
    assert_eq!(reply.status, 200);
    assert_eq!(
        reply.header("content-type"),
        Some("application/connect+json")
    );
    assert_eq!(reply.body[0], 2, "the end of the stream");
    let end: Value = serde_json::from_slice(&reply.body[5..]).expect("JSON");
    assert_eq!(end["error"]["code"], "invalid_argument");
    assert_eq!(
        end["error"]["details"][0]["debug"]["reason"],
        "CURSOR_INVALID"
    );
    for wrong in [
        &b""[..],
        b"{}",
        &envelope(2, b"{}"),
        &envelope(0, b"{}")[..6],
    ] {
        let reply = client.request(&line, headers, wrong).await;
        let end: Value = serde_json::from_slice(&reply.body[5..]).expect("JSON");
        assert_eq!(
            end["error"]["details"][0]["debug"]["reason"],
            "REQUEST_MALFORMED"
        );
    }
    let message = envelope(0, b"{}");
    let length = format!("{headers}content-length: {}\r\n", message.len());
    let head = client.head(&line, &length);
    client.send([head.as_bytes(), &message].concat()).await;
    assert_eq!(client.reply_head().await.status, 200);
    say(&mut daemon.sessions(), "chat", "hi").await;
    let chunk = client.chunk().await;
    assert_eq!(chunk[0], 0);
    let length = u32::from_be_bytes(chunk[1..5].try_into().expect("four bytes")) as usize;
    let event: Value = serde_json::from_slice(&chunk[5..5 + length]).expect("JSON");
    assert_eq!(event["event"]["sessionId"], "chat");
    let mut daemon = daemon;
    daemon.stop().await;
    let last = loop {
        let chunk = client.chunk().await;
        if chunk.is_empty() || chunk[0] == 2 {
            break chunk;
        }
    };
    let end: Value = serde_json::from_slice(&last[5..]).expect("JSON");
    assert_eq!(end["error"]["code"], "unavailable", "{end}");
}

#[tokio::test]
async fn events_are_sent_to_browsers_and_continue_after_the_last_one() {
    let daemon = Daemon::start().await;
    let mut client = http1(&daemon, "").await;
    let line = format!("GET {WATCH}");
    let accept = "accept: text/event-stream\r\n";
    let head = client.head(&line, accept);
    client.send(head).await;
    let reply = client.reply_head().await;
    assert_eq!(reply.status, 200);
    assert_eq!(reply.header("content-type"), Some("text/event-stream"));
    say(&mut daemon.sessions(), "chat", "one").await;
    let mut text = String::new();
    while text.matches("\n\n").count() < 2 {
        text += &String::from_utf8(client.chunk().await).expect("UTF-8");
    }
    let events: Vec<&str> = text.split_terminator("\n\n").collect();
    let parse = |event: &str| -> (String, Value) {
        let (id, data) = event.split_once('\n').expect("two lines");
        let id = id.strip_prefix("id: ").expect("an id");
        let data = data.strip_prefix("data: ").expect("data");
        (id.to_owned(), serde_json::from_str(data).expect("JSON"))
    };
    let (created_id, created) = parse(events[0]);
    let (_, appended) = parse(events[1]);
    assert!(created["event"]["created"].is_object(), "{created}");
    assert_eq!(created["cursor"], created_id);
    assert_eq!(appended["event"]["appended"]["lastSeq"], "1");
    let mut again = http1(&daemon, "").await;
    let head = again.head(&line, &format!("{accept}last-event-id: {created_id}\r\n"));
    again.send(head).await;
    assert_eq!(again.reply_head().await.status, 200);
    let text = String::from_utf8(again.chunk().await).expect("UTF-8");
    assert_eq!(parse(text.trim_end()).1["event"], appended["event"]);
}

#[tokio::test]
async fn query_contains_the_request_of_events() {
    let daemon = with_keys().await;
    let mut client = http1(&daemon, Setup::ALPHA).await;
    let all = "%7B%22allTenants%22%3Atrue%7D";
    let base64 = "eyJhZnRlckN1cnNvciI6ICJ4In0";
    for (query, expected) in [
        (
            format!("message={all}"),
            (403, "permission_denied", "ROLE_REQUIRED"),
        ),
        (
            format!("connect=v1&encoding=json&base64=1&message={base64}"),
            (400, "invalid_argument", "CURSOR_INVALID"),
        ),
        (
            "message=%7B".to_owned(),
            (400, "invalid_argument", "REQUEST_MALFORMED"),
        ),
        (
            "message=!&base64=1".to_owned(),
            (400, "invalid_argument", "REQUEST_MALFORMED"),
        ),
        (
            "encoding=proto".to_owned(),
            (400, "invalid_argument", "REQUEST_MALFORMED"),
        ),
        (
            "all_tenants=true".to_owned(),
            (400, "invalid_argument", "REQUEST_MALFORMED"),
        ),
        (
            "compression=gzip".to_owned(),
            (501, "unimplemented", "ENCODING_UNSUPPORTED"),
        ),
    ] {
        let reply = client
            .request(&format!("GET {WATCH}?{query}"), "", b"")
            .await;
        let (status, code, reason) = expected;
        assert_eq!(
            reply.error(),
            (status, code.into(), reason.into()),
            "{query}"
        );
    }
}

#[tokio::test]
async fn http1_works_over_a_unix_socket() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("socket");
    let setup = Setup::default().listen(&format!("unix:{}", path.display()));
    let _daemon = Daemon::with(setup).await;
    let stream = UnixStream::connect(&path).await.expect("it listens");
    let mut client = Http1::over(stream, "");
    for number in 1..=3 {
        let reply = client.say("chat", "100 %").await.ok();
        assert_eq!(reply["lastSeq"], number.to_string());
    }
}

#[tokio::test]
async fn http1_works_over_tls() {
    let authority = Authority::new(&["alpha"]).await;
    let setup = Setup::default()
        .two_tenants("", "")
        .server(&authority.setting(""));
    let daemon = Daemon::with(setup).await;
    let mut config = authority.client(None);
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let stream = tls_stream(daemon.grpc_addr(), config).await.expect("TLS");
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
    let mut client = Http1::over(stream, Setup::ALPHA);
    client.say("chat", "hi").await.ok();
}

#[tokio::test]
async fn pages_of_named_origins_may_call() {
    let cors = "cors: { allowed_origins: [ 'https://chat.example' ] }";
    let setup = Setup::default().two_tenants("", "").server(cors);
    let daemon = Daemon::with(setup).await;
    let allowed = "access-control-allow-origin";
    // A browser asks without a key first.
    let mut page = http1(&daemon, "").await;
    let asks = "access-control-request-method: POST\r\n\
        access-control-request-headers: authorization,content-type\r\n";
    let line = format!("OPTIONS {APPEND}");
    let ours = format!("origin: https://chat.example\r\n{asks}");
    for _ in 0..40 {
        let reply = page.request(&line, &ours, b"").await;
        assert_eq!(reply.status, 200);
        assert_eq!(reply.header(allowed), Some("https://chat.example"));
        let headers = reply.header("access-control-allow-headers");
        assert!(
            headers.is_some_and(|names| names.contains("authorization")),
            "{headers:?}"
        );
    }
    let other = format!("origin: https://other.example\r\n{asks}");
    let reply = page.request(&line, &other, b"").await;
    assert_eq!(reply.header(allowed), None);
    let mut page = http1(&daemon, Setup::ALPHA).await;
    let list = "/memoird.v1.SessionService/ListSessions";
    let reply = page
        .call_text(list, "origin: https://chat.example\r\n", b"{}")
        .await;
    assert_eq!(reply.header(allowed), Some("https://chat.example"));
    reply.ok();
    let mut page = http1(&daemon, "a-wrong-key").await;
    let reply = page
        .call_text(list, "origin: https://chat.example\r\n", b"{}")
        .await;
    assert_eq!(reply.header(allowed), Some("https://chat.example"));
    assert_eq!(reply.status, 401);
    let reply = page
        .call_text(list, "origin: https://other.example\r\n", b"{}")
        .await;
    assert_eq!(reply.header(allowed), None);
    let invalid = Setup::default().server("cors: { allowed_origins: [ '*' ] }");
    let refused = Daemon::refused(&invalid).await;
    let problem = "server.cors.allowed_origins[0]: expected an origin";
    assert!(refused.stderr.contains(problem), "{refused:?}");
}

#[tokio::test]
async fn daemon_without_keys_is_not_callable_by_a_name_of_a_web_page() {
    let daemon = Daemon::start().await;
    let mut client = http1(&daemon, "").await;
    for (host, is_local) in [
        ("127.0.0.1:7717", true),
        ("[::1]:7717", true),
        ("LOCALHOST", true),
        ("page.example:7717", false),
        ("localhost.page.example", false),
        ("127.0.0.1.page.example", false),
        ("a b", false),
    ] {
        let head = format!(
            "POST {HISTORY} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n\
             content-length: 2\r\n\r\n{{}}"
        );
        client.send(head).await;
        let (status, _, reason) = client.reply().await.error();
        let expected = if is_local {
            (400, "ID_INVALID")
        } else {
            (403, "HOST_NOT_LOCAL")
        };
        assert_eq!((status, &*reason), expected, "{host}");
    }
    // With a key it is any name.
    let daemon = with_keys().await;
    let mut client = http1(&daemon, "").await;
    let head = format!(
        "POST {HISTORY} HTTP/1.1\r\nhost: chat.example\r\nauthorization: Bearer {}\r\n\
         content-type: application/json\r\ncontent-length: 2\r\n\r\n{{}}",
        Setup::ALPHA
    );
    client.send(head).await;
    assert_eq!(client.reply().await.error().2, "ID_INVALID");
}

#[tokio::test]
async fn description_of_the_api_is_served_with_a_key() {
    let daemon = with_keys().await;
    let mut client = http1(&daemon, Setup::BETA).await;
    let openapi = client.request("GET /openapi.json", "", b"").await.ok();
    assert_eq!(openapi["openapi"], "3.1.0");
    assert!(openapi["paths"][APPEND]["post"].is_object());
    let reply = client.request("POST /openapi.json", "", b"").await;
    assert_eq!(reply.header("allow"), Some("GET"));
    assert_eq!(reply.status, 405);
    let mut anonymous = http1(&daemon, "").await;
    let reply = anonymous.request("GET /openapi.json", "", b"").await;
    assert_eq!(
        reply.error(),
        (401, "unauthenticated".into(), "NO_KEY".into())
    );
}

#[tokio::test]
async fn json_of_fields_may_be_inline() {
    let daemon = Daemon::start().await;
    let mut client = http1(&daemon, "").await;
    let body = r#"{"sessionId": "chat", "format": "MESSAGE_FORMAT_ANTHROPIC", "messagesJson": [
        {"role": "user", "content": "hi", "memoird_client_json": {"big": 12345678901234567890.10}}
    ]}"#;
    client.call_text(APPEND, "", body.as_bytes()).await.ok();
    let body = br#"{"sessionId": "chat", "format": "MESSAGE_FORMAT_ANTHROPIC"}"#;
    let standard = client.call_text(HISTORY, "", body).await.ok();
    let text = standard["messagesJson"].as_str().expect("a string");
    let header = "memoird-inline-json: true\r\n";
    let inline = client.call_text(HISTORY, header, body).await;
    let messages: Value = serde_json::from_str(text).expect("JSON");
    assert_eq!(inline.ok()["messagesJson"], messages);
    let text = String::from_utf8(inline.body).expect("UTF-8");
    let kept = r#""clientJson":{"big":12345678901234567890.10}"#;
    assert!(text.contains(kept), "{text}");
    let wrong = br#"{"sessionId": "chat", "messagesJson": [{"role"]}"#;
    let reply = client.call_text(APPEND, "", wrong).await;
    assert_eq!(reply.error().2, "REQUEST_MALFORMED");
    let field = &reply.json()["details"][0]["debug"]["metadata"]["field"];
    assert_eq!(field, "messages_json");
}
