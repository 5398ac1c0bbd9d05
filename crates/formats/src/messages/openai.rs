//! OpenAI's chat completions: the `messages` array.
//!
//! <https://platform.openai.com/docs/api-reference/chat/create>

use memoird_core::error::CoreError;
use memoird_core::turn::{MediaSource, MessageFormat, Part, PartKind, Role, Turn};
use serde_json::Value;

use super::content::{Content, at_least_one, base64_source, media, read_items};
use super::fields::Fields;

pub(super) fn turn(mut message: Fields<'_>) -> Result<Turn, CoreError> {
    let name = message.take_text("role")?;
    let (role, parts) = match name.as_str() {
        "system" => (Role::System, said(&mut message)?),
        "developer" => {
            message.leave("role", name);
            (Role::System, said(&mut message)?)
        }
        "user" => (Role::User, said(&mut message)?),
        "assistant" => (Role::Assistant, answered(&mut message)?),
        "tool" => (Role::Tool, vec![tool_result(&mut message)?]),
        "function" => {
            let problem = "the legacy role \"function\" is not supported; \
                           send a \"tool\" message with the call's tool_call_id";
            return Err(message.path("role").refuse(problem));
        }
        unknown => {
            let known = "system, developer, user, assistant or tool";
            return Err(message.path("role").unknown(unknown, known));
        }
    };
    Ok(message.into_turn(MessageFormat::OpenAi, role, parts))
}

/// Parses the parts of a message that must have content.
fn said(message: &mut Fields<'_>) -> Result<Vec<Part>, CoreError> {
    let content = message.take_content_required("content", part)?;
    some_items(message, content).map(Content::into_parts)
}

/// Parses the parts of an assistant message: content, then calls.
fn answered(message: &mut Fields<'_>) -> Result<Vec<Part>, CoreError> {
    let content = message.take_content("content", part)?;
    let mut parts = some_items(message, content)?.into_parts();
    let calls = message.take_list("tool_calls")?;
    parts.extend(read_items(message.path("tool_calls"), calls, tool_use)?);
    Ok(at_least_one(parts))
}

fn tool_result(message: &mut Fields<'_>) -> Result<Part, CoreError> {
    let id = message.take_text("tool_call_id")?;
    let content = message.take_content_required("content", part)?;
    Ok(some_items(message, content)?.into_result(id, false).into())
}

/// The API rejects empty lists.
fn some_items(message: &Fields<'_>, content: Content) -> Result<Content, CoreError> {
    match content {
        Content::List(parts) if parts.is_empty() => Err(message
            .path("content")
            .refuse("an empty list; expected at least one part")),
        content => Ok(content),
    }
}

fn tool_use(mut call: Fields<'_>) -> Result<Part, CoreError> {
    let id = call.take_text("id")?;
    // Servers that offer this protocol often omit the type.
    let custom = match call.get("type").map(|_| call.text("type")).transpose()? {
        None => {
            call.leave_absent("type");
            false
        }
        Some("function") => {
            call.remove("type");
            false
        }
        Some("custom") => true,
        Some(unknown) => return Err(call.path("type").unknown(unknown, "function or custom")),
    };
    let (inner, input) = called_fields(custom);
    let mut called = call.inside(inner)?;
    let name = called.take_text("name")?;
    let input_json = called.take_text(input)?;
    if called.is_empty() {
        call.remove(inner);
    }
    Ok(call.into_part(PartKind::ToolUse {
        id,
        name,
        input_json,
    }))
}

/// Names of a call's inner object and of the arguments in it.
pub(super) fn called_fields(is_custom: bool) -> (&'static str, &'static str) {
    if is_custom {
        ("custom", "input")
    } else {
        ("function", "arguments")
    }
}

fn part(mut part: Fields<'_>) -> Result<Part, CoreError> {
    let kind = match part.text("type")? {
        "text" => {
            part.remove("type");
            PartKind::Text(part.take_text("text")?)
        }
        "refusal" => PartKind::Text(part.hollow_text("refusal")?),
        "image_url" => {
            let url = part.inside("image_url")?.hollow_text("url")?;
            by_uri(url, None)
        }
        "input_audio" => audio(part.inside("input_audio")?)?,
        "file" => match by_field(&mut part.inside("file")?, &["file_data", "file_id"])? {
            Some(kind) => kind,
            None => return Ok(part.into_opaque_part()),
        },
        _ => return Ok(part.into_opaque_part()),
    };
    Ok(part.into_part(kind))
}

pub(super) fn audio(mut audio: Fields<'_>) -> Result<PartKind, CoreError> {
    let media_type = match audio.text("format")? {
        // The format differs from the media type only here.
        "mp3" => "audio/mpeg".to_owned(),
        format => format!("audio/{format}"),
    };
    let source = base64_source(&media_type, &audio.hollow_text("data")?);
    Ok(media(&media_type, source, None))
}

/// Parses media from the first of these optional fields that is present.
pub(super) fn by_field(
    fields: &mut Fields<'_>,
    names: &[&'static str],
) -> Result<Option<PartKind>, CoreError> {
    for &name in names {
        if matches!(fields.get(name), None | Some(Value::Null)) {
            continue;
        }
        let uri = fields.hollow_text(name)?;
        return Ok(Some(by_uri(uri, fields.get("filename"))));
    }
    Ok(None)
}

/// Builds media from a URI. The type is known only from a `data:` URI.
fn by_uri(uri: String, name: Option<&Value>) -> PartKind {
    let data = uri.strip_prefix("data:").unwrap_or_default();
    let end = data.find([';', ',']).unwrap_or(0);
    let media_type = data[..end].to_owned();
    media(&media_type, MediaSource::Uri(uri), name)
}
