//! OpenAI's Conversations API under `/v1/conversations`.
//!
//! A conversation is a session, its metadata is the state, and an item is a turn. Each request is
//! admitted as a call of one rpc, and runs the handlers of existing rpcs. Limits, metrics and
//! rules are thus those of gRPC.

mod body;
pub(crate) mod error;
mod history;
mod items;
mod operations;

use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderName};
use http::{HeaderValue, Method, Request, Response};
use http_body_util::Full;
use tonic::Status;
use tonic::body::Body;

use crate::connect;
use crate::rpc::Call;
use crate::services::ApiCall;
use body::Path;

/// Prefix of the paths of OpenAI's API.
const ROOT: &str = "/v1/";

const JSON: &str = "application/json";
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// An operation of the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Create,
    Read,
    Update,
    Delete,
    ListItems,
    AddItems,
    ReadItem,
    DeleteItem,
}

/// Why a request below [`ROOT`] is no operation.
pub(crate) enum NoOperation {
    PathUnknown,
    /// The path has other methods.
    Method(&'static str),
    /// The body must be JSON.
    ContentType(&'static str),
}

impl Operation {
    /// Returns the operation that a request asks for. `None` if its path is not OpenAI's.
    pub(crate) fn of<B>(request: &Request<B>) -> Option<Result<Self, NoOperation>> {
        let path = request.uri().path();
        let rest = path.strip_prefix(ROOT)?;
        let steps: Vec<_> = rest.split('/').collect();
        let has_empty = steps.iter().any(|step| step.is_empty());
        let (allowed, operations) = match steps[..] {
            _ if has_empty => return Some(Err(NoOperation::PathUnknown)),
            ["conversations"] => ("POST", &[(Method::POST, Self::Create)][..]),
            ["conversations", _] => (
                "GET, POST, DELETE",
                &[
                    (Method::GET, Self::Read),
                    (Method::POST, Self::Update),
                    (Method::DELETE, Self::Delete),
                ][..],
            ),
            ["conversations", _, "items"] => (
                "GET, POST",
                &[
                    (Method::GET, Self::ListItems),
                    (Method::POST, Self::AddItems),
                ][..],
            ),
            ["conversations", _, "items", _] => (
                "GET, DELETE",
                &[
                    (Method::GET, Self::ReadItem),
                    (Method::DELETE, Self::DeleteItem),
                ][..],
            ),
            _ => return Some(Err(NoOperation::PathUnknown)),
        };
        let mut operations = operations.iter();
        let Some((method, operation)) = operations.find(|(method, _)| method == request.method())
        else {
            return Some(Err(NoOperation::Method(allowed)));
        };
        // Web pages may send any other type without asking first (CORS).
        if method == Method::POST && !is_json(request) {
            return Some(Err(NoOperation::ContentType(JSON)));
        }
        Some(Ok(*operation))
    }

    /// The call as which the operation is admitted and counted.
    pub(crate) fn call(self) -> Call {
        Call::of(match self {
            Self::Create | Self::AddItems => "/memoird.v1.SessionService/Append",
            Self::Read => "/memoird.v1.SessionService/GetSession",
            Self::Update => "/memoird.v1.SessionService/UpdateSession",
            Self::Delete => "/memoird.v1.SessionService/EndSession",
            Self::ListItems | Self::ReadItem => "/memoird.v1.SessionService/GetHistory",
            Self::DeleteItem => "/memoird.v1.SessionService/UpdateTurn",
        })
    }

    /// Serves an admitted call. An error has the form of gRPC, until [`error::response`].
    pub(crate) async fn serve(self, call: ApiCall<()>, request: Request<Body>) -> Response<Body> {
        match self.reply(&call, request).await {
            Ok(json) => {
                let length = json.len().into();
                let mut answer = Response::new(Body::new(Full::new(json.into())));
                let headers = answer.headers_mut();
                headers.insert(CONTENT_TYPE, HeaderValue::from_static(JSON));
                headers.insert(CONTENT_LENGTH, length);
                answer
            }
            Err(status) => status.into_http(),
        }
    }

    async fn reply(self, call: &ApiCall<()>, request: Request<Body>) -> Result<Vec<u8>, Status> {
        let (head, body) = request.into_parts();
        let received = connect::received(body).await?;
        call.caller.key.check()?;
        let Path { conversation, item } = Path::parse(head.uri.path())?;
        let key = body::idempotency_key(head.headers.get(IDEMPOTENCY_KEY))?;
        let id = conversation.as_str();
        let reply = match self {
            Self::Create => operations::create(call, received, key).await,
            Self::Read => operations::read(call, id).await,
            Self::Update => operations::update(call, id, received).await,
            Self::Delete => operations::delete(call, id).await,
            Self::ListItems => {
                let query = body::ListQuery::parse(head.uri.query().unwrap_or_default())?;
                operations::list_items(call, id, &query).await
            }
            Self::AddItems => operations::add_items(call, id, received, key).await,
            Self::ReadItem => operations::read_item(call, id, &item).await,
            Self::DeleteItem => operations::delete_item(call, id, &item).await,
        };
        Ok(reply?)
    }
}

fn is_json<B>(request: &Request<B>) -> bool {
    let sent = request.headers().get(CONTENT_TYPE);
    let sent = sent.map_or(&b""[..], HeaderValue::as_bytes);
    let essence = sent.split(|byte| *byte == b';').next().unwrap_or_default();
    essence.trim_ascii().eq_ignore_ascii_case(JSON.as_bytes())
}
