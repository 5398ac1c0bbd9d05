//! Requesting a window prolongs the session; a peek leaves no trace.

use memoird_proto::v1::{BuildContextRequest, GetSessionRequest, SessionInfo};

use super::bot::{ask, budget, bytes_of, report, window_request, window_request_with, words};
use super::plain;
use crate::harness::{Daemon, Sessions, append, assistant, eventually, http_get, user, wall_ms};

fn peek() -> BuildContextRequest {
    BuildContextRequest {
        peek: true,
        ..window_request()
    }
}

async fn info(client: &mut Sessions) -> SessionInfo {
    let request = GetSessionRequest {
        session_id: "chat".into(),
        ..Default::default()
    };
    let answer = client.get_session(request).await.expect("a session");
    answer.into_inner().session.expect("a session")
}

/// The times of last use and of expiry in milliseconds.
fn times(info: &SessionInfo) -> [i64; 2] {
    [info.last_access, info.expires_at].map(|time| {
        let time = time.expect("a time");
        time.seconds * 1_000 + i64::from(time.nanos) / 1_000_000
    })
}

/// Waits until the clock has advanced.
async fn wait_for_clock_tick(from_ms: i64) {
    eventually("a moment has passed", async || {
        (wall_ms() > from_ms + 20).then_some(())
    })
    .await;
}

#[tokio::test]
async fn window_touches_session_and_peek_does_not() {
    let daemon = Daemon::with(plain()).await;
    let mut client = daemon.sessions();
    ask(&mut client, window_request_with([user("hello")])).await;
    let before = info(&mut client).await;
    wait_for_clock_tick(times(&before)[0]).await;
    ask(&mut client, peek()).await;
    let after = info(&mut client).await;
    let moved = times(&after)[0] - times(&before)[0];
    assert!(
        (-5..=5).contains(&moved),
        "only looked, but for the two clocks: {moved} ms"
    );
    assert_eq!(
        (after.last_seq, after.history_turns),
        (before.last_seq, before.history_turns)
    );
    let touched = ask(&mut client, window_request())
        .await
        .session
        .expect("a session");
    assert!(
        times(&touched)[0] > times(&before)[0],
        "{touched:?} after {before:?}"
    );
    assert!(
        times(&touched)[1] > times(&before)[1],
        "{touched:?} after {before:?}"
    );
    let seen = times(&info(&mut client).await)[0] - times(&touched)[0];
    assert!(
        (-5..=5).contains(&seen),
        "told as it is, but for the two clocks: {seen} ms"
    );
    assert_eq!(touched.last_seq, before.last_seq);
}

#[tokio::test]
async fn peek_changes_no_later_window_and_no_metrics() {
    let daemon = Daemon::with(plain()).await;
    let mut client = daemon.sessions();
    let request = BuildContextRequest {
        budget: budget(4_000),
        ..window_request()
    };
    let small = BuildContextRequest {
        budget: budget(1_000),
        ..peek()
    };
    let mut before: Vec<Vec<u8>> = Vec::new();
    for number in 0..20 {
        client
            .append(append("chat", [user(&words(number)), assistant("yes")]))
            .await
            .expect("appended");
        let peeked = ask(&mut client, small.clone()).await;
        assert!(report(&peeked).tokens_total <= 1_000);
        let next = bytes_of(&daemon, &request).await;
        assert!(
            next.starts_with(&before),
            "a peek cut the window at {number}"
        );
        before = next;
    }
    let built = async || {
        let page = http_get(daemon.admin_addr(), "/metrics").await.1;
        let of_windows = |line: &&str| line.starts_with("memoird_window");
        page.lines()
            .filter(of_windows)
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let counted = built().await;
    assert!(!counted.is_empty());
    let as_before = BuildContextRequest {
        peek: true,
        ..request.clone()
    };
    assert_eq!(
        bytes_of(&daemon, &as_before).await,
        before,
        "a peek sees what is sent"
    );
    assert_eq!(built().await, counted);
}

#[tokio::test]
async fn windows_keep_session_alive_across_kill() {
    let short = plain().section("short_term: { session_ttl: 3s, sweep_interval: 50ms }");
    let mut daemon = Daemon::with(short).await;
    let mut client = daemon.sessions();
    let first = ask(&mut client, window_request_with([user("hello")]))
        .await
        .session
        .expect("a session");
    let ends_ms = times(&first)[1];
    let touched = eventually("windows kept it alive past its first end", async || {
        let session = ask(&mut client, window_request())
            .await
            .session
            .expect("a session");
        assert_eq!(session.generation, first.generation);
        (wall_ms() > ends_ms + 500).then_some(session)
    });
    let touched = touched.await;
    daemon.kill9().await;
    daemon.restart().await;
    let mut client = daemon.sessions();
    let after = info(&mut client).await;
    assert_eq!(after.generation, first.generation);
    assert!(
        times(&after)[1] >= times(&touched)[1] - 1,
        "{after:?} before {touched:?}"
    );
    assert!(
        times(&after)[0] <= wall_ms() + 1,
        "not in the future: {after:?}"
    );
    eventually("and in the end it goes", async || {
        let request = GetSessionRequest {
            session_id: "chat".into(),
            ..Default::default()
        };
        client.get_session(request).await.is_err().then_some(())
    })
    .await;
}
