//! Finds the protocol of a request from its head.

use std::net::IpAddr;

use base64::Engine;
use base64::prelude::{BASE64_URL_SAFE, BASE64_URL_SAFE_NO_PAD};
use bytes::Bytes;
use http::header::{ALLOW, CONTENT_TYPE, HOST, HeaderName};
use http::uri::Authority;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Version};
use tonic::Status;
use tonic::body::Body;

use super::{CallStyle, Codec, HttpCall, INLINE_JSON, error};
use crate::conversations::{NoOperation, Operation, error as openai};
use crate::json::JsonOptions;
use crate::layers::GRPC;
use crate::rpc::{Call, Rpc};
use crate::wire::refusal::Refusal;
use crate::wire::status;

const ACCEPT_POST: HeaderName = HeaderName::from_static("accept-post");

const OPENAPI_PATH: &str = "/openapi.json";

const UNARY_TYPES: &str = "application/json, application/proto";
const STREAM_TYPES: &str = "application/connect+json, application/connect+proto";

/// The protocol of a request.
#[derive(Clone, Copy)]
pub(crate) enum Head {
    Grpc,
    Http(HttpCall),
    /// The description of the API.
    OpenApi,
    /// An operation of OpenAI's API.
    OpenAi(Operation),
}

/// Why a request has no known protocol.
pub(crate) struct HttpProblem {
    status: StatusCode,
    /// A header with the methods or formats of the path.
    accepted: Option<(HeaderName, &'static str)>,
    refusal: Box<Refusal>,
    /// Whether the path is one of OpenAI's API.
    is_openai: bool,
}

impl Head {
    /// Returns the protocol of a request.
    ///
    /// # Errors
    /// If the path does not support the method or the format.
    pub(crate) fn of<B>(request: &Request<B>, call: Call) -> Result<Self, HttpProblem> {
        let content_type = content_type(request.headers());
        if request.method() == Method::POST && is_grpc(content_type) {
            return if request.version() == Version::HTTP_2 {
                Ok(Self::Grpc)
            } else {
                let status = StatusCode::HTTP_VERSION_NOT_SUPPORTED;
                Err(HttpProblem::new(status, status::http2_required()))
            };
        }
        if request.uri().path() == OPENAPI_PATH {
            return if request.method() == Method::GET {
                Ok(Self::OpenApi)
            } else {
                Err(HttpProblem::method("GET"))
            };
        }
        if let Some(operation) = Operation::of(request) {
            return operation.map(Self::OpenAi).map_err(HttpProblem::from);
        }
        let Some(rpc) = call.rpc() else {
            let refusal = status::path_unknown();
            return Err(HttpProblem::new(StatusCode::NOT_FOUND, refusal));
        };
        let (codec, style) = match *request.method() {
            Method::POST => of_post(rpc, content_type)?,
            Method::GET if rpc.has_stream => (Codec::Json, CallStyle::Events),
            _ if rpc.has_stream => return Err(HttpProblem::method("GET, POST")),
            _ => return Err(HttpProblem::method("POST")),
        };
        let inline = request.headers().get(INLINE_JSON);
        let options = JsonOptions {
            inlines_json: inline
                .is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"true")),
        };
        Ok(Self::Http(HttpCall {
            rpc,
            codec,
            style,
            options,
        }))
    }

    /// The call that a request is counted as.
    pub(crate) fn call(self, of_path: Call) -> Call {
        match self {
            Self::OpenAi(operation) => operation.call(),
            Self::Grpc | Self::Http(_) | Self::OpenApi => of_path,
        }
    }

    /// Renders the outcome of a call. A reply is in the right form already, an error is not.
    pub(crate) fn render(self, answer: Response<Body>) -> Response<Body> {
        let status = match self {
            Self::Grpc => None,
            Self::Http(_) | Self::OpenApi | Self::OpenAi(_) => {
                Status::from_header_map(answer.headers())
            }
        };
        match (self, status) {
            (_, None) => answer,
            (Self::Http(call), Some(status)) => call.failure(&status),
            (Self::OpenAi(_), Some(status)) => error::response(&status, openai::response_with),
            (_, Some(status)) => error::response(&status, error::response_with),
        }
    }
}

impl HttpProblem {
    fn new(status: StatusCode, refusal: Refusal) -> Self {
        Self {
            status,
            accepted: None,
            refusal: Box::new(refusal),
            is_openai: false,
        }
    }

