//! What hooks tell of a session: the contract's field names, as `--json` prints them.

use memoird_core::time::Timestamp;
use memoird_core::turn::{MediaSource, Part, PartKind, Role, Turn};
use serde_json::{Map, Value, json};

/// A turn, whole.
pub fn turn(seq: u64, turn: &Turn) -> Value {
    let mut object = Map::new();
    object.insert("seq".to_owned(), seq.into());
    object.insert("role".to_owned(), role(turn.role).into());
    object.insert("timestamp".to_owned(), turn.timestamp.map(time).into());
    object.insert("parts".to_owned(), turn.parts.iter().map(part).collect());
    if let Some(salience) = turn.salience {
        object.insert("salience".to_owned(), salience.into());
    }
    if turn.pinned {
        object.insert("pinned".to_owned(), true.into());
    }
    if !turn.metadata.is_empty() {
        object.insert("metadata".to_owned(), json!(turn.metadata));
    }
    put_text(&mut object, "extra_json", &turn.extra_json);
    Value::Object(object)
}

fn role(role: Role) -> &'static str {
    match role {
        Role::User => "ROLE_USER",
        Role::Assistant => "ROLE_ASSISTANT",
        Role::Tool => "ROLE_TOOL",
        Role::System => "ROLE_SYSTEM",
    }
}

fn part(part: &Part) -> Value {
    let mut object = Map::new();
    let (field, value) = match &part.kind {
        PartKind::Text(text) => ("text", text.as_str().into()),
        PartKind::ToolUse { id, name, input_json } => {
            ("tool_use", json!({"id": id, "name": name, "input_json": input_json}))
        }
        PartKind::ToolResult { tool_use_id, content, parts, is_error } => {
            let parts: Vec<Value> = parts.iter().map(self::part).collect();
            let result = json!({
                "tool_use_id": tool_use_id, "content": content, "parts": parts,
                "is_error": is_error,
            });
            ("tool_result", result)
        }
        PartKind::Media { media_type, source, name } => {
            let (field, source) = match source {
                MediaSource::Uri(uri) => ("uri", uri.clone()),
                MediaSource::Data(data) => ("data", base64(data)),
            };
            ("media", json!({"media_type": media_type, "name": name, field: source}))
        }
        PartKind::Thinking { text, signature, redacted } => {
            ("thinking", json!({"text": text, "signature": signature, "redacted": redacted}))
        }
    };
    object.insert(field.to_owned(), value);
    put_text(&mut object, "extra_json", &part.extra_json);
    Value::Object(object)
}

fn put_text(object: &mut Map<String, Value>, field: &str, text: &str) {
    if !text.is_empty() {
        object.insert(field.to_owned(), text.into());
    }
}

fn time(timestamp: Timestamp) -> String {
    crate::git::time::rfc3339(timestamp)
}

/// Base64 with padding, as JSON of protobuf writes bytes.
fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let byte = |index: usize| u32::from(chunk.get(index).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for place in 0..4 {
            if place <= chunk.len() {
                let digit = bits >> (18 - 6 * place) & 63;
                text.push(char::from(ALPHABET[digit as usize]));
            } else {
                text.push('=');
            }
        }
    }
    text
}
