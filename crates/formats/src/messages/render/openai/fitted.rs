//! Fits OpenAI's chat messages to the rules of a model.
//!
//! Messages are merged, missing ones inserted, and empty texts removed.

use memoird_core::nonce::Nonce;
use serde_json::{Map, Value, json};

use crate::messages::render::extra::add;
use crate::messages::render::{EMPTY, LEAD_IN};
use crate::model::MessageRules;

/// Separates merged texts.
const BETWEEN: &str = "\n\n";

/// Fields for reasoning on servers that offer this protocol.
const REASONING: [&str; 3] = ["reasoning_content", "reasoning", "reasoning_details"];

/// Fits the messages to the model, and updates the ends of the turns.
///
/// A merged text begins with the first of its texts, so that a server's prefix cache stays valid.
pub(super) fn fitted(
    messages: Vec<Value>,
    ends: &mut [usize],
    rules: &MessageRules,
    nonce: Nonce,
) -> Vec<Value> {
    if *rules == MessageRules::default() {
        return messages;
    }
    let mut fitter = Fitter {
        rules,
        nonce,
        messages: Vec::with_capacity(messages.len()),
    };
    let mut counts = vec![0];
    for message in messages {
        if let Value::Object(message) = message {
            fitter.push(message);
        }
        counts.push(fitter.messages.len());
    }
    for end in ends {
        *end = counts[*end];
    }
    fitter.messages.into_iter().map(Value::from).collect()
}

struct Fitter<'a> {
    rules: &'a MessageRules,
    nonce: Nonce,
    messages: Vec<Map<String, Value>>,
}

impl Fitter<'_> {
    fn push(&mut self, mut message: Map<String, Value>) {
        if !self.rules.reasoning {
            REASONING
                .iter()
                .for_each(|name| drop(message.shift_remove(*name)));
        }
        if !self.rules.empty_text && !fill(&mut message) {
            return;
        }
        if !self.rules.any_order && is_system(&message) {
            self.demote(&mut message);
        }
        let last = self.messages.last();
        let is_first = last.is_none_or(is_system);
        let is_after_tool = last.is_some_and(|last| role(last) == "tool");
        if is_first && !self.rules.any_order && role(&message) == "assistant" {
            self.messages.push(said("user", LEAD_IN.to_owned()));
        }
        if is_after_tool && role(&message) == "user" && !self.rules.user_after_tool {
            let nothing = format!("[memoird {}: no reply was given here]", self.nonce);
            self.messages.push(said("assistant", nothing));
        }
        match self.messages.last_mut() {
            Some(last) if joins(last, &message, self.rules) => join(last, message),
            _ => self.messages.push(message),
        }
    }

    /// Moves a system message to the front, or turns it into a user message if it is not leading.
    fn demote(&self, message: &mut Map<String, Value>) {
        let is_leading = self.messages.iter().all(is_system);
        let role = if is_leading { "system" } else { "user" };
        message.insert("role".to_owned(), role.into());
        if is_leading {
            return;
        }
        let text = format!("[system {}] ", self.nonce);
        match message.get_mut("content") {
            Some(Value::String(content)) => content.insert_str(0, &text),
            Some(Value::Array(parts)) => parts.insert(0, json!({ "type": "text", "text": text })),
            _ => {}
        }
    }
}

fn role(message: &Map<String, Value>) -> &str {
    let role = message.get("role").and_then(Value::as_str);
    role.unwrap_or_default()
}

fn is_system(message: &Map<String, Value>) -> bool {
    ["system", "developer"].contains(&role(message))
}

fn said(role: &str, text: String) -> Map<String, Value> {
    let fields = [("role", role.into()), ("content", Value::from(text))]
        .map(|(name, value)| (name.to_owned(), value));
    fields.into_iter().collect()
}

/// Whether the model accepts the message only merged into the last one.
fn joins(last: &Map<String, Value>, message: &Map<String, Value>, rules: &MessageRules) -> bool {
    let is_same = role(last) == role(message);
    match role(message) {
        "user" => is_same && !rules.users_in_a_row,
        "system" => is_same && !rules.any_order,
        "assistant" => is_same && !rules.any_order && !last.contains_key("tool_calls"),
        _ => false,
    }
}

/// Appends the content of another message.
fn join(message: &mut Map<String, Value>, mut other: Map<String, Value>) {
    let more = other.shift_remove("content").unwrap_or_default();
    let content = message.entry("content").or_insert(Value::Null);
    *content = match (content.take(), more) {
        (said, Value::Null) => said,
        (Value::Null, more) => more,
        (Value::String(said), Value::String(more)) => format!("{said}{BETWEEN}{more}").into(),
        (said, more) => [parts(said), parts(more)].concat().into(),
    };
    add(message, other);
}

fn parts(content: Value) -> Vec<Value> {
    match content {
        Value::Array(parts) => parts,
        Value::String(text) => vec![json!({ "type": "text", "text": text })],
        _ => Vec::new(),
    }
}

/// Removes empty texts, and shows a refusal as text. Returns false if an optional message has
/// nothing left.
fn fill(message: &mut Map<String, Value>) -> bool {
    let is_blank = |text: Option<&str>| text.is_some_and(|text| text.trim().is_empty());
    let has_calls = ["tool_calls", "function_call"]
        .iter()
        .any(|name| message.contains_key(*name));
    let is_empty = match message.get_mut("content") {
        Some(Value::String(text)) => is_blank(Some(text)),
        Some(Value::Array(parts)) => {
            parts.retain(|part| !is_blank(part.get("text").and_then(Value::as_str)));
            parts.is_empty()
        }
        Some(Value::Null) | None => !has_calls,
        _ => false,
    };
    if !is_empty {
        return true;
    }
    let refusal = message.shift_remove("refusal");
    let content = match role(message) {
        "user" | "tool" => EMPTY.into(),
        "assistant" if refusal.as_ref().is_some_and(Value::is_string) => {
            refusal.unwrap_or_default()
        }
        _ if has_calls => Value::Null,
        _ => return false,
    };
    message.insert("content".to_owned(), content);
    true
}
