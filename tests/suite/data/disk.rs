//! A disk that fills up and gets space again.
//!
//! Appends are refused with a specific reason, reads continue, and no restart is needed.

use std::path::Path;
use std::process::Command;

use memoird_proto::v1::{
    BuildContextRequest, EndSessionRequest, GetStatsRequest, ListSessionsRequest,
};
use tonic::{Code, Status};

use crate::harness::{
    Daemon, Namespace, Sessions, Setup, append, eventually, fact, http_get, journal, keyed, live,
    refused_code, remember, say, text_of, user,
};

/// More turns than any of these disks holds.
const TURNS_MAX: usize = 600;
const ROOMY: &str = "short_term: { max_history_turns: 10000, max_history_bytes: 64MiB }";

fn text(number: usize) -> String {
    format!("{number:04} {}", "x".repeat(20_000))
}

async fn try_append(client: &mut Sessions, number: usize) -> Result<bool, Status> {
    let request = keyed("chat", &number.to_string(), [user(&text(number))]);
    client
        .append(request)
        .await
        .map(|answer| answer.into_inner().duplicate)
}

/// Appends turns until one is refused. Returns its number and the error.
async fn fill(client: &mut Sessions, first: usize) -> (usize, Status) {
    for number in first..TURNS_MAX {
        if let Err(status) = try_append(client, number).await {
            return (number, status);
        }
    }
    panic!("{TURNS_MAX} turns found room");
}

/// Asserts that exactly the acknowledged turns can be read.
async fn check_reads(daemon: &Daemon, taken: usize) {
    let mut client = daemon.sessions();
    for turns in [
        live(&mut client, "chat").await,
        journal(&mut client, "chat", "").await,
    ] {
        assert_eq!(turns.len(), taken);
        for (number, turn) in turns.iter().enumerate() {
            assert_eq!(text_of(turn), text(number));
        }
    }
    let list = client
        .list_sessions(ListSessionsRequest::default())
        .await
        .expect("a list");
    assert_eq!(list.into_inner().sessions[0].last_seq, taken as u64);
    let asked = BuildContextRequest {
        session_id: "chat".into(),
        ..BuildContextRequest::default()
    };
    for peek in [false, true, false] {
        let window = client
            .build_context(BuildContextRequest {
                peek,
                ..asked.clone()
            })
            .await;
        let window = window.expect("a window").into_inner();
        assert_eq!(window.turns.last().map(|turn| turn.seq), Some(taken as u64));
        assert_eq!(window.turns.first().map(|turn| turn.seq), Some(1));
    }
    assert_eq!(http_get(daemon.admin_addr(), "/readyz").await.0, 200);
}

/// Asserts that refused appends are not counted.
async fn check_counts(daemon: &Daemon, taken: usize) {
    let stats = daemon
        .admin()
        .get_stats(GetStatsRequest::default())
        .await
        .expect("stats");
    let stats = stats.into_inner();
    let taken = taken as u64;
    assert_eq!((stats.sessions_live, stats.turns_live), (1, taken));
    assert_eq!((stats.sessions_created, stats.turns_appended), (1, taken));
}

/// Asserts that the daemon recovers by itself. Returns the number of turns then.
async fn check_recovery(daemon: &Daemon, taken: usize) -> usize {
    let mut client = daemon.sessions();
    let duplicate = eventually("it takes the refused turn", async || {
        try_append(&mut client, taken).await.ok()
    });
    assert!(!duplicate.await, "a refused turn was kept");
    for number in taken + 1..taken + 5 {
        assert!(
            !try_append(&mut client, number)
                .await
                .expect("there is room")
        );
    }
    check_reads(daemon, taken + 5).await;
    check_counts(daemon, taken + 5).await;
    taken + 5
}

