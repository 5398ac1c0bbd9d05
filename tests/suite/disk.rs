//! A disk that fills up and gets room again: appends are refused by name, reads go on,
//! and nothing has to be restarted.

use std::process::Command;

use memoird_proto::v1::{GetContextRequest, GetStatsRequest, ListSessionsRequest};
use tonic::{Code, Status};

use crate::harness::{
    Daemon, Namespace, Sessions, Setup, append, eventually, http_get, journal, keyed, live,
    refused_code, say, text_of, user,
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

/// Appends turns from this one on until one is refused; gives its number and the refusal.
async fn fill(client: &mut Sessions, first: usize) -> (usize, Status) {
    for number in first..TURNS_MAX {
        if let Err(status) = try_append(client, number).await {
            return (number, status);
        }
    }
    panic!("{TURNS_MAX} turns found room");
}

/// Everything that was acknowledged, and nothing else, can be read.
async fn reads_go_on(daemon: &Daemon, taken: usize) {
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
    let asked = GetContextRequest {
        session_id: "chat".into(),
        ..GetContextRequest::default()
    };
    for peek in [false, true, false] {
        let window = client
            .get_context(GetContextRequest {
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

/// What was refused is not counted as done.
async fn counts_are_true(daemon: &Daemon, taken: usize) {
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

/// The daemon comes back to work by itself; gives the number of turns then.
async fn works_again(daemon: &Daemon, taken: usize) -> usize {
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
    reads_go_on(daemon, taken + 5).await;
    counts_are_true(daemon, taken + 5).await;
    taken + 5
}

#[tokio::test]
async fn a_full_disk_is_told_by_name_and_forgotten_when_it_has_room_again() {
    let mount = "mkdir -p HOME/data && mount -t tmpfs -o size=6m tmpfs HOME/data";
    let dir = tempfile::tempdir().expect("a directory");
    let probe = mount.replace("HOME", &dir.path().display().to_string());
    // Where it may not mount, the limit on file sizes stands for the full disk, below.
    let test = "disk::a_full_disk_is_told_by_name_and_forgotten_when_it_has_room_again";
    if !Namespace::Mount.allows(&probe, test) {
        return;
    }
    let script = format!("{mount} && head -c 2097152 /dev/zero > HOME/data/ballast && exec \"$@\"");
    let setup = Setup::default()
        .section(ROOMY)
        .section("compaction: { enabled: false }");
    let daemon = Daemon::with(setup.wrapper(&["unshare", "-m", "sh", "-c", &script, "sh"])).await;
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
    reads_go_on(&daemon, taken).await;
    counts_are_true(&daemon, taken).await;

    std::fs::remove_file(daemon.path("data/ballast")).expect("it was there");
    let taken = works_again(&daemon, taken).await;
    let (taken_in_all, status) = fill(&mut client, taken).await;
    assert_eq!(refused_code(&status), "JOURNAL_FULL", "and fills up again");
    reads_go_on(&daemon, taken_in_all).await;
}

#[tokio::test]
async fn files_that_may_not_grow_refuse_appends_until_they_may() {
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
    reads_go_on(&daemon, taken).await;

    let raise = ["--fsize=unlimited", "--pid", &daemon.pid()];
    let raised = Command::new("prlimit").args(raise).status();
    assert!(raised.expect("prlimit runs").success());
    let taken = works_again(&daemon, taken).await;
    daemon.kill9().await;
    daemon.restart_with(setup).await;
    reads_go_on(&daemon, taken).await;
}

#[tokio::test]
async fn a_log_that_cannot_be_written_does_not_end_the_daemon() {
    let mount = "mkdir -p HOME/small && mount -t tmpfs -o size=64k tmpfs HOME/small";
    let dir = tempfile::tempdir().expect("a directory");
    let probe = mount.replace("HOME", &dir.path().display().to_string());
    let test = "disk::a_log_that_cannot_be_written_does_not_end_the_daemon";
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
