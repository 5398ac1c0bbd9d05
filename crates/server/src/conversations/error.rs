//! Errors in the form of OpenAI's API.

use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Response, StatusCode};
use http_body_util::Full;
use memoird_core::CoreError;
use serde::Serialize;
use tonic::body::Body;
use tonic::{Code, Status};
use tonic_types::StatusExt;

use crate::wire::refusal::{FIELD, Refusal};
use crate::wire::status;

#[derive(Serialize)]
struct ErrorBody<'a> {
    error: ErrorObject<'a>,
}

#[derive(Serialize)]
struct ErrorObject<'a> {
    message: &'a str,
    #[serde(rename = "type")]
    kind: &'static str,
    /// The invalid field or parameter.
    param: Option<String>,
    code: Option<String>,
}

/// Returns the response to a failed request.
pub(crate) fn response_with(http_status: StatusCode, status: &Status) -> Response<Body> {
    let details = status.get_error_details();
    let info = details.error_info();
    // OpenAI's clients repeat a request that fails with 429.
    let is_too_large = info.is_some_and(|info| info.reason == "REQUEST_TOO_LARGE");
    let http_status = if is_too_large {
        StatusCode::PAYLOAD_TOO_LARGE
    } else {
        http_status
    };
    let code = info.map(|info| code_of(&info.reason));
    let field = info.and_then(|info| info.metadata.get(FIELD));
    let error = ErrorObject {
        message: status.message(),
        kind: kind_of(http_status),
        param: field.filter(|field| *field != "request").cloned(),
        code,
    };
    // An object of strings always has a JSON form.
    let text = serde_json::to_vec(&ErrorBody { error }).unwrap_or_default();
    let mut answer = Response::new(Body::new(Full::new(text.into())));
    *answer.status_mut() = http_status;
    let json = HeaderValue::from_static("application/json");
    answer.headers_mut().insert(CONTENT_TYPE, json);
    let retry = details.retry_info().and_then(|retry| retry.retry_delay);
    if let Some(delay) = retry {
        // Whole seconds, rounded up.
        let seconds = delay.as_secs() + u64::from(delay.subsec_nanos() > 0);
        answer.headers_mut().insert(RETRY_AFTER, seconds.into());
    }
    answer
}

fn kind_of(status: StatusCode) -> &'static str {
    match status {
        StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
        status if status.is_server_error() => "server_error",
        _ => "invalid_request_error",
    }
}

/// OpenAI's own code if it has one for the reason, else the reason.
fn code_of(reason: &str) -> String {
    match reason {
        "NO_KEY" | "WRONG_KEY" | "SEVERAL_KEYS" => "invalid_api_key".to_owned(),
        "CALLS_PER_SECOND" | "BYTES_PER_SECOND" | "TOO_MANY_CALLS" => {
            "rate_limit_exceeded".to_owned()
        }
        other => other.to_ascii_lowercase(),
    }
}

pub(super) fn invalid(param: impl Into<String>, problem: impl Into<String>) -> Refusal {
    status::malformed(param.into(), problem)
}

/// An item that is none of OpenAI's.
pub(super) fn item_invalid(index: usize, problem: &CoreError) -> Refusal {
    match problem {
        CoreError::MessagesInvalid { path, problem } => {
            let inside = path.strip_prefix("[0]").unwrap_or(path);
            status::malformed(format!("items[{index}]{inside}"), problem)
        }
        other => Refusal::from(other.clone()),
    }
}

pub(super) fn no_conversation(id: &str) -> Refusal {
    let problem = format!("Conversation with id '{}' not found.", shortened(id));
    status::new(Code::NotFound, "SESSION_NOT_FOUND", problem, None)
}

pub(super) fn no_item(id: &str) -> Refusal {
    let problem = format!("Item with id '{}' not found.", shortened(id));
    status::new(Code::NotFound, "TURN_NOT_FOUND", problem, None)
}

/// Replaces errors about sessions and generations, which are no terms of this API.
pub(super) fn of_conversation(id: &str) -> impl Fn(Refusal) -> Refusal {
    move |refusal| match refusal.reason {
        "SESSION_NOT_FOUND" | "GENERATION_NOT_FOUND" | "STALE_GENERATION" => no_conversation(id),
        _ => refusal,
    }
}

fn shortened(id: &str) -> String {
    id.chars().take(80).collect()
}
