//! Dates in UTC, formatted for people and models.

use std::fmt;

use jiff::Span;
use jiff::civil;

use crate::time::Timestamp;

/// Seconds per day. UTC days have no leap seconds here.
const DAY_S: i64 = 86_400;

const EPOCH: civil::Date = civil::date(1970, 1, 1);

/// A day of the Gregorian calendar in UTC, from 1970 to 9999, displayed as `2026-11-22`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Date(civil::Date);

impl Date {
    pub fn from_timestamp(at: Timestamp) -> Self {
        Self(EPOCH.saturating_add(Span::new().days(day_number(at))))
    }

    pub fn weekday(self) -> impl fmt::Display {
        self.0.strftime("%A")
    }
}

impl fmt::Display for Date {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Formats a time to the minute, such as `2026-11-22 09:05 UTC`.
pub fn minute(at: Timestamp) -> String {
    let minutes = at.seconds().rem_euclid(DAY_S) / 60;
    format!(
        "{} {:02}:{:02} UTC",
        Date::from_timestamp(at),
        minutes / 60,
        minutes % 60
    )
}

/// Days from 1 January 1970 to the day of `at`.
pub fn day_number(at: Timestamp) -> i64 {
    at.seconds().div_euclid(DAY_S)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_of_all_days_follow_the_calendar() {
        let is_leap = |year: i16| year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        let (mut year, mut month, mut day) = (1970, 1, 1);
        for number in 0..=Timestamp::SECONDS_MAX / DAY_S {
            let at = Timestamp::new(number * DAY_S, 0).unwrap();
            let date = Date::from_timestamp(at).0;
            assert_eq!((date.year(), date.month(), date.day()), (year, month, day));
            let last = match month {
                2 if is_leap(year) => 29,
                2 => 28,
                4 | 6 | 9 | 11 => 30,
                _ => 31,
            };
            day += 1;
            if day > last {
                let text = format!("{year}-{month:02}-{:02}", day - 1);
                assert_eq!(Date::from_timestamp(at).to_string(), text);
                (month, day) = (month + 1, 1);
            }
            if month > 12 {
                (year, month) = (year + 1, 1);
            }
        }
        assert_eq!((year, month, day), (10_000, 1, 1));
    }

    #[test]
    fn timestamp_has_date_and_weekday() {
        let date = Date::from_timestamp(Timestamp::new(1_795_341_723, 0).unwrap());
        assert_eq!(
            (date.to_string(), date.weekday().to_string()),
            ("2026-11-22".to_owned(), "Sunday".to_owned())
        );
        let first = Date::from_timestamp(Timestamp::default());
        assert_eq!(first.weekday().to_string(), "Thursday");
    }
}
