//! Reads error responses: start of the body, root cause, and pause before a retry.

use std::error::Error;
use std::time::{Duration, SystemTime};

use reqwest::header::{DATE, HeaderMap, RETRY_AFTER};
use reqwest::{Response, StatusCode};
use tokio::time::timeout;

/// Time limit for reading the body once the status is known.
const EXCERPT_TIMEOUT: Duration = Duration::from_secs(1);

/// Returns at most `bytes_max` bytes of the body that arrive within a second.
pub async fn excerpt(mut response: Response, bytes_max: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    let read = async {
        while bytes.len() < bytes_max {
            let Ok(Some(chunk)) = response.chunk().await else {
                break;
            };
            let room = bytes_max - bytes.len();
            bytes.extend_from_slice(&chunk[..chunk.len().min(room)]);
        }
    };
    let _ = timeout(EXCERPT_TIMEOUT, read).await;
    bytes
}

/// A status with its name, such as `410 Gone`.
pub fn status_text(status: StatusCode) -> String {
    match status.canonical_reason() {
        Some(reason) => format!("{} {reason}", status.as_u16()),
        None => status.as_u16().to_string(),
    }
}

/// The innermost cause of an error, without the URL, which may contain a token.
pub fn root_cause(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut cause: &dyn Error = &error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

/// The pause of `Retry-After` (RFC 9110, section 10.2.3).
///
/// A date is compared with the response's own `Date`, because the server's clock may differ, or
/// with `now` if there is none. Without either there is no pause.
pub fn retry_after(headers: &HeaderMap, now: Option<SystemTime>) -> Option<Duration> {
    let text = |name| headers.get(name)?.to_str().ok().map(str::trim);
    let date = |text| httpdate::parse_http_date(text).ok();
    let pause = text(RETRY_AFTER)?;
    if let Ok(seconds) = pause.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let until = date(pause)?;
    let now = text(DATE).and_then(date).or(now)?;
    Some(until.duration_since(now).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use reqwest::header::HeaderName;

    use super::*;

    /// Sun, 06 Nov 1994 08:49:37 GMT.
    const NOW: Duration = Duration::from_secs(784_111_777);

    fn pause(now: Option<SystemTime>, pairs: &[(HeaderName, &'static str)]) -> Option<Duration> {
        let pairs = pairs.iter();
        let values = pairs.map(|(name, value)| (name.clone(), value.parse().expect("a value")));
        retry_after(&values.collect(), now)
    }

    #[test]
    fn retry_after_is_seconds_or_date() {
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        let until = (RETRY_AFTER, "Sun, 06 Nov 1994 08:50:37 GMT");
        let passed = (RETRY_AFTER, "Sun, 06 Nov 1994 08:48:37 GMT");
        for now in [None, Some(UNIX_EPOCH + NOW)] {
            assert_eq!(pause(now, &[]), None);
            assert_eq!(pause(now, &[(RETRY_AFTER, "120")]), seconds(120));
            assert_eq!(pause(now, &[(RETRY_AFTER, "0")]), seconds(0));
            let at = |date| pause(now, &[until.clone(), (DATE, date)]);
            assert_eq!(at("Sun, 06 Nov 1994 08:50:07 GMT"), seconds(30));
            assert_eq!(at("Sun, 06 Nov 1994 08:51:07 GMT"), seconds(0));
            let ours = now.and(seconds(60));
            assert_eq!(at("yesterday"), ours);
            assert_eq!(pause(now, std::slice::from_ref(&until)), ours);
            assert_eq!(
                pause(now, std::slice::from_ref(&passed)),
                now.and(seconds(0))
            );
            for odd in ["-1", "soon", "1.5", "", "99999999999999999999999"] {
                assert_eq!(pause(now, &[(RETRY_AFTER, odd)]), None, "{odd}");
            }
        }
    }

    #[test]
    fn status_is_shown_with_its_name() {
        assert_eq!(status_text(StatusCode::GONE), "410 Gone");
        let unnamed = StatusCode::from_u16(599).expect("a status");
        assert_eq!(status_text(unnamed), "599");
    }
}
