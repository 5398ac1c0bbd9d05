//! Commands for hooks, events and reloads: output and exit codes, also across restarts.

use std::process::Stdio;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStderr, ChildStdout, Command};

use crate::harness::{
    Daemon, Outcome, Setup, append, ask_as, binary, eventually, fails, run, say, user,
};

/// Number of events per tenant that the daemon retains.
const EVENTS_MAX: usize = 4_096;

const FAILING: &str = "hooks:\n- { name: broken, exec: { argv: [/bin/false] }, \
                       retry: { tries: 1 } }";

async fn ask(daemon: &Daemon, args: &[&str]) -> Outcome {
    ask_as(daemon, args, "").await
}

struct Watch {
    child: Child,
    out: Lines<BufReader<ChildStdout>>,
    err: Lines<BufReader<ChildStderr>>,
}

impl Watch {
    fn start(addr: &str, args: &[&str]) -> Self {
        let mut command = Command::new(binary());
        command
            .args(["--addr", addr, "watch"])
            .args(args)
            .stdin(Stdio::null());
        command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let mut child = command.spawn().expect("it is started");
        let out = BufReader::new(child.stdout.take().expect("stdout")).lines();
        let err = BufReader::new(child.stderr.take().expect("stderr")).lines();
        Self { child, out, err }
    }

    async fn line(&mut self) -> String {
        let line = tokio::time::timeout(PATIENCE, self.out.next_line()).await;
        line.expect("a line in time")
            .expect("readable")
            .expect("a line, not the end")
    }

    async fn line_with(&mut self, word: &str) -> String {
        loop {
            let line = self.line().await;
            if line.contains(word) {
                return line;
            }
        }
    }

    async fn stderr_line(&mut self, word: &str) -> String {
        loop {
            let line = tokio::time::timeout(PATIENCE, self.err.next_line()).await;
            let line = line
                .expect("a line in time")
                .expect("readable")
                .expect("no end");
            if line.contains(word) {
                return line;
            }
        }
    }
}

const PATIENCE: std::time::Duration = std::time::Duration::from_secs(40);

async fn end(daemon: &Daemon, session: &str) {
    let ended = ask(daemon, &["sessions", "end", session]).await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
}

/// Waits until `count` deliveries are in this state, and returns them.
async fn deliveries(daemon: &Daemon, state: &str, count: usize) -> Vec<Value> {
    let list = ["hooks", "list", "--json", "--limit", "0", "--state", state];
    eventually("so many deliveries are in this state", async || {
        let listed = ask(daemon, &list).await.json();
        let found = listed["deliveries"].as_array().expect("a list").clone();
        (found.len() == count).then_some(found)
    })
    .await
}

#[tokio::test]
async fn watch_prints_events_from_creation_to_end() {
    let daemon = Daemon::start().await;
    let mut client = daemon.sessions();
    say(&mut client, "before", "hi").await;
    // From the first event on, so that later events arrive whenever the watch connects.
    let mut watch = Watch::start(daemon.grpc_addr(), &["--after", "1-0"]);
    assert!(watch.line().await.contains("created         before"));
    assert!(
        watch
            .line()
            .await
            .contains("appended        before  turn 1")
    );
    client
        .append(append("chat\u{1b}[2J", [user("a"), user("b")]))
        .await
        .expect("done");
    end(&daemon, "chat\u{1b}[2J").await;
    let created = watch.line().await;
    assert!(
        created.contains("Z  created         chat\\u{1b}[2J  generation 01"),
        "{created}"
    );
    assert!(watch.line().await.ends_with("  turns 1-2"));
    assert!(watch.line().await.ends_with("  by command"));

    let mut watch = Watch::start(daemon.grpc_addr(), &["--after", "1-0", "--json"]);
    let created: Value = serde_json::from_str(&watch.line().await).expect("JSON");
    let after = [
        "--after",
        created["cursor"].as_str().expect("a cursor"),
        "--json",
    ];
    let mut watch = Watch::start(daemon.grpc_addr(), &after);
    let event: Value = serde_json::from_str(&watch.line().await).expect("JSON");
    let created_id = created["event"]["event_id"].as_u64().expect("an id");
    assert_eq!(event["event"]["event_id"], created_id + 1);
    assert_eq!(
        event["event"]["appended"],
        json!({"first_seq": 1, "last_seq": 1, "dropped_turns": 0, "client_ids": []})
    );
    let ended: Value = serde_json::from_str(&watch.line_with("END_REASON").await).expect("JSON");
    assert_eq!(ended["event"]["ended"]["reason"], "END_REASON_ENDED");
}

