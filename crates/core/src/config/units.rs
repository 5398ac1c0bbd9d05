//! Durations, sizes and percentages in text form.

use std::marker::PhantomData;
use std::time::Duration;

use bytesize::ByteSize;
use serde::de::{Error, Unexpected};
use serde::{Deserialize, Deserializer, Serializer};

const DURATION: &str = "a duration such as 90s or 24h";
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Text form of values of type `T`.
pub trait Unit<T> {
    /// The expected form, for error messages.
    const EXPECTED: &'static str;

    /// Parses a value. `None` if the text is invalid.
    fn parse(text: &str) -> Option<T>;

    /// Formats a value so that [`Unit::parse`] returns it again.
    fn format(value: &T) -> String;
}

/// For `#[serde(with = "AsText::<Span>")]`: the field is text in this unit.
pub struct AsText<U>(PhantomData<U>);

/// For `#[serde(with = "AsOptionalText::<Span>")]`: like [`AsText`], but the field is optional.
pub struct AsOptionalText<U>(PhantomData<U>);

/// A [`Duration`] such as `24h` or `1m 30s`.
pub struct Span;

/// A duration stored in milliseconds.
pub struct Millis;

/// A duration stored in days. As a whole number of days it is rounded up.
pub struct Days;

/// `auto` (`None`), or a duration or a number of bytes.
pub struct Auto;

/// `off` (`None`), or a duration.
pub struct Off;

/// `never` (`None`), or a duration.
pub struct Never;

/// A number of bytes such as `1MiB` or `4096`.
pub struct Size;

/// A percentage such as `50%`.
pub struct Percent;

impl<U> AsText<U> {
    /// # Errors
    /// Those of the serializer.
    pub fn serialize<T, S>(value: &T, serializer: S) -> Result<S::Ok, S::Error>
    where
        U: Unit<T>,
        S: Serializer,
    {
        serializer.serialize_str(&U::format(value))
    }

    /// # Errors
    /// If the text is not in this unit.
    pub fn deserialize<'de, T, D>(deserializer: D) -> Result<T, D::Error>
    where
        U: Unit<T>,
        D: Deserializer<'de>,
    {
        parse::<U, T, _>(&String::deserialize(deserializer)?)
    }
}

impl<U> AsOptionalText<U> {
    /// # Errors
    /// Those of the serializer.
    pub fn serialize<T, S>(value: &Option<T>, serializer: S) -> Result<S::Ok, S::Error>
    where
        U: Unit<T>,
        S: Serializer,
    {
        match value {
            Some(value) => serializer.serialize_some(&U::format(value)),
            None => serializer.serialize_none(),
        }
    }

    /// # Errors
    /// If the text is not in this unit.
    pub fn deserialize<'de, T, D>(deserializer: D) -> Result<Option<T>, D::Error>
    where
        U: Unit<T>,
        D: Deserializer<'de>,
    {
        let text = Option::<String>::deserialize(deserializer)?;
        text.map(|text| parse::<U, T, _>(&text)).transpose()
    }
}

fn parse<U: Unit<T>, T, E: Error>(text: &str) -> Result<T, E> {
    U::parse(text).ok_or_else(|| E::invalid_value(Unexpected::Str(text), &U::EXPECTED))
}

impl Unit<Duration> for Span {
    const EXPECTED: &'static str = DURATION;

    fn parse(text: &str) -> Option<Duration> {
        humantime::parse_duration(text).ok()
    }

    fn format(duration: &Duration) -> String {
        let hours = duration.as_secs() / 3_600;
        let is_whole_hours = *duration == Duration::from_secs(hours * 3_600);
        match hours {
            // One day is shown in hours, the usual form of a session TTL.
            24..168 if is_whole_hours => format!("{hours}h"),
            // Longer durations are shown in days, because months and years vary in length.
            168.. if is_whole_hours && hours.is_multiple_of(24) => format!("{}d", hours / 24),
            _ => humantime::format_duration(*duration)
                .to_string()
                .replace("days", "d"),
        }
    }
}

impl Unit<u64> for Millis {
    const EXPECTED: &'static str = DURATION;

    fn parse(text: &str) -> Option<u64> {
        let duration = Span::parse(text)?;
        Some(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
    }

    fn format(ms: &u64) -> String {
        Span::format(&Duration::from_millis(*ms))
    }
}

impl Unit<u64> for Days {
    const EXPECTED: &'static str = DURATION;

    fn parse(text: &str) -> Option<u64> {
        let duration = Span::parse(text)?;
        Some(duration.as_secs().div_ceil(DAY.as_secs()))
    }

