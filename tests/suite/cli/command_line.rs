//! Command line: human and machine-readable output, and exit codes.

use std::path::PathBuf;

use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::harness::{Daemon, Setup, append, ask_as, fails, live, run, say, tool_uses, user};

#[tokio::test]
async fn default_configuration_prints_passes_check_and_matches_repository() {
    let printed = run(&["config", "print-default"], &[]).await;
    assert_eq!(printed.code, Some(0));
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../config/memoird.yaml");
    assert_eq!(
        printed.stdout,
        std::fs::read_to_string(&file).expect("the file")
    );
    let checked = run(&["config", "check", &file.display().to_string()], &[]).await;
    assert_eq!(checked.code, Some(0), "{checked:?}");
    assert!(checked.stdout.contains("good"), "{checked:?}");
    let daring = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(
        daring.path(),
        "version: 1\nserver: { allow_without_keys: true }\nshort_term: { max_sessions: 0 }",
    )
    .expect("written");
    let warned = run(
        &["config", "check", &daring.path().display().to_string()],
        &[],
    )
    .await;
    assert_eq!(warned.code, Some(0));
    assert!(
        warned.stdout.contains("warning: short_term.max_sessions"),
        "{warned:?}"
    );
    let file = daring.path().display().to_string();
    let told = run(&["config", "check", &file, "--json"], &[]).await.json();
    assert_eq!(told["file"], file);
    let warning = told["warnings"][0].as_str().expect("a warning");
    assert!(warning.starts_with("short_term.max_sessions"), "{told}");
    let missing = run(&["config", "check", "/proc/no-such-file"], &[]).await;
    fails(&missing, 66, "/proc/no-such-file");
    let missing = run(&["serve", "--config", "/proc/no-such-file"], &[]).await;
    fails(&missing, 66, "/proc/no-such-file");
}

#[tokio::test]
async fn sessions_command_lists_shows_and_ends() {
    let daemon = Daemon::start().await;
    let mut client = daemon.sessions();
    let turns = [user("first\u{1b}[2J"), tool_uses(&["a"])];
    client.append(append("chat/1", turns)).await.expect("done");
    say(&mut client, "chat/2", "hi").await;

    let list = ask_as(&daemon, &["sessions", "list"], "").await;
    assert_eq!(list.code, Some(0), "{list:?}");
    let lines: Vec<&str> = list.stdout.lines().collect();
    assert!(
        lines[0].starts_with("SESSION") && lines.len() == 3,
        "{list:?}"
    );
    assert!(
        lines[1].starts_with("chat/2") && lines[2].starts_with("chat/1"),
        "{list:?}"
    );
    let list = ask_as(&daemon, &["sessions", "list", "--json", "--limit", "1"], "")
        .await
        .json();
    assert_eq!(list["sessions"].as_array().map(Vec::len), Some(1));
    assert_eq!(list["sessions"][0]["session_id"], "chat/2");

    let show = ask_as(&daemon, &["sessions", "show", "chat/1"], "").await;
    assert_eq!(show.code, Some(0), "{show:?}");
    assert!(
        show.stdout.contains("first") && !show.stdout.contains('\u{1b}'),
        "{show:?}"
    );
    let show = ask_as(&daemon, &["sessions", "show", "chat/1", "--json"], "")
        .await
        .json();
    assert_eq!(show["session"]["last_seq"], 2);
    let call = json!({"id": "a", "name": "look", "input_json": "{\"at\": \"it\"}"});
    assert_eq!(show["turns"][1]["parts"][0]["tool_use"], call);

    let ended = ask_as(&daemon, &["sessions", "end", "chat/1", "--json"], "")
        .await
        .json();
    assert_eq!(ended["session"]["session_id"], "chat/1");
    let again = ask_as(&daemon, &["sessions", "end", "chat/1"], "").await;
    fails(&again, 1, "SESSION_NOT_FOUND");
    fails(
        &ask_as(&daemon, &["sessions", "show", "chat/1"], "").await,
        1,
        "SESSION_NOT_FOUND",
    );
    let generation = ended["session"]["generation"]
        .as_str()
        .expect("a generation");
    let args = [
        "sessions",
        "show",
        "chat/1",
        "--generation",
        generation,
        "--json",
    ];
    let old = ask_as(&daemon, &args, "").await.json();
    let list = ask_as(&daemon, &["sessions", "list", "--ended"], "").await;
    let lines: Vec<&str> = list.stdout.lines().collect();
    assert!(lines.len() == 2 && lines[0].ends_with("REASON"), "{list:?}");
    assert!(
        lines[1].starts_with("chat/1") && lines[1].ends_with("  ended"),
        "{list:?}"
    );
    assert!(lines[1].contains(generation), "{list:?}");
    let list = ask_as(&daemon, &["sessions", "list", "--all", "--json"], "").await;
    let all = list.json();
    assert_eq!(all["sessions"][0]["end_reason"], "END_REASON_ENDED");
    assert_eq!(all["sessions"][1]["session_id"], "chat/2");
    assert_eq!(all["sessions"][1]["ended_at"], Value::Null);
    let both = ["sessions", "list", "--ended", "--all"];
    fails(&ask_as(&daemon, &both, "").await, 2, "--all");
    assert_eq!(old["session"], Value::Null);
    assert_eq!(old["turns"].as_array().map(Vec::len), Some(2));
    assert_eq!(
        live(&mut client, "chat/2").await.len(),
        1,
        "the other one lives"
    );
}

