//! `memoird backup` and `memoird restore`.
//!
//! A backup includes everything acknowledged before it began, also under load. An interrupted
//! backup is never mistaken for a complete one.

use std::collections::HashMap;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use memoird_proto::v1::ListSessionsRequest;
use serde_json::Value;
use tempfile::TempDir;
use tokio::task::JoinSet;

use crate::harness::{
    Daemon, Sessions, Setup, all_delivered, append, ask_as, binary, contents, end, eventually,
    fact, fails, git, journal, memories_of, remember, run, say, skip, text_of, user,
};

const CHECKPOINTS: &str =
    "hooks: [ { name: checkpoint, git: { dir: ./checkpoints, batch_wait: 10ms } } ]";

/// Returns a path that does not exist yet, inside a temporary directory.
fn vacant() -> (TempDir, String) {
    let home = tempfile::tempdir().expect("a directory");
    let dir = home.path().join("data").display().to_string();
    (home, dir)
}

async fn backup(daemon: &Daemon, dest: &str) -> Value {
    ask_as(daemon, &["backup", dest, "--json"], "").await.json()
}

async fn restore(src: &str, data: &str) {
    let outcome = run(&["restore", src, "--data", data, "--json"], &[]).await;
    let found = outcome.json();
    let damages = found["files"].as_array().expect("files").iter();
    let damages: u64 = damages
        .map(|file| file["damages_total"].as_u64().expect("a number"))
        .sum();
    assert_eq!(damages, 0, "{found}");
}

/// The texts of all turns, by session.
async fn texts_by_session(client: &mut Sessions) -> HashMap<String, Vec<String>> {
    let list = client.list_sessions(ListSessionsRequest::default()).await;
    let mut said = HashMap::new();
    for session in list.expect("a list").into_inner().sessions {
        let turns = journal(client, &session.session_id, "").await;
        let texts = turns.iter().map(|turn| text_of(turn).to_owned());
        said.insert(session.session_id, texts.collect());
    }
    said
}

/// Adds about 9.5 MB to the journal.
async fn fill(client: &mut Sessions, name: &str) {
    for number in 0..24 {
        let text = format!("{name}{number} {}", number.to_string().repeat(250_000));
        let request = append(&format!("{name}{}", number % 4), [user(&text)]);
        client.append(request).await.expect("done");
    }
}

/// The service runs as its own user, while an operator restores as root.
async fn restored_for_another_user(dest: &str) {
    let home = tempfile::tempdir().expect("a directory");
    let user = 65_534;
    if chown(home.path(), Some(user), Some(user)).is_err() {
        let test = "backup::backup_and_restore_round_trip_and_second_backup_is_incremental";
        return skip(test, "root");
    }
    restore(dest, &home.path().display().to_string()).await;
    for name in ["", "journal.db", "lock", "memories", "memories/default.db"] {
        let found = std::fs::metadata(home.path().join(name)).expect(name);
        assert_eq!((found.uid(), found.gid()), (user, user), "{name}");
    }
}

#[tokio::test]
async fn backup_and_restore_round_trip_and_second_backup_is_incremental() {
    let setup = Setup::default().section(CHECKPOINTS);
    let daemon = Daemon::with(setup.clone()).await;
    let mut client = daemon.sessions();
    say(&mut client, "chat", "hello").await;
    fill(&mut client, "large").await;
    say(&mut client, "gone", "bye").await;
    end(&mut client, "gone").await;
    all_delivered(&mut daemon.admin()).await;
    remember(&mut daemon.memories(), fact("ann", "likes tea")).await;
    let dest = daemon.path("backup").display().to_string();

    let first = backup(&daemon, &dest).await;
    assert_eq!(
        first["files"], 3,
        "memories, journal, configuration: {first}"
    );
    assert_eq!(first["bytes_copied"], first["bytes"], "{first}");
    let repository = daemon.path("checkpoints/default.git");
    let tip = git(&repository, &["rev-parse", "main"]);
    assert_eq!(
        first["checkpoint_heads"][0]["commit"],
        tip.trim(),
        "{first}"
    );

    say(&mut client, "chat", "again").await;
    let second = backup(&daemon, &dest).await;
    let number = |reply: &Value, name: &str| reply[name].as_u64().expect("a number");
    let copied = number(&second, "bytes_copied");
    assert!(
        copied > 0 && copied < number(&second, "bytes") / 2,
        "{second}"
    );
    let third = backup(&daemon, &dest).await;
    assert_eq!(third["bytes_copied"], 0, "{third}");
    eventually("the copies are removed", async || {
        (!daemon.path("data/backup.tmp").exists()).then_some(())
    })
    .await;

    // A restore detects corruption in the backup, and the next backup repairs it.
    let kept = Path::new(&dest).join("journal.db");
    let mut bytes = std::fs::read(&kept).expect("the journal");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&kept, bytes).expect("written");
    let (home, data) = vacant();
    let damaged = run(&["restore", &dest, "--data", &data], &[]).await;
    fails(&damaged, 65, "differs from what was backed up");
    let refused = Daemon::refused(&Setup::default().data_dir(&data)).await;
    assert!(refused.stderr.contains("memoird restore"), "{refused:?}");
    let mended = backup(&daemon, &dest).await;
    assert!(number(&mended, "bytes_copied") > 0, "{mended}");

    restore(&dest, &data).await;
    restored_for_another_user(&dest).await;
    let again = run(&["restore", &dest, "--data", &data], &[]).await;
    fails(&again, 73, "is not empty");
    let restored = Daemon::in_home(home, Setup::default()).await;
    assert_eq!(
        texts_by_session(&mut restored.sessions()).await,
        texts_by_session(&mut client).await
    );
    let facts = memories_of(&mut restored.memories(), "ann").await;
    assert_eq!(contents(&facts), ["likes tea"]);
    let config = restored.path("data/memoird.yaml");
    let config = std::fs::read_to_string(config).expect("the configuration");
    assert!(config.contains("checkpoint"), "{config}");
}

