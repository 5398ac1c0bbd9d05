//! Renders OpenAI's chat completions.
//!
//! Results are separate messages that directly follow their call and hold only text. Other content
//! of the same turns is written after the last of them.

mod fitted;
mod given;

use memoird_core::nonce::Nonce;
use memoird_core::turn::{MessageFormat, Part, PartKind, Role, Turn};
use serde_json::{Map, Value, json};

use super::extra::{add, with};
use super::ids::Ids;
use super::list::ListFormat;
use super::media::{Kind, Media, Source};
use super::pieces::{Piece, Pieces, ToolResult};
use super::{Parts, RenderOptions};

const FORMAT: MessageFormat = MessageFormat::OpenAi;

const LIST: ListFormat = ListFormat {
    text_type: "text",
    media_part,
};

pub(super) fn render(turns: &[Turn], options: &RenderOptions<'_>) -> Parts {
    let ids = Ids::new(FORMAT, turns);
    let mut writer = Writer {
        nonce: options.nonce,
        ..Writer::default()
    };
    if !options.system.is_empty() {
        writer
            .messages
            .push(json!({ "role": "system", "content": options.system }));
    }
    for turn in turns {
        let is_result = |part: &Part| matches!(part.kind, PartKind::ToolResult { .. });
        if !turn.parts.iter().any(is_result) {
            writer.flush();
        }
        let given = (turn.format == Some(FORMAT))
            .then(|| given::message(turn))
            .flatten();
        match given {
            Some(message) if options.is_request => {
                sendable(message).into_iter().for_each(|it| writer.push(it));
            }
            Some(message) => writer.push(message),
            None => {
                let pieces = Pieces::read(turn, FORMAT, &ids);
                writer.translate(pieces);
            }
        }
        writer.ends.push(writer.messages.len());
    }
    writer.answer_open_calls();
    writer.flush();
    if options.is_request {
        let (rules, nonce) = (&options.rules, options.nonce);
        writer.messages = fitted::fitted(writer.messages, &mut writer.ends, rules, nonce);
    }
    (String::new(), writer.messages, writer.ends)
}

/// Returns a message that came in this format if the provider accepts it.
///
/// Other servers with this protocol write empty lists of calls, which the provider rejects, and
/// messages without content.
fn sendable(mut message: Value) -> Option<Value> {
    let fields = message.as_object_mut()?;
    let is_nothing = |name: &str, fields: &Map<String, Value>| match fields.get(name) {
        None | Some(Value::Null) => true,
        Some(Value::Array(list)) => list.is_empty(),
        Some(_) => false,
    };
    if is_nothing("tool_calls", fields) {
        fields.shift_remove("tool_calls");
    }
    let mut says = ["content", "tool_calls", "refusal", "audio", "function_call"].into_iter();
    let is_silent = says.all(|name| is_nothing(name, fields));
    (!is_silent).then_some(message)
}

#[derive(Default)]
struct Writer {
    messages: Vec<Value>,
    ends: Vec<usize>,
    /// Content to write after the last result.
    waiting: Option<DeferredUserMessage>,
    /// Ids of calls that have no result yet.
    open_calls: Vec<Value>,
    nonce: Nonce,
}

/// Parts for a user message that came with the results of a call.
struct DeferredUserMessage {
    /// First turn that they belong to.
    turn: usize,
    fields: Map<String, Value>,
    parts: Vec<Value>,
}

impl Writer {
    /// Writes a message, and records the calls it makes or answers.
    fn push(&mut self, message: Value) {
        if let Some(answered) = message.get("tool_call_id") {
            self.open_calls.retain(|id| id != answered);
        }
        let calls = message.get("tool_calls").and_then(Value::as_array);
        let ids = calls
            .into_iter()
            .flatten()
            .filter_map(|call| call.get("id"));
        self.open_calls.extend(ids.cloned());
        self.messages.push(message);
    }

    /// Answers open calls with a pending result if other content follows them.
    ///
    /// This format accepts no other message before all results.
    fn answer_open_calls(&mut self) {
        if self.waiting.is_none() {
            return;
        }
        let open_calls = std::mem::take(&mut self.open_calls).into_iter();
        let pending = format!("[memoird {}: no result yet]", self.nonce);
        let result = |id: Value| json!({ "role": "tool", "tool_call_id": id, "content": pending });
        self.messages.extend(open_calls.map(result));
    }

