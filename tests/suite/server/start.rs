//! Failing starts: each has a helpful message and an exit code, and changes nothing.

use std::io::{Seek, SeekFrom, Write};
use std::path::Path;

use tokio::net::TcpListener;

use crate::harness::{Daemon, Namespace, Outcome, Seed, Setup, eventually, live, run, say};

#[track_caller]
fn check_error(outcome: &Outcome, code: i32, words: &[&str]) {
    assert_eq!(outcome.code, Some(code), "{outcome:?}");
    for word in words {
        assert!(
            outcome.stderr.contains(word),
            "{word:?} in {}",
            outcome.stderr
        );
    }
}

#[tokio::test]
async fn second_daemon_on_same_directory_is_refused() {
    let daemon = Daemon::start().await;
    let mut client = daemon.sessions();
    say(&mut client, "chat", "before").await;
    let dir = daemon.path("data").display().to_string();
    let endpoints = std::fs::read_to_string(daemon.path("data/endpoints.json")).expect("a file");
    let second = Daemon::refused(&Setup::default().data_dir(&dir)).await;
    check_error(
        &second,
        69,
        &[&dir, "in use by another memoird", "choose another data_dir"],
    );
    say(&mut client, "chat", "after").await;
    assert_eq!(live(&mut client, "chat").await.len(), 2);
    let now = std::fs::read_to_string(daemon.path("data/endpoints.json")).expect("a file");
    assert_eq!(now, endpoints, "the first one's endpoints stand");
}

#[tokio::test]
async fn unusable_data_directory_is_reported() {
    let words = ["data_dir", "/proc/memoird-has-no-place-here"];
    let under_proc = Setup::default().data_dir(words[1]);
    check_error(&Daemon::refused(&under_proc).await, 73, &words);
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("a-file").display().to_string();
    std::fs::write(&file, "no directory").expect("written");
    check_error(
        &Daemon::refused(&Setup::default().data_dir(&file)).await,
        73,
        &["data_dir", &file],
    );
}

#[tokio::test]
async fn journal_on_read_only_file_system_is_refused_unchanged() {
    let mut daemon = Daemon::start().await;
    say(&mut daemon.sessions(), "chat", "hi").await;
    daemon.stop().await;
    let data = daemon.path("data").display().to_string();
    let before = std::fs::read(daemon.path("data/journal.db")).expect("a journal");
    let mount = format!("mount --bind {data} {data} && mount -o remount,ro,bind {data}");
    let test = "start::journal_on_read_only_file_system_is_refused_unchanged";
    if !Namespace::Mount.allows(&mount, test) {
        return;
    }
    let script = format!("{mount} && exec \"$@\"");
    let setup = Setup::default().data_dir(&data);
    let setup = setup.wrapper(&["unshare", "-m", "sh", "-c", &script, "sh"]);
    check_error(
        &Daemon::refused(&setup).await,
        73,
        &["data_dir", &data, "cannot be written"],
    );
    assert_eq!(
        std::fs::read(daemon.path("data/journal.db")).expect("a journal"),
        before
    );
    daemon.restart().await;
    assert_eq!(live(&mut daemon.sessions(), "chat").await.len(), 1);
}

/// A directory with a journal of 60 turns, all of it in the main database file.
async fn journal_of_a_daemon() -> Daemon {
    let mut daemon = Daemon::start().await;
    let mut client = daemon.sessions();
    for number in 0..60 {
        say(
            &mut client,
            &format!("s{}", number % 7),
            &format!("{number}").repeat(500),
        )
        .await;
    }
    daemon.stop().await;
    daemon
}

fn overwrite(path: &Path, from: u64, bytes: &[u8]) {
    let mut file = std::fs::File::options()
        .write(true)
        .open(path)
        .expect("a file");
    file.seek(SeekFrom::Start(from)).expect("a place");
    file.write_all(bytes).expect("written");
}

fn files(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<_> = std::fs::read_dir(dir)
        .expect("a directory")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.is_file() && path.file_name().is_some_and(|name| name != "lock"))
        .map(|path| {
            (
                path.display().to_string(),
                std::fs::read(&path).expect("a file"),
            )
        })
        .collect();
    files.sort();
    files
}

/// Asserts that a daemon on this directory does not start and changes no file.
async fn is_refused_unchanged(dir: &Path, what: &str) {
    let before = files(dir);
    let setup = Setup::default().data_dir(&dir.display().to_string());
    check_error(
        &Daemon::refused(&setup).await,
        69,
        &["journal.db", "nothing was changed"],
    );
    for (name, bytes) in files(dir) {
        let known = before.iter().find(|(known, _)| *known == name);
        match known {
            Some((_, known)) => assert!(*known == bytes, "{what}: {name} was changed"),
            // SQLite creates these for readers, without content.
            None => assert!(
                name.ends_with("-shm") || bytes.is_empty(),
                "{what}: {name} is new"
            ),
        }
    }
}