#[tokio::test]
async fn watch_reports_missed_events_and_watch_all_requires_admin() {
    let setup = Setup::default().section("journal: { durability: \"off\" }");
    let daemon = Daemon::with(setup.clone()).await;
    let mut client = daemon.sessions();
    say(&mut client, "chat", "the first").await;
    let mut watch = Watch::start(daemon.grpc_addr(), &["--after", "1-0", "--json"]);
    let created: Value = serde_json::from_str(&watch.line().await).expect("JSON");
    let first = created["cursor"].as_str().expect("a cursor");
    for number in 1..EVENTS_MAX {
        say(&mut client, "chat", &number.to_string()).await;
    }
    let mut watch = Watch::start(daemon.grpc_addr(), &["--after", first]);
    assert!(
        watch.line().await.contains("appended"),
        "the oldest that is kept"
    );
    say(&mut client, "chat", "one more").await;
    say(&mut client, "chat", "and another").await;
    let mut watch = Watch::start(daemon.grpc_addr(), &["--after", first]);
    assert_eq!(watch.line().await, "… 2 events missed");
    assert!(watch.line().await.contains("appended        chat  turn 3"));

    let daemon = Daemon::with(setup.two_tenants("", "")).await;
    let refused = ask_as(&daemon, &["watch", "--all"], Setup::BETA).await;
    fails(&refused, 77, "ROLE_REQUIRED");
    let both = ask_as(&daemon, &["watch", "--all", "--after", "1-0"], Setup::ADMIN).await;
    fails(&both, 2, "--after");
}

#[tokio::test]
async fn watch_reconnects_after_daemon_restart_and_exits_on_closed_pipe() {
    let mut daemon = Daemon::start().await;
    // A fixed port, so that the watch finds the daemon again.
    let addr = daemon.grpc_addr().to_owned();
    let setup = daemon.setup().listen(&addr);
    daemon.stop().await;
    daemon.restart_with(setup).await;
    say(&mut daemon.sessions(), "chat", "hi").await;
    let mut watch = Watch::start(&addr, &["--after", "1-0"]);
    // The cursor is of no known start, so the watch returns all events.
    assert!(watch.line().await.contains("created"));
    assert!(watch.line().await.contains("turn 1"));
    daemon.stop().await;
    watch.stderr_line("connecting again").await;
    daemon.restart().await;
    watch.stderr_line("connected again, where it was").await;
    say(&mut daemon.sessions(), "chat", "again").await;
    assert!(watch.line().await.contains("appended        chat  turn 2"));
    watch.stderr_line("was restarted").await;

    let Watch {
        mut child,
        out,
        err: _err,
    } = watch;
    drop(out);
    let ended = tokio::time::timeout(PATIENCE, child.wait())
        .await
        .expect("in time");
    assert_eq!(
        ended.expect("a status").code(),
        Some(0),
        "nothing is wrong with a closed pipe"
    );
}

