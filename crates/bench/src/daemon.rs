//! Starts the servers to measure: memoird, and the bare server.
//!
//! Each is a process with a temporary directory. Both are removed on drop.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use memoird_proto::v1::ReloadConfigRequest;
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::sleep;

use super::connect::Target;
use super::{Durability, clock};

const PREFIX: &str = "memoird-bench-";
const POLL_EVERY: Duration = Duration::from_millis(2);
/// Timeout for starting. Enough to read a journal of a hundred million turns.
const START_TIME_MAX: Duration = Duration::from_secs(600);
/// Maximum bytes of the log to print if a server does not start.
const LOG_BYTES_SHOWN: usize = 2_000;

/// Configuration of a private daemon.
#[derive(Clone, Copy)]
pub(crate) struct Settings {
    pub(crate) durability: Durability,
    /// Maximum number of sessions; 0 for no limit.
    pub(crate) max_sessions: u64,
    pub(crate) history_turns: u32,
    pub(crate) history_bytes: u64,
    pub(crate) session_ttl_s: u32,
    /// Whether ended sessions get a git checkpoint.
    pub(crate) checkpoints: bool,
    /// Context window of the default model in tokens. `None` for the built-in value.
    pub(crate) context_window: Option<u64>,
    /// Whether compaction runs. Off by default, to not affect other measurements.
    pub(crate) compaction: bool,
    /// Whether transcripts are indexed for search.
    pub(crate) search: bool,
    pub(crate) retention_s: u32,
    /// `limits.memory`. `None` for the built-in value.
    pub(crate) memory_mib: Option<u32>,
    /// Tenants with a key each. Without any, all calls belong to one tenant.
    pub(crate) tenants: &'static [&'static str],
}

/// Tenants of a shared daemon: one with a normal load, and one that floods.
pub(crate) const NEIGHBOURS: [&str; 2] = ["victim", "flood"];

/// A server process, killed on drop.
pub(crate) struct Server {
    child: Child,
    binary: PathBuf,
    args: Vec<String>,
    /// File with its addresses, written once it serves.
    endpoints: PathBuf,
    dir: TempDir,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            durability: Durability::Sync,
            max_sessions: 0,
            history_turns: 50,
            history_bytes: 4 << 20,
            session_ttl_s: 24 * 60 * 60,
            checkpoints: false,
            context_window: None,
            compaction: false,
            search: true,
            retention_s: 30 * 24 * 60 * 60,
            memory_mib: None,
            tenants: &[],
        }
    }
}

impl Server {
    pub(crate) async fn memoird(binary: &Path, settings: Settings, parent: &Path) -> Result<Self> {
        Self::memoird_over(binary, settings, "", parent).await
    }

    /// The same with additional YAML in the `journal` section, such as a database.
    pub(crate) async fn memoird_over(
        binary: &Path,
        settings: Settings,
        journal: &str,
        parent: &Path,
    ) -> Result<Self> {
        let dir = temp_dir(parent)?;
        let config = dir.path().join("memoird.yaml");
        let is_open = knows_open_mode(binary)?;
        fs::write(&config, settings.yaml(dir.path(), is_open, journal))?;
        for tenant in settings.tenants {
            fs::write(key_file(dir.path(), tenant), key(tenant))?;
        }
        let args = vec!["serve".into(), format!("--config={}", config.display())];
        let endpoints = dir.path().join("data/endpoints.json");
        Self::start(binary, args, endpoints, dir).await
    }

    /// Starts the bare server: this binary in another process.
    pub(crate) async fn bare(history_turns: u32, bytes: u32, parent: &Path) -> Result<Self> {
        let dir = temp_dir(parent)?;
        let endpoints = dir.path().join("endpoints.json");
        let args = vec![
            "bare-server".into(),
            format!("--endpoints={}", endpoints.display()),
            format!("--history-turns={history_turns}"),
            format!("--bytes={bytes}"),
        ];
        Self::start(&std::env::current_exe()?, args, endpoints, dir).await
    }

