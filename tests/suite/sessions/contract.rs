//! The API contract: appended turns are read back unchanged.

use memoird_proto::v1::part::Part as Kind;
use memoird_proto::v1::session_service_client::SessionServiceClient;
use memoird_proto::v1::{
    AppendRequest, Budget, BuildContextRequest, GetHistoryRequest, GetHistoryResponse,
    GetSessionRequest, HistoryScope, ListSessionsRequest, Media, MessageFormat, ModelUsage, Role,
    Thinking, ToolUse, Turn, media,
};
use prost::Message;
use tonic::{Code, Request};

use crate::harness::{
    Daemon, append, assistant, channel, journal, live, refused, refused_code, say, text_of,
    tool_results, tool_uses, turn, user,
};

/// A turn that uses every field.
fn rich_turn() -> Turn {
    let image = Media {
        media_type: "image/png".into(),
        name: "a cat".into(),
        source: Some(media::Source::Data(vec![0, 159, 146, 150].into())),
    };
    let link = Media {
        source: Some(media::Source::Uri("https://example.org/dog.png".into())),
        ..Media::default()
    };
    let reasoning = Thinking {
        text: "hm".into(),
        signature: "s1g".into(),
        redacted: false,
    };
    let call = ToolUse {
        id: "c1".into(),
        name: "f".into(),
        input_json: "{ \"n\":1.50}".into(),
    };
    let kinds = [
        Kind::Thinking(reasoning),
        Kind::Text("naïve \u{1f408}\n\0 text".into()),
        Kind::Media(image),
        Kind::Media(link),
        Kind::ToolUse(call),
    ];
    let mut rich = turn(Role::Assistant, kinds);
    rich.parts[0].extra_json = r#"{"cache_control":{"type":"ephemeral"}}"#.into();
    rich.extra_json = r#"{"name":"ada"}"#.into();
    rich.metadata.insert("channel".into(), "telegram".into());
    rich.salience = Some(0.25);
    rich
}

#[tokio::test]
async fn appended_turns_are_read_back_unchanged() {
    let daemon = Daemon::start().await;
    let mut client = daemon.sessions();
    let turns = [
        user("hello"),
        rich_turn(),
        tool_results(&["c1"]),
        assistant(""),
    ];
    let answer = client
        .append(append("chat", turns.clone()))
        .await
        .expect("done")
        .into_inner();
    assert_eq!(
        (answer.first_seq, answer.last_seq, answer.dropped_turns),
        (1, 4, 0)
    );
    assert!(!answer.duplicate);
    for read in [
        live(&mut client, "chat").await,
        journal(&mut client, "chat", "").await,
    ] {
        let seqs: Vec<u64> = read.iter().map(|turn| turn.seq).collect();
        assert_eq!(seqs, [1, 2, 3, 4]);
        assert!(
            read.iter().all(|turn| turn.timestamp.is_some()),
            "each has its time"
        );
        let bare = read.into_iter().map(|turn| Turn {
            seq: 0,
            timestamp: None,
            ..turn
        });
        assert_eq!(bare.collect::<Vec<_>>(), turns);
    }
}

#[tokio::test]
async fn append_keeps_timestamp_given_by_client() {
    let daemon = Daemon::start().await;
    let mut client = daemon.sessions();
    let mut said = user("long ago");
    let answer = say(&mut client, "clock", "now").await;
    let now = answer
        .session
        .and_then(|session| session.last_access)
        .expect("a time");
    let mut then = now;
    then.seconds -= 86_400;
    then.nanos = 123_456_789;
    said.timestamp = Some(then);
    client.append(append("clock", [said])).await.expect("done");
    let read = live(&mut client, "clock").await;
    assert_eq!(read[1].timestamp, Some(then));
    assert!(read[0].timestamp.expect("a time").seconds >= now.seconds - 1);
}