#[tokio::test]
async fn hooks_command_lists_retries_and_drops_dead_deliveries() {
    let daemon = Daemon::with(Setup::default().section(FAILING)).await;
    for session in ["a", "b", "c"] {
        say(&mut daemon.sessions(), session, "hi").await;
        end(&daemon, session).await;
    }
    let dead = deliveries(&daemon, "dead", 3).await;
    assert_eq!(
        (&dead[0]["hook"], &dead[0]["state"]),
        (&json!("broken"), &json!("DELIVERY_STATE_DEAD"))
    );
    let id = |place: usize| dead[place]["id"].as_str().expect("an id");
    let list = ask(
        &daemon,
        &["hooks", "list", "--hook", "broken", "--limit", "2"],
    )
    .await;
    assert_eq!(list.code, Some(0), "{list:?}");
    let lines: Vec<&str> = list.stdout.lines().collect();
    assert!(lines.len() == 3 && lines[0].starts_with("ID "), "{list:?}");
    assert!(
        lines[1].starts_with(id(0)) && lines[1].contains("  dead "),
        "{list:?}"
    );
    let none = ask(&daemon, &["hooks", "list", "--hook", "other", "--json"])
        .await
        .json();
    assert_eq!(none["deliveries"], json!([]));

    let retried = ask(&daemon, &["hooks", "retry", id(0), "--json"])
        .await
        .json();
    assert_eq!(retried["deliveries"][0]["state"], "DELIVERY_STATE_PENDING");
    deliveries(&daemon, "dead", 3).await;
    let all = ask(
        &daemon,
        &["hooks", "retry", "--all-dead", "--hook", "broken"],
    )
    .await;
    assert_eq!(
        (all.code, &*all.stdout),
        (Some(0), "3 deliveries are due now\n"),
        "{all:?}"
    );
    let others = ask(
        &daemon,
        &["hooks", "retry", "--all-dead", "--hook", "other"],
    )
    .await;
    assert_eq!(others.stdout, "0 deliveries are due now\n");
    deliveries(&daemon, "dead", 3).await;

    let dropped = ask(&daemon, &["hooks", "drop", id(1), id(2)]).await;
    assert_eq!(dropped.code, Some(0), "{dropped:?}");
    assert_eq!(
        dropped.stdout,
        format!("dropped  {}\ndropped  {}\n", id(1), id(2))
    );
    let left = deliveries(&daemon, "dead", 1).await;
    assert_eq!(left[0]["id"], id(0));
    fails(
        &ask(&daemon, &["hooks", "drop", id(1)]).await,
        1,
        "DELIVERY_NOT_FOUND",
    );
    let some = ask(&daemon, &["hooks", "drop", id(1), id(0)]).await;
    assert_eq!(
        (some.code, some.stdout),
        (Some(1), format!("dropped  {}\n", id(0)))
    );
    assert!(some.stderr.contains(id(1)), "{}", some.stderr);
    deliveries(&daemon, "dead", 0).await;
    for args in [
        &["hooks", "retry"][..],
        &["hooks", "drop"],
        &["hooks", "list", "--state", "odd"],
    ] {
        assert_eq!(ask(&daemon, args).await.code, Some(2), "{args:?}");
    }
    let both = ask(&daemon, &["hooks", "retry", "--all-dead", id(0)]).await;
    assert_eq!(both.code, Some(2), "{both:?}");
}

#[tokio::test]
async fn reload_command_prints_applied_refused_and_invalid_settings() {
    let setup = Setup::default().section("short_term: { max_sessions: 5 }");
    let daemon = Daemon::with(setup).await;
    let file = daemon.path("memoird.yaml");
    let text = std::fs::read_to_string(&file).expect("the file");
    // The daemon also polls the file, so it may apply a change before the command does.
    let none = ask(&daemon, &["reload"]).await;
    assert_eq!(
        (none.code, &*none.stdout),
        (Some(0), "nothing has changed\n"),
        "{none:?}"
    );

    let other = text.replace("max_sessions: 5", "max_sessions: 6, max_history_turns: 0");
    std::fs::write(&file, other.replace("version: 1", "version: 2")).expect("written");
    let bad = ask(&daemon, &["reload"]).await;
    fails(&bad, 1, "CONFIG_INVALID");
    for line in [
        "\n  version: ",
        "\n  short_term.max_history_turns: must be at least 1",
    ] {
        assert!(bad.stderr.contains(line), "{line} in {}", bad.stderr);
    }
    let good = text.replace("max_sessions: 5", "max_sessions: 6");
    let good = good.replace("\nserver:\n", "\nserver:\n  max_connections: 9\n");
    std::fs::write(&file, good).expect("written");
    let reloaded = ask(&daemon, &["reload"]).await;
    assert_eq!(reloaded.code, Some(0), "{reloaded:?}");
    let lines: Vec<&str> = reloaded.stdout.lines().collect();
    assert_eq!(lines[0], "applied  short_term.max_sessions", "{reloaded:?}");
    assert!(
        lines[1].starts_with("refused  server.max_connections: stays 1024"),
        "{reloaded:?}"
    );
    let again = ask(&daemon, &["reload", "--json"]).await.json();
    assert_eq!(again["applied"], json!([]));
}

