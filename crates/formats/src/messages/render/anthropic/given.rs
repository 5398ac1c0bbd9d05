//! Restores messages that came in Anthropic's format.

use memoird_core::turn::{MediaSource, Part, PartKind, Role, Turn};
use serde_json::{Map, Value, json};

use super::thinking_block;
use crate::messages::render::extra::{Extra, with};
use crate::messages::render::given::{self, base64, content, result_content, uri};

/// Returns content and other fields of the message that became this turn.
pub(super) fn message(turn: &Turn) -> Option<(Value, Map<String, Value>)> {
    if turn.role == Role::Tool {
        return None;
    }
    let mut rest = Extra::read(&turn.extra_json).rest;
    let mark = rest.shift_remove("content");
    let parts: Vec<&Part> = turn.parts.iter().collect();
    let content = content(mark.as_ref(), &parts, block)??;
    (!content.is_null()).then_some((content, rest))
}

fn block(part: &Part, extra: Extra) -> Option<Value> {
    let block = match &part.kind {
        PartKind::Text(_) => return given::part(part, extra, "text", &[]),
        PartKind::ToolUse {
            id,
            name,
            input_json,
        } => {
            let mut block = json!({ "type": "tool_use", "id": id, "name": name });
            block["input"] = serde_json::from_str(input_json).ok()?;
            block
        }
        PartKind::ToolResult { .. } => return result(part, extra),
        PartKind::Thinking { .. } => {
            let mut block = thinking_block(&part.kind);
            if extra.lacks("signature") {
                block.as_object_mut()?.shift_remove("signature");
            }
            block
        }
        PartKind::Media {
            media_type, source, ..
        } => return media(extra, media_type, source),
    };
    Some(with(block, extra.rest))
}

fn result(part: &Part, mut extra: Extra) -> Option<Value> {
    let PartKind::ToolResult {
        tool_use_id,
        content,
        parts,
        is_error,
    } = &part.kind
    else {
        return None;
    };
    let mut block = json!({ "type": "tool_result", "tool_use_id": tool_use_id });
    let mark = extra.rest.shift_remove("content");
    if !(extra.lacks("content") && content.is_empty() && parts.is_empty()) {
        block["content"] = result_content(mark.as_ref(), content, parts, inner_block)?;
    }
    if *is_error {
        block["is_error"] = true.into();
    }
    Some(with(block, extra.rest))
}

fn inner_block(part: &Part, extra: Extra) -> Option<Value> {
    match part.kind {
        PartKind::Text(_) | PartKind::Media { .. } => block(part, extra),
        _ => None,
    }
}

fn media(mut extra: Extra, media_type: &str, source: &MediaSource) -> Option<Value> {
    let kind = extra.rest.get("source")?.get("type")?.as_str()?;
    let (field, content) = match (kind, source) {
        // The part's label is empty if the object's own was too long.
        ("base64", _) => ("data", base64(media_type, source)?),
        ("text", MediaSource::Data(data)) => ("data", str::from_utf8(data).ok()?),
        ("text", MediaSource::Uri(_)) => return None,
        ("url", _) => ("url", uri(source)?),
        _ => ("file_id", uri(source)?),
    };
    extra.fill(&["source", field], content)?;
    Some(extra.rest.into())
}
