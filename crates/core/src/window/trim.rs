//! Long text, shown as its head and tail: whole characters, and JSON where it was JSON.

use serde_json::{Map, Value};

use super::words;
use crate::mark::Mark;

/// Strings inside JSON are not shortened below this.
const STRING_BYTES_MIN: usize = 48;
/// How often the limits are lowered until JSON is small enough.
const ROUNDS_MAX: usize = 12;

/// A text of more than `head + tail` bytes with only these; a shorter one as it is. What was
/// JSON is JSON, at about the same size: long strings and lists in it are shortened.
pub(super) fn trim(text: &str, head: usize, tail: usize, mark: Mark) -> String {
    if text.len() <= head + tail {
        return text.to_owned();
    }
    let is_json = text.trim_start().starts_with(['{', '[']);
    let json = is_json
        .then(|| serde_json::from_str::<Value>(text).ok())
        .flatten();
    match json.and_then(|value| trim_json(&value, head + tail, mark)) {
        Some(json) => json,
        None => trim_text(text, head, tail, "\n", mark),
    }
}

/// A call's arguments at about this size, as JSON; as they are where that cannot be.
pub(super) fn trim_arguments(json: &str, size: usize, mark: Mark) -> String {
    let value = (json.len() > size).then(|| serde_json::from_str::<Value>(json).ok());
    let short = value.flatten().and_then(|value| {
        trim_json(&value, size, mark).or_else(|| trim_json(&value, STRING_BYTES_MIN * 4, mark))
    });
    short.unwrap_or_else(|| json.to_owned())
}

/// Head and tail of plain text with a line between them, whole characters only.
fn trim_text(text: &str, head: usize, tail: usize, around: &str, mark: Mark) -> String {
    let head = &text[..text.floor_char_boundary(head)];
    let rest = &text[head.len()..];
    let tail = &rest[rest.ceil_char_boundary(rest.len().saturating_sub(tail))..];
    let left_out = rest.len() - tail.len();
    match left_out {
        0 => text.to_owned(),
        _ => format!(
            "{head}{around}{}{around}{tail}",
            words::left_out(left_out, mark)
        ),
    }
}

/// JSON of at most about `size` bytes; `None` when it cannot be made so small.
fn trim_json(value: &Value, size: usize, mark: Mark) -> Option<String> {
    let (mut items, mut bytes) = (64, size.max(STRING_BYTES_MIN));
    for _ in 0..ROUNDS_MAX {
        let json = shorten(value, items, bytes, mark).to_string();
        if json.len() <= size {
            return Some(json);
        }
        if items <= 2 && bytes <= STRING_BYTES_MIN {
            break;
        }
        (items, bytes) = ((items / 2).max(2), (bytes / 2).max(STRING_BYTES_MIN));
    }
    None
}

/// A value whose lists have at most so many items (and a line), and whose strings at most
/// about so many bytes.
fn shorten(value: &Value, items_max: usize, bytes_max: usize, mark: Mark) -> Value {
    let short = |value: &Value| shorten(value, items_max, bytes_max, mark);
    match value {
        Value::String(text) if text.len() > bytes_max => {
            trim_text(text, bytes_max * 2 / 3, bytes_max / 3, " ", mark).into()
        }
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

/// Objects keep their fields; one with very many of them keeps the first.
fn shorten_object(
    fields: &Map<String, Value>,
    items_max: usize,
    mark: Mark,
    short: impl Fn(&Value) -> Value,
) -> Map<String, Value> {
    let kept_max = items_max * 8;
    let kept = fields.iter().take(kept_max);
    let kept = kept.map(|(name, value)| (name.clone(), short(value)));
    let mut kept: Map<String, Value> = kept.collect();
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
        let text = "ä".repeat(100);
        for (head, tail) in [(0, 0), (1, 1), (3, 5), (10, 0), (199, 0), (100, 99)] {
            let trimmed = trim(&text, head, tail, Mark::default());
            let (before, after) = trimmed.split_once("\n[memoird 000000000: ").unwrap();
            let (_, after) = after.split_once("here]\n").unwrap();
            assert!(
                before.len() <= head && after.len() <= tail,
                "{head} {tail}: {trimmed}"
            );
            assert_eq!(before.len() + after.len(), head / 2 * 2 + tail / 2 * 2);
        }
        assert_eq!(trim(&text, 100, 100, Mark::default()), text);
    }

    #[test]
    fn json_stays_json_and_says_what_is_left_out() {
        let flights: Vec<Value> = (0..100)
            .map(|n| serde_json::json!({ "flight": format!("HAT{n:03}"), "seats": [n, 2], "note": "x".repeat(300) }))
            .collect();
        let text = serde_json::json!({ "status": "ok", "flights": flights }).to_string();
        let trimmed = trim(&text, 1_000, 500, Mark::default());
        assert!(trimmed.len() <= 1_500, "{}", trimmed.len());
        let value: Value = serde_json::from_str(&trimmed).unwrap();
        assert_eq!(value["status"], "ok");
        assert!(
            trimmed.contains("HAT000") && trimmed.contains("HAT099"),
            "{trimmed}"
        );
        assert!(trimmed.contains("items are left out here]"), "{trimmed}");
    }

    #[test]
    fn json_that_cannot_be_small_is_text() {
        let object: Map<String, Value> =
            (0..5_000).map(|n| (format!("{n:050}"), 1.into())).collect();
        let text = Value::Object(object).to_string();
        let trimmed = trim(&text, 100, 50, Mark::default());
        assert!(trimmed.len() < 250 && trimmed.starts_with('{'), "{trimmed}");
    }
}
