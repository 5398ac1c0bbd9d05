//! Session lifetime: TTL and session caps.

use memoird_proto::v1::{EndReason, GetSessionRequest, SweepNowRequest, UpdateSessionRequest};
use tonic::Code;

use crate::harness::{Daemon, Sessions, Setup, eventually, journal, say, stats};

/// The generation of a live session.
async fn generation(client: &mut Sessions, session: &str) -> Option<String> {
    let request = GetSessionRequest {
        session_id: session.to_owned(),
        ..Default::default()
    };
    match client.get_session(request).await {
        Ok(answer) => Some(answer.into_inner().session.expect("a session").generation),
        Err(status) if status.code() == Code::NotFound => None,
        Err(status) => panic!("{status:?}"),
    }
}

#[tokio::test]
async fn expired_sessions_are_swept_and_counted() {
    let short = "short_term: { session_ttl: 200ms, sweep_interval: 50ms }";
    let daemon = Daemon::with(Setup::default().section(short)).await;
    let (mut client, mut admin) = (daemon.sessions(), daemon.admin());
    for number in 0..5 {
        say(&mut client, &format!("s{number}"), "hi").await;
    }
    let seen = eventually("all five are swept", async || {
        Some(stats(&mut admin).await).filter(|stats| stats.expired == 5)
    });
    let seen = seen.await;
    assert_eq!(
        (seen.sessions_live, seen.turns_live, seen.bytes_live),
        (0, 0, 0)
    );
    assert_eq!(seen.sessions_created, 5);
}

#[tokio::test]
async fn sweep_now_returns_the_sessions_it_ended() {
    let lazy = "short_term: { session_ttl: 200ms, sweep_interval: 1h }";
    let daemon = Daemon::with(Setup::default().section(lazy)).await;
    let (mut client, mut admin) = (daemon.sessions(), daemon.admin());
    let first = say(&mut client, "a/b\n", "hi")
        .await
        .session
        .expect("a session");
    let swept = eventually("the sweep finds it", async || {
        let answer = admin
            .sweep_now(SweepNowRequest::default())
            .await
            .expect("swept")
            .into_inner();
        (answer.ended > 0).then_some(answer)
    })
    .await;
    assert_eq!((swept.ended, swept.sessions.len()), (1, 1));
    let ended = &swept.sessions[0];
    assert_eq!((&*ended.tenant, &*ended.session_id), ("default", "a/b\n"));
    assert_eq!(
        (&ended.generation, ended.reason()),
        (&first.generation, EndReason::Expired)
    );
}

#[tokio::test]
async fn tenant_at_session_cap_evicts_longest_idle_session() {
    let capped = Setup::default().section("short_term: { max_sessions: 3 }");
    let daemon = Daemon::with(capped).await;
    let (mut client, mut admin) = (daemon.sessions(), daemon.admin());
    for session in ["a", "b", "c"] {
        say(&mut client, session, "hi").await;
    }
    // Appends and patches touch a session. Reading `b` does not.
    say(&mut client, "a", "again").await;
    let patch = UpdateSessionRequest {
        session_id: "c".into(),
        state_patch_json: "{}".into(),
        expected_state_version: None,
        ..UpdateSessionRequest::default()
    };
    client.update_session(patch).await.expect("patched");
    assert!(generation(&mut client, "b").await.is_some());
    say(&mut client, "d", "hi").await;
    assert!(
        generation(&mut client, "b").await.is_none(),
        "the longest idle one is gone"
    );
    for session in ["a", "c", "d"] {
        assert!(
            generation(&mut client, session).await.is_some(),
            "{session}"
        );
    }
    let seen = stats(&mut admin).await;
    assert_eq!((seen.sessions_live, seen.evicted), (3, 1));
    assert_eq!(
        journal(&mut client, "b", "").await.len(),
        1,
        "its turns are in the journal"
    );
}
