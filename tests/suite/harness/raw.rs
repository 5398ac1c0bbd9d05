//! Calls with raw message bytes.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, BufMut, Bytes};
use http_body::Frame;
use prost::Message;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tonic::body::Body;
use tonic::client::{Grpc, GrpcService};
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::{self, uri::PathAndQuery};
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Response, Status, Streaming};

use super::client::Key;

#[derive(Clone, Copy, Debug, Default)]
struct RawCodec;

impl Codec for RawCodec {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for RawCodec {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(item);
        Ok(())
    }
}

impl Decoder for RawCodec {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        let length = buffer.remaining();
        Ok(Some(buffer.copy_to_bytes(length)))
    }
}

/// Calls `path`, such as `/memoird.v1.SessionService/Append`, with a raw message.
pub(crate) async fn raw_call(
    channel: &Channel,
    path: &str,
    message: impl Into<Bytes>,
) -> Result<Response<Bytes>, Status> {
    raw_call_with_key(channel, path, "", message).await
}

/// The same with an API key, unless it is empty.
pub(crate) async fn raw_call_with_key(
    channel: &Channel,
    path: &str,
    key: &str,
    message: impl Into<Bytes>,
) -> Result<Response<Bytes>, Status> {
    let key = Key::new((!key.is_empty()).then_some(key));
    let mut client = Grpc::new(InterceptedService::new(channel.clone(), key))
        .max_decoding_message_size(64 << 20);
    client
        .ready()
        .await
        .map_err(|error| Status::unavailable(error.to_string()))?;
    let path: PathAndQuery = path.parse().expect("a path");
    client
        .unary(Request::new(message.into()), path, RawCodec)
        .await
}

/// A client that does not read replies.
#[derive(Clone, Debug)]
pub(crate) struct SlowReader {
    channel: Channel,
    authorization: String,
}

impl SlowReader {
    pub(crate) fn new(addr: &str, key: &str) -> Self {
        let endpoint = Endpoint::from_shared(format!("http://{addr}")).expect("an address");
        Self {
            channel: endpoint.initial_stream_window_size(1 << 16).connect_lazy(),
            authorization: format!("Bearer {key}"),
        }
    }

    /// Calls `path`. The reply is not read as long as the result is held.
    pub(crate) async fn unread(
        &self,
        path: &str,
        message: impl Into<Bytes>,
    ) -> Result<Streaming<Bytes>, Status> {
        let mut client = Grpc::new(self.channel.clone());
        let ready = client.ready().await;
        ready.map_err(|error| Status::unavailable(error.to_string()))?;
        let path: PathAndQuery = path.parse().expect("a path");
        let mut request = Request::new(message.into());
        let authorization = self.authorization.parse().expect("a key in ASCII");
        request
            .metadata_mut()
            .insert("authorization", authorization);
        let answer = client.server_streaming(request, path, RawCodec).await;
        answer.map(Response::into_inner)
    }
}

/// A call whose message is sent in parts, controlled by the test.
#[derive(Debug)]
pub(crate) struct SlowCall {
    parts: mpsc::UnboundedSender<Bytes>,
    framed: Bytes,
    answer: JoinHandle<Status>,
}

/// A request body fed through a channel.
struct Parts(mpsc::UnboundedReceiver<Bytes>);

impl http_body::Body for Parts {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let part = self.0.poll_recv(context);
        part.map(|part| part.map(|bytes| Ok(Frame::data(bytes))))
    }
}

impl SlowCall {
    /// Calls `path`, but sends only the headers and the first half of the message.
    pub(crate) async fn half(addr: &str, path: &str, key: &str, message: &impl Message) -> Self {
        let mut framed = vec![0];
        let bytes = message.encode_to_vec();
        framed.put_u32(u32::try_from(bytes.len()).expect("a short message"));
        framed.extend(bytes);
        let mut framed = Bytes::from(framed);
        let (parts, body) = mpsc::unbounded_channel();
        let mut channel = super::channel(addr);
        std::future::poll_fn(|context| GrpcService::<Body>::poll_ready(&mut channel, context))
            .await
            .expect("it connects");
        let request = http::Request::post(format!("http://{addr}{path}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .header("authorization", format!("Bearer {key}"))
            .body(Body::new(Parts(body)))
            .expect("a request");
        #[allow(
            clippy::disallowed_methods,
            reason = "a client that goes on while its request is sent"
        )]
        let answer = tokio::spawn(async move {
            let answer = GrpcService::call(&mut channel, request)
                .await
                .expect("an answer");
            if let Some(status) = Status::from_header_map(answer.headers()) {
                return status;
            }
            let mut body = answer.into_body();
            loop {
                let next = |context: &mut Context<'_>| {
                    http_body::Body::poll_frame(Pin::new(&mut body), context)
                };
                let frame = std::future::poll_fn(next).await.expect("trailers");
                if let Ok(trailers) = frame.expect("a frame").into_trailers() {
                    return Status::from_header_map(&trailers).expect("a status");
                }
            }
        });
        let half = framed.split_to(framed.len() / 2);
        parts.send(half).expect("it is sent");
        Self {
            parts,
            framed,
            answer,
        }
    }

    /// Sends the rest of the message and returns the status.
    pub(crate) async fn rest(self) -> Status {
        self.parts.send(self.framed).expect("it is sent");
        drop(self.parts);
        self.answer.await.expect("it is answered")
    }
}
