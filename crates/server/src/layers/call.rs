//! The outcome of a call, and its response.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use http::Response;
use tonic::body::Body;
use tonic::{Code, Status};

use crate::connect::Head;
use crate::wire::refusal::Refusal;
use crate::wire::status;

/// Content type of gRPC requests. A suffix such as `+proto` may follow.
pub(crate) const GRPC: &str = "application/grpc";

/// Why a call does not get the response of a handler.
pub(crate) enum Rejection {
    /// The response is this error, after a delay.
    Refused(Box<Refusal>, Duration),
    /// No response: the stream is reset.
    Reset,
}

/// The error that resets the stream of a call without a response.
#[derive(Debug, thiserror::Error)]
#[error("too many calls were rejected on this connection")]
pub(crate) struct StreamReset(#[source] h2::Error);

pub(super) type CallResult = Result<Response<Body>, Rejection>;
pub(super) type CallFuture = Pin<Box<dyn Future<Output = CallResult> + Send>>;
pub(super) type ResponseFuture =
    Pin<Box<dyn Future<Output = Result<Response<Body>, StreamReset>> + Send>>;

impl From<Refusal> for Rejection {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(Box::new(refusal), Duration::ZERO)
    }
}

impl StreamReset {
    pub(super) fn new() -> Self {
        Self(h2::Reason::ENHANCE_YOUR_CALM.into())
    }
}

/// Renders the outcome of a call, in the protocol of its request.
pub(super) async fn render(result: CallResult, head: Head) -> Result<Response<Body>, StreamReset> {
    let answer = match result {
        Ok(mut answer) => {
            add_error_details(&mut answer);
            answer
        }
        Err(Rejection::Refused(refusal, delay)) => {
            if !delay.is_zero() {
                tokio::time::sleep(delay).await;
            }
            Status::from(*refusal).into_http()
        }
        Err(Rejection::Reset) => return Err(StreamReset::new()),
    };
    Ok(head.render(answer))
}

/// Adds the usual error details to errors of the gRPC library, such as malformed messages.
fn add_error_details(answer: &mut Response<Body>) {
    let headers = answer.headers_mut();
    if !headers.contains_key(Status::GRPC_STATUS)
        || headers.contains_key(Status::GRPC_STATUS_DETAILS)
    {
        return;
    }
    let refusal = Status::from_header_map(headers).filter(|status| status.code() != Code::Ok);
    if let Some(refusal) = refusal {
        // Fails only for a message that no header can hold.
        let _ = Status::from(status::transport(&refusal)).add_header(headers);
    }
}
