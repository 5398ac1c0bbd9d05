//! Sessions copied from others: forks, and restored generations.

use memoird_proto::v1::{
    BuildContextRequest, CopySessionRequest, CopySessionResponse, EndSessionRequest,
    GetSessionRequest, RewindSessionRequest, Turn, UpdateSessionRequest,
};
use tonic::{Code, Response, Status};

use crate::harness::{
    Daemon, Sessions, Setup, append, assistant, journal, live, refused, say, text_of, tool_results,
    tool_uses, user,
};

fn copy(target: &str, through_seq: u64) -> CopySessionRequest {
    CopySessionRequest {
        session_id: "chat".into(),
        target_session_id: target.into(),
        through_seq,
        ..CopySessionRequest::default()
    }
}

async fn try_copy(
    client: &mut Sessions,
    request: CopySessionRequest,
) -> Result<Response<CopySessionResponse>, Status> {
    client.copy_session(request).await
}

async fn copied(client: &mut Sessions, request: CopySessionRequest) -> CopySessionResponse {
    let answer = try_copy(client, request).await;
    answer.expect("it is copied").into_inner()
}

fn texts(turns: &[Turn]) -> Vec<&str> {
    turns.iter().map(text_of).collect()
}

/// The state, the subject, and the label `topic`.
async fn state_of(client: &mut Sessions, session: &str) -> (String, String, String) {
    let request = GetSessionRequest {
        session_id: session.into(),
        include_state: true,
    };
    let answer = client.get_session(request).await.expect("it lives");
    let mut session = answer.into_inner().session.expect("a session");
    let topic = session.labels.remove("topic").unwrap_or_default();
    (session.state_json, session.subject, topic)
}

async fn fill(client: &mut Sessions) {
    let mut said = append(
        "chat",
        [user("1"), assistant("2"), user("3"), assistant("4")],
    );
    said.subject = "ann".into();
    said.labels.insert("topic".into(), "tea".into());
    said.state_patch_json = r#"{"step":2,"none":null}"#.into();
    client.append(said).await.expect("said");
    let keep_nulls = UpdateSessionRequest {
        session_id: "chat".into(),
        state_json: r#"{"step":2,"none":null}"#.into(),
        ..UpdateSessionRequest::default()
    };
    client.update_session(keep_nulls).await.expect("patched");
}

