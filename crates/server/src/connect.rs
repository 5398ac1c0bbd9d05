//! Calls over HTTP: the Connect protocol, and server-sent events.
//!
//! A call becomes a gRPC call once its key is verified and its bytes are counted, and its reply is
//! translated back before that is counted. Roles, limits, deadlines and metrics are thus those of
//! gRPC. Which calls there are, and their messages, follows from the descriptors.

mod error;
mod head;
mod stream;

use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes};
use http::header::{CACHE_CONTROL, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response};
use http_body_util::{BodyExt, Full};
use memoird_core::ids::TenantId;
use tonic::body::Body;
use tonic::{Code, Status};

use crate::heavy::HeavyWork;
use crate::json::{self, JsonOptions};
use crate::layers::limits::CallPermit;
use crate::layers::limits::rates::MESSAGE_HEAD_BYTES;
use crate::rpc::Rpc;
use crate::wire::refusal::Refusal;
use crate::wire::status;
use stream::StreamReply;

pub(crate) use head::{Head, HttpProblem, is_for_this_machine};

/// The description of all calls. A test of `memoird-proto` compares it with the contract.
const OPENAPI: &[u8] = include_bytes!("../../../docs/openapi.json");

const VERSION: &str = "connect-protocol-version";
const TIMEOUT: &str = "connect-timeout-ms";
const STREAM_ENCODING: HeaderName = HeaderName::from_static("connect-content-encoding");
const LAST_EVENT_ID: &str = "last-event-id";
const INLINE_JSON: &str = "memoird-inline-json";

/// Maximum number of digits of a timeout (Connect protocol).
const TIMEOUT_DIGITS_MAX: usize = 10;

/// Flags of an enveloped message.
const COMPRESSED: u8 = 1;
const END_OF_STREAM: u8 = 2;

/// A string field of responses, and the one of requests that continues after it.
const CURSOR: &str = "cursor";
const AFTER_CURSOR: &str = "after_cursor";

