//! The bytes of a connection: whether it has said hello, whether its client takes what is sent
//! to it, and how many of them are worth a turn.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use super::Connection;

/// The first bytes of HTTP/2 (RFC 9113, 3.4), and the head of the frame that follows.
const HELLO_BYTES: usize = 24 + 9;

/// After so many bytes of requests and of answers in one turn, it is the next one's turn. Small
/// calls cost much more for each byte than large answers do.
const READ_BYTES_PER_TURN: usize = 8 << 10;
const WRITTEN_BYTES_PER_TURN: usize = 128 << 10;

/// The bytes of a connection.
pub(crate) struct Watched<S> {
    stream: S,
    connection: Arc<Connection>,
    /// Bytes of the hello that have not come yet.
    missing: usize,
    write_timeout: Duration,
    /// Runs while nothing can be written.
    stalled: Option<Pin<Box<Sleep>>>,
    turn: Turn,
}

/// What a connection has done since its turn came.
#[derive(Debug, Default)]
struct Turn {
    /// Its number, as the schedule counts; `None` where nobody waits for turns.
    number: Option<u32>,
    read_bytes: usize,
    written_bytes: usize,
}

impl<S> Watched<S> {
    pub(super) fn new(stream: S, connection: Arc<Connection>, write_timeout: Duration) -> Self {
        Self {
            stream,
            connection,
            missing: HELLO_BYTES,
            write_timeout,
            stalled: None,
            turn: Turn::default(),
        }
    }

    /// True when it has done enough for this turn; then it is polled again when the next comes.
    fn is_turn_over(&mut self, context: &Context<'_>) -> bool {
        let number = self.connection.owner.turns();
        if self.turn.number != number {
            self.turn = Turn {
                number,
                ..Turn::default()
            };
        }
        let is_over = number.is_some()
            && (self.turn.read_bytes >= READ_BYTES_PER_TURN
                || self.turn.written_bytes >= WRITTEN_BYTES_PER_TURN);
        if is_over {
            context.waker().wake_by_ref();
        }
        is_over
    }

    /// What came of a write: an error where nothing could be written for too long.
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

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.is_turn_over(context) {
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(context, buffer);
        let read_bytes = buffer.filled().len() - before;
        self.turn.read_bytes += read_bytes;
        if self.missing > 0 {
            self.missing = self.missing.saturating_sub(read_bytes);
            if self.missing == 0 {
                let said = &self.connection.has_said_hello;
                said.store(true, Ordering::Relaxed);
            }
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.is_turn_over(context) {
            return Poll::Pending;
        }
        let polled = Pin::new(&mut self.stream).poll_write(context, bytes);
        if let Poll::Ready(Ok(written_bytes)) = &polled {
            self.turn.written_bytes += written_bytes;
        }
        self.written(polled, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.is_turn_over(context) {
            return Poll::Pending;
        }
        let polled = Pin::new(&mut self.stream).poll_write_vectored(context, bytes);
        if let Poll::Ready(Ok(written_bytes)) = &polled {
            self.turn.written_bytes += written_bytes;
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
    use std::io::Cursor;

    use tokio::io::AsyncReadExt;

    use super::*;
    use crate::admission::schedule::{Schedule, Scheduled};
    use crate::connections::{Connections, ConnectionsConfig, Entered, Peer};

    /// Turns that it takes to read so many bytes, where connections wait for turns.
    async fn turns_to_read(bytes: usize, is_shared: bool) -> Option<u32> {
        let schedule = Arc::<Schedule>::default();
        let connections = Connections::new(1, &ConnectionsConfig::default(), &schedule);
        let peer = Peer {
            address: None,
            uid: None,
        };
        let Entered::Yes(connection) = connections.try_enter(peer) else {
            panic!("there is room for one");
        };
        let owner = Arc::clone(&connection.owner);
        if is_shared {
            owner.enter(schedule.strangers());
        }
        let stream = Cursor::new(vec![0; bytes]);
        let mut io = Watched::new(stream, connection, Duration::from_secs(1));
        let reading = async move {
            let mut buffer = [0; READ_BYTES_PER_TURN / 2];
            let mut read_bytes = 0;
            loop {
                match io.read(&mut buffer).await.expect("bytes") {
                    0 => return read_bytes,
                    more => read_bytes += more,
                }
            }
        };
        let read_bytes = Scheduled::new(Arc::clone(&owner), reading).await;
        assert_eq!(read_bytes, bytes);
        owner.turns()
    }

    #[tokio::test]
    async fn many_bytes_take_many_turns() {
        let bytes = 5 * READ_BYTES_PER_TURN;
        // The last one finds that there are no more.
        assert_eq!(turns_to_read(bytes, true).await, Some(6));
        assert_eq!(turns_to_read(bytes, false).await, None);
    }
}
