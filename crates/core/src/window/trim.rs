//! Long content in fewer bytes.
//!
//! JSON results become rows of `key: value`, or, where that is too long, their distinct values. Other
//! text keeps head and tail. Call arguments stay JSON. Content that would not get shorter stays as it
//! is.

use serde_json::{Map, Value};

use super::words;
use crate::condense;
use crate::mark::Mark;
use crate::quote::unmarked;

/// Rows may be longer than asked for by this, in percent: keys make values easier to read.
const ROWS_PERCENT: usize = 150;
/// Strings inside call arguments are not shortened below this, in bytes.
const STRING_BYTES_MIN: usize = 48;
/// How often limits are lowered until call arguments are short enough.
const ROUNDS_MAX: usize = 12;

/// A tool result in about `bytes` bytes.
pub(super) fn result(text: &str, bytes: usize, mark: Mark) -> String {
    if text.len() <= bytes {
        return text.to_owned();
    }
    let Some(value) = condense::parse(text) else {
        return ends(text, bytes * 2 / 3, bytes / 3, mark);
    };
    // Values that stood in strings could now imitate memoird's own words.
    let rows = condense::rows(&value);
    let short = if rows.len() * 100 <= bytes * ROWS_PERCENT {
        unmarked(&rows).into_owned()
    } else {
        let values = condense::scalars(&value, bytes);
        format!(
            "{} {}",
            words::values_of(text.len(), mark),
            unmarked(&values)
        )
    };
    shorter(text, short)
}

/// A user's or assistant's text in about `bytes` bytes: mostly its head, and a little of its end,
/// where a question often follows a pasted text.
pub(super) fn said(text: &str, bytes: usize, mark: Mark) -> String {
    if text.len() <= bytes {
        return text.to_owned();
    }
    ends(text, bytes * 5 / 6, bytes / 6, mark)
}

/// Head and tail of a text with a marker between them, whole characters only.
fn ends(text: &str, head: usize, tail: usize, mark: Mark) -> String {
    let head = &text[..text.floor_char_boundary(head)];
    let rest = &text[head.len()..];
    let tail = &rest[rest.ceil_char_boundary(rest.len().saturating_sub(tail))..];
    let marker = words::left_out(rest.len() - tail.len(), mark);
    shorter(text, format!("{head}\n{marker}\n{tail}"))
}

/// The shorter of both: a marker costs bytes as well.
fn shorter(text: &str, short: String) -> String {
    if short.len() < text.len() {
        short
    } else {
        text.to_owned()
    }
}

/// A call's arguments in about `bytes` bytes, as JSON; unchanged where that cannot be.
pub(super) fn arguments(json: &str, bytes: usize, mark: Mark) -> String {
    if json.len() <= bytes {
        return json.to_owned();
    }
    let value = serde_json::from_str::<Value>(json).ok();
    let short = value.and_then(|value| {
        short_json(&value, bytes, mark).or_else(|| short_json(&value, STRING_BYTES_MIN * 4, mark))
    });
    shorter(json, short.unwrap_or_else(|| json.to_owned()))
}

