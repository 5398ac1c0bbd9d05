//! Misbehaving clients: HTTP/2 frame by frame, and connections that send nothing.

use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use h2::SendStream;
use h2::client::{self, Connection, ResponseFuture, SendRequest};
use tokio::io::AsyncReadExt;
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tonic::codegen::http::{HeaderMap, Request, StatusCode};
use tonic::{Code, Status};

/// Longer than anything takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(40);
/// Larger than any response.
const WINDOW: u32 = 1 << 30;

/// An HTTP/2 connection whose streams are driven by hand.
#[derive(Debug)]
pub(crate) struct Http2 {
    streams: SendRequest<Bytes>,
    /// Ends when the connection does.
    driving: JoinSet<()>,
}

/// A call with an incomplete request.
#[derive(Debug)]
pub(crate) struct UnfinishedCall {
    answer: ResponseFuture,
    /// Dropping it would reset the stream.
    _request: SendStream<Bytes>,
}

/// An HTTP/2 connection that is read only while something is sent.
pub(crate) struct UnreadHttp2 {
    streams: SendRequest<Bytes>,
    connection: Connection<TcpStream, Bytes>,
    _calls: Vec<UnfinishedCall>,
}

impl Http2 {
    /// Connects and completes the HTTP/2 handshake.
    pub(crate) async fn connect(addr: &str) -> Self {
        Self::over(connect_from("127.0.0.1", addr).await).await
    }

    /// The same over an open connection.
    pub(crate) async fn over(stream: TcpStream) -> Self {
        let (streams, connection) = client::handshake(stream).await.expect("HTTP/2");
        Self::driven(streams, connection)
    }

    fn driven(streams: SendRequest<Bytes>, connection: Connection<TcpStream, Bytes>) -> Self {
        let mut driving = JoinSet::new();
        driving.spawn(async move {
            let _ = connection.await;
        });
        Self { streams, driving }
    }

    /// Connects with this flow-control window per stream, in bytes.
    pub(crate) async fn with_window(addr: &str, window: u32) -> Self {
        let stream = connect_from("127.0.0.1", addr).await;
        let mut builder = client::Builder::new();
        builder.initial_window_size(window);
        let (streams, connection) = builder.handshake(stream).await.expect("HTTP/2");
        Self::driven(streams, connection)
    }

    /// Makes a call and reads the response without releasing flow-control capacity.
    ///
    /// Returns the number of bytes received and the final error.
    pub(crate) async fn take_nothing(
        &mut self,
        content_type: &str,
        path: &str,
        bytes: Bytes,
    ) -> (usize, h2::Error) {
        let streams = self.streams.clone().ready().await;
        let mut streams = streams.expect("the connection is open");
        let request = Request::post(format!("http://localhost{path}"));
        let request = request.header("content-type", content_type).body(());
        let sending = streams.send_request(request.expect("a request"), false);
        let (answer, mut request) = sending.expect("a call");
        request.send_data(bytes, true).expect("sent");
        let reading = async {
            let mut body = answer.await.expect("an answer").into_body();
            let mut read = 0;
            loop {
                match body.data().await.expect("its end, or an error") {
                    Ok(data) => read += data.len(),
                    Err(error) => return (read, error),
                }
            }
        };
        let read = tokio::time::timeout(PATIENCE, reading).await;
        read.expect("the call ends")
    }

    /// Begins a call and sends part of its body, without ending the stream.
    ///
    /// # Errors
    /// If the connection has ended.
    pub(crate) async fn begin(
        &mut self,
        path: &str,
        key: Option<&str>,
        bytes: impl Into<Bytes>,
    ) -> Result<UnfinishedCall, h2::Error> {
        self.begin_with_keys(path, key.as_slice(), bytes).await
    }

    /// The same with several keys.
    ///
    /// # Errors
    /// If the connection has ended.
    pub(crate) async fn begin_with_keys(
        &mut self,
        path: &str,
        keys: &[&str],
        bytes: impl Into<Bytes>,
    ) -> Result<UnfinishedCall, h2::Error> {
        let ready = self.streams.clone().ready();
        let waited = tokio::time::timeout(PATIENCE, ready).await;
        let mut streams = waited.expect("there is room for a stream")?;
        begin(&mut streams, path, keys, bytes.into())
    }

    /// Returns the HTTP status of the response to a request without a body.
    pub(crate) async fn http_status(&mut self, request: Request<()>) -> StatusCode {
        let mut streams = self.streams.clone().ready().await.expect("it is open");
        let (answer, _) = streams.send_request(request, true).expect("a stream");
        let answer = tokio::time::timeout(PATIENCE, answer).await;
        answer.expect("in time").expect("an answer").status()
    }

    /// Sends a request with a body, and returns the status and the body of the response.
    pub(crate) async fn request(
        &mut self,
        request: Request<()>,
        body: impl Into<Bytes>,
    ) -> (StatusCode, Bytes) {
        let mut streams = self.streams.clone().ready().await.expect("it is open");
        let (answer, mut sending) = streams.send_request(request, false).expect("a stream");
        sending.send_data(body.into(), true).expect("it is sent");
        let answer = tokio::time::timeout(PATIENCE, answer).await;
        let answer = answer.expect("in time").expect("an answer");
        let status = answer.status();
        let mut body = answer.into_body();
        let mut read = BytesMut::new();
        while let Some(data) = body.data().await {
            let data = data.expect("the rest of the body");
            let released = body.flow_control().release_capacity(data.len());
            released.expect("it was received");
            read.extend_from_slice(&data);
        }
        (status, read.freeze())
    }

