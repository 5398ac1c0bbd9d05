//! Converts errors to refusals with their gRPC status codes, in this file only.
//!
//! Each error has a code, a message that states what to do, and a stable reason for programs.

use std::fmt::Display;
use std::time::Duration;

use memoird_core::CoreError;
use memoird_core::error::Field;
use memoird_engine::EngineError;
use memoird_memories::MemoryError;
use memoird_search::SearchError;
use tonic::Code::{
    Aborted, AlreadyExists, DataLoss, DeadlineExceeded, FailedPrecondition, Internal,
    InvalidArgument, NotFound, OutOfRange, PermissionDenied, ResourceExhausted, Unauthenticated,
    Unavailable, Unimplemented,
};
use tonic::{Code, Status};
use tracing::{error, warn};

use super::refusal::{FieldPath, Names, Refusal};

/// Retry delay after a short overload.
const SOON: Option<Duration> = Some(Duration::from_millis(100));
/// Retry delay after a disk error.
pub(crate) const LATER: Option<Duration> = Some(Duration::from_secs(1));

impl From<EngineError> for Refusal {
    fn from(failure: EngineError) -> Self {
        engine_named(&failure, Names::Common)
    }
}

impl From<CoreError> for Refusal {
    fn from(refusal: CoreError) -> Self {
        core_named(&refusal, Names::Common)
    }
}

impl From<MemoryError> for Refusal {
    fn from(failure: MemoryError) -> Self {
        memory(&failure)
    }
}

impl From<SearchError> for Refusal {
    fn from(failure: SearchError) -> Self {
        let message = failure.to_string();
        let (code, reason, retry) = match failure {
            SearchError::Engine(failure) => return failure.into(),
            SearchError::Off => (FailedPrecondition, "SEARCH_OFF", None),
            SearchError::QueryEmpty => return invalid("QUERY_EMPTY", "query", message),
            SearchError::NotReady => (Unavailable, "SEARCH_NOT_READY", LATER),
            SearchError::Failed { cause } => {
                error!(%cause, "a search failed: index error");
                (Unavailable, "SEARCH_FAILED", LATER)
            }
        };
        new(code, reason, message, retry)
    }
}

/// Converts an error of the engine, with the field names of a request.
pub(crate) fn engine_named(failure: &EngineError, names: Names) -> Refusal {
    let (code, reason, retry) = match failure {
        EngineError::Core(refusal) => return core_named(refusal, names),
        EngineError::SessionNotFound { .. } => (NotFound, "SESSION_NOT_FOUND", None),
        EngineError::GenerationNotFound { .. } => (NotFound, "GENERATION_NOT_FOUND", None),
        EngineError::TurnNotFound { .. } | EngineError::ClientIdNotFound { .. } => {
            (NotFound, "TURN_NOT_FOUND", None)
        }
        EngineError::ClientIdNotUnique { .. } => (FailedPrecondition, "CLIENT_ID_NOT_UNIQUE", None),
        EngineError::TargetLives { .. } => (AlreadyExists, "TARGET_LIVES", None),
        EngineError::CopyEmpty { .. } => (FailedPrecondition, "COPY_EMPTY", None),
        EngineError::CopyTooLarge { .. } => (FailedPrecondition, "COPY_TOO_LARGE", None),
        EngineError::DeliveryNotFound { .. } => (NotFound, "DELIVERY_NOT_FOUND", None),
        EngineError::ErasureNotFound { .. } => (NotFound, "ERASURE_NOT_FOUND", None),
        EngineError::ErasuresTooMany => (ResourceExhausted, "ERASURES_TOO_MANY", LATER),
        EngineError::JournalOff => (FailedPrecondition, "JOURNAL_OFF", None),
        EngineError::JournalBusy => (ResourceExhausted, "JOURNAL_BUSY", SOON),
        EngineError::MemoryFull { .. } => (ResourceExhausted, "MEMORY_FULL", LATER),
        EngineError::JournalQuota { .. } => (ResourceExhausted, "JOURNAL_QUOTA", None),
        EngineError::JournalFull => (ResourceExhausted, "JOURNAL_FULL", LATER),
        EngineError::JournalFailed { detail } => {
            error!(detail, "a call failed: journal error");
            (Unavailable, "JOURNAL_FAILED", LATER)
        }
        // The same reason as for journal errors: clients retry both.
        EngineError::BlockingCallFailed { detail } => {
            error!(detail, "a call on another thread failed");
            (Unavailable, "JOURNAL_FAILED", LATER)
        }
        EngineError::CallPending => (FailedPrecondition, "CALL_PENDING", None),
        EngineError::CompactionRunning => (Aborted, "COMPACTION_RUNNING", LATER),
        EngineError::CompactionFailed { .. } => (Unavailable, "COMPACTION_FAILED", None),
        EngineError::NoSummary { .. } => (FailedPrecondition, "NO_SUMMARY", None),
        EngineError::SessionReloaded => (Unavailable, "SESSION_RELOADED", SOON),
        EngineError::NoRoomForSession => (ResourceExhausted, "NO_PLACE", SOON),
        EngineError::RetriesExhausted => (Aborted, "RETRIES_EXHAUSTED", SOON),
        EngineError::Stopping => (Unavailable, "STOPPING", LATER),
    };
    let facts = match failure {
        EngineError::CompactionFailed { reason, .. } => vec![("cause", (*reason).to_owned())],
        EngineError::MemoryFull {
            used_bytes,
            limit_bytes,
            ..
        }
        | EngineError::JournalQuota {
            used_bytes,
            limit_bytes,
            ..
        } => vec![
            ("used_bytes", used_bytes.to_string()),
            ("limit_bytes", limit_bytes.to_string()),
        ],
        _ => Vec::new(),
    };
    new(code, reason, failure.to_string(), retry).with_facts(facts)
}