#[tokio::test]
async fn openai_message_array_becomes_turns() {
    let daemon = Daemon::start().await;
    let mut client = daemon.sessions();
    let messages = r#"[
        {"role":"system","content":"be kind"},
        {"role":"user","content":[{"type":"text","text":"weather?"}]},
        {"role":"assistant","content":null,"tool_calls":[
            {"id":"a","type":"function","function":{"name":"w","arguments":"{ \"in\": \"Rom\"}"}},
            {"id":"b","type":"function","function":{"name":"w","arguments":"{}"}}]},
        {"role":"tool","tool_call_id":"b","content":"rain"},
        {"role":"tool","tool_call_id":"a","content":"sun"},
        {"role":"assistant","content":"Sun in Rome."}]"#;
    let request = AppendRequest {
        session_id: "openai".into(),
        messages_json: messages.into(),
        format: MessageFormat::Openai.into(),
        ..AppendRequest::default()
    };
    let answer = client.append(request).await.expect("done").into_inner();
    assert_eq!((answer.first_seq, answer.last_seq), (1, 6));
    let turns = live(&mut client, "openai").await;
    let roles: Vec<i32> = turns.iter().map(|turn| turn.role).collect();
    assert_eq!(roles, [4, 1, 2, 3, 3, 2]);
    let Some(Kind::ToolUse(call)) = &turns[2].parts[0].part else {
        panic!("{:?}", turns[2])
    };
    assert_eq!((&*call.id, &*call.input_json), ("a", "{ \"in\": \"Rom\"}"));
    let Some(Kind::ToolResult(result)) = &turns[3].parts[0].part else {
        panic!("{:?}", turns[3])
    };
    assert_eq!((&*result.tool_use_id, &*result.content), ("b", "rain"));
    assert_eq!(text_of(&turns[5]), "Sun in Rome.");
}

#[tokio::test]
async fn anthropic_message_array_becomes_turns() {
    let daemon = Daemon::start().await;
    let mut client = daemon.sessions();
    let messages = r#"[
        {"role":"user","content":"weather?"},
        {"role":"assistant","content":[
            {"type":"thinking","thinking":"Rome, then","signature":"abc"},
            {"type":"tool_use","id":"a","name":"w","input":{"in":"Rom","n":1.50}}]},
        {"role":"user","content":[
            {"type":"tool_result","tool_use_id":"a","content":[{"type":"text","text":"sun"}],
             "is_error":true},
            {"type":"text","text":"and?"}]},
        {"role":"assistant","content":[{"type":"text","text":"Sun."}]}]"#;
    let request = AppendRequest {
        session_id: "anthropic".into(),
        messages_json: messages.into(),
        format: MessageFormat::Anthropic.into(),
        ..AppendRequest::default()
    };
    client.append(request).await.expect("done");
    let turns = live(&mut client, "anthropic").await;
    assert_eq!(turns.len(), 4);
    let Some(Kind::Thinking(thought)) = &turns[1].parts[0].part else {
        panic!("{:?}", turns[1])
    };
    assert_eq!((&*thought.text, &*thought.signature), ("Rome, then", "abc"));
    let Some(Kind::ToolUse(call)) = &turns[1].parts[1].part else {
        panic!("{:?}", turns[1])
    };
    assert_eq!(call.input_json, r#"{"in":"Rom","n":1.50}"#);
    let Some(Kind::ToolResult(result)) = &turns[2].parts[0].part else {
        panic!("{:?}", turns[2])
    };
    assert!(result.is_error);
    assert_eq!(result.parts.len(), 1);
    assert_eq!(text_of(&turns[3]), "Sun.");
}

