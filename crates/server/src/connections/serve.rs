//! Accepts the connections of a port and serves each in its own task.

use std::fmt::Display;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulConnection;
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_rustls::TlsAcceptor;
use tokio_util::either::Either;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, warn};

use super::deferred_poll::DeferredPoll;
use super::io::LimitedStream;
use super::schedule::{Scheduled, ScheduledExecutor};
use super::socket::{Listener, Plain, Stream};
use super::{
    CloseOrder, Connection, Connections, ConnectionsConfig, TableEntry, count, now, one_address,
};
use crate::tls::{Tls, TlsPort};

/// Pause after a failed accept, for example when no file descriptors are left.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_millis(100);
/// Maximum size of request headers in bytes: the default of gRPC clients.
const HEAD_BYTES_MAX: u32 = 8 << 10;
/// Buffer of an HTTP/1.1 connection in bytes, which limits its request heads.
const HTTP1_BUFFER_BYTES: usize = 16 << 10;
/// HTTP/2 keepalive, which detects a peer that is gone after the sum of both.
const PING_EVERY: Duration = Duration::from_secs(60);
const PONG_TIME_MAX: Duration = Duration::from_secs(20);

/// Maximum age of an unauthenticated connection, as a multiple of its idle timeout.
const UNAUTHENTICATED_AGE_FACTOR: u32 = 10;
/// Time for unauthenticated connections to finish at shutdown.
const UNAUTHENTICATED_DRAIN_TIME: Duration = Duration::from_secs(1);
/// In effect no limit.
const FOREVER: Duration = Duration::from_secs(30 * 365 * 24 * 60 * 60);

pub(crate) struct Port {
    pub(crate) listener: Listener,
    /// The TLS configuration, and which port it is for.
    pub(crate) tls: Option<(Arc<Tls>, TlsPort)>,
    pub(crate) connections: Arc<Connections>,
    pub(crate) config: ConnectionsConfig,
    /// Cancelled when no new connections are accepted, and open ones should finish.
    pub(crate) stop: CancellationToken,
    /// Cancelled when open connections are cut off.
    pub(crate) abort: CancellationToken,
    pub(crate) tasks: TaskTracker,
}

pub(crate) trait Protocol: Clone + Send + Sync + 'static {
    type Serving: GracefulConnection<Error: Display> + Send;

    /// Whether the client speaks first, and must do so in time.
    const CLIENT_SPEAKS_FIRST: bool;

    fn serve(&self, io: Io, connection: &Arc<Connection>) -> Self::Serving;
}

pub(crate) type Io = TokioIo<LimitedStream<Stream>>;

/// A server of HTTP/1.1 and HTTP/2. With HTTP/2, calls have their own tasks, run with `in_turn`.
///
/// Over HTTP/1.1 a client that sends its head slowly is idle: hyper's timeout for the head would
/// also apply between two requests.
pub(crate) fn any_http(
    max_streams: u32,
    in_turn: ScheduledExecutor,
) -> auto::Builder<ScheduledExecutor> {
    let mut server = auto::Builder::new(in_turn);
    server
        .http1()
        .max_buf_size(HTTP1_BUFFER_BYTES)
        .header_read_timeout(None);
    server
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(max_streams)
        .max_header_list_size(HEAD_BYTES_MAX)
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PONG_TIME_MAX);
    server
}

pub(crate) fn http1(head_time_max: Duration) -> hyper::server::conn::http1::Builder {
    let mut http1 = hyper::server::conn::http1::Builder::new();
    http1
        .timer(TokioTimer::new())
        .header_read_timeout(head_time_max);
    http1
}

impl Port {
    /// Accepts and serves connections until it is stopped.
    pub(crate) fn run(self, protocol: impl Protocol) {
        let tasks = self.tasks.clone();
        tasks.spawn(async move {
            let stop = self.stop.clone();
            tokio::select! {
                () = stop.cancelled() => {}
                () = self.accept_all(protocol) => {}
            }
        });
    }

    async fn accept_all(&self, protocol: impl Protocol) {
        loop {
            let (stream, mut peer) = match self.listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(PAUSE_AFTER_FAILURE).await;
                    continue;
                }
            };
            peer.address = peer.address.map(one_address);
            // Without room, one connection waits here, and the others in the kernel's queue.
            let Some(seat) = self.connections.enter(peer).await else {
                let address = peer.address;
                warn!(
                    ?address,
                    "closed a connection: its address has reached \
                     server.connections.max_per_address"
                );
                continue;
            };
            let task = ConnectionTask {
                seat,
                tls: self.tls.clone(),
                config: self.config.clone(),
                stop: self.stop.clone(),
                abort: self.abort.clone(),
            };
            let protocol = protocol.clone();
            self.tasks.spawn(task.run(stream, protocol));
        }
    }
}

struct ConnectionTask {
    seat: TableEntry,
    tls: Option<(Arc<Tls>, TlsPort)>,
    config: ConnectionsConfig,
    stop: CancellationToken,
    abort: CancellationToken,
}

impl ConnectionTask {
    async fn run(self, stream: Plain, protocol: impl Protocol) {
        let connection = Arc::clone(&self.seat.0);
        let abort = self.abort.clone();
        tokio::select! {
            () = abort.cancelled() => {}
            () = self.begin(stream, protocol, &connection) => {}
        }
    }

    async fn begin(&self, stream: Plain, protocol: impl Protocol, connection: &Arc<Connection>) {
        let born = now();
        let by = born + self.config.handshake_timeout;
        let shaking = async {
            tokio::select! {
                shaken = timeout_at(by, self.tls_handshake(stream, connection)) => shaken.ok().flatten(),
                () = connection.wait_for_stronger_order(CloseOrder::None) => None,
                () = self.stop.cancelled() => None,
            }
        };
        if let Some(stream) = shaking.await {
            self.serve(stream, born, protocol, connection).await;
        }
    }

