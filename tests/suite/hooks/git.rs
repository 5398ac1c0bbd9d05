//! Checkpoint repositories, inspected with git.

use std::collections::BTreeSet;
use std::path::PathBuf;

use memoird_proto::v1::{SweepNowRequest, Turn};
use serde_json::Value;

use crate::harness::{
    Daemon, Seed, Setup, all_delivered, append, assistant, documents, each_once, end, eventually,
    fsck, git, say, tool_results, tool_uses, user,
};

pub(super) const HOOK: &str = "hooks: [ { name: checkpoint, retry: { pause: 50ms, pause_max: 200ms }, \
     git: { dir: ./checkpoints } } ]";

pub(super) fn repository(daemon: &Daemon, tenant: &str) -> PathBuf {
    daemon.path(&format!("checkpoints/{tenant}.git"))
}

#[track_caller]
fn show(dir: &std::path::Path, name: &str) -> String {
    git(dir, &["show", &format!("main:{name}")])
}

fn front_matter(document: &str) -> Value {
    let rest = document.strip_prefix("---\n").expect("front matter");
    let (yaml, _) = rest.split_once("\n---\n").expect("its end");
    serde_yaml::from_str(yaml).unwrap_or_else(|error| panic!("{error}: {yaml}"))
}

fn conversation() -> Vec<Turn> {
    let mut turns = vec![user("find ```the``` report\n---\n# not a heading")];
    turns.extend([
        tool_uses(&["a", "b"]),
        tool_results(&["a", "b"]),
        assistant("here: ☃"),
    ]);
    turns.extend((0..8).map(|number| user(&format!("more {number}"))));
    turns
}

#[tokio::test]
async fn ended_session_is_committed_as_readable_markdown() {
    let short = Setup::default().section("short_term: { max_history_turns: 4 }");
    let daemon = Daemon::with(short.section(HOOK)).await;
    let mut client = daemon.sessions();
    for turn in conversation() {
        let request = append("telegram:4711", [turn]);
        client.append(request).await.expect("done");
    }
    let generation = end(&mut client, "telegram:4711").await;
    all_delivered(&mut daemon.admin()).await;
    let dir = repository(&daemon, "default");
    fsck(&dir);
    each_once(&dir, std::slice::from_ref(&generation), "one");
    let log = git(&dir, &["log", "--format=%an <%ae>|%s", "main"]);
    assert_eq!(
        log,
        "memoird <memoird@localhost>|Checkpoint telegram:4711: ended after 12 turns\n"
    );
    let stat = git(&dir, &["show", "--stat=200", "--format=", "main"]);
    let name = format!("telegram%3A4711-{generation}");
    assert!(
        stat.contains(&format!("{name}.md")) && stat.contains("2 files changed"),
        "{stat}"
    );
    let names = documents(&dir);
    let [document] = &names[..] else {
        panic!("{names:?}")
    };
    let text = show(&dir, document);
    let front = front_matter(&text);
    for (field, expected) in [
        ("tenant", "default"),
        ("session", "telegram:4711"),
        ("generation", &generation),
        ("reason", "ended"),
    ] {
        assert_eq!(front[field], expected, "{front}");
    }
    assert_eq!(
        (&front["turns"], &front["last_seq"]),
        (&12.into(), &12.into()),
        "{front}"
    );
    assert!(!text.contains("\n# not a heading"), "{text}");
    let lines = show(&dir, &format!("{}.jsonl", document.trim_end_matches(".md")));
    let lines: Vec<Value> = lines
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    assert_eq!(lines.len(), 12, "with those that the history dropped");
    for ((seq, turn), line) in (1_u64..).zip(conversation()).zip(&lines) {
        assert_eq!(line["seq"], seq);
        let first = turn.parts.first().and_then(|part| part.part.clone());
        let Some(memoird_proto::v1::part::Part::Text(text)) = first else {
            continue;
        };
        assert_eq!(line["parts"][0]["text"], text);
    }
    assert_eq!(lines[1]["parts"][1]["tool_use"]["id"], "b");
    assert_eq!(
        lines[2]["parts"][0]["tool_result"]["content"],
        "result of a"
    );
}

const ODD: [&str; 50] = [
    "/",
    "//",
    "a/b",
    "../../etc/passwd",
    ".",
    "..",
    "...",
    ".git",
    ".GIT",
    ".git/config",
    "git~1",
    ".gitmodules",
    ".gitattributes",
    "-x",
    "--help",
    "a\nb",
    "\n",
    "\r\n",
    "\t",
    "\0",
    " ",
    "a ",
    "a.",
    "a.lock",
    "HEAD",
    "CON",
    "nul.txt",
    "~",
    "%",
    "%2F",
    "a%2Fb",
    "a:b",
    "a\\b",
    "*?\"<>|",
    "🦀🦀",
    "é",
    "e\u{301}",
    "\u{202e}abc",
    "\u{200d}",
    "\u{feff}",
    "A",
    "a",
    "README",
    "sessions",
    "\u{1b}[31mred",
    "Case",
    "case",
    "x.md",
    "x.jsonl",
    "x-01ARYZ6S41TSV4RRFFQ69G5FAV",
];

