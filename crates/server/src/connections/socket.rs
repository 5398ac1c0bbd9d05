//! Listen addresses and sockets: TCP, TLS over TCP, and Unix sockets with known peers.

use std::fmt;
use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use memoird_core::config::Unit;
use rustix::fs::Mode;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tokio::net::{TcpListener, TcpSocket, TcpStream, UnixListener, UnixStream};
use tokio_rustls::server::TlsStream;
use tokio_util::either::Either;

/// Prefix of Unix socket addresses.
const UNIX: &str = "unix:";

/// Length of the accept queue: the default limit of Linux.
const BACKLOG: u32 = 4_096;

/// A listen address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ListenAddress {
    /// `127.0.0.1:7717`.
    Tcp(SocketAddr),
    /// `unix:/run/memoird/grpc.sock`.
    Unix(PathBuf),
}

/// The file mode of a Unix socket, such as `0600`.
pub(crate) struct FileMode;

#[derive(Debug)]
pub(crate) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, SocketFile),
}

/// Removes the socket file on drop.
#[derive(Debug)]
pub(crate) struct SocketFile(PathBuf);

pub(crate) type Stream = Either<Plain, Box<TlsStream<TcpStream>>>;

pub(crate) type Plain = Either<TcpStream, UnixStream>;

/// The remote end, as reported by the kernel.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Peer {
    /// IP address. `None` for a Unix socket.
    pub(crate) address: Option<IpAddr>,
    /// User id of the process on the other end of a Unix socket.
    pub(crate) uid: Option<u32>,
}

impl ListenAddress {
    /// Whether it is reachable only from this machine.
    pub(crate) fn is_of_this_machine(&self) -> bool {
        match self {
            Self::Tcp(address) => address.ip().is_loopback(),
            Self::Unix(_) => true,
        }
    }

    /// Binds the address.
    ///
    /// # Errors
    /// Those of the system, such as an address in use.
    pub(crate) async fn bind(&self, mode: u32) -> io::Result<Listener> {
        match self {
            Self::Tcp(address) => bind_tcp(*address).map(Listener::Tcp),
            Self::Unix(path) => {
                remove_if_left(path)?;
                // Set the umask first, so that the socket never has a wider mode.
                let before = rustix::process::umask(Mode::from_raw_mode(!mode & 0o777));
                let bound = UnixListener::bind(path);
                rustix::process::umask(before);
                Ok(Listener::Unix(bound?, SocketFile(path.clone())))
            }
        }
    }
}

fn bind_tcp(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Removes the socket file of a killed process.
fn remove_if_left(path: &Path) -> io::Result<()> {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
    if !is_socket {
        return Ok(());
    }
    match std::os::unix::net::UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        _ => Err(io::ErrorKind::AddrInUse.into()),
    }
}

impl Listener {
    /// Returns the bound address, with the actual port for port 0.
    pub(crate) fn address(&self) -> io::Result<ListenAddress> {
        match self {
            Self::Tcp(listener) => listener.local_addr().map(ListenAddress::Tcp),
            Self::Unix(_, SocketFile(path)) => Ok(ListenAddress::Unix(path.clone())),
        }
    }

    pub(crate) async fn accept(&self) -> io::Result<(Plain, Peer)> {
        match self {
            Self::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                // Responses are small, and clients wait for them.
                let _ = stream.set_nodelay(true);
                let address = Some(peer.ip());
                Ok((Either::Left(stream), Peer { address, uid: None }))
            }
            Self::Unix(listener, _) => {
                let (stream, _) = listener.accept().await?;
                let uid = Some(stream.peer_cred()?.uid());
                Ok((Either::Right(stream), Peer { address: None, uid }))
            }
        }
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Ignore the error: the file may already be gone.
        let _ = fs::remove_file(&self.0);
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "{UNIX}{}", path.display()),
        }
    }
}

impl FromStr for ListenAddress {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let problem = "not a socket address such as 127.0.0.1:7717 or unix:/run/memoird.sock";
        match text.strip_prefix(UNIX) {
            Some("") => Err(problem),
            Some(path) => Ok(Self::Unix(path.into())),
            None => text.parse().map(Self::Tcp).map_err(|_| problem),
        }
    }
}

impl Serialize for ListenAddress {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ListenAddress {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(D::Error::custom)
    }
}

impl Unit<u32> for FileMode {
    const EXPECTED: &'static str = "the mode of a file such as 0600";

    fn parse(text: &str) -> Option<u32> {
        let mode = u32::from_str_radix(text, 8).ok();
        mode.filter(|mode| *mode <= 0o777 && text.len() <= 4)
    }

    fn format(mode: &u32) -> String {
        format!("{mode:04o}")
    }
}