#[tokio::test]
async fn corrupt_journal_is_refused_and_not_overwritten() {
    let mut random = Seed::new(99);
    let garbage = random.bytes(16 << 10);
    let cases: [(&str, u64, &[u8]); 4] = [
        ("the first bytes", 0, &garbage[..100]),
        ("the header behind the magic", 16, &garbage[..84]),
        ("the schema", 100, &garbage[..3_000]),
        ("the middle", 8 << 10, &garbage),
    ];
    for (what, from, bytes) in cases {
        let daemon = journal_of_a_daemon().await;
        let journal = daemon.path("data/journal.db");
        assert!(
            std::fs::metadata(&journal).expect("a journal").len() > 32 << 10,
            "{what}"
        );
        overwrite(&journal, from, bytes);
        is_refused_unchanged(&daemon.path("data"), what).await;
    }
}

#[tokio::test]
async fn journal_with_lost_header_keeps_its_wal() {
    let mut daemon = journal_of_a_daemon().await;
    daemon.restart().await;
    say(&mut daemon.sessions(), "s1", "in the log only").await;
    daemon.kill9().await;
    std::fs::remove_file(daemon.path("data/endpoints.json")).expect("it was killed");
    assert!(
        std::fs::metadata(daemon.path("data/journal.db-wal"))
            .expect("a log")
            .len()
            > 0
    );
    overwrite(&daemon.path("data/journal.db"), 0, &Seed::new(7).bytes(100));
    is_refused_unchanged(&daemon.path("data"), "a header of garbage beside a log").await;
    std::fs::write(daemon.path("data/journal.db"), "").expect("written");
    is_refused_unchanged(&daemon.path("data"), "an empty file beside a log").await;
}

#[tokio::test]
async fn file_of_another_program_is_refused() {
    for (name, content) in [("text", &b"my diary"[..]), ("zeros", &[0; 8192])] {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::write(dir.path().join("journal.db"), content).expect("written");
        is_refused_unchanged(dir.path(), name).await;
    }
}

#[tokio::test]
async fn port_in_use_is_reported() {
    let taken = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = taken.local_addr().expect("an address").to_string();
    let refused = Daemon::refused(&Setup::default().listen(&address)).await;
    check_error(&refused, 74, &["server.listen", &address]);
    let refused = Daemon::refused(&Setup::default().admin_listen(&address)).await;
    check_error(&refused, 74, &["server.admin_listen", &address]);
}

#[tokio::test]
async fn invalid_configuration_is_reported_with_line_or_path() {
    let cases = [
        (
            "short_term: { max_histroy_turns: 3 }",
            &["max_histroy_turns", "line 7", "column"][..],
        ),
        ("nonsense: 1", &["nonsense", "line 7"]),
        (
            "short_term: { session_ttl: soon }",
            &["a duration such as", "90s", "line 7"],
        ),
        ("journal: { durability: maybe }", &["interval", "line 7"]),
        (
            "short_term: { max_history_turns: 0, session_ttl: 0s }",
            &["short_term.max_history_turns", "short_term.session_ttl"],
        ),
        (
            "tenants: [ { id: '', keys: [] } ]",
            &["tenants[0].id", "tenants[0].keys"],
        ),
        ("log: { filter: '===' }", &["log.filter"]),
        ("short_term: [", &["line"]),
    ];
    for (section, words) in cases {
        let setup = Setup::default().section(section);
        check_error(&Daemon::refused(&setup).await, 64, words);
        let home = tempfile::tempdir().expect("a directory");
        let file = home.path().join("memoird.yaml");
        std::fs::write(&file, setup.yaml(home.path())).expect("written");
        let checked = run(&["config", "check", &file.display().to_string()], &[]).await;
        check_error(&checked, 64, words);
        assert!(!home.path().join("data").exists(), "a check makes nothing");
    }
}

#[tokio::test]
async fn daemon_can_be_stopped_while_opening_journal() {
    // Opening a pipe blocks until another process opens it, too.
    let script = "mkdir data && mkfifo data/lock && exec \"$@\"";
    let setup = Setup::default().wrapper(&["sh", "-c", script, "sh"]);
    let mut daemon = Daemon::starting(setup);
    eventually("it opens the journal", async || {
        daemon.log().contains("opening the journal").then_some(())
    })
    .await;
    daemon.stop().await;
}

#[tokio::test]
async fn killed_daemon_releases_its_directory() {
    let mut daemon = Daemon::start().await;
    say(&mut daemon.sessions(), "chat", "hi").await;
    let dir = daemon.path("data").display().to_string();
    daemon.kill9().await;
    let next = Daemon::with(Setup::default()).await;
    drop(next);
    daemon.restart().await;
    assert_eq!(live(&mut daemon.sessions(), "chat").await.len(), 1);
    // `endpoints.json` exists exactly while the daemon serves.
    let endpoints = Path::new(&dir).join("endpoints.json");
    assert!(endpoints.exists());
    daemon.ask_to_stop();
    eventually("its endpoints are gone", async || {
        (!endpoints.exists()).then_some(())
    })
    .await;
    assert_eq!(daemon.ended().await, Some(0));
}
