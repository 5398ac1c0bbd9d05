//! `memoird export` and `memoird import`: repeatable copies of sessions between daemons.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use memoird_proto::v1::{
    GetSessionRequest, RewindSessionRequest, SessionInfo, Turn, UpdateSessionRequest,
};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;
use tokio::task::JoinSet;

use crate::harness::{
    Daemon, Sessions, Setup, append, ask_as, assistant, binary, end, fails, journal, live, say,
    tool_results, tool_uses, user,
};

const ROOMY: &str = "short_term: { max_history_turns: 5 }";

fn conversation(name: &str) -> Vec<Turn> {
    let mut first = user(name);
    first.salience = Some(0.3);
    first.metadata.insert("a".into(), "b".into());
    first.extra_json = r#"{"name": "n"}"#.into();
    vec![
        first,
        tool_uses(&["x", "y"]),
        tool_results(&["x", "y"]),
        assistant("☃ \"quoted\"\n"),
    ]
}

async fn detail(client: &mut Sessions, session: &str) -> SessionInfo {
    let request = GetSessionRequest {
        session_id: session.into(),
        include_state: true,
    };
    let reply = client.get_session(request).await.expect("a session");
    reply.into_inner().session.expect("a session")
}

#[tokio::test]
async fn export_and_import_move_tenant_and_repeated_import_adds_nothing() {
    let from = Daemon::with(Setup::default().section(ROOMY)).await;
    let mut client = from.sessions();
    for name in ["one", "two"] {
        for round in 0..3 {
            let mut request = append(name, conversation(&format!("{name} {round}")));
            request.subject = "ann".into();
            client.append(request).await.expect("done");
        }
    }
    for number in 0..600 {
        say(&mut client, "long", &number.to_string()).await;
    }
    let patch = UpdateSessionRequest {
        session_id: "one".into(),
        state_patch_json: r#"{"mood": {"now": "fine"}, "price": 0.10}"#.into(),
        ..UpdateSessionRequest::default()
    };
    client.update_session(patch).await.expect("patched");
    let exported = ask_as(&from, &["export"], "").await;
    assert_eq!(exported.code, Some(0), "{exported:?}");
    assert!(
        exported.stderr.contains("3 sessions, 624 turns"),
        "{exported:?}"
    );
    let file = from.path("export.jsonl");
    let path = file.to_str().expect("a path");

    let to = Daemon::with(Setup::default().section(ROOMY)).await;
    let mut there = to.sessions();
    // Import a file truncated in the middle of a session, then the whole file, and again.
    let lines: Vec<&str> = exported.stdout.lines().collect();
    let half = format!("{}\n", lines[..300].join("\n"));
    let mut known = 0;
    for (text, turns) in [(&half, 0), (&exported.stdout, 624), (&exported.stdout, 624)] {
        std::fs::write(&file, text).expect("written");
        let counts = ask_as(&to, &["import", path, "--json"], "").await.json();
        let number = |name: &str| counts[name].as_u64().expect("a number");
        assert_eq!(number("turns_there"), known, "{counts}");
        known += number("turns_imported");
        assert!(turns == 0 || known == turns, "{counts}");
    }
    for session in ["one", "two", "long"] {
        let expected = journal(&mut client, session, "").await;
        assert_eq!(
            journal(&mut there, session, "").await,
            expected,
            "{session}"
        );
        assert_eq!(
            live(&mut there, session).await,
            live(&mut client, session).await
        );
        let (here, there) = (
            detail(&mut client, session).await,
            detail(&mut there, session).await,
        );
        assert_eq!(there.state_json, here.state_json);
        assert_eq!(there.subject, here.subject);
    }
    let state = detail(&mut there, "one").await;
    let version = state.state_version;
    assert_eq!(version, 1, "patched once: {}", state.state_json);

    // A session that has continued is left alone, and a different conversation is refused.
    say(&mut there, "two", "later").await;
    let counts = ask_as(&to, &["import", path, "--json"], "").await.json();
    assert_eq!(
        (&counts["turns_imported"], &counts["turns_there"]),
        (&0.into(), &624.into())
    );
    end(&mut there, "two").await;
    say(&mut there, "two", "something else").await;
    let outcome = ask_as(&to, &["import", path], "").await;
    fails(
        &outcome,
        65,
        "session two has different turns from seq 1 on",
    );
}

