//! An erasure takes little memory however long the history is.
//!
//! The test measures the peak of its process, so it is the only one in this file.

#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on may panic in its helpers, too"
)]

#[path = "git/kit.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod kit;

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use memoird_core::ids::TenantId;
use memoird_engine::{EraseRequest, EraseTarget, Hook};

use kit::*;

/// One commit for each session, and the sessions that end in a minute.
const COMMITS: u64 = 4_000;
const PER_MINUTE: u64 = 1_000;
const ERASED: u64 = 2_000;
/// An erasure in 256 MiB of memory must leave room for the daemon.
const PEAK_MIB_MAX: u64 = 64;

fn import(repository: &Path) {
    let mut stream = String::new();
    for number in 1..=COMMITS {
        let ended = session(number);
        let (session, generation) = (&ended.session, ended.generation);
        let message = format!("Checkpoint {session}: ended after 2 turns\n");
        let at = NOON + i64::try_from(number).unwrap();
        let text = format!("---\nsession: \"{session}\"\ngeneration: \"{generation}\"\n---\n");
        let (size, text_size) = (message.len(), text.len());
        let _ = write!(
            stream,
            "commit refs/heads/main\ncommitter memoird <memoird@localhost> {at} +0000\ndata {size}\n\
             {message}\n"
        );
        if number == 1 {
            stream.push_str("from refs/heads/main^0\n");
        }
        let minute = number / PER_MINUTE;
        let name =
            format!("sessions/2026/11/22/10/{minute:02}/telegram%3A{number}-{generation}.md");
        let _ = write!(stream, "M 100644 inline {name}\ndata {text_size}\n{text}\n");
    }
    let mut git = Command::new("git");
    git.arg("-C")
        .arg(repository)
        .args(["fast-import", "--quiet"]);
    let mut git = git.stdin(Stdio::piped()).spawn().unwrap();
    git.stdin
        .take()
        .unwrap()
        .write_all(stream.as_bytes())
        .unwrap();
    assert!(git.wait().unwrap().success());
}

/// Peak of the resident memory in MiB.
fn peak_mib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    let kib = line
        .and_then(|line| line.split_whitespace().nth(1))
        .unwrap();
    kib.parse::<u64>().unwrap() / 1_024
}

#[tokio::test]
async fn erasure_from_long_history_takes_little_memory() {
    let fixture = GitFixture::new();
    fixture.deliver(&sessions(0, 1)).await.unwrap();
    import(&fixture.bare());
    let erased = session(ERASED);
    let request = EraseRequest {
        tenant: TenantId::parse("acme").unwrap(),
        target: EraseTarget::Session {
            session: erased.session.clone(),
            generation: None,
        },
        generations: vec![(erased.generation, erased.session.clone())].into(),
    };
    // Sets the peak to the present size.
    fs::write("/proc/self/clear_refs", "5").unwrap();
    let before = peak_mib();
    let mut commits = 0;
    loop {
        let step = fixture.hook.erase(request.clone()).unwrap().await.unwrap();
        commits += step.commits;
        if !step.has_more {
            break;
        }
    }
    let took = peak_mib() - before;
    assert_eq!(commits, COMMITS - ERASED + 1);
    is_clean(&fixture.bare());
    let left = git(&fixture.bare(), &["rev-list", "--objects", "main"]);
    assert!(!left.contains(&erased.generation.to_string()));
    assert!(took <= PEAK_MIB_MAX, "an erasure took {took} MiB");
}
