//! Configuration reloads: settings that apply, settings that need a restart, and invalid files.

use memoird_proto::v1::GetSessionRequest;
use tonic::Code;

use crate::harness::{
    Daemon, Namespace, RECORDING_HOOK, Setup, all_delivered, delivered, end, eventually, field,
    http_get, live, refused, reload, say, stats, tenant, try_reload,
};

fn short_term(limits: &str) -> Setup {
    let hook = format!("hooks: [ {{ name: keeps, {RECORDING_HOOK} }} ]");
    Setup::default()
        .section(hook)
        .section(format!("short_term: {{ {limits} }}"))
}

#[tokio::test]
async fn lowered_cap_evicts_longest_idle_with_hooks_and_raised_cap_admits() {
    let mut daemon = Daemon::with(short_term("max_sessions: 6, max_history_turns: 5")).await;
    let (mut client, mut admin) = (daemon.sessions(), daemon.admin());
    for name in ["a", "b", "c", "d", "e", "f"] {
        for number in 0..6 {
            say(&mut client, name, &number.to_string()).await;
        }
    }
    say(&mut client, "a", "not idle").await;
    daemon.rewrite(short_term("max_sessions: 2, max_history_turns: 2"));
    let (applied, refused) = reload(&mut admin).await;
    assert_eq!(
        applied,
        ["short_term.max_history_turns", "short_term.max_sessions"]
    );
    assert_eq!(refused, [""; 0]);
    assert_eq!(
        stats(&mut admin).await.sessions_live,
        2,
        "done when it answers"
    );
    assert_eq!(live(&mut client, "f").await.len(), 3, "the anchor and two");
    assert_eq!(live(&mut client, "a").await.len(), 3);
    all_delivered(&mut admin).await;
    let all = delivered(&daemon);
    let mut evicted: Vec<&str> = all.iter().map(|told| field(told, "session_id")).collect();
    evicted.sort_unstable();
    assert_eq!(evicted, ["b", "c", "d", "e"]);
    assert!(
        all.iter().all(|told| field(told, "reason") == "evicted"),
        "{all:?}"
    );
    assert!(
        all.iter()
            .all(|told| told["turns"].as_array().expect("turns").len() == 6),
        "whole"
    );

    daemon.rewrite(short_term("max_sessions: 4, max_history_turns: 100"));
    reload(&mut admin).await;
    for name in ["g", "h"] {
        for number in 0..50 {
            say(&mut client, name, &number.to_string()).await;
        }
    }
    assert_eq!(stats(&mut admin).await.sessions_live, 4);
    assert_eq!(live(&mut client, "h").await.len(), 50);
    assert_eq!(tenant(&mut admin).await.max_sessions, 4);
    assert_eq!(delivered(&daemon).len(), 4, "nobody else had to go");
}

