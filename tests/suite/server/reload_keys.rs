//! Reloads with other keys: new keys are accepted, old ones refused, and authentication stays on.

use tokio::task::JoinSet;
use tonic::Code;

use crate::harness::{
    Admin, Daemon, Events, Setup, append, eventually, http_get, live, refused, refused_code,
    reload, say, stats, tenant, try_reload, user,
};

/// One tenant with its keys in these files.
fn keyed_by(files: &[&str]) -> Setup {
    let keys: Vec<String> = files
        .iter()
        .map(|file| format!("{{ file: ./{file} }}"))
        .collect();
    let admin = "{ file: ./operator, role: admin }";
    Setup::default().section(format!(
        "tenants: [ {{ id: acme, keys: [ {}, {admin} ] }} ]",
        keys.join(", ")
    ))
}

/// A daemon whose bot key `OLD` and operator key are in files.
async fn with_key_files() -> (Daemon, Admin) {
    // The files must exist before the daemon starts.
    let script = "printf old-key-of-a-bot-1 > old; printf new-key-of-a-bot-2 > new; \
                  printf operator-key-3333 > operator; exec \"$@\"";
    let setup = keyed_by(&["old"]).wrapper(&["sh", "-c", script, "sh"]);
    let daemon = Daemon::with(setup).await;
    let admin = daemon.admin_of("operator-key-3333");
    (daemon, admin)
}

const OLD: &str = "old-key-of-a-bot-1";
const NEW: &str = "new-key-of-a-bot-2";

async fn is_accepted(daemon: &Daemon, key: &str) -> bool {
    match daemon
        .sessions_of(key)
        .append(append("a", [user("hi")]))
        .await
    {
        Ok(_) => true,
        Err(status) => {
            assert_eq!(status.code(), Code::Unauthenticated, "{status:?}");
            false
        }
    }
}

#[tokio::test]
async fn reload_accepts_new_key_and_revokes_old_key_and_its_watches() {
    let (mut daemon, mut admin) = with_key_files().await;
    let mut old = daemon.sessions_of(OLD);
    let mut events = Events::now(&mut old).await;
    say(&mut old, "a", "hi").await;
    events.until("appended").await;
    assert!(!is_accepted(&daemon, NEW).await);
    daemon.rewrite(keyed_by(&["old", "new"]));
    assert_eq!(reload(&mut admin).await.0, ["tenants"]);
    assert!(is_accepted(&daemon, NEW).await && is_accepted(&daemon, OLD).await);
    let status = events.ending().await.expect("the keys were changed");
    assert_eq!(refused_code(&status), "KEYS_CHANGED", "{status:?}");

    let mut events = Events::now(&mut old).await;
    daemon.rewrite(keyed_by(&["new"]));
    reload(&mut admin).await;
    let on_the_same_connection = old.append(append("a", [user("hi")])).await;
    refused(on_the_same_connection, Code::Unauthenticated, "WRONG_KEY");
    assert!(!is_accepted(&daemon, OLD).await && is_accepted(&daemon, NEW).await);
    assert_eq!(
        events.ending().await.expect("it ends").code(),
        Code::Unauthenticated
    );
    Events::after(&mut old, "")
        .await
        .expect_err("a revoked key");

    // A new key in the same file is picked up, too.
    std::fs::write(daemon.path("new"), "rotated-key-of-a-bot").expect("a file");
    eventually("the rotated key is let in", async || {
        is_accepted(&daemon, "rotated-key-of-a-bot")
            .await
            .then_some(())
    })
    .await;
    assert!(!is_accepted(&daemon, NEW).await);
    let turns = live(&mut daemon.sessions_of("rotated-key-of-a-bot"), "a").await;
    assert!(turns.len() >= 4, "the sessions are those of before");
}

#[tokio::test]
async fn key_file_written_after_config_is_picked_up() {
    let (mut daemon, _) = with_key_files().await;
    daemon.rewrite(keyed_by(&["old", "later"]));
    eventually("it is refused, for want of the key", async || {
        let log = daemon.log();
        (log.contains("./later") && log.contains("the current one stays in effect")).then_some(())
    })
    .await;
    assert!(is_accepted(&daemon, OLD).await && !is_accepted(&daemon, NEW).await);
    std::fs::write(daemon.path("later"), NEW).expect("a file");
    eventually("the key is let in", async || {
        is_accepted(&daemon, NEW).await.then_some(())
    })
    .await;
}

#[tokio::test]
async fn reload_cannot_remove_keys_of_daemon_on_public_address() {
    let (mut daemon, _) = with_key_files().await;
    daemon.stop().await;
    daemon
        .restart_with(keyed_by(&["old"]).listen("0.0.0.0:0"))
        .await;
    let port = daemon
        .grpc_addr()
        .rsplit_once(':')
        .expect("a port")
        .1
        .to_owned();
    let mut admin = daemon.admin_of("operator-key-3333");
    for open in [
        // Unchanged, and with an address that takes effect only after a restart.
        Setup::default().listen("0.0.0.0:0"),
        Setup::default().listen(&format!("127.0.0.1:{port}")),
    ] {
        daemon.rewrite(open.section("short_term: { max_sessions: 3 }"));
        let answer = try_reload(&mut admin).await;
        let problem = refused(answer, Code::FailedPrecondition, "CONFIG_INVALID");
        assert!(problem.contains("key"), "{problem}");
        assert_eq!(
            tenant(&mut admin).await.max_sessions,
            10_000,
            "refused whole"
        );
    }
    assert!(is_accepted(&daemon, OLD).await && !is_accepted(&daemon, NEW).await);
    let answer = daemon.sessions().append(append("a", [user("hi")])).await;
    refused(answer, Code::Unauthenticated, "NO_KEY");
}

