//! Rate limits and request sizes: refusals name the limit, and other clients are not affected.

use memoird_proto::v1::{GetSessionRequest, ListSessionsRequest, UpdateSessionRequest};
use tonic::{Code, Status};
use tonic_types::StatusExt;

use crate::harness::{
    Daemon, Sessions, Setup, append, eventually, http_get, live, refused, refused_code, reload,
    say, stats, user,
};

async fn list(client: &mut Sessions) -> Result<(), Status> {
    client
        .list_sessions(ListSessionsRequest::default())
        .await
        .map(drop)
}

/// The number of accepted calls. The others must be refused with this reason.
async fn count_accepted(client: &mut Sessions, calls: usize, reason: &str) -> usize {
    let mut count = 0;
    for _ in 0..calls {
        match list(client).await {
            Ok(()) => count += 1,
            Err(status) => {
                assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
                assert_eq!(refused_code(&status), reason, "{status:?}");
                assert!(
                    status.message().contains(&reason.to_lowercase()),
                    "{status:?}"
                );
            }
        }
    }
    count
}

#[tokio::test]
async fn calls_per_second_are_limited_counted_and_reloadable() {
    let few = "calls_per_second: 2";
    let mut daemon = Daemon::with(Setup::default().two_tenants(few, "")).await;
    let mut alpha = daemon.sessions_of(Setup::ALPHA);
    let mut beta = daemon.sessions_of(Setup::BETA);
    let mut admin = daemon.admin_of(Setup::ADMIN);
    let refusals = eventually("more come than may", async || {
        let count = count_accepted(&mut alpha, 50, "CALLS_PER_SECOND").await;
        (count < 50).then_some(50 - count)
    })
    .await;
    assert_eq!(
        count_accepted(&mut beta, 50, "none").await,
        50,
        "nobody else notices"
    );
    // The tenant's limit does not affect operators.
    let seen = stats(&mut admin).await;
    let counted: Vec<(&str, u64)> = seen
        .tenants
        .iter()
        .map(|of| (&*of.id, of.calls_refused))
        .collect();
    assert!(counted[0].1 >= refusals as u64, "{counted:?}");
    assert_eq!(counted[1], ("beta", 0));
    let page = http_get(daemon.admin_addr(), "/metrics").await.1;
    let metric = format!(
        "memoird_calls_refused_total{{tenant=\"alpha\",limit=\"calls_per_second\"}} {}",
        counted[0].1
    );
    assert!(page.contains(&metric), "{metric} in {page}");

    // A client that waits for the hinted time is accepted.
    let refused = eventually("it is refused again", async || list(&mut alpha).await.err()).await;
    let hint = refused
        .get_details_retry_info()
        .expect("a hint")
        .retry_delay;
    let hint = hint.expect("a time");
    assert!(!hint.is_zero() && hint.as_secs() <= 1, "{hint:?}");
    eventually("it is let in again", async || list(&mut alpha).await.ok()).await;

    daemon.rewrite(Setup::default().two_tenants("", few));
    reload(&mut admin).await;
    assert_eq!(count_accepted(&mut alpha, 50, "none").await, 50);
    eventually("the other one is limited", async || {
        (count_accepted(&mut beta, 50, "CALLS_PER_SECOND").await < 50).then_some(())
    })
    .await;
}

#[tokio::test]
async fn bytes_per_second_are_limited_and_largest_request_still_passes() {
    let setup = Setup::default()
        .server("max_request_bytes: 256KiB")
        .two_tenants("bytes_per_second: 64KiB", "");
    let daemon = Daemon::with(setup).await;
    let mut alpha = daemon.sessions_of(Setup::ALPHA);
    let large = || append("chat", [user(&"x".repeat(200 << 10))]);
    alpha
        .append(large())
        .await
        .expect("a full bucket has room for it");
    let status = eventually("the bucket is empty", async || {
        alpha.append(large()).await.err()
    })
    .await;
    assert_eq!(refused_code(&status), "BYTES_PER_SECOND", "{status:?}");
    // Refused requests use no tokens, however often they are retried.
    eventually("it has its turn again", async || {
        alpha.append(large()).await.ok()
    })
    .await;
    let mut beta = daemon.sessions_of(Setup::BETA);
    for _ in 0..4 {
        beta.append(large()).await.expect("nobody else notices");
    }
    let turns = live(&mut beta, "chat").await.len();
    assert_eq!(turns, 4);
}

#[tokio::test]
async fn requests_without_turns_have_smaller_size_limit() {
    let daemon = Daemon::with(Setup::default().two_tenants("", "")).await;
    let mut client = daemon.sessions_of(Setup::ALPHA);
    say(&mut client, "chat", "hi").await;
    let too_large = (Code::ResourceExhausted, "REQUEST_TOO_LARGE");
    let look = GetSessionRequest {
        session_id: "x".repeat(100 << 10),
        ..Default::default()
    };
    refused(client.get_session(look).await, too_large.0, too_large.1);
    let look = GetSessionRequest {
        session_id: "x".repeat(32 << 10),
        ..Default::default()
    };
    refused(
        client.get_session(look).await,
        Code::InvalidArgument,
        "ID_INVALID",
    );
    let patch = |json: String| UpdateSessionRequest {
        session_id: "chat".into(),
        state_patch_json: json,
        expected_state_version: None,
        ..UpdateSessionRequest::default()
    };
    let text = |bytes: usize| format!("{{\"k\":{:?}}}", "x".repeat(bytes));
    client
        .update_session(patch(text(60 << 10)))
        .await
        .expect("as large as a state");
    let answer = client.update_session(patch(text(100 << 10))).await;
    refused(answer, Code::InvalidArgument, "STATE_TOO_LARGE");
    let answer = client.update_session(patch(text(200 << 10))).await;
    refused(answer, too_large.0, too_large.1);
    client
        .append(append("chat", [user(&"x".repeat(500 << 10))]))
        .await
        .expect("turns are large");
}
