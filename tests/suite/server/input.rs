//! Invalid input: refused with code, reason and message, and the daemon continues.

use memoird_proto::v1::part::Part as Kind;
use memoird_proto::v1::{
    AppendRequest, GetHistoryRequest, MessageFormat, Part, Role, ToolResult, Turn,
    UpdateSessionRequest,
};
use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tonic::Code;

use crate::harness::{
    Daemon, Seed, Sessions, Setup, append, assistant, channel, live, raw_call, refused,
    refused_code, say, stats, tool_results, tool_uses, turn, user,
};

/// Asserts that an append is refused with this reason, and returns the message.
async fn check_refused(client: &mut Sessions, request: AppendRequest, reason: &str) -> String {
    let answer = client.append(request).await;
    refused(answer, Code::InvalidArgument, reason)
}

async fn check_service_works(daemon: &Daemon) {
    let mut client = daemon.sessions();
    let said = say(&mut client, "still works", "hi").await;
    assert_eq!(
        live(&mut client, "still works").await.len() as u64,
        said.last_seq
    );
}

#[tokio::test]
async fn malformed_messages_are_refused_by_every_method() {
    let daemon = Daemon::start().await;
    let channel = channel(daemon.grpc_addr());
    let mut random = Seed::new(4711);
    let mut messages: Vec<Vec<u8>> = vec![
        vec![0xff; 64],
        vec![0x0a, 0x7f, b'x'],
        vec![0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f],
        vec![0x07],
        // `turns` as a varint, and `session_id` as a fixed64.
        vec![0x10, 0x01],
        vec![0x09, 1, 2, 3, 4, 5, 6, 7, 8],
    ];
    for length in [1, 10, 100, 1_000] {
        messages.extend((0..10).map(|_| random.bytes(length)));
    }
    let methods = [
        "SessionService/Append",
        "SessionService/UpdateSession",
        "SessionService/RewindSession",
        "SessionService/UpdateTurn",
        "SessionService/CopySession",
        "AdminService/GetStats",
    ];
    for (method, message) in methods
        .iter()
        .flat_map(|m| messages.iter().map(move |b| (m, b)))
    {
        let path = format!("/memoird.v1.{method}");
        match raw_call(&channel, &path, message.clone()).await {
            // Some random bytes are a valid message, for example one of unknown fields.
            Ok(_) => assert!(!method.ends_with("Append"), "an append of {message:?}"),
            Err(status) => {
                assert_eq!(
                    status.code(),
                    Code::InvalidArgument,
                    "{method} {message:?}: {status:?}"
                );
                refused_code(&status);
            }
        }
    }
    check_service_works(&daemon).await;
}

#[tokio::test]
async fn truncated_message_is_never_decoded_as_another() {
    let daemon = Daemon::start().await;
    let channel = channel(daemon.grpc_addr());
    let request = append("cut", [user("hi"), tool_uses(&["a"]), tool_results(&["a"])]);
    let whole = request.encode_to_vec();
    for length in 1..whole.len() {
        let cut = whole[..length].to_vec();
        if let Err(status) = raw_call(&channel, "/memoird.v1.SessionService/Append", cut).await {
            assert_eq!(status.code(), Code::InvalidArgument, "{length}: {status:?}");
            refused_code(&status);
        }
    }
    // A truncated message is valid only at the boundary between two turns.
    for turn in live(&mut daemon.sessions(), "cut").await {
        assert!(!turn.parts.is_empty());
    }
    check_service_works(&daemon).await;
}

#[tokio::test]
async fn unknown_method_is_unimplemented() {
    let daemon = Daemon::start().await;
    let channel = channel(daemon.grpc_addr());
    for path in [
        "/memoird.v1.SessionService/Nothing",
        "/memoird.v1.Nothing/Append",
        "/nothing",
    ] {
        let status = raw_call(&channel, path, Vec::new())
            .await
            .expect_err("refused");
        assert_eq!(status.code(), Code::Unimplemented, "{path}: {status:?}");
        assert_eq!(refused_code(&status), "UNIMPLEMENTED", "{path}");
    }
}

