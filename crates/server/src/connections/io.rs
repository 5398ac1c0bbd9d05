//! Connection I/O: detects the HTTP/2 preface and stalled clients, and limits bytes per poll.
//!
//! The limit is lower if tenants share the scheduler. An unauthenticated connection reads far fewer
//! bytes, and at a limited rate. Orders given while it is polled apply before the next poll.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use super::Connection;
use super::authority::AuthorityRewriter;

/// The HTTP/2 preface (RFC 9113, section 3.4), and the header of the frame that follows.
const PREFACE_BYTES: usize = 24 + 9;

/// Burst of an unauthenticated connection, in bytes. Health checks need some hundred.
const UNAUTHENTICATED_BURST_BYTES: u32 = 64 << 10;
/// Rate after the burst, in bytes per second.
const UNAUTHENTICATED_BYTES_PER_SECOND: u32 = 8 << 10;

/// Bytes left for this poll.
#[derive(Debug, Default)]
pub(super) struct PollBudget(AtomicUsize);

/// A stream with the limits of its connection.
pub(crate) struct LimitedStream<S> {
    stream: S,
    connection: Arc<Connection>,
    /// Bytes of the preface that have not arrived yet.
    missing: usize,
    write_timeout: Duration,
    /// Runs while nothing can be written.
    stalled: Option<Pin<Box<Sleep>>>,
    pace: ReadRate,
    /// Set for a Unix socket.
    authority: Option<AuthorityRewriter>,
}

/// Rate limit for reading from an unauthenticated connection.
#[derive(Debug, Default)]
struct ReadRate {
    /// When the bytes read so far are covered by the rate.
    paid_at: Option<Instant>,
    /// Runs while the limit is exceeded.
    pause: Option<Pin<Box<Sleep>>>,
}

impl<S> LimitedStream<S> {
    pub(super) fn new(stream: S, connection: Arc<Connection>, write_timeout: Duration) -> Self {
        let is_unix = connection.peer.uid.is_some();
        Self {
            authority: is_unix.then(AuthorityRewriter::default),
            stream,
            connection,
            missing: PREFACE_BYTES,
            write_timeout,
            stalled: None,
            pace: ReadRate::default(),
        }
    }

    /// Fails a write once nothing could be written for too long.
    fn written<T>(
        &mut self,
        polled: Poll<io::Result<T>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        if polled.is_ready() {
            self.stalled = None;
            return polled;
        }
        let limit = self.write_timeout;
        let stalled = self
            .stalled
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
        match stalled.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl PollBudget {
    pub(super) fn set(&self, bytes: usize) {
        self.0.store(bytes, Ordering::Relaxed);
    }

    /// Ready with the remaining bytes, or pending until the next poll.
    fn poll(&self, context: &Context<'_>) -> Poll<usize> {
        match self.0.load(Ordering::Relaxed) {
            0 => {
                context.waker().wake_by_ref();
                Poll::Pending
            }
            left => Poll::Ready(left),
        }
    }

    fn take(&self, bytes: usize) {
        let left = self.0.load(Ordering::Relaxed);
        self.set(left.saturating_sub(bytes));
    }
}

impl ReadRate {
    /// Ready when more may be read.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if let Some(pause) = &mut self.pause {
            ready!(pause.as_mut().poll(context));
            self.pause = None;
        }
        Poll::Ready(())
    }

    /// Adds bytes that were read, and pauses if they exceed the limit.
    fn add(&mut self, bytes: usize) {
        const BYTE: Duration =
            Duration::from_nanos(1_000_000_000 / UNAUTHENTICATED_BYTES_PER_SECOND as u64);
        let now = super::now();
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        let paid_at = self.paid_at.unwrap_or(now).max(now) + BYTE * bytes;
        self.paid_at = Some(paid_at);
        let free_until = now + BYTE * UNAUTHENTICATED_BURST_BYTES;
        if paid_at > free_until {
            let pause = tokio::time::sleep(paid_at - free_until);
            self.pause = Some(Box::pin(pause));
        }
    }
}

