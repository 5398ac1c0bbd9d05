//! Restarts: live sessions continue, and those that expired in the meantime are gone.

use memoird_proto::v1::{
    EndSessionRequest, GetSessionRequest, GetStatsRequest, ListSessionsRequest,
    ResetSessionRequest, SessionInfo, UpdateSessionRequest,
};
use tonic::Code;

use crate::harness::{
    Daemon, Sessions, Setup, append, eventually, journal, keyed, live, refused, say, text_of,
    tool_results, tool_uses, user, wall_ms,
};

async fn session_info(client: &mut Sessions, session: &str) -> SessionInfo {
    let request = GetSessionRequest {
        session_id: session.into(),
        ..Default::default()
    };
    let answer = client
        .get_session(request)
        .await
        .expect("it lives")
        .into_inner();
    answer.session.expect("a session")
}

async fn patch(client: &mut Sessions, json: &str) -> String {
    let request = UpdateSessionRequest {
        session_id: "chat".into(),
        state_patch_json: json.into(),
        expected_state_version: None,
        ..UpdateSessionRequest::default()
    };
    client
        .update_session(request)
        .await
        .expect("patched")
        .into_inner()
        .session
        .expect("a session")
        .state_json
}

#[tokio::test]
async fn restart_restores_sessions_state_and_idempotency_keys() {
    let mut daemon = Daemon::start().await;
    let mut client = daemon.sessions();
    let mut first = keyed("chat", "first", [user("go"), tool_uses(&["a"])]);
    first.subject = "user:7".into();
    client.append(first.clone()).await.expect("done");
    patch(&mut client, r#"{"mood":"good","n":1.50}"#).await;
    patch(&mut client, r#"{"count":1}"#).await;
    let mut before = session_info(&mut client, "chat").await;
    let turns = live(&mut client, "chat").await;
    for how in ["kill -9", "SIGTERM"] {
        match how {
            "kill -9" => daemon.kill9().await,
            _ => daemon.stop().await,
        }
        daemon.restart().await;
        client = daemon.sessions();
        let after = session_info(&mut client, "chat").await;
        let timeless = |info: &SessionInfo| SessionInfo {
            last_access: None,
            expires_at: None,
            ..info.clone()
        };
        assert_eq!(timeless(&after), timeless(&before), "{how}");
        let seconds = |info: &SessionInfo| info.last_access.expect("a time").seconds;
        assert!(
            (seconds(&after) - seconds(&before)).abs() <= 2,
            "{how}: {after:?}"
        );
        assert_eq!(live(&mut client, "chat").await, turns, "{how}");
        let again = client
            .append(first.clone())
            .await
            .expect("answered")
            .into_inner();
        assert!(again.duplicate, "{how}: a key is remembered");
        // The repetition was a use as well.
        before = session_info(&mut client, "chat").await;
    }
    let other = keyed("chat", "first", [user("something else")]);
    let reason = "IDEMPOTENCY_KEY_REUSED";
    refused(client.append(other).await, Code::InvalidArgument, reason);
    assert_eq!(
        patch(&mut client, "{}").await,
        r#"{"mood":"good","n":1.50,"count":1}"#
    );
    assert_eq!(session_info(&mut client, "chat").await.state_version, 3);
    // The call is still pending, and seqs continue.
    let answer = client
        .append(append("chat", [tool_results(&["a"])]))
        .await
        .expect("done");
    assert_eq!(answer.into_inner().first_seq, 3);
}

#[tokio::test]
async fn ended_and_reset_sessions_stay_ended_after_restart() {
    let mut daemon = Daemon::start().await;
    let mut client = daemon.sessions();
    let old = client
        .append(keyed("ended", "k", [user("old")]))
        .await
        .expect("done")
        .into_inner();
    let old = old.session.expect("a session").generation;
    say(&mut client, "reset", "old").await;
    let end = EndSessionRequest {
        session_id: "ended".into(),
        ..EndSessionRequest::default()
    };
    client.end_session(end).await.expect("ended");
    let reset = ResetSessionRequest {
        session_id: "reset".into(),
        run_hooks: false,
        ..ResetSessionRequest::default()
    };
    let fresh = client
        .reset_session(reset)
        .await
        .expect("reset")
        .into_inner();
    daemon.kill9().await;
    daemon.restart().await;
    let mut client = daemon.sessions();
    let request = GetSessionRequest {
        session_id: "ended".into(),
        ..Default::default()
    };
    refused(
        client.get_session(request).await,
        Code::NotFound,
        "SESSION_NOT_FOUND",
    );
    assert_eq!(
        text_of(&journal(&mut client, "ended", &old).await[0]),
        "old"
    );
    let again = client
        .append(keyed("ended", "k", [user("old")]))
        .await
        .expect("answered");
    assert!(
        again.into_inner().duplicate,
        "a key counts across ends and restarts"
    );
    let reset = session_info(&mut client, "reset").await;
    assert_eq!(
        Some(reset.generation),
        fresh.session.map(|session| session.generation)
    );
    assert_eq!(reset.history_turns, 0);
}

#[tokio::test]
async fn lru_order_survives_restart_for_eviction() {
    let capped = Setup::default().section("short_term: { max_sessions: 3 }");
    let mut daemon = Daemon::with(capped).await;
    let mut client = daemon.sessions();
    for session in ["a", "b", "c", "a"] {
        say(&mut client, session, "hi").await;
        // Times of use have millisecond precision.
        let said_ms = wall_ms();
        eventually("the next one", async || (wall_ms() > said_ms).then_some(())).await;
    }
    daemon.kill9().await;
    daemon.restart().await;
    let mut client = daemon.sessions();
    let list = client
        .list_sessions(ListSessionsRequest::default())
        .await
        .expect("a list");
    let ids: Vec<_> = list
        .into_inner()
        .sessions
        .into_iter()
        .map(|s| s.session_id)
        .collect();
    assert_eq!(ids, ["a", "c", "b"]);
    say(&mut client, "d", "hi").await;
    let gone = GetSessionRequest {
        session_id: "b".into(),
        ..Default::default()
    };
    refused(
        client.get_session(gone).await,
        Code::NotFound,
        "SESSION_NOT_FOUND",
    );
}

#[tokio::test]
async fn session_that_expires_while_daemon_is_down_is_gone_at_start() {
    let setup = |ttl: &str| {
        Setup::default().section(format!(
            "short_term: {{ session_ttl: {ttl}, sweep_interval: 1h }}"
        ))
    };
    let mut daemon = Daemon::with(setup("1s")).await;
    let mut client = daemon.sessions();
    let session = say(&mut client, "chat", "hi")
        .await
        .session
        .expect("a session");
    daemon.kill9().await;
    let expiry = session.expires_at.expect("a time");
    eventually("its time has come", async || {
        (wall_ms() > expiry.seconds * 1_000 + 1_100).then_some(())
    })
    .await;
    daemon.restart().await;
    let (mut client, mut admin) = (daemon.sessions(), daemon.admin());
    let gone = GetSessionRequest {
        session_id: "chat".into(),
        ..Default::default()
    };
    refused(
        client.get_session(gone).await,
        Code::NotFound,
        "SESSION_NOT_FOUND",
    );
    let ended = eventually("the sweeper has ended it", async || {
        let asked = admin.get_stats(GetStatsRequest::default()).await;
        let stats = asked.expect("stats").into_inner();
        (stats.expired == 1).then_some(stats)
    });
    let ended = ended.await;
    assert_eq!((ended.sessions_live, ended.turns_live), (0, 0));
    assert_eq!(
        journal(&mut client, "chat", &session.generation)
            .await
            .len(),
        1
    );
    assert_eq!(say(&mut client, "chat", "again").await.first_seq, 1);
}

#[tokio::test]
async fn many_sessions_are_restored_after_kill() {
    let mut daemon = Daemon::start().await;
    let mut calls = tokio::task::JoinSet::new();
    let client = daemon.sessions();
    for number in 0..500 {
        let mut client = client.clone();
        let turns: Vec<_> = (0..4)
            .map(|turn| user(&format!("{number}/{turn}")))
            .collect();
        calls.spawn(async move { client.append(append(&format!("s{number}"), turns)).await });
    }
    assert!(calls.join_all().await.iter().all(Result::is_ok));
    daemon.kill9().await;
    daemon.restart().await;
    let (mut client, mut admin) = (daemon.sessions(), daemon.admin());
    let stats = admin
        .get_stats(GetStatsRequest::default())
        .await
        .expect("stats")
        .into_inner();
    assert_eq!((stats.sessions_live, stats.turns_live), (500, 2_000));
    for number in (0..500).step_by(50) {
        let turns = live(&mut client, &format!("s{number}")).await;
        assert_eq!(text_of(&turns[3]), format!("{number}/3"));
    }
}