#[tokio::test]
async fn checkpoints_command_lists_and_shows_without_daemon() {
    let home = tempfile::tempdir().expect("a directory");
    let dir = home.path().join("checkpoints").display().to_string();
    let hook = format!("hooks:\n- {{ name: checkpoint, git: {{ dir: {dir:?} }} }}");
    let mut daemon = Daemon::with(Setup::default().section(hook)).await;
    let missing = run(&["checkpoints", "list", "--dir", &dir], &[]).await;
    fails(&missing, 66, "--tenant");
    for session in ["chat/1", "chat/2", "chat/1"] {
        say(&mut daemon.sessions(), session, "hello").await;
        end(&daemon, session).await;
    }
    deliveries(&daemon, "done", 3).await;
    daemon.stop().await;

    let list = run(&["checkpoints", "list", "--dir", &dir], &[]).await;
    assert_eq!(list.code, Some(0), "{list:?}");
    let lines: Vec<&str> = list.stdout.lines().collect();
    assert!(
        lines.len() == 4 && lines[0].starts_with("ENDED AT"),
        "{list:?}"
    );
    assert!(
        lines[1].contains("  ended ") && lines[1].contains("  chat/1  "),
        "{list:?}"
    );
    let config = daemon.path("memoird.yaml").display().to_string();
    let args = [
        "checkpoints",
        "list",
        "chat/1",
        "--config",
        &config,
        "--json",
    ];
    let listed = run(&args, &[]).await.json();
    let found = listed["checkpoints"].as_array().expect("a list");
    assert_eq!((found.len(), &found[0]["turns"]), (2, &json!(1)));

    let newest = run(&["checkpoints", "show", "chat/1", "--dir", &dir], &[]).await;
    assert_eq!(newest.code, Some(0), "{newest:?}");
    assert!(newest.stdout.starts_with("---\n") && newest.stdout.contains("\n> hello\n"));
    let generation = found[1]["generation"].as_str().expect("a generation");
    assert!(!newest.stdout.contains(generation), "the newest one");
    let older = [
        "checkpoints",
        "show",
        "chat/1",
        "--generation",
        generation,
        "--dir",
        &dir,
    ];
    let shown = run(&older, &[]).await;
    assert!(
        shown
            .stdout
            .contains(&format!("generation: \"{generation}\"")),
        "{shown:?}"
    );
    let json = run(&[&older[..], &["--json"]].concat(), &[]).await.json();
    assert_eq!(json["markdown"], shown.stdout);

    fails(
        &run(&["checkpoints", "show", "nobody", "--dir", &dir], &[]).await,
        66,
        "nobody",
    );
    let tenant = ["checkpoints", "list", "--dir", &dir, "--tenant", "acme"];
    fails(&run(&tenant, &[]).await, 66, "acme.git");
    std::fs::write(home.path().join("none.yaml"), "version: 1\n").expect("written");
    let none = home.path().join("none.yaml").display().to_string();
    fails(
        &run(&["checkpoints", "list", "--config", &none], &[]).await,
        66,
        "no git hook",
    );
    std::fs::create_dir(home.path().join("checkpoints/odd.git")).expect("created");
    std::fs::write(home.path().join("checkpoints/odd.git/HEAD"), "odd").expect("written");
    let odd = ["checkpoints", "list", "--dir", &dir, "--tenant", "odd"];
    fails(&run(&odd, &[]).await, 65, "odd.git");
    let id = run(
        &["checkpoints", "show", "chat/1", "--generation", "odd"],
        &[],
    )
    .await;
    assert_eq!(id.code, Some(2), "{id:?}");
}
