//! Restores messages that came in the format of OpenAI's chat completions.

use memoird_core::turn::{Part, PartKind, Role, Turn};
use serde_json::{Map, Value, json};

use crate::messages::openai::called_fields;
use crate::messages::render::extra::{Extra, add, with};
use crate::messages::render::given::{self, Hollow, content, result_content};

const HOLLOWS: &[Hollow] = &[
    Hollow::uri("image_url", &[&["image_url", "url"]]),
    Hollow::uri("file", &[&["file", "file_data"], &["file", "file_id"]]),
    Hollow::text("refusal", &[&["refusal"]]),
    Hollow::AUDIO,
];

/// Returns the message that became this turn.
pub(super) fn message(turn: &Turn) -> Option<Value> {
    let mut rest = Extra::read(&turn.extra_json).rest;
    let role = rest.shift_remove("role");
    let mut message = Map::new();
    message.insert(
        "role".to_owned(),
        role.unwrap_or_else(|| turn.role.name().into()),
    );
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
    let [answer] = &turn.parts[..] else {
        return None;
    };
    match &answer.kind {
        PartKind::ToolResult {
            tool_use_id,
            content,
            parts,
            is_error: false,
        } if answer.extra_json.is_empty() => {
            Some((tool_use_id, result_content(mark, content, parts, part)?))
        }
        _ => None,
    }
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
    let mut call = json!({ "id": id });
    match (extra.lacks("type"), extra.rest.shift_remove("type")) {
        (true, None) => {}
        (_, kind) => call["type"] = kind.unwrap_or_else(|| "function".into()),
    }
    let is_custom = call.get("type").is_some_and(|kind| kind == "custom");
    let (inner, input) = called_fields(is_custom);
    let left = match extra.rest.shift_remove(inner) {
        None => Map::new(),
        Some(Value::Object(left)) => left,
        Some(_) => return None,
    };
    call[inner] = with(json!({ "name": name, input: input_json }), left);
    Some(with(call, extra.rest))
}

fn part(part: &Part, extra: Extra) -> Option<Value> {
    given::part(part, extra, "text", HOLLOWS)
}
