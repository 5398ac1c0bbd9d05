//! Items of conversations, and the turns that hold them.
//!
//! An item without an id of its own gets one that contains the generation, the turn's seq and the
//! item's index in the turn. Such an item is found without a scan, and a repeated request returns
//! the same ids. An item that came with an id keeps it.
//!
//! Each item is a turn of its own. Deleting one thus needs no content of another, so that
//! concurrent deletions cannot undo each other.

use std::fmt::Write as _;

use memoird_core::turn::{MessageFormat, Part, PartKind, Role, Turn};
use memoird_formats::messages::{self, RenderOptions};
use memoird_proto::v1;
use memoird_store::encoding;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::error::{invalid, item_invalid};
use crate::wire::refusal::Refusal;
use crate::wire::status;

const FORMAT: MessageFormat = MessageFormat::OpenAiResponses;

/// Maximum number of items in one request.
const ITEMS_MAX: usize = 20;

/// `client_json` that marks the turn of a deleted item.
const DELETED: &str = r#"{"memoird":{"deleted":true}}"#;

/// Length of a generation's id.
const GENERATION_CHARS: usize = 26;
/// Digits of an item's index in its turn. A turn has up to 128 parts.
const INDEX_DIGITS: usize = 2;

pub(super) struct Item {
    pub(super) id: String,
    /// Position in the generation: seq of the turn, and index in it.
    pub(super) position: Position,
    pub(super) json: Value,
}

pub(super) type Position = (u64, usize);

/// Parses the items of a request, each to a turn.
///
/// # Errors
/// If there are too many, or one is invalid.
pub(super) fn turns(items: &[Box<RawValue>]) -> Result<Vec<Turn>, Refusal> {
    if items.len() > ITEMS_MAX {
        let problem = format!("{} items, and the maximum is {ITEMS_MAX}", items.len());
        return Err(invalid("items", problem));
    }
    let turn = |(index, item): (usize, &RawValue)| {
        let parsed = messages::parse(FORMAT, &format!("[{item}]"));
        let turn = parsed.map_err(|error| item_invalid(index, &error))?.pop();
        turn.ok_or_else(|| invalid(format!("items[{index}]"), "it has no content"))
    };
    items
        .iter()
        .map(AsRef::as_ref)
        .enumerate()
        .map(turn)
        .collect()
}

/// Encodes turns for a call.
pub(super) fn encoded(turns: Vec<Turn>) -> Vec<v1::Turn> {
    turns.into_iter().map(encoding::to_proto).collect()
}

/// Returns the items of a turn. None if they were deleted.
pub(super) fn of_turn(generation: &str, seq: u64, turn: &Turn) -> Result<Vec<Item>, Refusal> {
    if turn.client_json == DELETED {
        return Ok(Vec::new());
    }
    let turns = std::slice::from_ref(turn);
    let rendered = messages::render(FORMAT, turns, &RenderOptions::default());
    let items: Vec<Value> =
        serde_json::from_str(&rendered.messages_json).map_err(status::reply_unwritable)?;
    let items = items.into_iter().enumerate().map(|(index, json)| {
        let own_id = json.get("id").and_then(Value::as_str);
        let own_id = own_id.filter(|id| !id.is_empty()).map(str::to_owned);
        let made = || made_id(kind_of(&json), generation, seq, index);
        let id = own_id.unwrap_or_else(made);
        Item {
            position: (seq, index),
            json: complete(json, &id),
            id,
        }
    });
    Ok(items.collect())
}

/// Returns the position in an id that memoird has made for an item of this generation.
pub(super) fn position_in(id: &str, generation: &str) -> Option<Position> {
    let (_, rest) = id.split_once('_')?;
    let (own, position) = rest.split_at_checked(GENERATION_CHARS)?;
    let (seq, index) = position.split_at_checked(position.len().checked_sub(INDEX_DIGITS)?)?;
    let is_own = own.eq_ignore_ascii_case(generation);
    let seq = u64::from_str_radix(seq, 16).ok().filter(|_| is_own)?;
    Some((seq, usize::from_str_radix(index, 16).ok()?))
}

fn made_id(kind: &str, generation: &str, seq: u64, index: usize) -> String {
    let prefix = match kind {
        "message" => "msg",
        "function_call" => "fc",
        "function_call_output" => "fco",
        "custom_tool_call" => "ctc",
        "custom_tool_call_output" => "ctco",
        "reasoning" => "rs",
        _ => "item",
    };
    let mut id = format!("{prefix}_{}", generation.to_ascii_lowercase());
    // Writing to a string cannot fail.
    let _ = write!(id, "{seq:010x}{index:02x}");
    id
}

fn kind_of(item: &Value) -> &str {
    let kind = item.get("type").and_then(Value::as_str);
    kind.unwrap_or("message")
}

