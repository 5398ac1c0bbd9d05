//! Condensing JSON for a model: compact rows, or distinct values.

use std::collections::HashSet;

use serde_json::{Map, Value};

/// Parses a text that is a JSON object or list. `None` for anything else.
pub(crate) fn parse(text: &str) -> Option<Value> {
    let is_container = text.trim_start().starts_with(['{', '[']);
    let parsed = is_container.then(|| serde_json::from_str(text).ok());
    parsed.flatten()
}

/// Renders JSON as `key: value` pairs.
///
/// A list of objects with the same keys becomes a header and one row per object.
pub(crate) fn rows(value: &Value) -> String {
    let mut text = String::new();
    write_rows(value, &mut text);
    text
}

fn write_rows(value: &Value, text: &mut String) {
    match value {
        Value::Object(fields) => {
            for (index, (key, value)) in fields.iter().enumerate() {
                text.push_str(if index > 0 { "; " } else { "" });
                text.push_str(key);
                if value.is_object() || value.is_array() {
                    text.push_str(" (");
                    write_rows(value, text);
                    text.push(')');
                } else {
                    text.push_str(": ");
                    write_scalar(value, text);
                }
            }
        }
        Value::Array(items) => match table(items) {
            Some(first) => {
                let header: Vec<&str> = first.keys().map(String::as_str).collect();
                text.push_str(&format!("[{}] ", header.join(" ")));
                for (index, row) in items.iter().filter_map(Value::as_object).enumerate() {
                    text.push_str(if index > 0 { " | " } else { "" });
                    for (index, cell) in row.values().enumerate() {
                        text.push_str(if index > 0 { " " } else { "" });
                        write_rows(cell, text);
                    }
                }
            }
            None => {
                for (index, item) in items.iter().enumerate() {
                    text.push_str(if index > 0 { ", " } else { "" });
                    write_rows(item, text);
                }
            }
        },
        scalar => write_scalar(scalar, text),
    }
}

fn write_scalar(value: &Value, text: &mut String) {
    match value {
        Value::String(string) => text.push_str(string),
        other => text.push_str(&other.to_string()),
    }
}

/// The first of several objects that all have the same keys in the same order.
fn table(items: &[Value]) -> Option<&Map<String, Value>> {
    let first = items.first()?.as_object()?;
    let is_like_first = |item: &Value| {
        item.as_object()
            .is_some_and(|object| object.keys().eq(first.keys()))
    };
    (items.len() > 1 && items.iter().all(is_like_first)).then_some(first)
}

/// Returns the scalar values of JSON in order, each string once, in at most `bytes_max` bytes.
///
/// They are separated by spaces. Numbers and flags are repeated, because a reader assigns them to
/// the string before them. Keys that are data ("Action Camera") count as strings. Strings longer
/// than half of `bytes_max` keep their head and tail. Values without keys take a third of the space
/// of the JSON. On recorded conversations they preserve more values that an agent uses next than
/// head and tail of the text in the same space.
pub fn scalars(value: &Value, bytes_max: usize) -> String {
    let mut text = String::new();
    let mut seen = HashSet::new();
    write_scalars(value, bytes_max, &mut seen, &mut text);
    text
}

/// Returns false once a value did not fit.
fn write_scalars(
    value: &Value,
    bytes_max: usize,
    seen: &mut HashSet<String>,
    text: &mut String,
) -> bool {
    match value {
        Value::Object(fields) => fields.iter().all(|(key, value)| {
            (is_field_name(key) || write_once(key.clone(), bytes_max, seen, text))
                && write_scalars(value, bytes_max, seen, text)
        }),
        Value::Array(items) => items
            .iter()
            .all(|value| write_scalars(value, bytes_max, seen, text)),
        Value::String(string) => write_once(string.clone(), bytes_max, seen, text),
        other => push_word(&other.to_string(), bytes_max, text),
    }
}

/// Writes a string unless it is in the text already.
fn write_once(
    mut string: String,
    bytes_max: usize,
    seen: &mut HashSet<String>,
    text: &mut String,
) -> bool {
    if string.len() > bytes_max / 2 {
        string = head_and_tail(&string, bytes_max / 2, " … ");
    }
    if string.is_empty() || seen.contains(&string) {
        return true;
    }
    push_word(&string, bytes_max, text) && seen.insert(string)
}

