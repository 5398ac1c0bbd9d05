//! What an answer means for the delivery: made, again later, or never.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use memoird_core::time::Timestamp;
use memoird_engine::{Again, HookError};
use reqwest::header::{DATE, HeaderMap, RETRY_AFTER};
use reqwest::{Response, StatusCode};
use tokio::time::timeout;

use crate::text::line;

/// Bytes read of what an answer says.
const SAID_BYTES_MAX: usize = 1_024;
/// Characters of it in the problem.
const SAID_CHARS_MAX: usize = 200;
/// How long to wait for what an answer says, once its status is known.
const SAID_PAUSE: Duration = Duration::from_secs(1);

/// Whether the delivery is made. The status alone counts: once a receiver has said that it
/// is done, what follows, or breaks off, is not read.
pub(super) async fn judge(answer: Response, at: Timestamp) -> Result<(), HookError> {
    let status = answer.status();
    if status.is_success() {
        return Ok(());
    }
    let again = match (may_pass(status), pause(answer.headers(), at)) {
        (false, _) => Again::Never,
        (true, None) => Again::Later,
        (true, Some(pause)) => Again::After(pause),
    };
    let problem = match said(answer).await {
        said if said.is_empty() => title(status),
        said => format!("{}: {said}", title(status)),
    };
    Err(HookError { problem, again })
}

/// A status with its name, such as `410 Gone`.
pub(super) fn title(status: StatusCode) -> String {
    match status.canonical_reason() {
        Some(reason) => format!("{} {reason}", status.as_u16()),
        None => status.as_u16().to_string(),
    }
}

/// Statuses that say that another try may be answered otherwise.
fn may_pass(status: StatusCode) -> bool {
    let waits = [
        StatusCode::REQUEST_TIMEOUT,
        StatusCode::TOO_EARLY,
        StatusCode::TOO_MANY_REQUESTS,
    ];
    status.is_server_error() || waits.contains(&status)
}

/// The pause of `Retry-After` (RFC 9110, section 10.2.3). A date is compared with the
/// answer's own, so that the receiver's clock need not be ours.
fn pause(headers: &HeaderMap, at: Timestamp) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = text.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let until = httpdate::parse_http_date(text).ok()?;
    let dated = headers.get(DATE).and_then(|date| date.to_str().ok());
    let ours = UNIX_EPOCH + Duration::new(at.seconds().unsigned_abs(), at.nanos());
    let now: SystemTime = dated
        .and_then(|date| httpdate::parse_http_date(date).ok())
        .unwrap_or(ours);
    Some(until.duration_since(now).unwrap_or_default())
}

/// The beginning of what it says.
async fn said(mut answer: Response) -> String {
    let mut bytes = Vec::new();
    let read = async {
        while bytes.len() < SAID_BYTES_MAX {
            let Ok(Some(chunk)) = answer.chunk().await else {
                break;
            };
            let room = SAID_BYTES_MAX - bytes.len();
            bytes.extend_from_slice(&chunk[..chunk.len().min(room)]);
        }
    };
    let _ = timeout(SAID_PAUSE, read).await;
    line(&bytes, SAID_CHARS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(pairs: &[(reqwest::header::HeaderName, &'static str)]) -> Option<Duration> {
        let values = pairs
            .iter()
            .map(|(name, value)| (name.clone(), value.parse().expect("a value")));
        // Sun, 06 Nov 1994 08:49:37 GMT.
        pause(&values.collect(), Timestamp::new(784_111_777, 0).unwrap())
    }

    #[test]
    fn a_pause_is_asked_for_in_seconds_or_until_a_moment() {
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[(RETRY_AFTER, "120")]), seconds(120));
        assert_eq!(of(&[(RETRY_AFTER, "0")]), seconds(0));
        assert_eq!(
            of(&[(RETRY_AFTER, "Sun, 06 Nov 1994 08:50:37 GMT")]),
            seconds(60)
        );
        assert_eq!(
            of(&[(RETRY_AFTER, "Sun, 06 Nov 1994 08:48:37 GMT")]),
            seconds(0)
        );
        let pair = |date| [(RETRY_AFTER, "Sun, 06 Nov 1994 08:50:37 GMT"), (DATE, date)];
        assert_eq!(of(&pair("Sun, 06 Nov 1994 08:50:07 GMT")), seconds(30));
        assert_eq!(of(&pair("yesterday")), seconds(60));
        for odd in ["-1", "soon", "1.5", "", "99999999999999999999999"] {
            assert_eq!(of(&[(RETRY_AFTER, odd)]), None, "{odd}");
        }
    }

    #[test]
    fn only_some_statuses_may_pass() {
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
                may_pass(StatusCode::from_u16(number).unwrap()),
                passes,
                "{number}"
            );
        }
        assert_eq!(title(StatusCode::GONE), "410 Gone");
        assert_eq!(title(StatusCode::from_u16(599).unwrap()), "599");
    }
}