impl<S: AsyncRead + Unpin> LimitedStream<S> {
    /// Reads at most `bytes_max` bytes, as soon as the rate limit allows.
    fn read_unauthenticated(
        &mut self,
        bytes_max: usize,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.pace.poll(context));
        let bytes_max = bytes_max.min(buffer.remaining());
        let mut part = ReadBuf::new(buffer.initialize_unfilled_to(bytes_max));
        ready!(Pin::new(&mut self.stream).poll_read(context, &mut part))?;
        let read = part.filled().len();
        buffer.advance(read);
        self.pace.add(read);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for LimitedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let readable = ready!(self.connection.readable.poll(context));
        let before = buffer.filled().len();
        let polled = if self.connection.is_unauthenticated() {
            self.read_unauthenticated(readable, context, buffer)
        } else {
            // May exceed `readable` by one buffer, which does no harm.
            Pin::new(&mut self.stream).poll_read(context, buffer)
        };
        let read = buffer.filled().len() - before;
        if let Some(authority) = &mut self.authority {
            authority.rewrite(&mut buffer.filled_mut()[before..]);
        }
        self.connection.readable.take(read);
        if self.missing > 0 {
            self.missing = self.missing.saturating_sub(read);
            if self.missing == 0 {
                let said = &self.connection.has_spoken;
                said.store(true, Ordering::Relaxed);
            }
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for LimitedStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.connection.writable.poll(context));
        let polled = Pin::new(&mut self.stream).poll_write(context, bytes);
        if let Poll::Ready(Ok(written)) = polled {
            self.connection.writable.take(written);
        }
        self.written(polled, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.connection.writable.poll(context));
        let polled = Pin::new(&mut self.stream).poll_write_vectored(context, bytes);
        if let Poll::Ready(Ok(written)) = polled {
            self.connection.writable.take(written);
        }
        self.written(polled, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_flush(context);
        self.written(polled, context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_shutdown(context);
        self.written(polled, context)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::io::Cursor;
    use std::pin::pin;

    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    use super::super::serve::poll_with_limits;
    use super::super::{
        BYTES_PER_POLL, Connections, ConnectionsConfig, Peer, SHARED_BYTES_PER_POLL,
        SHARED_WRITTEN_BYTES_PER_POLL, UNAUTHENTICATED_BYTES_PER_POLL,
    };
    use super::*;
    use crate::connections::schedule::{Schedule, Scheduled};

    const SENT: usize = 1 << 20;

    /// A connection of a daemon with one tenant, or several.
    fn connection(is_shared: bool) -> Arc<Connection> {
        let schedule = Arc::<Schedule>::default();
        let connections = Connections::new(1, &ConnectionsConfig::default(), &schedule);
        let connection = connections.table.lock().add(&connections, Peer::default());
        if is_shared {
            connection.owner.enter(schedule.unauthenticated_lane());
        }
        connection
    }

    /// A connection with a client that has sent a lot.
    async fn flooded(
        is_shared: bool,
    ) -> (LimitedStream<DuplexStream>, Arc<Connection>, DuplexStream) {
        let connection = connection(is_shared);
        let (mut client, daemon) = duplex(SENT);
        client.write_all(&vec![0; SENT]).await.expect("sent");
        let io = LimitedStream::new(daemon, Arc::clone(&connection), Duration::from_secs(1));
        (io, connection, client)
    }

    /// Number of bytes read in one poll.
    fn read(io: &mut LimitedStream<DuplexStream>) -> usize {
        let mut context = Context::from_waker(std::task::Waker::noop());
        let mut bytes = vec![0; SENT];
        let mut buffer = ReadBuf::new(&mut bytes);
        loop {
            let mut part = buffer.take(8 << 10);
            let polled = Pin::new(&mut *io).poll_read(&mut context, &mut part);
            let read = part.filled().len();
            buffer.advance(read);
            if polled.is_pending() || read == 0 {
                return buffer.filled().len();
            }
        }
    }

    #[tokio::test]
    async fn unauthenticated_bytes_per_poll_are_limited() {
        for (is_shared, of_others) in [(false, BYTES_PER_POLL), (true, SHARED_BYTES_PER_POLL)] {
            let (mut io, connection, _client) = flooded(is_shared).await;
            connection.begin_poll();
            assert_eq!(read(&mut io), UNAUTHENTICATED_BYTES_PER_POLL);
            assert_eq!(read(&mut io), 0, "however often it asks");
            connection.begin_poll();
            assert_eq!(read(&mut io), UNAUTHENTICATED_BYTES_PER_POLL);
            connection.show_key();
            connection.begin_poll();
            assert_eq!(read(&mut io), of_others);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn unauthenticated_bytes_per_second_are_limited() {
        let (mut io, connection, _client) = flooded(false).await;
        let mut turns = |count: usize, connection: &Connection| -> usize {
            let turns = (0..count).map(|_| {
                connection.begin_poll();
                read(&mut io)
            });
            turns.sum()
        };
        let (free, second) = (
            UNAUTHENTICATED_BURST_BYTES as usize,
            UNAUTHENTICATED_BYTES_PER_SECOND as usize,
        );
        let at_once = turns(1_000, &connection);
        assert!(
            (free..=free + UNAUTHENTICATED_BYTES_PER_POLL).contains(&at_once),
            "{at_once}"
        );
        tokio::time::advance(Duration::from_secs(4)).await;
        let in_four = turns(1_000, &connection);
        let allowed = 3 * second..=4 * second + UNAUTHENTICATED_BYTES_PER_POLL;
        assert!(allowed.contains(&in_four), "{in_four}");
        connection.show_key();
        assert_eq!(turns(1, &connection), BYTES_PER_POLL, "at once");
    }

    /// Number of polls of an authenticated connection to complete `work`.
    async fn turns_of<F: Future>(
        is_shared: bool,
        work: impl FnOnce(LimitedStream<Cursor<Vec<u8>>>) -> F,
    ) -> usize {
        let connection = connection(is_shared);
        connection.show_key();
        let stream = Cursor::new(vec![0; SENT]);
        let io = LimitedStream::new(stream, Arc::clone(&connection), Duration::from_secs(1));
        let (mut turns, mut work) = (0, pin!(work(io)));
        let counted = poll_fn(|context| {
            turns += 1;
            work.as_mut().poll(context)
        });
        let mut scheduled = Scheduled::new(Arc::clone(&connection.owner), counted);
        poll_with_limits(&mut scheduled, &connection).await;
        drop(scheduled);
        turns
    }

    #[tokio::test]
    async fn large_reads_take_several_polls() {
        let reading = |mut io: LimitedStream<_>| async move {
            let mut buffer = [0; SHARED_BYTES_PER_POLL / 2];
            while io.read(&mut buffer).await.expect("bytes") > 0 {}
        };
        // The last poll reads the end of the stream.
        assert_eq!(
            turns_of(true, reading).await,
            SENT / SHARED_BYTES_PER_POLL + 1
        );
        assert_eq!(turns_of(false, reading).await, SENT / BYTES_PER_POLL + 1);
        let writing = |mut io: LimitedStream<_>| async move {
            for _ in 0..2 * SENT / SHARED_WRITTEN_BYTES_PER_POLL {
                let bytes = [0; SHARED_WRITTEN_BYTES_PER_POLL / 2];
                io.write_all(&bytes).await.expect("room");
            }
        };
        assert_eq!(
            turns_of(true, writing).await,
            SENT / SHARED_WRITTEN_BYTES_PER_POLL
        );
        assert_eq!(turns_of(false, writing).await, 1);
    }
}
