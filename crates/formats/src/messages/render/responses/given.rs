//! Restores items that came in the format of OpenAI's responses.

use memoird_core::turn::{Part, PartKind, Role, Turn};
use serde_json::{Map, Value, json};

use crate::messages::calls;
use crate::messages::render::extra::{Extra, fill, with};
use crate::messages::render::given::{self, Hollow, WritePart, content, result_content};
use crate::messages::responses::{FORMAT, INPUTS};

const HOLLOWS: &[Hollow] = &[
    Hollow::text("input_text", &[&["text"]]),
    Hollow::text("output_text", &[&["text"]]),
    Hollow::text("text", &[&["text"]]),
    Hollow::text("refusal", &[&["refusal"]]),
    Hollow::uri("input_image", &[&["image_url"], &["file_id"]]),
    Hollow::uri("input_file", &[&["file_data"], &["file_url"], &["file_id"]]),
    Hollow::AUDIO,
];

/// Returns the items that became this turn.
pub(super) fn items(turn: &Turn) -> Option<Vec<Value>> {
    let Extra { rest, mut ours } = Extra::read(&turn.extra_json);
    match (ours.shift_remove("items"), turn.role) {
        (Some(Value::Array(items)), role) => by_items(role, items, &turn.parts),
        (Some(_), _) => None,
        (None, role @ (Role::User | Role::System)) => {
            let parts: Vec<&Part> = turn.parts.iter().collect();
            Some(vec![message(role, rest, &parts)?])
        }
        (None, Role::Tool) => turn.parts.iter().map(single).collect(),
        (None, Role::Assistant) => plain(rest, &turn.parts),
    }
}

/// Restores a run without `items`: its text and media are one message.
fn plain(rest: Map<String, Value>, parts: &[Part]) -> Option<Vec<Value>> {
    let is_said = |part: &Part| matches!(part.kind, PartKind::Text(_) | PartKind::Media { .. });
    let mut rest = Some(rest);
    let mut items = Vec::new();
    for run in parts.chunk_by(|one, next| is_said(one) && is_said(next)) {
        if is_said(&run[0]) {
            let said: Vec<&Part> = run.iter().collect();
            items.push(message(Role::Assistant, rest.take()?, &said)?);
        } else {
            items.push(single(&run[0])?);
        }
    }
    Some(items)
}

/// Restores a run whose extra describes each item.
fn by_items(role: Role, described: Vec<Value>, mut parts: &[Part]) -> Option<Vec<Value>> {
    let mut items = Vec::with_capacity(described.len());
    for mut item in described {
        if item.is_null() {
            let (part, more) = parts.split_first()?;
            parts = more;
            items.push(match (&part.kind, role) {
                (PartKind::Text(text), _) if text.is_empty() => {
                    Extra::read(&part.extra_json).rest.into()
                }
                _ => single(part)?,
            });
            continue;
        }
        let count = usize::try_from(item.get(0)?.as_u64()?).ok()?;
        let Value::Object(rest) = item.get_mut(1)?.take() else {
            return None;
        };
        let (these, more) = parts.split_at_checked(count)?;
        parts = more;
        let said: Vec<&Part> = these.iter().collect();
        items.push(message(role, Extra::new(rest).rest, &said)?);
    }
    let is_placeholder = |part: &Part| Extra::read(&part.extra_json).is_placeholder();
    parts.iter().all(is_placeholder).then_some(items)
}

fn message(role: Role, mut rest: Map<String, Value>, parts: &[&Part]) -> Option<Value> {
    let write: WritePart = match role {
        Role::User | Role::System => input_part,
        Role::Assistant => output_part,
        Role::Tool => return None,
    };
    let role = rest
        .shift_remove("role")
        .unwrap_or_else(|| role.name().into());
    let content = content(rest.shift_remove("content").as_ref(), parts, write)??;
    if content.is_null() {
        return None;
    }
    let mut message = match rest.shift_remove("type") {
        Some(kind) => json!({ "type": kind }),
        None => json!({}),
    };
    message["role"] = role;
    message["content"] = content;
    Some(with(message, rest))
}