#[tokio::test]
async fn export_selects_session_or_generation_and_import_rejects_bad_lines() {
    let daemon = Daemon::start().await;
    let mut client = daemon.sessions();
    say(&mut client, "chat", "first life").await;
    let generation = end(&mut client, "chat").await;
    say(&mut client, "chat", "second life").await;
    say(&mut client, "other", "x").await;
    let exported = ask_as(&daemon, &["export", "chat"], "").await;
    assert_eq!(exported.stdout.lines().count(), 2, "{exported:?}");
    assert!(exported.stdout.contains("second life"), "{exported:?}");
    let args = ["export", "chat", "--generation", &generation];
    let exported = ask_as(&daemon, &args, "").await;
    assert_eq!(exported.stdout.lines().count(), 2, "{exported:?}");
    assert!(exported.stdout.contains("first life"), "{exported:?}");
    fails(
        &ask_as(&daemon, &["export", "nobody"], "").await,
        1,
        "SESSION_NOT_FOUND",
    );

    let file = daemon.path("lines.jsonl");
    let path = file.to_str().expect("a path");
    for (text, problem) in [
        ("{}", "line 1: expected session and state"),
        ("{\"session\": {}}", "missing field `session_id`"),
        ("nonsense", "line 1: "),
        (
            r#"{"session_id": "a", "turn": {"role": "ROLE_USER", "parts": [{"text": "a"}]}}"#,
            "precedes its session",
        ),
    ] {
        std::fs::write(&file, text).expect("written");
        fails(&ask_as(&daemon, &["import", path], "").await, 65, problem);
    }
}

#[tokio::test]
async fn import_names_refused_session_and_continues_with_others() {
    let daemon = Daemon::start().await;
    let file = daemon.path("lines.jsonl");
    let lines: Vec<String> = ["a", "b", "c"]
        .iter()
        .map(|id| {
            let class = if *id == "b" { "kept" } else { "" };
            format!(
                r#"{{"session": {{"session_id": "{id}", "ttl_class": "{class}"}}, "state": null}}
{{"session_id": "{id}", "turn": {{"role": "ROLE_USER", "parts": [{{"text": "hello"}}]}}}}
"#
            )
        })
        .collect();
    std::fs::write(&file, lines.concat()).expect("written");
    let path = file.to_str().expect("a path");
    let outcome = ask_as(&daemon, &["import", path], "").await;
    fails(&outcome, 1, "line 3, session b: ");
    assert!(outcome.stderr.contains("TTL_CLASS"), "{outcome:?}");
    assert!(outcome.stderr.contains("2 turns imported"), "{outcome:?}");
    for id in ["a", "c"] {
        assert_eq!(live(&mut daemon.sessions(), id).await.len(), 1, "{id}");
    }
}

#[tokio::test]
async fn durability_off_exports_sessions_in_memory() {
    let off = "journal: { durability: off }";
    let from = Daemon::with(Setup::default().section(off)).await;
    say(&mut from.sessions(), "chat", "hello").await;
    let exported = ask_as(&from, &["export"], "").await;
    assert_eq!(exported.stdout.lines().count(), 2, "{exported:?}");
    let file = from.path("export.jsonl");
    std::fs::write(&file, &exported.stdout).expect("written");
    let to = Daemon::start().await;
    let path = file.to_str().expect("a path");
    for (imported, there) in [(1, 0), (0, 1)] {
        let counts = ask_as(&to, &["import", path, "--json"], "").await.json();
        let expected = (&imported.into(), &there.into());
        assert_eq!(
            (&counts["turns_imported"], &counts["turns_there"]),
            expected
        );
    }
}

fn patch(session: &str, json: &str) -> UpdateSessionRequest {
    UpdateSessionRequest {
        session_id: session.into(),
        state_patch_json: json.into(),
        ..UpdateSessionRequest::default()
    }
}

async fn exported(daemon: &Daemon) -> PathBuf {
    let exported = ask_as(daemon, &["export"], "").await;
    assert_eq!(exported.code, Some(0), "{exported:?}");
    let file = daemon.path("export.jsonl");
    std::fs::write(&file, exported.stdout).expect("written");
    file
}

/// Imports a file and returns the counts.
async fn import(daemon: &Daemon, file: &Path) -> Value {
    let path = file.to_str().expect("a path");
    ask_as(daemon, &["import", path, "--json"], "").await.json()
}