#[tokio::test]
async fn fork_copies_turns_state_and_subject_and_then_diverges() {
    for durability in ["sync", "interval", "off"] {
        let setup = format!("journal: {{ durability: {durability} }}");
        let mut daemon = Daemon::with(Setup::default().section(setup)).await;
        let mut client = daemon.sessions();
        fill(&mut client).await;
        let pop = RewindSessionRequest {
            session_id: "chat".into(),
            after_seq: 2,
            turns: vec![user("3 again"), assistant("4 again")],
            ..RewindSessionRequest::default()
        };
        client.rewind_session(pop).await.expect("edited");
        let fork = copied(&mut client, copy("fork", 5)).await;
        assert_eq!(
            (fork.turns, fork.dropped_turns, fork.duplicate),
            (3, 0, false)
        );
        assert_eq!(fork.session.expect("a session").last_seq, 3);
        let expected = ["1", "2", "3 again"];
        assert_eq!(texts(&live(&mut client, "fork").await), expected);
        let (state, subject, topic) = state_of(&mut client, "fork").await;
        assert_eq!(
            (&*state, &*subject, &*topic),
            (r#"{"step":2,"none":null}"#, "ann", "tea")
        );
        say(&mut client, "fork", "its own").await;
        assert_eq!(live(&mut client, "chat").await.len(), 4);
        let all = copied(&mut client, copy("all", 0)).await;
        assert_eq!(all.turns, 4);
        if durability == "off" {
            continue;
        }
        match durability {
            "sync" => daemon.kill9().await,
            _ => daemon.stop().await,
        }
        daemon.restart().await;
        client = daemon.sessions();
        assert_eq!(
            texts(&journal(&mut client, "fork", "").await)[..3],
            expected
        );
        let request = BuildContextRequest {
            session_id: "fork".into(),
            ..BuildContextRequest::default()
        };
        let window = client.build_context(request).await.expect("a window");
        assert!(!window.into_inner().report.expect("a report").degraded);
    }
}

#[tokio::test]
async fn ended_generation_is_restored_by_copy() {
    let daemon = Daemon::start().await;
    let mut client = daemon.sessions();
    fill(&mut client).await;
    let end = EndSessionRequest {
        session_id: "chat".into(),
        ..EndSessionRequest::default()
    };
    let ended = client.end_session(end).await.expect("ended").into_inner();
    let back = CopySessionRequest {
        generation: ended.session.expect("a session").generation,
        ..copy("chat", 0)
    };
    let made = copied(&mut client, back.clone()).await;
    let generation = made.session.expect("a session").generation;
    assert_ne!(generation, back.generation);
    assert_eq!(
        texts(&live(&mut client, "chat").await),
        ["1", "2", "3", "4"]
    );
    let (state, subject, topic) = state_of(&mut client, "chat").await;
    assert_eq!(
        (&*state, &*subject, &*topic),
        (r#"{"step":2,"none":null}"#, "ann", "tea")
    );

    let lives = try_copy(&mut client, back.clone()).await;
    refused(lives, Code::AlreadyExists, "TARGET_LIVES");
    let replaced = CopySessionRequest {
        replace_existing: true,
        through_seq: 2,
        ..back
    };
    copied(&mut client, replaced).await;
    assert_eq!(texts(&live(&mut client, "chat").await), ["1", "2"]);
    assert_eq!(journal(&mut client, "chat", &generation).await.len(), 4);
}

#[tokio::test]
async fn copy_with_idempotency_key_is_made_once() {
    let mut daemon = Daemon::start().await;
    let mut client = daemon.sessions();
    fill(&mut client).await;
    let named = CopySessionRequest {
        idempotency_key: "fork 1".into(),
        ..copy("fork", 2)
    };
    let first = copied(&mut client, named.clone()).await;
    say(&mut client, "fork", "more").await;
    for _ in 0..2 {
        let again = copied(&mut client, named.clone()).await;
        assert!(again.duplicate);
        assert_eq!(
            (again.turns, live(&mut client, "fork").await.len()),
            (first.turns, 3)
        );
        let other = CopySessionRequest {
            through_seq: 3,
            ..named.clone()
        };
        let other = try_copy(&mut client, other).await;
        refused(other, Code::InvalidArgument, "IDEMPOTENCY_KEY_REUSED");
        daemon.kill9().await;
        daemon.restart().await;
        client = daemon.sessions();
    }
}

#[tokio::test]
async fn copy_obeys_history_caps_and_keeps_tool_units_whole() {
    let cap = "short_term: { max_history_turns: 4 }";
    let daemon = Daemon::with(Setup::default().section(cap)).await;
    let mut client = daemon.sessions();
    for number in 0..3 {
        let (id, ids) = (format!("call {number}"), [&*format!("call {number}")]);
        let turns = [user(&id), tool_uses(&ids), tool_results(&ids)];
        client.append(append("chat", turns)).await.expect("said");
    }
    let fork = copied(&mut client, copy("fork", 0)).await;
    assert_eq!(fork.turns, 9);
    let (one, two) = (
        live(&mut client, "chat").await,
        live(&mut client, "fork").await,
    );
    assert_eq!(two, one);
    assert_eq!(fork.dropped_turns, 9 - two.len() as u64);
    // The call at the end is still pending.
    copied(&mut client, copy("waits", 8)).await;
    let late = append("waits", [tool_results(&["call 2"])]);
    client.append(late).await.expect("its result");
}

#[tokio::test]
async fn invalid_copy_is_refused_and_creates_nothing() {
    let daemon = Daemon::start().await;
    let mut client = daemon.sessions();
    let (bad, none) = (Code::InvalidArgument, Code::NotFound);
    let absent = try_copy(&mut client, copy("fork", 0)).await;
    refused(absent, none, "GENERATION_NOT_FOUND");
    fill(&mut client).await;
    say(&mut client, "lives", "here").await;
    let with = |change: fn(&mut CopySessionRequest)| {
        let mut request = copy("fork", 0);
        change(&mut request);
        request
    };
    for (request, code, reason) in [
        (copy("lives", 0), Code::AlreadyExists, "TARGET_LIVES"),
        (copy("chat", 0), Code::AlreadyExists, "TARGET_LIVES"),
        (copy("", 0), bad, "ID_INVALID"),
        (copy(&"x".repeat(257), 0), bad, "ID_INVALID"),
        (with(|it| it.session_id = String::new()), bad, "ID_INVALID"),
        (
            with(|it| it.generation = "x".into()),
            bad,
            "GENERATION_INVALID",
        ),
        (
            with(|it| it.generation = "01ARZ3NDEKTSV4RRFFQ69G5FAV".into()),
            none,
            "GENERATION_NOT_FOUND",
        ),
        (
            with(|it| it.idempotency_key = "k".repeat(257)),
            bad,
            "ID_INVALID",
        ),
    ] {
        refused(try_copy(&mut client, request).await, code, reason);
    }
    assert_eq!(texts(&live(&mut client, "lives").await), ["here"]);
    let fork = GetSessionRequest {
        session_id: "fork".into(),
        ..GetSessionRequest::default()
    };
    refused(client.get_session(fork).await, none, "SESSION_NOT_FOUND");
}