/// Restores an item that is one part.
fn single(part: &Part) -> Option<Value> {
    let mut extra = Extra::read(&part.extra_json);
    let own_kind = extra.rest.get("type").cloned();
    let kind = own_kind.as_ref().and_then(Value::as_str);
    let item = match &part.kind {
        PartKind::ToolUse {
            id,
            name,
            input_json,
        } => {
            let (kind, input) = match kind {
                None => ("function_call", "arguments"),
                Some("custom_tool_call") => ("custom_tool_call", "input"),
                Some(kind) => {
                    let id_field = calls::of_call(FORMAT, kind).map_or("call_id", |call| call.id);
                    extra.fill(&[id_field], id)?;
                    return other_call(extra, input_json);
                }
            };
            json!({ "type": kind, "call_id": id, "name": name, input: input_json })
        }
        PartKind::ToolResult { is_error: true, .. } => return None,
        PartKind::ToolResult {
            tool_use_id,
            content,
            parts,
            ..
        } => {
            let kind = match kind {
                None => "function_call_output",
                Some("custom_tool_call_output") => "custom_tool_call_output",
                // A shortened result cannot be restored: only the provider's own object is valid.
                Some(kind) => {
                    let links =
                        calls::of_output(FORMAT, kind).map_or(&["call_id"][..], |it| it.links);
                    let link = links.iter().find(|link| extra.has_text(&[link]))?;
                    extra.fill(&[link], tool_use_id)?;
                    return Some(extra.rest.into());
                }
            };
            let mark = extra.rest.shift_remove("output");
            let mut item = json!({ "type": kind, "call_id": tool_use_id });
            item["output"] = result_content(mark.as_ref(), content, parts, input_part)?;
            item
        }
        PartKind::Thinking {
            text,
            signature,
            redacted,
        } => {
            kind?;
            return reasoning(extra, text, signature, *redacted);
        }
        PartKind::Text(_) | PartKind::Media { .. } => return None,
    };
    Some(with(item, extra.rest))
}

/// Restores a call of another type that the bot answers. Its id is already filled in.
fn other_call(mut extra: Extra, input_json: &str) -> Option<Value> {
    if !input_json.is_empty() {
        let is_taken = |name: &&&str| extra.rest.get(**name).is_some_and(|it| !it.is_null());
        let name = *INPUTS.iter().find(is_taken)?;
        *extra.rest.get_mut(name)? = serde_json::from_str(input_json).ok()?;
    }
    Some(extra.rest.into())
}

fn reasoning(mut extra: Extra, text: &str, signature: &str, redacted: bool) -> Option<Value> {
    let (mut left, sealed) = if redacted {
        ("", text)
    } else {
        (text, signature)
    };
    let mut bytes = extra
        .ours
        .get("bytes")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_u64);
    for list in ["summary", "content"] {
        let pieces = extra.rest.get_mut(list).and_then(Value::as_array_mut);
        let texts = pieces
            .into_iter()
            .flatten()
            .filter_map(|piece| piece.get_mut("text"));
        for hole in texts.filter(|text| text.is_string()) {
            let end = match bytes.next() {
                Some(bytes) => usize::try_from(bytes).ok()?,
                None => left.len(),
            };
            let (piece, more) = left.split_at_checked(end)?;
            fill(hole, piece)?;
            left = more;
        }
    }
    if !left.is_empty() {
        return None;
    }
    if extra.has_text(&["encrypted_content"]) {
        extra.fill(&["encrypted_content"], sealed)?;
    } else if !sealed.is_empty() {
        return None;
    }
    Some(extra.rest.into())
}

fn input_part(part: &Part, extra: Extra) -> Option<Value> {
    given::part(part, extra, "input_text", HOLLOWS)
}

fn output_part(part: &Part, extra: Extra) -> Option<Value> {
    given::part(part, extra, "output_text", HOLLOWS)
}