#[tokio::test]
async fn get_history_pages_forward() {
    let daemon = Daemon::start().await;
    let mut client = daemon.sessions();
    let turns: Vec<Turn> = (1..=25).map(|number| user(&number.to_string())).collect();
    client.append(append("pages", turns)).await.expect("done");
    for scope in [
        HistoryScope::Live,
        HistoryScope::Journal,
        HistoryScope::Unspecified,
    ] {
        let mut request = GetHistoryRequest {
            session_id: "pages".into(),
            scope: scope.into(),
            limit: 10,
            ..GetHistoryRequest::default()
        };
        let mut ends = Vec::new();
        loop {
            let page = client
                .get_history(request.clone())
                .await
                .expect("a page")
                .into_inner();
            let first = page.turns.first().expect("no page is empty");
            assert_eq!(first.seq, request.after_seq + 1, "{scope:?}");
            ends.push((page.turns.len(), page.next_after_seq));
            if page.next_after_seq == 0 {
                break;
            }
            request.after_seq = page.next_after_seq;
        }
        assert_eq!(ends, [(10, 10), (10, 20), (5, 0)], "{scope:?}");
        let past = GetHistoryRequest {
            after_seq: 25,
            ..request.clone()
        };
        let page = client
            .get_history(past)
            .await
            .expect("an empty page")
            .into_inner();
        assert_eq!((page.turns.len(), page.next_after_seq), (0, 0), "{scope:?}");
        let far = GetHistoryRequest {
            after_seq: u64::MAX,
            limit: u32::MAX,
            ..request
        };
        let page = client
            .get_history(far)
            .await
            .expect("an empty page")
            .into_inner();
        assert_eq!((page.turns.len(), page.next_after_seq), (0, 0), "{scope:?}");
    }
}

#[tokio::test]
async fn get_history_pages_backward_from_end() {
    let daemon = Daemon::start().await;
    let mut client = daemon.sessions();
    let turns: Vec<Turn> = (1..=25).map(|number| user(&number.to_string())).collect();
    client.append(append("pages", turns)).await.expect("done");
    for scope in [
        HistoryScope::Live,
        HistoryScope::Journal,
        HistoryScope::Longest,
    ] {
        let mut request = GetHistoryRequest {
            session_id: "pages".into(),
            scope: scope.into(),
            last: 10,
            ..GetHistoryRequest::default()
        };
        let mut pages = Vec::new();
        loop {
            let page = client.get_history(request.clone()).await.expect("a page");
            let page = page.into_inner();
            assert_eq!(page.next_after_seq, 0);
            assert_eq!(page.session.expect("it lives").last_seq, 25);
            let seqs: Vec<u64> = page.turns.iter().map(|turn| turn.seq).collect();
            assert!(seqs.is_sorted(), "{seqs:?}");
            pages.push((seqs[0], seqs.len()));
            request.before_seq = page.previous_before_seq;
            if request.before_seq == 0 {
                break;
            }
        }
        assert_eq!(pages, [(16, 10), (6, 10), (1, 5)], "{scope:?}");
        let both = GetHistoryRequest {
            limit: 1,
            ..request
        };
        refused(
            client.get_history(both).await,
            Code::InvalidArgument,
            "LIMIT_INVALID",
        );
    }
}

#[tokio::test]
async fn messages_are_read_back_in_their_original_format() {
    let daemon = Daemon::start().await;
    let mut client = daemon.sessions();
    let cases = [
        (
            MessageFormat::Openai,
            r#"[{"role":"system","content":"Be kind."},{"role":"user","content":"a","name":"ann"},{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{ }"}}]},{"role":"tool","tool_call_id":"c1","content":"1"}]"#,
        ),
        (
            MessageFormat::OpenaiResponses,
            r#"[{"role":"user","content":"Weather?"},{"type":"function_call","call_id":"c1","name":"weather","arguments":"{}"},{"role":"user","content":[{"type":"input_text","text":"Never mind."}]},{"type":"function_call_output","call_id":"elsewhere","output":"rain"},{"role":"assistant","content":"Well."},{"type":"message","role":"user","content":"And now?"},{"type":"function_call","call_id":"c2","name":"weather","arguments":"{}"}]"#,
        ),
        (
            MessageFormat::Anthropic,
            r#"[{"role":"user","content":"a"},{"role":"assistant","content":[{"type":"tool_use","id":"t1","name":"f","input":{"b":1.0}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":"1"},{"type":"text","text":"go on"}]}]"#,
        ),
    ];
    for (format, messages) in cases {
        let session = format!("{format:?}");
        let request = AppendRequest {
            session_id: session.clone(),
            messages_json: messages.into(),
            format: format.into(),
            ..AppendRequest::default()
        };
        client.append(request).await.expect("appended");
        let request = GetHistoryRequest {
            session_id: session,
            scope: HistoryScope::Longest.into(),
            format: format.into(),
            last: 20,
            ..GetHistoryRequest::default()
        };
        let page = client.get_history(request).await.expect("a page");
        let value = |text: &str| serde_json::from_str::<serde_json::Value>(text).expect("JSON");
        let read = page.into_inner().messages_json;
        assert_eq!(value(&read), value(messages), "{format:?}");
    }
}

