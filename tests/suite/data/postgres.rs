//! A daemon whose journal is in PostgreSQL.
//!
//! Acknowledged turns survive every kind of end, hooks are called, one daemon owns the database at
//! a time, and configuration errors are reported at start.

#[path = "../../../crates/postgres/tests/conformance/start.rs"]
pub(crate) mod server;

#[path = "../../../crates/postgres/tests/conformance/proxy.rs"]
pub(crate) mod proxy;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use memoird_proto::v1::{
    BackupRequest, EraseSessionRequest, GetSessionRequest, SearchTranscriptsRequest,
    UpdateSessionRequest,
};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tonic::Code;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use crate::harness::{
    Authority, Daemon, RECORDING_HOOK, Setup, append, ask_as, channel, delivered, end, eventually,
    fails, field, http_get, journal, keyed, live, refused, run, say, text_of, tool_results,
    tool_uses, user,
};
use proxy::{NetworkFaults, behind_proxy};
use server::{Server, ServerOptions};

/// Configuration of a daemon over this database.
pub(crate) fn over(words: &str, journal: &str) -> Setup {
    let hook = format!("hooks: [ {{ name: keeps, {RECORDING_HOOK} }} ]");
    let section = format!("journal: {{ {journal} postgres: {{ url: '{words}' }} }}");
    Setup::default().section(section).section(hook)
}

/// Starts a daemon over a new database. Also returns its connection string.
async fn daemon() -> Option<(Daemon, String)> {
    let words = Server::shared()?.database();
    Some((Daemon::with(over(&words, "")).await, words))
}

#[tokio::test]
async fn acknowledged_turns_survive_kill_and_stop_with_postgres() {
    let Some((mut daemon, _)) = daemon().await else {
        return;
    };
    let mut client = daemon.sessions();
    let mut first = keyed("chat", "first", [user("go"), tool_uses(&["a"])]);
    first.subject = "user:7".into();
    client.append(first.clone()).await.expect("done");
    let patch = UpdateSessionRequest {
        session_id: "chat".into(),
        state_patch_json: r#"{"mood":"good","n":1.50}"#.into(),
        ..UpdateSessionRequest::default()
    };
    client.update_session(patch).await.expect("patched");
    let look = GetSessionRequest {
        session_id: "chat".into(),
        include_state: true,
    };
    let before = client.get_session(look.clone()).await.expect("it lives");
    let turns = live(&mut client, "chat").await;
    for how in ["kill -9", "SIGTERM"] {
        match how {
            "kill -9" => daemon.kill9().await,
            _ => daemon.stop().await,
        }
        daemon.restart().await;
        client = daemon.sessions();
        let after = client.get_session(look.clone()).await.expect("it lives");
        let (after, before) = (after.into_inner(), before.get_ref());
        let of = |info: &Option<memoird_proto::v1::SessionInfo>| {
            let info = info.clone().expect("a session");
            (
                info.generation,
                info.last_seq,
                info.subject,
                info.history_turns,
                info.state_json,
            )
        };
        assert_eq!(of(&after.session), of(&before.session), "{how}");
        assert_eq!(live(&mut client, "chat").await, turns, "{how}");
        let again = client
            .append(first.clone())
            .await
            .expect("known")
            .into_inner();
        assert!(again.duplicate, "{how}");
    }
    let results = append("chat", [tool_results(&["a"])]);
    let appended = client
        .append(results)
        .await
        .expect("it goes on")
        .into_inner();
    assert_eq!(appended.first_seq, 3);
    assert_eq!(journal(&mut client, "chat", "").await.len(), 3);
}