/// Converts an error of the core, with the field names of a request.
pub(crate) fn core_named(refusal: &CoreError, names: Names) -> Refusal {
    let (code, reason) = match refusal {
        CoreError::IdInvalid { .. } => (InvalidArgument, "ID_INVALID"),
        CoreError::HookNameInvalid { .. } => (InvalidArgument, "HOOK_NAME_INVALID"),
        CoreError::DeliveryIdInvalid { .. } => (InvalidArgument, "DELIVERY_ID_INVALID"),
        CoreError::GenerationInvalid { .. } => (InvalidArgument, "GENERATION_INVALID"),
        CoreError::TurnInvalid { .. } => (InvalidArgument, "TURN_INVALID"),
        CoreError::TurnTooLarge { .. } => (InvalidArgument, "TURN_TOO_LARGE"),
        CoreError::TurnCountInvalid { .. } => (InvalidArgument, "TURN_COUNT_INVALID"),
        CoreError::MessagesInvalid { .. } => (InvalidArgument, "MESSAGES_INVALID"),
        CoreError::ToolUseUnknown { .. } => (InvalidArgument, "TOOL_USE_UNKNOWN"),
        CoreError::PinnedTooMany { .. } => (FailedPrecondition, "PINNED_TOO_MANY"),
        CoreError::StaleSeq { .. } => (Aborted, "STALE_SEQ"),
        CoreError::StaleGeneration { .. } => (Aborted, "STALE_GENERATION"),
        CoreError::StaleStateVersion { .. } => (Aborted, "STALE_STATE_VERSION"),
        CoreError::StateInvalid { .. } => (InvalidArgument, "STATE_INVALID"),
        CoreError::StateTooLarge { .. } => (InvalidArgument, "STATE_TOO_LARGE"),
        CoreError::RewindSplitsUnit { .. } => (InvalidArgument, "TOOL_UNIT_SPLIT"),
        CoreError::RewindBeyondEnd { .. } => (InvalidArgument, "AFTER_SEQ_INVALID"),
        CoreError::TurnUpdateInvalid { .. } => (InvalidArgument, "TURN_UPDATE_INVALID"),
        CoreError::IdempotencyKeyRewound => (FailedPrecondition, "IDEMPOTENCY_KEY_REWOUND"),
        CoreError::LabelInvalid { .. } => (InvalidArgument, "LABEL_INVALID"),
        CoreError::LabelsTooMany { .. } => (InvalidArgument, "LABELS_TOO_MANY"),
        CoreError::TtlClassInvalid { .. } => (InvalidArgument, "TTL_CLASS_INVALID"),
        CoreError::TtlClassUnknown { .. } => (InvalidArgument, "TTL_CLASS_UNKNOWN"),
        CoreError::HistoryFull { .. } => (FailedPrecondition, "HISTORY_FULL"),
        CoreError::IdempotencyKeyReused => (InvalidArgument, "IDEMPOTENCY_KEY_REUSED"),
        CoreError::BudgetNotPositive { .. } => (InvalidArgument, "BUDGET_NOT_POSITIVE"),
        CoreError::CurrentTurnTooLarge { .. } => (FailedPrecondition, "CURRENT_TURN_TOO_LARGE"),
        CoreError::UnknownModel { .. } => (InvalidArgument, "UNKNOWN_MODEL"),
        CoreError::MemoryIdInvalid { .. } => (InvalidArgument, "MEMORY_ID_INVALID"),
        CoreError::ErasureIdInvalid { .. } => (InvalidArgument, "ERASURE_ID_INVALID"),
        CoreError::LeaseInvalid { .. } => (InvalidArgument, "LEASE_INVALID"),
    };
    let facts = match refusal {
        CoreError::CurrentTurnTooLarge { budget, tokens, .. } => vec![
            ("tokens", tokens.to_string()),
            ("budget", budget.to_string()),
        ],
        CoreError::RewindSplitsUnit {
            first_seq,
            last_seq,
            ..
        } => vec![
            ("first_seq", first_seq.to_string()),
            ("last_seq", last_seq.to_string()),
        ],
        CoreError::StaleSeq { actual, .. } => vec![("last_seq", actual.to_string())],
        CoreError::StaleGeneration {
            actual: Some(live), ..
        } => vec![("generation", live.to_string())],
        CoreError::StaleStateVersion { actual, .. } => vec![("version", actual.to_string())],
        _ => Vec::new(),
    };
    let text = match refusal {
        CoreError::MessagesInvalid { problem, .. } => problem.clone(),
        _ => refusal.to_string(),
    };
    let Some(field) = refusal.field() else {
        return new(code, reason, text, None).with_facts(facts);
    };
    Refusal {
        needs_path: matches!(
            field,
            Field::Turn(_) | Field::Messages(_) | Field::StatePatch
        ),
        path: names.path(field),
        ..new(code, reason, names.message(field, text), None).with_facts(facts)
    }
}

