//! The inverse of reading, for tests: it uses nothing but the marks that the parent
//! module documents, so it shows that they suffice.

use serde_json::{Map, Value, json};

use crate::formats::MessageFormat;
use crate::turn::{MediaSource, Part, PartKind, Role, Turn};

/// The message array that gave these turns.
pub(super) fn render(format: MessageFormat, turns: &[Turn]) -> Value {
    let message = match format {
        MessageFormat::OpenAi => openai_message,
        MessageFormat::OpenAiResponses => panic!("not rendered yet"),
        MessageFormat::Anthropic => anthropic_message,
    };
    turns.iter().map(message).collect()
}

/// An extra, with what memoird itself says in it.
fn extra(json: &str) -> (Map<String, Value>, Value) {
    if json.is_empty() {
        return (Map::new(), Value::Null);
    }
    let Value::Object(mut object) = serde_json::from_str(json).unwrap() else {
        panic!("an extra that is no object: {json}");
    };
    let ours = object.shift_remove("memoird").unwrap_or_default();
    if let Some(theirs) = ours.get("memoird") {
        put(&mut object, "memoird", theirs.clone());
    }
    (object, ours)
}

fn put(object: &mut Map<String, Value>, name: &str, value: impl Into<Value>) {
    object.insert(name.into(), value.into());
}

/// Puts a field that is there unless the extra says something else.
fn usual(object: &mut Map<String, Value>, ours: &Value, name: &str, value: &str) {
    if ours["absent"] != json!([name]) && !object.contains_key(name) {
        put(object, name, value);
    }
}

/// Puts parts or a text where the content was.
fn fill_content(
    object: &mut Map<String, Value>,
    parts: &[&Part],
    text: Option<&str>,
    render: fn(&Part) -> Option<Value>,
) {
    match object.get_mut("content") {
        Some(Value::Array(list)) => *list = parts.iter().filter_map(|part| render(part)).collect(),
        Some(other) => assert!(other.is_null()),
        None => {
            if let Some(text) = text {
                put(object, "content", text);
            }
        }
    }
}

/// The one text that stands for a string as content.
fn only_text<'a>(parts: &[&'a Part]) -> Option<&'a str> {
    match parts {
        [Part { kind: PartKind::Text(text), extra_json }] if extra_json.is_empty() => Some(text),
        _ => None,
    }
}

fn openai_message(turn: &Turn) -> Value {
    let (mut object, _) = extra(&turn.extra_json);
    let is_use = |part: &&Part| matches!(part.kind, PartKind::ToolUse { .. });
    let (uses, said): (Vec<&Part>, Vec<&Part>) = turn.parts.iter().partition(is_use);
    let role = match turn.role {
        Role::User => "user",
        Role::Assistant => "assistant",
        Role::Tool => "tool",
        Role::System => "system",
    };
    if !object.contains_key("role") {
        put(&mut object, "role", role);
    }
    if let [Part { kind: PartKind::ToolResult { tool_use_id, content, parts, .. }, .. }] = &said[..]
    {
        put(&mut object, "tool_call_id", tool_use_id.as_str());
        let parts: Vec<&Part> = parts.iter().collect();
        fill_content(&mut object, &parts, Some(content), openai_part);
    } else {
        fill_content(&mut object, &said, only_text(&said), openai_part);
    }
    if !uses.is_empty() {
        object.insert("tool_calls".into(), uses.into_iter().map(openai_call).collect());
    }
    object.into()
}

fn openai_call(part: &Part) -> Value {
    let (mut object, ours) = extra(&part.extra_json);
    let PartKind::ToolUse { id, name, input_json } = &part.kind else { panic!("{part:?}") };
    put(&mut object, "id", id.as_str());
    usual(&mut object, &ours, "type", "function");
    let (inner, input) = match object.get("type").and_then(Value::as_str) {
        Some("custom") => ("custom", "input"),
        _ => ("function", "arguments"),
    };
    let called = object.entry(inner).or_insert_with(|| json!({}));
    called["name"] = name.as_str().into();
    called[input] = input_json.as_str().into();
    object.into()
}

