//! Private daemons: child processes with their data in a temporary directory.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use memoird_cli::clock;
use memoird_cli::connect::{Address, Target};
use rustix::process::{Pid, Signal, kill_process};
use serde::Deserialize;
use tempfile::TempDir;
use tokio::time::sleep;

use crate::exit::{CliError, Exit};

const POLL_EVERY: Duration = Duration::from_millis(2);
/// Longer than a daemon takes to drain: three times its `shutdown_grace` of 10 s.
const STOP_TIME_MAX: Duration = Duration::from_secs(40);
/// Maximum bytes of the end of the log to show if the daemon does not start.
const LOG_BYTES_SHOWN: usize = 2_000;

/// A daemon process. Dropping it kills the process and removes its directory.
pub(crate) struct Daemon {
    child: Child,
    dir: TempDir,
}

/// Contents of `endpoints.json`, written once the daemon accepts calls.
#[derive(Deserialize)]
struct Endpoints {
    grpc: String,
}

impl Daemon {
    /// Starts a daemon with the configuration in `dir`, and waits until it accepts calls.
    pub(crate) async fn start(dir: TempDir) -> Result<Self, CliError> {
        let mut daemon = Self {
            child: spawn(dir.path()).map_err(CliError::io("cannot start a daemon"))?,
            dir,
        };
        while daemon.endpoints().is_none() {
            if let Some(status) = daemon.child.try_wait().ok().flatten() {
                let ended = format!("the daemon ended before it served ({status})");
                let problem = format!("{ended}{}", daemon.last_words());
                return Err(CliError::failed(Exit::Unavailable, problem));
            }
            sleep(POLL_EVERY).await;
        }
        Ok(daemon)
    }

    pub(crate) fn target(&self) -> Result<Target, CliError> {
        let failed = |problem: String| CliError::failed(Exit::Unavailable, problem);
        let problem = || "the daemon has removed its endpoints".to_owned();
        let found = self.endpoints().ok_or_else(|| failed(problem()))?;
        let addr: Address = found.grpc.parse().map_err(failed)?;
        Target::private(addr)
    }

    /// Sends SIGTERM and waits until the daemon has ended.
    pub(crate) async fn stop(&mut self) -> Result<(), CliError> {
        let failed = CliError::io("cannot stop the daemon");
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        if let Some(pid) = pid {
            kill_process(pid, Signal::TERM).map_err(|error| failed(error.into()))?;
        }
        let asked = clock::monotonic();
        while self.child.try_wait().map_err(&failed)?.is_none() {
            if clock::since(asked) > STOP_TIME_MAX {
                let problem = "the daemon does not stop";
                return Err(CliError::failed(Exit::Unavailable, problem));
            }
            sleep(POLL_EVERY).await;
        }
        Ok(())
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Returns its endpoints, once the file is complete.
    fn endpoints(&self) -> Option<Endpoints> {
        let text = fs::read(data_in(self.dir()).join("endpoints.json")).ok()?;
        serde_json::from_slice(&text).ok()
    }

    fn last_words(&self) -> String {
        let log = fs::read(log_in(self.dir())).unwrap_or_default();
        let end = &log[log.len().saturating_sub(LOG_BYTES_SHOWN)..];
        match String::from_utf8_lossy(end).trim() {
            "" => String::new(),
            text => format!(": {text}"),
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // The process may have ended already, so errors are ignored.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Data directory of a daemon with this directory.
pub(crate) fn data_in(dir: &Path) -> PathBuf {
    dir.join("data")
}

fn config_in(dir: &Path) -> PathBuf {
    dir.join("memoird.yaml")
}

fn log_in(dir: &Path) -> PathBuf {
    dir.join("log")
}

/// Writes the configuration, also while the daemon runs.
pub(crate) fn write_config(dir: &Path, yaml: &str) -> Result<(), CliError> {
    fs::write(config_in(dir), yaml).map_err(CliError::io("cannot write the configuration"))
}

/// Quotes a path for YAML. Every JSON string is valid YAML.
pub(crate) fn quoted(path: &Path) -> String {
    serde_json::Value::from(path.display().to_string()).to_string()
}

/// Creates a directory that is removed when the value is dropped.
pub(crate) fn temp_dir(prefix: &str, parent: &Path) -> Result<TempDir, CliError> {
    let dir = tempfile::Builder::new().prefix(prefix).tempdir_in(parent);
    dir.map_err(CliError::cannot_create(&parent.join(format!("{prefix}…"))))
}

fn spawn(dir: &Path) -> io::Result<Child> {
    let log = File::create(log_in(dir))?;
    Command::new(std::env::current_exe()?)
        .args(["serve", "--config"])
        .arg(config_in(dir))
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
}