#[tokio::test]
async fn ended_session_is_delivered_searched_and_erased_with_postgres() {
    let Some((daemon, _)) = daemon().await else {
        return;
    };
    let mut client = daemon.sessions();
    for number in 0..5 {
        say(&mut client, "chat", &format!("marmalade {number}")).await;
    }
    let search = || {
        let (mut client, request) = (
            daemon.sessions(),
            SearchTranscriptsRequest {
                query: "marmalade".into(),
                ..SearchTranscriptsRequest::default()
            },
        );
        async move {
            let found = client.search_transcripts(request).await.expect("a search");
            found.into_inner().hits.len()
        }
    };
    eventually("they are found", async || {
        (search().await == 5).then_some(())
    })
    .await;
    let generation = end(&mut client, "chat").await;
    eventually("the hook is told", async || {
        (!delivered(&daemon).is_empty()).then_some(())
    })
    .await;
    let told = delivered(&daemon);
    assert_eq!(told.len(), 1);
    assert_eq!(field(&told[0], "generation"), generation);
    assert_eq!(told[0]["turns"].as_array().expect("turns").len(), 5);

    let erase = EraseSessionRequest {
        session_id: "chat".into(),
        ..EraseSessionRequest::default()
    };
    let erased = client
        .erase_session(erase)
        .await
        .expect("a job")
        .into_inner()
        .erasure
        .expect("an erasure");
    assert!(erased.done, "{erased:?}");
    assert_eq!(erased.erased.expect("counts").turns, 5);
    let outside = erased.outside.join("\n");
    assert!(outside.contains("until they are vacuumed"), "{outside}");
    assert_eq!(search().await, 0);
}

#[tokio::test]
async fn standby_takes_over_and_paused_daemon_exits() {
    let Some((mut first, words)) = daemon().await else {
        return;
    };
    say(&mut first.sessions(), "chat", "hello").await;
    let (mut second, admin) = Daemon::standby(over(&words, "")).await;
    let (status, readiness) = http_get(&admin, "/readyz").await;
    let standby = format!("standby: another memoird (process {}", first.pid());
    assert!(status == 503 && readiness.contains(&standby), "{readiness}");
    assert_eq!(http_get(&admin, "/healthz").await.0, 200);
    assert_eq!(http_get(&admin, "/metrics").await, (200, "# EOF\n".into()));
    // A standby exits on request without taking over.
    let (mut third, _) = Daemon::standby(over(&words, "")).await;
    third.stop().await;
    assert!(!third.log().contains("panicked"), "{}", third.log());
    // A stopping daemon releases the database.
    first.stop().await;
    second.serves().await;
    assert_eq!(http_get(&admin, "/readyz").await.0, 200);
    let turns = live(&mut second.sessions(), "chat").await;
    assert_eq!(text_of(&turns[0]), "hello");
    // If it was paused for longer than its lease, it exits instead of serving stale data.
    second.signal("-STOP");
    let third = Daemon::with(over(&words, "")).await;
    say(&mut third.sessions(), "chat", "again").await;
    second.signal("-CONT");
    let code = timeout(Duration::from_secs(30), second.ended()).await;
    assert_eq!(code.expect("it ends"), Some(69), "{}", second.log());
    assert!(second.log().contains("took over the database"));
    assert_eq!(live(&mut third.sessions(), "chat").await.len(), 2);
}

#[tokio::test]
async fn standby_takes_over_after_kill_without_loss_or_duplicates() {
    let Some((mut first, words)) = daemon().await else {
        return;
    };
    let (mut second, _) = Daemon::standby(over(&words, "")).await;
    let mut calls = JoinSet::new();
    let (acknowledged, mut done) = mpsc::unbounded_channel();
    for chat in 0..8 {
        let (mut client, acknowledged) = (first.sessions(), acknowledged.clone());
        calls.spawn(async move {
            for number in 0.. {
                let (chat, name) = (format!("chat{chat}"), format!("{chat}-{number}"));
                let append = keyed(&chat, &name, [user(&name)]);
                if client.append(append.clone()).await.is_err() {
                    return append;
                }
                acknowledged.send(name).expect("somebody counts");
            }
            unreachable!("it ends with the daemon")
        });
    }
    let mut told = Vec::new();
    while told.len() < 200 {
        told.push(done.recv().await.expect("calls go on"));
    }
    first.kill9().await;
    let unanswered = calls.join_all().await;
    second.serves().await;
    // Retried appends are stored once, whether or not they had been written.
    let mut client = second.sessions();
    for append in unanswered {
        told.push(append.idempotency_key.clone());
        client.append(append).await.expect("it is answered");
    }
    drop(acknowledged);
    while let Some(name) = done.recv().await {
        told.push(name);
    }
    let mut there = Vec::new();
    for chat in 0..8 {
        let turns = live(&mut client, &format!("chat{chat}")).await;
        there.extend(turns.iter().map(|turn| text_of(turn).to_owned()));
    }
    there.sort();
    told.sort();
    assert_eq!(there, told);
}

