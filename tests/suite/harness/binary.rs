//! The binary under test, built once for all tests, and its command line.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::OnceLock;
use std::time::Duration;

use tokio::process::Command;

use super::Daemon;

/// Longer than any command of the suite takes.
const RUN_TIME_MAX: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(crate) struct Outcome {
    /// `None` if it was ended by a signal.
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Outcome {
    /// Returns the JSON output of a successful command.
    #[track_caller]
    pub(crate) fn json(&self) -> serde_json::Value {
        assert_eq!(self.code, Some(0), "{self:?}");
        serde_json::from_str(&self.stdout).expect("JSON on stdout")
    }
}

/// The binary, built with the profile and target directory of this test.
pub(crate) fn binary() -> &'static Path {
    static BINARY: OnceLock<Option<PathBuf>> = OnceLock::new();
    BINARY
        .get_or_init(build)
        .as_deref()
        .expect("the binary builds; cargo said why not")
}

/// Builds the binary. Returns `None` if the build fails.
fn build() -> Option<PathBuf> {
    let this = std::env::current_exe().expect("the path of this test");
    let profile_dir = this
        .ancestors()
        .nth(2)
        .expect("target/PROFILE/deps/suite-HASH");
    let target_dir = profile_dir.parent().expect("target/PROFILE");
    let profile = match profile_dir.file_name().and_then(|name| name.to_str()) {
        Some("debug") | None => "dev",
        Some(profile) => profile,
    };
    let mut cargo = std::process::Command::new(env!("CARGO"));
    // These variables describe this test's package. They would make cargo rebuild `ring`, whose
    // build script depends on them, and all crates that depend on it.
    let of_package = |name: &OsStr| {
        let name = name.to_string_lossy();
        name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")
    };
    for (name, _) in std::env::vars_os().filter(|(name, _)| of_package(name)) {
        cargo.env_remove(name);
    }
    let built = cargo
        .args([
            "build",
            "--quiet",
            "-p",
            "memoird",
            "--bin",
            "memoird",
            "--profile",
            profile,
        ])
        .args(cfg!(feature = "postgres").then_some("--features=postgres"))
        .arg("--target-dir")
        .arg(target_dir)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .status();
    built
        .expect("cargo runs")
        .success()
        .then(|| profile_dir.join("memoird"))
}

pub(crate) async fn run(args: &[&str], env: &[(&str, &str)]) -> Outcome {
    let running = Command::new(binary())
        .args(args)
        .envs(env.iter().copied())
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let ended = tokio::time::timeout(RUN_TIME_MAX, running).await;
    let output = ended.unwrap_or_else(|_| panic!("memoird {args:?} does not end"));
    let output = output.expect("memoird runs");
    Outcome {
        code: output.status.code(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// Runs a command against a daemon, with `key` in the environment unless it is empty.
pub(crate) async fn ask_as(daemon: &Daemon, args: &[&str], key: &str) -> Outcome {
    let all = [&["--addr", daemon.grpc_addr()], args].concat();
    match key {
        "" => run(&all, &[]).await,
        key => run(&all, &[("MEMOIRD_KEY", key)]).await,
    }
}

/// Asserts that a command failed with this exit code and an error that contains `word`.
#[track_caller]
pub(crate) fn fails(outcome: &Outcome, code: i32, word: &str) {
    assert_eq!(outcome.code, Some(code), "{outcome:?}");
    assert!(
        outcome.stderr.contains(word),
        "{word:?} in {}",
        outcome.stderr
    );
    assert!(
        outcome.stdout.is_empty(),
        "what fails prints no result: {outcome:?}"
    );
}