/// Adds the fields that an item of a conversation always has.
fn complete(item: Value, id: &str) -> Value {
    let Value::Object(mut rest) = item else {
        return item;
    };
    let is_message = rest.get("role").is_some();
    let kind = rest.shift_remove("type");
    let kind = kind.or_else(|| is_message.then(|| "message".into()));
    let mut complete = Map::new();
    complete.insert("id".to_owned(), id.into());
    complete.extend(kind.map(|kind| ("type".to_owned(), kind)));
    rest.shift_remove("id");
    if is_message {
        let text_type = match rest.get("role").and_then(Value::as_str) {
            Some("assistant") => "output_text",
            _ => "input_text",
        };
        if let Some(content) = rest.get_mut("content")
            && let Value::String(text) = content
        {
            let mut part = json!({ "type": text_type, "text": std::mem::take(text) });
            if text_type == "output_text" {
                part["annotations"] = json!([]);
            }
            *content = json!([part]);
        }
    }
    let has_status = is_message
        || complete
            .get("type")
            .is_some_and(|kind| kind == "function_call" || kind == "function_call_output");
    if has_status && !rest.contains_key("status") {
        complete.insert("status".to_owned(), "completed".into());
    }
    complete.extend(rest);
    complete.into()
}

/// Makes the replacement for the turn of a deleted item.
///
/// Its content is in no window. Calls and results stay, without their content, because a window
/// must contain both or none.
///
/// # Errors
/// If the turn has other items, or is a call or a result of a tool other than functions.
pub(super) fn deleted(turn: &Turn, items: &[Item]) -> Result<v1::Turn, Refusal> {
    let [item] = items else {
        let problem = "its turn has several items, which a bot appended as one; use UpdateTurn";
        return Err(invalid("item_id", problem));
    };
    let links = turn.links();
    let is_tool_turn = !links.uses.is_empty() || !links.results.is_empty();
    let blank = if is_tool_turn {
        blank_tool_turn(&item.json)?
    } else {
        blank_turn(turn.role)
    };
    Ok(v1::Turn {
        client_id: turn.client_id.clone(),
        client_json: DELETED.to_owned(),
        ..encoding::to_proto(blank)
    })
}

fn blank_tool_turn(item: &Value) -> Result<Turn, Refusal> {
    let (kind, id) = (kind_of(item), item.get("call_id"));
    let blank = match kind {
        "function_call" => {
            json!({ "type": kind, "call_id": id, "name": item["name"], "arguments": "{}" })
        }
        "custom_tool_call" => {
            json!({ "type": kind, "call_id": id, "name": item["name"], "input": "" })
        }
        "function_call_output" | "custom_tool_call_output" => {
            json!({ "type": kind, "call_id": id, "output": "" })
        }
        _ => {
            let problem = format!("an item of type {kind} cannot be deleted by itself");
            return Err(invalid("item_id", problem));
        }
    };
    let mut turns = messages::parse(FORMAT, &json!([blank]).to_string())?;
    turns.pop().ok_or_else(status::turn_damaged)
}

/// A turn that is rendered as nothing in its format.
fn blank_turn(role: Role) -> Turn {
    let placeholder = Part {
        kind: PartKind::Text(String::new()),
        extra_json: r#"{"memoird":{"placeholder":true}}"#.to_owned(),
    };
    Turn {
        extra_json: r#"{"memoird":{"items":[]}}"#.to_owned(),
        format: Some(FORMAT),
        ..Turn::new(role, vec![placeholder])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GENERATION: &str = "01JDVB3Z6X8Q0N5T2Y4W7R9KMC";

    #[test]
    fn made_ids_contain_their_position() {
        let id = made_id("message", GENERATION, 300, 7);
        assert_eq!(id, "msg_01jdvb3z6x8q0n5t2y4w7r9kmc000000012c07");
        assert_eq!(position_in(&id, GENERATION), Some((300, 7)));
        assert_eq!(position_in(&id, "01JDVB3Z6X8Q0N5T2Y4W7R9KMD"), None);
        for other in [
            "",
            "_",
            "msg_",
            "msg_1",
            "msg_ü",
            "msg_01jdvb3z6x8q0n5t2y4w7r9kmc",
            "x",
        ] {
            assert_eq!(position_in(other, GENERATION), None, "{other}");
        }
    }

    #[test]
    fn blank_turns_render_nothing() {
        for role in [Role::User, Role::Assistant, Role::System, Role::Tool] {
            let blank = [blank_turn(role)];
            let rendered = messages::render(FORMAT, &blank, &RenderOptions::default());
            assert_eq!(rendered.messages_json, "[]", "{role:?}");
        }
    }
}