#[tokio::test]
async fn history_page_in_message_format_stays_below_2_mib() {
    let daemon = Daemon::start().await;
    let mut client = daemon.sessions();
    // A newline takes two bytes in JSON.
    let lines = "x\n".repeat(100_000);
    for number in 0..12 {
        say(&mut client, "large", &format!("{number}: {lines}")).await;
    }
    let numbers = |page: &GetHistoryResponse| -> Vec<String> {
        let messages: Vec<serde_json::Value> =
            serde_json::from_str(&page.messages_json).expect("JSON");
        assert_eq!(messages.len(), page.turns.len());
        let texts = messages
            .iter()
            .map(|message| message["content"].to_string());
        texts
            .map(|text| {
                text.trim_start_matches('"')
                    .split(':')
                    .next()
                    .unwrap()
                    .to_owned()
            })
            .collect()
    };
    let expected: Vec<String> = (0..12).map(|number| number.to_string()).collect();
    let mut request = GetHistoryRequest {
        session_id: "large".into(),
        format: MessageFormat::Openai.into(),
        ..Default::default()
    };
    let mut read = Vec::new();
    loop {
        let page = client.get_history(request.clone()).await.expect("a page");
        let page = page.into_inner();
        assert!(
            page.encoded_len() <= 2 << 20,
            "{} bytes",
            page.encoded_len()
        );
        read.extend(numbers(&page));
        request.after_seq = page.next_after_seq;
        if page.next_after_seq == 0 {
            break;
        }
    }
    assert_eq!(read, expected);
    // Read from the end.
    (request.after_seq, request.last) = (0, 100);
    let mut pages = Vec::new();
    loop {
        let page = client.get_history(request.clone()).await.expect("a page");
        let page = page.into_inner();
        assert!(
            page.encoded_len() <= 2 << 20,
            "{} bytes",
            page.encoded_len()
        );
        pages.insert(0, numbers(&page));
        request.before_seq = page.previous_before_seq;
        if page.previous_before_seq == 0 {
            break;
        }
    }
    assert!(pages.len() > 1);
    assert_eq!(pages.concat(), expected);
}

#[tokio::test]
async fn a_reply_over_4_mib_is_refused_unless_the_call_asks_for_it() {
    let daemon = Daemon::start().await;
    say(&mut daemon.sessions(), "large", &"x".repeat(5 << 20)).await;
    let client = SessionServiceClient::new(channel(daemon.grpc_addr()));
    let mut client = client.max_decoding_message_size(64 << 20);
    let request = GetHistoryRequest {
        session_id: "large".into(),
        ..Default::default()
    };
    let asking = |bytes: &str| {
        let mut request = Request::new(request.clone());
        let metadata = request.metadata_mut();
        metadata.insert("memoird-max-reply-bytes", bytes.parse().expect("ASCII"));
        request
    };
    let reply = client.get_history(request.clone()).await;
    let problem = refused(reply, Code::ResourceExhausted, "REPLY_TOO_LARGE");
    assert!(problem.contains("memoird-max-reply-bytes"), "{problem}");
    let reply = client.get_history(asking("5242880")).await;
    refused(reply, Code::ResourceExhausted, "REPLY_TOO_LARGE");
    let invalid = client.get_history(asking("lots")).await;
    let invalid = refused_code(&invalid.expect_err("no number"));
    assert_eq!(invalid, "METADATA_INVALID");
    let page = client.get_history(asking("6000000")).await.expect("a page");
    assert_eq!(text_of(&page.into_inner().turns[0]).len(), 5 << 20);
    // The budget of a window says what its client can receive.
    let window = |context_window| BuildContextRequest {
        session_id: "large".into(),
        budget: Some(Budget {
            context_window: Some(context_window),
            ..Budget::default()
        }),
        ..Default::default()
    };
    let reply = client.build_context(window(2_000_000)).await;
    reply.expect("a window of 1.3 million tokens");
}