#[tokio::test]
async fn reload_of_invalid_file_keeps_authentication_enabled() {
    let (mut daemon, mut admin) = with_key_files().await;
    let keyed = daemon
        .setup()
        .yaml(daemon.path("data").parent().expect("a directory"));
    let unversioned = keyed.replace("version: 1\n", "");
    assert_ne!(unversioned, keyed);
    let open = Setup::default().yaml(daemon.path("data").parent().expect("a directory"));
    for (text, said) in [
        ("", "allow_without_keys: true"),
        ("\n", "allow_without_keys: true"),
        ("version: 1\n", "allow_without_keys: true"),
        (&*unversioned, "version"),
        (&*open, "all keys were removed"),
    ] {
        daemon.rewrite_text(text);
        let answer = try_reload(&mut admin).await;
        let problem = refused(answer, Code::FailedPrecondition, "CONFIG_INVALID");
        assert!(problem.contains(said), "{text:?}: {problem}");
        let answer = daemon.sessions().append(append("a", [user("hi")])).await;
        refused(answer, Code::Unauthenticated, "NO_KEY");
        assert!(is_accepted(&daemon, OLD).await && !is_accepted(&daemon, NEW).await);
    }
    let page = http_get(daemon.admin_addr(), "/metrics").await.1;
    assert!(
        page.contains(r#"memoird_reloads_total{outcome="applied"} 0"#),
        "{page}"
    );
    assert!(
        daemon.log().contains(r#""level":"ERROR""#),
        "{}",
        daemon.log()
    );
    // Truncated without notice, as by an editor or a full disk.
    daemon.rewrite(keyed_by(&["old"]));
    reload(&mut admin).await;
    let refusals = || {
        daemon
            .log()
            .matches("is invalid; the current one stays in effect")
            .count()
    };
    let before = refusals();
    daemon.rewrite_text("");
    eventually("the change is seen", async || {
        (refusals() > before).then_some(())
    })
    .await;
    let answer = daemon.sessions().append(append("a", [user("hi")])).await;
    refused(answer, Code::Unauthenticated, "NO_KEY");
}

#[tokio::test]
async fn daemon_without_keys_refuses_keys_until_reload_adds_them() {
    let mut daemon = Daemon::start().await;
    say(&mut daemon.sessions(), "a", "hi").await;
    for key in ["any-key-at-all", ""] {
        let answer = daemon
            .sessions_of(key)
            .append(append("a", [user("hi")]))
            .await;
        refused(answer, Code::Unauthenticated, "NO_KEYS_HERE");
    }
    let mut admin = daemon.admin();
    daemon.rewrite_text("");
    let answer = try_reload(&mut admin).await;
    refused(answer, Code::FailedPrecondition, "CONFIG_INVALID");
    say(&mut daemon.sessions(), "a", "as before").await;

    std::fs::write(daemon.path("bot"), OLD).expect("a file");
    std::fs::write(daemon.path("operator"), "operator-key-3333").expect("a file");
    daemon.rewrite(keyed_by(&["bot"]));
    reload(&mut admin).await;
    assert!(is_accepted(&daemon, OLD).await && !is_accepted(&daemon, NEW).await);
    let answer = daemon.sessions().append(append("a", [user("hi")])).await;
    refused(answer, Code::Unauthenticated, "NO_KEY");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reload_revokes_keys_before_evicting_and_completes_after_disconnect() {
    const SESSIONS: u64 = 600;
    let (mut daemon, mut admin) = with_key_files().await;
    let mut appends = JoinSet::new();
    let client = daemon.sessions_of(OLD);
    for number in 0..SESSIONS {
        let mut client = client.clone();
        appends.spawn(async move { say(&mut client, &number.to_string(), "hi").await });
    }
    appends.join_all().await;
    let fewer = keyed_by(&["new"]).section("short_term: { max_sessions: 1 }");
    daemon.rewrite(fewer);
    let mut call = JoinSet::new();
    let mut caller = admin.clone();
    call.spawn(async move { try_reload(&mut caller).await.is_ok() });
    eventually("the first of them are evicted", async || {
        (stats(&mut admin).await.sessions_live < SESSIONS).then_some(())
    })
    .await;
    assert!(
        !is_accepted(&daemon, OLD).await,
        "before all the others are"
    );
    // The log distinguishes this reload from the one that the file change triggers.
    call.shutdown().await;
    eventually("it is done to its end", async || {
        daemon
            .log()
            .contains(r#""why":"ReloadConfig""#)
            .then_some(())
    })
    .await;
    assert!(
        stats(&mut admin).await.sessions_live <= 1,
        "the others are evicted"
    );
}