fn memory(failure: &MemoryError) -> Refusal {
    let mut facts = Vec::new();
    let mut field = None;
    let (code, reason, retry) = match failure {
        MemoryError::Core(refusal) => return core_named(refusal, Names::Common),
        MemoryError::Engine(failure) => return engine_named(failure, Names::Common),
        MemoryError::Invalid { field: name, .. } => {
            field = Some(*name);
            (InvalidArgument, "MEMORY_INVALID", None)
        }
        MemoryError::NotFound { .. } => (NotFound, "MEMORY_NOT_FOUND", None),
        MemoryError::MemoryDamaged { id } => {
            facts.push(("id", id.to_string()));
            (DataLoss, "MEMORY_DAMAGED", None)
        }
        MemoryError::Duplicate { id } => {
            facts.push(("id", id.to_string()));
            (AlreadyExists, "MEMORY_DUPLICATE", None)
        }
        MemoryError::Superseded { by, .. } => {
            facts.push(("superseded_by", by.to_string()));
            (FailedPrecondition, "MEMORY_SUPERSEDED", None)
        }
        MemoryError::SecretFound { field: name, .. } => {
            field = Some(*name);
            (InvalidArgument, "SECRET_FOUND", None)
        }
        MemoryError::Full { .. } => (ResourceExhausted, "MEMORIES_FULL", None),
        MemoryError::SourceNotFound { .. } => (NotFound, "SOURCE_NOT_FOUND", None),
        MemoryError::LeaseHeld { seconds_left } => {
            let retry = Some(Duration::from_secs(*seconds_left));
            (Aborted, "LEASE_HELD", retry)
        }
        MemoryError::LeaseLost => (Aborted, "LEASE_LOST", None),
        MemoryError::SubjectsTooMany { .. } => {
            field = Some("subject_prefix");
            (InvalidArgument, "SUBJECTS_TOO_MANY", None)
        }
        MemoryError::KeyNotFound { .. } => (NotFound, "MEMORY_NOT_FOUND", None),
        MemoryError::DocumentInvalid { field: name, .. } => {
            field = Some(*name);
            (InvalidArgument, "DOCUMENT_INVALID", None)
        }
        MemoryError::DocumentNotFound { .. } => (NotFound, "DOCUMENT_NOT_FOUND", None),
        MemoryError::DocumentDamaged { .. } => (DataLoss, "DOCUMENT_DAMAGED", None),
        MemoryError::StaleVersion { version, .. } => {
            facts.push(("version", version.to_string()));
            (Aborted, "STALE_VERSION", None)
        }
        MemoryError::DocumentsFull { .. } => (ResourceExhausted, "DOCUMENTS_FULL", None),
        MemoryError::DocumentsTooLarge { .. } => {
            field = Some("operations");
            (InvalidArgument, "DOCUMENTS_TOO_LARGE", None)
        }
        MemoryError::InList { list, index, error } => {
            let refusal = memory(error);
            if refusal.path.is_empty() {
                return Refusal {
                    message: failure.to_string(),
                    ..refusal
                };
            }
            return refusal.under(FieldPath::from(*list).at(*index));
        }
        MemoryError::Off => (FailedPrecondition, "MEMORIES_OFF", None),
        MemoryError::Busy => (ResourceExhausted, "MEMORIES_BUSY", SOON),
        MemoryError::DiskFull => (ResourceExhausted, "MEMORIES_DISK_FULL", LATER),
        MemoryError::Failed { cause } => {
            error!(%cause, "a call failed: memory store error");
            (Unavailable, "MEMORIES_FAILED", LATER)
        }
        MemoryError::InDoubt { detail } => {
            warn!(detail, "a write of memories has an unknown outcome");
            (Unavailable, "MEMORIES_IN_DOUBT", SOON)
        }
        MemoryError::NoEmbedder => (FailedPrecondition, "NO_EMBEDDER", None),
        MemoryError::NoVectors => (FailedPrecondition, "NO_VECTORS", None),
        MemoryError::EmbedderFailed { detail } => {
            warn!(detail, "a query could not be embedded");
            (Unavailable, "EMBEDDER_FAILED", LATER)
        }
        MemoryError::NoExtractor => (FailedPrecondition, "NO_EXTRACTOR", None),
        MemoryError::ExtractorFailed { detail, after } => {
            warn!(detail, "a model found no facts");
            (Unavailable, "EXTRACTOR_FAILED", Some(*after))
        }
        MemoryError::ExtractionSpent { .. } => (ResourceExhausted, "EXTRACTION_SPENT", None),
        MemoryError::DimensionMismatch { .. } => (Unavailable, "EMBEDDER_FAILED", LATER),
    };
    let (text, needs_path) = match failure {
        MemoryError::Invalid { problem, .. } | MemoryError::DocumentInvalid { problem, .. } => {
            (problem.clone(), true)
        }
        _ => (failure.to_string(), false),
    };
    Refusal {
        path: field.map(FieldPath::from).unwrap_or_default(),
        needs_path,
        ..new(code, reason, text, retry).with_facts(facts)
    }
}