#[tokio::test]
async fn backup_under_load_contains_every_acknowledged_append() {
    let daemon = Daemon::start().await;
    let (stop, acknowledged) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicUsize::new(0)),
    );
    let mut writers = JoinSet::new();
    for writer in 0..4 {
        let (mut client, stop) = (daemon.sessions(), Arc::clone(&stop));
        let acknowledged = Arc::clone(&acknowledged);
        writers.spawn(async move {
            let mut number = 0;
            while !stop.load(Ordering::Relaxed) {
                say(&mut client, &format!("s{writer}"), &number.to_string()).await;
                number += 1;
                acknowledged.fetch_add(1, Ordering::SeqCst);
            }
        });
    }
    let dest = daemon.path("backup").display().to_string();
    for round in 1..=3 {
        eventually("there is load", async || {
            (acknowledged.load(Ordering::SeqCst) > round * 200).then_some(())
        })
        .await;
        let before = acknowledged.load(Ordering::SeqCst);
        backup(&daemon, &dest).await;
        let (home, data) = vacant();
        restore(&dest, &data).await;
        let roomy = Setup::default().section("short_term: { max_history_turns: 100000 }");
        let restored = Daemon::in_home(home, roomy).await;
        let said = texts_by_session(&mut restored.sessions()).await;
        assert_eq!(said.len(), 4);
        for texts in said.values() {
            let expected: Vec<String> = (0..texts.len()).map(|number| number.to_string()).collect();
            assert_eq!(*texts, expected, "in order, without a gap");
        }
        let all: usize = said.values().map(Vec::len).sum();
        assert!(all >= before, "{all} of {before}");
    }
    stop.store(true, Ordering::Relaxed);
    writers.join_all().await;
}

fn spawn_backup(daemon: &Daemon, dest: &str) -> Child {
    let child = Command::new(binary())
        .args(["--addr", daemon.grpc_addr(), "backup", dest])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    child.expect("memoird runs")
}

/// Waits until `bytes` bytes have been received or the backup has ended.
async fn until_incoming(child: &mut Child, dest: &str, bytes: u64) {
    let incoming = Path::new(dest).join("incoming");
    eventually("the backup is in the middle", async || {
        let size = std::fs::metadata(&incoming).map(|data| data.len());
        let is_far = size.is_ok_and(|size| size >= bytes);
        let has_ended = child.try_wait().expect("a child").is_some();
        (is_far || has_ended).then_some(())
    })
    .await;
}