/// Adds a word. Returns false if it does not fit.
fn push_word(word: &str, bytes_max: usize, text: &mut String) -> bool {
    if text.len() + word.len() + 1 > bytes_max {
        return false;
    }
    text.push_str(if text.is_empty() { "" } else { " " });
    text.push_str(word);
    true
}

/// Whether a key names a field, like `order_id` or `orderId`. Others are data.
fn is_field_name(key: &str) -> bool {
    key.starts_with(|c: char| c.is_ascii_lowercase() || c == '_')
        && key.chars().all(|c| c.is_ascii_alphabetic() || c == '_')
}

/// Shortens a text to about `bytes_max` bytes, two thirds head and one third tail.
///
/// `between` replaces the middle. Returns the whole text if cutting would save less than `between`
/// needs.
pub(crate) fn head_and_tail(text: &str, bytes_max: usize, between: &str) -> String {
    head_and_rest(text, bytes_max * 2 / 3, bytes_max / 3, between)
}

/// Like [`head_and_tail`], with five sixths as head, because a question often ends pasted text.
pub(crate) fn mostly_head(text: &str, bytes_max: usize, between: &str) -> String {
    head_and_rest(text, bytes_max * 5 / 6, bytes_max / 6, between)
}

fn head_and_rest(text: &str, head: usize, tail: usize, between: &str) -> String {
    if text.len() <= head + tail + between.len() + 2 {
        return text.to_owned();
    }
    let (head, tail) = whole_ends(text, head, tail);
    format!("{head}{between}{tail}")
}

/// Returns the first `head` and last `tail` bytes of a text without words or lines cut in two.
///
/// An end is shortened to a line break, or else to a space, unless that costs more than a quarter
/// of it.
pub(crate) fn whole_ends(text: &str, head: usize, tail: usize) -> (&str, &str) {
    let head = &text[..text.floor_char_boundary(head)];
    let rest = &text[head.len()..];
    let tail = &rest[rest.ceil_char_boundary(rest.len().saturating_sub(tail))..];
    let head_end = ['\n', ' ']
        .into_iter()
        .filter_map(|end| head.rfind(end))
        .find(|end| (head.len() - end) * 4 <= head.len());
    let tail_start = ['\n', ' ']
        .into_iter()
        .filter_map(|end| tail.find(end))
        .find(|end| end * 4 <= tail.len());
    (
        head_end.map_or(head, |end| &head[..end]),
        tail_start.map_or(tail, |end| &tail[end + 1..]),
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn rows_list_keys_once() {
        let value = json!({
            "status": "ok",
            "flights": [{"id": "HAT1", "seats": 3}, {"id": "HAT2", "seats": 0}],
            "tags": ["a", 1],
        });
        assert_eq!(
            rows(&value),
            "status: ok; flights ([id seats] HAT1 3 | HAT2 0); tags (a, 1)"
        );
    }

    #[test]
    fn scalars_skip_repeated_strings_and_are_never_cut() {
        let value = json!(["HAT1", "HAT1", {"a": "HAT2", "b": 12345}]);
        assert_eq!(scalars(&value, 100), "HAT1 HAT2 12345");
        assert_eq!(scalars(&value, 12), "HAT1 HAT2");
    }

    #[test]
    fn scalars_repeat_numbers_and_flags_and_include_data_keys() {
        let lamps = json!([
            {"id": "43", "color": "black", "available": false, "price": 1},
            {"id": "12", "color": "black", "available": false, "price": 1},
        ]);
        assert_eq!(scalars(&lamps, 100), "43 black false 1 12 false 1");
        let products = json!({"Action Camera": "33", "Lamp": {"productId": "44"}});
        assert_eq!(scalars(&products, 100), "Action Camera 33 Lamp 44");
    }

    #[test]
    fn head_and_tail_cuts_only_if_it_saves_bytes() {
        let text = "x".repeat(40);
        assert_eq!(head_and_tail(&text, 36, " … "), text);
        let long = "ä".repeat(100);
        let cut = head_and_tail(&long, 60, " … ");
        assert!(cut.len() < 70 && cut.starts_with("ää") && cut.ends_with("ää"));
    }
}