    /// Replaces its configuration and reloads it.
    pub(crate) async fn reconfigure(&self, settings: Settings) -> Result<()> {
        let dir = self.dir.path();
        let yaml = settings.yaml(dir, knows_open_mode(&self.binary)?, "");
        fs::write(dir.join("memoird.yaml"), yaml)?;
        let mut admin = self.target()?.admin();
        admin.reload_config(ReloadConfigRequest {}).await?;
        Ok(())
    }

    /// Its address, without a key.
    pub(crate) fn target(&self) -> Result<Target> {
        Target::new(&self.addr()?, None)
    }

    /// Its address, with the key of a tenant.
    pub(crate) fn target_of(&self, tenant: &str) -> Result<Target> {
        Target::new(&self.addr()?, Some(&key(tenant)))
    }

    pub(crate) fn addr(&self) -> Result<String> {
        let addr = self.address();
        addr.context("the server has taken its endpoints away")
    }

    /// Its metrics in text format.
    pub(crate) async fn metrics(&self) -> Result<String> {
        let admin = self.address_of("admin").context("it has no admin port")?;
        let mut stream = TcpStream::connect(admin).await?;
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok(answer)
    }

    pub(crate) fn process(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn data_dir(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    pub(crate) fn key_file(&self, tenant: &str) -> PathBuf {
        key_file(self.dir.path(), tenant)
    }

    /// Kills it with SIGKILL and waits for its end.
    pub(crate) fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Restarts it with the same data. Returns the time of the start.
    pub(crate) async fn restart(&mut self) -> Result<Instant> {
        match fs::remove_file(&self.endpoints) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
        let started = clock::monotonic();
        self.child = spawn(&self.binary, &self.args, self.dir.path())?;
        self.wait().await?;
        Ok(started)
    }

    async fn start(
        binary: &Path,
        args: Vec<String>,
        endpoints: PathBuf,
        dir: TempDir,
    ) -> Result<Self> {
        let mut server = Self {
            child: spawn(binary, &args, dir.path())?,
            binary: binary.to_owned(),
            args,
            endpoints,
            dir,
        };
        server.wait().await?;
        Ok(server)
    }

    /// Waits until it serves, or fails if it has exited.
    async fn wait(&mut self) -> Result<()> {
        let started = clock::monotonic();
        while self.address().is_none() {
            if let Some(status) = self.child.try_wait()? {
                bail!(
                    "the server ended before it served ({status}): {}",
                    self.log()
                );
            }
            if clock::since(started) > START_TIME_MAX {
                bail!("the server does not serve: {}", self.log());
            }
            sleep(POLL_EVERY).await;
        }
        Ok(())
    }

    /// Its address, once the endpoints file is complete.
    fn address(&self) -> Option<String> {
        self.address_of("grpc")
    }

    fn address_of(&self, port: &str) -> Option<String> {
        let text = fs::read(&self.endpoints).ok()?;
        let endpoints: Value = serde_json::from_slice(&text).ok()?;
        endpoints[port].as_str().map(str::to_owned)
    }

    fn log(&self) -> String {
        let log = fs::read(self.dir.path().join("log")).unwrap_or_default();
        let end = &log[log.len().saturating_sub(LOG_BYTES_SHOWN)..];
        String::from_utf8_lossy(end).trim().to_owned()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn key(tenant: &str) -> String {
    format!("key-of-the-bench-for-{tenant}")
}

fn key_file(dir: &Path, tenant: &str) -> PathBuf {
    dir.join(format!("{tenant}.key"))
}

pub(crate) fn version(binary: &Path) -> Result<String> {
    let output = Command::new(binary)
        .arg("--version")
        .output()
        .with_context(|| format!("cannot run {}", binary.display()))?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn temp_dir(parent: &Path) -> Result<TempDir> {
    let dir = tempfile::Builder::new().prefix(PREFIX).tempdir_in(parent);
    dir.with_context(|| format!("cannot create a directory in {}", parent.display()))
}

fn spawn(binary: &Path, args: &[String], dir: &Path) -> Result<Child> {
    let log = File::options()
        .create(true)
        .append(true)
        .open(dir.join("log"))?;
    Command::new(binary)
        .args(args)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
        .with_context(|| {
            format!(
                "cannot start {}; build it, or name it with --daemon",
                binary.display()
            )
        })
}

/// Whether a daemon has the setting `server.allow_without_keys`.
///
/// Older versions, as used for comparisons, reject unknown settings.
fn knows_open_mode(binary: &Path) -> Result<bool> {
    let printed = Command::new(binary)
        .args(["config", "print-default"])
        .output()?;
    Ok(String::from_utf8_lossy(&printed.stdout).contains("allow_without_keys"))
}

/// Quotes a path for YAML, in which JSON strings are valid.
fn quoted(path: &Path) -> String {
    Value::from(path.display().to_string()).to_string()
}

impl Settings {
    /// `knows_open_mode`: whether `allow_without_keys` must be set.
    fn yaml(&self, dir: &Path, knows_open_mode: bool, journal: &str) -> String {
        let checkpoints = quoted(&dir.join("checkpoints"));
        let hooks = if self.checkpoints {
            format!("[ {{ name: checkpoint, git: {{ dir: {checkpoints} }} }} ]")
        } else {
            "[]".to_owned()
        };
        let context = self.context_window.map_or_else(String::new, |tokens| {
            format!(
                "context: {{ models: {{ default: {{ context_window: {tokens}, max_reply_tokens: {}, \
                 safety_headroom: {}, tool_result_headroom: {} }} }} }}\n",
                tokens / 8,
                tokens / 16,
                tokens / 4
            )
        });
        let limits = self.memory_mib.map_or_else(String::new, |mib| {
            format!("limits: {{ memory: {mib}MiB }}\n")
        });
        let tenant = |id: &&str| {
            let file = quoted(&key_file(dir, id));
            format!("{{ id: {id}, keys: [ {{ file: {file} }} ] }}")
        };
        let tenants: Vec<String> = self.tenants.iter().map(tenant).collect();
        let open = if knows_open_mode && self.tenants.is_empty() {
            ", allow_without_keys: true"
        } else {
            ""
        };
        format!(
            "version: 1\n\
             data_dir: {}\n\
             server: {{ listen: \"127.0.0.1:0\", admin_listen: \"127.0.0.1:0\"{open} }}\n\
             journal: {{ durability: \"{}\", retention: {}s{journal} }}\n\
             short_term: {{ max_sessions: {}, max_history_turns: {}, max_history_bytes: {}, \
             session_ttl: {}s }}\n\
             compaction: {{ enabled: {} }}\n\
             search: {{ enabled: {} }}\n\
             {context}{limits}tenants: [ {} ]\nhooks: {hooks}\n",
            quoted(&dir.join("data")),
            self.durability.name(),
            self.retention_s,
            self.max_sessions,
            self.history_turns,
            self.history_bytes,
            self.session_ttl_s,
            self.compaction,
            self.search,
            tenants.join(", "),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_format_as_readable_yaml() {
        let settings = Settings {
            durability: Durability::Off,
            max_sessions: 7,
            ..Settings::default()
        };
        let yaml = settings.yaml(Path::new("/tmp/a \"b\""), true, "");
        assert!(
            yaml.contains("data_dir: \"/tmp/a \\\"b\\\"/data\"\n"),
            "{yaml}"
        );
        assert!(
            yaml.contains("journal: { durability: \"off\", retention: 2592000s }\n"),
            "{yaml}"
        );
        assert!(
            yaml.contains("compaction: { enabled: false }\nsearch: { enabled: true }\ntenants: [  ]\nhooks: []\n"),
            "{yaml}"
        );
        let small = Settings {
            context_window: Some(8_192),
            compaction: true,
            ..settings
        }
        .yaml("/tmp".as_ref(), false, "");
        let model = "default: { context_window: 8192, max_reply_tokens: 1024, ";
        assert!(
            small.contains(model) && small.contains("{ enabled: true }"),
            "{small}"
        );
        assert!(
            yaml.contains("{ max_sessions: 7, max_history_turns: 50, max_history_bytes: 4194304, "),
            "{yaml}"
        );
    }
}