/// A 6 MiB data disk, with 2 MiB taken by a file that the test can remove.
///
/// Returns `None` if the test may not mount. A limit on file sizes below then simulates the full
/// disk.
fn with_small_disk(setup: Setup, test: &str) -> Option<Setup> {
    let mount = "mkdir -p HOME/data && mount -t tmpfs -o size=6m tmpfs HOME/data";
    let dir = tempfile::tempdir().expect("a directory");
    let probe = mount.replace("HOME", &dir.path().display().to_string());
    if !Namespace::Mount.allows(&probe, test) {
        return None;
    }
    let script = format!("{mount} && head -c 2097152 /dev/zero > HOME/data/ballast && exec \"$@\"");
    Some(setup.wrapper(&["unshare", "-m", "sh", "-c", &script, "sh"]))
}

#[tokio::test]
async fn full_disk_is_reported_as_journal_full_and_recovers() {
    let test = "disk::full_disk_is_reported_as_journal_full_and_recovers";
    let setup = Setup::default()
        .section(ROOMY)
        .section("compaction: { enabled: false }");
    let Some(setup) = with_small_disk(setup, test) else {
        return;
    };
    let daemon = Daemon::with(setup).await;
    let mut client = daemon.sessions();

    let (taken, status) = fill(&mut client, 0).await;
    assert!(taken > 10, "{taken} turns found room");
    assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
    assert_eq!(refused_code(&status), "JOURNAL_FULL");
    for session in ["chat", "another"] {
        let request = append(session, [user(&"y".repeat(500_000))]);
        let status = client.append(request).await.expect_err("it is still full");
        assert_eq!(refused_code(&status), "JOURNAL_FULL");
    }
    check_reads(&daemon, taken).await;
    check_counts(&daemon, taken).await;

    std::fs::remove_file(daemon.path("data/ballast")).expect("it was there");
    let taken = check_recovery(&daemon, taken).await;
    let (taken_in_all, status) = fill(&mut client, taken).await;
    assert_eq!(refused_code(&status), "JOURNAL_FULL", "and fills up again");
    check_reads(&daemon, taken_in_all).await;
}

/// Copies the daemon's private disk to the same path outside and kills the daemon, as in a crash.
async fn kill_keeping_disk(daemon: &mut Daemon) {
    daemon.signal("-STOP");
    let inside = daemon.path("data");
    let root = format!("/proc/{}/root", daemon.pid());
    let outside = Path::new("/").join(inside.strip_prefix(root).expect("its own disk"));
    let copied = Command::new("cp")
        .arg("-a")
        .args([inside.join("."), outside])
        .status();
    assert!(copied.expect("cp runs").success());
    daemon.kill9().await;
}

#[tokio::test]
async fn full_disk_with_interval_keeps_acknowledged_turns() {
    let test = "disk::full_disk_with_interval_keeps_acknowledged_turns";
    let setup = Setup::default()
        .section(ROOMY)
        .section("compaction: { enabled: false }")
        .section("journal: { durability: interval, flush_interval: 1ms }");
    let Some(on_small_disk) = with_small_disk(setup.clone(), test) else {
        return;
    };
    let mut daemon = Daemon::with(on_small_disk).await;
    let mut client = daemon.sessions();
    let (taken, status) = fill(&mut client, 0).await;
    assert!(taken > 10, "{taken} turns found room");
    assert_eq!(refused_code(&status), "JOURNAL_FULL", "{status:?}");
    assert_eq!(live(&mut client, "chat").await.len(), taken);
    let ended = EndSessionRequest {
        session_id: "chat".into(),
        ..EndSessionRequest::default()
    };
    let status = client.end_session(ended).await.expect_err("it is full");
    assert_eq!(refused_code(&status), "JOURNAL_FULL");

    std::fs::remove_file(daemon.path("data/ballast")).expect("it was there");
    let taken = check_recovery(&daemon, taken).await;
    kill_keeping_disk(&mut daemon).await;
    daemon.restart_with(setup).await;
    check_reads(&daemon, taken).await;
}