    /// Writes the waiting content, and moves the ends of its turns after it.
    fn flush(&mut self) {
        let Some(DeferredUserMessage {
            turn,
            fields,
            parts,
        }) = self.waiting.take()
        else {
            return;
        };
        self.messages.extend(LIST.message("user", parts, fields));
        self.ends[turn..].fill(self.messages.len());
    }

    fn translate(&mut self, mut pieces: Pieces<'_>) {
        match pieces.role {
            Role::System => {
                let parts = LIST.parts(pieces.rest);
                self.messages
                    .extend(LIST.message("system", parts, pieces.fields));
            }
            Role::Assistant => {
                if let Some(message) = assistant(pieces) {
                    self.push(message);
                }
            }
            Role::User | Role::Tool => {
                let mut shown = Vec::new();
                for result in std::mem::take(&mut pieces.results) {
                    self.push(tool(result, &pieces.fields, &mut shown));
                }
                shown.extend(LIST.parts(pieces.rest));
                self.wait(shown, pieces.fields);
            }
        }
    }

    /// Holds parts for a user message, which is written before the next turn without a result.
    fn wait(&mut self, more: Vec<Value>, fields: Map<String, Value>) {
        if more.is_empty() {
            return;
        }
        let turn = self.ends.len();
        let empty = || DeferredUserMessage {
            turn,
            fields: Map::new(),
            parts: Vec::new(),
        };
        let waiting = self.waiting.get_or_insert_with(empty);
        waiting.parts.extend(more);
        add(&mut waiting.fields, fields);
    }
}

fn assistant(pieces: Pieces<'_>) -> Option<Value> {
    let (mut others, mut calls) = (Vec::new(), Vec::new());
    for piece in pieces.rest {
        match piece {
            Piece::ToolUse(call, fields) => {
                let function = json!({ "name": call.name, "arguments": call.arguments() });
                let call = json!({ "id": call.id, "type": "function", "function": function });
                calls.push(with(call, fields));
            }
            other => others.push(other),
        }
    }
    let said = LIST.parts(others);
    if said.is_empty() && calls.is_empty() {
        return None;
    }
    let mut message = json!({ "role": "assistant", "content": null });
    if !said.is_empty() {
        message["content"] = LIST.content(said);
    }
    if !calls.is_empty() {
        message["tool_calls"] = calls.into();
    }
    Some(with(message, pieces.fields))
}

/// Builds a tool message. Media of the result are added to `shown`, for the user message after it.
fn tool(mut result: ToolResult<'_>, fields: &Map<String, Value>, shown: &mut Vec<Value>) -> Value {
    let mut texts = Vec::new();
    for piece in result.take_content_with_error() {
        if let Piece::Media(media, fields) = &piece
            && let Some(part) = media_part(media)
            && part.get("text").is_none()
        {
            texts.push(LIST.text(media.label()));
            shown.push(with(part, fields.clone()));
        } else {
            texts.extend(LIST.parts(vec![piece]));
        }
    }
    let mut message = json!({ "role": "tool", "tool_call_id": result.id });
    message["content"] = LIST.content(texts);
    with(with(message, result.fields), fields.clone())
}

/// Returns the part for media. `None` if the provider does not accept it.
fn media_part(media: &Media<'_>) -> Option<Value> {
    Some(match (media.kind, &media.source) {
        (Kind::Image, _) => json!({ "type": "image_url", "image_url": { "url": media.url()? } }),
        (Kind::Audio, Source::Base64(data)) => {
            let format = match media.media_type {
                "audio/wav" | "audio/x-wav" | "audio/wave" => "wav",
                "audio/mpeg" | "audio/mp3" => "mp3",
                _ => return None,
            };
            json!({ "type": "input_audio", "input_audio": { "data": data, "format": format } })
        }
        (Kind::Document, Source::Base64(data)) => match media.text() {
            Some(text) => LIST.text(format!("{}\n\n{text}", media.label())),
            None => {
                let data = media.url().unwrap_or_else(|| data.to_string());
                let file = json!({ "filename": media.file_name(), "file_data": data });
                json!({ "type": "file", "file": file })
            }
        },
        (Kind::Document, Source::File(id)) => json!({ "type": "file", "file": { "file_id": id } }),
        _ => return None,
    })
}
