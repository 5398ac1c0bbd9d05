//! Calls in progress when their key is revoked have no effect, however far they have come.

use memoird_proto::v1::{AppendRequest, BuildContextRequest, SweepNowRequest};
use prost::Message;
use tonic::Code;

use crate::harness::{
    Daemon, Events, Setup, SlowCall, append, eventually, http_get, live, refused_code, reload, say,
    user,
};

const SESSIONS: &str = "/memoird.v1.SessionService";
const ADMIN: &str = "/memoird.v1.AdminService";
const OPERATOR: &str = "operator-of-them-all";

/// Two bots of one tenant and two operators. The key `without` is missing.
fn keyed(without: &str) -> Setup {
    let keys = [
        ("A", Setup::ALPHA, "bot"),
        ("B", Setup::BETA, "bot"),
        ("O", Setup::ADMIN, "admin"),
    ];
    let mut setup = Setup::default().env("P", OPERATOR);
    let mut listed = vec!["{ env: P, role: admin }".to_owned()];
    for (name, key, role) in keys {
        setup = setup.env(name, key);
        if key != without {
            listed.push(format!("{{ env: {name}, role: {role} }}"));
        }
    }
    setup.section(format!(
        "tenants: [ {{ id: acme, keys: [ {} ] }} ]",
        listed.join(", ")
    ))
}

/// Starts a call with this key, and waits until the daemon has admitted half of it.
async fn half(daemon: &Daemon, path: &str, key: &str, message: &impl Message) -> SlowCall {
    let before = received(daemon).await;
    let call = SlowCall::half(daemon.grpc_addr(), path, key, message).await;
    eventually("the daemon has the half", async || {
        (received(daemon).await > before).then_some(())
    })
    .await;
    call
}

/// Bytes of calls in progress that the daemon has received.
async fn received(daemon: &Daemon) -> u64 {
    let page = http_get(daemon.admin_addr(), "/metrics").await.1;
    let calls = "memoird_memory_used_bytes{of=\"calls\"} ";
    let line = page.lines().find_map(|line| line.strip_prefix(calls));
    line.expect("the metric").parse().expect("a number")
}

#[tokio::test]
async fn call_half_sent_when_its_key_is_revoked_is_refused() {
    let mut daemon = Daemon::with(keyed("")).await;
    let mut admin = daemon.admin_of(OPERATOR);
    let mut beta = daemon.sessions_of(Setup::BETA);
    say(&mut beta, "chat", "before").await;
    let large = |text: &str| append("chat", [user(&text.repeat(10_000))]);
    let window = BuildContextRequest {
        session_id: "chat".into(),
        append: Some(AppendRequest {
            session_id: String::new(),
            ..large("window ")
        }),
        ..BuildContextRequest::default()
    };
    let appends = format!("{SESSIONS}/Append");
    let revoked = [
        half(&daemon, &appends, Setup::ALPHA, &large("alpha ")).await,
        half(
            &daemon,
            &format!("{SESSIONS}/BuildContext"),
            Setup::ALPHA,
            &window,
        )
        .await,
    ];
    let kept = half(&daemon, &appends, Setup::BETA, &large("beta ")).await;
    let mut events = Events::now(&mut daemon.sessions_of(Setup::ALPHA)).await;

    daemon.rewrite(keyed(Setup::ALPHA));
    reload(&mut admin).await;
    for call in revoked {
        let status = call.rest().await;
        assert_eq!(status.code(), Code::Unauthenticated, "{status:?}");
        assert_eq!(refused_code(&status), "WRONG_KEY");
    }
    assert_eq!(
        kept.rest().await.code(),
        Code::Ok,
        "its key is as good as before"
    );
    assert_eq!(
        live(&mut beta, "chat").await.len(),
        2,
        "what was said before, and by beta"
    );
    let ended = events.ending().await.expect("it ends");
    assert_eq!(refused_code(&ended), "KEYS_CHANGED");

    // A call survives no revocation, even after several reloads.
    let late = half(&daemon, &appends, Setup::BETA, &large("late ")).await;
    daemon.rewrite(keyed(""));
    reload(&mut admin).await;
    daemon.rewrite(keyed(Setup::BETA));
    reload(&mut admin).await;
    assert_eq!(refused_code(&late.rest().await), "WRONG_KEY");
}

#[tokio::test]
async fn operator_call_half_sent_when_its_key_is_revoked_is_refused() {
    let mut daemon = Daemon::with(keyed("")).await;
    let mut admin = daemon.admin_of(OPERATOR);
    let sweep = SweepNowRequest {
        tenant: "x".repeat(200),
    };
    let sweeps = format!("{ADMIN}/SweepNow");
    let call = half(&daemon, &sweeps, Setup::ADMIN, &sweep).await;
    let same = half(&daemon, &sweeps, OPERATOR, &sweep).await;
    daemon.rewrite(keyed(Setup::ADMIN));
    reload(&mut admin).await;
    assert_eq!(refused_code(&call.rest().await), "WRONG_KEY");
    // A call with a valid key reaches validation.
    assert_eq!(refused_code(&same.rest().await), "TENANT_NOT_FOUND");
}
