//! Notifications to a service manager (`sd_notify`), whose role these tests play.

use std::os::unix::net::UnixDatagram;
use std::process::Command;

use tempfile::TempDir;

use crate::harness::{Daemon, Setup, eventually, say};

/// The manager's socket and the lines it has received.
struct Manager {
    dir: TempDir,
    socket: UnixDatagram,
    heard: Vec<String>,
}

impl Manager {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let socket = UnixDatagram::bind(dir.path().join("notify")).expect("bound");
        socket.set_nonblocking(true).expect("set");
        Self {
            dir,
            socket,
            heard: Vec::new(),
        }
    }

    fn setup(&self) -> Setup {
        Setup::default().env(
            "NOTIFY_SOCKET",
            &self.dir.path().join("notify").display().to_string(),
        )
    }

    /// Receives pending notifications, and returns all lines received.
    fn heard(&mut self) -> &[String] {
        let mut buffer = [0; 4096];
        while let Ok(length) = self.socket.recv(&mut buffer) {
            let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
            self.heard.extend(text.lines().map(str::to_owned));
        }
        &self.heard
    }

    fn count(&mut self, line: &str) -> usize {
        self.heard().iter().filter(|heard| *heard == line).count()
    }

    async fn hears(&mut self, line: &str, times: usize) {
        let what = format!("the manager hears {line} {times} times");
        eventually(&what, async || (self.count(line) >= times).then_some(())).await;
    }

    fn place(&self, start: &str) -> Option<usize> {
        self.heard.iter().position(|line| line.starts_with(start))
    }
}

#[tokio::test]
async fn manager_is_notified_of_ready_watchdog_and_stop() {
    let mut manager = Manager::new();
    let setup = manager
        .setup()
        .env("WATCHDOG_USEC", "40000")
        .server("shutdown_grace: 7s");
    let mut daemon = Daemon::with(setup).await;
    manager.hears("READY=1", 1).await;
    say(&mut daemon.sessions(), "chat", "hi").await;
    // More than one, so the pings are repeated.
    manager.hears("WATCHDOG=1", 3).await;
    let serves = format!("STATUS=serves gRPC on {}", daemon.grpc_addr());
    let (serves, ready) = (manager.place(&serves), manager.place("READY=1"));
    assert!(serves.is_some() && serves < ready, "{:?}", manager.heard);
    assert!(manager.place("STOPPING=1").is_none(), "{:?}", manager.heard);
    daemon.stop().await;
    assert_eq!(manager.count("STOPPING=1"), 1, "{:?}", manager.heard);
    // Calls, hooks and changes may take 7 s each, and HTTP pages 1 s.
    assert_eq!(
        manager.count("EXTEND_TIMEOUT_USEC=22000000"),
        1,
        "{:?}",
        manager.heard
    );
    assert!(
        manager.place("STATUS=stops (SIGTERM)").is_some(),
        "{:?}",
        manager.heard
    );
    assert_eq!(manager.count("READY=1"), 1, "{:?}", manager.heard);
}

#[tokio::test]
async fn failed_start_never_notifies_ready() {
    let mut manager = Manager::new();
    let setup = manager.setup().data_dir("/proc/memoird-has-no-place-here");
    let outcome = Daemon::refused(&setup).await;
    assert_eq!(outcome.code, Some(73), "{outcome:?}");
    assert_eq!(manager.count("READY=1"), 0, "{:?}", manager.heard);
}

#[tokio::test]
async fn watchdog_of_another_process_gets_no_pings() {
    let mut manager = Manager::new();
    // PID 1 is not the daemon.
    let setup = manager
        .setup()
        .env("WATCHDOG_USEC", "2000")
        .env("WATCHDOG_PID", "1");
    let mut daemon = Daemon::with(setup).await;
    manager.hears("READY=1", 1).await;
    say(&mut daemon.sessions(), "chat", "hi").await;
    daemon.stop().await;
    assert_eq!(manager.count("STOPPING=1"), 1, "{:?}", manager.heard);
    assert_eq!(manager.count("WATCHDOG=1"), 0, "{:?}", manager.heard);
}

#[tokio::test]
async fn missing_notify_socket_does_no_harm() {
    let gone = tempfile::tempdir()
        .expect("a directory")
        .path()
        .join("notify");
    let setup = Setup::default().env("NOTIFY_SOCKET", &gone.display().to_string());
    let mut daemon = Daemon::with(setup).await;
    say(&mut daemon.sessions(), "chat", "hi").await;
    daemon.stop().await;
    assert!(
        daemon.log().contains("could not be notified"),
        "{}",
        daemon.log()
    );
}

/// A read of the file may hang, for example on a dead mount. Here the file is a pipe.
#[tokio::test]
async fn hanging_reload_does_not_delay_stop() {
    let mut manager = Manager::new();
    let mut daemon = Daemon::with(manager.setup()).await;
    let file = daemon.path("memoird.yaml");
    std::fs::remove_file(&file).expect("removed");
    let made = Command::new("mkfifo").arg(&file).status();
    assert!(made.expect("mkfifo runs").success());
    daemon.signal("-HUP");
    manager.hears("RELOADING=1", 1).await;
    daemon.stop().await;
    assert_eq!(manager.count("STOPPING=1"), 1, "{:?}", manager.heard);
}