#[tokio::test]
async fn history_page_of_large_turns_ends_early_and_continues() {
    let daemon = Daemon::start().await;
    let mut client = daemon.sessions();
    let large = "x".repeat(700_000);
    for number in 0..5 {
        say(&mut client, "large", &format!("{number}{large}")).await;
    }
    let request = GetHistoryRequest {
        session_id: "large".into(),
        ..Default::default()
    };
    let page = client
        .get_history(request)
        .await
        .expect("a page")
        .into_inner();
    assert!(
        page.turns.len() < 5 && page.next_after_seq > 0,
        "2 MiB end a page"
    );
    for read in [
        live(&mut client, "large").await,
        journal(&mut client, "large", "").await,
    ] {
        let starts: Vec<&str> = read.iter().map(|turn| &text_of(turn)[..1]).collect();
        assert_eq!(starts, ["0", "1", "2", "3", "4"]);
    }
}

#[tokio::test]
async fn append_response_describes_resulting_session() {
    let daemon = Daemon::start().await;
    let mut client = daemon.sessions();
    let mut request = append("chat", [user("hi"), assistant("hello")]);
    request.subject = "user:7".into();
    request.usage = Some(ModelUsage {
        model: "m".into(),
        input_tokens: 3,
        output_tokens: 4,
        ..ModelUsage::default()
    });
    let made = client
        .append(request)
        .await
        .expect("done")
        .into_inner()
        .session;
    let made = made.expect("a session");
    assert_eq!((&*made.session_id, &*made.subject), ("chat", "user:7"));
    assert_eq!(
        (made.history_turns, made.last_seq, made.state_version),
        (2, 2, 0)
    );
    assert!(made.history_bytes > 0 && made.history_tokens > 0);
    assert_eq!(made.generation.len(), 26, "a ULID");
    let seen = GetSessionRequest {
        session_id: "chat".into(),
        ..Default::default()
    };
    let seen = client
        .get_session(seen)
        .await
        .expect("it lives")
        .into_inner()
        .session;
    let seen = seen.expect("a session");
    assert_eq!(seen.generation, made.generation);
    assert_eq!(
        (seen.history_bytes, seen.history_tokens),
        (made.history_bytes, made.history_tokens)
    );
    let (access, expiry) = (
        seen.last_access.expect("a time"),
        seen.expires_at.expect("a time"),
    );
    assert!(
        ((expiry.seconds - access.seconds) - 86_400).abs() <= 1,
        "a day by default"
    );

    let unsaid = client
        .append(append("chat", [user("who am I?")]))
        .await
        .expect("done");
    let session = unsaid.into_inner().session.expect("a session");
    assert_eq!(
        (&*session.subject, session.last_seq),
        ("user:7", 3),
        "a subject stays"
    );
}

#[tokio::test]
async fn list_sessions_pages_most_recently_used_first() {
    let daemon = Daemon::start().await;
    let mut client = daemon.sessions();
    for number in 0..7 {
        say(&mut client, &format!("s{number}"), "hi").await;
    }
    say(&mut client, "s2", "again").await;
    let mut request = ListSessionsRequest {
        page_size: 3,
        ..ListSessionsRequest::default()
    };
    let (mut ids, mut pages) = (Vec::new(), 0);
    loop {
        let page = client
            .list_sessions(request.clone())
            .await
            .expect("a page")
            .into_inner();
        ids.extend(page.sessions.into_iter().map(|session| session.session_id));
        pages += 1;
        if page.next_page_token.is_empty() {
            break;
        }
        request.page_token = page.next_page_token;
    }
    assert_eq!(ids, ["s2", "s6", "s5", "s4", "s3", "s1", "s0"]);
    assert_eq!(pages, 3);
    let nonsense = ListSessionsRequest {
        page_size: 1,
        page_token: "nonsense".into(),
        ..ListSessionsRequest::default()
    };
    refused(
        client.list_sessions(nonsense).await,
        Code::InvalidArgument,
        "PAGE_TOKEN_INVALID",
    );
}

