//! API keys: sources, roles, and that they are never exposed.

use memoird_proto::v1::{GetStatsRequest, ReindexMemoriesRequest, SweepNowRequest};
use tonic::Code;

use crate::harness::{Admin, Daemon, Setup, append, keyed, refused, run, say, user};

async fn is_refused_by_admin(mut admin: Admin, code: Code, reason: &str) {
    refused(
        admin.get_stats(GetStatsRequest::default()).await,
        code,
        reason,
    );
    refused(
        admin
            .reindex_memories(ReindexMemoriesRequest::default())
            .await,
        code,
        reason,
    );
    refused(
        admin.sweep_now(SweepNowRequest::default()).await,
        code,
        reason,
    );
    let reload = memoird_proto::v1::ReloadConfigRequest::default();
    refused(admin.reload_config(reload).await, code, reason);
}

#[tokio::test]
async fn key_is_required_and_its_role_decides() {
    let daemon = Daemon::with(Setup::default().two_tenants("", "")).await;
    let hello = || append("chat", [user("hi")]);
    let code = Code::Unauthenticated;
    refused(daemon.sessions().append(hello()).await, code, "NO_KEY");
    refused(
        daemon.sessions_of("").append(hello()).await,
        code,
        "WRONG_KEY",
    );
    let nearly = &Setup::ALPHA[1..];
    for wrong in [
        "nonsense",
        nearly,
        "ALPHA-BOT-KEY-C0FFEE",
        &"x".repeat(4_000),
    ] {
        let said = refused(
            daemon.sessions_of(wrong).append(hello()).await,
            code,
            "WRONG_KEY",
        );
        assert!(!said.contains(wrong), "it repeats the key: {said}");
    }
    for good in [Setup::ALPHA, Setup::BETA, Setup::ADMIN] {
        daemon
            .sessions_of(good)
            .append(hello())
            .await
            .expect("let in");
    }
    is_refused_by_admin(daemon.admin(), code, "NO_KEY").await;
    is_refused_by_admin(daemon.admin_of("wrong"), code, "WRONG_KEY").await;
    for bot in [Setup::ALPHA, Setup::BETA] {
        is_refused_by_admin(
            daemon.admin_of(bot),
            Code::PermissionDenied,
            "ROLE_REQUIRED",
        )
        .await;
    }
    let mut admin = daemon.admin_of(Setup::ADMIN);
    let stats = admin
        .get_stats(GetStatsRequest::default())
        .await
        .expect("let in")
        .into_inner();
    assert_eq!(stats.turns_appended, 3, "no refused call did anything");
}

#[tokio::test]
async fn keys_are_read_from_environment_files_and_digests() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("key");
    std::fs::write(&file, "a-key-in-a-file\n").expect("written");
    let digest = "d51970003fdeb23575093a85f42796901b5d408c6e5ee7a0e613fd00d9010636";
    let tenants = format!(
        "tenants:\n- id: acme\n  keys: [ {{ env: ACME_KEY }}, {{ file: {file:?}, role: admin }}, \
         {{ sha256: {digest} }} ]"
    );
    let daemon = Daemon::with(
        Setup::default()
            .section(tenants)
            .env("ACME_KEY", "a-key-in-env"),
    );
    let daemon = daemon.await;
    for key in [
        "a-key-in-env",
        "a-key-in-a-file",
        "a-key-known-by-its-digest",
    ] {
        say(&mut daemon.sessions_of(key), "chat", "hi").await;
    }
    for wrong in [digest, "ACME_KEY"] {
        let answer = daemon
            .sessions_of(wrong)
            .append(append("chat", [user("hi")]))
            .await;
        refused(answer, Code::Unauthenticated, "WRONG_KEY");
    }
    let mut admin = daemon.admin_of("a-key-in-a-file");
    let stats = admin
        .get_stats(GetStatsRequest::default())
        .await
        .expect("let in")
        .into_inner();
    assert_eq!((&*stats.tenants[0].id, stats.turns_appended), ("acme", 3));
    let code = Code::PermissionDenied;
    is_refused_by_admin(daemon.admin_of("a-key-in-env"), code, "ROLE_REQUIRED").await;
}

