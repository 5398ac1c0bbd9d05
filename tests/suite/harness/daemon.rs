//! A daemon per test: a real process on free ports, in a temporary directory.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use super::binary::{Outcome, binary};
use super::client::{self, Admin, Documents, Memories, Sessions};
use super::{Setup, eventually};

/// A daemon process and its directory. Both end with the test.
#[derive(Debug)]
pub(crate) struct Daemon {
    home: TempDir,
    setup: Setup,
    child: Child,
    grpc: String,
    admin: String,
}

impl Daemon {
    /// Starts a daemon with the default configuration and waits until it serves.
    pub(crate) async fn start() -> Self {
        Self::with(Setup::default()).await
    }

    /// Starts a daemon and waits until it serves.
    pub(crate) async fn with(setup: Setup) -> Self {
        let home = tempfile::tempdir().expect("a directory");
        Self::in_home(home, setup).await
    }

    /// Starts a daemon that is expected to fail, and waits until it exits.
    pub(crate) async fn refused(setup: &Setup) -> Outcome {
        let home = tempfile::tempdir().expect("a directory");
        let mut child = launch(home.path(), setup);
        let code = exit_code(&mut child).await;
        Outcome {
            code,
            stdout: String::new(),
            stderr: log_of(home.path()),
        }
    }

    /// Starts a daemon without waiting.
    pub(crate) fn starting(setup: Setup) -> Self {
        Self::launched(tempfile::tempdir().expect("a directory"), setup)
    }

    /// Starts a daemon in a directory that may contain data, and waits until it serves.
    pub(crate) async fn in_home(home: TempDir, setup: Setup) -> Self {
        let mut daemon = Self::launched(home, setup);
        daemon.serves().await;
        daemon
    }

    /// Starts a daemon that becomes a standby. Also returns its admin address.
    #[cfg(feature = "postgres")]
    pub(crate) async fn standby(setup: Setup) -> (Self, String) {
        let daemon = Self::launched(tempfile::tempdir().expect("a directory"), setup);
        let admin = eventually("it stands by", async || {
            let log = daemon.log();
            let mut lines = log
                .lines()
                .filter_map(|line| serde_json::from_str::<Value>(line).ok());
            let admin = lines.find_map(|line| line["admin"].as_str().map(str::to_owned));
            admin.filter(|_| log.contains("standby: another daemon has the database"))
        });
        let admin = admin.await;
        (daemon, admin)
    }

    fn launched(home: TempDir, setup: Setup) -> Self {
        let child = launch(home.path(), &setup);
        Self {
            home,
            setup,
            child,
            grpc: String::new(),
            admin: String::new(),
        }
    }

    /// Restarts it in the same directory after it has ended.
    pub(crate) async fn restart(&mut self) {
        assert!(
            self.child.try_wait().expect("a child").is_some(),
            "it has not ended yet"
        );
        let _ = std::fs::remove_file(self.path("data/endpoints.json"));
        self.child = launch(self.home.path(), &self.setup);
        self.serves().await;
    }

    /// Restarts it until it serves, like a supervisor.
    ///
    /// For daemons that exit while a dependency is unavailable.
    #[cfg(feature = "postgres")]
    pub(crate) async fn supervise(&mut self) {
        let path = self.path("data/endpoints.json");
        let _ = std::fs::remove_file(&path);
        eventually("the daemon serves", async || {
            if self.child.try_wait().expect("a child").is_some() {
                self.child = launch(self.home.path(), &self.setup);
            }
            path.exists().then_some(())
        })
        .await;
        self.serves().await;
    }

    pub(crate) async fn restart_with(&mut self, setup: Setup) {
        self.setup = setup;
        self.restart().await;
    }

    /// Rewrites the configuration file, which the daemon has yet to reload.
    pub(crate) fn rewrite(&mut self, setup: Setup) {
        self.setup = setup;
        let text = self.setup.yaml(self.home.path());
        self.rewrite_text(&text);
    }

    /// Replaces the configuration file atomically.
    pub(crate) fn rewrite_text(&self, text: &str) {
        let new = self.home.path().join("memoird.yaml.new");
        std::fs::write(&new, text).expect("the configuration is written");
        std::fs::rename(&new, self.home.path().join("memoird.yaml")).expect("it is moved");
    }

    pub(crate) fn setup(&self) -> Setup {
        self.setup.clone()
    }

    pub(crate) async fn serves(&mut self) {
        let path = self.path("data/endpoints.json");
        let (child, home) = (&mut self.child, self.home.path());
        let endpoints = eventually("the daemon serves", async || {
            if let Some(status) = child.try_wait().expect("a child") {
                panic!("the daemon ended with {status}:\n{}", log_of(home));
            }
            let text = std::fs::read_to_string(&path).ok()?;
            serde_json::from_str::<Value>(&text).ok()
        })
        .await;
        let address = |name: &str| endpoints[name].as_str().expect("an address").to_owned();
        (self.grpc, self.admin) = (address("grpc"), address("admin"));
    }

