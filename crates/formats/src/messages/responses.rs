//! OpenAI's responses: the `input` item array.
//!
//! Consecutive items of the model (reasoning, messages and calls) become one turn, so that no
//! window separates them. <https://platform.openai.com/docs/api-reference/responses/create>

use std::mem;

use memoird_core::error::CoreError;
use memoird_core::turn::{MessageFormat, Part, PartKind, Role, Turn};
use serde_json::{Map, Value, json};

use super::calls;
use super::client::ForClient;
use super::content::{Content, ReadPart, at_least_one};
use super::fields::{Fields, JsonPath, OURS, extra};
use super::openai::{audio, by_field};

pub(super) const FORMAT: MessageFormat = MessageFormat::OpenAiResponses;

/// Number of parts after which a turn ends at the next opportunity, to stay below the turn's limit.
const RUN_PARTS_MAX: usize = 64;

/// Fields that may hold the input of a call. The first that is not null is used.
pub(super) const INPUTS: [&str; 4] = ["action", "actions", "operation", "arguments"];

enum Item {
    /// A turn by itself.
    Turn(Turn),
    /// A message of the model: its parts and its extra.
    Message(Vec<Part>, Map<String, Value>),
    /// Another item of the model, which is one part.
    Part(Part),
    /// An item of the model that memoird does not interpret.
    Opaque(Part),
}

/// Consecutive items of the model, which become one turn.
#[derive(Default)]
struct Run {
    parts: Vec<Part>,
    for_client: ForClient,
    /// Per item: number of parts and extra of a message, or `None` if the item is one part.
    items: Vec<Option<(usize, Map<String, Value>)>>,
    /// Whether it has an item that would be mistaken for a part of a message.
    opaque: bool,
    /// Whether it has a call.
    calls: bool,
}

pub(super) fn turns(items: Vec<Value>) -> Result<Vec<Turn>, CoreError> {
    let mut turns = Vec::new();
    let mut run = Run::default();
    for (index, mut value) in items.into_iter().enumerate() {
        let path = JsonPath::Item(&JsonPath::Messages, index);
        let for_client = ForClient::take(path, &mut value)?;
        match item(Fields::of_item(path, &mut value)?)? {
            Item::Turn(mut turn) => {
                turns.extend(run.end());
                for_client.put_to(&mut turn);
                turns.push(turn);
            }
            other => {
                if run.is_long_before(&other) {
                    turns.extend(run.end());
                }
                run.for_client.join(path, for_client)?;
                run.push(other);
            }
        }
    }
    turns.extend(run.end());
    Ok(turns)
}

impl Run {
    /// Whether the run should end before this item.
    ///
    /// Reasoning is never separated from the items after it, nor are parallel calls.
    fn is_long_before(&self, item: &Item) -> bool {
        let Item::Part(part) = item else { return false };
        let reasons = matches!(part.kind, PartKind::Thinking { .. });
        reasons && !self.calls && self.parts.len() >= RUN_PARTS_MAX
    }

    fn push(&mut self, item: Item) {
        let (part, opaque) = match item {
            Item::Turn(_) => return,
            Item::Message(parts, rest) => {
                self.items.push(Some((parts.len(), rest)));
                self.parts.extend(parts);
                return;
            }
            Item::Part(part) => (part, false),
            Item::Opaque(part) => (part, true),
        };
        self.opaque |= opaque;
        self.calls |= matches!(part.kind, PartKind::ToolUse { .. });
        self.items.push(None);
        self.parts.push(part);
    }

    /// Returns the run as a turn, if it has items.
    fn end(&mut self) -> Option<Turn> {
        let run = mem::take(self);
        if run.items.is_empty() {
            return None;
        }
        let extra_json = if run.is_plain() {
            let message = run.items.iter().flatten().next();
            message.map_or(String::new(), |(_, rest)| extra(rest))
        } else {
            json!({ OURS: { "items": run.items } }).to_string()
        };
        let mut turn = Turn {
            extra_json,
            format: Some(FORMAT),
            ..Turn::new(Role::Assistant, at_least_one(run.parts))
        };
        run.for_client.put_to(&mut turn);
        Some(turn)
    }

    /// Whether the items can be derived from the parts.
    fn is_plain(&self) -> bool {
        let mut messages = self.items.iter().flatten();
        let first_has_parts = messages.next().is_none_or(|(parts, _)| *parts > 0);
        !self.opaque && (first_has_parts || self.items.len() == 1) && messages.next().is_none()
    }
}

fn item(mut item: Fields<'_>) -> Result<Item, CoreError> {
    let kind = match item.get("type") {
        None if item.get("role").is_some() => return message(item),
        // References to items may omit their type.
        None | Some(Value::Null) if item.get("id").is_some_and(Value::is_string) => {
            return Ok(Item::Opaque(item.into_opaque_part()));
        }
        _ => item.text("type")?.to_owned(),
    };
    match kind.as_str() {
        "message" => message(item),
        "reasoning" => {
            let thinking = reasoning(&mut item);
            Ok(Item::Part(item.into_part(thinking)))
        }
        "function_call" => {
            item.remove("type");
            call(item, "arguments")
        }
        "custom_tool_call" => call(item, "input"),
        "function_call_output" => {
            item.remove("type");
            output(item)
        }
        "custom_tool_call_output" => output(item),
        kind => Ok(other(item, kind)),
    }
}

