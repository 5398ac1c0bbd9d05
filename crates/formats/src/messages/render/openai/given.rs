//! A message of OpenAI's chat completions, given back.

use memoird_core::turn::{Part, PartKind, Role, Turn};
use serde_json::{Map, Value};

use crate::messages::render::extra::{Extra, add, object};
use crate::messages::render::given::{self, Hollow, content, result_content};

const HOLLOWS: &[Hollow] = &[
    Hollow::uri("image_url", &[&["image_url", "url"]]),
    Hollow::uri("file", &[&["file", "file_data"], &["file", "file_id"]]),
    Hollow::text("refusal", &[&["refusal"]]),
    Hollow::AUDIO,
];

/// The message that gave this turn.
pub(super) fn message(turn: &Turn) -> Option<Value> {
    let mut rest = Extra::read(&turn.extra_json).rest;
    let role = match turn.role {
        Role::User => "user",
        Role::Assistant => "assistant",
        Role::Tool => "tool",
        Role::System => "system",
    };
    let role = rest.shift_remove("role").unwrap_or_else(|| role.into());
    let mut message = object([("role", role)]);
    let mark = rest.shift_remove("content");
    let mut calls = Vec::new();
    if turn.role == Role::Tool {
        let (id, answer) = result(turn, mark.as_ref())?;
        message.insert("tool_call_id".to_owned(), id.into());
        message.insert("content".to_owned(), answer);
    } else {
        let is_use = |part: &&Part| matches!(part.kind, PartKind::ToolUse { .. });
        let (uses, said): (Vec<&Part>, Vec<&Part>) = turn.parts.iter().partition(is_use);
        let content = content(mark.as_ref(), &said, part)?;
        let is_assistant = turn.role == Role::Assistant;
        if !is_assistant && (!uses.is_empty() || content.is_none()) {
            return None;
        }
        message.extend(content.map(|content| ("content".to_owned(), content)));
        calls = uses.into_iter().map(call).collect::<Option<_>>()?;
    }
    if !calls.is_empty() {
        rest.shift_remove("tool_calls");
    }
    add(&mut message, rest);
    if !calls.is_empty() {
        message.insert("tool_calls".to_owned(), calls.into());
    }
    Some(message.into())
}

fn result<'a>(turn: &'a Turn, mark: Option<&Value>) -> Option<(&'a str, Value)> {
    let [
        Part {
            kind:
                PartKind::ToolResult {
                    tool_use_id,
                    content,
                    parts,
                    is_error,
                },
            extra_json,
        },
    ] = &turn.parts[..]
    else {
        return None;
    };
    if *is_error || !extra_json.is_empty() {
        return None;
    }
    Some((tool_use_id, result_content(mark, content, parts, part)?))
}

fn call(part: &Part) -> Option<Value> {
    let PartKind::ToolUse {
        id,
        name,
        input_json,
    } = &part.kind
    else {
        return None;
    };
    let mut extra = Extra::read(&part.extra_json);
    let mut call = object([("id", id.as_str().into())]);
    let kind = match (extra.lacks("type"), extra.rest.shift_remove("type")) {
        (true, None) => None,
        (_, kind) => Some(kind.unwrap_or_else(|| "function".into())),
    };
    let custom = kind.as_ref().is_some_and(|kind| kind == "custom");
    call.extend(kind.map(|kind| ("type".to_owned(), kind)));
    let (inner, input) = if custom {
        ("custom", "input")
    } else {
        ("function", "arguments")
    };
    let left = match extra.rest.shift_remove(inner) {
        None => Map::new(),
        Some(Value::Object(left)) => left,
        Some(_) => return None,
    };
    let mut called = object([
        ("name", name.as_str().into()),
        (input, input_json.as_str().into()),
    ]);
    add(&mut called, left);
    call.insert(inner.to_owned(), called.into());
    add(&mut call, extra.rest);
    Some(call.into())
}

fn part(part: &Part, extra: Extra) -> Option<Value> {
    given::part(part, extra, "text", HOLLOWS)
}
