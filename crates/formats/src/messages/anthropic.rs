//! Anthropic's messages: the `messages` array, <https://docs.anthropic.com/en/api/messages>

use memoird_core::error::CoreError;
use memoird_core::turn::{MediaSource, MessageFormat, Part, PartKind, Role, Turn};
use serde_json::Value;

use super::content::{Content, at_least_one, base64_source, media};
use super::fields::Fields;

pub(super) fn turn(mut message: Fields<'_>) -> Result<Turn, CoreError> {
    let name = message.take_text("role")?;
    let role = match name.as_str() {
        "user" => Role::User,
        "assistant" => Role::Assistant,
        // Newer models accept it in the middle of a conversation.
        "system" => Role::System,
        unknown => {
            return Err(message
                .path("role")
                .unknown(unknown, "user, assistant or system"));
        }
    };
    // May be an empty list: the API returns one if the model has nothing to say.
    let content = message.take_content_required("content", block)?;
    let parts = at_least_one(content.into_parts());
    Ok(message.into_turn(MessageFormat::Anthropic, role, parts))
}

fn block(mut block: Fields<'_>) -> Result<Part, CoreError> {
    let kind = match block.text("type")? {
        "tool_use" => tool_use(&mut block)?,
        "tool_result" => tool_result(&mut block)?,
        "thinking" => thinking(&mut block)?,
        "redacted_thinking" => PartKind::Thinking {
            text: block.take_text("data")?,
            signature: String::new(),
            redacted: true,
        },
        _ => return inner_block(block),
    };
    block.remove("type");
    Ok(block.into_part(kind))
}

/// Parses a block that may occur in a tool result.
fn inner_block(mut block: Fields<'_>) -> Result<Part, CoreError> {
    let kind = match block.text("type")? {
        "text" => {
            block.remove("type");
            Some(PartKind::Text(block.take_text("text")?))
        }
        "image" | "document" => media_block(&mut block)?,
        _ => None,
    };
    Ok(match kind {
        Some(kind) => block.into_part(kind),
        None => block.into_opaque_part(),
    })
}

fn tool_use(block: &mut Fields<'_>) -> Result<PartKind, CoreError> {
    let input_json = match block.get("input") {
        Some(input) => input.to_string(),
        None => return Err(block.path("input").expected("an object", None)),
    };
    block.remove("input");
    Ok(PartKind::ToolUse {
        id: block.take_text("id")?,
        name: block.take_text("name")?,
        input_json,
    })
}

fn tool_result(block: &mut Fields<'_>) -> Result<PartKind, CoreError> {
    let id = block.take_text("tool_use_id")?;
    let is_error = match block.get("is_error") {
        None | Some(Value::Null | Value::Bool(false)) => false,
        Some(Value::Bool(true)) => {
            block.remove("is_error");
            true
        }
        other => return Err(block.path("is_error").expected("a boolean", other)),
    };
    let content = block.take_content("content", inner_block)?;
    if matches!(content, Content::Absent) {
        block.leave_absent("content");
    }
    Ok(content.into_result(id, is_error))
}

fn thinking(block: &mut Fields<'_>) -> Result<PartKind, CoreError> {
    let text = block.take_text("thinking")?;
    // Servers that offer this protocol for other models cannot sign.
    let signature = match block.get("signature") {
        Some(_) => block.take_text("signature")?,
        None => {
            block.leave_absent("signature");
            String::new()
        }
    };
    Ok(PartKind::Thinking {
        text,
        signature,
        redacted: false,
    })
}

/// Parses an image or a document. `None` if its source is of an unknown type.
fn media_block(block: &mut Fields<'_>) -> Result<Option<PartKind>, CoreError> {
    let mut fields = block.inside("source")?;
    let mut media_type = String::new();
    let source = match fields.text("type")? {
        "base64" => {
            media_type = fields.text("media_type")?.to_owned();
            base64_source(&media_type, &fields.hollow_text("data")?)
        }
        "text" => {
            media_type = fields.text("media_type")?.to_owned();
            MediaSource::Data(fields.hollow_text("data")?.into_bytes())
        }
        "url" => MediaSource::Uri(fields.hollow_text("url")?),
        "file" => MediaSource::Uri(fields.hollow_text("file_id")?),
        _ => return Ok(None),
    };
    Ok(Some(media(&media_type, source, block.get("title"))))
}
