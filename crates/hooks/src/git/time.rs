//! Times as people and git read them, always in UTC.

use std::time::{Duration, UNIX_EPOCH};

use memoird_core::time::Timestamp;

/// RFC 3339 to the millisecond.
pub(crate) fn rfc3339(timestamp: Timestamp) -> String {
    let seconds = u64::try_from(timestamp.seconds()).unwrap_or(0);
    let since = Duration::new(seconds, timestamp.nanos());
    humantime::format_rfc3339_millis(UNIX_EPOCH + since).to_string()
}

/// Day and time of day, to the second: `2026-11-22 10:02:03`.
pub(super) fn readable(timestamp: Timestamp) -> String {
    rfc3339(timestamp)
        .chars()
        .take(19)
        .map(|c| if c == 'T' { ' ' } else { c })
        .collect()
}

/// Year, month and day, as folders are named.
pub(super) fn day(timestamp: Timestamp) -> [String; 3] {
    let text = rfc3339(timestamp);
    [
        text[..4].to_owned(),
        text[5..7].to_owned(),
        text[8..10].to_owned(),
    ]
}

/// What RFC 3339 says, or `None`.
pub(super) fn parse(text: &str) -> Option<Timestamp> {
    let since = humantime::parse_rfc3339(text)
        .ok()?
        .duration_since(UNIX_EPOCH)
        .ok()?;
    Timestamp::new(i64::try_from(since.as_secs()).ok()?, since.subsec_nanos())
}

/// A duration in words of at most two units: `3h 12m`.
pub(super) fn between(from: Timestamp, to: Timestamp) -> String {
    let seconds = to.seconds().saturating_sub(from.seconds()).max(0);
    let (days, hours) = (seconds / 86_400, seconds / 3_600 % 24);
    let (minutes, rest) = (seconds / 60 % 60, seconds % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{rest}s"),
        (0, 0, _) => format!("{minutes}m {rest}s"),
        (0, _, _) => format!("{hours}h {minutes}m"),
        _ => format!("{days}d {hours}h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_read_as_people_write_them() {
        let at = Timestamp::new(1_795_341_723, 45_600_000).unwrap();
        assert_eq!(rfc3339(at), "2026-11-22T10:02:03.045Z");
        assert_eq!(readable(at), "2026-11-22 10:02:03");
        assert_eq!(day(at), ["2026", "11", "22"]);
        assert_eq!(
            parse(&rfc3339(at)),
            Timestamp::new(1_795_341_723, 45_000_000)
        );
        assert_eq!(
            day(Timestamp::new(Timestamp::SECONDS_MAX, 0).unwrap()),
            ["9999", "12", "31"]
        );
    }

    #[test]
    fn durations_have_two_units_at_most() {
        let cases = [
            (0, "0s"),
            (59, "59s"),
            (61, "1m 1s"),
            (3_660, "1h 1m"),
            (90_000, "1d 1h"),
        ];
        for (seconds, text) in cases {
            let to = Timestamp::new(seconds, 0).unwrap();
            assert_eq!(between(Timestamp::default(), to), text);
        }
        assert_eq!(
            between(Timestamp::from_ms(5_000), Timestamp::default()),
            "0s"
        );
    }
}
