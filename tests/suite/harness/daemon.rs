//! A daemon of one test's own: a real process on port 0 in a directory of its own.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use super::binary::{Outcome, binary};
use super::client::{self, Admin, Documents, Memories, Sessions};
use super::{Setup, eventually};

/// A daemon and its directory. Ends with the test.
#[derive(Debug)]
pub(crate) struct Daemon {
    home: TempDir,
    setup: Setup,
    child: Child,
    grpc: String,
    admin: String,
}

impl Daemon {
    /// Starts one with the embedded default, and waits until it serves.
    pub(crate) async fn start() -> Self {
        Self::with(Setup::default()).await
    }

    /// Starts one as told, and waits until it serves.
    pub(crate) async fn with(setup: Setup) -> Self {
        let home = tempfile::tempdir().expect("a directory");
        Self::in_home(home, setup).await
    }

    /// Starts one that will not serve, and waits until it has ended.
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

    /// Starts one, and waits for nothing.
    pub(crate) fn starting(setup: Setup) -> Self {
        Self::launched(tempfile::tempdir().expect("a directory"), setup)
    }

    /// Starts one in a directory that may hold data already, and waits until it serves.
    pub(crate) async fn in_home(home: TempDir, setup: Setup) -> Self {
        let mut daemon = Self::launched(home, setup);
        daemon.serves().await;
        daemon
    }

    /// Starts one that stands by; gives it with the address of its pages for operators.
    #[cfg(feature = "postgres")]
    pub(crate) async fn standby(setup: Setup) -> (Self, String) {
        let daemon = Self::launched(tempfile::tempdir().expect("a directory"), setup);
        let admin = eventually("it stands by", async || {
            let log = daemon.log();
            let mut lines = log
                .lines()
                .filter_map(|line| serde_json::from_str::<Value>(line).ok());
            let admin = lines.find_map(|line| line["admin"].as_str().map(str::to_owned));
            admin.filter(|_| log.contains("this one is its standby"))
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

    /// Starts it again in the same directory, after its end.
    pub(crate) async fn restart(&mut self) {
        assert!(
            self.child.try_wait().expect("a child").is_some(),
            "it has not ended yet"
        );
        let _ = std::fs::remove_file(self.path("data/endpoints.json"));
        self.child = launch(self.home.path(), &self.setup);
        self.serves().await;
    }

    /// Starts it again after its end, as often as it takes until it serves: as a supervisor does, where
    /// what it needs may be away.
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

    /// The same with other settings.
    pub(crate) async fn restart_with(&mut self, setup: Setup) {
        self.setup = setup;
        self.restart().await;
    }

    /// Writes other settings to its file, which it has not read yet.
    pub(crate) fn rewrite(&mut self, setup: Setup) {
        self.setup = setup;
        let text = self.setup.yaml(self.home.path());
        self.rewrite_text(&text);
    }

    /// Writes any text to its file, in one step.
    pub(crate) fn rewrite_text(&self, text: &str) {
        let new = self.home.path().join("memoird.yaml.new");
        std::fs::write(&new, text).expect("the configuration is written");
        std::fs::rename(&new, self.home.path().join("memoird.yaml")).expect("it is moved");
    }

    /// Its settings.
    pub(crate) fn setup(&self) -> Setup {
        self.setup.clone()
    }

    /// Waits until it serves.
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

    /// A file in its directory, as the daemon sees it; `data/…` is the data directory.
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
        // What the wrapper mounted is seen by the daemon only.
        let root = PathBuf::from(format!("/proc/{}/root", self.child.id()));
        root.join(path.strip_prefix("/").expect("an absolute path"))
    }

    /// `host:port` of gRPC.
    pub(crate) fn grpc_addr(&self) -> &str {
        &self.grpc
    }

    /// `host:port` of the pages for operators.
    pub(crate) fn admin_addr(&self) -> &str {
        &self.admin
    }

    /// A client on a connection of its own, without a key.
    pub(crate) fn sessions(&self) -> Sessions {
        client::sessions(&self.grpc, None)
    }

    /// The same with a key.
    pub(crate) fn sessions_of(&self, key: &str) -> Sessions {
        client::sessions(&self.grpc, Some(key))
    }

    /// A client of memories without a key.
    pub(crate) fn memories(&self) -> Memories {
        client::memories(&self.grpc, None)
    }

    /// The same with a key.
    pub(crate) fn memories_of(&self, key: &str) -> Memories {
        client::memories(&self.grpc, Some(key))
    }

    /// A client of documents without a key.
    pub(crate) fn documents(&self) -> Documents {
        client::documents(&self.grpc, None)
    }

    /// The same with a key.
    pub(crate) fn documents_of(&self, key: &str) -> Documents {
        client::documents(&self.grpc, Some(key))
    }

    /// An operator's client without a key.
    pub(crate) fn admin(&self) -> Admin {
        client::admin(&self.grpc, None)
    }

    /// The same with a key.
    pub(crate) fn admin_of(&self, key: &str) -> Admin {
        client::admin(&self.grpc, Some(key))
    }

    /// What it said on stderr, in all its lives.
    pub(crate) fn log(&self) -> String {
        log_of(self.home.path())
    }

    /// Its process.
    pub(crate) fn pid(&self) -> String {
        self.child.id().to_string()
    }

    /// Its memory, as the system sees it.
    pub(crate) fn resident_bytes(&self) -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{}/statm", self.pid()));
        let text = text.expect("the daemon lives");
        let pages = text.split(' ').nth(1).expect("resident pages");
        pages.parse::<u64>().expect("a number") << 12
    }

    /// Ends it as a crash does.
    pub(crate) async fn kill9(&mut self) {
        self.child.kill().expect("it can be killed");
        assert_eq!(exit_code(&mut self.child).await, None, "it ended by itself");
    }

    /// Asks it to stop.
    pub(crate) fn ask_to_stop(&self) {
        self.signal("-TERM");
    }

    /// Sends it a signal, such as `-HUP`.
    pub(crate) fn signal(&self, signal: &str) {
        let sent = Command::new("kill").args([signal, &self.pid()]).status();
        assert!(sent.expect("kill runs").success());
    }

    /// Waits until it was killed by somebody else.
    pub(crate) async fn killed(&mut self) {
        assert_eq!(exit_code(&mut self.child).await, None, "it ended by itself");
    }

    /// Waits until it has ended; gives its exit code.
    pub(crate) async fn ended(&mut self) -> Option<i32> {
        exit_code(&mut self.child).await
    }

    /// Asks it to stop, and expects that all goes well.
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