#[tokio::test]
async fn shortened_ttl_expires_sessions_on_reload_and_sighup() {
    let mut daemon = Daemon::with(short_term("session_ttl: 24h, sweep_interval: 1h")).await;
    let (mut client, mut admin) = (daemon.sessions(), daemon.admin());
    say(&mut client, "a", "hi").await;
    daemon.rewrite(short_term("session_ttl: 1h, sweep_interval: 1h"));
    assert_eq!(reload(&mut admin).await.0, ["short_term.session_ttl"]);
    assert_eq!(stats(&mut admin).await.sessions_live, 1);
    let info = client.get_session(GetSessionRequest {
        session_id: "a".into(),
        ..Default::default()
    });
    let info = info
        .await
        .expect("it lives")
        .into_inner()
        .session
        .expect("a session");
    let life = info.expires_at.expect("a time").seconds - info.last_access.expect("a time").seconds;
    assert_eq!(life, 3_600);
    daemon.rewrite(short_term("session_ttl: 1ms, sweep_interval: 1h"));
    daemon.signal("-HUP");
    eventually("it is told", async || {
        (delivered(&daemon).len() == 1).then_some(())
    })
    .await;
    assert_eq!(field(&delivered(&daemon)[0], "reason"), "expired");
    assert_eq!(stats(&mut admin).await.expired, 1);
    let page = http_get(daemon.admin_addr(), "/metrics").await.1;
    assert!(
        page.contains(r#"memoird_reloads_total{outcome="refused"} 0"#),
        "{page}"
    );
}

#[tokio::test]
async fn changed_file_adds_changes_and_removes_hooks() {
    let hook = |name: &str| {
        let hook = format!("hooks: [ {{ name: {name}, {RECORDING_HOOK} }} ]");
        Setup::default()
            .section(hook)
            .section("log: { filter: info }")
    };
    let mut daemon = Daemon::with(Setup::default()).await;
    let (mut client, mut admin) = (daemon.sessions(), daemon.admin());
    // The log shows whether the file was read.
    let applied = |daemon: &Daemon| {
        daemon
            .log()
            .matches("the configuration was reloaded")
            .count()
    };
    say(&mut client, "before", "hi").await;
    end(&mut client, "before").await;
    for (round, name) in ["first", "second"].into_iter().enumerate() {
        daemon.rewrite(hook(name));
        eventually("the file is read", async || {
            (applied(&daemon) == round + 1).then_some(())
        })
        .await;
        say(&mut client, name, "hi").await;
        end(&mut client, name).await;
    }
    all_delivered(&mut admin).await;
    let all = delivered(&daemon);
    let mut pairs: Vec<(&str, &str)> = all
        .iter()
        .map(|it| (field(it, "hook"), field(it, "session_id")))
        .collect();
    pairs.sort_unstable();
    assert_eq!(
        pairs,
        [("first", "first"), ("second", "second")],
        "each owes to whom it was then"
    );

    daemon.rewrite(Setup::default().section("log: { filter: 'info,memoird_engine=debug' }"));
    let (applied, refused) = reload(&mut admin).await;
    assert_eq!(
        (applied, refused),
        (vec!["hooks".to_owned(), "log.filter".to_owned()], vec![])
    );
    say(&mut client, "after", "hi").await;
    end(&mut client, "after").await;
    all_delivered(&mut admin).await;
    assert_eq!(delivered(&daemon).len(), 2);
}

#[tokio::test]
async fn reload_error_is_truncated_and_log_has_all_problems() {
    let mut daemon = Daemon::start().await;
    let mut admin = daemon.admin();
    let tenant = |number| format!("{{ id: t{number}, keys: [ {{ env: MISSING_KEY_{number} }} ] }}");
    let tenants: Vec<String> = (0..400).map(tenant).collect();
    daemon.rewrite(Setup::default().section(format!("tenants: [ {} ]", tenants.join(", "))));
    let answer = try_reload(&mut admin).await;
    let problem = refused(answer, Code::FailedPrecondition, "CONFIG_INVALID");
    for part in ["400 problems", "MISSING_KEY_0"] {
        assert!(problem.contains(part), "{problem}");
    }
    assert!(daemon.log().contains("MISSING_KEY_399"));
}

#[tokio::test]
async fn changed_log_filter_applies_at_once() {
    let filter = |filter: &str| Setup::default().section(format!("log: {{ filter: {filter} }}"));
    let mut daemon = Daemon::with(filter("error")).await;
    let mut admin = daemon.admin();
    assert_eq!(daemon.log(), "");
    daemon.rewrite(filter("info"));
    assert_eq!(reload(&mut admin).await.0, ["log.filter"]);
    assert!(
        daemon.log().contains("the configuration was reloaded"),
        "{}",
        daemon.log()
    );
}

#[tokio::test]
async fn unchangeable_settings_are_refused_each_time_and_others_apply() {
    let mut daemon = Daemon::start().await;
    let mut admin = daemon.admin();
    let grpc = daemon.grpc_addr().to_owned();
    let other = Setup::default()
        .listen("127.0.0.1:1")
        .data_dir("./elsewhere")
        .server("max_connections: 7")
        .section("journal: { durability: off, retention: 1h }")
        .section("short_term: { max_sessions: 77 }");
    daemon.rewrite(other);
    let expected = [
        "data_dir",
        "journal.durability",
        "server.listen",
        "server.max_connections",
    ];
    for expected_applied in [
        &["journal.retention", "short_term.max_sessions"][..],
        &[],
        &[],
    ] {
        let (applied, mut refused) = reload(&mut admin).await;
        assert_eq!(applied, expected_applied);
        refused.sort_unstable();
        assert_eq!(refused.len(), expected.len(), "{refused:?}");
        for (said, setting) in refused.iter().zip(expected) {
            assert!(said.starts_with(&format!("{setting}: stays ")), "{said}");
        }
        assert!(
            refused.iter().any(|said| said.contains("127.0.0.1:0")),
            "{refused:?}"
        );
    }
    assert_eq!(tenant(&mut admin).await.max_sessions, 77);
    say(&mut daemon.sessions(), "a", "still here").await;
    assert_eq!(daemon.grpc_addr(), grpc);
    assert!(!daemon.path("elsewhere").exists());
    daemon.rewrite(Setup::default());
    let (applied, refused) = reload(&mut admin).await;
    assert_eq!(applied, ["journal.retention", "short_term.max_sessions"]);
    assert_eq!(refused, [""; 0], "nothing differs any more");
}

#[tokio::test]
async fn invalid_file_changes_nothing_and_names_the_problem() {
    let daemon = Daemon::with(short_term("max_sessions: 5")).await;
    let mut admin = daemon.admin();
    let good = daemon
        .setup()
        .yaml(daemon.path("data").parent().expect("a directory"));
    let lowered = good.replace("max_sessions: 5", "max_sessions: 1");
    assert_ne!(good, lowered);
    for name in ["a", "b", "c"] {
        say(&mut daemon.sessions(), name, "hi").await;
    }
    for (text, said) in [
        (format!("{lowered}nonsense: 1\n"), "nonsense"),
        (lowered.replace("version: 1", "version: 2"), "version"),
        (
            lowered.replace("max_sessions: 1", "max_sessions: 1, session_ttl: 0s"),
            "session_ttl",
        ),
        (
            lowered.replace("exec:", "webhook: { url: 'ftp://x' }, exec:"),
            "hooks[0]",
        ),
        (
            format!("{lowered}tenants: [ {{ id: x, keys: [ {{ env: NO_SUCH }} ] }} ]\n"),
            "NO_SUCH",
        ),
        (
            format!("{lowered}log: {{ filter: 'info,[[' }}\n"),
            "log.filter",
        ),
        (
            lowered.replace("max_sessions: 1", "max_sessions: [1"),
            "line",
        ),
        ("\u{0}\u{1}".to_owned(), ""),
    ] {
        daemon.rewrite_text(&text);
        let problem = refused(
            try_reload(&mut admin).await,
            Code::FailedPrecondition,
            "CONFIG_INVALID",
        );
        assert!(problem.contains(said), "{said}: {problem}");
        assert_eq!(tenant(&mut admin).await.max_sessions, 5, "{said}");
        assert_eq!(stats(&mut admin).await.sessions_live, 3, "{said}");
    }
    std::fs::remove_file(daemon.path("memoird.yaml")).expect("it was there");
    refused(
        try_reload(&mut admin).await,
        Code::FailedPrecondition,
        "CONFIG_INVALID",
    );
    std::fs::create_dir(daemon.path("memoird.yaml")).expect("a folder in its place");
    refused(
        try_reload(&mut admin).await,
        Code::FailedPrecondition,
        "CONFIG_INVALID",
    );
    let page = http_get(daemon.admin_addr(), "/metrics").await.1;
    assert!(
        page.contains(r#"memoird_reloads_total{outcome="applied"} 0"#),
        "{page}"
    );
    std::fs::remove_dir(daemon.path("memoird.yaml")).expect("it was there");
    daemon.rewrite_text(&lowered);
    assert_eq!(reload(&mut admin).await.0, ["short_term.max_sessions"]);
    assert_eq!(stats(&mut admin).await.sessions_live, 1);
}

#[tokio::test]
async fn lowered_tenant_cap_does_not_affect_other_tenants() {
    let mut daemon = Daemon::with(Setup::default().two_tenants("max_sessions: 5", "")).await;
    for key in [Setup::ALPHA, Setup::BETA] {
        for name in ["a", "b", "c"] {
            say(&mut daemon.sessions_of(key), name, "hi").await;
        }
    }
    let mut admin = daemon.admin_of(Setup::ADMIN);
    daemon.rewrite(Setup::default().two_tenants("max_sessions: 1", ""));
    assert_eq!(reload(&mut admin).await.0, ["tenants"]);
    let of_tenants = stats(&mut admin).await.tenants;
    let live: Vec<(&str, u64)> = of_tenants
        .iter()
        .map(|tenant| (tenant.id.as_str(), tenant.sessions_live))
        .collect();
    assert_eq!(live, [("alpha", 1), ("beta", 3)]);
    // The sweeper may have evicted before the reload. Its evictions are counted once committed.
    eventually("two are evicted", async || {
        let of_tenants = stats(&mut admin).await.tenants;
        let evicted = of_tenants.iter().map(|tenant| tenant.evicted).sum::<u64>();
        (evicted == 2).then_some(())
    })
    .await;
}

#[tokio::test]
async fn sighup_without_config_file_is_logged() {
    // The daemon listens on the default ports, so it gets its own network namespace.
    let script = "ip link set lo up && mkdir memoird-data && ln -s memoird-data data && \
                  exec \"$1\" serve";
    let test = "reload::sighup_without_config_file_is_logged";
    if !Namespace::Network.allows("ip link set lo up", test) {
        return;
    }
    let setup = Setup::default().wrapper(&["unshare", "-n", "sh", "-c", script, "sh"]);
    let mut daemon = Daemon::with(setup).await;
    daemon.signal("-HUP");
    eventually("it says so", async || {
        daemon
            .log()
            .contains("started without --config; there is no file")
            .then_some(())
    })
    .await;
    daemon.stop().await;
}
