//! Notifies the service manager (`sd_notify(3)`): ready, reloading, stopping, watchdog.
//!
//! Does nothing without a manager. The protocol is a line of text in a datagram. The existing crate
//! supports neither the abstract namespace nor a send timeout.

use std::ffi::OsStr;
use std::fmt::Display;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;
use tracing::warn;

/// Timeout for a message to a manager that does not read.
const SEND_TIME_MAX: Duration = Duration::from_secs(1);
/// Minimum interval of watchdog notifications.
const BEAT_TIME_MIN: Duration = Duration::from_millis(1);

/// A connection to the service manager, if there is one.
#[derive(Clone, Debug)]
pub(crate) struct Notifier {
    manager: Option<Arc<Manager>>,
}

#[derive(Debug)]
struct Manager {
    socket: UnixDatagram,
    addr: SocketAddr,
    /// The manager kills the daemon after this long without a notification.
    watchdog: Option<Duration>,
}

impl Notifier {
    /// Uses the manager named by the environment.
    pub(crate) fn from_environment() -> Self {
        let manager = variable("NOTIFY_SOCKET").and_then(|name| match Manager::at(&name) {
            Ok(manager) => Some(Arc::new(manager)),
            Err(error) => {
                warn!(%error, socket = ?name, "the service manager cannot be notified");
                None
            }
        });
        Self { manager }
    }

    /// The daemon accepts calls, after startup or after [`Self::reloading`].
    pub(crate) fn ready(&self) {
        self.tell("READY=1");
    }

    /// The daemon reloads its configuration. [`Self::ready`] follows in any case.
    pub(crate) fn reloading(&self) {
        // The manager matches the reload to its own signal by this time.
        self.tell(format_args!(
            "RELOADING=1\nMONOTONIC_USEC={}",
            monotonic_us()
        ));
    }

    /// The daemon stops within this time. Overrides a shorter timeout of the manager.
    pub(crate) fn stopping(&self, within: Duration) {
        self.tell(format_args!(
            "STOPPING=1\nEXTEND_TIMEOUT_USEC={}",
            within.as_micros()
        ));
    }

    /// A line for `systemctl status`.
    pub(crate) fn status(&self, line: impl Display) {
        self.tell(format_args!("STATUS={line}"));
    }

    /// Sends watchdog notifications at half the timeout, until the returned set is dropped.
    ///
    /// The task shares a runtime with calls, so it stops if these are not polled.
    pub(crate) fn keep_alive(&self) -> JoinSet<()> {
        let mut beats = JoinSet::new();
        if let Some(watchdog) = self.manager.as_ref().and_then(|manager| manager.watchdog) {
            beats.spawn(self.clone().beat((watchdog / 2).max(BEAT_TIME_MIN)));
        }
        beats
    }

    async fn beat(self, every: Duration) {
        let mut times = tokio::time::interval(every);
        times.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            times.tick().await;
            self.tell("WATCHDOG=1");
        }
    }

    fn tell(&self, message: impl Display) {
        let Some(manager) = &self.manager else { return };
        let sent = manager
            .socket
            .send_to_addr(format!("{message}\n").as_bytes(), &manager.addr);
        if let Err(error) = sent {
            warn!(%error, "the service manager could not be notified: {message}");
        }
    }
}

impl Manager {
    fn at(name: &OsStr) -> io::Result<Self> {
        let socket = UnixDatagram::unbound()?;
        socket.set_write_timeout(Some(SEND_TIME_MAX))?;
        Ok(Self {
            socket,
            addr: address(name)?,
            watchdog: watchdog(),
        })
    }
}

/// Parses a path, or `@` and a name in the abstract namespace.
fn address(name: &OsStr) -> io::Result<SocketAddr> {
    match name.as_bytes() {
        [b'/', ..] => SocketAddr::from_pathname(name),
        #[cfg(target_os = "linux")]
        [b'@', name @ ..] => {
            use std::os::linux::net::SocketAddrExt;
            SocketAddr::from_abstract_name(name)
        }
        _ => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "neither a path nor @ and a name",
        )),
    }
}

/// The watchdog timeout, if it is for this process.
fn watchdog() -> Option<Duration> {
    let number = |name| variable(name)?.to_str()?.parse::<u64>().ok();
    let is_ours = match variable("WATCHDOG_PID") {
        Some(_) => number("WATCHDOG_PID") == Some(std::process::id().into()),
        None => true,
    };
    number("WATCHDOG_USEC")
        .filter(|us| is_ours && *us > 0)
        .map(Duration::from_micros)
}

fn monotonic_us() -> i64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec * 1_000_000 + now.tv_nsec / 1_000
}

#[allow(
    clippy::disallowed_methods,
    reason = "the protocol's variables are read here only"
)]
fn variable(name: &str) -> Option<std::ffi::OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(socket: &UnixDatagram) -> String {
        let mut buffer = [0; 512];
        let length = socket.recv(&mut buffer).expect("a message");
        String::from_utf8_lossy(&buffer[..length]).into_owned()
    }

    fn notifier(name: &OsStr) -> Notifier {
        let manager = Manager::at(name).expect("a manager");
        Notifier {
            manager: Some(Arc::new(manager)),
        }
    }

    #[test]
    fn notify_socket_is_path_or_abstract_name() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("notify");
        let heard = UnixDatagram::bind(&path).expect("bound");
        notifier(path.as_os_str()).ready();
        assert_eq!(received(&heard), "READY=1\n");

        let name = format!("@memoird-test-{}", std::process::id());
        let addr = address(OsStr::new(&name)).expect("an address");
        let heard = UnixDatagram::bind_addr(&addr).expect("bound");
        notifier(OsStr::new(&name)).status("serves");
        assert_eq!(received(&heard), "STATUS=serves\n");

        for wrong in ["vsock:2:1234", "notify", ""] {
            assert!(address(OsStr::new(wrong)).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn reload_sends_start_time_and_stop_sends_duration() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("notify");
        let heard = UnixDatagram::bind(&path).expect("bound");
        let notifier = notifier(path.as_os_str());
        let before = monotonic_us();
        notifier.reloading();
        let text = received(&heard);
        let digits = text
            .strip_prefix("RELOADING=1\nMONOTONIC_USEC=")
            .expect(&text)
            .trim_end();
        let us: i64 = digits.parse().expect("a number");
        assert!((before..=monotonic_us()).contains(&us), "{text}");
        notifier.stopping(Duration::from_secs(21));
        assert_eq!(
            received(&heard),
            "STOPPING=1\nEXTEND_TIMEOUT_USEC=21000000\n"
        );
    }

    #[test]
    fn missing_service_manager_is_ignored() {
        let dir = tempfile::tempdir().expect("a directory");
        let notifier = notifier(dir.path().join("nobody").as_os_str());
        notifier.ready();
        notifier.status("talks to itself");
    }
}