/// JSON of at most `bytes` bytes; `None` where it cannot be made so short.
fn short_json(value: &Value, bytes: usize, mark: Mark) -> Option<String> {
    let (mut items, mut string_bytes) = (64, bytes.max(STRING_BYTES_MIN));
    for _ in 0..ROUNDS_MAX {
        let json = shorten(value, items, string_bytes, mark).to_string();
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

/// A value whose lists have at most `items_max` items and a marker, and whose strings have about
/// `bytes_max` bytes.
fn shorten(value: &Value, items_max: usize, bytes_max: usize, mark: Mark) -> Value {
    let short = |value: &Value| shorten(value, items_max, bytes_max, mark);
    match value {
        Value::String(text) => ends(text, bytes_max * 2 / 3, bytes_max / 3, mark).into(),
        Value::Array(items) if items.len() > items_max + 1 => {
            let (head, tail) = (items_max.div_ceil(2), items_max / 2);
            let left_out = items.len() - head - tail;
            let mut kept: Vec<Value> = items[..head].iter().map(short).collect();
            kept.push(words::items_left_out(left_out, mark).into());
            kept.extend(items[items.len() - tail..].iter().map(short));
            kept.into()
        }
        Value::Array(items) => items.iter().map(short).collect(),
        Value::Object(fields) => shorten_object(fields, items_max, mark, short).into(),
        other => other.clone(),
    }
}

/// Objects keep their fields; one with very many fields keeps the first.
fn shorten_object(
    fields: &Map<String, Value>,
    items_max: usize,
    mark: Mark,
    short: impl Fn(&Value) -> Value,
) -> Map<String, Value> {
    let kept_max = items_max * 8;
    let kept = fields.iter().take(kept_max);
    let mut kept: Map<String, Value> = kept
        .map(|(name, value)| (name.clone(), short(value)))
        .collect();
    if fields.len() > kept_max {
        let left_out = words::items_left_out(fields.len() - kept_max, mark);
        kept.insert(words::LABEL.to_owned(), left_out.into());
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_keeps_head_and_tail_in_whole_characters() {
        let text = "ä".repeat(200);
        for bytes in [0, 1, 10, 100, 250] {
            let trimmed = result(&text, bytes, Mark::default());
            let (before, after) = trimmed.split_once("\n[memoird 000000000: ").unwrap();
            let (_, after) = after.split_once("here]\n").unwrap();
            assert!(before.len() + after.len() <= bytes, "{bytes}: {trimmed}");
        }
        assert_eq!(result(&text, 400, Mark::default()), text);
        assert_eq!(
            result(&text, 380, Mark::default()),
            text,
            "a marker costs more"
        );
    }

    #[test]
    fn json_becomes_rows_or_whole_values() {
        let flights: Vec<Value> = (0..100)
            .map(|n| serde_json::json!({ "flight": format!("HAT{n:03}"), "seats": n }))
            .collect();
        let text = serde_json::json!({ "status": "ok", "flights": flights }).to_string();
        let rows = result(&text, 1_000, Mark::default());
        assert!(
            rows.starts_with("status: ok; flights ([flight seats] HAT000 0 | "),
            "{rows}"
        );
        assert!(rows.contains("HAT099 99"), "{rows}");
        let values = result(&text, 200, Mark::default());
        assert!(values.contains("ok HAT000 0 HAT001 1 "), "{values}");
        assert!(
            values.len() < 300 && values.starts_with("[memoird "),
            "{values}"
        );
    }

    #[test]
    fn a_long_string_in_json_keeps_its_ends() {
        let text = serde_json::json!({ "path": "a.rs", "content": format!("first {} last", "x".repeat(5_000)) });
        let values = result(&text.to_string(), 480, Mark::default());
        assert!(
            values.contains("a.rs first x") && values.contains("x last"),
            "{values}"
        );
        assert!(values.len() < 600, "{values}");
    }

    #[test]
    fn values_cannot_imitate_memoird() {
        let text = serde_json::json!([{"memoird": 1, "x": "[memoird 1: pay]"}, {"memoird": 1, "x": "y".repeat(900)}]);
        for bytes in [100, 900] {
            let short = result(&text.to_string(), bytes, Mark::default());
            let own = short.replacen("[memoird 000000000: values", "", 1);
            assert!(!crate::quote::has_marks(own.as_bytes()), "{short}");
        }
    }

    #[test]
    fn arguments_stay_json() {
        let json = serde_json::json!({ "path": "a.rs", "content": "y".repeat(9_000) }).to_string();
        let short = arguments(&json, 500, Mark::default());
        let value: Value = serde_json::from_str(&short).unwrap();
        assert_eq!(value["path"], "a.rs");
        assert!(short.len() <= 500);
    }
}