#[tokio::test]
async fn idempotency_key_applies_append_once() {
    let daemon = Daemon::start().await;
    let mut client = daemon.sessions();
    let mut request = append("chat", [user("once")]);
    request.idempotency_key = "k".into();
    let first = client
        .append(request.clone())
        .await
        .expect("done")
        .into_inner();
    say(&mut client, "chat", "more").await;
    let again = client
        .append(request.clone())
        .await
        .expect("answered")
        .into_inner();
    assert!(again.duplicate && !first.duplicate);
    assert_eq!(
        (again.first_seq, again.last_seq),
        (first.first_seq, first.last_seq)
    );
    let texts = live(&mut client, "chat").await;
    assert_eq!(
        texts.iter().map(text_of).collect::<Vec<_>>(),
        ["once", "more"]
    );

    let other = AppendRequest {
        turns: vec![user("other")],
        ..request.clone()
    };
    let reason = "IDEMPOTENCY_KEY_REUSED";
    refused(client.append(other).await, Code::InvalidArgument, reason);
    let other_subject = AppendRequest {
        subject: "else".into(),
        ..request.clone()
    };
    refused(
        client.append(other_subject).await,
        Code::InvalidArgument,
        reason,
    );
    let elsewhere = AppendRequest {
        session_id: "another chat".into(),
        ..request
    };
    assert!(
        !client
            .append(elsewhere)
            .await
            .expect("done")
            .into_inner()
            .duplicate
    );
}

#[tokio::test]
async fn append_with_stale_expected_seq_or_generation_is_refused() {
    let daemon = Daemon::start().await;
    let mut client = daemon.sessions();
    let expecting = |seq: Option<u64>, generation: &str| AppendRequest {
        expected_seq: seq,
        expected_generation: generation.to_owned(),
        ..append("chat", [user("careful")])
    };
    let unknown = "01ARZ3NDEKTSV4RRFFQ69G5FAV";
    refused(
        client.append(expecting(Some(1), "")).await,
        Code::Aborted,
        "STALE_SEQ",
    );
    refused(
        client.append(expecting(None, unknown)).await,
        Code::Aborted,
        "STALE_GENERATION",
    );
    let first = client
        .append(expecting(Some(0), ""))
        .await
        .expect("no turn yet")
        .into_inner();
    let generation = first.session.expect("a session").generation;
    for seq in [0, 2, u64::MAX] {
        let answer = client.append(expecting(Some(seq), "")).await;
        let said = refused(answer, Code::Aborted, "STALE_SEQ");
        assert!(said.contains('1'), "it says where the session is: {said}");
    }
    refused(
        client.append(expecting(Some(1), unknown)).await,
        Code::Aborted,
        "STALE_GENERATION",
    );
    client
        .append(expecting(Some(1), &generation))
        .await
        .expect("all is as expected");
    let answer = client.append(expecting(None, "no ulid")).await;
    refused(answer, Code::InvalidArgument, "GENERATION_INVALID");
    assert_eq!(
        live(&mut client, "chat").await.len(),
        2,
        "a refusal changes nothing"
    );
}

#[tokio::test]
async fn pending_tool_calls_accept_results_in_later_appends() {
    let daemon = Daemon::start().await;
    let mut client = daemon.sessions();
    client
        .append(append("chat", [user("go"), tool_uses(&["a", "b"])]))
        .await
        .expect("done");
    client
        .append(append("chat", [tool_results(&["b"])]))
        .await
        .expect("one of two");
    assert_eq!(live(&mut client, "chat").await.len(), 3);
    client
        .append(append("chat", [tool_results(&["a"])]))
        .await
        .expect("the other");
    let again = client.append(append("chat", [tool_results(&["a"])])).await;
    refused(again, Code::InvalidArgument, "TOOL_USE_UNKNOWN");
    // An id may be reused once its call has a result.
    let turns = [tool_uses(&["a"]), tool_results(&["a"])];
    client
        .append(append("chat", turns))
        .await
        .expect("the id is free again");
}
