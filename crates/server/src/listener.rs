//! The connections of a listener, no more at once than configured: further ones wait in the
//! system's queue and cost the process nothing.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_stream::Stream;
use tonic::transport::server::Connected;
use tracing::warn;

/// After a failed accept, as when all file descriptors are in use.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_millis(100);

/// A connection, counted until it closes.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: TcpStream,
    _permit: OwnedSemaphorePermit,
}

/// The connections of a listener, as they come.
pub(crate) fn connections(
    listener: TcpListener,
    max_connections: usize,
) -> impl Stream<Item = io::Result<Connection>> {
    let permits = Arc::new(Semaphore::new(max_connections));
    tokio_stream::StreamExt::then(tokio_stream::iter(std::iter::repeat(())), {
        let listener = Arc::new(listener);
        move |()| accept(Arc::clone(&listener), Arc::clone(&permits))
    })
}

async fn accept(listener: Arc<TcpListener>, permits: Arc<Semaphore>) -> io::Result<Connection> {
    let permit = permits.acquire_owned().await.map_err(io::Error::other)?;
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                // Answers are small and waited for.
                let _ = stream.set_nodelay(true);
                return Ok(Connection {
                    stream,
                    _permit: permit,
                });
            }
            Err(error) => {
                warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(PAUSE_AFTER_FAILURE).await;
            }
        }
    }
}

impl Connected for Connection {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