    fn format(days: &u64) -> String {
        Span::format(&Duration::from_secs(days.saturating_mul(DAY.as_secs())))
    }
}

impl Unit<f64> for Days {
    const EXPECTED: &'static str = DURATION;

    fn parse(text: &str) -> Option<f64> {
        Some(Span::parse(text)?.div_duration_f64(DAY))
    }

    fn format(days: &f64) -> String {
        let duration = Duration::try_from_secs_f64(days * DAY.as_secs_f64());
        Span::format(&duration.unwrap_or(Duration::MAX))
    }
}

/// A unit in which a word means `None`.
trait Word {
    const WORD: &'static str;
}

impl Word for Auto {
    const WORD: &'static str = "auto";
}

impl Word for Off {
    const WORD: &'static str = "off";
}

impl Word for Never {
    const WORD: &'static str = "never";
}

impl<W: Word> Unit<Option<Duration>> for W {
    const EXPECTED: &'static str = DURATION;

    fn parse(text: &str) -> Option<Option<Duration>> {
        if text == W::WORD {
            return Some(None);
        }
        Span::parse(text).map(Some)
    }

    fn format(duration: &Option<Duration>) -> String {
        duration.as_ref().map_or(W::WORD.to_owned(), Span::format)
    }
}

impl Unit<Option<usize>> for Auto {
    const EXPECTED: &'static str = "auto, or a size such as 512MiB";

    fn parse(text: &str) -> Option<Option<usize>> {
        if text == Self::WORD {
            Some(None)
        } else {
            Size::parse(text).map(Some)
        }
    }

    fn format(bytes: &Option<usize>) -> String {
        bytes.as_ref().map_or(Self::WORD.to_owned(), Size::format)
    }
}

impl Unit<usize> for Size {
    const EXPECTED: &'static str = "a size such as 512KiB or 4MiB";

    fn parse(text: &str) -> Option<usize> {
        let size: ByteSize = text.parse().ok()?;
        usize::try_from(size.0).ok()
    }

    /// Uses the largest unit that divides the size.
    fn format(bytes: &usize) -> String {
        for (shift, unit) in [(30, "GiB"), (20, "MiB"), (10, "KiB")] {
            if *bytes > 0 && bytes.trailing_zeros() >= shift {
                return format!("{}{unit}", bytes >> shift);
            }
        }
        bytes.to_string()
    }
}

impl Unit<u8> for Percent {
    const EXPECTED: &'static str = "a share such as 50%";

    fn parse(text: &str) -> Option<u8> {
        text.strip_suffix('%')?.trim_end().parse().ok()
    }

    fn format(percent: &u8) -> String {
        format!("{percent}%")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formatted_units_parse_to_same_value() {
        for text in ["1ms", "90s", "24h", "36h", "30d", "10000d", "2m", "1h 30m"] {
            let duration = Span::parse(text).expect(text);
            let written = Span::format(&duration);
            assert_eq!(Span::parse(&written), Some(duration), "{text}: {written}");
            let days = <Days as Unit<f64>>::parse(text).expect(text);
            let written = <Days as Unit<f64>>::format(&days);
            assert_eq!(<Days as Unit<f64>>::parse(&written), Some(days), "{text}");
        }
        for bytes in [0, 1, 1_000, 1_024, 512 << 10, 1 << 20, 3 << 30] {
            assert_eq!(Size::parse(&Size::format(&bytes)), Some(bytes));
        }
    }

    #[test]
    fn durations_format_in_readable_units() {
        for (seconds, text) in [
            (10, "10s"),
            (24 * 3_600, "24h"),
            (30 * 24 * 3_600, "30d"),
            (300, "5m"),
        ] {
            assert_eq!(Span::format(&Duration::from_secs(seconds)), text);
        }
    }

    #[test]
    fn auto_and_off_parse_to_none() {
        assert_eq!(Auto::parse("auto"), Some(None::<Duration>));
        assert_eq!(Auto::parse("auto"), Some(None::<usize>));
        assert_eq!(Auto::parse("1KiB"), Some(Some(1_024)));
        assert_eq!(Off::parse("off"), Some(None));
        assert_eq!(Off::parse("never"), None);
        assert_eq!(Off::parse("1s"), Some(Some(Duration::from_secs(1))));
        assert_eq!(Off::format(&None), "off");
    }

    #[test]
    fn partial_days_round_up() {
        for (text, days) in [("0s", 0_u64), ("1s", 1), ("24h", 1), ("36h", 2), ("7d", 7)] {
            assert_eq!(<Days as Unit<u64>>::parse(text), Some(days), "{text}");
        }
    }
}