/// A clean stop removes the log and its index, so the next start has to create them.
#[tokio::test]
async fn start_on_full_disk_after_clean_stop_reports_missing_room() {
    let test = "disk::start_on_full_disk_after_clean_stop_reports_missing_room";
    let mut daemon = Daemon::start().await;
    say(&mut daemon.sessions(), "chat", "hi").await;
    remember(&mut daemon.memories(), fact("ann", "likes tea")).await;
    daemon.stop().await;
    let data = daemon.path("data").display().to_string();
    let mount = "mkdir -p FULL && mount -t tmpfs -o size=6m tmpfs FULL && cp -a DATA/. FULL"
        .replace("FULL", &daemon.path("full").display().to_string())
        .replace("DATA", &data);
    if !Namespace::Mount.allows(&mount, test) {
        return;
    }
    let full = daemon.path("full").display().to_string();
    for left_bytes in [0, 20_000] {
        let fill = format!(
            "cat /dev/zero > {full}/ballast 2>/dev/null; truncate -s -{left_bytes} {full}/ballast; \
             mount --bind {full} {data} && exec \"$@\""
        );
        let script = format!("{mount}; {fill}");
        let setup = Setup::default()
            .data_dir(&data)
            .wrapper(&["unshare", "-m", "sh", "-c", &script, "sh"]);
        let refused = Daemon::refused(&setup).await;
        let room = "no space left in data_dir; free some and retry";
        assert!(refused.stderr.contains(room), "{left_bytes}: {refused:?}");
        assert!(!refused.stderr.contains("sqlite"), "{refused:?}");
    }
    daemon.restart().await;
    assert_eq!(live(&mut daemon.sessions(), "chat").await.len(), 1);
}

#[tokio::test]
async fn file_size_limit_refuses_appends_until_raised() {
    let limited = ["prlimit", "--fsize=2000000:unlimited", "sh", "-c"];
    let ignoring = "trap '' XFSZ; exec \"$@\"";
    let wrapper: Vec<&str> = limited.into_iter().chain([ignoring, "sh"]).collect();
    let setup = Setup::default()
        .section(ROOMY)
        .section("compaction: { enabled: false }");
    let mut daemon = Daemon::with(setup.clone().wrapper(&wrapper)).await;
    let (taken, status) = fill(&mut daemon.sessions(), 0).await;
    assert!(taken > 10, "{taken} turns found room");
    let reason = refused_code(&status);
    assert!(
        reason == "JOURNAL_FULL" || reason == "JOURNAL_FAILED",
        "{status:?}"
    );
    check_reads(&daemon, taken).await;

    let raise = ["--fsize=unlimited", "--pid", &daemon.pid()];
    let raised = Command::new("prlimit").args(raise).status();
    assert!(raised.expect("prlimit runs").success());
    let taken = check_recovery(&daemon, taken).await;
    daemon.kill9().await;
    daemon.restart_with(setup).await;
    check_reads(&daemon, taken).await;
}

#[tokio::test]
async fn unwritable_log_does_not_stop_daemon() {
    let mount = "mkdir -p HOME/small && mount -t tmpfs -o size=64k tmpfs HOME/small";
    let dir = tempfile::tempdir().expect("a directory");
    let probe = mount.replace("HOME", &dir.path().display().to_string());
    let test = "disk::unwritable_log_does_not_stop_daemon";
    if !Namespace::Mount.allows(&probe, test) {
        return;
    }
    let fill = "head -c 65536 /dev/zero > HOME/small/ballast";
    let script = format!("{mount} && {fill}; exec \"$@\" >&- 2>> HOME/small/log");
    let wrapper = ["unshare", "-m", "sh", "-c", &script, "sh"];
    let mut daemon = Daemon::with(Setup::default().wrapper(&wrapper)).await;
    for number in 0..20 {
        daemon.signal("-HUP");
        say(&mut daemon.sessions(), "chat", &number.to_string()).await;
    }
    let (_, page) = http_get(daemon.admin_addr(), "/metrics").await;
    let lost = page
        .lines()
        .find_map(|line| line.strip_prefix("memoird_log_lines_lost_total{cause=\"unwritable\"} "));
    let lost: u64 = lost.expect("it is counted").parse().expect("a number");
    assert!(lost > 0, "the log had room");
    assert_eq!(live(&mut daemon.sessions(), "chat").await.len(), 20);
    daemon.stop().await;
}
