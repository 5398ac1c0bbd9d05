//! Reads the script of calls in `script.txt`.
//!
//! A call is one line, `RPC {request as JSON}`, before which `as KEY` names another key than that of
//! its service, and `N times` repeats it with `$i` from 1. Indented lines belong to the call: more of
//! its request, `-> name = /pointer` (saves a value of the reply for `$name` in later requests), and
//! `until /pointer is VALUE` (repeats the call until its reply has this value, or none: `absent`).

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// Time of turns that the script writes as `{"user": …}` and the like.
const TURN_TIME: &str = "2024-05-01T10:00:00Z";

/// A text of about 100 tokens.
const FILLER: &str = "the harbour opens at six and the ferry to the island leaves at seven from \
    the second pier, unless the wind is above force nine, in which case the office announces on \
    the board which of the later crossings will run and what a ticket for them costs; parcels \
    are weighed at the counter next to the lighthouse, and bicycles travel in the open part of \
    the lower deck for a small extra charge that is paid on board. ";

/// A call, or several that differ in `$i`.
#[derive(Clone, Debug)]
pub(super) struct Step {
    pub(super) line: usize,
    pub(super) times: usize,
    pub(super) key: Option<String>,
    pub(super) rpc: String,
    pub(super) request: String,
    /// Names and JSON pointers of the values to save.
    pub(super) saved: Vec<(String, String)>,
    /// JSON pointer and value of a reply that must be waited for.
    pub(super) until: Option<(String, Option<Value>)>,
}

/// Parses the script.
///
/// # Panics
/// If a line is malformed.
pub(super) fn parse(text: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let Some(more) = line.strip_prefix("  ") else {
            steps.push(first_line(index + 1, line));
            continue;
        };
        let step = steps.last_mut().expect("a call before its details");
        if let Some(saved) = more.strip_prefix("-> ") {
            let (name, pointer) = saved.split_once(" = ").expect("NAME = POINTER");
            step.saved.push((name.to_owned(), pointer.to_owned()));
        } else if let Some(until) = more.strip_prefix("until ") {
            let (pointer, value) = until.split_once(" is ").expect("POINTER is VALUE");
            let value = (value != "absent").then(|| serde_json::from_str(value).expect("JSON"));
            step.until = Some((pointer.to_owned(), value));
        } else {
            step.request += more;
        }
    }
    steps
}

fn first_line(line: usize, text: &str) -> Step {
    let (head, request) = text.split_once(" {").expect("RPC {request}");
    let mut words: Vec<&str> = head.split(' ').collect();
    let rpc = words.pop().expect("an rpc").to_owned();
    let mut step = Step {
        line,
        times: 1,
        key: None,
        rpc,
        request: format!("{{{request}"),
        saved: Vec::new(),
        until: None,
    };
    match words[..] {
        [] => {}
        ["as", key] => step.key = Some(key.to_owned()),
        [times, "times"] => step.times = times.parse().expect("a number"),
        _ => panic!("line {line}: {head}"),
    }
    step
}

/// The request of the `number`th repetition of a step, counted from 1.
pub(super) fn request(step: &Step, number: usize, saved: &BTreeMap<String, String>) -> Value {
    let mut text = step.request.clone();
    // Longer names first: `$first` is not `$f`.
    for (name, value) in saved.iter().rev() {
        text = text.replace(&format!("${name}"), value);
    }
    let text = text
        .replace("$filler", FILLER)
        .replace("$d", &(number % 5 + 1).to_string())
        .replace("$i", &number.to_string());
    let request = serde_json::from_str(&text);
    expanded(request.unwrap_or_else(|error| panic!("line {}: {error}: {text}", step.line)))
}

/// Replaces short forms of turns by turns.
fn expanded(value: Value) -> Value {
    match value {
        Value::Array(items) => items.into_iter().map(expanded).collect(),
        Value::Object(fields) if fields.len() == 1 => {
            let (name, inner) = fields.into_iter().next().expect("one field");
            turn(&name, &inner).unwrap_or_else(|| json!({ name: expanded(inner) }))
        }
        Value::Object(fields) => {
            let fields = fields.into_iter();
            fields
                .map(|(name, inner)| (name, expanded(inner)))
                .collect()
        }
        other => other,
    }
}

fn turn(name: &str, inner: &Value) -> Option<Value> {
    let (role, part) = match name {
        "user" => ("ROLE_USER", json!({ "text": inner })),
        "bot" => ("ROLE_ASSISTANT", json!({ "text": inner })),
        "call" => {
            let input = r#"{"at": "it"}"#;
            let call = json!({ "id": inner[0], "name": inner[1], "input_json": input });
            ("ROLE_ASSISTANT", json!({ "tool_use": call }))
        }
        "result" => {
            let result = json!({ "tool_use_id": inner[0], "content": inner[1] });
            ("ROLE_TOOL", json!({ "tool_result": result }))
        }
        _ => return None,
    };
    Some(json!({ "role": role, "parts": [part], "timestamp": TURN_TIME }))
}
