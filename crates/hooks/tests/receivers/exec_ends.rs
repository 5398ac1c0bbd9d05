//! Programs that hang, flood, or leave child processes: nothing of them may remain.

use std::sync::Arc;

use memoird_engine::{Hook, Retry};
use tempfile::tempdir;
use tokio::task::JoinSet;

use crate::exec::script;
use crate::kit::{call, deliver, in_time, is_alive, large_call, read, until};

/// Starts a sleeping child, and writes both process ids atomically.
const WITH_CHILD: &str = "sleep 1000 & echo $$ $! > pids.tmp; mv pids.tmp pids; ";

#[tokio::test]
async fn cancelled_program_is_killed_with_children() {
    for hangs in [
        "wait",
        "cat > got; wait",
        "trap '' TERM INT; exec 0<&- 1>&- 2>&-; wait",
    ] {
        let dir = tempdir().unwrap();
        let hook = script(&[WITH_CHILD, hangs].concat(), dir.path());
        let pids = dir.path().join("pids");
        let mut delivery = hook.deliver(vec![large_call(1_000_000)]);
        tokio::select! {
            answers = &mut delivery => panic!("{hangs}: {answers:?}"),
            () = until(|| pids.exists()) => {}
        }
        let text = read(pids);
        let pids: Vec<&str> = text.split_whitespace().collect();
        assert_eq!(pids.len(), 2);
        assert!(
            pids.iter().all(|pid| is_alive(pid)),
            "{hangs}: it does not even run"
        );
        drop(delivery);
        until(|| !pids.iter().any(|pid| is_alive(pid))).await;
    }
}

#[tokio::test]
async fn killed_program_is_reaped() {
    let dir = tempdir().unwrap();
    let hook = script(
        "echo $$ > pid.tmp; mv pid.tmp pid; exec sleep 1000",
        dir.path(),
    );
    let pid = dir.path().join("pid");
    let mut delivery = hook.deliver(vec![call()]);
    tokio::select! {
        answers = &mut delivery => panic!("{answers:?}"),
        () = until(|| pid.exists()) => {}
    }
    drop(delivery);
    let proc = format!("/proc/{}", read(pid).trim());
    until(|| !std::path::Path::new(&proc).exists()).await;
}

#[tokio::test]
async fn children_holding_pipes_are_killed_after_exit() {
    for (end, is_made) in [("exit 0", true), ("exit 9", false)] {
        let dir = tempdir().unwrap();
        let hook = script(&[WITH_CHILD, "echo bye >&2; ", end].concat(), dir.path());
        let answer = deliver(&hook, large_call(1_000_000)).await;
        if is_made {
            assert_eq!(answer, Ok(()));
        } else {
            assert_eq!(answer.unwrap_err().problem, "exit code 9: bye");
        }
        let pids = read(dir.path().join("pids"));
        until(|| !pids.split_whitespace().any(is_alive)).await;
    }
}

#[tokio::test]
async fn flood_of_output_uses_bounded_memory() {
    let dir = tempdir().unwrap();
    let floods = "echo the beginning >&2; head -c 300000000 /dev/zero; \
                  head -c 300000000 /dev/zero | tr '\\0' x >&2; echo >&2; echo end >&2; exit 3";
    let before = peak_kib();
    let error = deliver(&script(floods, dir.path()), call())
        .await
        .unwrap_err();
    let grown = peak_kib() - before;
    assert_eq!(error.retry, Retry::Later);
    assert!(
        error
            .problem
            .starts_with(r"exit code 3: the beginning\nxxx"),
        "{error}"
    );
    assert!(error.problem.ends_with(r"xxx\nend"), "{error}");
    assert_eq!(error.problem.chars().count(), "exit code 3: ".len() + 400);
    // Other tests may run in this process, but none uses as much memory.
    assert!(grown < 150_000, "{grown} KiB");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_programs_get_their_own_outcomes() {
    let dir = tempdir().unwrap();
    let mut deliveries = JoinSet::new();
    for code in 0..24_u8 {
        let hook = Arc::new(script(&format!("echo {code} >&2; exit {code}"), dir.path()));
        deliveries.spawn(async move { (code, deliver(&*hook, call()).await) });
    }
    while let Some(done) = in_time(deliveries.join_next()).await {
        let (code, answer) = done.unwrap();
        match code {
            0 => assert_eq!(answer, Ok(())),
            _ => assert_eq!(
                answer.unwrap_err().problem,
                format!("exit code {code}: {code}")
            ),
        }
    }
}

/// Peak memory of this process in KiB.
fn peak_kib() -> u64 {
    let status = read("/proc/self/status");
    let line = status
        .lines()
        .find(|line| line.starts_with("VmHWM:"))
        .expect("a peak");
    line.split_whitespace()
        .nth(1)
        .and_then(|kib| kib.parse().ok())
        .expect("a number")
}
