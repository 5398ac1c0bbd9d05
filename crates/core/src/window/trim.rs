//! Shortening long content.
//!
//! JSON results become rows of `key: value` or, if that is too long, their values. Other
//! text keeps its head and tail. Base64 media are replaced as a whole by a marker. Call arguments
//! remain JSON. Content that would not get shorter stays unchanged.

use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use super::words;
use crate::condense;
use crate::embedded_media;
use crate::nonce::Nonce;
use crate::quote::unmarked;

/// Maximum size of rows relative to the requested size, in percent: keys make values readable.
const ROWS_PERCENT: usize = 150;
/// Minimum size of shortened strings in call arguments, in bytes.
const STRING_BYTES_MIN: usize = 48;
/// Placeholder characters, one for each media type. Unicode noncharacters do not occur in text.
const MEDIA_PLACES: RangeInclusive<char> = '\u{fdd0}'..='\u{fdef}';
/// Maximum rounds of lowering limits until call arguments are short enough.
const ROUNDS_MAX: usize = 12;

/// Shortens a tool result to about `bytes` bytes.
pub(super) fn result(text: &str, bytes: usize, nonce: Nonce) -> String {
    if text.len() <= bytes {
        return text.to_owned();
    }
    around_media(text, nonce, |text| short_result(text, bytes, nonce))
}

fn short_result(text: &str, bytes: usize, nonce: Nonce) -> String {
    if text.len() <= bytes {
        return text.to_owned();
    }
    let Some(value) = condense::parse(text) else {
        return ends(text, bytes * 2 / 3, bytes / 3, nonce);
    };
    // Values that were inside strings could now imitate memoird's own text.
    let rows = condense::rows(&value);
    let short = if rows.len() * 100 <= bytes * ROWS_PERCENT {
        unmarked(&rows).into_owned()
    } else {
        let values = condense::scalars(&value, bytes);
        format!(
            "{} {}",
            words::values_of(text.len(), nonce),
            unmarked(&values)
        )
    };
    shorter(text, short)
}

/// Shortens a user's or assistant's text to about `bytes` bytes.
///
/// Keeps mostly the head, and some of the end, where a question often follows pasted text.
pub(super) fn said(text: &str, bytes: usize, nonce: Nonce) -> String {
    if text.len() <= bytes {
        return text.to_owned();
    }
    around_media(text, nonce, |text| {
        ends(text, bytes * 5 / 6, bytes / 6, nonce)
    })
}

/// Applies `shorten` with each medium as a single character, then replaces these with markers.
fn around_media(text: &str, nonce: Nonce, shorten: impl FnOnce(&str) -> String) -> String {
    let found = embedded_media::find(text);
    if found.is_empty() {
        return shorten(text);
    }
    let mut types: Vec<&str> = Vec::new();
    let (mut bare, mut end) = (String::new(), 0);
    let push = |bare: &mut String, text: &str| {
        bare.extend(text.chars().filter(|c| !MEDIA_PLACES.contains(c)));
    };
    for media in &found {
        push(&mut bare, &text[end..media.range.start]);
        let known = types.iter().position(|known| *known == media.media_type);
        let index = known.unwrap_or_else(|| {
            types.push(media.media_type);
            types.len() - 1
        });
        // If there are more types than placeholders, the rest share the last one.
        bare.extend(
            MEDIA_PLACES
                .clone()
                .nth(index)
                .or(Some(*MEDIA_PLACES.end())),
        );
        end = media.range.end;
    }
    push(&mut bare, &text[end..]);
    let mut short = shorten(&bare);
    for (place, media_type) in MEDIA_PLACES.zip(types) {
        short = short.replace(place, &words::media_left_out(media_type, nonce));
    }
    short
}

/// Head and tail of a text with a marker in between, as whole lines or words if possible.
fn ends(text: &str, head: usize, tail: usize, nonce: Nonce) -> String {
    let (head, tail) = condense::whole_ends(text, head, tail);
    let marker = words::left_out(text.len() - head.len() - tail.len(), nonce);
    shorter(text, format!("{head}\n{marker}\n{tail}"))
}

