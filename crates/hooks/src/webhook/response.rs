//! Maps a response to the outcome of the delivery: success, retry or permanent failure.

use std::time::{Duration, UNIX_EPOCH};

use memoird_core::time::Timestamp;
use memoird_engine::{HookError, Retry};
use memoird_http::{excerpt, retry_after, status_text};
use reqwest::{Response, StatusCode};

use crate::text::line;

/// Maximum bytes to read of an error response's body.
const EXCERPT_BYTES_MAX: usize = 1_024;
/// Maximum characters of it in the error message.
const EXCERPT_CHARS_MAX: usize = 200;

/// Decides by the status alone. The body of a successful response is not read.
pub(super) async fn check_response(answer: Response, at: Timestamp) -> Result<(), HookError> {
    let status = answer.status();
    if status.is_success() {
        return Ok(());
    }
    let now = UNIX_EPOCH + Duration::new(at.seconds().unsigned_abs(), at.nanos());
    let retry = match (
        is_transient(status),
        retry_after(answer.headers(), Some(now)),
    ) {
        (false, _) => Retry::Never,
        (true, None) => Retry::Later,
        (true, Some(pause)) => Retry::After(pause),
    };
    let excerpt = line(&excerpt(answer, EXCERPT_BYTES_MAX).await, EXCERPT_CHARS_MAX);
    let problem = if excerpt.is_empty() {
        status_text(status)
    } else {
        format!("{}: {excerpt}", status_text(status))
    };
    Err(HookError { problem, retry })
}

/// Statuses for which a retry may succeed.
fn is_transient(status: StatusCode) -> bool {
    let waits = [
        StatusCode::REQUEST_TIMEOUT,
        StatusCode::TOO_EARLY,
        StatusCode::TOO_MANY_REQUESTS,
    ];
    status.is_server_error() || waits.contains(&status)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_transient_statuses_are_retried() {
        for (number, passes) in [
            (400, false),
            (401, false),
            (404, false),
            (408, true),
            (410, false),
            (413, false),
            (425, true),
            (429, true),
            (304, false),
            (500, true),
            (501, true),
            (503, true),
            (599, true),
            (600, false),
            (101, false),
        ] {
            assert_eq!(
                is_transient(StatusCode::from_u16(number).unwrap()),
                passes,
                "{number}"
            );
        }
    }
}
