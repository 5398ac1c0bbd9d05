//! Output of the binary about itself: health probes, manual pages, shell completions.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::Server;
use tonic_health::ServingStatus;

use crate::harness::{Daemon, Setup, run};

/// The subcommands listed in a command's help, without `help`.
async fn commands_of(path: &[&str]) -> Vec<String> {
    let help = run(&[path, &["--help"]].concat(), &[]).await;
    assert_eq!(help.code, Some(0), "{help:?}");
    let Some((_, list)) = help.stdout.split_once("\nCommands:\n") else {
        return Vec::new();
    };
    let lines = list.lines().take_while(|line| line.starts_with("  "));
    // Continuation lines of descriptions are indented further.
    let names = lines
        .filter(|line| !line.starts_with("   "))
        .filter_map(|line| {
            line.split_whitespace()
                .next()
                .filter(|name| *name != "help")
                .map(str::to_owned)
        });
    names.collect()
}

fn is_installed(program: &str) -> bool {
    let found = Command::new("sh")
        .args(["-c", &format!("command -v {program}")])
        .output();
    found.is_ok_and(|output| output.status.success())
}

/// Runs a program that checks a file, and returns its checker_output.
fn checker_output(program: &str, args: &[&str], file: &Path) -> String {
    let output = Command::new(program)
        .args(args)
        .arg(file)
        .env("LC_ALL", "C.UTF-8")
        .output();
    let output = output.expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.success() || !said.is_empty(),
        "{program} {args:?} {output:?}"
    );
    said
}

#[tokio::test]
async fn every_command_has_a_valid_manual_page() {
    let dir = tempfile::tempdir().expect("a directory");
    let pages = dir.path().join("man1");
    let written = run(&["man", &pages.display().to_string()], &[]).await;
    assert_eq!(written.code, Some(0), "{written:?}");
    let mut expected = BTreeSet::from(["memoird.1".to_owned()]);
    for name in commands_of(&[]).await {
        let below = commands_of(&[&name]).await;
        expected.extend(
            below
                .iter()
                .map(|below| format!("memoird-{name}-{below}.1")),
        );
        expected.insert(format!("memoird-{name}.1"));
    }
    assert!(expected.len() > 15 && expected.contains("memoird-sessions-list.1"));
    let names: BTreeSet<String> = std::fs::read_dir(&pages)
        .expect("a directory")
        .map(|entry| {
            entry
                .expect("an entry")
                .file_name()
                .into_string()
                .expect("UTF-8")
        })
        .collect();
    assert_eq!(names, expected);
    for name in names {
        let path = pages.join(name);
        let text = std::fs::read_to_string(&path).expect("a page");
        assert!(
            text.contains(".SH NAME\n") && text.contains(".SH SYNOPSIS\n"),
            "{text}"
        );
        assert!(
            !text.contains("MEMOIRD_KEY="),
            "no value of the environment"
        );
        if is_installed("man") {
            assert_eq!(
                checker_output("man", &["--warnings", "-l"], &path),
                "",
                "{path:?}"
            );
        }
        if is_installed("mandoc") {
            assert_eq!(
                checker_output("mandoc", &["-T", "lint", "-W", "error"], &path),
                ""
            );
        }
    }
}

#[tokio::test]
async fn main_manual_page_lists_every_exit_code() {
    let page = run(&["man"], &[]).await;
    assert_eq!(page.code, Some(0), "{page:?}");
    assert!(page.stdout.contains(".TH MEMOIRD 1"), "{page:?}");
    let help = run(&["--help"], &[]).await.stdout;
    let (_, codes) = help.split_once("Exit codes:\n").expect("exit codes");
    let codes: Vec<&str> = codes
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    assert!(codes.len() > 10, "{codes:?}");
    for code in codes {
        assert!(
            page.stdout.contains(&format!(".TP\n\\fB{code}\\fR\n")),
            "{code} in {page:?}"
        );
    }
    let nowhere = run(&["man", "/proc/no-place"], &[]).await;
    assert_eq!(nowhere.code, Some(73), "{nowhere:?}");
}

#[tokio::test]
async fn shell_completions_are_valid() {
    for shell in ["bash", "zsh", "fish"] {
        let script = run(&["completions", shell], &[]).await;
        assert_eq!(script.code, Some(0), "{script:?}");
        for word in ["sessions", "print-default", "key-file"] {
            assert!(script.stdout.contains(word), "{word} for {shell}");
        }
        assert!(
            !script.stdout.contains("bench-baseline"),
            "{shell} offers what is hidden"
        );
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), &script.stdout).expect("written");
        let no_run = if shell == "fish" {
            "--no-execute"
        } else {
            "-n"
        };
        if is_installed(shell) {
            assert_eq!(checker_output(shell, &[no_run], file.path()), "", "{shell}");
        }
    }
    assert_eq!(run(&["completions", "abacus"], &[]).await.code, Some(2));
}

#[tokio::test]
async fn health_command_needs_no_key() {
    let mut daemon = Daemon::with(Setup::default().two_tenants("", "")).await;
    let addr = daemon.grpc_addr().to_owned();
    let args = ["--addr", &addr, "health"];
    let serving = run(&args, &[]).await;
    assert_eq!(
        (serving.code, &*serving.stdout),
        (Some(0), "SERVING\n"),
        "{serving:?}"
    );
    let json = run(&[&args[..], &["--json"]].concat(), &[]).await.json();
    assert_eq!(json["status"], "SERVING");
    daemon.stop().await;
    let gone = run(&args, &[]).await;
    assert_eq!((gone.code, &*gone.stdout), (Some(69), ""), "{gone:?}");
    assert!(gone.stderr.contains(&addr), "{gone:?}");
}

#[tokio::test]
async fn health_command_fails_when_server_is_not_serving() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let addr = listener.local_addr().expect("an address").to_string();
    let (reporter, service) = tonic_health::server::health_reporter();
    reporter
        .set_service_status("memoird.v1.SessionService", ServingStatus::NotServing)
        .await;
    let incoming = TcpListenerStream::new(listener);
    let mut servers = JoinSet::new();
    servers.spawn(
        Server::builder()
            .add_service(service)
            .serve_with_incoming(incoming),
    );
    let outcome = run(&["--addr", &addr, "health"], &[]).await;
    assert_eq!(
        (outcome.code, &*outcome.stdout),
        (Some(69), "NOT_SERVING\n"),
        "{outcome:?}"
    );
    assert!(
        outcome.stderr.contains("does not accept calls"),
        "{outcome:?}"
    );
}
