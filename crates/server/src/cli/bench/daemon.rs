//! A server of our own: this very executable as another process, with its data in a
//! temporary directory that goes when the server goes.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use memoird_proto::v1::ReloadConfigRequest;
use serde::Deserialize;
use tempfile::TempDir;
use tokio::time::sleep;

use super::Durability;
use crate::cli::clock;
use crate::cli::connect::{Address, Auth, Target};
use crate::cli::exit::CliError;

const POLL_EVERY: Duration = Duration::from_millis(2);
/// A journal of a hundred million turns would still be read in this.
const START_TIME_MAX: Duration = Duration::from_secs(600);
/// Of a daemon that did not start, so much of the end of its log is shown.
const LOG_BYTES_SHOWN: usize = 2_000;

/// How a private daemon is configured.
#[derive(Clone, Copy)]
pub(super) struct Settings {
    /// When an append is done.
    pub(super) durability: Durability,
    /// The cap on sessions; 0: none.
    pub(super) max_sessions: u64,
    /// Turns of a history.
    pub(super) history_turns: u32,
    /// How long a session lives untouched, in seconds.
    pub(super) session_ttl_s: u32,
    /// True: a checkpoint in git when a session ends.
    pub(super) checkpoints: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            durability: Durability::Sync,
            max_sessions: 0,
            history_turns: 50,
            session_ttl_s: 24 * 60 * 60,
            checkpoints: false,
        }
    }
}

/// A process that ends with this value.
pub(super) struct Daemon {
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
    /// A memoird that nobody else uses.
    pub(super) async fn memoird(settings: Settings, parent: &Path) -> Result<Self, CliError> {
        let dir = temp_dir(parent)?;
        let data = dir.path().join("data");
        let config = settings.write(dir.path())?;
        let args = vec!["serve".into(), "--config".into(), config.display().to_string()];
        Self::start(args, data.join("endpoints.json"), dir).await
    }

    /// A bare server that keeps nothing.
    pub(super) async fn bare(
        history_turns: u32,
        bytes: u32,
        parent: &Path,
    ) -> Result<Self, CliError> {
        let dir = temp_dir(parent)?;
        let endpoints = dir.path().join("endpoints.json");
        let args = vec![
            "bench-baseline".into(),
            format!("--endpoints={}", endpoints.display()),
            format!("--history-turns={history_turns}"),
            format!("--bytes={bytes}"),
        ];
        Self::start(args, endpoints, dir).await
    }

    /// Gives it another configuration, and makes it read that.
    pub(super) async fn reconfigure(&self, settings: Settings) -> Result<(), CliError> {
        settings.write(self.dir.path())?;
        let target = self.target()?;
        let reply = target.admin().reload_config(ReloadConfigRequest {}).await;
        reply.map_err(|status| target.explain(status)).map(drop)
    }

    /// Where it serves.
    pub(super) fn target(&self) -> Result<Target, CliError> {
        let found = self.endpoints()?.ok_or_else(|| CliError::NotStarted {
            problem: "the server has taken its endpoints away".to_owned(),
        })?;
        let addr: Address =
            found.grpc.parse().map_err(|problem| CliError::NotStarted { problem })?;
        Target::new(addr, Auth::none())
    }

    /// Kills it as a power cut would, and waits until it is gone.
    pub(super) fn kill(&mut self) -> Result<(), CliError> {
        self.child
            .kill()
            .and_then(|()| self.child.wait())
            .map(|_| ())
            .map_err(|source| CliError::Io { what: "cannot kill the server".to_owned(), source })
    }

    /// Starts it again on the same data. Gives the instant when it was started.
    pub(super) async fn restart(&mut self) -> Result<Instant, CliError> {
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

    async fn start(args: Vec<String>, endpoints: PathBuf, dir: TempDir) -> Result<Self, CliError> {
        let child = spawn(&args, &dir.path().join("log"))?;
        let mut daemon = Self { child, args, endpoints, dir };
        daemon.wait().await?;
        Ok(daemon)
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

    fn log(&self) -> PathBuf {
        self.dir.path().join("log")
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

impl Settings {
    /// Writes the configuration of a daemon that has this directory; gives the file.
    fn write(&self, dir: &Path) -> Result<PathBuf, CliError> {
        let config = dir.join("memoird.yaml");
        let what = format!("cannot write {}", config.display());
        let written = fs::write(&config, self.yaml(dir));
        written.map_err(|source| CliError::Io { what, source }).map(|()| config)
    }

    fn yaml(&self, dir: &Path) -> String {
        // A JSON string is a YAML string, whatever the path has in it.
        let quoted = |name| serde_json::Value::from(dir.join(name).display().to_string());
        let data = quoted("data");
        let hooks = match self.checkpoints {
            true => {
                format!("[ {{ name: checkpoint, git: {{ dir: {} }} }} ]", quoted("checkpoints"))
            }
            false => "[]".to_owned(),
        };
        format!(
            "version: 1\n\
             data_dir: {data}\n\
             server: {{ listen: \"127.0.0.1:0\", admin_listen: \"127.0.0.1:0\" }}\n\
             journal: {{ durability: \"{}\" }}\n\
             short_term: {{ max_sessions: {}, max_history_turns: {}, session_ttl: {}s }}\n\
             hooks: {hooks}\n",
            self.durability.name(),
            self.max_sessions,
            self.history_turns,
            self.session_ttl_s,
        )
    }
}

fn temp_dir(parent: &Path) -> Result<TempDir, CliError> {
    tempfile::Builder::new()
        .prefix("memoird-bench-")
        .tempdir_in(parent)
        .map_err(|source| CliError::CannotCreate { path: parent.join("memoird-bench-…"), source })
}

fn spawn(args: &[String], log: &Path) -> Result<Child, CliError> {
    let failed = |source| CliError::Io { what: "cannot start a server".to_owned(), source };
    let executable = std::env::current_exe().map_err(failed)?;
    let log = File::options().create(true).append(true).open(log).map_err(failed)?;
    Command::new(executable)
        .args(args)
        .stdin(Stdio::null())
        .stdout(log.try_clone().map_err(failed)?)
        .stderr(log)
        .spawn()
        .map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_is_what_a_person_would_write() {
        let settings =
            Settings { durability: Durability::Off, max_sessions: 7, ..Settings::default() };
        let yaml = settings.yaml(Path::new("/tmp/a \"b\""));
        assert!(yaml.contains("data_dir: \"/tmp/a \\\"b\\\"/data\"\n"), "{yaml}");
        assert!(yaml.contains("journal: { durability: \"off\" }\n"), "{yaml}");
        assert!(
            yaml.contains("{ max_sessions: 7, max_history_turns: 50, session_ttl: 86400s }\n"),
            "{yaml}"
        );
    }
}