    /// Performs the TLS handshake, if TLS is configured. Unix sockets never use it.
    async fn tls_handshake(&self, stream: Plain, connection: &Connection) -> Option<Stream> {
        let server = self
            .tls
            .as_ref()
            .and_then(|(tls, port)| Some((tls, tls.server(*port)?)));
        let (tls, server, stream) = match (server, stream) {
            (Some((tls, server)), Either::Left(stream)) => (tls, server, stream),
            (_, stream) => return Some(Either::Left(stream)),
        };
        match TlsAcceptor::from(server).accept(stream).await {
            Ok(stream) => {
                let certificates = stream.get_ref().1.peer_certificates();
                if let Some(certificate) = certificates.and_then(|shown| shown.first()) {
                    // Not set before, so this cannot fail.
                    let _ = connection.certificate.set(tls.names(certificate));
                }
                Some(Either::Right(Box::new(stream)))
            }
            Err(error) => {
                count(&connection.connections.counts.tls_failed);
                debug!(%error, address = ?connection.peer.address, "a TLS handshake failed");
                None
            }
        }
    }

    async fn serve<P: Protocol>(
        &self,
        stream: Stream,
        born: Instant,
        protocol: P,
        connection: &Arc<Connection>,
    ) {
        let write_timeout = self.config.write_timeout;
        let io = LimitedStream::new(stream, Arc::clone(connection), write_timeout);
        let protocol_serving = protocol.serve(TokioIo::new(io), connection);
        let deferred_poll = DeferredPoll::new(protocol_serving, Arc::clone(connection));
        let mut serving = Scheduled::new(Arc::clone(&connection.owner), deferred_poll);
        let patience = tokio::select! {
            // Polled in this order, so that an order given while it is served applies at once.
            biased;
            served = poll_with_limits(&mut serving, connection) => return ended(served),
            () = connection.wait_for_stronger_order(CloseOrder::Finish) => return,
            patience = self.shutdown_deadline(born, connection, P::CLIENT_SPEAKS_FIRST) => patience,
        };
        let Some(patience) = patience else {
            return;
        };
        serving.inner().inner().graceful_shutdown();
        tokio::select! {
            biased;
            served = poll_with_limits(&mut serving, connection) => ended(served),
            () = connection.wait_for_stronger_order(CloseOrder::Finish) => {}
            () = sleep_until(patience) => debug!("a connection was cut off"),
        }
    }

    /// Waits until the connection should shut down, and returns the deadline.
    ///
    /// `None` if it must be closed at once.
    async fn shutdown_deadline(
        &self,
        born: Instant,
        connection: &Connection,
        says_hello: bool,
    ) -> Option<Instant> {
        let counts = &connection.connections.counts;
        let config = &self.config;
        tokio::select! {
            () = self.stop.cancelled() => {
                let is_silent = says_hello && !connection.has_spoken.load(Ordering::Relaxed);
                // Connections with a key share one deadline, that of the daemon.
                let patience = if connection.is_unauthenticated() {
                    now() + UNAUTHENTICATED_DRAIN_TIME
                } else {
                    born + FOREVER
                };
                (!is_silent).then_some(patience)
            }
            () = connection.wait_for_stronger_order(CloseOrder::None) => Some(now() + config.handshake_timeout),
            patience = self.until_too_old(born, connection) => {
                count(&counts.old);
                Some(now() + patience)
            }
            closing = self.until_idle(born, connection, says_hello) => {
                let cause = if closing.is_some() { &counts.idle } else { &counts.silent };
                count(cause);
                closing
            }
        }
    }

    /// Waits until the connection is idle for too long, or its client is silent.
    async fn until_idle(
        &self,
        born: Instant,
        connection: &Connection,
        says_hello: bool,
    ) -> Option<Instant> {
        let config = &self.config;
        if says_hello {
            sleep_until(born + config.handshake_timeout).await;
            if !connection.has_spoken.load(Ordering::Relaxed) {
                return None;
            }
        }
        let mut begun = 0;
        loop {
            let limit = if connection.has_key.load(Ordering::Relaxed) {
                config.idle_timeout
            } else {
                config.keyless_timeout
            };
            tokio::time::sleep(limit).await;
            let is_used = connection.calls.load(Ordering::Relaxed) > 0;
            let begun_now = connection.calls_begun.load(Ordering::Relaxed);
            if !is_used && begun_now == begun {
                return Some(now() + config.handshake_timeout);
            }
            begun = begun_now;
        }
    }

    /// Waits until the connection is too old. Returns the time it has to finish.
    async fn until_too_old(&self, born: Instant, connection: &Connection) -> Duration {
        let config = &self.config;
        // Up to 10 % less, so that connections opened together do not end together.
        let tenths = u32::try_from(connection.number % 10).unwrap_or_default();
        let max_age = config.max_age - config.max_age / 100 * tenths;
        let strangers_age = config.keyless_timeout * UNAUTHENTICATED_AGE_FACTOR;
        sleep_until(born + max_age.min(strangers_age)).await;
        if connection.is_unauthenticated() {
            return config.handshake_timeout;
        }
        sleep_until(born + max_age).await;
        config.max_age_grace
    }
}

/// Serves a connection, with limits per poll.
pub(super) async fn poll_with_limits<S: Future + Unpin>(
    serving: &mut S,
    connection: &Connection,
) -> S::Output {
    poll_fn(|context| {
        connection.begin_poll();
        Pin::new(&mut *serving).poll(context)
    })
    .await
}

fn ended(served: Result<(), impl Display>) {
    if let Err(error) = served {
        debug!(%error, "a connection failed");
    }
}