#[tokio::test]
async fn verify_names_damaged_turns_in_database() {
    let Some((daemon, words)) = daemon().await else {
        return;
    };
    let mut client = daemon.sessions();
    for text in ["one", "two: a text to be found", "three"] {
        say(&mut client, "chat", text).await;
    }
    let outcome = ask_as(&daemon, &["verify", "--json"], "").await;
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let checked = &outcome.json()["files"][0];
    assert_eq!(checked["turns_whole"], 3, "{checked}");
    let name = name_of(&words);
    let path = checked["path"].as_str().expect("where it is");
    assert!(path.ends_with(name), "{path}");
    Server::shared().expect("a server").run(
        name,
        "UPDATE memoird.turns SET content = set_byte(content, 9, get_byte(content, 9) # 4)
         WHERE seq = 2",
    );
    let outcome = ask_as(&daemon, &["verify"], "").await;
    assert_eq!(outcome.code, Some(65), "{outcome:?}");
    for word in ["turn 2 of generation", "session chat", name] {
        assert!(outcome.stdout.contains(word), "{outcome:?}");
    }
    assert!(outcome.stderr.contains(name), "{outcome:?}");
    // The data directory of such a daemon has no journal.
    let data = daemon.path("data");
    let outcome = run(&["verify", data.to_str().expect("a path")], &[]).await;
    fails(&outcome, 66, "checked by its daemon");
}

#[tokio::test]
async fn backup_with_postgres_is_unimplemented() {
    let Some((daemon, _)) = daemon().await else {
        return;
    };
    let answer = daemon.admin().backup(BackupRequest::default()).await;
    let answer = answer.map(|steps| steps.map(drop));
    refused(answer, Code::Unimplemented, "BACKUP_ELSEWHERE");
}

