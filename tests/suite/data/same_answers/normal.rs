//! Replaces what must differ between two runs: generated ids, current times and opaque tokens.
//!
//! An id becomes its number in the order of first appearance, so that replies must still name the
//! same things. A current time becomes its distance from the start in hours, so that
//! lifetimes are still compared. All other values stay.

use std::collections::HashMap;
use std::time::Duration;

use serde_json::{Map, Value};

use crate::harness::wall_ms;

/// Fields with opaque text.
const OPAQUE: [&str; 5] = [
    "next_page_token",
    "page_token",
    "cursor",
    "lease",
    "event_id",
];

/// Fields with measurements of the process or of files.
const MEASURED: [&str; 6] = [
    "cpu_seconds",
    "rss_bytes",
    "commits",
    "commit_sets",
    "file_bytes",
    "bytes",
];

/// A session with arrival times in its turns, so that its sizes vary.
const ARRIVAL: &str = "arrival";
const SIZES: [&str; 2] = ["history_bytes", "history_tokens"];

const ULID_LETTERS: usize = 26;
const NONCE_DIGITS: usize = 9;
const HOUR_MS: i64 = 3_600_000;
/// Times further from the start than this were chosen by the script.
const NEAR_MS: i64 = 100 * 24 * 3_600_000;

/// The ids that appeared in one run.
#[derive(Debug)]
pub(super) struct Normal {
    start_ms: i64,
    ids: HashMap<String, usize>,
}

impl Normal {
    pub(super) fn new() -> Self {
        Self {
            start_ms: wall_ms(),
            ids: HashMap::new(),
        }
    }

    /// Normalizes a reply in place.
    pub(super) fn apply(&mut self, value: &mut Value) {
        match value {
            Value::String(text) => *text = self.text(text),
            Value::Array(items) => items.iter_mut().for_each(|item| self.apply(item)),
            Value::Object(fields) => {
                // Before the memory's times are replaced.
                if let Some(now) = now_of_age(fields) {
                    fields["age"] = Value::String(self.distance(now));
                }
                let is_arrival = fields.get("session_id").is_some_and(|id| id == ARRIVAL);
                for (name, inner) in fields {
                    let is_set = inner.as_str().is_some_and(|text| !text.is_empty());
                    if is_arrival && SIZES.contains(&&**name) {
                        *inner = Value::String("<about the same>".to_owned());
                    } else if OPAQUE.contains(&&**name) {
                        *inner = Value::String(if is_set { "<set>" } else { "" }.to_owned());
                    } else if MEASURED.contains(&&**name) && !inner.is_string() {
                        *inner = Value::String("<measured>".to_owned());
                    } else {
                        self.apply(inner);
                    }
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    /// Replaces ids, nonces and times in a text.
    pub(super) fn text(&mut self, text: &str) -> String {
        let mut normal = String::new();
        let mut rest = text;
        while let Some(first) = rest.chars().next() {
            let word_end = rest.find(|c: char| !c.is_ascii_alphanumeric());
            let word = &rest[..word_end.unwrap_or(rest.len())];
            if let Some(length) = time_length(rest) {
                normal += &self.time(&rest[..length]);
                rest = &rest[length..];
            } else if is_ulid(word) || is_nonce(word) {
                let next = self.ids.len() + 1;
                let number = *self.ids.entry(word.to_owned()).or_insert(next);
                normal += &format!("<id {number}>");
                rest = &rest[word.len()..];
            } else if word.is_empty() {
                normal.push(first);
                rest = &rest[first.len_utf8()..];
            } else {
                normal += word;
                rest = &rest[word.len()..];
            }
        }
        normal
    }

    fn time(&self, text: &str) -> String {
        let unix_ms = unix_ms(text);
        if (unix_ms - self.start_ms).abs() > NEAR_MS {
            text.to_owned()
        } else {
            self.distance(unix_ms)
        }
    }

    /// Distance of a time from the start, in hours.
    fn distance(&self, unix_ms: i64) -> String {
        let distance = unix_ms - self.start_ms;
        let hours = (distance + HOUR_MS / 2).div_euclid(HOUR_MS);
        format!("<start + {hours} h>")
    }
}

/// Time of a recall in Unix milliseconds, computed from the age of a recalled memory.
fn now_of_age(hit: &Map<String, Value>) -> Option<i64> {
    let observed_at = hit.get("memory")?.get("observed_at")?.as_str()?;
    let age: f64 = hit.get("age")?.as_str()?.strip_suffix('s')?.parse().ok()?;
    let age = Duration::from_secs_f64(age);
    Some(unix_ms(observed_at) + i64::try_from(age.as_millis()).ok()?)
}

fn is_ulid(word: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_digit() || byte.is_ascii_uppercase();
    word.len() == ULID_LETTERS && word.starts_with('0') && word.bytes().all(is_letter)
}

fn is_nonce(word: &str) -> bool {
    word.len() == NONCE_DIGITS && word.bytes().all(|byte| byte.is_ascii_digit())
}

/// The length of a time such as `2026-01-31T12:00:00.5Z` at the start of a text.
fn time_length(text: &str) -> Option<usize> {
    const SHAPE: &[u8] = b"dddd-dd-ddTdd:dd:dd";
    let bytes = text.as_bytes();
    let fits = |(byte, shape): (&u8, &u8)| match shape {
        b'd' => byte.is_ascii_digit(),
        _ => byte == shape,
    };
    if bytes.len() < SHAPE.len() || !bytes.iter().zip(SHAPE).all(fits) {
        return None;
    }
    let end = text[SHAPE.len()..].find('Z')?;
    let fraction = &bytes[SHAPE.len()..SHAPE.len() + end];
    let is_fraction = fraction
        .iter()
        .all(|byte| byte.is_ascii_digit() || *byte == b'.');
    is_fraction.then_some(SHAPE.len() + end + 1)
}

/// Milliseconds since 1970 of a time with the shape of [`time_length`].
fn unix_ms(time: &str) -> i64 {
    let time: prost_types::Timestamp = time.parse().expect("a time");
    time.seconds * 1_000 + i64::from(time.nanos) / 1_000_000
}
