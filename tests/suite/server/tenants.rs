//! Tenant isolation: no tenant can read, change or end another's sessions.

use memoird_proto::v1::{
    CompactSessionRequest, CopySessionRequest, EndSessionRequest, EraseSessionRequest,
    ErasedCounts, GetHistoryRequest, GetSessionRequest, GetStatsRequest, HistoryScope,
    ListSessionsRequest, ResetSessionRequest, ResolveRecallToolRequest, RewindSessionRequest,
    SweepNowRequest, UndoCompactionRequest, UpdateSessionRequest, UpdateTurnRequest,
};
use tonic::Code;

use crate::harness::{
    Daemon, Sessions, Setup, eventually, journal, keyed, live, refused, say, text_of, user,
};

async fn texts(client: &mut Sessions, session: &str) -> Vec<String> {
    live(client, session)
        .await
        .iter()
        .map(|turn| text_of(turn).to_owned())
        .collect()
}

/// Tries every rpc with the key of another tenant.
async fn check_session_is_invisible(other_tenant: &mut Sessions, session: &str, generation: &str) {
    let id = || session.to_owned();
    let (code, reason) = (Code::NotFound, "SESSION_NOT_FOUND");
    let look = GetSessionRequest {
        session_id: id(),
        ..Default::default()
    };
    refused(other_tenant.get_session(look).await, code, reason);
    for (scope, named, reason) in [
        (HistoryScope::Live, "", "SESSION_NOT_FOUND"),
        (HistoryScope::Live, generation, "SESSION_NOT_FOUND"),
        (HistoryScope::Journal, "", "GENERATION_NOT_FOUND"),
        (HistoryScope::Journal, generation, "GENERATION_NOT_FOUND"),
    ] {
        let read = GetHistoryRequest {
            session_id: id(),
            generation: named.into(),
            scope: scope.into(),
            ..GetHistoryRequest::default()
        };
        refused(other_tenant.get_history(read).await, code, reason);
    }
    let patch = UpdateSessionRequest {
        session_id: id(),
        state_patch_json: r#"{"by":"a stranger"}"#.into(),
        expected_state_version: None,
        ..UpdateSessionRequest::default()
    };
    refused(other_tenant.update_session(patch).await, code, reason);
    for keep_exchanges in [None, Some(0)] {
        let compact = CompactSessionRequest {
            session_id: id(),
            keep_exchanges,
        };
        refused(other_tenant.compact_session(compact).await, code, reason);
    }
    let rewind = RewindSessionRequest {
        session_id: id(),
        ..RewindSessionRequest::default()
    };
    refused(other_tenant.rewind_session(rewind).await, code, reason);
    let update = UpdateTurnRequest {
        session_id: id(),
        seq: 1,
        turn: Some(user("by a stranger")),
        ..UpdateTurnRequest::default()
    };
    refused(other_tenant.update_turn(update).await, code, reason);
    for named in ["", generation] {
        let copy = CopySessionRequest {
            session_id: id(),
            generation: named.into(),
            target_session_id: "taken".into(),
            ..CopySessionRequest::default()
        };
        let copied = other_tenant.copy_session(copy).await;
        refused(copied, code, "GENERATION_NOT_FOUND");
    }
    let read = ResolveRecallToolRequest {
        session_id: id(),
        arguments_json: "{\"from_seq\": 1}".into(),
        ..ResolveRecallToolRequest::default()
    };
    refused(other_tenant.resolve_recall_tool(read).await, code, reason);
    let undo = UndoCompactionRequest { session_id: id() };
    refused(other_tenant.undo_compaction(undo).await, code, reason);
    let reset = ResetSessionRequest {
        session_id: id(),
        run_hooks: true,
        ..ResetSessionRequest::default()
    };
    refused(other_tenant.reset_session(reset).await, code, reason);
    let end = EndSessionRequest {
        session_id: id(),
        ..EndSessionRequest::default()
    };
    refused(other_tenant.end_session(end).await, code, reason);
    for named in ["", generation] {
        let erase = EraseSessionRequest {
            session_id: id(),
            generation: named.into(),
        };
        let erased = other_tenant.erase_session(erase).await.expect("an answer");
        let erasure = erased.into_inner().erasure.expect("an erasure");
        assert_eq!(erasure.erased, Some(ErasedCounts::default()));
    }
    let mut into = keyed(session, "k", [user("into your life")]);
    into.expected_generation = generation.into();
    refused(
        other_tenant.append(into).await,
        Code::Aborted,
        "STALE_GENERATION",
    );
    let list = other_tenant
        .list_sessions(ListSessionsRequest::default())
        .await
        .expect("a list");
    assert!(list.into_inner().sessions.is_empty());
}