fn openai_part(part: &Part) -> Option<Value> {
    let (object, ours) = extra(&part.extra_json);
    if ours["placeholder"] == true {
        return None;
    }
    let kind = object.get("type").and_then(Value::as_str).unwrap_or("text").to_owned();
    let mut object = Value::Object(object);
    match (&part.kind, kind.as_str()) {
        (PartKind::Text(text), "text") => {
            object["type"] = "text".into();
            object["text"] = text.as_str().into();
        }
        (PartKind::Text(text), "refusal") => object["refusal"] = text.as_str().into(),
        (PartKind::Text(text), _) => assert_eq!(text, ""),
        (PartKind::Media { source: MediaSource::Uri(uri), media_type, .. }, kind) => {
            let (field, content) = match kind {
                "image_url" => ("url", uri.clone()),
                "input_audio" => ("data", base64(media_type, uri)),
                _ if object["file"]["file_data"].is_string() => ("file_data", uri.clone()),
                _ => ("file_id", uri.clone()),
            };
            fill(&mut object[kind][field], content);
        }
        other => panic!("{other:?}"),
    }
    Some(object)
}

fn anthropic_message(turn: &Turn) -> Value {
    let (mut object, _) = extra(&turn.extra_json);
    let role = if turn.role == Role::User { "user" } else { "assistant" };
    put(&mut object, "role", role);
    let parts: Vec<&Part> = turn.parts.iter().collect();
    fill_content(&mut object, &parts, only_text(&parts), anthropic_block);
    object.into()
}

fn anthropic_block(part: &Part) -> Option<Value> {
    let (mut object, ours) = extra(&part.extra_json);
    if ours["placeholder"] == true {
        return None;
    }
    match &part.kind {
        PartKind::Text(text) if !object.contains_key("type") => {
            put(&mut object, "type", "text");
            put(&mut object, "text", text.as_str());
        }
        PartKind::Text(text) => assert_eq!(text, ""),
        PartKind::ToolUse { id, name, input_json } => {
            put(&mut object, "type", "tool_use");
            put(&mut object, "id", id.as_str());
            put(&mut object, "name", name.as_str());
            put(&mut object, "input", serde_json::from_str::<Value>(input_json).unwrap());
        }
        PartKind::ToolResult { tool_use_id, content, parts, is_error } => {
            put(&mut object, "type", "tool_result");
            put(&mut object, "tool_use_id", tool_use_id.as_str());
            if *is_error {
                put(&mut object, "is_error", true);
            }
            let parts: Vec<&Part> = parts.iter().collect();
            let text = (ours["absent"] != json!(["content"])).then_some(content.as_str());
            fill_content(&mut object, &parts, text, anthropic_block);
        }
        PartKind::Thinking { text, redacted: true, .. } => {
            put(&mut object, "type", "redacted_thinking");
            put(&mut object, "data", text.as_str());
        }
        PartKind::Thinking { text, signature, .. } => {
            put(&mut object, "type", "thinking");
            put(&mut object, "thinking", text.as_str());
            usual(&mut object, &ours, "signature", signature);
        }
        PartKind::Media { media_type, source, .. } => {
            let hole = object.get_mut("source").unwrap();
            let (field, content) = match (source, hole["type"].as_str().unwrap()) {
                (MediaSource::Data(data), _) => ("data", str::from_utf8(data).unwrap().to_owned()),
                (MediaSource::Uri(uri), "base64") => ("data", base64(media_type, uri)),
                (MediaSource::Uri(uri), "url") => ("url", uri.clone()),
                (MediaSource::Uri(uri), _) => ("file_id", uri.clone()),
            };
            fill(&mut hole[field], content);
        }
    }
    Some(object.into())
}

fn fill(hole: &mut Value, content: String) {
    assert_eq!(hole, "", "the content was left in the extra");
    *hole = content.into();
}

fn base64(media_type: &str, uri: &str) -> String {
    uri.strip_prefix(&format!("data:{media_type};base64,")).unwrap().to_owned()
}
