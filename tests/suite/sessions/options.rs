//! Per-session options: the TTL class, and keeping the whole history.

use memoird_proto::v1::{
    AppendRequest, BuildContextRequest, GetSessionRequest, SessionInfo, SweepNowRequest,
    UpdateSessionRequest, window_policy,
};
use tonic::Code;

use crate::harness::{
    Daemon, Sessions, Setup, append, ask_as, eventually, journal, live, refused, reload, say, user,
};

const CLASSES: &str = "short_term: { session_ttl: 1h, max_history_turns: 4, \
    ttl_classes: { blink: 1ms, week: 7d, kept: never } }";

fn in_class(session: &str, class: &str) -> AppendRequest {
    AppendRequest {
        ttl_class: class.into(),
        ..append(session, [user("hello")])
    }
}

async fn append_info(client: &mut Sessions, request: AppendRequest) -> SessionInfo {
    let answer = client.append(request).await.expect("said").into_inner();
    answer.session.expect("a session")
}

async fn info(client: &mut Sessions, session: &str) -> Option<SessionInfo> {
    let request = GetSessionRequest {
        session_id: session.into(),
        ..GetSessionRequest::default()
    };
    client.get_session(request).await.ok()?.into_inner().session
}

fn lives_s(info: &SessionInfo) -> Option<i64> {
    let used = info.last_access.expect("a time").seconds;
    info.expires_at.map(|at| at.seconds - used)
}

#[tokio::test]
async fn ttl_class_determines_expiry_across_kill_and_reload() {
    let mut daemon = Daemon::with(Setup::default().section(CLASSES)).await;
    let mut client = daemon.sessions();
    let kept = append_info(&mut client, in_class("kept", "kept")).await;
    assert_eq!((&*kept.ttl_class, kept.expires_at), ("kept", None));
    let week = append_info(&mut client, in_class("week", "week")).await;
    assert_eq!(lives_s(&week), Some(7 * 86_400));
    let default = append_info(&mut client, in_class("default", "default")).await;
    assert_eq!((&*default.ttl_class, lives_s(&default)), ("", Some(3_600)));
    let blink = append_info(&mut client, in_class("blink", "blink")).await;
    assert_eq!(blink.ttl_class, "blink");
    eventually("it expires", async || {
        info(&mut client, "blink").await.is_none().then_some(())
    })
    .await;
    // A patch changes the class and reports the unchanged state.
    let patch = UpdateSessionRequest {
        session_id: "default".into(),
        ttl_class: "week".into(),
        ..UpdateSessionRequest::default()
    };
    let patched = client
        .update_session(patch)
        .await
        .expect("patched")
        .into_inner();
    assert_eq!(patched.session.expect("a session").state_version, 0);
    daemon.kill9().await;
    daemon.restart().await;
    client = daemon.sessions();
    for (session, lives) in [
        ("kept", None),
        ("week", Some(7 * 86_400)),
        ("default", Some(7 * 86_400)),
    ] {
        let info = info(&mut client, session).await.expect("it lives");
        assert_eq!(lives_s(&info), lives, "{session}");
    }
    let shown = ask_as(&daemon, &["sessions", "show", "kept"], "").await;
    assert!(
        shown.stdout.contains("never") && shown.stdout.contains("ttl class"),
        "{shown:?}"
    );

    daemon.rewrite(Setup::default().section("short_term: { session_ttl: 1h }"));
    let (applied, _) = reload(&mut daemon.admin()).await;
    assert!(
        applied.iter().any(|key| key.contains("ttl_classes")),
        "{applied:?}"
    );
    for session in ["kept", "week", "default"] {
        let info = info(&mut client, session).await.expect("it lives");
        assert_eq!(lives_s(&info), Some(3_600), "{session}");
    }
    let again = append_info(&mut client, in_class("week", "week")).await;
    assert_eq!((&*again.ttl_class, lives_s(&again)), ("week", Some(3_600)));
    let answer = client.append(in_class("new", "week")).await;
    let told = refused(answer, Code::InvalidArgument, "TTL_CLASS_UNKNOWN");
    assert!(told.contains("default"), "{told}");
    assert!(info(&mut client, "new").await.is_none());
}

