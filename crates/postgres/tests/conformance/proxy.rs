//! A proxy to PostgreSQL that injects network faults. Also used by the daemon's tests.

#![allow(dead_code, reason = "not all that include this file need all of it")]
#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on may panic in its helpers, too"
)]

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// Delay of a late commit.
const LATE: Duration = Duration::from_millis(400);

/// Faults to inject into connections.
#[derive(Default)]
pub(crate) struct NetworkFaults {
    /// Closes the connection when a commit is sent, before forwarding it.
    pub(crate) before: AtomicBool,
    /// Closes the connection when the reply to a commit arrives, without forwarding it.
    pub(crate) after: AtomicBool,
    /// Number of commits to delay until the client has given up.
    pub(crate) late: AtomicU32,
    /// Drops all bytes in both directions without closing connections.
    pub(crate) stalls: AtomicBool,
    /// The same for connections with a smaller number, in the order of creation.
    pub(crate) silent_before: AtomicU64,
    /// Total number of connections.
    made: AtomicU64,
    /// Whether connections are refused.
    pub(crate) is_away: AtomicBool,
    /// Whether connections with startup options are refused, as by a pooler.
    pub(crate) refuses_settings: AtomicBool,
    /// Number of commits that reached the server late.
    pub(crate) arrived: AtomicU32,
    /// Number of connections closed at a commit.
    pub(crate) cuts: AtomicU32,
    open: Mutex<Vec<TcpStream>>,
}

impl NetworkFaults {
    /// Closes all connections.
    pub(crate) fn cut(&self) {
        for stream in self.open.lock().unwrap().drain(..) {
            // It may be closed already.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Removes all faults.
    pub(crate) fn clear(&self) {
        for flag in [&self.before, &self.after, &self.stalls, &self.is_away] {
            flag.store(false, Ordering::Relaxed);
        }
        self.late.store(0, Ordering::Relaxed);
        self.silent_before.store(0, Ordering::Relaxed);
    }

    /// Silences the existing connections, but not later ones.
    pub(crate) fn silence(&self) {
        let made = self.made.load(Ordering::Relaxed);
        self.silent_before.store(made, Ordering::Relaxed);
    }

    fn wait(&self, number: u64) {
        while self.stalls.load(Ordering::Relaxed)
            || number < self.silent_before.load(Ordering::Relaxed)
        {
            thread::sleep(Duration::from_millis(5));
        }
    }
}

/// pgbouncer's reply to a connection with startup options.
const REFUSED: &[u8] = b"E\0\0\0\x3bSFATAL\0C08P01\0Munsupported startup parameter: options\0\0";

/// Starts a proxy for a server's Unix socket. Returns the connection string through the proxy.
///
/// `None` if the server has no Unix socket.
pub(crate) fn behind_proxy(words: &str, faults: &Arc<NetworkFaults>) -> Option<String> {
    let (dir, rest) = words.strip_prefix("host=")?.split_once(' ')?;
    let socket = Path::new(dir).join(".s.PGSQL.5432");
    if !socket.exists() {
        return None;
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let faults = Arc::clone(faults);
    thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            if faults.is_away.load(Ordering::Relaxed) {
                continue;
            }
            let Ok(server) = UnixStream::connect(&socket) else {
                continue;
            };
            let number = faults.made.fetch_add(1, Ordering::Relaxed);
            let is_answer_cut = Arc::<AtomicBool>::default();
            let (up, down) = (client.try_clone().unwrap(), client);
            let (to, from) = (server.try_clone().unwrap(), server);
            faults.open.lock().unwrap().push(up.try_clone().unwrap());
            let cut = Arc::clone(&is_answer_cut);
            let of_up = Arc::clone(&faults);
            thread::spawn(move || pass_up(up, to, number, &of_up, &cut));
            let of_down = Arc::clone(&faults);
            thread::spawn(move || pass_down(from, down, number, &of_down, &is_answer_cut));
        }
    });
    Some(format!("host=127.0.0.1 port={port} {rest}"))
}

fn pass_up(
    mut up: TcpStream,
    mut to: UnixStream,
    number: u64,
    faults: &NetworkFaults,
    cut: &AtomicBool,
) {
    let mut buffer = vec![0; 1 << 16];
    while let Ok(bytes @ 1..) = up.read(&mut buffer) {
        faults.wait(number);
        let has_settings = buffer[..bytes].windows(9).any(|it| it == b"\0options\0");
        if has_settings && faults.refuses_settings.load(Ordering::Relaxed) {
            let _ = up.write_all(REFUSED);
            break;
        }
        let is_commit = buffer[..bytes]
            .windows(12)
            .any(|word| word == b"commit_batch");
        let take = |flag: &AtomicBool| is_commit && flag.swap(false, Ordering::Relaxed);
        if take(&faults.before) {
            faults.cuts.fetch_add(1, Ordering::Relaxed);
            let _ = (up.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
            return;
        }
        let late = faults.late.load(Ordering::Relaxed);
        if is_commit && late > 0 {
            faults.late.store(late - 1, Ordering::Relaxed);
            faults.cuts.fetch_add(1, Ordering::Relaxed);
            // The client sees the connection close, while the bytes are still in flight.
            let _ = up.shutdown(Shutdown::Both);
            thread::sleep(LATE);
            let _ = to.write_all(&buffer[..bytes]);
            // The server replies after it has executed them. Its reply ends the other thread.
            faults.arrived.fetch_add(1, Ordering::Relaxed);
            return;
        }
        if take(&faults.after) {
            faults.cuts.fetch_add(1, Ordering::Relaxed);
            cut.store(true, Ordering::Relaxed);
        }
        if to.write_all(&buffer[..bytes]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

fn pass_down(
    mut from: UnixStream,
    mut down: TcpStream,
    number: u64,
    faults: &NetworkFaults,
    cut: &AtomicBool,
) {
    let mut buffer = vec![0; 1 << 16];
    while let Ok(bytes @ 1..) = from.read(&mut buffer) {
        faults.wait(number);
        if cut.load(Ordering::Relaxed) || down.write_all(&buffer[..bytes]).is_err() {
            break;
        }
    }
    let _ = (down.shutdown(Shutdown::Both), from.shutdown(Shutdown::Both));
}
