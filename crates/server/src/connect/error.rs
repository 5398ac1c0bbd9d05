//! Errors in the form of the Connect protocol.

use std::sync::LazyLock;

use base64::Engine;
use base64::prelude::BASE64_STANDARD_NO_PAD;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, WWW_AUTHENTICATE};
use http::{HeaderValue, Response, StatusCode};
use http_body_util::Full;
use memoird_proto::prost_reflect::DescriptorPool;
use prost::Message;
use serde::Serialize;
use serde_json::value::RawValue;
use tonic::body::Body;
use tonic::{Code, Status};

use crate::json::{self, JsonOptions};
use crate::layers::HeldBody;

/// The messages of error details.
static POOL: LazyLock<DescriptorPool> = LazyLock::new(|| {
    DescriptorPool::decode(tonic_types::pb::FILE_DESCRIPTOR_SET)
        .expect("the descriptors of a library")
});

#[derive(Serialize)]
pub(super) struct ConnectError<'a> {
    code: &'static str,
    message: &'a str,
    details: Vec<ConnectDetail>,
}

#[derive(Serialize)]
struct ConnectDetail {
    #[serde(rename = "type")]
    name: String,
    /// The encoded message, in base64.
    value: String,
    /// The message as JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    debug: Option<Box<RawValue>>,
}

impl<'a> From<&'a Status> for ConnectError<'a> {
    fn from(status: &'a Status) -> Self {
        // Only memoird makes details, so they can be decoded.
        let details = tonic_types::pb::Status::decode(status.details()).unwrap_or_default();
        let details = details.details.into_iter().map(|detail| {
            let (_, name) = detail.type_url.rsplit_once('/').unwrap_or_default();
            ConnectDetail {
                value: BASE64_STANDARD_NO_PAD.encode(&detail.value),
                debug: as_json(name, &detail.value),
                name: name.to_owned(),
            }
        });
        Self {
            code: code_of(status.code()).0,
            message: status.message(),
            details: details.collect(),
        }
    }
}

fn as_json(name: &str, encoded: &[u8]) -> Option<Box<RawValue>> {
    let message = POOL.get_message_by_name(name)?;
    let mut json = Vec::new();
    json::write(encoded, &message, JsonOptions::default(), &mut json).ok()?;
    serde_json::from_slice(&json).ok()
}

/// The name of a code, and its HTTP status.
fn code_of(code: Code) -> (&'static str, StatusCode) {
    // Nginx's code of a request that its client has cancelled.
    let cancelled = StatusCode::from_u16(499).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    match code {
        Code::Ok => ("ok", StatusCode::OK),
        Code::Cancelled => ("canceled", cancelled),
        Code::Unknown => ("unknown", StatusCode::INTERNAL_SERVER_ERROR),
        Code::InvalidArgument => ("invalid_argument", StatusCode::BAD_REQUEST),
        Code::DeadlineExceeded => ("deadline_exceeded", StatusCode::GATEWAY_TIMEOUT),
        Code::NotFound => ("not_found", StatusCode::NOT_FOUND),
        Code::AlreadyExists => ("already_exists", StatusCode::CONFLICT),
        Code::PermissionDenied => ("permission_denied", StatusCode::FORBIDDEN),
        Code::ResourceExhausted => ("resource_exhausted", StatusCode::TOO_MANY_REQUESTS),
        Code::FailedPrecondition => ("failed_precondition", StatusCode::BAD_REQUEST),
        Code::Aborted => ("aborted", StatusCode::CONFLICT),
        Code::OutOfRange => ("out_of_range", StatusCode::BAD_REQUEST),
        Code::Unimplemented => ("unimplemented", StatusCode::NOT_IMPLEMENTED),
        Code::Internal => ("internal", StatusCode::INTERNAL_SERVER_ERROR),
        Code::Unavailable => ("unavailable", StatusCode::SERVICE_UNAVAILABLE),
        Code::DataLoss => ("data_loss", StatusCode::INTERNAL_SERVER_ERROR),
        Code::Unauthenticated => ("unauthenticated", StatusCode::UNAUTHORIZED),
    }
}

/// The response to a call that failed before it sent anything.
///
/// `write` writes it in the form of the API.
pub(super) fn response(
    status: &Status,
    write: impl FnOnce(StatusCode, &Status) -> Response<Body>,
) -> Response<Body> {
    let (_, http_status) = code_of(status.code());
    let mut answer = write(http_status, status);
    if http_status == StatusCode::UNAUTHORIZED {
        let scheme = HeaderValue::from_static("Bearer");
        answer.headers_mut().insert(WWW_AUTHENTICATE, scheme);
    }
    answer
}

/// The same with this HTTP status.
pub(super) fn response_with(http_status: StatusCode, status: &Status) -> Response<Body> {
    let mut answer = whole(text(status));
    *answer.status_mut() = http_status;
    let json = HeaderValue::from_static("application/json");
    answer.headers_mut().insert(CONTENT_TYPE, json);
    answer
}

/// A response with this body. A client that does not read it loses its call, as with other replies.
pub(super) fn whole(body: Vec<u8>) -> Response<Body> {
    let length = body.len().into();
    let body = HeldBody::new(Body::new(Full::new(body.into())), ());
    let mut answer = Response::new(Body::new(body));
    answer.headers_mut().insert(CONTENT_LENGTH, length);
    answer
}

/// The JSON of an error.
pub(super) fn text(status: &Status) -> Vec<u8> {
    // An object of strings always has a JSON form.
    serde_json::to_vec(&ConnectError::from(status)).unwrap_or_default()
}