#[tokio::test]
async fn repeated_import_keeps_newer_state() {
    let (from, to) = (Daemon::start().await, Daemon::start().await);
    let mut client = from.sessions();
    for session in ["stateful", "bare"] {
        say(&mut client, session, "hi").await;
    }
    let first = patch("stateful", r#"{"mood": "fine"}"#);
    client.update_session(first).await.expect("patched");
    let file = exported(&from).await;
    import(&to, &file).await;
    let mut there = to.sessions();
    for session in ["stateful", "bare"] {
        let newer = patch(session, r#"{"mood": "better"}"#);
        there.update_session(newer).await.expect("patched");
    }
    let counts = import(&to, &file).await;
    assert_eq!(counts["turns_there"], 2, "{counts}");
    for session in ["stateful", "bare"] {
        let state = detail(&mut there, session).await.state_json;
        assert_eq!(state, r#"{"mood":"better"}"#, "{session}");
    }
}

#[tokio::test]
async fn session_used_during_export_is_exported_once() {
    let daemon = Daemon::start().await;
    let mut client = daemon.sessions();
    say(&mut client, "z-oldest", "hi").await;
    let mut appends = JoinSet::new();
    // A page holds a thousand sessions.
    for number in 0..1_000 {
        let mut client = client.clone();
        appends.spawn(async move { say(&mut client, &number.to_string(), "hi").await });
    }
    appends.join_all().await;
    let mut export = Command::new(binary())
        .args(["--addr", daemon.grpc_addr(), "export"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .expect("memoird runs");
    let mut lines = BufReader::new(export.stdout.take().expect("a pipe")).lines();
    // The export has requested its first page and now blocks on the full pipe.
    let mut sessions = Vec::from_iter(lines.next_line().await.expect("read"));
    say(&mut client, "z-oldest", "again").await;
    while let Some(line) = lines.next_line().await.expect("read") {
        sessions.push(line);
    }
    assert!(export.wait().await.expect("it ends").success());
    sessions.retain(|line| line.starts_with(r#"{"session""#));
    let is_oldest = |line: &&String| line.contains(r#""z-oldest""#);
    assert_eq!(sessions.iter().filter(is_oldest).count(), 1);
    assert_eq!(sessions.len(), 1_001);
}

#[tokio::test]
async fn import_of_rewound_session_adds_only_new_turns() {
    let (from, to) = (Daemon::start().await, Daemon::start().await);
    let mut client = from.sessions();
    for text in ["first", "second", "third"] {
        say(&mut client, "chat", text).await;
    }
    let rewind = |after_seq| RewindSessionRequest {
        session_id: "chat".into(),
        after_seq,
        ..RewindSessionRequest::default()
    };
    client.rewind_session(rewind(1)).await.expect("rewound");
    for text in ["second again", "third again", "fourth"] {
        say(&mut client, "chat", text).await;
    }
    // Also if the newest turn was rewound.
    client.rewind_session(rewind(5)).await.expect("rewound");
    let file = exported(&from).await;
    for (daemon, imported, there) in [(&from, 0, 3), (&to, 3, 0), (&to, 0, 3)] {
        let counts = import(daemon, &file).await;
        let expected = (&imported.into(), &there.into());
        assert_eq!(
            (&counts["turns_imported"], &counts["turns_there"]),
            expected
        );
    }
    // Turns appended since are added after those of the other daemon.
    say(&mut client, "chat", "fourth again").await;
    let file = exported(&from).await;
    for (daemon, imported, there) in [(&from, 0, 4), (&to, 1, 3)] {
        let counts = import(daemon, &file).await;
        let expected = (&imported.into(), &there.into());
        assert_eq!(
            (&counts["turns_imported"], &counts["turns_there"]),
            expected
        );
    }
}

#[tokio::test]
async fn session_without_turns_is_exported_with_state_and_labels() {
    let classes = "short_term: { ttl_classes: { long: 90d } }";
    let with_classes = || Daemon::with(Setup::default().section(classes));
    let (from, to) = (with_classes().await, with_classes().await);
    let mut client = from.sessions();
    let stateful = UpdateSessionRequest {
        allow_missing: true,
        ..patch("stateful", r#"{"step":1}"#)
    };
    let labelled = UpdateSessionRequest {
        allow_missing: true,
        labels: [("app".to_owned(), "shop".to_owned())].into(),
        ttl_class: "long".into(),
        keep_all: Some(true),
        ..patch("labelled", "")
    };
    for request in [stateful, labelled] {
        client.update_session(request).await.expect("created");
    }
    let file = exported(&from).await;
    let mut there = to.sessions();
    for _ in 0..2 {
        let counts = import(&to, &file).await;
        assert_eq!(counts["sessions"], 2, "{counts}");
        let stateful = detail(&mut there, "stateful").await;
        assert_eq!(stateful.state_json, r#"{"step":1}"#);
        let labelled = detail(&mut there, "labelled").await;
        assert_eq!(labelled.labels["app"], "shop");
        assert_eq!((&*labelled.ttl_class, labelled.keep_all), ("long", true));
        assert_eq!(labelled.state_version, 0);
    }
    // Existing settings are left unchanged.
    let other = UpdateSessionRequest {
        labels: [("app".to_owned(), "bank".to_owned())].into(),
        ..patch("labelled", "")
    };
    there.update_session(other).await.expect("patched");
    import(&to, &file).await;
    let labelled = detail(&mut there, "labelled").await;
    assert_eq!(labelled.labels["app"], "bank");
}

#[tokio::test]
async fn replies_may_exceed_grpc_default_message_size() {
    let roomy = "short_term: { max_history_bytes: 16MiB }\nlimits: { turn_bytes: 6MiB }";
    let daemon = Daemon::with(Setup::default().section(roomy)).await;
    say(&mut daemon.sessions(), "chat", &"a".repeat(5 << 20)).await;
    for command in [&["export"][..], &["sessions", "show", "chat"]] {
        let outcome = ask_as(&daemon, command, "").await;
        assert_eq!(outcome.code, Some(0), "{command:?}: {}", outcome.stderr);
    }
}
