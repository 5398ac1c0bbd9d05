//! A server of our own: this very executable as another process, with its data in a
//! temporary directory that goes when the server goes.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde::Deserialize;
use tempfile::TempDir;
use tokio::time::sleep;

use super::clock;
use super::connect::{Address, Auth, Target};
use super::exit::CliError;

const POLL_EVERY: Duration = Duration::from_millis(2);
/// A journal of a hundred million turns would still be read in this.
const START_TIME_MAX: Duration = Duration::from_secs(600);
/// Longer than a daemon takes to drain: its `shutdown_grace` is 10 s, three times.
const STOP_TIME_MAX: Duration = Duration::from_secs(40);
/// Of a daemon that did not start, so much of the end of its log is shown.
const LOG_BYTES_SHOWN: usize = 2_000;

/// What a server of our own is started with.
pub(crate) struct Launch {
    /// What follows the name of the program.
    pub(crate) args: Vec<String>,
    /// Where it writes its endpoints once it serves.
    pub(crate) endpoints: PathBuf,
}

/// A process that ends with this value.
pub(crate) struct Daemon {
    child: Child,
    args: Vec<String>,
    endpoints: PathBuf,
    dir: TempDir,
}

/// What a server writes once it serves.
#[derive(Deserialize)]
struct Endpoints {
    grpc: String,
}

impl Daemon {
    /// A memoird that nobody else uses, configured by the text that is made for its own
    /// directory.
    pub(crate) async fn configured(
        dir: TempDir,
        yaml: impl FnOnce(&Path) -> String,
    ) -> Result<Self, CliError> {
        let yaml = yaml(dir.path());
        write_config(dir.path(), &yaml)?;
        let config = config_in(dir.path());
        let args = vec![
            "serve".into(),
            "--config".into(),
            config.display().to_string(),
        ];
        let endpoints = data_in(dir.path()).join("endpoints.json");
        Self::start(Launch { args, endpoints }, dir).await
    }

    /// Where it serves.
    pub(crate) fn target(&self) -> Result<Target, CliError> {
        let found = self.endpoints()?.ok_or_else(|| CliError::NotStarted {
            problem: "the server has taken its endpoints away".to_owned(),
        })?;
        let addr: Address = found
            .grpc
            .parse()
            .map_err(|problem| CliError::NotStarted { problem })?;
        Target::new(addr, Auth::none())
    }

    /// Kills it as a power cut would, and waits until it is gone.
    pub(crate) fn kill(&mut self) -> Result<(), CliError> {
        self.child
            .kill()
            .and_then(|()| self.child.wait())
            .map(|_| ())
            .map_err(|source| CliError::Io {
                what: "cannot kill the server".to_owned(),
                source,
            })
    }

    /// Starts it again on the same data. Gives the instant when it was started.
    pub(crate) async fn restart(&mut self) -> Result<Instant, CliError> {
        match fs::remove_file(&self.endpoints) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                let what = format!("cannot remove {}", self.endpoints.display());
                return Err(CliError::Io { what, source });
            }
            _ => {}
        }
        let started = clock::monotonic();
        self.child = spawn(&self.args, &self.log())?;
        self.wait().await?;
        Ok(started)
    }

    /// Starts a server and waits until it serves.
    pub(crate) async fn start(launch: Launch, dir: TempDir) -> Result<Self, CliError> {
        let Launch { args, endpoints } = launch;
        let child = spawn(&args, &dir.path().join("log"))?;
        let mut daemon = Self {
            child,
            args,
            endpoints,
            dir,
        };
        daemon.wait().await?;
        Ok(daemon)
    }

    /// Asks it to stop and waits until it has: what it owes is written then.
    pub(crate) async fn stop(&mut self) -> Result<(), CliError> {
        let failed = |source| CliError::Io {
            what: "cannot stop the server".to_owned(),
            source,
        };
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        if let Some(pid) = pid {
            kill_process(pid, Signal::TERM).map_err(|error| failed(error.into()))?;
        }
        let asked = clock::monotonic();
        while self.child.try_wait().map_err(failed)?.is_none() {
            if clock::since(asked) > STOP_TIME_MAX {
                return Err(CliError::NotStarted {
                    problem: "the server does not stop".into(),
                });
            }
            sleep(POLL_EVERY).await;
        }
        Ok(())
    }

    /// Its directory.
    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    fn log(&self) -> PathBuf {
        self.dir.path().join("log")
    }

    /// Waits until it serves, or has ended.
    async fn wait(&mut self) -> Result<(), CliError> {
        let started = clock::monotonic();
        while self.endpoints()?.is_none() {
            let ended = self.child.try_wait().ok().flatten();
            let problem = match ended {
                Some(status) => format!("the server ended before it served ({status})"),
                None if clock::since(started) > START_TIME_MAX => {
                    "the server does not serve".to_owned()
                }
                None => {
                    sleep(POLL_EVERY).await;
                    continue;
                }
            };
            return Err(CliError::NotStarted {
                problem: format!("{problem}{}", self.last_words()),
            });
        }
        Ok(())
    }

    /// Its endpoints, once they are written whole.
    fn endpoints(&self) -> Result<Option<Endpoints>, CliError> {
        match fs::read(&self.endpoints) {
            Ok(text) => Ok(serde_json::from_slice(&text).ok()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(CliError::Io {
                what: format!("cannot read {}", self.endpoints.display()),
                source,
            }),
        }
    }

    fn last_words(&self) -> String {
        let log = fs::read(self.log()).unwrap_or_default();
        let end = &log[log.len().saturating_sub(LOG_BYTES_SHOWN)..];
        match String::from_utf8_lossy(end).trim() {
            "" => String::new(),
            text => format!(": {text}"),
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // It may have ended by itself, and there is nobody left to tell.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Where the data of a server with this directory is.
pub(crate) fn data_in(dir: &Path) -> PathBuf {
    dir.join("data")
}

/// Where its configuration is.
pub(crate) fn config_in(dir: &Path) -> PathBuf {
    dir.join("memoird.yaml")
}

/// Writes its configuration, also while it runs.
pub(crate) fn write_config(dir: &Path, yaml: &str) -> Result<(), CliError> {
    let config = config_in(dir);
    let failed = |source| CliError::Io {
        what: format!("cannot write {}", config.display()),
        source,
    };
    fs::write(&config, yaml).map_err(failed)
}

/// A path as YAML: a JSON string is one, whatever the path has in it.
pub(crate) fn quoted(path: &Path) -> String {
    serde_json::Value::from(path.display().to_string()).to_string()
}

/// A directory for a server of our own, which goes with the value.
pub(crate) fn temp_dir(prefix: &str, parent: &Path) -> Result<TempDir, CliError> {
    tempfile::Builder::new()
        .prefix(prefix)
        .tempdir_in(parent)
        .map_err(|source| CliError::CannotCreate {
            path: parent.join(format!("{prefix}…")),
            source,
        })
}

fn spawn(args: &[String], log: &Path) -> Result<Child, CliError> {
    let failed = |source| CliError::Io {
        what: "cannot start a server".to_owned(),
        source,
    };
    let executable = std::env::current_exe().map_err(failed)?;
    let log = File::options()
        .create(true)
        .append(true)
        .open(log)
        .map_err(failed)?;
    Command::new(executable)
        .args(args)
        .stdin(Stdio::null())
        .stdout(log.try_clone().map_err(failed)?)
        .stderr(log)
        .spawn()
        .map_err(failed)
}
