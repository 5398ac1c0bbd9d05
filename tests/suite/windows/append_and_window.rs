//! A window and the append before it in one round trip.

use memoird_proto::v1::{
    AppendRequest, BuildContextRequest, MessageFormat, ModelUsage, ResetSessionRequest,
};
use tonic::Code;

use super::bot::{ask, bytes_of, outline, report, seqs, window_request, window_request_with};
use super::plain;
use crate::harness::{
    Daemon, Setup, append, assistant, end, journal, live, refused, say as append_only, text_of,
    user,
};

fn with(
    request: BuildContextRequest,
    change: impl FnOnce(&mut AppendRequest),
) -> BuildContextRequest {
    let mut append = request.append.clone().expect("an append");
    change(&mut append);
    BuildContextRequest {
        append: Some(append),
        ..request
    }
}

#[tokio::test]
async fn window_with_append_includes_it_and_starts_session() {
    let daemon = Daemon::with(plain()).await;
    let mut client = daemon.sessions();
    let first = ask(&mut client, window_request_with([user("hello")])).await;
    assert_eq!(
        (outline(&first).as_str(), text_of(&first.turns[0])),
        ("1", "hello")
    );
    let session = first.session.as_ref().expect("a session");
    assert_eq!((session.session_id.as_str(), session.last_seq), ("chat", 1));
    assert_eq!(
        (first.messages_json.as_str(), first.system.as_str()),
        ("", "")
    );
    assert_eq!(report(&first).turns_included, 1);
    let more = ask(
        &mut client,
        window_request_with([assistant("yes?"), user("well")]),
    )
    .await;
    assert_eq!(outline(&more), "1 2 3");
    assert_eq!(
        live(&mut client, "chat").await,
        more.turns,
        "all of it, as it was said"
    );
    assert_eq!(
        ask(&mut client, window_request()).await.turns,
        more.turns,
        "and without an append"
    );
}

#[tokio::test]
async fn window_with_duplicate_append_appends_nothing() {
    let daemon = Daemon::with(plain()).await;
    let mut client = daemon.sessions();
    let request = with(window_request_with([user("hello")]), |append| {
        append.idempotency_key = "one".into();
    });
    let first = bytes_of(&daemon, &request).await;
    assert_eq!(bytes_of(&daemon, &request).await, first);
    append_only(&mut client, "chat", "later").await;
    let again = ask(&mut client, request.clone()).await;
    assert_eq!(outline(&again), "1 2", "the window is of now");
    assert_eq!(live(&mut client, "chat").await.len(), 2);
    let other = with(window_request_with([user("goodbye")]), |append| {
        append.idempotency_key = "one".into();
    });
    let answer = client.build_context(other).await;
    refused(answer, Code::InvalidArgument, "IDEMPOTENCY_KEY_REUSED");
}

#[tokio::test]
async fn window_append_is_refused_for_the_same_reasons_as_append() {
    let daemon = Daemon::with(plain()).await;
    let mut client = daemon.sessions();
    append_only(&mut client, "chat", "hello").await;
    let stale = with(window_request_with([user("a")]), |append| {
        append.expected_seq = Some(7);
    });
    refused(
        client.build_context(stale).await,
        Code::Aborted,
        "STALE_SEQ",
    );
    let ulid = "01ARZ3NDEKTSV4RRFFQ69G5FAV";
    let stale = with(window_request_with([user("a")]), |append| {
        append.expected_generation = ulid.into();
    });
    refused(
        client.build_context(stale).await,
        Code::Aborted,
        "STALE_GENERATION",
    );
    let orphan = window_request_with([crate::harness::tool_results(&["nobody"])]);
    refused(
        client.build_context(orphan).await,
        Code::InvalidArgument,
        "TOOL_USE_UNKNOWN",
    );
    let wrong = with(window_request_with([]), |append| {
        append.messages_json =
            r#"[{"role":"user","content":"a"},{"role":"user","content":7}]"#.into();
        append.format = MessageFormat::Openai.into();
    });
    let said = refused(
        client.build_context(wrong).await,
        Code::InvalidArgument,
        "MESSAGES_INVALID",
    );
    assert!(said.contains("[1].content"), "{said}");
    assert_eq!(
        live(&mut client, "chat").await.len(),
        1,
        "nothing was appended"
    );
    let current = with(window_request_with([user("b")]), |append| {
        append.expected_seq = Some(1);
    });
    assert_eq!(outline(&ask(&mut client, current).await), "1 2");
}

#[tokio::test]
async fn window_after_end_or_reset_shows_new_generation_only() {
    let daemon = Daemon::with(plain()).await;
    let mut client = daemon.sessions();
    let old = ask(&mut client, window_request_with([user("old")]))
        .await
        .session
        .expect("a session");
    let request = ResetSessionRequest {
        session_id: "chat".into(),
        ..Default::default()
    };
    client.reset_session(request).await.expect("reset");
    let new = ask(&mut client, window_request_with([user("new")])).await;
    assert_eq!((seqs(&new), text_of(&new.turns[0])), (vec![1], "new"));
    assert_eq!(
        report(&new).stable_prefix_tokens,
        0,
        "nothing of it was sent before"
    );
    end(&mut client, "chat").await;
    refused(
        client.build_context(window_request()).await,
        Code::NotFound,
        "SESSION_NOT_FOUND",
    );
    let last = ask(&mut client, window_request_with([user("last")])).await;
    assert_eq!((seqs(&last), text_of(&last.turns[0])), (vec![1], "last"));
    assert_eq!(journal(&mut client, "chat", &old.generation).await.len(), 1);
}

#[tokio::test]
async fn session_of_another_tenant_has_no_window() {
    let daemon = Daemon::with(plain().two_tenants("", "")).await;
    let mut alpha = daemon.sessions_of(Setup::ALPHA);
    let mut beta = daemon.sessions_of(Setup::BETA);
    alpha
        .append(append("chat", [user("a secret")]))
        .await
        .expect("appended");
    for request in [
        window_request(),
        BuildContextRequest {
            peek: true,
            ..window_request()
        },
    ] {
        refused(
            beta.build_context(request).await,
            Code::NotFound,
            "SESSION_NOT_FOUND",
        );
    }
    let own = ask(&mut beta, window_request_with([user("mine")])).await;
    assert_eq!((seqs(&own), text_of(&own.turns[0])), (vec![1], "mine"));
    assert_eq!(
        text_of(&ask(&mut alpha, window_request()).await.turns[0]),
        "a secret"
    );
    refused(
        daemon.sessions().build_context(window_request()).await,
        Code::Unauthenticated,
        "NO_KEY",
    );
}

#[tokio::test]
async fn usage_without_earlier_window_is_accepted_and_ignored() {
    let daemon = Daemon::with(plain()).await;
    let usage = ModelUsage {
        model: "any".into(),
        input_tokens: u64::MAX,
        output_tokens: 1,
        cache_read_tokens: u64::MAX,
        cache_creation_tokens: 1,
    };
    let request = with(window_request_with([user("hello")]), |append| {
        append.usage = Some(usage);
    });
    let window = ask(&mut daemon.sessions(), request).await;
    assert!(
        (report(&window).token_factor - 1.0).abs() < 1e-9,
        "{window:?}"
    );
}
