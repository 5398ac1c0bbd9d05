//! Formats times for people, programs and git. Always in UTC.

use jiff::SignedDuration;
use jiff::civil::DateTime;
use memoird_core::time::Timestamp;

const EPOCH: DateTime = DateTime::constant(1970, 1, 1, 0, 0, 0, 0);

/// RFC 3339 with milliseconds.
pub(crate) fn rfc3339(timestamp: Timestamp) -> String {
    format!("{:.3}Z", utc(timestamp))
}

/// RFC 3339 with as many fractional digits as needed, in groups of three.
pub(crate) fn rfc3339_exact(timestamp: Timestamp) -> String {
    let digits = match timestamp.nanos() {
        0 => 0,
        nanos if nanos % 1_000_000 == 0 => 3,
        nanos if nanos % 1_000 == 0 => 6,
        _ => 9,
    };
    format!("{:.digits$}Z", utc(timestamp))
}

/// Date and time with seconds: `2026-11-22 10:02:03`.
pub(crate) fn readable(timestamp: Timestamp) -> String {
    utc(timestamp).strftime("%Y-%m-%d %H:%M:%S").to_string()
}

/// Year, month, day, hour and minute, for directory names.
pub(crate) fn minute(timestamp: Timestamp) -> [String; 5] {
    ["%Y", "%m", "%d", "%H", "%M"].map(|part| utc(timestamp).strftime(part).to_string())
}

/// Parses the output of [`rfc3339`].
pub(crate) fn parse(text: &str) -> Option<Timestamp> {
    let moment: DateTime = text.strip_suffix('Z')?.parse().ok()?;
    let since = moment.duration_since(EPOCH);
    Timestamp::new(since.as_secs(), u32::try_from(since.subsec_nanos()).ok()?)
}

/// A duration with at most two units: `3h 12m`.
pub(crate) fn between(from: Timestamp, to: Timestamp) -> String {
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

/// Uses `DateTime`, because jiff's `Timestamp` ends a day before ours.
fn utc(timestamp: Timestamp) -> DateTime {
    let nanos = i32::try_from(timestamp.nanos()).unwrap_or(0);
    EPOCH.saturating_add(SignedDuration::new(timestamp.seconds(), nanos))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_are_formatted() {
        let at = Timestamp::new(1_795_341_723, 45_600_000).unwrap();
        assert_eq!(rfc3339(at), "2026-11-22T10:02:03.045Z");
        assert_eq!(readable(at), "2026-11-22 10:02:03");
        assert_eq!(minute(at), ["2026", "11", "22", "10", "02"]);
        assert_eq!(
            parse(&rfc3339(at)),
            Timestamp::new(1_795_341_723, 45_000_000)
        );
        assert_eq!(
            minute(Timestamp::new(Timestamp::SECONDS_MAX, 0).unwrap()),
            ["9999", "12", "31", "23", "59"]
        );
    }

    #[test]
    fn durations_have_at_most_two_units() {
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
