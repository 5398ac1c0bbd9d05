//! What an error must look like: a code, a stable reason of memoird's own, and a hint
//! when to try again exactly where that helps.

use std::fmt::Debug;

use tonic::{Code, Response, Status};
use tonic_types::StatusExt;

/// Reasons that pass by themselves.
const PASSING: [&str; 19] = [
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
    "EMBEDDER_FAILED",
    "NO_PLACE",
    "RETRIES_EXHAUSTED",
    "STOPPING",
    "TOO_MANY_CALLS",
    "TOO_MANY_WATCHERS",
    "KEYS_CHANGED",
];

/// Expects a refusal for this reason; gives what it says.
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
    status.message().to_owned()
}

/// Expects that the daemon itself refused, in the way of all its refusals; gives the
/// reason.
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
    info.reason
}