#[tokio::test]
async fn non_grpc_connections_do_no_harm() {
    let daemon = Daemon::start().await;
    let mut random = Seed::new(7);
    let greeting = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    let mut openings: Vec<Vec<u8>> = vec![b"GET / HTTP/1.1\r\n\r\n".to_vec(), greeting.clone()];
    openings.extend((0..20).map(|_| random.bytes(500)));
    openings.extend((0..20).map(|_| [greeting.clone(), random.bytes(500)].concat()));
    for opening in openings {
        let mut stream = TcpStream::connect(daemon.grpc_addr())
            .await
            .expect("it listens");
        stream.write_all(&opening).await.expect("sent");
        let _ = stream.shutdown().await;
        // The daemon closes the connection, whatever it responds.
        let _ = stream.read_to_end(&mut Vec::new()).await;
    }
    check_service_works(&daemon).await;
}

#[tokio::test]
async fn unknown_enum_values_are_refused() {
    let daemon = Daemon::start().await;
    let mut client = daemon.sessions();
    for role in [0, 5, 99, -1, i32::MAX] {
        let odd = Turn { role, ..user("hi") };
        let said = check_refused(
            &mut client,
            append("chat", [user("fine"), odd]),
            "TURN_INVALID",
        )
        .await;
        assert!(said.contains("turns[1]"), "{said}");
    }
    for format in [0, 99, -1] {
        let request = AppendRequest {
            messages_json: r#"[{"role":"user","content":"hi"}]"#.into(),
            format,
            ..append("chat", [])
        };
        check_refused(&mut client, request, "FORMAT_INVALID").await;
    }
    say(&mut client, "chat", "hi").await;
    for scope in [4, 99, -1] {
        let request = GetHistoryRequest {
            session_id: "chat".into(),
            scope,
            ..Default::default()
        };
        refused(
            client.get_history(request).await,
            Code::InvalidArgument,
            "SCOPE_INVALID",
        );
    }
    assert_eq!(live(&mut client, "chat").await.len(), 1);
}

