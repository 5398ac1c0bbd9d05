//! Days as people and models read them, always in UTC: what a wall-clock time is as a date,
//! and what a date says as a wall-clock time.

use std::fmt;

use jiff::Span;
use jiff::civil;
use jiff::fmt::temporal::Pieces;

use crate::time::Timestamp;

/// Seconds of a day; days of UTC have no other length here.
const DAY_S: i64 = 86_400;

const EPOCH: civil::Date = civil::date(1970, 1, 1);

/// A day of the Gregorian calendar, in UTC, from 1970 to 9999. It reads as `2026-11-22`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Date(civil::Date);

impl Date {
    /// The day of a moment.
    pub fn of(at: Timestamp) -> Self {
        Self(EPOCH.saturating_add(Span::new().days(day_number(at))))
    }

    /// Its name in English.
    pub fn weekday(self) -> impl fmt::Display {
        self.0.strftime("%A")
    }
}

impl fmt::Display for Date {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Days from the first of January 1970 to the day of this moment.
pub fn day_number(at: Timestamp) -> i64 {
    at.seconds().div_euclid(DAY_S)
}

/// What RFC 3339 says, such as `2026-11-22T10:02:03.5+01:00`, or a date alone, which is its
/// first moment in UTC; `None` for anything else and outside the years 1970 to 9999. A leap
/// second is the second before it.
pub fn parse_rfc3339(text: &str) -> Option<Timestamp> {
    // The parser takes other forms of ISO 8601 too.
    let bytes = text.as_bytes();
    let has_date = bytes.get(4) == Some(&b'-') && bytes.get(7) == Some(&b'-');
    let has_seconds = bytes.get(13) == Some(&b':') && bytes.get(16) == Some(&b':');
    let is_date = bytes.len() == 10;
    if !has_date || !(is_date || has_seconds) || text.contains(['[', ',']) {
        return None;
    }
    let shortened = without_tiny_digits(text);
    let pieces = Pieces::parse(&shortened).ok()?;
    let days = EPOCH.until(pieces.date()).ok()?.get_days();
    let day_s = i64::from(days) * DAY_S;
    if is_date {
        return Timestamp::new(day_s, 0);
    }
    let time = pieces.time()?;
    let hours_s = i64::from(time.hour()) * 3_600;
    let time_s = hours_s + i64::from(time.minute()) * 60 + i64::from(time.second());
    let offset_s = i64::from(pieces.to_numeric_offset()?.seconds());
    let nanos = u32::try_from(time.subsec_nanosecond()).ok()?;
    Timestamp::new(day_s + time_s - offset_s, nanos)
}

/// The text with at most nine digits behind the point: more are less than a nanosecond.
fn without_tiny_digits(text: &str) -> String {
    let Some((whole, rest)) = text.split_once('.') else {
        return text.to_owned();
    };
    let zone = rest.trim_start_matches(|c: char| c.is_ascii_digit());
    let digits = &rest[..rest.len() - zone.len()];
    format!("{whole}.{}{zone}", &digits[..digits.len().min(9)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_day_is_the_next_one_after_the_day_before() {
        let is_leap = |year: i16| year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        let (mut year, mut month, mut day) = (1970, 1, 1);
        for number in 0..=Timestamp::SECONDS_MAX / DAY_S {
            let at = Timestamp::new(number * DAY_S, 0).unwrap();
            let date = Date::of(at).0;
            assert_eq!((date.year(), date.month(), date.day()), (year, month, day));
            let last = match month {
                2 if is_leap(year) => 29,
                2 => 28,
                4 | 6 | 9 | 11 => 30,
                _ => 31,
            };
            day += 1;
            if day > last {
                assert_eq!(parse_rfc3339(&Date::of(at).to_string()), Some(at));
                (month, day) = (month + 1, 1);
            }
            if month > 12 {
                (year, month) = (year + 1, 1);
            }
        }
        assert_eq!((year, month, day), (10_000, 1, 1));
    }

    #[test]
    fn a_day_has_a_date_and_a_name() {
        let date = Date::of(Timestamp::new(1_795_341_723, 0).unwrap());
        assert_eq!(
            (date.to_string(), date.weekday().to_string()),
            ("2026-11-22".to_owned(), "Sunday".to_owned())
        );
        let first = Date::of(Timestamp::default());
        assert_eq!(first.weekday().to_string(), "Thursday");
    }

    #[test]
    fn times_are_read_as_rfc_3339_writes_them() {
        let seconds = 1_795_341_723;
        for (text, seconds, nanos) in [
            ("2026-11-22T10:02:03Z", seconds, 0),
            ("2026-11-22t10:02:03.5z", seconds, 500_000_000),
            ("2026-11-22 11:02:03.0000000019+01:00", seconds, 1),
            ("2026-11-22T04:32:03-05:30", seconds, 0),
            ("2026-11-22", 1_795_305_600, 0),
            ("2016-12-31T23:59:60Z", 1_483_228_799, 0),
            ("9999-12-31T23:59:59Z", Timestamp::SECONDS_MAX, 0),
        ] {
            assert_eq!(
                parse_rfc3339(text),
                Timestamp::new(seconds, nanos),
                "{text}"
            );
        }
        for bad in [
            "",
            "today",
            "2026-11-22T",
            "2026-11-22T10:02",
            "2026-11-22T10:02Z",
            "20261122T100203Z",
            "2026-11-22T10:02:03Z[UTC]",
            "2026-11-22T10:02:03",
            "2026-11-22T10:02:03.Z",
            "2026-02-30",
            "2026-13-01",
            "2026-00-01",
            "2026-01-00",
            "1969-12-31",
            "2026-11-22T24:00:00Z",
            "2026-11-22T10:02:03+1:00",
            "+026-11-22",
            "2026-11-22T10:02:03Z ",
            "2026-11-2\u{e9}T10:02:03Z",
            "1970-01-01T00:00:00+00:01",
            "2026-11-22T10:02:03+00:0\u{e9}",
        ] {
            assert_eq!(parse_rfc3339(bad), None, "{bad:?}");
        }
    }
}
