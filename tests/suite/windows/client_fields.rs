//! `client_id` and `client_json` of turns: returned unchanged, and not sent to providers.

use memoird_proto::v1::{
    AppendRequest, BuildContextRequest, GetHistoryRequest, MessageFormat, Turn,
};
use serde_json::json;
use tonic::Code;

use crate::harness::{
    Daemon, Events, Sessions, append, assistant, detail, journal, keyed, live, refused, say,
    text_of, user,
};

fn named(turn: Turn, id: &str, json: &str) -> Turn {
    Turn {
        client_id: id.into(),
        client_json: json.into(),
        ..turn
    }
}

fn fields(turns: &[Turn]) -> Vec<(&str, &str)> {
    fn of_turn(turn: &Turn) -> (&str, &str) {
        (&turn.client_id, &turn.client_json)
    }
    turns.iter().map(of_turn).collect()
}

const FORMATS: [MessageFormat; 3] = [
    MessageFormat::Openai,
    MessageFormat::OpenaiResponses,
    MessageFormat::Anthropic,
];

/// The `messages_json` of the window and of the history, in each format.
async fn messages(client: &mut Sessions, session: &str) -> Vec<String> {
    let mut all = Vec::new();
    for format in FORMATS {
        let request = BuildContextRequest {
            session_id: session.into(),
            format: format.into(),
            ..BuildContextRequest::default()
        };
        let window = client.build_context(request).await.expect("a window");
        all.push(window.into_inner().messages_json);
        let request = GetHistoryRequest {
            session_id: session.into(),
            format: format.into(),
            ..GetHistoryRequest::default()
        };
        let history = client.get_history(request).await.expect("a history");
        all.push(history.into_inner().messages_json);
    }
    all
}

#[tokio::test]
async fn client_fields_are_returned_but_never_sent_to_provider() {
    let mut daemon = Daemon::start().await;
    let mut client = daemon.sessions();
    let own = r#"{ "id":"msg-1",  "parts":[1.50] }"#;
    let turns = [
        named(user("hello"), "msg-1", own),
        assistant("hi"),
        // Several turns may belong to one message.
        named(user("and now?"), "msg-2", "[]"),
        named(user("and then?"), "msg-2", ""),
    ];
    let expected = [("msg-1", own), ("", ""), ("msg-2", "[]"), ("msg-2", "")];
    client
        .append(append("chat", turns.clone()))
        .await
        .expect("kept");
    let bare = turns.map(|turn| named(turn, "", ""));
    client.append(append("bare", bare)).await.expect("kept");

    for _ in 0..2 {
        assert_eq!(fields(&live(&mut client, "chat").await), expected);
        assert_eq!(fields(&journal(&mut client, "chat", "").await), expected);
        let mut reports = Vec::new();
        for session in ["chat", "bare"] {
            let request = BuildContextRequest {
                session_id: session.into(),
                ..BuildContextRequest::default()
            };
            let window = client.build_context(request).await.expect("a window");
            let window = window.into_inner();
            if session == "chat" {
                assert_eq!(fields(&window.turns), expected);
            }
            let info = window.session.expect("a session");
            let tokens = window.report.expect("a report").tokens_total;
            reports.push((tokens, info.history_tokens, info.history_bytes));
        }
        let [of_chat, of_bare] = reports[..] else {
            panic!("two sessions")
        };
        assert_eq!(of_chat.0, of_bare.0, "tokens of the window");
        assert!(of_chat.1 <= of_bare.1 + 8, "the estimate leaves it out");
        assert!(of_chat.2 > of_bare.2, "it counts in the bytes");
        let told = messages(&mut client, "chat").await;
        assert_eq!(told, messages(&mut client, "bare").await);
        assert!(
            told.iter().all(|messages| !messages.contains("msg-")),
            "{told:?}"
        );
        daemon.stop().await;
        daemon.restart().await;
        client = daemon.sessions();
    }
}

