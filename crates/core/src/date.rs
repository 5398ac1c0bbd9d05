//! Days as people and models read them, always in UTC: what a wall-clock time is as a date,
//! and what a date says as a wall-clock time.

use std::fmt;

use crate::time::Timestamp;

/// Seconds of a day; days of UTC have no other length here.
const DAY_S: i64 = 86_400;

/// A day of the Gregorian calendar, in UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Date {
    /// From 1970 to 9999.
    pub year: i64,
    /// From 1 to 12.
    pub month: u8,
    /// From 1 to 31.
    pub day: u8,
}

impl Date {
    /// The day of a moment.
    pub fn of(at: Timestamp) -> Self {
        civil_from_days(day_number(at))
    }

    /// Its name in English.
    pub fn weekday(self) -> &'static str {
        // The first of January 1970 was a Thursday.
        const NAMES: [&str; 7] = [
            "Thursday",
            "Friday",
            "Saturday",
            "Sunday",
            "Monday",
            "Tuesday",
            "Wednesday",
        ];
        let day = days_from_civil(self.year, self.month, self.day).rem_euclid(7);
        NAMES[usize::try_from(day).unwrap_or(0)]
    }
}

impl fmt::Display for Date {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04}-{:02}-{:02}", self.year, self.month, self.day)
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
    let (date, rest) = text.split_at_checked(10)?;
    let day = parse_date(date)?;
    if rest.is_empty() {
        return Timestamp::new(day * DAY_S, 0);
    }
    let rest = rest.strip_prefix(['T', 't', ' '])?;
    let (time, rest) = rest.split_at_checked(8)?;
    let [hour, minute, second] = numbers(time, ':', [2, 2, 2])?;
    if hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let (nanos, zone) = fraction(rest)?;
    let local = day * DAY_S + hour * 3_600 + minute * 60 + second.min(59);
    Timestamp::new(local - offset_s(zone)?, nanos)
}

fn parse_date(text: &str) -> Option<i64> {
    let [year, month, day] = numbers(text, '-', [4, 2, 2])?;
    let (month, day) = (u8::try_from(month).ok()?, u8::try_from(day).ok()?);
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    // The thirtieth of February is a day of March, and so it is none.
    let number = days_from_civil(year, month, day);
    (civil_from_days(number) == Date { year, month, day }).then_some(number)
}

/// Three numbers of so many digits each.
fn numbers(text: &str, separator: char, digits: [usize; 3]) -> Option<[i64; 3]> {
    let mut parts = text.split(separator);
    let mut numbers = [0; 3];
    for (number, digits) in numbers.iter_mut().zip(digits) {
        let part = parts.next().filter(|part| part.len() == digits)?;
        *number = part
            .bytes()
            .all(|byte| byte.is_ascii_digit())
            .then(|| part.parse().ok())??;
    }
    parts.next().is_none().then_some(numbers)
}

/// The nanoseconds that a fraction of a second says, and what comes after it.
fn fraction(text: &str) -> Option<(u32, &str)> {
    let Some(text) = text.strip_prefix('.') else {
        return Some((0, text));
    };
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (digits, rest) = text.split_at(digits);
    let nanos = digits
        .get(..digits.len().min(9))
        .filter(|nanos| !nanos.is_empty())?;
    let nanos: u32 = format!("{nanos:0<9}").parse().ok()?;
    Some((nanos, rest))
}

fn offset_s(zone: &str) -> Option<i64> {
    if matches!(zone, "Z" | "z") {
        return Some(0);
    }
    let sign = if zone.starts_with('-') { -1 } else { 1 };
    let zone = zone.strip_prefix(['+', '-'])?;
    let (hours, minutes) = zone.split_once(':')?;
    let [hours, minutes, _] = numbers(&format!("{hours}:{minutes}:00"), ':', [2, 2, 2])?;
    (hours < 24 && minutes < 60).then_some(sign * (hours * 3_600 + minutes * 60))
}

/// Days from 1970 to a date (H. Hinnant, "chrono-Compatible Low-Level Date Algorithms",
/// `days_from_civil`): years begin in March, so that a leap day is a year's last.
fn days_from_civil(year: i64, month: u8, day: u8) -> i64 {
    let (month, day) = (i64::from(month), i64::from(day));
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

/// The date so many days after 1970 (`civil_from_days` of the same source).
fn civil_from_days(days: i64) -> Date {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_of_year = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_of_year + 2) / 5 + 1;
    let month = if month_of_year < 10 {
        month_of_year + 3
    } else {
        month_of_year - 9
    };
    let year = era * 400 + year_of_era + i64::from(month <= 2);
    let small = |number: i64| u8::try_from(number).unwrap_or(1);
    Date {
        year,
        month: small(month),
        day: small(day),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_day_is_the_next_one_after_the_day_before() {
        let is_leap = |year: i64| year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        let mut expected = Date {
            year: 1970,
            month: 1,
            day: 1,
        };
        for number in 0..=Timestamp::SECONDS_MAX / DAY_S {
            let date = civil_from_days(number);
            assert_eq!(date, expected);
            assert_eq!(days_from_civil(date.year, date.month, date.day), number);
            let last = match date.month {
                2 if is_leap(date.year) => 29,
                2 => 28,
                4 | 6 | 9 | 11 => 30,
                _ => 31,
            };
            expected = match (date.month, date.day == last) {
                (12, true) => Date {
                    year: date.year + 1,
                    month: 1,
                    day: 1,
                },
                (month, true) => Date {
                    month: month + 1,
                    day: 1,
                    ..date
                },
                _ => Date {
                    day: date.day + 1,
                    ..date
                },
            };
        }
        assert_eq!(
            expected,
            Date {
                year: 10_000,
                month: 1,
                day: 1
            }
        );
    }

    #[test]
    fn a_day_has_a_date_and_a_name() {
        let date = Date::of(Timestamp::new(1_795_341_723, 0).unwrap());
        assert_eq!(
            (date.to_string().as_str(), date.weekday()),
            ("2026-11-22", "Sunday")
        );
        assert_eq!(Date::of(Timestamp::default()).weekday(), "Thursday");
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