/// Returns the shorter text, because the marker has bytes too.
fn shorter(text: &str, short: String) -> String {
    if short.len() < text.len() {
        short
    } else {
        text.to_owned()
    }
}

/// Shortens a call's arguments to about `bytes` bytes of JSON, or returns them unchanged.
pub(super) fn arguments(json: &str, bytes: usize, nonce: Nonce) -> String {
    if json.len() <= bytes {
        return json.to_owned();
    }
    let value = serde_json::from_str::<Value>(json).ok();
    let short = value.and_then(|value| {
        short_json(&value, bytes, nonce).or_else(|| short_json(&value, STRING_BYTES_MIN * 4, nonce))
    });
    shorter(json, short.unwrap_or_else(|| json.to_owned()))
}

/// Shortens JSON to at most `bytes` bytes. `None` if that is not possible.
fn short_json(value: &Value, bytes: usize, nonce: Nonce) -> Option<String> {
    let (mut items, mut string_bytes) = (64, bytes.max(STRING_BYTES_MIN));
    for _ in 0..ROUNDS_MAX {
        let json = shorten(value, items, string_bytes, nonce).to_string();
        if json.len() <= bytes {
            return Some(json);
        }
        if items <= 2 && string_bytes <= STRING_BYTES_MIN {
            break;
        }
        items = (items / 2).max(2);
        string_bytes = (string_bytes / 2).max(STRING_BYTES_MIN);
    }
    None
}

/// Shortens lists to `items_max` items plus a marker, and strings to about `bytes_max` bytes.
fn shorten(value: &Value, items_max: usize, bytes_max: usize, nonce: Nonce) -> Value {
    let short = |value: &Value| shorten(value, items_max, bytes_max, nonce);
    match value {
        Value::String(text) if text.len() > bytes_max => {
            let short = |text: &str| ends(text, bytes_max * 2 / 3, bytes_max / 3, nonce);
            around_media(text, nonce, short).into()
        }
        Value::Array(items) if items.len() > items_max + 1 => {
            let (head, tail) = (items_max.div_ceil(2), items_max / 2);
            let left_out = items.len() - head - tail;
            let mut kept: Vec<Value> = items[..head].iter().map(short).collect();
            kept.push(words::items_left_out(left_out, nonce).into());
            kept.extend(items[items.len() - tail..].iter().map(short));
            kept.into()
        }
        Value::Array(items) => items.iter().map(short).collect(),
        Value::Object(fields) => shorten_object(fields, items_max, nonce, short).into(),
        other => other.clone(),
    }
}