fn any_ids() -> Vec<String> {
    const SEED: u64 = 99;
    let mut random = Seed::new(SEED);
    let mut ids: Vec<String> = ODD.into_iter().map(str::to_owned).collect();
    ids.extend([
        "y".repeat(256),
        ":".repeat(256),
        "🦀".repeat(64),
        format!("{}z", "y".repeat(255)),
    ]);
    for _ in 0..20 {
        let count = 1 + random.below(100);
        let text = String::from_utf8_lossy(&random.bytes(count)).into_owned();
        let end = (0..=text.len().min(256)).rfind(|end| text.is_char_boundary(*end));
        ids.push(text[..end.expect("0 is one")].to_owned());
    }
    ids.sort_unstable();
    ids.dedup();
    ids
}

#[tokio::test]
async fn sessions_with_any_id_get_separate_portable_files() {
    let daemon = Daemon::with(Setup::default().section(HOOK)).await;
    let mut client = daemon.sessions();
    let mut expected = BTreeSet::new();
    for id in any_ids() {
        say(&mut client, &id, &format!("I am {id:?}")).await;
        expected.insert((end(&mut client, &id).await, id));
    }
    all_delivered(&mut daemon.admin()).await;
    let dir = repository(&daemon, "default");
    fsck(&dir);
    let generations: Vec<String> = expected.iter().map(|(g, _)| g.clone()).collect();
    each_once(&dir, &generations, "any name");
    // A clone has all files, even on file systems that restrict names.
    let clone = daemon.path("clone");
    let clone_path = clone.to_str().expect("UTF-8");
    git(
        &dir,
        &[
            "-c",
            "core.protectHFS",
            "-c",
            "core.protectNTFS",
            "clone",
            "-q",
            ".",
            clone_path,
        ],
    );
    assert_eq!(git(&clone, &["status", "--porcelain"]), "");
    let mut found = BTreeSet::new();
    for name in documents(&dir) {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "._@+=-%~/".contains(c);
        assert!(
            name.chars().all(is_plain) && name.starts_with("sessions/2"),
            "{name}"
        );
        assert!(name.len() < 200, "{name}");
        let front = front_matter(&std::fs::read_to_string(clone.join(&name)).expect("a file"));
        let field = |field: &str| front[field].as_str().expect("text").to_owned();
        found.insert((field("generation"), field("session")));
    }
    assert_eq!(found, expected, "and says whose it is");
    let log = git(&dir, &["log", "--format=%B", "main"]);
    let is_tame = |c: char| c == '\n' || !c.is_control();
    assert!(log.chars().all(is_tame), "{log:?}");
}

#[tokio::test]
async fn each_tenant_has_its_own_repository() {
    let daemon = Daemon::with(Setup::default().two_tenants("", "").section(HOOK)).await;
    let mut of_tenants = Vec::new();
    for (tenant, key) in [("alpha", Setup::ALPHA), ("beta", Setup::BETA)] {
        let mut client = daemon.sessions_of(key);
        say(&mut client, "same", &format!("a secret of {tenant}")).await;
        of_tenants.push((tenant, end(&mut client, "same").await));
    }
    all_delivered(&mut daemon.admin_of(Setup::ADMIN)).await;
    for (tenant, generation) in &of_tenants {
        let dir = repository(&daemon, tenant);
        each_once(&dir, std::slice::from_ref(generation), tenant);
        let text = git(&dir, &["log", "-p", "main"]);
        let other = if *tenant == "alpha" { "beta" } else { "alpha" };
        assert!(text.contains(&format!("a secret of {tenant}")));
        assert!(!text.contains(other), "{text}");
        fsck(&dir);
    }
}

#[tokio::test]
async fn durability_off_stop_commits_every_session() {
    const SESSIONS: usize = 40;
    let off = Setup::default()
        .section("journal: { durability: off }")
        .section(HOOK);
    let mut daemon = Daemon::with(off).await;
    let mut client = daemon.sessions();
    let mut generations = Vec::new();
    for number in 0..SESSIONS {
        let answer = say(&mut client, &format!("s{number}"), "hi").await;
        generations.push(answer.session.expect("a session").generation);
    }
    daemon.stop().await;
    let dir = repository(&daemon, "default");
    each_once(&dir, &generations, "at the stop");
    fsck(&dir);
    let log = git(&dir, &["log", "--format=%s", "main"]);
    assert_eq!(log.lines().count(), 1, "{log}");
    assert!(log.contains("40 shutdown"), "{log}");
}

#[tokio::test]
async fn expired_session_is_committed_with_its_reason() {
    let quick = Setup::default()
        .section("short_term: { session_ttl: 200ms }")
        .section(HOOK);
    let daemon = Daemon::with(quick).await;
    let (mut client, mut admin) = (daemon.sessions(), daemon.admin());
    say(&mut client, "a", "hi").await;
    eventually("it is committed", async || {
        admin
            .sweep_now(SweepNowRequest::default())
            .await
            .expect("swept");
        repository(&daemon, "default")
            .join("refs/heads/main")
            .exists()
            .then_some(())
    })
    .await;
    all_delivered(&mut admin).await;
    let log = git(
        &repository(&daemon, "default"),
        &["log", "--format=%s", "main"],
    );
    assert_eq!(log, "Checkpoint a: expired after 1 turn\n");
}