#[tokio::test]
async fn sessions_show_prints_newest_turns_of_long_session() {
    let daemon = Daemon::start().await;
    let mut client = daemon.sessions();
    for first in (1..=2_250).step_by(250) {
        let turns = (first..first + 250).map(|number: u64| user(&number.to_string()));
        let turns: Vec<_> = turns.collect();
        client.append(append("long", turns)).await.expect("done");
    }
    for (wanted, expected) in [("", 1..=2_250), ("1500", 751..=2_250), ("3", 2_248..=2_250)] {
        let mut args = vec!["sessions", "show", "long", "--journal", "--json"];
        if !wanted.is_empty() {
            args.extend(["--turns", wanted]);
        }
        let shown = ask_as(&daemon, &args, "").await.json();
        let turns = shown["turns"].as_array().expect("turns").iter();
        let seqs: Vec<u64> = turns.filter_map(|turn| turn["seq"].as_u64()).collect();
        assert_eq!(seqs, expected.collect::<Vec<_>>(), "{wanted}");
    }
    let args = ["sessions", "show", "long", "--turns", "0", "--json"];
    let none = ask_as(&daemon, &args, "").await.json();
    assert_eq!(none["turns"], json!([]));
}

#[tokio::test]
async fn stats_command_prints_table_and_json() {
    let daemon = Daemon::start().await;
    say(&mut daemon.sessions(), "chat", "hi").await;
    let stats = ask_as(&daemon, &["stats", "--json"], "").await.json();
    assert_eq!(
        (&stats["sessions_live"], &stats["turns_appended"]),
        (&json!(1), &json!(1))
    );
    assert_eq!(stats["tenants"][0]["id"], "default");
    let stats = ask_as(&daemon, &["stats"], "").await;
    assert_eq!(stats.code, Some(0), "{stats:?}");
    assert!(
        stats.stdout.contains("sessions live") && stats.stdout.contains("TENANT"),
        "{stats:?}"
    );
    let unknown = ask_as(&daemon, &["stats", "--tenant", "nobody"], "").await;
    fails(&unknown, 1, "TENANT_NOT_FOUND");
}

#[tokio::test]
async fn key_is_read_from_environment_or_file_never_from_arguments() {
    let daemon = Daemon::with(Setup::default().two_tenants("", "")).await;
    let list = ["sessions", "list"];
    fails(&ask_as(&daemon, &list, "").await, 77, "NO_KEY");
    let wrong = ask_as(&daemon, &list, "a-wrong-key").await;
    fails(&wrong, 77, "WRONG_KEY");
    assert!(!wrong.stderr.contains("a-wrong-key"), "{wrong:?}");
    assert_eq!(ask_as(&daemon, &list, Setup::BETA).await.code, Some(0));
    fails(
        &ask_as(&daemon, &["stats"], Setup::BETA).await,
        77,
        "ROLE_REQUIRED",
    );
    assert_eq!(
        ask_as(&daemon, &["stats"], Setup::ADMIN).await.code,
        Some(0)
    );

    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), format!("{}\n", Setup::ADMIN)).expect("written");
    let path = file.path().display().to_string();
    let by_file = ask_as(&daemon, &["stats", "--key-file", &path], "a-wrong-key").await;
    assert_eq!(by_file.code, Some(0), "{by_file:?}");
    let missing = ask_as(&daemon, &["stats", "--key-file", "/proc/no-such-file"], "").await;
    fails(&missing, 66, "/proc/no-such-file");
    let seen = ask_as(&daemon, &["stats", "--key", Setup::ADMIN], "").await;
    fails(&seen, 2, "MEMOIRD_KEY");
    assert!(!seen.stderr.contains(Setup::ADMIN), "{seen:?}");
}

#[tokio::test]
async fn unreachable_daemon_exits_69_and_suggests_serve() {
    let port = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let addr = port.local_addr().expect("an address").to_string();
    drop(port);
    for args in [
        &["sessions", "list"][..],
        &["stats"],
        &["sessions", "end", "x"],
    ] {
        let mut all = vec!["--addr", &addr];
        all.extend(args);
        let outcome = run(&all, &[]).await;
        fails(&outcome, 69, &addr);
        assert!(outcome.stderr.contains("memoird serve"), "{outcome:?}");
    }
    let by_env = run(&["stats"], &[("MEMOIRD_ADDR", &addr)]).await;
    fails(&by_env, 69, &addr);
}

