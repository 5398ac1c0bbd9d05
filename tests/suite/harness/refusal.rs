//! Checks of errors: gRPC code, memoird's reason, and a retry hint exactly for transient reasons.

use std::fmt::Debug;

use memoird_proto::prost_reflect::{Kind, MessageDescriptor};
use memoird_proto::{DESCRIPTOR_POOL, PACKAGE};
use tonic::{Code, Response, Status};
use tonic_types::StatusExt;

/// Reasons of transient errors.
const PASSING: [&str; 20] = [
    "CALLS_PER_SECOND",
    "BYTES_PER_SECOND",
    "JOURNAL_BUSY",
    "JOURNAL_FULL",
    "JOURNAL_FAILED",
    "COMPACTION_RUNNING",
    "SESSION_RELOADED",
    "LEASE_HELD",
    "MEMORY_FULL",
    "MEMORIES_BUSY",
    "MEMORIES_DISK_FULL",
    "MEMORIES_FAILED",
    "MEMORIES_IN_DOUBT",
    "EMBEDDER_FAILED",
    "NO_PLACE",
    "RETRIES_EXHAUSTED",
    "STOPPING",
    "TOO_MANY_CALLS",
    "TOO_MANY_WATCHERS",
    "KEYS_CHANGED",
];

/// Asserts an error with this code and reason, and returns its message.
#[track_caller]
pub(crate) fn refused<T: Debug>(
    answer: Result<Response<T>, Status>,
    code: Code,
    reason: &str,
) -> String {
    let status = match answer {
        Ok(answer) => panic!("expected {reason}, got {answer:?}"),
        Err(status) => status,
    };
    let found = refused_code(&status);
    assert_eq!(
        (status.code(), found.as_str()),
        (code, reason),
        "{status:?}"
    );
    assert!(!status.message().is_empty(), "{reason} says nothing");
    if code == Code::InvalidArgument {
        let request = request_of::<T>();
        let field = refused_field(&status);
        let has = |request| has_field(request, &field);
        assert!(
            request.as_ref().is_none_or(has),
            "{request:?} has no {field}: {status:?}"
        );
    }
    status.message().to_owned()
}

/// The `field` of an INVALID_ARGUMENT, which every such error must have.
#[track_caller]
pub(crate) fn refused_field(status: &Status) -> String {
    let info = status.get_details_error_info();
    let field = info.and_then(|mut info| info.metadata.remove("field"));
    field
        .filter(|field| !field.is_empty())
        .unwrap_or_else(|| panic!("without its field: {status:?}"))
}

/// The request type that belongs to a response type, if known.
fn request_of<T>() -> Option<MessageDescriptor> {
    let name = std::any::type_name::<T>();
    let name = name.trim_end_matches('>').rsplit("::").next()?;
    let name = name.strip_suffix("Response")?;
    DESCRIPTOR_POOL.get_message_by_name(&format!("{PACKAGE}.{name}Request"))
}

/// Whether a message has a field at this path, such as `append.turns[1]`.
///
/// After the name of a JSON text field, the path continues inside the text and is not checked.
pub(crate) fn has_field(message: &MessageDescriptor, path: &str) -> bool {
    let end = path.find(['.', '[']).unwrap_or(path.len());
    let (name, mut rest) = path.split_at(end);
    if message.oneofs().any(|oneof| oneof.name() == name) {
        return rest.is_empty();
    }
    let Some(field) = message.get_field_by_name(name) else {
        return false;
    };
    if field.kind().as_enum().is_none() && name.ends_with("_json") {
        return true;
    }
    if let Some(indexed) = rest.strip_prefix('[') {
        let Some((index, behind)) = indexed.split_once(']') else {
            return false;
        };
        if !field.is_list() || index.parse::<usize>().is_err() {
            return false;
        }
        rest = behind;
    }
    match (rest.strip_prefix('.'), field.kind()) {
        (None, _) => rest.is_empty(),
        (Some(inner), Kind::Message(message)) => has_field(&message, inner),
        _ => false,
    }
}

/// Returns the reason of an error, after checking that it is a well-formed error of memoird.
#[track_caller]
pub(crate) fn refused_code(status: &Status) -> String {
    let info = status.get_details_error_info();
    let info = info.unwrap_or_else(|| panic!("without ErrorInfo: {status:?}"));
    assert_eq!(info.domain, "memoird", "{status:?}");
    let retry = status
        .get_details_retry_info()
        .and_then(|info| info.retry_delay);
    let passes = PASSING.contains(&info.reason.as_str());
    assert_eq!(
        retry.is_some_and(|delay| !delay.is_zero()),
        passes,
        "{status:?}"
    );
    if status.code() == Code::InvalidArgument {
        refused_field(status);
    }
    info.reason
}
