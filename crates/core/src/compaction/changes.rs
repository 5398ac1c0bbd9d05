//! The done list: one line for each mutating call, with its outcome.
//!
//! A line depends on the tool's name and the structure of its arguments, not on the language of the
//! conversation. Unclear calls count as mutating.

use std::collections::HashSet;

use serde::Serialize;
use serde_json::{Map, Value};

use super::calls::is_change;
use super::transcript::TranscriptTurn;
use crate::condense::{head_and_tail, parse, rows};
use crate::quote::one_line;

/// Maximum bytes of all arguments in a line, and of a single one.
const ARGUMENTS_BYTES_MAX: usize = 320;
const ARGUMENT_BYTES_MAX: usize = 72;
/// Maximum bytes of the outcome in a line.
const OUTCOME_BYTES_MAX: usize = 80;
/// Maximum bytes of a value that is remembered as known.
const KNOWN_BYTES_MAX: usize = 256;
const OUTCOME: &str = " → ";

/// A mutating call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CompletedCall {
    /// Turn with the call.
    pub seq: u64,
    /// One line: `tool(key=value, …) → outcome`.
    pub text: String,
}

/// Returns the mutating calls of `turns`. `recent` are the details of the turns before them.
pub fn changes(turns: &[TranscriptTurn], recent: &str) -> Vec<CompletedCall> {
    let mut done = Vec::new();
    // Calls without a result yet: id, and the index of the line if the call is mutating.
    let mut open: Vec<(&str, Option<usize>)> = Vec::new();
    let mut known = KnownValues::from_details(recent);
    for turn in turns {
        for result in &turn.results {
            let text = turn.text.get(result.range.clone()).unwrap_or_default();
            let parsed = parse(text);
            let position = match result.call_id.as_str() {
                "" => open.len().checked_sub(1),
                id => open.iter().position(|(call, _)| *call == id),
            };
            let line = position.and_then(|position| open.remove(position).1);
            if let Some(line) = line {
                let done: &mut CompletedCall = &mut done[line];
                let outcome = outcome(text, parsed.as_ref(), result.is_error, &done.text, &known);
                done.text.push_str(OUTCOME);
                done.text.push_str(&outcome);
            }
            if let Some(value) = &parsed {
                known.add(value);
            }
        }
        for call in &turn.calls {
            let line = is_change(&call.name, &call.input).then_some(done.len());
            if line.is_some() {
                done.push(CompletedCall {
                    seq: turn.seq,
                    text: call_line(&call.name, &call.input),
                });
            }
            open.push((&call.id, line));
        }
    }
    done
}

/// Formats a call as one line: `tool(key=value, …)`.
pub(super) fn call_line(name: &str, input: &str) -> String {
    let arguments = match serde_json::from_str::<Value>(input) {
        Ok(Value::Object(fields)) => {
            let pairs = fields.iter().map(|(key, value)| {
                let line = one_line(&rows(value), ARGUMENTS_BYTES_MAX);
                let value = head_and_tail(&line, ARGUMENT_BYTES_MAX, "…");
                // A single argument needs no name.
                match fields.len() {
                    1 => value,
                    _ => format!("{key}={value}"),
                }
            });
            pairs.collect::<Vec<_>>().join(", ")
        }
        _ => one_line(input, ARGUMENTS_BYTES_MAX),
    };
    format!(
        "{name}({})",
        head_and_tail(&arguments, ARGUMENTS_BYTES_MAX, "…")
    )
}

/// Renders a result in one line: first the values that no earlier result has, then other fields.
///
/// New values show what the call changed, and so does a flag at the top level. The values of the
/// call are left out.
fn outcome(
    text: &str,
    parsed: Option<&Value>,
    is_error: bool,
    call: &str,
    known: &KnownValues,
) -> String {
    let text = match parsed {
        Some(Value::Object(fields)) => {
            let is_in_call = |value: &Value| {
                let text = value.as_str();
                text.is_some_and(|text| !text.is_empty() && call.contains(text))
            };
            let fields = fields.iter().filter(|(_, value)| !is_in_call(value));
            let (mut changed, mut other) = (Vec::new(), Vec::new());
            for (key, value) in fields {
                let part = match value {
                    Value::Bool(_) => Some(value.clone()),
                    _ => known.unknown_part(value),
                };
                match part {
                    Some(part) => changed.push((key.clone(), part)),
                    None => other.push((key.clone(), value.clone())),
                }
            }
            // Scalars before nested values.
            changed.sort_by_key(|(_, value)| value.is_object() || value.is_array());
            other.sort_by_key(|(_, value)| value.is_object() || value.is_array());
            rows(&changed.into_iter().chain(other).collect())
        }
        Some(value) => rows(value),
        None => text.to_owned(),
    };
    // Bounds the work for long results.
    let end = text.floor_char_boundary(4 * OUTCOME_BYTES_MAX);
    let line = one_line(&text[..end], OUTCOME_BYTES_MAX);
    match (is_error, line.is_empty()) {
        (true, _) => format!("failed: {line}"),
        (false, true) => "ok".to_owned(),
        (false, false) => line,
    }
}