fn message(mut message: Fields<'_>) -> Result<Item, CoreError> {
    let name = message.take_text("role")?;
    let (role, read): (_, ReadPart) = match name.as_str() {
        "user" => (Role::User, input_part),
        "system" => (Role::System, input_part),
        "developer" => {
            message.leave("role", name);
            (Role::System, input_part)
        }
        "assistant" => (Role::Assistant, output_part),
        unknown => {
            let known = "user, assistant, system or developer";
            return Err(message.path("role").unknown(unknown, known));
        }
    };
    let parts = message.take_content_required("content", read)?.into_parts();
    Ok(match role {
        Role::Assistant => Item::Message(parts, message.into_rest()),
        role => Item::Turn(message.into_turn(FORMAT, role, at_least_one(parts))),
    })
}

fn call(mut call: Fields<'_>, input: &'static str) -> Result<Item, CoreError> {
    let id = call.take_text("call_id")?;
    let name = call.take_text("name")?;
    let input_json = call.take_text(input)?;
    Ok(Item::Part(call.into_part(PartKind::ToolUse {
        id,
        name,
        input_json,
    })))
}

fn output(mut output: Fields<'_>) -> Result<Item, CoreError> {
    let id = output.take_text("call_id")?;
    let content = output.take_content_required("output", input_part)?;
    Ok(Item::Turn(tool_turn(
        output.into_part(content.into_result(id, false)),
    )))
}

/// Parses an item of any other type, and keeps its object whole.
///
/// Calls that the bot answers, and its answers, are parsed as such, because no window may separate
/// them.
fn other(mut item: Fields<'_>, kind: &str) -> Item {
    let call = calls::of_call(FORMAT, kind).filter(|call| item.is_for_client(call));
    if let Some(id) = call.and_then(|call| item.hollow_id(&[call.id])) {
        let mut inputs = INPUTS.iter();
        let input = inputs
            .find(|name| item.get(name).is_some_and(|it| !it.is_null()))
            .and_then(|name| item.replace(name, ""));
        return Item::Part(item.into_part(PartKind::ToolUse {
            id,
            name: kind.to_owned(),
            input_json: input.map_or(String::new(), |input| input.to_string()),
        }));
    }
    let answered = calls::of_output(FORMAT, kind);
    let by_client = answered.filter(|call| item.is_for_client(call));
    if let Some(id) = by_client.and_then(|call| item.hollow_id(call.links)) {
        let result = Content::Absent.into_result(id, false);
        return Item::Turn(tool_turn(item.into_part(result)));
    }
    let is_by_bot = match answered {
        Some(call) => item.is_for_client(call),
        None => kind.ends_with("_output"),
    };
    let part = item.into_opaque_part();
    if !is_by_bot {
        return Item::Opaque(part);
    }
    let extra_json = json!({ OURS: { "items": [null] } }).to_string();
    Item::Turn(Turn {
        extra_json,
        ..tool_turn(part)
    })
}

fn tool_turn(part: Part) -> Turn {
    Turn {
        format: Some(FORMAT),
        ..Turn::new(Role::Tool, vec![part])
    }
}

/// Joins the texts of a reasoning's summary and content. The extra records their lengths.
fn reasoning(item: &mut Fields<'_>) -> PartKind {
    let (mut text, mut bytes) = (String::new(), Vec::new());
    for list in ["summary", "content"] {
        for piece in item.objects_mut(list) {
            if let Some(Value::String(piece)) = piece.get_mut("text") {
                bytes.push(piece.len());
                text.push_str(&mem::take(piece));
            }
        }
    }
    let sealed = item.hollow_text("encrypted_content");
    if bytes.len() > 1 {
        item.leave_ours("bytes", json!(bytes));
    }
    match (bytes.is_empty(), sealed) {
        (true, Ok(data)) => PartKind::Thinking {
            text: data,
            signature: String::new(),
            redacted: true,
        },
        (_, sealed) => PartKind::Thinking {
            text,
            signature: sealed.unwrap_or_default(),
            redacted: false,
        },
    }
}

fn input_part(part: Fields<'_>) -> Result<Part, CoreError> {
    read_part(part, "input_text")
}

fn output_part(part: Fields<'_>) -> Result<Part, CoreError> {
    read_part(part, "output_text")
}

fn read_part(mut part: Fields<'_>, usual_text: &str) -> Result<Part, CoreError> {
    let kind = match part.text("type")? {
        usual if usual == usual_text => {
            part.remove("type");
            Some(PartKind::Text(part.take_text("text")?))
        }
        "input_text" | "output_text" | "text" => Some(PartKind::Text(part.hollow_text("text")?)),
        "refusal" => Some(PartKind::Text(part.hollow_text("refusal")?)),
        "input_image" => by_field(&mut part, &["image_url", "file_id"])?,
        "input_file" => by_field(&mut part, &["file_data", "file_url", "file_id"])?,
        "input_audio" => Some(audio(part.inside("input_audio")?)?),
        _ => None,
    };
    Ok(match kind {
        Some(kind) => part.into_part(kind),
        None => part.into_opaque_part(),
    })
}