/// An invalid request, because of the value of this field, which the message names.
pub(crate) fn invalid(
    reason: &'static str,
    field: impl Into<FieldPath>,
    problem: impl Into<String>,
) -> Refusal {
    new(InvalidArgument, reason, problem, None).about(field)
}

/// A cursor that no daemon has issued.
pub(crate) fn cursor_invalid() -> Refusal {
    let problem = "invalid after_cursor: pass the `cursor` of an event, or leave it empty to \
        watch from now on";
    invalid("CURSOR_INVALID", "after_cursor", problem)
}

/// A cursor of one tenant, combined with another position or all tenants.
pub(crate) fn cursor_with_others() -> Refusal {
    let problem = "after_cursor is a position in the events of one tenant: send it without \
        all_tenants";
    invalid("CURSOR_INVALID", "after_cursor", problem)
}

/// A call that this version does not implement.
pub(crate) fn unimplemented() -> Refusal {
    let problem = "this method is not served by this version";
    new(Unimplemented, "UNIMPLEMENTED", problem, None)
}

/// An HTTP request for a path that is no method.
pub(crate) fn path_unknown() -> Refusal {
    let problem = "no such path; POST a JSON object to the path of a method, such as \
        /memoird.v1.SessionService/Append (GET /openapi.json lists all)";
    new(Unimplemented, "PATH_UNKNOWN", problem, None)
}

