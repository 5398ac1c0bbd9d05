//! Maximum size of replies: 4 MiB, the default limit of gRPC clients, unless the call asks for more.
//!
//! A client cannot report its own limit in gRPC. A larger reply fails there with an error that names
//! neither memoird nor a remedy, so the daemon rejects it first.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, Response};
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::BodyExt;
use memoird_proto::v1::Budget;
use tonic::body::Body;
use tonic::{Code, Status};

use super::limits::rates::announced_bytes;
use crate::wire::refusal::Refusal;
use crate::wire::status;

/// The metadata key with which a call asks for larger replies, in bytes.
pub(crate) const METADATA: &str = "memoird-max-reply-bytes";
/// The limit of gRPC clients unless they are configured otherwise.
const DEFAULT_BYTES: u64 = 4 << 20;

/// Bytes of a reply per token of its window: the messages in a format and the turns.
const BYTES_PER_TOKEN: u64 = 16;

/// The size that a request for a window asks for with its budget, as an extension of its response.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestedBytes(u64);

impl RequestedBytes {
    pub(crate) fn for_budget(budget: Option<&Budget>) -> Self {
        let tokens = budget.and_then(|budget| budget.context_window).unwrap_or(0);
        Self(BYTES_PER_TOKEN.saturating_mul(tokens))
    }
}

/// Returns the maximum size of the reply to a call with these headers, in bytes.
///
/// # Errors
/// If the metadata is not a number.
pub(super) fn of_call(headers: &HeaderMap) -> Result<u64, Refusal> {
    let Some(value) = headers.get(METADATA) else {
        return Ok(DEFAULT_BYTES);
    };
    let text = value.to_str().unwrap_or_default();
    let bytes: u64 = text.parse().map_err(|_| not_a_number(text))?;
    Ok(bytes.max(DEFAULT_BYTES))
}

/// Checks the size of a unary call's reply.
///
/// # Errors
/// If it is larger than `bytes_max`, and than the request asks for.
pub(super) async fn checked(
    answer: Response<Body>,
    bytes_max: u64,
) -> Result<Response<Body>, Refusal> {
    let requested = answer.extensions().get::<RequestedBytes>();
    let bytes_max = requested.map_or(bytes_max, |requested| bytes_max.max(requested.0));
    let (parts, mut body) = answer.into_parts();
    // The message of a unary call is encoded, and its first frame has its length.
    let first = body.frame().await;
    let head = first.as_ref().and_then(|frame| frame.as_ref().ok());
    let bytes = head
        .and_then(Frame::data_ref)
        .map_or(0, |data| announced_bytes(data));
    if bytes > bytes_max {
        return Err(too_large(bytes, bytes_max));
    }
    let body = Body::new(PeekedBody { first, rest: body });
    Ok(Response::from_parts(parts, body))
}

/// A body whose first frame was already read.
struct PeekedBody {
    first: Option<Result<Frame<Bytes>, Status>>,
    rest: Body,
}

impl HttpBody for PeekedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        match self.first.take() {
            Some(first) => Poll::Ready(Some(first)),
            None => Pin::new(&mut self.rest).poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.first.is_none() && self.rest.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

fn too_large(bytes: u64, bytes_max: u64) -> Refusal {
    let problem = format!(
        "the reply has {bytes} bytes, the maximum is {bytes_max}: raise the limit of your gRPC \
         client (grpc.max_receive_message_length, MaxCallRecvMsgSize, maxInboundMessageSize) and \
         send it as metadata {METADATA}, or ask for less (a smaller page or budget); turns that the \
         request appended are stored"
    );
    let facts = vec![
        ("bytes", bytes.to_string()),
        ("limit_bytes", bytes_max.to_string()),
    ];
    status::with_facts(
        Code::ResourceExhausted,
        "REPLY_TOO_LARGE",
        problem,
        facts,
        None,
    )
}

fn not_a_number(value: &str) -> Refusal {
    let problem =
        format!("metadata {METADATA} is {value:?}: expected a number of bytes, e.g. 67108864");
    status::invalid("METADATA_INVALID", METADATA, problem)
}