/// How the client of a call over HTTP encodes messages.
#[derive(Clone, Copy)]
pub(crate) struct HttpCall {
    pub(crate) rpc: &'static Rpc,
    codec: Codec,
    style: CallStyle,
    options: JsonOptions,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Codec {
    Json,
    Proto,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallStyle {
    /// One message in each direction.
    Unary,
    /// Enveloped messages.
    Stream,
    /// A message in the query, and server-sent events.
    Events,
}

/// Where the conversion of large messages runs, and what its memory counts for.
#[derive(Clone)]
pub(crate) struct Conversions {
    pub(crate) heavy: HeavyWork,
    pub(crate) tenant: TenantId,
    pub(crate) permit: Arc<CallPermit>,
}

impl Codec {
    fn content_type(self, style: CallStyle) -> HeaderValue {
        HeaderValue::from_static(match (style, self) {
            (CallStyle::Events, _) => "text/event-stream",
            (CallStyle::Unary, Self::Json) => "application/json",
            (CallStyle::Unary, Self::Proto) => "application/proto",
            (CallStyle::Stream, Self::Json) => "application/connect+json",
            (CallStyle::Stream, Self::Proto) => "application/connect+proto",
        })
    }
}

impl HttpCall {
    /// The deadline that the client sets, after checking the headers of the protocol.
    ///
    /// # Errors
    /// If a header is invalid, or the request is compressed.
    pub(crate) fn deadline(self, headers: &HeaderMap) -> Result<Option<Duration>, Refusal> {
        if headers.get(VERSION).is_some_and(|version| version != "1") {
            return Err(status::metadata_invalid(VERSION, "expected 1"));
        }
        let encoding = match self.style {
            CallStyle::Stream => STREAM_ENCODING,
            CallStyle::Unary | CallStyle::Events => CONTENT_ENCODING,
        };
        if headers.get(encoding).is_some_and(|name| name != "identity") {
            return Err(status::encoding_unsupported());
        }
        let Some(timeout) = headers.get(TIMEOUT) else {
            return Ok(None);
        };
        let text = timeout.to_str().ok();
        let text = text.filter(|text| text.len() <= TIMEOUT_DIGITS_MAX);
        let timeout = text.and_then(|text| text.parse().ok());
        timeout
            .map(|timeout| Some(Duration::from_millis(timeout)))
            .ok_or_else(|| {
                let problem = "expected a number of milliseconds of up to 10 digits, e.g. 5000";
                status::metadata_invalid(TIMEOUT, problem)
            })
    }

    /// Moves the message of a GET request from its query to its body.
    ///
    /// # Errors
    /// If the query is invalid.
    pub(crate) fn with_body(self, request: Request<Body>) -> Result<Request<Body>, Refusal> {
        if self.style != CallStyle::Events {
            return Ok(request);
        }
        let message = head::message_of_query(request.uri().query().unwrap_or_default())?;
        Ok(request.map(|_| Body::new(Full::new(message))))
    }

    /// Converts a request to gRPC.
    ///
    /// # Errors
    /// If the message does not arrive, or cannot be parsed.
    pub(crate) async fn request(
        self,
        request: Request<Body>,
        conversions: &Conversions,
    ) -> Result<Request<Body>, Status> {
        let (mut head, body) = request.into_parts();
        let received = received(body).await?;
        let bytes = received.len();
        // The encoded message: about as large, except for lists of numbers below zero.
        conversions.permit.add_bytes(bytes as u64)?;
        let last = head.headers.get(LAST_EVENT_ID);
        let last = last.and_then(|id| id.to_str().ok()).map(str::to_owned);
        let convert = move || self.framed(&received, last.as_deref());
        let (heavy, tenant) = (&conversions.heavy, &conversions.tenant);
        let framed = heavy.run(tenant, bytes, convert).await?;
        head.method = Method::POST;
        head.headers.remove(CONTENT_LENGTH);
        let grpc = HeaderValue::from_static(crate::layers::GRPC);
        head.headers.insert(CONTENT_TYPE, grpc);
        Ok(Request::from_parts(head, Body::new(Full::new(framed))))
    }

    /// Converts a message to the only one of a gRPC request.
    fn framed(self, received: &[u8], last_event_id: Option<&str>) -> Result<Bytes, Refusal> {
        let payload = match self.style {
            CallStyle::Unary | CallStyle::Events => received,
            CallStyle::Stream => enveloped(received)?,
        };
        let mut framed = vec![0; MESSAGE_HEAD_BYTES];
        let message = self.rpc.method.input();
        match self.codec {
            Codec::Proto => framed.extend_from_slice(payload),
            Codec::Json => json::parse(payload, &message, &mut framed)
                .map_err(|error| status::malformed(error.path, error.problem))?,
        }
        if let Some(id) = last_event_id.filter(|_| self.style == CallStyle::Events)
            && let Some(field) = message.get_field_by_name(AFTER_CURSOR)
        {
            // The last value of a field is the one that counts.
            prost::encoding::string::encode(field.number(), &id.to_owned(), &mut framed);
        }
        let too_large = |_| status::malformed(String::new(), "it has more than 4 GiB");
        let bytes = u32::try_from(framed.len() - MESSAGE_HEAD_BYTES).map_err(too_large)?;
        framed[1..MESSAGE_HEAD_BYTES].copy_from_slice(&bytes.to_be_bytes());
        Ok(framed.into())
    }

    /// Converts the response of a gRPC call, unless it is an error, which [`Head::render`] does.
    pub(crate) async fn reply(
        self,
        answer: Response<Body>,
        conversions: Conversions,
    ) -> Response<Body> {
        if answer.headers().contains_key(Status::GRPC_STATUS) {
            return answer;
        }
        let body = answer.into_body();
        if self.style != CallStyle::Unary {
            return self.response(Body::new(StreamReply::new(body, self)));
        }
        match self.unary_reply(body, &conversions).await {
            Ok(reply) => {
                let length = reply.len().into();
                let mut answer = self.response(Body::new(Full::new(reply)));
                answer.headers_mut().insert(CONTENT_LENGTH, length);
                answer
            }
            Err(status) => status.into_http(),
        }
    }

    async fn unary_reply(self, body: Body, conversions: &Conversions) -> Result<Bytes, Status> {
        let collected = body.collect().await?;
        let status = collected.trailers().and_then(Status::from_header_map);
        if let Some(status) = status.filter(|status| status.code() != Code::Ok) {
            return Err(status);
        }
        let mut message = collected.to_bytes();
        if message.len() < MESSAGE_HEAD_BYTES {
            return Err(status::reply_unwritable("it has no message").into());
        }
        let message = message.split_off(MESSAGE_HEAD_BYTES);
        if self.codec == Codec::Proto {
            return Ok(message);
        }
        let bytes = message.len();
        conversions.permit.set_bytes(2 * bytes as u64);
        let convert = move || {
            let mut json = Vec::with_capacity(bytes + bytes / 4);
            self.write(&message, &mut json)?;
            Ok(Bytes::from(json))
        };
        let (heavy, tenant) = (&conversions.heavy, &conversions.tenant);
        Ok(heavy.run(tenant, bytes, convert).await?)
    }

    /// Appends a message of the response, encoded as the client wants it.
    fn write(self, message: &[u8], out: &mut Vec<u8>) -> Result<(), Refusal> {
        if self.codec == Codec::Proto {
            out.extend_from_slice(message);
            return Ok(());
        }
        let written = json::write(message, &self.rpc.method.output(), self.options, out);
        written.map_err(status::reply_unwritable)
    }

    /// The response to a call that failed before it sent anything.
    fn failure(self, status: &Status) -> Response<Body> {
        if self.style != CallStyle::Stream {
            return error::response(status, error::response_with);
        }
        let mut body = Vec::new();
        stream::put_end(status, &mut body);
        let mut answer = error::whole(body);
        let content_type = self.codec.content_type(self.style);
        answer.headers_mut().insert(CONTENT_TYPE, content_type);
        answer
    }

    /// A response with the headers of a success.
    fn response(self, body: Body) -> Response<Body> {
        let mut answer = Response::new(body);
        let headers = answer.headers_mut();
        headers.insert(CONTENT_TYPE, self.codec.content_type(self.style));
        if self.style == CallStyle::Events {
            headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        }
        answer
    }
}

/// Reads a whole request.
pub(crate) async fn received(mut body: Body) -> Result<Vec<u8>, Status> {
    let mut received = Vec::new();
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame?.into_data() {
            received.extend_from_slice(&data);
        }
    }
    Ok(received)
}

/// The response with the description of the API.
pub(crate) fn openapi() -> Response<Body> {
    let mut answer = Response::new(Body::new(Full::new(Bytes::from_static(OPENAPI))));
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, Codec::Json.content_type(CallStyle::Unary));
    headers.insert(CONTENT_LENGTH, OPENAPI.len().into());
    answer
}