/// An HTTP request with a method that the path does not have.
pub(crate) fn http_method_invalid(allowed: &str) -> Refusal {
    let problem = format!("this path does not have the HTTP method of the request; use {allowed}");
    new(Unimplemented, "HTTP_METHOD_INVALID", problem, None)
}

/// An HTTP request in a format that the path does not have.
pub(crate) fn content_type_unsupported(accepted: &str) -> Refusal {
    let problem = format!("unsupported content-type; send {accepted}");
    new(Unimplemented, "CONTENT_TYPE_UNSUPPORTED", problem, None)
}

/// A gRPC request over HTTP/1.1, which cannot carry its trailers.
pub(crate) fn http2_required() -> Refusal {
    let problem = "gRPC requires HTTP/2; with HTTP/1.1 send application/json";
    new(Unimplemented, "HTTP2_REQUIRED", problem, None)
}

/// A request by a name of this machine, without a key.
pub(crate) fn host_not_local() -> Refusal {
    let problem = "a daemon without keys is called by its address or as localhost: a web page may \
        know it by another name";
    new(PermissionDenied, "HOST_NOT_LOCAL", problem, None)
}

/// A compressed request.
pub(crate) fn encoding_unsupported() -> Refusal {
    let problem = "unsupported content-encoding; send the request uncompressed (identity)";
    new(Unimplemented, "ENCODING_UNSUPPORTED", problem, None)
}

/// A header of an HTTP request that cannot be parsed.
pub(crate) fn metadata_invalid(name: &'static str, problem: impl Into<String>) -> Refusal {
    invalid("METADATA_INVALID", name, problem)
}

/// A message that cannot be parsed. An empty path is that of the whole message.
pub(crate) fn malformed(path: String, problem: impl Into<String>) -> Refusal {
    let path = if path.is_empty() {
        FieldPath::from("request")
    } else {
        FieldPath::of_text(path)
    };
    invalid("REQUEST_MALFORMED", path, problem).with_path()
}

/// A reply that cannot be written as JSON.
pub(crate) fn reply_unwritable(problem: impl Display) -> Refusal {
    error!(%problem, "a reply cannot be written as JSON");
    let problem = "the reply cannot be written as JSON; turns that the request appended are stored";
    new(Internal, "REPLY_UNWRITABLE", problem, None)
}

/// A caller without the required role.
pub(crate) fn role_required() -> Refusal {
    let problem = "AdminService requires a key with `role: admin`";
    new(PermissionDenied, "ROLE_REQUIRED", problem, None)
}

pub(crate) fn tenant_not_found() -> Refusal {
    let problem = "no such tenant; GetStats lists all";
    new(NotFound, "TENANT_NOT_FOUND", problem, None)
}

/// More concurrent calls than configured.
pub(crate) fn too_many_calls() -> Refusal {
    let problem = "too many concurrent calls; retry";
    new(ResourceExhausted, "TOO_MANY_CALLS", problem, SOON)
}

pub(crate) fn rate_exceeded(key: &'static str, per_second: u32, wait: Duration) -> Refusal {
    let problem = format!("rate limit exceeded: {per_second} {key} for this tenant; retry later");
    let reason = match key {
        "calls_per_second" => "CALLS_PER_SECOND",
        _ => "BYTES_PER_SECOND",
    };
    let facts = vec![("limit", per_second.to_string())];
    // Clients ignore a delay of zero.
    let wait = Some(wait.max(Duration::from_millis(1)));
    new(ResourceExhausted, reason, problem, wait).with_facts(facts)
}