#[tokio::test]
async fn unreadable_keys_are_reported_together_and_never_shown() {
    let tenants = "tenants:\n\
        - { id: a, keys: [ { env: MISSING_VARIABLE }, { file: /proc/no-such-file } ] }\n\
        - { id: b, keys: [ { sha256: abc }, { env: TWICE } ] }\n\
        - { id: c, keys: [ { env: TWICE }, { env: EMPTY }, { env: TWICE, file: /x } ] }\n\
        - { id: d }";
    let setup = Setup::default()
        .section(tenants)
        .env("TWICE", "the-same-key")
        .env("EMPTY", " ");
    let refused = Daemon::refused(&setup).await;
    assert_eq!(refused.code, Some(64), "{refused:?}");
    for place in [
        "tenants[0].keys[0]",
        "MISSING_VARIABLE",
        "tenants[0].keys[1]",
        "/proc/no-such-file",
        "tenants[1].keys[0]",
        "tenants[2].keys[0]",
        "tenants[2].keys[1]",
        "tenants[2].keys[2]",
        "tenants[3].keys",
    ] {
        assert!(
            refused.stderr.contains(place),
            "{place} in {}",
            refused.stderr
        );
    }
    assert!(
        !refused.stderr.contains("the-same-key"),
        "{}",
        refused.stderr
    );
}

#[tokio::test]
async fn config_without_keys_requires_allow_without_keys() {
    let line = "server: { allow_without_keys: true }";
    for text in [
        "",
        "version: 1\n",
        "version: 1\nserver: { allow_without_keys: false }\n",
    ] {
        let home = tempfile::tempdir().expect("a directory");
        let file = home.path().join("memoird.yaml");
        std::fs::write(&file, text).expect("written");
        let file = file.display().to_string();
        for command in [
            &["config", "check", &file][..],
            &["serve", "--config", &file],
        ] {
            let refused = run(command, &[]).await;
            assert_eq!(refused.code, Some(64), "{text:?}: {refused:?}");
            assert!(refused.stderr.contains(line), "{refused:?}");
        }
        assert!(!home.path().join("memoird-data").exists());
    }
    let mut daemon = Daemon::with(Setup::default()).await;
    daemon.stop().await;
    assert!(
        daemon.log().contains("server.allow_without_keys"),
        "{}",
        daemon.log()
    );
}

#[tokio::test]
async fn without_keys_only_loopback_is_allowed() {
    for open in ["0.0.0.0:0", "'[::]:0'"] {
        let refused = Daemon::refused(&Setup::default().listen(open)).await;
        assert_eq!(refused.code, Some(64), "{refused:?}");
        for word in ["server.listen", "no keys", "configure keys", "127.0.0.1"] {
            assert!(
                refused.stderr.contains(word),
                "{word} in {}",
                refused.stderr
            );
        }
    }
    let keyed = Setup::default().listen("0.0.0.0:0").two_tenants("", "");
    let home = tempfile::tempdir().expect("a directory");
    let file = home.path().join("memoird.yaml");
    std::fs::write(&file, keyed.yaml(home.path())).expect("written");
    let env: Vec<(&str, &str)> = keyed.env.iter().map(|(n, v)| (&**n, &**v)).collect();
    let checked = run(&["config", "check", &file.display().to_string()], &env).await;
    assert_eq!(
        checked.code,
        Some(0),
        "with keys any address will do: {checked:?}"
    );
}

#[tokio::test]
async fn log_contains_no_keys_and_no_message_text() {
    let loud = Setup::default()
        .section("log: { filter: trace }")
        .two_tenants("", "");
    let mut daemon = Daemon::with(loud).await;
    let mut client = daemon.sessions_of(Setup::ALPHA);
    let words = [
        "the-answer-is-42",
        "an-idempotent-name",
        "a-patched-value",
        "not-json-at-all",
    ];
    client
        .append(keyed("chat", words[1], [user(words[0])]))
        .await
        .expect("done");
    let patch = memoird_proto::v1::UpdateSessionRequest {
        session_id: "chat".into(),
        state_patch_json: format!("{{\"k\":{:?}}}", words[2]),
        ..Default::default()
    };
    client.update_session(patch.clone()).await.expect("patched");
    let bad = memoird_proto::v1::UpdateSessionRequest {
        state_patch_json: words[3].into(),
        ..patch
    };
    client.update_session(bad).await.expect_err("no JSON");
    daemon
        .sessions_of("a-wrong-key-b0bb")
        .append(append("chat", []))
        .await
        .expect_err("refused");
    crate::harness::live(&mut client, "chat").await;
    daemon.stop().await;
    let log = daemon.log();
    assert!(log.contains("TRACE"), "it is as loud as it can be");
    let keys = [Setup::ALPHA, Setup::BETA, Setup::ADMIN, "a-wrong-key-b0bb"];
    for secret in keys.iter().chain(&words) {
        let line = log.lines().find(|line| line.contains(secret));
        assert!(line.is_none(), "{secret} in {line:?}");
    }
}