/// The strings and numbers of earlier results.
struct KnownValues(HashSet<String>);

impl KnownValues {
    /// Starts with the words of earlier details.
    fn from_details(recent: &str) -> Self {
        let words = recent.split_whitespace();
        Self(words.map(str::to_owned).collect())
    }

    fn add(&mut self, value: &Value) {
        match value {
            Value::Array(items) => items.iter().for_each(|item| self.add(item)),
            Value::Object(fields) => fields.values().for_each(|field| self.add(field)),
            Value::String(text) if text.len() <= KNOWN_BYTES_MAX => {
                self.0.insert(text.clone());
            }
            Value::Number(number) => {
                self.0.insert(number.to_string());
            }
            _ => {}
        }
    }

    /// The strings and numbers of a value that no earlier result has. `None` if there are none.
    fn unknown_part(&self, value: &Value) -> Option<Value> {
        match value {
            Value::Array(items) => {
                let parts: Vec<Value> = items
                    .iter()
                    .filter_map(|item| self.unknown_part(item))
                    .collect();
                // A single item needs no list.
                match parts.len() {
                    0 => None,
                    1 => parts.into_iter().next(),
                    _ => Some(Value::Array(parts)),
                }
            }
            Value::Object(fields) => {
                let parts: Map<String, Value> = fields
                    .iter()
                    .filter_map(|(key, value)| Some((key.clone(), self.unknown_part(value)?)))
                    .collect();
                (!parts.is_empty()).then_some(Value::Object(parts))
            }
            Value::String(text) => self.is_new(text).then(|| value.clone()),
            Value::Number(number) => self.is_new(&number.to_string()).then(|| value.clone()),
            Value::Bool(_) | Value::Null => None,
        }
    }

    fn is_new(&self, text: &str) -> bool {
        !text.is_empty() && !self.0.contains(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compaction::transcript::Call;
    use crate::turn::Role;

    fn line(name: &str, input: &str, result: &str, is_error: bool) -> Vec<String> {
        let call = TranscriptTurn::new(1, Role::Assistant, "").with_call(Call {
            id: "c".into(),
            name: name.into(),
            input: input.into(),
        });
        let mut answer = TranscriptTurn::new(2, Role::Tool, result);
        answer.results[0].call_id = "c".into();
        answer.results[0].is_error = is_error;
        let changes = changes(&[call, answer], "");
        changes.into_iter().map(|done| done.text).collect()
    }

    #[test]
    fn change_line_contains_arguments_and_outcome() {
        let input = r#"{"sku":"RAM-6032","quantity":2}"#;
        assert_eq!(
            line(
                "add_to_cart",
                input,
                r#"{"cart_total": 59.98, "items": 2}"#,
                false
            ),
            ["add_to_cart(sku=RAM-6032, quantity=2) → cart_total: 59.98; items: 2"]
        );
    }

    #[test]
    fn outcome_starts_with_values_new_since_earlier_results() {
        let call = |id: &str, name: &str| {
            TranscriptTurn::new(1, Role::Assistant, "").with_call(Call {
                id: id.into(),
                name: name.into(),
                input: r#"{"id":"NQNU5R"}"#.into(),
            })
        };
        let result = |id: &str, text: &str| {
            let mut turn = TranscriptTurn::new(2, Role::Tool, text);
            turn.results[0].call_id = id.into();
            turn
        };
        let before = r#"{"id":"NQNU5R","user":"aarav","legs":[{"from":"MCO","price":90}]}"#;
        let after = r#"{"id":"NQNU5R","user":"aarav","legs":[{"from":"MCO","price":90}],"refunds":[{"amount":412}],"status":"cancelled"}"#;
        let turns = [
            call("a", "get_reservation"),
            result("a", before),
            call("b", "cancel_reservation"),
            result("b", after),
        ];
        let expected =
            "cancel_reservation(NQNU5R) → status: cancelled; refunds (amount: 412); user";
        let done = changes(&turns, "");
        assert!(done[0].text.starts_with(expected), "{done:?}");
        let earlier = "tool: NQNU5R aarav MCO 90\n";
        let done = changes(&turns[2..], earlier);
        assert!(done[0].text.starts_with(expected), "{done:?}");
    }

    #[test]
    fn read_only_call_has_no_change_line() {
        assert!(line("get_order", r#"{"id":"W1"}"#, "{}", false).is_empty());
    }

    #[test]
    fn failed_call_is_marked_and_long_arguments_are_shortened() {
        let input = format!(r#"{{"path":"a.rs","text":"{}"}}"#, "x".repeat(500));
        let lines = line("edit_file", &input, "no such file", true);
        assert!(
            lines[0].starts_with("edit_file(path=a.rs, text=xxx"),
            "{lines:?}"
        );
        assert!(lines[0].ends_with("→ failed: no such file"), "{lines:?}");
        assert!(lines[0].len() < 160, "{lines:?}");
    }
}