    fn method(allowed: &'static str) -> Self {
        Self {
            accepted: Some((ALLOW, allowed)),
            ..Self::new(
                StatusCode::METHOD_NOT_ALLOWED,
                status::http_method_invalid(allowed),
            )
        }
    }

    pub(crate) fn into_response(self) -> Response<Body> {
        let status = Status::from(*self.refusal);
        let mut answer = if self.is_openai {
            openai::response_with(self.status, &status)
        } else {
            error::response_with(self.status, &status)
        };
        if let Some((name, value)) = self.accepted {
            let value = HeaderValue::from_static(value);
            answer.headers_mut().insert(name, value);
        }
        answer
    }
}

impl From<NoOperation> for HttpProblem {
    fn from(problem: NoOperation) -> Self {
        let problem = match problem {
            NoOperation::PathUnknown => Self::new(StatusCode::NOT_FOUND, status::path_unknown()),
            NoOperation::Method(allowed) => Self::method(allowed),
            NoOperation::ContentType(accepted) => Self::new(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                status::content_type_unsupported(accepted),
            ),
        };
        Self {
            is_openai: true,
            ..problem
        }
    }
}

/// Whether a request is for this machine by its address, or by a name that no DNS server can give it.
///
/// A page in a browser on this machine could otherwise call a daemon without keys, by a name of its
/// own that resolves to a loopback address (DNS rebinding).
pub(crate) fn is_for_this_machine<B>(request: &Request<B>) -> bool {
    let of_header = || request.headers().get(HOST)?.to_str().ok()?.parse().ok();
    let authority: Option<Authority> = request.uri().authority().cloned().or_else(of_header);
    let Some(authority) = authority else {
        // Browsers send it.
        return !request.headers().contains_key(HOST);
    };
    let host = authority.host();
    let address = host.trim_start_matches('[').trim_end_matches(']');
    host.eq_ignore_ascii_case("localhost") || address.parse::<IpAddr>().is_ok()
}

fn content_type(headers: &HeaderMap) -> &[u8] {
    headers.get(CONTENT_TYPE).map_or(b"", HeaderValue::as_bytes)
}

fn is_grpc(content_type: &[u8]) -> bool {
    let rest = content_type.strip_prefix(GRPC.as_bytes());
    matches!(rest, Some([] | [b'+' | b';', ..]))
}

fn of_post(rpc: &Rpc, content_type: &[u8]) -> Result<(Codec, CallStyle), HttpProblem> {
    let (accepted, style) = if rpc.has_stream {
        (STREAM_TYPES, CallStyle::Stream)
    } else {
        (UNARY_TYPES, CallStyle::Unary)
    };
    let essence = content_type.split(|byte| *byte == b';').next();
    let essence = essence.unwrap_or_default().trim_ascii();
    let codecs = [Codec::Json, Codec::Proto].into_iter();
    let is_sent = |codec: &Codec| {
        let expected = codec.content_type(style);
        expected.as_bytes().eq_ignore_ascii_case(essence)
    };
    let codec = codecs.clone().find(is_sent);
    codec
        .map(|codec| (codec, style))
        .ok_or_else(|| HttpProblem {
            accepted: Some((ACCEPT_POST, accepted)),
            ..HttpProblem::new(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                status::content_type_unsupported(accepted),
            )
        })
}

/// Returns the message of a request without a body, in JSON. Without one, it is empty.
pub(super) fn message_of_query(query: &str) -> Result<Bytes, Refusal> {
    let wrong = |problem: &str| status::malformed("query".to_owned(), problem);
    let mut message = None;
    let mut is_base64 = false;
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        match &*name {
            "message" => message = Some(value),
            "base64" => is_base64 = value == "1",
            "connect" if value == "v1" => {}
            "encoding" if value == "json" => {}
            "compression" if value == "identity" => {}
            "compression" => return Err(status::encoding_unsupported()),
            "connect" => return Err(wrong("connect must be v1")),
            "encoding" => return Err(wrong("encoding must be json")),
            _ => {
                return Err(wrong(
                    "it may have message, encoding, base64 and connect only",
                ));
            }
        }
    }
    let Some(message) = message else {
        return Ok(Bytes::from_static(b"{}"));
    };
    if !is_base64 {
        return Ok(Bytes::from(message.into_owned()));
    }
    let decoded = BASE64_URL_SAFE_NO_PAD.decode(&*message);
    let decoded = decoded.or_else(|_| BASE64_URL_SAFE.decode(&*message));
    decoded
        .map(Bytes::from)
        .map_err(|_| wrong("message is not base64 for URLs"))
}