#[tokio::test]
async fn empty_oversized_or_ambiguous_append_is_refused() {
    let daemon = Daemon::start().await;
    let mut client = daemon.sessions();
    let count = "TURN_COUNT_INVALID";
    check_refused(&mut client, append("chat", []), count).await;
    check_refused(&mut client, append("chat", vec![user("x"); 257]), count).await;
    let messages = |json: String| AppendRequest {
        messages_json: json,
        format: MessageFormat::Openai.into(),
        ..append("chat", [])
    };
    check_refused(&mut client, messages("[]".into()), count).await;
    let many = format!("[{}]", [r#"{"role":"user","content":"x"}"#; 257].join(","));
    check_refused(&mut client, messages(many), count).await;
    let both = AppendRequest {
        turns: vec![user("x")],
        ..messages("[]".into())
    };
    check_refused(&mut client, both, "TURNS_AMBIGUOUS").await;
    client
        .append(append("chat", vec![user("x"); 256]))
        .await
        .expect("256 are taken");
}

#[tokio::test]
async fn message_array_error_names_the_refused_turn() {
    let setup = Setup::default().section("limits: { turn_bytes: 1MiB }");
    let daemon = Daemon::with(setup).await;
    let mut client = daemon.sessions();
    let messages = |last: String| AppendRequest {
        messages_json: format!(r#"[{{"role":"user","content":"hi"}},{last}]"#),
        format: MessageFormat::Openai.into(),
        ..append("chat", [])
    };
    let long = format!(r#"{{"role":"user","content":"{}"}}"#, "x".repeat(2 << 20));
    let lost = r#"{"role":"tool","tool_call_id":"lost","content":"x"}"#.to_owned();
    for (last, reason) in [(long, "TURN_TOO_LARGE"), (lost, "TOOL_USE_UNKNOWN")] {
        let said = check_refused(&mut client, messages(last), reason).await;
        assert!(said.starts_with("messages_json: turns[1]: "), "{said}");
    }
}

#[tokio::test]
async fn large_media_fits_default_limits_and_errors_name_the_setting() {
    let setup = Setup::default().section("limits: { memory: 1GiB }");
    let daemon = Daemon::with(setup).await;
    let mut client = daemon.sessions();
    let image = |bytes: usize| {
        let data = "A".repeat(bytes);
        AppendRequest {
            messages_json: format!(
                r#"[{{"role":"user","content":[{{"type":"image_url","image_url":{{"url":"data:image/png;base64,{data}"}}}}]}}]"#
            ),
            format: MessageFormat::Openai.into(),
            ..append("chat", [])
        }
    };
    let taken = client.append(image(19 << 20)).await;
    assert_eq!(taken.expect("19 MiB are taken").into_inner().last_seq, 1);
    assert_eq!(live(&mut client, "chat").await.len(), 1);
    let said = check_refused(&mut client, image(28 << 20), "TURN_TOO_LARGE").await;
    assert!(said.contains("limits.turn_bytes"), "{said}");
    let said = refused(
        client.append(image(32 << 20)).await,
        Code::ResourceExhausted,
        "REQUEST_TOO_LARGE",
    );
    assert!(said.contains("server.max_request_bytes"), "{said}");
    let call = tool_uses(&["a"]);
    let many = turn(Role::User, vec![Kind::Text("x".into()); 129]);
    let said = check_refused(&mut client, append("chat", [call, many]), "TURN_TOO_LARGE").await;
    assert!(said.contains("limits.parts_per_turn"), "{said}");
}

#[tokio::test]
async fn turn_larger_than_history_cap_is_refused_naming_the_setting() {
    let small = Setup::default().section("short_term: { max_history_bytes: 4KiB }");
    let of_a_tenant = Setup::default().two_tenants("", "max_history_bytes: 4KiB");
    for (setup, key) in [(small, ""), (of_a_tenant, Setup::BETA)] {
        let daemon = Daemon::with(setup).await;
        let mut client = match key {
            "" => daemon.sessions(),
            key => daemon.sessions_of(key),
        };
        let large = append("chat", [user(&"x".repeat(5_000))]);
        let said = check_refused(&mut client, large, "TURN_TOO_LARGE").await;
        assert!(said.contains("max_history_bytes"), "{said}");
    }
}

#[tokio::test]
async fn invalid_turn_is_refused_with_its_index() {
    let setup = Setup::default().section("limits: { turn_bytes: 1MiB }");
    let daemon = Daemon::with(setup).await;
    let mut client = daemon.sessions();
    let (invalid, large) = ("TURN_INVALID", "TURN_TOO_LARGE");
    let empty_part = Turn {
        parts: vec![Part::default()],
        ..user("")
    };
    let mut labels = user("labels");
    labels
        .metadata
        .extend((0..65).map(|number| (number.to_string(), String::new())));
    let of_client = |id: &str, json: String| Turn {
        client_id: id.into(),
        client_json: json,
        ..user("")
    };
    let mut label = user("label");
    label.metadata.insert("k".into(), "v".repeat(17 << 10));
    let nested = ToolResult {
        tool_use_id: "a".into(),
        parts: tool_uses(&["b"]).parts,
        ..ToolResult::default()
    };
    let many_inside = ToolResult {
        tool_use_id: "a".into(),
        parts: vec![user("x").parts.remove(0); 128],
        ..ToolResult::default()
    };
    let cases = [
        (Turn::default(), invalid),
        (
            Turn {
                parts: Vec::new(),
                ..user("")
            },
            invalid,
        ),
        (empty_part, invalid),
        (
            Turn {
                salience: Some(1.5),
                ..user("")
            },
            invalid,
        ),
        (
            Turn {
                salience: Some(f32::NAN),
                ..user("")
            },
            invalid,
        ),
        (
            Turn {
                extra_json: "{".into(),
                ..user("")
            },
            invalid,
        ),
        (
            Turn {
                extra_json: "[]".into(),
                ..user("")
            },
            invalid,
        ),
        (
            turn(Role::User, [Kind::ToolUse(Default::default())]),
            invalid,
        ),
        (
            Turn {
                role: Role::User.into(),
                ..tool_uses(&["a"])
            },
            invalid,
        ),
        (tool_uses(&[""]), invalid),
        (tool_uses(&[&"x".repeat((4 << 10) + 1)]), invalid),
        (
            Turn {
                role: Role::Assistant.into(),
                ..tool_results(&["a"])
            },
            invalid,
        ),
        (turn(Role::Tool, [Kind::ToolResult(nested)]), invalid),
        (turn(Role::User, [Kind::Media(Default::default())]), invalid),
        (user(&"x".repeat((1 << 20) + 1)), large),
        (
            turn(Role::User, vec![Kind::Text(String::new()); 129]),
            large,
        ),
        (turn(Role::Tool, [Kind::ToolResult(many_inside)]), large),
        (labels, large),
        (label, large),
        (of_client(&"x".repeat(257), "{}".into()), invalid),
        (of_client("m1", "{".into()), invalid),
        (of_client("m1", "one".into()), invalid),
        (
            of_client("m1", format!("{}1{}", "[".repeat(200), "]".repeat(200))),
            invalid,
        ),
        (
            of_client("m1", format!("{:?}", "x".repeat(256 << 10))),
            large,
        ),
    ];
    for (bad, reason) in cases {
        let shown: String = format!("{bad:?}").chars().take(200).collect();
        let answer = client
            .append(append("chat", [user("fine"), bad, assistant("fine")]))
            .await;
        let said = refused(answer, Code::InvalidArgument, reason);
        assert!(said.starts_with("turns[1]"), "{said}: {shown}");
    }
    let session = GetHistoryRequest {
        session_id: "chat".into(),
        ..Default::default()
    };
    let nothing = client.get_history(session).await;
    refused(nothing, Code::NotFound, "SESSION_NOT_FOUND");
}

#[tokio::test]
async fn deeply_nested_json_is_refused() {
    let daemon = Daemon::start().await;
    let mut client = daemon.sessions();
    say(&mut client, "chat", "hi").await;
    for depth in [1_000, 100_000] {
        let deep = format!("{}1{}", "[".repeat(depth), "]".repeat(depth));
        for format in [MessageFormat::Openai, MessageFormat::Anthropic] {
            for json in [
                deep.clone(),
                format!(r#"[{{"role":"user","content":{deep}}}]"#),
                format!(r#"[{{"role":"user","content":"hi","extra":{deep}}}]"#),
            ] {
                let messages_json = json;
                let request = AppendRequest {
                    messages_json,
                    format: format.into(),
                    ..append("chat", [])
                };
                check_refused(&mut client, request, "MESSAGES_INVALID").await;
            }
        }
        for json in [deep.clone(), format!(r#"{{"a":{deep}}}"#)] {
            let patch = UpdateSessionRequest {
                session_id: "chat".into(),
                state_patch_json: json,
                expected_state_version: None,
                ..UpdateSessionRequest::default()
            };
            // The deeper one also exceeds the size limit, which is checked first.
            let (code, reason) = match depth {
                1_000 => (Code::InvalidArgument, "STATE_INVALID"),
                _ => (Code::ResourceExhausted, "REQUEST_TOO_LARGE"),
            };
            refused(client.update_session(patch).await, code, reason);
        }
        let odd = Turn {
            extra_json: format!(r#"{{"a":{deep}}}"#),
            ..user("hi")
        };
        check_refused(&mut client, append("chat", [odd]), "TURN_INVALID").await;
    }
    // Protobuf messages can be nested too: results inside results.
    let mut nested = user("x").parts.remove(0);
    for _ in 0..1_000 {
        let result = ToolResult {
            tool_use_id: "a".into(),
            parts: vec![nested],
            ..ToolResult::default()
        };
        nested = Part {
            part: Some(Kind::ToolResult(result)),
            ..Part::default()
        };
    }
    let deep = Turn {
        role: Role::Tool.into(),
        parts: vec![nested],
        ..Turn::default()
    };
    let bytes = append("chat", [deep]).encode_to_vec();
    let channel = channel(daemon.grpc_addr());
    let answer = raw_call(&channel, "/memoird.v1.SessionService/Append", bytes).await;
    let status = answer.expect_err("refused");
    assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
    refused_code(&status);
    assert_eq!(live(&mut client, "chat").await.len(), 1);
}

#[tokio::test]
async fn malformed_provider_messages_are_refused_with_their_path() {
    let daemon = Daemon::start().await;
    let mut client = daemon.sessions();
    let (openai, anthropic) = (MessageFormat::Openai, MessageFormat::Anthropic);
    let cases = [
        (openai, "nonsense", "messages_json"),
        (openai, "{}", "messages_json"),
        (openai, "[7]", "[0]"),
        (openai, r#"[{"content":"x"}]"#, "[0].role"),
        (
            openai,
            r#"[{"role":"user","content":"x"},{"role":"wizard","content":"x"}]"#,
            "[1].role",
        ),
        (openai, r#"[{"role":"user","content":7}]"#, "[0].content"),
        (
            openai,
            r#"[{"role":"tool","content":"x"}]"#,
            "[0].tool_call_id",
        ),
        (anthropic, r#"[{"role":"tool","content":"x"}]"#, "[0].role"),
        (
            anthropic,
            r#"[{"role":"user","content":[{"text":"x"}]}]"#,
            "[0].content[0].type",
        ),
    ];
    for (format, json, place) in cases {
        let request = AppendRequest {
            messages_json: json.into(),
            format: format.into(),
            ..append("chat", [])
        };
        let said = check_refused(&mut client, request, "MESSAGES_INVALID").await;
        assert!(said.contains(place), "{json}: {said}");
    }
    let orphan = AppendRequest {
        messages_json: r#"[{"role":"user","content":"hi"},{"role":"tool","tool_call_id":"lost","content":"x"}]"#.into(),
        format: openai.into(),
        ..append("chat", [])
    };
    let said = check_refused(&mut client, orphan, "TOOL_USE_UNKNOWN").await;
    assert!(said.contains("lost"), "{said}");
}

#[tokio::test]
async fn state_and_request_sizes_are_limited() {
    let small = Setup::default().server("max_request_bytes: 256KiB");
    let daemon = Daemon::with(small.section("limits: { state_bytes: 1KiB }")).await;
    let mut client = daemon.sessions();
    say(&mut client, "chat", "hi").await;
    let patch = |length: usize| UpdateSessionRequest {
        session_id: "chat".into(),
        state_patch_json: format!(r#"{{"a":"{}"}}"#, "x".repeat(length)),
        ..UpdateSessionRequest::default()
    };
    client.update_session(patch(1_000)).await.expect("it fits");
    let large = client.update_session(patch(1_100)).await;
    refused(large, Code::InvalidArgument, "STATE_TOO_LARGE");
    let huge = append("chat", [user(&"x".repeat(300 << 10))]);
    let said = refused(
        client.append(huge).await,
        Code::ResourceExhausted,
        "REQUEST_TOO_LARGE",
    );
    assert!(
        said.contains("262144") || said.contains("256"),
        "it says the limit: {said}"
    );
    let huge = client.update_session(patch(300 << 10)).await;
    refused(huge, Code::ResourceExhausted, "REQUEST_TOO_LARGE");
    check_service_works(&daemon).await;
}

/// An empty turn takes 2 bytes encoded and hundreds decoded.
#[tokio::test]
async fn request_of_too_many_messages_is_refused_before_it_is_decoded() {
    let daemon = Daemon::start().await;
    let mut admin = daemon.admin();
    let before = stats(&mut admin).await.rss_bytes;
    // `turns`, of length 0.
    let turns = [0x12, 0x00].repeat(2_600_000);
    for path in ["Append", "BuildContext"] {
        let request = match path {
            "Append" => turns.clone(),
            _ => append_field(&turns),
        };
        let path = format!("/memoird.v1.SessionService/{path}");
        let answer = raw_call(&channel(daemon.grpc_addr()), &path, request).await;
        let status = answer.expect_err("refused");
        assert_eq!(refused_code(&status), "REQUEST_MALFORMED", "{status:?}");
        assert!(status.message().contains("262144"), "{status:?}");
    }
    let grown = stats(&mut admin).await.rss_bytes.saturating_sub(before);
    assert!(grown < 64 << 20, "{grown} bytes more");
}

/// The field `append` of a `BuildContextRequest`.
fn append_field(encoded: &[u8]) -> Vec<u8> {
    let mut request = Vec::new();
    prost::encoding::bytes::encode(2, &encoded.to_vec(), &mut request);
    request
}