#[tokio::test]
async fn same_session_id_of_two_tenants_is_two_sessions() {
    let daemon = Daemon::with(Setup::default().two_tenants("", "")).await;
    let mut alpha = daemon.sessions_of(Setup::ALPHA);
    let mut beta = daemon.sessions_of(Setup::BETA);
    let made = alpha
        .append(keyed("chat", "k", [user("alpha 1")]))
        .await
        .expect("done");
    let generation = made.into_inner().session.expect("a session").generation;
    check_session_is_invisible(&mut beta, "chat", &generation).await;
    assert_eq!(texts(&mut alpha, "chat").await, ["alpha 1"]);

    // The same idempotency key is independent in another tenant.
    let made = beta
        .append(keyed("chat", "k", [user("beta 1")]))
        .await
        .expect("done")
        .into_inner();
    assert!(!made.duplicate);
    assert_ne!(made.session.expect("a session").generation, generation);
    say(&mut beta, "chat", "beta 2").await;
    assert_eq!(texts(&mut alpha, "chat").await, ["alpha 1"]);
    assert_eq!(texts(&mut beta, "chat").await, ["beta 1", "beta 2"]);
    let read = GetHistoryRequest {
        session_id: "chat".into(),
        generation: generation.clone(),
        scope: HistoryScope::Journal.into(),
        ..GetHistoryRequest::default()
    };
    let code = Code::NotFound;
    refused(beta.get_history(read).await, code, "GENERATION_NOT_FOUND");

    let end = EndSessionRequest {
        session_id: "chat".into(),
        ..EndSessionRequest::default()
    };
    beta.end_session(end).await.expect("its own");
    assert_eq!(texts(&mut alpha, "chat").await, ["alpha 1"]);
    assert_eq!(journal(&mut alpha, "chat", &generation).await.len(), 1);
}

#[tokio::test]
async fn list_sessions_and_page_tokens_are_isolated_by_tenant() {
    let daemon = Daemon::with(Setup::default().two_tenants("", "")).await;
    let mut alpha = daemon.sessions_of(Setup::ALPHA);
    let mut beta = daemon.sessions_of(Setup::BETA);
    for number in 0..4 {
        say(&mut alpha, &format!("a{number}"), "hi").await;
        say(&mut beta, &format!("b{number}"), "hi").await;
    }
    let page = |token: &str| ListSessionsRequest {
        page_size: 2,
        page_token: token.into(),
        ..ListSessionsRequest::default()
    };
    let first = alpha
        .list_sessions(page(""))
        .await
        .expect("a page")
        .into_inner();
    let ids: Vec<_> = first
        .sessions
        .iter()
        .map(|session| &*session.session_id)
        .collect();
    assert_eq!(ids, ["a3", "a2"]);
    // Another tenant's page token only pages through the caller's own list.
    let other = beta
        .list_sessions(page(&first.next_page_token))
        .await
        .expect("a page");
    for session in other.into_inner().sessions {
        assert!(session.session_id.starts_with('b'));
    }
}

#[tokio::test]
async fn tenant_limits_override_global_limits() {
    let setup = Setup::default()
        .section("short_term: { max_history_turns: 8, max_sessions: 6, session_ttl: 1h }")
        .two_tenants(
            "max_history_turns: 2, max_sessions: 2",
            "max_history_bytes: 2KiB",
        );
    let daemon = Daemon::with(setup).await;
    let mut alpha = daemon.sessions_of(Setup::ALPHA);
    let mut beta = daemon.sessions_of(Setup::BETA);
    for number in 0..12 {
        say(&mut alpha, "chat", &format!("{number}")).await;
        say(&mut beta, "chat", &format!("{number}")).await;
    }
    assert_eq!(texts(&mut alpha, "chat").await, ["0", "10", "11"]);
    assert_eq!(texts(&mut beta, "chat").await.len(), 9, "as all have it");
    let code = Code::InvalidArgument;
    let large = keyed("chat", "", [user(&"x".repeat(3_000))]);
    alpha.append(large.clone()).await.expect("as all have it");
    refused(beta.append(large).await, code, "TURN_TOO_LARGE");
}

#[tokio::test]
async fn stats_and_sweeps_can_be_limited_to_one_tenant() {
    let setup = Setup::default()
        .section("short_term: { session_ttl: 100ms, sweep_interval: 1h }")
        .two_tenants("", "");
    let daemon = Daemon::with(setup).await;
    say(&mut daemon.sessions_of(Setup::ALPHA), "chat", "hi").await;
    say(&mut daemon.sessions_of(Setup::BETA), "chat", "hi").await;
    let mut admin = daemon.admin_of(Setup::ADMIN);
    let swept = eventually("beta's session is swept", async || {
        let sweep = SweepNowRequest {
            tenant: "beta".into(),
        };
        let answer = admin.sweep_now(sweep).await.expect("swept").into_inner();
        (answer.ended > 0).then_some(answer)
    });
    let swept = swept.await;
    assert_eq!((swept.ended, &*swept.sessions[0].tenant), (1, "beta"));
    for (tenant, live, expired) in [("alpha", 1, 0), ("beta", 0, 1), ("", 1, 1)] {
        let request = GetStatsRequest {
            tenant: tenant.into(),
        };
        let stats = admin.get_stats(request).await.expect("stats").into_inner();
        assert_eq!(
            (stats.sessions_live, stats.expired),
            (live, expired),
            "{tenant:?}"
        );
        assert_eq!(stats.tenants.len(), if tenant.is_empty() { 2 } else { 1 });
    }
}