    /// The path of a file in its directory, as seen by the daemon. `data/…` is the data directory.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        let path = self.home.path().join(name);
        if self
            .setup
            .wrapper
            .first()
            .is_none_or(|program| program != "unshare")
        {
            return path;
        }
        // Mounts made by the wrapper are visible only to the daemon.
        let root = PathBuf::from(format!("/proc/{}/root", self.child.id()));
        root.join(path.strip_prefix("/").expect("an absolute path"))
    }

    /// The gRPC address as `host:port`.
    pub(crate) fn grpc_addr(&self) -> &str {
        &self.grpc
    }

    /// The admin HTTP address as `host:port`.
    pub(crate) fn admin_addr(&self) -> &str {
        &self.admin
    }

    /// Clients on their own connection. The methods `…_of` send a key with every call.
    pub(crate) fn sessions(&self) -> Sessions {
        client::sessions(&self.grpc, None)
    }

    pub(crate) fn sessions_of(&self, key: &str) -> Sessions {
        client::sessions(&self.grpc, Some(key))
    }

    pub(crate) fn memories(&self) -> Memories {
        client::memories(&self.grpc, None)
    }

    pub(crate) fn memories_of(&self, key: &str) -> Memories {
        client::memories(&self.grpc, Some(key))
    }

    pub(crate) fn documents(&self) -> Documents {
        client::documents(&self.grpc, None)
    }

    pub(crate) fn documents_of(&self, key: &str) -> Documents {
        client::documents(&self.grpc, Some(key))
    }

    pub(crate) fn admin(&self) -> Admin {
        client::admin(&self.grpc, None)
    }

    pub(crate) fn admin_of(&self, key: &str) -> Admin {
        client::admin(&self.grpc, Some(key))
    }

    /// Its stderr, across restarts.
    pub(crate) fn log(&self) -> String {
        log_of(self.home.path())
    }

    pub(crate) fn pid(&self) -> String {
        self.child.id().to_string()
    }

    /// Its resident memory in bytes, as reported by the kernel.
    pub(crate) fn resident_bytes(&self) -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{}/statm", self.pid()));
        let text = text.expect("the daemon lives");
        let pages = text.split(' ').nth(1).expect("resident pages");
        pages.parse::<u64>().expect("a number") << 12
    }

    pub(crate) async fn kill9(&mut self) {
        self.child.kill().expect("it can be killed");
        assert_eq!(exit_code(&mut self.child).await, None, "it ended by itself");
    }

    /// Sends SIGTERM without waiting.
    pub(crate) fn ask_to_stop(&self) {
        self.signal("-TERM");
    }

    /// Sends a signal such as `-HUP`.
    pub(crate) fn signal(&self, signal: &str) {
        let sent = Command::new("kill").args([signal, &self.pid()]).status();
        assert!(sent.expect("kill runs").success());
    }

    /// Waits until another process has killed it.
    pub(crate) async fn killed(&mut self) {
        assert_eq!(exit_code(&mut self.child).await, None, "it ended by itself");
    }

    /// Waits until it has ended, and returns its exit code.
    pub(crate) async fn ended(&mut self) -> Option<i32> {
        exit_code(&mut self.child).await
    }

    /// Stops it with SIGTERM and asserts exit code 0.
    pub(crate) async fn stop(&mut self) {
        self.ask_to_stop();
        assert_eq!(self.ended().await, Some(0), "{}", self.log());
    }
}

impl Drop for Daemon {
    #[allow(
        clippy::print_stderr,
        reason = "a failing test shows what its daemon said"
    )]
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let log = log_of(self.home.path());
            let lines: Vec<&str> = log.lines().collect();
            let last = &lines[lines.len().saturating_sub(40)..];
            eprintln!("the daemon's log ends:\n{}", last.join("\n"));
        }
    }
}

fn launch(home: &Path, setup: &Setup) -> Child {
    let config = home.join("memoird.yaml");
    std::fs::write(&config, setup.yaml(home)).expect("the configuration is written");
    let log = File::options()
        .create(true)
        .append(true)
        .open(home.join("log"))
        .expect("a log");
    let mut words = setup
        .wrapper
        .iter()
        .map(String::as_str)
        .map(|w| w.replace("HOME", &home.display().to_string()));
    let mut command = match words.next() {
        None => Command::new(binary()),
        Some(program) => {
            let mut command = Command::new(program);
            command.args(words).arg(binary());
            command
        }
    };
    command
        .args(["serve", "--config"])
        .arg(config)
        .current_dir(home);
    command.envs(setup.env.iter().map(|(name, value)| (name, value)));
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log);
    command.spawn().expect("the daemon is started")
}

fn log_of(home: &Path) -> String {
    std::fs::read_to_string(home.join("log")).unwrap_or_default()
}

async fn exit_code(child: &mut Child) -> Option<i32> {
    let status = eventually("the daemon has ended", async || {
        child.try_wait().expect("a child")
    });
    status.await.code()
}
