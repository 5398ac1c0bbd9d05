//! Updated turns: the old text is gone everywhere, and everything else is unchanged.

use memoird_proto::v1::part::Part as Kind;
use memoird_proto::v1::{
    BuildContextRequest, CompactSessionRequest, GetSessionRequest, MessageFormat,
    RewindSessionRequest, SearchTranscriptsRequest, Turn, UpdateTurnRequest, UpdateTurnResponse,
};
use tonic::{Code, Response, Status};

use crate::harness::{
    Daemon, Sessions, Setup, append, assistant, eventually, files_with, journal, keyed, live,
    refused, refused_code, refused_field, say, text_of, tool_results, tool_uses, user,
};

/// Occurs in no other test and in no library.
const SECRET: &str = "zqcardnumber4711";

async fn try_update(
    client: &mut Sessions,
    seq: u64,
    turn: Turn,
) -> Result<Response<UpdateTurnResponse>, Status> {
    let request = UpdateTurnRequest {
        session_id: "chat".into(),
        seq,
        turn: Some(turn),
        ..UpdateTurnRequest::default()
    };
    client.update_turn(request).await
}

async fn update(client: &mut Sessions, seq: u64, turn: Turn) -> UpdateTurnResponse {
    let answer = try_update(client, seq, turn).await;
    answer.expect("it says something else").into_inner()
}

fn texts(turns: &[Turn]) -> Vec<&str> {
    turns.iter().map(text_of).collect()
}

async fn window(client: &mut Sessions) -> String {
    let request = BuildContextRequest {
        session_id: "chat".into(),
        ..BuildContextRequest::default()
    };
    let answer = client.build_context(request).await.expect("a window");
    format!("{:?}", answer.into_inner())
}

async fn detail(client: &mut Sessions) -> String {
    let request = GetSessionRequest {
        session_id: "chat".into(),
        ..GetSessionRequest::default()
    };
    let answer = client.get_session(request).await.expect("it lives");
    format!("{:?}", answer.into_inner())
}

async fn found(daemon: &Daemon, word: &str) -> usize {
    let request = SearchTranscriptsRequest {
        query: word.into(),
        ..SearchTranscriptsRequest::default()
    };
    let found = daemon.sessions().search_transcripts(request).await;
    found.expect("found").into_inner().hits.len()
}

/// Asserts that the text is in no history, journal, window, session details or search result.
async fn check_text_is_gone(daemon: &Daemon, client: &mut Sessions) {
    for turns in [
        live(client, "chat").await,
        journal(client, "chat", "").await,
    ] {
        assert!(!format!("{turns:?}").contains(SECRET), "{turns:?}");
    }
    let (window, detail) = (window(client).await, detail(client).await);
    assert!(!window.contains(SECRET), "{window}");
    assert!(!detail.contains(SECRET), "{detail}");
    assert_eq!(found(daemon, SECRET).await, 0);
}