#[tokio::test]
async fn invalid_postgres_settings_are_refused_at_start() {
    let Some(server) = Server::shared() else {
        return;
    };
    let words = server.database();
    let name = words.rsplit("dbname=").next().expect("a name");
    let host = words.split(' ').next().expect("a host");
    let role = "DO $$ BEGIN CREATE ROLE memoird_locked LOGIN PASSWORD 'right';
                EXCEPTION WHEN duplicate_object THEN NULL; END $$";
    server.run(name, role);
    let locked = format!("{host} user=memoird_locked dbname={name}");
    let no_host = "postgres:///somewhere".to_owned();
    let nobodys = format!("{host} user=postgres dbname=nobodys");
    let with_password = format!("{locked} password=wrong");
    for (words, extra, problems) in [
        (&no_host, "", &["journal.postgres.url", "names no host"][..]),
        (
            &with_password,
            "",
            &["journal.postgres.url", "contains a password"],
        ),
        (
            &words,
            "durability: interval,",
            &["journal.durability", "must be sync"],
        ),
        (
            &words,
            "durability: off,",
            &["journal.durability", "must be sync"],
        ),
        (&nobodys, "", &["create the database"]),
    ] {
        let outcome = Daemon::refused(&over(words, extra)).await;
        assert_ne!(outcome.code, Some(0), "{}", outcome.stderr);
        for problem in problems {
            assert!(outcome.stderr.contains(problem), "{}", outcome.stderr);
        }
        assert!(!outcome.stderr.contains("wrong"), "{}", outcome.stderr);
    }
    // The role's password is right, but it has no privileges.
    let right = Setup::default()
        .section(format!(
            "journal: {{ postgres: {{ url: '{locked}', password: {{ env: PASSWORD }} }} }}"
        ))
        .env("PASSWORD", "right");
    let outcome = Daemon::refused(&right).await;
    let problem = "must own the schemas memoird";
    assert!(outcome.stderr.contains(problem), "{}", outcome.stderr);
    let section =
        format!("journal: {{ postgres: {{ url: '{locked}', password: {{ env: PASSWORD }} }} }}");
    let setup = Setup::default()
        .section(section)
        .env("PASSWORD", "wrong-one");
    let outcome = Daemon::refused(&setup).await;
    let problem = "journal.postgres.password";
    assert!(outcome.stderr.contains(problem), "{}", outcome.stderr);
    assert!(!outcome.stderr.contains("wrong-one"), "{}", outcome.stderr);

    let mut daemon = Daemon::with(over(&words, "")).await;
    daemon.stop().await;
    let newer = "UPDATE memoird.schema_version SET version = 99, min_reader = 99";
    server.run(name, newer);
    let outcome = Daemon::refused(&over(&words, "")).await;
    let problem = "Run the newer memoird";
    assert!(outcome.stderr.contains(problem), "{}", outcome.stderr);
}

#[tokio::test]
async fn appends_continue_when_database_connections_are_cut() {
    let Some((daemon, words)) = daemon().await else {
        return;
    };
    let server = Server::shared().expect("it is there");
    let name = words.rsplit("dbname=").next().expect("a name");
    let mut client = daemon.sessions();
    for number in 0..20 {
        say(&mut client, "chat", &number.to_string()).await;
        if number % 5 == 0 {
            let cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                       WHERE datname = current_database() AND pid <> pg_backend_pid()";
            server.run(name, cut);
        }
    }
    let turns = journal(&mut client, "chat", "").await;
    let said: Vec<&str> = turns.iter().map(text_of).collect();
    let expected: Vec<String> = (0..20).map(|number| number.to_string()).collect();
    assert_eq!(said, expected);
}

const SESSIONS: &str = "memoird.v1.SessionService";

#[tokio::test]
async fn readiness_fails_while_database_is_away_and_recovers() {
    let Some(server) = Server::shared() else {
        return;
    };
    let faults = Arc::<NetworkFaults>::default();
    let words = behind_proxy(&server.database(), &faults).expect("a server of the tests' own");
    let daemon = Daemon::with(over(&words, "")).await;
    let page = || http_get(daemon.admin_addr(), "/readyz");
    let health = async |service: &str| {
        let mut client = HealthClient::new(channel(daemon.grpc_addr()));
        let service = service.to_owned();
        let answer = client.check(HealthCheckRequest { service }).await;
        answer.expect("an answer").into_inner().status()
    };
    for round in 0..2 {
        say(&mut daemon.sessions(), "chat", &round.to_string()).await;
        assert_eq!(page().await.0, 200);
        faults.is_away.store(true, Ordering::Relaxed);
        faults.cut();
        let told = eventually("it is not ready", async || {
            Some(page().await).filter(|page| page.0 == 503)
        });
        let told = told.await.1;
        assert!(
            told.contains("journal.postgres.url does not answer"),
            "{told}"
        );
        eventually("its services are not served", async || {
            (health(SESSIONS).await == ServingStatus::NotServing).then_some(())
        })
        .await;
        // Liveness does not fail, because a restart would not help.
        assert_eq!(health("").await, ServingStatus::Serving);
        let refusal = daemon
            .sessions()
            .append(append("other", [user("lost")]))
            .await;
        assert_eq!(refusal.expect_err("refused").code(), Code::Unavailable);
        assert_eq!(live(&mut daemon.sessions(), "chat").await.len(), round + 1);
        faults.clear();
        let back = async || (page().await.0 == 200).then_some(());
        eventually("it is ready", back).await;
        eventually("its services are served", async || {
            (health(SESSIONS).await == ServingStatus::Serving).then_some(())
        })
        .await;
    }
    let turns = live(&mut daemon.sessions(), "chat").await;
    let said: Vec<&str> = turns.iter().map(text_of).collect();
    assert_eq!(said, ["0", "1"]);
    assert!(daemon.log().contains("the database answers again"));
}

