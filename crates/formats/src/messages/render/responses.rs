//! OpenAI's responses. Each message, call and result is an item by itself.

mod given;

use std::collections::HashSet;

use memoird_core::turn::{MessageFormat, PartKind, Role, Turn};
use serde_json::{Value, json};

use super::extra::{add, with};
use super::ids::Ids;
use super::list::ListFormat;
use super::media::{Kind, Media, Source};
use super::pieces::{Piece, Pieces, ToolResult};
use super::{Parts, RenderOptions};

const FORMAT: MessageFormat = MessageFormat::OpenAiResponses;

const LIST: ListFormat = ListFormat {
    text_type: "input_text",
    media_part,
};

pub(super) fn render(turns: &[Turn], options: &RenderOptions<'_>) -> Parts {
    let ids = Ids::new(FORMAT, turns);
    let mut items = Vec::new();
    let mut ends = Vec::with_capacity(turns.len());
    let mut custom = HashSet::new();
    for turn in turns {
        let given = (turn.format == Some(FORMAT))
            .then(|| given::items(turn))
            .flatten();
        match given {
            Some(given) => {
                custom.extend(custom_calls(turn));
                items.extend(given);
            }
            None => {
                let pieces = Pieces::read(turn, FORMAT, &ids);
                translate(pieces, &custom, &mut items);
            }
        }
        ends.push(items.len());
    }
    (options.system.to_owned(), items, ends)
}

/// The calls that want another kind of result.
fn custom_calls(turn: &Turn) -> impl Iterator<Item = &str> {
    turn.parts.iter().filter_map(|part| match &part.kind {
        PartKind::ToolUse { id, .. } if part.extra_json.contains("\"custom_tool_call\"") => {
            Some(id.as_str())
        }
        _ => None,
    })
}

fn translate(mut pieces: Pieces<'_>, custom: &HashSet<&str>, items: &mut Vec<Value>) {
    for result in std::mem::take(&mut pieces.results) {
        items.push(output(result, custom));
    }
    let role = match pieces.role {
        Role::System => "system",
        Role::User | Role::Tool => "user",
        Role::Assistant => return assistant(pieces, items),
    };
    items.extend(LIST.message(role, LIST.parts(pieces.rest), pieces.fields));
}

/// The model's messages are strings: as a list their parts would need ids that only the
/// provider gives.
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

fn output(mut result: ToolResult<'_>, custom: &HashSet<&str>) -> Value {
    let content = LIST.content(LIST.parts(result.take_content_with_error()));
    let kind = match custom.contains(&*result.id) {
        true => "custom_tool_call_output",
        false => "function_call_output",
    };
    let mut item = json!({ "type": kind, "call_id": result.id });
    item["output"] = content;
    with(item, result.fields)
}

/// The part for media; `None` for media that the provider does not take.
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