#[tokio::test]
async fn update_takes_message_of_provider() {
    let daemon = Daemon::start().await;
    let mut client = daemon.sessions();
    let turns = [user("one"), assistant("two")];
    client.append(append("chat", turns)).await.expect("said");
    let with = |messages_json: &str| UpdateTurnRequest {
        session_id: "chat".into(),
        seq: 2,
        messages_json: messages_json.into(),
        format: MessageFormat::Openai.into(),
        ..UpdateTurnRequest::default()
    };
    let updated = client
        .update_turn(with(r#"[{"role": "assistant", "content": "2"}]"#))
        .await
        .expect("updated");
    assert_eq!(text_of(&updated.into_inner().turn.expect("a turn")), "2");
    assert_eq!(texts(&live(&mut client, "chat").await), ["one", "2"]);

    let two = r#"[{"role": "assistant", "content": "2"}, {"role": "user", "content": "3"}]"#;
    let both = UpdateTurnRequest {
        turn: Some(assistant("2")),
        ..with("[]")
    };
    let no_format = UpdateTurnRequest {
        format: MessageFormat::Unspecified.into(),
        ..with(two)
    };
    for (request, reason, field) in [
        (both, "TURNS_AMBIGUOUS", "messages_json"),
        (with(two), "TURN_INVALID", "messages_json"),
        (with("[]"), "TURN_INVALID", "messages_json"),
        (with("[{}]"), "MESSAGES_INVALID", "messages_json[0].role"),
        (with(""), "TURN_INVALID", "turn"),
        (no_format, "FORMAT_INVALID", "format"),
    ] {
        let status = client.update_turn(request).await.expect_err("refused");
        assert_eq!(refused_code(&status), reason, "{status:?}");
        assert_eq!(refused_field(&status), field, "{status:?}");
    }
    assert_eq!(texts(&live(&mut client, "chat").await), ["one", "2"]);
}

#[tokio::test]
async fn redacted_turn_is_removed_from_all_files_and_replies() {
    for durability in ["sync", "interval", "off"] {
        let setup = format!("journal: {{ durability: {durability} }}");
        let mut daemon = Daemon::with(Setup::default().section(setup)).await;
        let mut client = daemon.sessions();
        let turns = [
            user("hello"),
            assistant("hi"),
            user(&format!("my card is {SECRET}, see /data/{SECRET}.txt")),
            assistant("thanks"),
        ];
        client.append(append("chat", turns)).await.expect("said");
        assert!(window(&mut client).await.contains(SECRET));
        if durability != "off" {
            assert_eq!(found(&daemon, SECRET).await, 1);
        }
        let redacted = Turn {
            client_id: "m3".into(),
            ..user("[redacted] card")
        };
        let updated = update(&mut client, 3, redacted).await;
        let turn = updated.turn.expect("the turn");
        assert_eq!((turn.seq, text_of(&turn)), (3, "[redacted] card"));
        assert!(turn.timestamp.is_some(), "the time that it had");
        assert_eq!(turn.client_id, "m3", "what it was given");
        assert_eq!(updated.session.expect("a session").last_seq, 4);
        let expected = ["hello", "hi", "[redacted] card", "thanks"];
        assert_eq!(texts(&live(&mut client, "chat").await), expected);
        if durability == "off" {
            assert!(!window(&mut client).await.contains(SECRET));
            continue;
        }
        check_text_is_gone(&daemon, &mut client).await;
        assert_eq!(found(&daemon, "card").await, 1);
        match durability {
            "sync" => daemon.kill9().await,
            _ => daemon.stop().await,
        }
        daemon.restart().await;
        client = daemon.sessions();
        assert_eq!(texts(&live(&mut client, "chat").await), expected);
        check_text_is_gone(&daemon, &mut client).await;
        eventually("the index has cleaned its pages", async || {
            say(&mut daemon.sessions(), "other", "on").await;
            let found = files_with(&daemon, &[SECRET]);
            (!found.iter().any(|line| line.contains("search.db"))).then_some(())
        })
        .await;
        daemon.stop().await;
        assert_eq!(files_with(&daemon, &[SECRET]), Vec::<String>::new());
        daemon.restart().await;
    }
}

#[tokio::test]
async fn redaction_undoes_summaries_of_the_turn() {
    let mut daemon = Daemon::start().await;
    let mut client = daemon.sessions();
    let more = "and so on, as people do who have time ".repeat(12);
    let talk = (1..=16).map(|number| match number {
        4 => assistant(&format!("the key is {SECRET}. {more}")),
        number if number % 2 == 1 => user(&format!("word{number} is said {more}")),
        number => assistant(&format!("word{number} is answered {more}")),
    });
    let talk: Vec<Turn> = talk.collect();
    client.append(append("chat", talk)).await.expect("said");
    for keep_exchanges in [Some(6), Some(3)] {
        let request = CompactSessionRequest {
            session_id: "chat".into(),
            keep_exchanges,
        };
        client.compact_session(request).await.expect("compacted");
    }
    assert!(window(&mut client).await.contains("summary"));
    update(&mut client, 4, assistant("the key is gone")).await;
    for _ in 0..2 {
        let session = client
            .get_session(GetSessionRequest {
                session_id: "chat".into(),
                ..GetSessionRequest::default()
            })
            .await
            .expect("it lives");
        let session = session.into_inner();
        assert_eq!(session.summary_text, "");
        check_text_is_gone(&daemon, &mut client).await;
        daemon.kill9().await;
        daemon.restart().await;
        client = daemon.sessions();
    }
}

#[tokio::test]
async fn dropped_and_rewound_turns_can_be_redacted() {
    let cap = "short_term: { max_history_turns: 2 }";
    let daemon = Daemon::with(Setup::default().section(cap)).await;
    let mut client = daemon.sessions();
    for text in ["one", SECRET, "three", "four", SECRET] {
        say(&mut client, "chat", text).await;
    }
    let rewind = RewindSessionRequest {
        session_id: "chat".into(),
        after_seq: 4,
        ..RewindSessionRequest::default()
    };
    client.rewind_session(rewind).await.expect("popped");
    let dropped = update(&mut client, 2, user("two")).await;
    assert!(!dropped.turn.expect("the turn").removed);
    let removed = update(&mut client, 5, user("five")).await;
    assert!(removed.turn.expect("the turn").removed);
    let all = journal(&mut client, "chat", "").await;
    assert_eq!(texts(&all), ["one", "two", "three", "four", "five"]);
    assert!(all[4].removed);
    assert_eq!(texts(&live(&mut client, "chat").await), ["one", "four"]);
    check_text_is_gone(&daemon, &mut client).await;
}

#[tokio::test]
async fn update_that_breaks_tool_unit_is_refused_and_changes_nothing() {
    let daemon = Daemon::start().await;
    let mut client = daemon.sessions();
    let turns = [
        user("look"),
        tool_uses(&["a", "b"]),
        tool_results(&["a", "b"]),
    ];
    client.append(append("chat", turns)).await.expect("said");
    let before = live(&mut client, "chat").await;
    let (bad, none) = (Code::InvalidArgument, Code::NotFound);
    for (seq, turn, code, reason) in [
        (1, assistant("look"), bad, "TURN_UPDATE_INVALID"),
        (2, tool_uses(&["a"]), bad, "TURN_UPDATE_INVALID"),
        (2, tool_uses(&["b", "a"]), bad, "TURN_UPDATE_INVALID"),
        (2, assistant("no calls"), bad, "TURN_UPDATE_INVALID"),
        (3, tool_results(&["a"]), bad, "TURN_UPDATE_INVALID"),
        (
            3,
            tool_results(&["a", "b", "c"]),
            bad,
            "TURN_UPDATE_INVALID",
        ),
        (3, Turn::default(), bad, "TURN_INVALID"),
        (
            1,
            Turn {
                parts: Vec::new(),
                ..user("")
            },
            bad,
            "TURN_INVALID",
        ),
        (0, user("x"), none, "TURN_NOT_FOUND"),
        (4, user("x"), none, "TURN_NOT_FOUND"),
        (u64::MAX, user("x"), none, "TURN_NOT_FOUND"),
    ] {
        refused(try_update(&mut client, seq, turn).await, code, reason);
    }
    for (seq, client_id, code, reason) in [
        (1, "m1", bad, "TURN_INVALID"),
        (0, "m1", none, "TURN_NOT_FOUND"),
    ] {
        let request = UpdateTurnRequest {
            session_id: "chat".into(),
            seq,
            client_id: client_id.into(),
            turn: Some(user("x")),
            ..UpdateTurnRequest::default()
        };
        refused(client.update_turn(request).await, code, reason);
    }
    let request = UpdateTurnRequest {
        session_id: "chat".into(),
        seq: 1,
        ..UpdateTurnRequest::default()
    };
    let missing = client.update_turn(request.clone()).await;
    refused(missing, bad, "TURN_INVALID");
    let stale = UpdateTurnRequest {
        turn: Some(user("x")),
        expected_generation: "01ARZ3NDEKTSV4RRFFQ69G5FAV".into(),
        ..request.clone()
    };
    refused(
        client.update_turn(stale).await,
        Code::Aborted,
        "STALE_GENERATION",
    );
    let absent = UpdateTurnRequest {
        session_id: "nobody".into(),
        turn: Some(user("x")),
        ..request
    };
    refused(client.update_turn(absent).await, none, "SESSION_NOT_FOUND");
    assert_eq!(live(&mut client, "chat").await, before);

    let mut calls = tool_uses(&["a", "b"]);
    for part in &mut calls.parts {
        if let Some(Kind::ToolUse(call)) = &mut part.part {
            call.input_json = "{}".into();
        }
    }
    update(&mut client, 2, calls).await;
    client
        .append(append("chat", [assistant("seen")]))
        .await
        .expect("said");
    let shown = window(&mut client).await;
    assert!(
        !shown.contains("abandoned") && shown.contains("result of a"),
        "{shown}"
    );
}

#[tokio::test]
async fn idempotency_key_of_redacted_append_is_still_known() {
    let mut daemon = Daemon::start().await;
    let mut client = daemon.sessions();
    let said = keyed("chat", "m1", [user(SECRET)]);
    client.append(said.clone()).await.expect("said");
    update(&mut client, 1, user("x")).await;
    daemon.kill9().await;
    daemon.restart().await;
    client = daemon.sessions();
    let again = client.append(said).await.expect("known").into_inner();
    assert!(again.duplicate);
    assert_eq!(texts(&live(&mut client, "chat").await), ["x"]);
}