/// The database name in a connection string.
fn name_of(words: &str) -> &str {
    words.rsplit("dbname=").next().expect("a name")
}

/// Like a primary that becomes a standby under the same host name.
#[tokio::test]
async fn read_only_database_is_reported_and_used_once_writable() {
    let Some((daemon, words)) = daemon().await else {
        return;
    };
    let server = Server::shared().expect("it is there");
    let name = name_of(&words);
    let mut client = daemon.sessions();
    say(&mut client, "chat", "one").await;
    let reconnect = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                     WHERE datname = current_database() AND pid <> pg_backend_pid()";
    let read_only = format!("ALTER DATABASE {name} SET default_transaction_read_only = on");
    server.run("postgres", &read_only);
    server.run(name, reconnect);
    let told = eventually("it is not ready", async || {
        let page = http_get(daemon.admin_addr(), "/readyz").await;
        (page.0 == 503).then_some(page.1)
    })
    .await;
    assert!(told.contains("read-only transaction"), "{told}");
    assert!(told.contains("name the primary"), "{told}");
    let (_, page) = http_get(daemon.admin_addr(), "/metrics").await;
    assert!(page.contains("memoird_journal_away 1"), "{page}");
    let refusal = client.append(append("chat", [user("lost")])).await;
    assert_eq!(refusal.expect_err("refused").code(), Code::Unavailable);
    let outcome = Daemon::refused(&over(&words, "")).await;
    assert!(
        outcome.stderr.contains("name the primary"),
        "{}",
        outcome.stderr
    );
    // Existing connections remain read-only; new ones are not.
    let usual = format!("ALTER DATABASE {name} RESET default_transaction_read_only");
    server.run("postgres", &usual);
    eventually("it is ready", async || {
        (http_get(daemon.admin_addr(), "/readyz").await.0 == 200).then_some(())
    })
    .await;
    say(&mut client, "chat", "two").await;
    assert_eq!(live(&mut client, "chat").await.len(), 2);
}

/// Reads work, so load balancers keep sending calls.
#[tokio::test]
async fn readiness_reports_failed_writes() {
    let Some((daemon, words)) = daemon().await else {
        return;
    };
    let server = Server::shared().expect("it is there");
    let name = name_of(&words);
    let mut client = daemon.sessions();
    say(&mut client, "chat", "one").await;
    let refuse = "CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS
                      $$ BEGIN RAISE EXCEPTION 'no more of that'; END $$;
                  CREATE TRIGGER refuse BEFORE INSERT ON memoird.turns FOR EACH ROW
                      EXECUTE FUNCTION public.refuse()";
    server.run(name, refuse);
    let refusal = client.append(append("chat", [user("lost")])).await;
    assert_eq!(refusal.expect_err("refused").code(), Code::Unavailable);
    let (status, page) = http_get(daemon.admin_addr(), "/readyz").await;
    assert_eq!(status, 200);
    assert!(page.contains("cannot be written"), "{page}");
    assert!(page.contains("no more of that"), "{page}");
    assert_eq!(live(&mut client, "chat").await.len(), 1);
    server.run(name, "DROP TRIGGER refuse ON memoird.turns");
    say(&mut client, "chat", "two").await;
    let (_, page) = http_get(daemon.admin_addr(), "/readyz").await;
    assert_eq!(page, "ready\n");
}