#[tokio::test]
async fn invalid_usage_exits_2() {
    for args in [
        &["fly"][..],
        &[],
        &["sessions", "show"],
        &["--addr", "unix:", "stats"],
        &["replay", "x.jsonl"],
        &["replay", "x.jsonl", "--format", "telepathy"],
    ] {
        let outcome = run(args, &[]).await;
        assert_eq!(outcome.code, Some(2), "{args:?}: {outcome:?}");
        assert!(!outcome.stderr.is_empty(), "{args:?}");
    }
    let help = run(&["--help"], &[]).await;
    assert_eq!(help.code, Some(0));
    assert!(
        help.stdout.contains("Exit codes") && help.stdout.contains("replay"),
        "{help:?}"
    );
}

/// The `memoird-session` header of the command's first call, percent-encoded. "-" if absent.
async fn place_of_call(args: &[&str]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let addr = listener.local_addr().expect("an address").to_string();
    let noted = async {
        let (socket, _) = listener.accept().await.expect("a connection");
        let mut connection = h2::server::handshake(socket).await.expect("HTTP/2");
        let (request, _) = connection.accept().await.expect("a call").expect("a call");
        let place = request.headers().get("memoird-session");
        place.map_or("-".to_owned(), |it| it.to_str().expect("ASCII").to_owned())
    };
    // The command fails, because the connection is closed.
    let args = [&["--addr", &addr], args].concat();
    let (place, _) = tokio::join!(noted, run(&args, &[]));
    place
}

#[tokio::test]
async fn calls_send_session_header_for_load_balancing() {
    for (args, place) in [
        (
            &["sessions", "show", "a chat/é!"][..],
            "a%20chat%2F%C3%A9%21",
        ),
        (&["window", "chat"], "chat"),
        (&["sessions", "end", "chat"], "chat"),
        (&["sessions", "erase-subject", "ann", "--yes"], "ann"),
        (&["memory", "recall", "tea", "--subject", "ann"], "ann"),
        (&["memory", "list", "--subject", "ann"], "ann"),
        (&["search", "tea", "--session", "chat"], "chat"),
        (&["sessions", "list"], "-"),
    ] {
        assert_eq!(place_of_call(args).await, place, "{args:?}");
    }
}

#[tokio::test]
async fn empty_or_irrelevant_environment_variables_are_ignored() {
    let daemon = Daemon::start().await;
    let empty = [
        "MEMOIRD_ADDR",
        "MEMOIRD_CA",
        "MEMOIRD_CERT",
        "MEMOIRD_CERT_KEY",
    ]
    .map(|it| (it, ""));
    let address = ["--addr", daemon.grpc_addr()];
    let health = run(&[&address[..], &["health"]].concat(), &empty).await;
    assert_eq!(health.code, Some(0), "{health:?}");
    // This command makes no call, so invalid connection settings do not matter.
    let wrong = [("MEMOIRD_ADDR", "no address"), ("MEMOIRD_CERT", "/nowhere")];
    let printed = run(&["config", "print-default"], &wrong).await;
    assert_eq!(printed.code, Some(0), "{printed:?}");
    let health = run(&["health"], &wrong).await;
    fails(&health, 2, "MEMOIRD_ADDR: ");
    // The daemon's CA does not apply to the database connection.
    let config = daemon.path("memoird.yaml").display().to_string();
    let migrate = [
        "migrate",
        "--config",
        &config,
        "--to",
        "host=127.0.0.1 port=1",
    ];
    let refused = run(&migrate, &[("MEMOIRD_CA", "/nowhere")]).await;
    assert!(!refused.stderr.contains("/nowhere"), "{refused:?}");
}

#[tokio::test]
async fn key_is_not_sent_over_plaintext_when_tls_options_are_given() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    for more in [["--ca", "/nowhere"], ["--cert", "/nowhere"]] {
        let args = [&["--addr", &address, "sessions", "list"], &more[..]].concat();
        let refused = run(&args, &[("MEMOIRD_KEY", "a key of a bot")]).await;
        fails(&refused, 2, "https://");
    }
}

#[tokio::test]
async fn call_command_makes_any_unary_call() {
    let daemon = Daemon::start().await;
    say(&mut daemon.sessions(), "chat", "hi").await;
    let get = [
        "call",
        "SessionService.GetSession",
        r#"{"session_id": "chat"}"#,
    ];
    let reply = ask_as(&daemon, &get, "").await.json();
    assert_eq!(reply["session"]["last_seq"], 1, "{reply}");
    let list = ask_as(&daemon, &["call", "SessionService.ListSessions"], "").await;
    assert_eq!(list.json()["sessions"][0]["session_id"], "chat");
    let missing = [
        "call",
        "SessionService.GetSession",
        r#"{"session_id": "x"}"#,
    ];
    fails(&ask_as(&daemon, &missing, "").await, 1, "SESSION_NOT_FOUND");
    for (args, problem) in [
        (&["call", "SessionService.WatchEvents"][..], "no unary call"),
        (&["call", "GetSession"], "no unary call"),
        (
            &["call", "SessionService.GetSession", r#"{"id": "x"}"#],
            "invalid request",
        ),
        (
            &["call", "SessionService.GetSession", "chat"],
            "invalid request",
        ),
    ] {
        fails(&ask_as(&daemon, args, "").await, 2, problem);
    }
}