#[tokio::test]
async fn killed_backup_is_never_restored_as_complete() {
    let mut daemon = Daemon::start().await;
    fill(&mut daemon.sessions(), "first").await;
    let dest = daemon.path("backup").display().to_string();
    // The first backup is interrupted at its start, so there is nothing to restore.
    let mut child = spawn_backup(&daemon, &dest);
    until_incoming(&mut child, &dest, 0).await;
    let is_killed = child.try_wait().expect("a child").is_none();
    child.kill().expect("killed");
    child.wait().expect("ended");
    let has_manifest = Path::new(&dest).join("backup.json").exists();
    if is_killed && !has_manifest && !Path::new(&dest).join("changes").exists() {
        let (_home, data) = vacant();
        let outcome = run(&["restore", &dest, "--data", &data], &[]).await;
        fails(&outcome, 66, "no whole backup");
    }
    eventually("the daemon has noticed", async || {
        let outcome = ask_as(&daemon, &["backup", &dest], "").await;
        (outcome.code == Some(0)).then_some(())
    })
    .await;
    let old = texts_by_session(&mut daemon.sessions()).await;

    for (round, bytes) in [0, 2 << 20, 5 << 20].into_iter().enumerate() {
        fill(&mut daemon.sessions(), &format!("more{round}-")).await;
        let mut child = spawn_backup(&daemon, &dest);
        until_incoming(&mut child, &dest, bytes).await;
        match round {
            2 => daemon.kill9().await,
            _ => child.kill().expect("killed"),
        }
        child.wait().expect("ended");
        if round == 2 {
            daemon.restart().await;
            assert!(
                !daemon.path("data/backup.tmp").exists(),
                "it is cleared away"
            );
        }
        let (home, data) = vacant();
        restore(&dest, &data).await;
        let restored = Daemon::in_home(home, Setup::default()).await;
        let said = texts_by_session(&mut restored.sessions()).await;
        for (session, texts) in &old {
            assert_eq!(said.get(session), Some(texts), "{session}");
        }
    }
    eventually("the last one is whole", async || {
        let outcome = ask_as(&daemon, &["backup", &dest], "").await;
        (outcome.code == Some(0)).then_some(())
    })
    .await;
    let (home, data) = vacant();
    restore(&dest, &data).await;
    let restored = Daemon::in_home(home, Setup::default()).await;
    let (all, expected) = (
        texts_by_session(&mut restored.sessions()).await,
        texts_by_session(&mut daemon.sessions()).await,
    );
    assert!(all == expected, "all of it came back");
}

/// Runs SQL on a file. Returns false if the machine has no Python.
fn sqlite(path: &Path, sql: &str) -> bool {
    let script = "import sqlite3, sys; sqlite3.connect(sys.argv[1]).executescript(sys.argv[2])";
    let mut python = Command::new("python3");
    let run = python.args(["-c", script]).arg(path).arg(sql).status();
    run.is_ok_and(|status| status.success())
}

/// A trigger would run in the daemon that serves the restored data.
#[tokio::test]
async fn backup_with_foreign_trigger_is_refused_and_unchanged() {
    let test = "backup::backup_with_foreign_trigger_is_refused_and_unchanged";
    let spy = |table: &str| {
        format!("CREATE TRIGGER spy AFTER INSERT ON {table} BEGIN DELETE FROM {table}; END")
    };
    for (file, table) in [
        ("journal.db", "generations"),
        ("memories/default.db", "memories"),
    ] {
        let mut daemon = Daemon::start().await;
        say(&mut daemon.sessions(), "chat", "hello").await;
        remember(&mut daemon.memories(), fact("ann", "likes tea")).await;
        daemon.stop().await;
        if !sqlite(&daemon.path("data").join(file), &spy(table)) {
            return skip(test, "python3");
        }
        daemon.restart().await;
        let dest = daemon.path("backup").display().to_string();
        backup(&daemon, &dest).await;
        let files = ["journal.db", "memories/default.db", "backup.json"];
        let bytes = || files.map(|file| std::fs::read(Path::new(&dest).join(file)).expect(file));
        let before = bytes();
        let (_home, data) = vacant();
        let restored = run(&["restore", &dest, "--data", &data], &[]).await;
        fails(&restored, 65, "has a foreign trigger \"spy\"");
        assert!(restored.stderr.contains(file), "{restored:?}");
        assert!(bytes() == before, "the backup was changed");
        assert!(!Path::new(&data).join(file).exists(), "it was restored");
        let refused = Daemon::refused(&Setup::default().data_dir(&data)).await;
        assert!(refused.stderr.contains("memoird restore"), "{refused:?}");
        let verified = run(&["verify", &dest], &[]).await;
        assert_eq!(verified.code, Some(65), "{verified:?}");
        let named = format!("{file}: it has a foreign trigger \"spy\"");
        assert!(verified.stdout.contains(&named), "{verified:?}");
    }
}

#[tokio::test]
async fn backup_requires_admin_role_and_separate_directory() {
    let daemon = Daemon::with(Setup::default().two_tenants("", "")).await;
    let dest = daemon.path("backup").display().to_string();
    let outcome = ask_as(&daemon, &["backup", &dest], Setup::ALPHA).await;
    fails(&outcome, 77, "ROLE_REQUIRED");
    let data = daemon.path("data").display().to_string();
    let outcome = ask_as(&daemon, &["backup", &data], Setup::ADMIN).await;
    fails(&outcome, 73, "neither empty nor a backup");
    let outcome = run(&["restore", &data, "--data", &dest], &[]).await;
    fails(&outcome, 66, "no whole backup");
}