/// The standby does not watch its key files while it waits.
#[tokio::test]
async fn standby_reads_current_keys_when_taking_over() {
    let Some((mut first, words)) = daemon().await else {
        return;
    };
    let keys = |file: &str| {
        let script =
            "printf old-key-of-a-bot-1 > old; printf new-key-of-a-bot-2 > new; exec \"$@\"";
        over(&words, "")
            .section(format!(
                "tenants: [ {{ id: acme, keys: [ {{ file: ./{file} }} ] }} ]"
            ))
            .wrapper(&["sh", "-c", script, "sh"])
    };
    let (mut second, _) = Daemon::standby(keys("old")).await;
    second.rewrite(keys("new"));
    first.stop().await;
    second.serves().await;
    let revoked = second.sessions_of("old-key-of-a-bot-1");
    let answer = { revoked }.append(append("chat", [user("hi")])).await;
    refused(answer, Code::Unauthenticated, "WRONG_KEY");
    say(&mut second.sessions_of("new-key-of-a-bot-2"), "chat", "hi").await;
}

/// Operators look at metrics during exactly such an outage.
#[tokio::test]
async fn metrics_are_served_while_database_stalls() {
    let Some(server) = Server::shared() else {
        return;
    };
    let faults = Arc::<NetworkFaults>::default();
    let words = behind_proxy(&server.database(), &faults).expect("a server of the tests' own");
    let daemon = Daemon::with(over(&words, "")).await;
    say(&mut daemon.sessions(), "chat", "hello").await;
    faults.stalls.store(true, Ordering::Relaxed);
    // Less than the scrape timeout of a monitoring system.
    let page = http_get(daemon.admin_addr(), "/metrics");
    let page = timeout(Duration::from_secs(5), page).await;
    let (status, page) = page.expect("in time");
    assert_eq!(status, 200);
    let said = r#"memoird_turns_appended_total{tenant="default"} 1"#;
    assert!(page.contains(said), "{page}");
    faults.clear();
}

#[tokio::test]
async fn database_certificate_is_verified() {
    if Server::shared().is_none() {
        return;
    }
    let (good, other) = (Authority::new(&[]).await, Authority::new(&[]).await);
    let free = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
    let port = free.local_addr().expect("an address").port();
    drop(free);
    let options = "-c ssl=on -c ssl_cert_file=server.pem -c ssl_key_file=server-key.pem \
                   -c listen_addresses=127.0.0.1";
    let server_options = ServerOptions {
        port: Some(port),
        options: options.to_owned(),
        access: "hostssl all all 127.0.0.1/32 trust\n".to_owned(),
        files: vec![good.path("server.pem"), good.path("server-key.pem")],
    };
    let Some(_server) = Server::start(&server_options) else {
        return;
    };
    let at = |host: &str, mode: &str, authority: &Authority| {
        let words =
            format!("host={host} hostaddr=127.0.0.1 port={port} user=postgres dbname=postgres");
        let ca = authority.file("ca.pem");
        let section =
            format!("journal: {{ postgres: {{ url: '{words} sslmode={mode}', ca: {ca:?} }} }}");
        Setup::default().section(section)
    };
    for (host, mode, authority, problem) in [
        ("localhost", "require", &other, "certificate"),
        ("elsewhere.example", "require", &good, "certificate"),
        ("localhost", "disable", &good, "pg_hba.conf"),
    ] {
        let outcome = Daemon::refused(&at(host, mode, authority)).await;
        assert_eq!(outcome.code, Some(69), "{host} {mode}: {}", outcome.stderr);
        assert!(
            outcome.stderr.contains(problem),
            "{host} {mode}: {}",
            outcome.stderr
        );
    }
    let daemon = Daemon::with(at("localhost", "require", &good)).await;
    say(&mut daemon.sessions(), "chat", "hello").await;
    assert_eq!(live(&mut daemon.sessions(), "chat").await.len(), 1);
}
