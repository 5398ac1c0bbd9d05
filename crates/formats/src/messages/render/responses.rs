//! Renders OpenAI's responses. Each message, call and result is an item.

mod given;

use std::collections::HashMap;

use memoird_core::turn::{MessageFormat, PartKind, Role, Turn};
use serde_json::{Value, json};

use super::extra::{Extra, add, with};
use super::ids::Ids;
use super::list::ListFormat;
use super::media::{Kind, Media, Source};
use super::pieces::{Piece, Pieces, ToolResult};
use super::{Parts, RenderOptions};
use crate::messages::calls::{self, AnswerText};

const FORMAT: MessageFormat = MessageFormat::OpenAiResponses;

const LIST: ListFormat = ListFormat {
    text_type: "input_text",
    media_part,
};

pub(super) fn render(turns: &[Turn], options: &RenderOptions<'_>) -> Parts {
    let ids = Ids::new(FORMAT, turns);
    let mut items = Vec::new();
    let mut ends = Vec::with_capacity(turns.len());
    let mut kinds = HashMap::new();
    for turn in turns {
        let given = (turn.format == Some(FORMAT))
            .then(|| given::items(turn))
            .flatten();
        match given {
            Some(given) => {
                kinds.extend(odd_calls(turn));
                items.extend(given);
            }
            None => {
                let pieces = Pieces::read(turn, FORMAT, &ids);
                translate(pieces, &kinds, &mut items);
            }
        }
        ends.push(items.len());
    }
    (options.system.to_owned(), items, ends)
}

/// Returns ids and types of the calls whose result is not a `function_call_output`.
fn odd_calls(turn: &Turn) -> impl Iterator<Item = (&str, String)> {
    turn.parts.iter().filter_map(|part| match &part.kind {
        PartKind::ToolUse { id, .. } => {
            let extra = Extra::read(&part.extra_json);
            Some((id.as_str(), extra.kind()?.to_owned()))
        }
        _ => None,
    })
}

fn translate(mut pieces: Pieces<'_>, kinds: &HashMap<&str, String>, items: &mut Vec<Value>) {
    for result in std::mem::take(&mut pieces.results) {
        items.push(output(result, kinds));
    }
    let role = match pieces.role {
        Role::System => "system",
        Role::User | Role::Tool => "user",
        Role::Assistant => return assistant(pieces, items),
    };
    items.extend(LIST.message(role, LIST.parts(pieces.rest), pieces.fields));
}

/// Messages of the model are rendered as strings.
///
/// The parts of a list would need ids that only the provider can assign.
fn assistant(pieces: Pieces<'_>, items: &mut Vec<Value>) {
    for piece in pieces.rest {
        items.push(match piece {
            Piece::Text(text, mut fields) => {
                add(&mut fields, pieces.fields.clone());
                with(json!({ "role": "assistant", "content": text }), fields)
            }
            Piece::ToolUse(call, fields) => {
                let (id, name, arguments) = (&call.id, call.name, call.arguments());
                let mut item = json!({ "type": "function_call", "call_id": id, "name": name });
                item["arguments"] = arguments.into();
                with(item, fields)
            }
            Piece::Whole(item) => item.into(),
            Piece::Media(..) | Piece::Thinking(..) => continue,
        });
    }
}

fn output(mut result: ToolResult<'_>, kinds: &HashMap<&str, String>) -> Value {
    let (id, is_error) = (result.id.clone(), result.is_error);
    let content = LIST.content(LIST.parts(result.take_content_with_error()));
    let kind = kinds.get(&*id).map_or("function_call", String::as_str);
    let said = AnswerText {
        id: &id,
        content,
        is_error,
    };
    let write = calls::of_call(FORMAT, kind).and_then(|call| call.answer);
    let item = write.map_or_else(|| calls::function_output(&said), |write| write(&said));
    with(item, result.fields)
}

/// Returns the part for media. `None` if the provider does not accept it.
fn media_part(media: &Media<'_>) -> Option<Value> {
    Some(match (media.kind, &media.source) {
        (Kind::Image, Source::File(id)) => {
            json!({ "type": "input_image", "detail": "auto", "file_id": id })
        }
        (Kind::Image, _) => {
            json!({ "type": "input_image", "detail": "auto", "image_url": media.url()? })
        }
        (Kind::Document, Source::Base64(data)) => match media.text() {
            Some(text) => LIST.text(format!("{}\n\n{text}", media.label())),
            None => {
                let data = media.url().unwrap_or_else(|| data.to_string());
                json!({ "type": "input_file", "filename": media.file_name(), "file_data": data })
            }
        },
        (Kind::Document, Source::Url(url)) => json!({ "type": "input_file", "file_url": url }),
        (Kind::Document, Source::File(id)) => json!({ "type": "input_file", "file_id": id }),
        _ => return None,
    })
}
