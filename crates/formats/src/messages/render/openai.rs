//! OpenAI's chat completions. A call's results are messages of their own that follow it
//! at once and hold text only, so what else came with them waits until the last of them.

mod given;

use memoird_core::turn::{MessageFormat, Part, PartKind, Role, Turn};
use serde_json::{Map, Value, json};

use super::extra::{add, object};
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
    let mut writer = Writer::default();
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
            Some(message) => writer.messages.push(message),
            None => {
                let pieces = Pieces::read(turn, FORMAT, &ids);
                writer.translate(pieces);
            }
        }
        writer.ends.push(writer.messages.len());
    }
    writer.flush();
    (String::new(), writer.messages, writer.ends)
}

#[derive(Default)]
struct Writer {
    messages: Vec<Value>,
    ends: Vec<usize>,
    /// What waits for the last of a call's results.
    waiting: Option<Waiting>,
}

/// Parts of a user's message that came with a call's results.
struct Waiting {
    /// The first turn that they are of.
    turn: usize,
    fields: Map<String, Value>,
    parts: Vec<Value>,
}

impl Writer {
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
            Role::Assistant => self.messages.extend(assistant(pieces)),
            Role::User | Role::Tool => {
                let mut shown = Vec::new();
                for result in std::mem::take(&mut pieces.results) {
                    self.messages.push(tool(result, &pieces.fields, &mut shown));
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
                let arguments = call.arguments();
                let function = json!({ "name": call.name, "arguments": arguments });
                let mut call = object([
                    ("id", call.id.into()),
                    ("type", "function".into()),
                    ("function", function),
                ]);
                add(&mut call, fields);
                calls.push(Value::from(call));
            }
            other => said.push(other),
        }
    }
    let said = LIST.parts(said);
    if said.is_empty() && calls.is_empty() {
        return None;
    }
    let content = if said.is_empty() {
        Value::Null
    } else {
        LIST.content(said)
    };
    let mut message = object([("role", "assistant".into()), ("content", content)]);
    if !calls.is_empty() {
        message.insert("tool_calls".to_owned(), calls.into());
    }
    add(&mut message, pieces.fields);
    Some(message.into())
}

/// A tool's message; media of its result are put to what is shown after it.
fn tool(mut result: ToolResult<'_>, fields: &Map<String, Value>, shown: &mut Vec<Value>) -> Value {
    let mut texts = Vec::new();
    for piece in result.take_content_with_error() {
        if let Piece::Media(media, fields) = &piece
            && let Some(mut part) = media_part(media)
            && !part.contains_key("text")
        {
            texts.push(LIST.text(media.label()).into());
            add(&mut part, fields.clone());
            shown.push(part.into());
        } else {
            texts.extend(LIST.parts(vec![piece]));
        }
    }
    let mut message = object([
        ("role", "tool".into()),
        ("tool_call_id", result.id.into()),
        ("content", LIST.content(texts)),
    ]);
    add(&mut message, result.fields);
    add(&mut message, fields.clone());
    message.into()
}

/// What this provider takes of media; `None` where it takes nothing.
fn media_part(media: &Media<'_>) -> Option<Map<String, Value>> {
    let (kind, inner) = match (media.kind, &media.source) {
        (Kind::Image, _) => ("image_url", json!({ "url": media.url()? })),
        (Kind::Audio, Source::Base64(data)) => {
            let format = match media.media_type {
                "audio/wav" | "audio/x-wav" | "audio/wave" => "wav",
                "audio/mpeg" | "audio/mp3" => "mp3",
                _ => return None,
            };
            ("input_audio", json!({ "data": data, "format": format }))
        }
        (Kind::Document, Source::Base64(data)) => {
            if let Some(text) = media.text() {
                return Some(LIST.text(format!("{}\n\n{text}", media.label())));
            }
            let data = media.url().unwrap_or_else(|| data.to_string());
            (
                "file",
                json!({ "filename": media.file_name(), "file_data": data }),
            )
        }
        (Kind::Document, Source::File(id)) => ("file", json!({ "file_id": id })),
        _ => return None,
    };
    Some(object([("type", kind.into()), (kind, inner)]))
}
