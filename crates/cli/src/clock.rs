//! The only clocks of the client, and the formatting of times.
//!
//! No other code may read the clock.

use std::time::{Duration, Instant};

use jiff::Timestamp;

/// A timestamp of the API.
type ApiTimestamp = prost_types::Timestamp;

/// A monotonic instant, for measuring durations.
#[allow(
    clippy::disallowed_methods,
    reason = "a client has no clock handed to it; this is it"
)]
pub fn monotonic() -> Instant {
    Instant::now()
}

pub fn since(start: Instant) -> Duration {
    monotonic().duration_since(start)
}

/// Formats the age of a timestamp, such as `3h 20m`. A dash if there is none.
pub fn age(moment: Option<&ApiTimestamp>) -> String {
    age_at(moment, Timestamp::now())
}

/// Formats the time until a timestamp. `never` if there is none.
pub(crate) fn left(moment: Option<&ApiTimestamp>) -> String {
    left_at(moment, Timestamp::now())
}

/// Returns the time until a timestamp. Zero if it has passed.
pub(crate) fn until(moment: &ApiTimestamp) -> Duration {
    let left = read(moment).map(|moment| moment.duration_since(Timestamp::now()));
    left.and_then(|left| left.try_into().ok())
        .unwrap_or_default()
}

/// Whether a timestamp has passed. False if there is none.
pub(crate) fn is_past(moment: Option<&ApiTimestamp>) -> bool {
    moment
        .and_then(read)
        .is_some_and(|moment| moment <= Timestamp::now())
}

fn age_at(moment: Option<&ApiTimestamp>, now: Timestamp) -> String {
    let age = |moment| span(now.duration_since(moment).try_into().unwrap_or_default());
    moment.and_then(read).map_or_else(|| "-".to_owned(), age)
}

fn left_at(moment: Option<&ApiTimestamp>, now: Timestamp) -> String {
    let left = |moment: Timestamp| span(moment.duration_since(now).try_into().unwrap_or_default());
    moment
        .and_then(read)
        .map_or_else(|| "never".to_owned(), left)
}

/// Seconds from one timestamp to another. `None` if one is missing.
pub fn seconds_between(from: Option<&ApiTimestamp>, to: Option<&ApiTimestamp>) -> Option<f64> {
    let (from, to) = (from.and_then(read)?, to.and_then(read)?);
    Some(to.duration_since(from).as_secs_f64())
}

/// Formats a timestamp in UTC with a `strftime` format. Empty if there is none.
pub fn written(moment: Option<&ApiTimestamp>, format: &str) -> String {
    let moment = moment.and_then(read);
    moment.map_or_else(String::new, |moment| moment.strftime(format).to_string())
}

/// Formats a duration in its two largest units, such as `3h 20m`.
fn span(duration: Duration) -> String {
    let text = humantime::format_duration(Duration::from_secs(duration.as_secs())).to_string();
    let mut words = text.split(' ');
    match (words.next(), words.next()) {
        (Some(first), Some(second)) => format!("{first} {second}"),
        _ => text,
    }
}

fn read(moment: &ApiTimestamp) -> Option<Timestamp> {
    Timestamp::new(moment.seconds, moment.nanos).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64, nanos: i32) -> ApiTimestamp {
        ApiTimestamp { seconds, nanos }
    }

    fn second(seconds: i64) -> Timestamp {
        read(&at(seconds, 0)).expect("a moment")
    }

    #[test]
    fn age_is_never_negative() {
        let time = at(1_000, 0);
        assert_eq!(age_at(Some(&time), second(1_090)), "1m 30s");
        assert_eq!(age_at(Some(&time), second(10)), "0s");
        assert_eq!(left_at(Some(&time), second(10)), "16m 30s");
        assert_eq!(left_at(Some(&time), second(1_090)), "0s");
        assert_eq!(left_at(None, second(0)), "never");
        assert_eq!(age_at(None, second(0)), "-");
    }

    #[test]
    fn durations_have_two_units() {
        assert_eq!(span(Duration::from_millis(900)), "0s");
        assert_eq!(span(Duration::from_secs(3 * 3_600 + 20 * 60 + 5)), "3h 20m");
    }

    #[test]
    fn timestamps_are_truncated() {
        let moment = at(1_767_323_045, 678_900_000);
        let date = "%Y-%m-%d %H:%M:%S";
        assert_eq!(written(Some(&moment), date), "2026-01-02 03:04:05");
        assert_eq!(written(Some(&moment), "%H:%M:%S.%3f"), "03:04:05.678");
        assert_eq!(written(None, date), "");
        let moments = (Some(&at(1, 0)), Some(&moment));
        assert_eq!(seconds_between(moments.0, None), None);
        assert!(seconds_between(moments.0, moments.1).is_some_and(|it| it > 1e9));
    }
}