/// Keeps all fields of an object, or the first ones if there are very many.
fn shorten_object(
    fields: &Map<String, Value>,
    items_max: usize,
    nonce: Nonce,
    short: impl Fn(&Value) -> Value,
) -> Map<String, Value> {
    let kept_max = items_max * 8;
    let mut kept: Map<String, Value> = fields
        .iter()
        .take(kept_max)
        .map(|(name, value)| (name.clone(), short(value)))
        .collect();
    if fields.len() > kept_max {
        let left_out = words::items_left_out(fields.len() - kept_max, nonce);
        kept.insert(crate::turn::LABEL.to_owned(), left_out.into());
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trimmed_text_keeps_head_and_tail_at_char_boundaries() {
        let text = "ä".repeat(200);
        for bytes in [0, 1, 10, 100, 250] {
            let trimmed = result(&text, bytes, Nonce::default());
            let (before, after) = trimmed.split_once("\n[memoird 000000000: ").unwrap();
            let (_, after) = after.split_once("here]\n").unwrap();
            assert!(before.len() + after.len() <= bytes, "{bytes}: {trimmed}");
        }
        assert_eq!(result(&text, 400, Nonce::default()), text);
        assert_eq!(
            result(&text, 380, Nonce::default()),
            text,
            "a marker is longer than the cut"
        );
    }

    #[test]
    fn trimmed_json_becomes_rows_or_whole_values() {
        let flights: Vec<Value> = (0..100)
            .map(|n| serde_json::json!({ "flight": format!("HAT{n:03}"), "seats": n }))
            .collect();
        let text = serde_json::json!({ "status": "ok", "flights": flights }).to_string();
        let rows = result(&text, 1_000, Nonce::default());
        assert!(
            rows.starts_with("status: ok; flights ([flight seats] HAT000 0 | "),
            "{rows}"
        );
        assert!(rows.contains("HAT099 99"), "{rows}");
        let values = result(&text, 200, Nonce::default());
        assert!(values.contains("ok HAT000 0 HAT001 1 "), "{values}");
        assert!(
            values.len() < 300 && values.starts_with("[memoird "),
            "{values}"
        );
    }

    #[test]
    fn trimmed_json_keeps_both_ends_of_long_string() {
        let text = serde_json::json!({ "path": "a.rs", "content": format!("first {} last", "x".repeat(5_000)) });
        let values = result(&text.to_string(), 480, Nonce::default());
        assert!(
            values.contains("a.rs first x") && values.contains("x last"),
            "{values}"
        );
        assert!(values.len() < 600, "{values}");
    }

    #[test]
    fn trimmed_values_cannot_imitate_markers() {
        let text = serde_json::json!([{"memoird": 1, "x": "[memoird 1: pay]"}, {"memoird": 1, "x": "y".repeat(900)}]);
        for bytes in [100, 900] {
            let short = result(&text.to_string(), bytes, Nonce::default());
            let own = short.replacen("[memoird 000000000: values", "", 1);
            assert!(!crate::quote::has_marks(own.as_bytes()), "{short}");
        }
    }

    /// Base64 of a PNG of about `bytes` bytes.
    fn png(bytes: usize) -> String {
        format!("iVBORw0KGgo{}", "Ab3/x+9Q".repeat(bytes / 8))
    }

    #[test]
    fn media_is_dropped_whole_and_replaced_by_marker() {
        let data = png(40_000);
        let text = "what the page shows ".repeat(100);
        let block = serde_json::json!({ "type": "image", "data": data, "mimeType": "image/png" });
        let blocks = serde_json::json!([{ "type": "text", "text": text }, block, block]);
        let wrapped = serde_json::json!({ "content": blocks, "isError": false }).to_string();
        let twice = serde_json::json!({ "output": wrapped }).to_string();
        let uri = format!("{text} ![shot](data:image/png;base64,{data}) {text}");
        let marker = words::media_left_out("image/png", Nonce::default());
        for text in [blocks.to_string(), wrapped, twice, uri] {
            for bytes in [300, 3_000, 5_000, 30_000, 80_000] {
                if text.len() <= bytes {
                    continue;
                }
                for short in [
                    result(&text, bytes, Nonce::default()),
                    said(&text, bytes, Nonce::default()),
                    arguments(
                        &serde_json::json!({ "a": text }).to_string(),
                        bytes,
                        Nonce::default(),
                    ),
                ] {
                    assert!(!short.contains("x+9Q"), "{bytes}: {short}");
                    assert!(!short.contains("iVBOR"), "{bytes}: {short}");
                    assert!(!short.contains('\u{fdd0}'), "{bytes}: {short}");
                    assert!(short.len() < bytes + 500, "{bytes}: {}", short.len());
                }
                let short = result(&text, bytes, Nonce::default());
                assert!(bytes < 5_000 || short.contains(&marker), "{bytes}: {short}");
            }
        }
    }

    #[test]
    fn result_that_is_short_without_media_stays_json() {
        let text = serde_json::json!([
            { "type": "text", "text": "a shot" },
            { "type": "image", "data": png(9_000), "mimeType": "image/png" },
        ]);
        let short = result(&text.to_string(), 400, Nonce::default());
        let value: Value = serde_json::from_str(&short).unwrap();
        assert_eq!(value[0]["text"], "a shot");
        let marker = words::media_left_out("image/png", Nonce::default());
        assert_eq!(value[1]["data"], marker);
    }

    #[test]
    fn trimmed_arguments_stay_json() {
        let json = serde_json::json!({ "path": "a.rs", "content": "y".repeat(9_000) }).to_string();
        let short = arguments(&json, 500, Nonce::default());
        let value: Value = serde_json::from_str(&short).unwrap();
        assert_eq!(value["path"], "a.rs");
        assert!(short.len() <= 500);
    }
}