/// Returns the only message of a streaming request.
fn enveloped(received: &[u8]) -> Result<&[u8], Refusal> {
    let malformed = |problem| status::malformed(String::new(), problem);
    let expected = "expected one message after its flags (1 byte) and its length (4 bytes)";
    let (head, message) = received
        .split_first_chunk::<MESSAGE_HEAD_BYTES>()
        .ok_or_else(|| malformed(expected))?;
    let [flags, length @ ..] = head;
    if flags & COMPRESSED != 0 {
        return Err(status::encoding_unsupported());
    }
    let is_whole = u32::from_be_bytes(*length) as usize == message.len();
    if *flags == 0 && is_whole {
        Ok(message)
    } else {
        Err(malformed(expected))
    }
}

/// Appends an enveloped message, which `write` appends to the same buffer.
fn put_envelope(
    flags: u8,
    out: &mut Vec<u8>,
    write: impl FnOnce(&mut Vec<u8>) -> Result<(), Refusal>,
) -> Result<(), Refusal> {
    let start = out.len();
    out.put_u8(flags);
    out.put_u32(0);
    let content = out.len();
    if let Err(refusal) = write(out) {
        out.truncate(start);
        return Err(refusal);
    }
    // Above 4 GiB the reply limit has rejected the message.
    let bytes = u32::try_from(out.len() - content).unwrap_or(u32::MAX);
    out[start + 1..content].copy_from_slice(&bytes.to_be_bytes());
    Ok(())
}