#[tokio::test]
async fn invalid_ttl_classes_are_refused_by_calls_and_config() {
    let daemon = Daemon::with(Setup::default().section(CLASSES)).await;
    let mut client = daemon.sessions();
    for (class, reason) in [
        ("year", "TTL_CLASS_UNKNOWN"),
        ("Week", "TTL_CLASS_INVALID"),
        (&*"x".repeat(65), "TTL_CLASS_INVALID"),
    ] {
        let answer = client.append(in_class("chat", class)).await;
        let told = refused(answer, Code::InvalidArgument, reason);
        assert!(
            reason == "TTL_CLASS_INVALID" || told.contains("blink, kept, never, week, default"),
            "{told}"
        );
    }
    assert!(
        info(&mut client, "chat").await.is_none(),
        "nothing was started"
    );
    let many: Vec<String> = (0..9).map(|class| format!("c{class}: 1h")).collect();
    for (classes, problem) in [
        ("default: 1h", "names of 1 to 64"),
        ("Big: 1h", "names of 1 to 64"),
        ("a: 0s", "more than zero"),
        ("a: soon", "a duration such as"),
        (&*many.join(", "), "8 classes at most"),
    ] {
        let section = format!("short_term: {{ ttl_classes: {{ {classes} }} }}");
        let outcome = Daemon::refused(&Setup::default().section(section)).await;
        assert_eq!(outcome.code, Some(64), "{outcome:?}");
        assert!(outcome.stderr.contains(problem), "{classes}: {outcome:?}");
    }
}

#[tokio::test]
async fn tenant_has_its_own_ttl_classes() {
    let own = "ttl_classes: { night: 12h }";
    let daemon = Daemon::with(Setup::default().two_tenants(own, "")).await;
    let mut alpha = daemon.sessions_of(Setup::ALPHA);
    let mut beta = daemon.sessions_of(Setup::BETA);
    let night = append_info(&mut alpha, in_class("chat", "night")).await;
    assert_eq!(lives_s(&night), Some(12 * 3_600));
    let answer = beta.append(in_class("chat", "night")).await;
    refused(answer, Code::InvalidArgument, "TTL_CLASS_UNKNOWN");
    let swept = daemon
        .admin_of(Setup::ADMIN)
        .sweep_now(SweepNowRequest::default())
        .await;
    assert_eq!(swept.expect("swept").into_inner().ended, 0);
}

#[tokio::test]
async fn keep_all_session_drops_no_turns_while_windows_are_cut() {
    let limits = "short_term: { max_history_turns: 4, max_history_bytes: 20KiB }";
    let mut daemon = Daemon::with(Setup::default().section(limits)).await;
    let mut client = daemon.sessions();
    let keeping = AppendRequest {
        keep_all: Some(true),
        ..append("all", [user("0")])
    };
    assert!(append_info(&mut client, keeping).await.keep_all);
    for number in 1..40 {
        let answer = say(&mut client, "all", &number.to_string()).await;
        assert_eq!(answer.dropped_turns, 0);
    }
    daemon.kill9().await;
    daemon.restart().await;
    client = daemon.sessions();
    assert_eq!(live(&mut client, "all").await.len(), 40);
    let window = BuildContextRequest {
        session_id: "all".into(),
        policy: Some(memoird_proto::v1::WindowPolicy {
            policy: Some(window_policy::Policy::SlidingWindow(
                memoird_proto::v1::SlidingWindow { turns: 5 },
            )),
        }),
        ..BuildContextRequest::default()
    };
    let window = client
        .build_context(window)
        .await
        .expect("a window")
        .into_inner();
    assert!(window.turns.len() <= 6, "{}", window.turns.len());

    let large = client
        .append(append("all", [user(&"x".repeat(20 << 10))]))
        .await;
    refused(large, Code::InvalidArgument, "TURN_TOO_LARGE");
    let large = client
        .append(append("all", [user(&"x".repeat(20_000))]))
        .await;
    let told = refused(large, Code::FailedPrecondition, "HISTORY_FULL");
    assert!(told.contains("max_history_bytes"), "{told}");
    assert_eq!(live(&mut client, "all").await.len(), 40);
    let patch = UpdateSessionRequest {
        session_id: "all".into(),
        keep_all: Some(false),
        ..UpdateSessionRequest::default()
    };
    client.update_session(patch).await.expect("patched");
    let answer = say(&mut client, "all", "last").await;
    assert_eq!(answer.dropped_turns, 36);
    assert!(!answer.session.expect("a session").keep_all);
    assert_eq!(journal(&mut client, "all", "").await.len(), 41);
}
