//! Durations, sizes and shares as people write them.

use std::time::Duration;

use bytesize::ByteSize;
use serde::de::{Error, Unexpected};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A duration such as `24h` or `1m 30s`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span(pub(super) Duration);

/// `auto`, or a duration.
#[derive(Clone, Copy, Debug)]
pub(super) enum AutoSpan {
    /// Derived from something else.
    Auto,
    /// As given.
    Span(Duration),
}

/// `off`, or a duration.
#[derive(Clone, Copy, Debug)]
pub(super) enum OffSpan {
    /// Never.
    Off,
    /// As given.
    Span(Duration),
}

/// A size such as `1MiB`, or a number of bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Size(pub(super) usize);

/// A share such as `50%`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Percent(pub(super) u8);

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        duration(&String::deserialize(deserializer)?).map(Self)
    }
}

impl<'de> Deserialize<'de> for AutoSpan {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match &*String::deserialize(deserializer)? {
            "auto" => Ok(Self::Auto),
            text => duration(text).map(Self::Span),
        }
    }
}

impl<'de> Deserialize<'de> for OffSpan {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match &*String::deserialize(deserializer)? {
            "off" => Ok(Self::Off),
            text => duration(text).map(Self::Span),
        }
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let size: Option<ByteSize> = text.parse().ok();
        size.and_then(|size| usize::try_from(size.0).ok())
            .map(Self)
            .ok_or_else(|| {
                D::Error::invalid_value(Unexpected::Str(&text), &"a size such as 512KiB or 4MiB")
            })
    }
}

impl<'de> Deserialize<'de> for Percent {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let percent = text
            .strip_suffix('%')
            .and_then(|number| number.trim_end().parse().ok());
        percent
            .map(Self)
            .ok_or_else(|| D::Error::invalid_value(Unexpected::Str(&text), &"a share such as 50%"))
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&span(self.0))
    }
}

impl Serialize for AutoSpan {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Auto => serializer.serialize_str("auto"),
            Self::Span(duration) => serializer.serialize_str(&span(*duration)),
        }
    }
}

impl Serialize for OffSpan {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Off => serializer.serialize_str("off"),
            Self::Span(duration) => serializer.serialize_str(&span(*duration)),
        }
    }
}

impl Serialize for Size {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&size(self.0))
    }
}

impl Serialize for Percent {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&format!("{}%", self.0))
    }
}

fn duration<E: Error>(text: &str) -> Result<Duration, E> {
    humantime::parse_duration(text)
        .map_err(|_| E::invalid_value(Unexpected::Str(text), &"a duration such as 90s or 24h"))
}

/// A size as [`Size`] reads it, in the largest unit that divides it.
pub(super) fn size(bytes: usize) -> String {
    for (shift, unit) in [(30, "GiB"), (20, "MiB"), (10, "KiB")] {
        if bytes > 0 && bytes.trailing_zeros() >= shift {
            return format!("{}{unit}", bytes >> shift);
        }
    }
    bytes.to_string()
}

/// A duration as [`Span`] reads it.
pub(super) fn span(duration: Duration) -> String {
    let hours = duration.as_secs() / 3_600;
    let is_whole_hours = duration == Duration::from_secs(hours * 3_600);
    match hours {
        // What people call a day of sessions is 24 hours.
        24..168 if is_whole_hours => format!("{hours}h"),
        // Longer ones are said in days: of months and years nobody knows how long they are.
        168.. if is_whole_hours && hours.is_multiple_of(24) => format!("{}d", hours / 24),
        _ => humantime::format_duration(duration)
            .to_string()
            .replace("days", "d"),
    }
}