#[tokio::test]
async fn message_array_carries_client_fields_in_memoird_keys() {
    let daemon = Daemon::start().await;
    let mut client = daemon.sessions();
    for format in FORMATS {
        let session = format!("{format:?}");
        let own = json!({ "id": "m1", "price": 1.5, "memoird": { "x": null } });
        let messages_json = json!([
            { "role": "user", "content": "hello",
              "memoird_client_id": "m1", "memoird_client_json": own },
            { "role": "assistant", "content": "hi", "memoird_client_id": "m2" },
            { "role": "user", "content": "bye", "memoird_client_json": [1] },
        ]);
        let request = AppendRequest {
            messages_json: messages_json.to_string(),
            format: format.into(),
            ..append(&session, [])
        };
        client.append(request).await.expect("kept");
        let read = live(&mut client, &session).await;
        let own = own.to_string();
        let expected = [("m1", own.as_str()), ("m2", ""), ("", "[1]")];
        assert_eq!(fields(&read), expected);
        for told in messages(&mut client, &session).await {
            assert!(told.contains("hello") && !told.contains("client"), "{told}");
            assert!(!told.contains("m1") && !told.contains("price"), "{told}");
        }

        let odd = AppendRequest {
            messages_json: r#"[{"role":"user","content":"x","memoird_client_id":7}]"#.into(),
            format: format.into(),
            ..append(&session, [])
        };
        let answer = client.append(odd).await;
        let said = refused(answer, Code::InvalidArgument, "MESSAGES_INVALID");
        assert!(said.contains("[0].memoird_client_id: a number"), "{said}");
    }
}

#[tokio::test]
async fn items_merged_into_one_turn_must_share_client_id() {
    let daemon = Daemon::start().await;
    let mut client = daemon.sessions();
    let items = |second: &str| AppendRequest {
        messages_json: json!([
            { "role": "user", "content": "weather?", "memoird_client_id": "u" },
            { "type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}",
              "memoird_client_id": "a" },
            { "type": "function_call", "call_id": "c2", "name": "f", "arguments": "{}",
              "memoird_client_id": second },
        ])
        .to_string(),
        format: MessageFormat::OpenaiResponses.into(),
        ..append("chat", [])
    };
    let answer = client.append(items("b")).await;
    let said = refused(answer, Code::InvalidArgument, "MESSAGES_INVALID");
    assert!(said.contains("[2].memoird_client_id"), "{said}");
    client.append(items("a")).await.expect("kept");
    let read = live(&mut client, "chat").await;
    assert_eq!(fields(&read), [("u", ""), ("a", "")]);
}

#[tokio::test]
async fn append_events_list_client_ids_up_to_1_kib() {
    let daemon = Daemon::start().await;
    let mut client = daemon.sessions();
    let mut events = Events::now(&mut client).await;
    let turns = [
        named(user("a"), "m1", ""),
        user("b"),
        named(user("c"), "m2", "1"),
    ];
    client.append(append("chat", turns)).await.expect("kept");
    let long: Vec<Turn> = (0..9)
        .map(|_| named(user("x"), &"i".repeat(200), ""))
        .collect();
    client.append(append("chat", long)).await.expect("kept");
    say(&mut client, "chat", "unnamed").await;
    let appended = async |events: &mut Events| {
        let told = events.until("appended").await;
        detail(told.last().expect("an event"))["client_ids"].clone()
    };
    assert_eq!(appended(&mut events).await, json!(["m1", "m2"]));
    let of_long = appended(&mut events).await;
    assert_eq!(of_long.as_array().expect("a list").len(), 5, "up to 1 KiB");
    assert_eq!(appended(&mut events).await, json!([]));
}

#[tokio::test]
async fn media_in_client_json_do_not_count_towards_its_limit() {
    let daemon = Daemon::start().await;
    let mut client = daemon.sessions();
    let image = format!("iVBORw0KGgo{}", "A1b+".repeat(100_000));
    let own = json!({ "artifact": { "rows": 3, "plot": image } }).to_string();
    let turn = named(user("plot"), "m1", &own);
    client.append(append("chat", [turn])).await.expect("kept");
    assert_eq!(fields(&live(&mut client, "chat").await), [("m1", &*own)]);

    let words = json!({ "artifact": "some words ".repeat(30_000) }).to_string();
    let answer = client
        .append(append("chat", [named(user("words"), "m2", &words)]))
        .await;
    let said = refused(answer, Code::InvalidArgument, "TURN_TOO_LARGE");
    assert!(said.contains("limits.client_json_bytes"), "{said}");
}

#[tokio::test]
async fn idempotency_key_with_different_client_json_is_refused() {
    let daemon = Daemon::start().await;
    let mut client = daemon.sessions();
    let request = |json: &str| keyed("chat", "k", [named(user("a"), "m1", json)]);
    client.append(request("1")).await.expect("kept");
    assert!(
        client
            .append(request("1"))
            .await
            .expect("known")
            .into_inner()
            .duplicate
    );
    let answer = client.append(request("2")).await;
    refused(answer, Code::InvalidArgument, "IDEMPOTENCY_KEY_REUSED");
    let read = live(&mut client, "chat").await;
    assert_eq!((text_of(&read[0]), fields(&read)), ("a", vec![("m1", "1")]));
}