/// A request above the size limit of its method.
pub(crate) fn request_too_large(bytes_max: u64, is_large: bool) -> Refusal {
    let setting = if is_large {
        " (server.max_request_bytes; with auto it follows limits.turn_bytes)"
    } else {
        ""
    };
    let problem =
        format!("the request exceeds the maximum of {bytes_max} bytes for this call{setting}");
    new(ResourceExhausted, "REQUEST_TOO_LARGE", problem, None)
}

/// A request that did not arrive in time.
pub(crate) fn request_too_slow() -> Refusal {
    let problem = "the request did not arrive within server.connections.request_timeout";
    new(DeadlineExceeded, "REQUEST_TOO_SLOW", problem, None)
}

/// A call that exceeded the client's deadline.
pub(crate) fn deadline_exceeded() -> Refusal {
    let problem = "the call's own deadline has passed";
    new(DeadlineExceeded, "DEADLINE_EXCEEDED", problem, None)
}

/// A health check request that is too large.
pub(crate) fn probe_too_large(bytes_max: usize) -> Refusal {
    let problem = format!("a health check request may have at most {bytes_max} bytes");
    new(ResourceExhausted, "REQUEST_TOO_LARGE", problem, None)
}

/// A call without room for its request or response.
pub(crate) fn no_room_for_call(used_bytes: u64, limit_bytes: u64) -> Refusal {
    let problem = "unread requests and responses use their whole share of limits.memory; read \
        your responses, then retry";
    let facts = vec![
        ("used_bytes", used_bytes.to_string()),
        ("limit_bytes", limit_bytes.to_string()),
    ];
    new(ResourceExhausted, "MEMORY_FULL", problem, SOON).with_facts(facts)
}

/// More concurrent watchers than allowed.
pub(crate) fn too_many_watchers() -> Refusal {
    let problem = "too many watchers of this tenant; end another WatchEvents first";
    new(ResourceExhausted, "TOO_MANY_WATCHERS", problem, LATER)
}

/// A watcher that read nothing.
pub(crate) fn watcher_too_slow() -> Refusal {
    let problem = "no event was read for 30 seconds; watch again with after_cursor";
    new(Aborted, "WATCHER_TOO_SLOW", problem, None)
}

/// A watcher after a change of keys.
pub(crate) fn keys_changed() -> Refusal {
    let problem = "the keys were changed; watch again with after_cursor";
    new(Unauthenticated, "KEYS_CHANGED", problem, SOON)
}

pub(crate) fn stopping() -> Refusal {
    EngineError::Stopping.into()
}

/// Converts an error of the gRPC library, raised before a handler saw the message.
pub(crate) fn transport(refusal: &Status) -> Refusal {
    let said = refusal.message().to_owned();
    match refusal.code() {
        OutOfRange => new(ResourceExhausted, "REQUEST_TOO_LARGE", said, None),
        // Errors of memoird have details, so the library could not decode the request.
        Internal => invalid("REQUEST_MALFORMED", "request", said),
        Unimplemented if said.is_empty() => unimplemented(),
        Unimplemented => new(Unimplemented, "UNIMPLEMENTED", said, None),
        code => new(code, "TRANSPORT", said, None),
    }
}

/// A turn that cannot be decoded from its stored bytes.
pub(crate) fn turn_damaged() -> Refusal {
    error!("a turn cannot be decoded");
    let problem = "a turn is damaged; ask without format for the others";
    new(DataLoss, "TURN_DAMAGED", problem, None)
}

pub(crate) fn new(
    code: Code,
    reason: &'static str,
    message: impl Into<String>,
    retry: Option<Duration>,
) -> Refusal {
    Refusal {
        code,
        reason,
        message: message.into(),
        path: FieldPath::default(),
        needs_path: false,
        facts: Vec::new(),
        retry,
    }
}