    /// Waits until the daemon has closed the connection.
    pub(crate) async fn closed(&mut self) {
        let closed = tokio::time::timeout(PATIENCE, self.driving.join_next()).await;
        closed.expect("the connection is closed");
    }

    /// Whether the daemon has not closed the connection yet.
    pub(crate) fn is_open(&mut self) -> bool {
        self.driving.try_join_next().is_none() && !self.driving.is_empty()
    }
}

impl UnreadHttp2 {
    /// Connects with flow-control windows that never fill.
    pub(crate) async fn connect(addr: &str) -> Self {
        let mut builder = client::Builder::new();
        builder.initial_connection_window_size(WINDOW);
        builder.initial_window_size(WINDOW);
        let stream = connect_from("127.0.0.1", addr).await;
        let (streams, connection) = builder.handshake(stream).await.expect("HTTP/2");
        Self {
            streams,
            connection,
            _calls: Vec::new(),
        }
    }

    /// Begins `calls` calls with this body, and then stops reading.
    ///
    /// Returns early if the daemon closes the connection.
    pub(crate) async fn begin_calls(&mut self, path: &str, key: &str, bytes: &Bytes, calls: usize) {
        for _ in 0..calls {
            let ready = self.streams.clone().ready();
            let mut streams = tokio::select! {
                _ = &mut self.connection => return,
                ready = ready => ready.expect("a stream"),
            };
            let begun = begin(&mut streams, path, &[key], bytes.clone());
            self._calls.push(begun.expect("a call"));
        }
        let mut pings = self.connection.ping_pong().expect("its pings");
        let pong = pings.ping(h2::Ping::opaque());
        tokio::select! {
            _ = &mut self.connection => {}
            pong = pong => drop(pong.expect("a pong")),
        }
    }
}

impl UnfinishedCall {
    /// Returns the error sent although the request never ended.
    pub(crate) async fn refusal(self) -> Status {
        self.answer().await.expect("an answer")
    }

    /// The same, or an error if the connection ends.
    pub(crate) async fn answer(self) -> Result<Status, h2::Error> {
        let answer = tokio::time::timeout(PATIENCE, self.answer).await;
        let (head, mut body) = answer.expect("an answer in time")?.into_parts();
        let in_trailers: HeaderMap;
        let headers = if head.headers.contains_key("grpc-status") {
            &head.headers
        } else {
            while let Some(data) = body.data().await {
                data?;
            }
            in_trailers = body.trailers().await?.unwrap_or_default();
            &in_trailers
        };
        Ok(Status::from_header_map(headers).expect("a status"))
    }

    /// The code of the error sent although the request never ended.
    pub(crate) async fn code(self) -> Code {
        self.refusal().await.code()
    }
}

fn begin(
    streams: &mut SendRequest<Bytes>,
    path: &str,
    keys: &[&str],
    bytes: Bytes,
) -> Result<UnfinishedCall, h2::Error> {
    let mut request = Request::post(format!("http://memoird{path}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers");
    for key in keys {
        request = request.header("authorization", format!("Bearer {key}"));
    }
    let request = request.body(()).expect("a request");
    let (answer, mut body) = streams.send_request(request, false)?;
    if !bytes.is_empty() {
        body.send_data(bytes, false)?;
    }
    Ok(UnfinishedCall {
        answer,
        _request: body,
    })
}

/// A gRPC message with its five-byte prefix.
pub(crate) fn framed(message: &[u8]) -> Bytes {
    let mut bytes = BytesMut::with_capacity(message.len() + 5);
    bytes.put_u8(0);
    bytes.put_u32(u32::try_from(message.len()).expect("a small message"));
    bytes.put_slice(message);
    bytes.freeze()
}

/// An HTTP/2 preface and `calls` calls without a key, in the fewest bytes HPACK allows (RFC 7541).
///
/// The first header block inserts its fields into the dynamic table, and the others refer to them.
pub(crate) fn many_calls(path: &str, calls: u32) -> Bytes {
    const HEADERS: u8 = 1;
    const ENDS: u8 = 0x4 | 0x1;
    let mut first = vec![0x83, 0x86];
    for (name, value) in [(0x44, path), (0x41, "memoird"), (0x5f, "application/grpc")] {
        first.push(name);
        first.push(u8::try_from(value.len()).expect("a short value"));
        first.extend_from_slice(value.as_bytes());
    }
    let again = vec![0x83, 0x86, 0xc0, 0xbf, 0xbe];
    let mut bytes = BytesMut::from(&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0"[..]);
    for call in 0..calls {
        let head = if call == 0 { &first } else { &again };
        bytes.put_uint(head.len() as u64, 3);
        bytes.put_slice(&[HEADERS, ENDS]);
        bytes.put_u32(2 * call + 1);
        bytes.put_slice(head);
    }
    bytes.freeze()
}

/// Connects from this local address.
pub(crate) async fn connect_from(from: &str, addr: &str) -> TcpStream {
    let socket = TcpSocket::new_v4().expect("a socket");
    let from = format!("{from}:0").parse().expect("an address");
    socket.bind(from).expect("an address of this machine");
    let addr = addr.parse().expect("an address");
    socket.connect(addr).await.expect("it listens")
}

/// Waits until the daemon has closed a connection, and returns the bytes sent before.
pub(crate) async fn closed(stream: &mut TcpStream) -> Vec<u8> {
    let mut said = Vec::new();
    let closed = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut said)).await;
    // An orderly close and a reset count alike.
    let _ = closed.expect("the daemon closes the connection");
    said
}
