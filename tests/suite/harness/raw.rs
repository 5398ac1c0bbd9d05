//! Calls whose message is any bytes at all.

use bytes::{Buf, BufMut, Bytes};
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Response, Status, Streaming};

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

/// Calls `path`, such as `/memoird.v1.SessionService/Append`, with these bytes.
pub(crate) async fn raw_call(
    channel: &Channel,
    path: &str,
    message: impl Into<Bytes>,
) -> Result<Response<Bytes>, Status> {
    let mut client = Grpc::new(channel.clone());
    client
        .ready()
        .await
        .map_err(|error| Status::unavailable(error.to_string()))?;
    let path: PathAndQuery = path.parse().expect("a path");
    client
        .unary(Request::new(message.into()), path, RawCodec)
        .await
}

/// A client that does not read what it is answered.
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

    /// Calls `path` with these bytes. As long as the answer is kept, it is not read.
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
