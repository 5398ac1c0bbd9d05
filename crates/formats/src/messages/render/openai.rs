//! OpenAI's chat completions. A call's results are messages of their own that follow it
//! at once and hold text only, so what else came with them waits until the last of them.

mod fitted;
mod given;

use memoird_core::mark::Mark;
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
        mark: options.mark,
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
        let (rules, mark) = (&options.rules, options.mark);
        writer.messages = fitted::fitted(writer.messages, &mut writer.ends, rules, mark);
    }
    (String::new(), writer.messages, writer.ends)
}

/// A message as it came in, if the provider takes it: others that speak this form write empty lists
/// of calls, which it refuses, and messages that say nothing.
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
    /// What waits for the last of a call's results.
    waiting: Option<Waiting>,
    /// Calls that have no result yet.
    open_calls: Vec<Value>,
    mark: Mark,
}

/// Parts of a user's message that came with a call's results.
struct Waiting {
    /// The first turn that they are of.
    turn: usize,
    fields: Map<String, Value>,
    parts: Vec<Value>,
}

impl Writer {
    /// Writes a message, and notes which calls it makes or answers.
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

    /// Gives the calls that still wait a result that says so, where something is said behind
    /// them: this form takes no other message before all results.
    fn answer_open_calls(&mut self) {
        if self.waiting.is_none() {
            return;
        }
        let open_calls = std::mem::take(&mut self.open_calls).into_iter();
        let pending = format!("[memoird {}: no result yet]", self.mark);
        let result = |id: Value| json!({ "role": "tool", "tool_call_id": id, "content": pending });
        self.messages.extend(open_calls.map(result));
    }

    /// Writes what waited, and moves the ends of the turns it is of behind it.
    fn flush(&mut self) {
        let Some(Waiting {
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

    /// Keeps parts for a user's message, to be written before the next turn that brings
    /// no result.
    fn wait(&mut self, more: Vec<Value>, fields: Map<String, Value>) {
        if more.is_empty() {
            return;
        }
        let turn = self.ends.len();
        let empty = || Waiting {
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
    let (mut said, mut calls) = (Vec::new(), Vec::new());
    for piece in pieces.rest {
        match piece {
            Piece::ToolUse(call, fields) => {
                let function = json!({ "name": call.name, "arguments": call.arguments() });
                let call = json!({ "id": call.id, "type": "function", "function": function });
                calls.push(with(call, fields));
            }
            other => said.push(other),
        }
    }
    let said = LIST.parts(said);
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

/// A tool's message; media of its result go to the user's message after it.
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

/// The part for media; `None` for media that the provider does not take.
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
