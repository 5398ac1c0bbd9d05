//! Assembles messages into a sequence that the provider accepts.
//!
//! User and assistant alternate, a request begins with the user, results come first, nothing is
//! empty, and no message ends in thinking.
//!
//! Messages that came in this format are left unchanged, even if consecutive ones have the same
//! role. They are merged in a request that lacks the turns between them: then the bot did not send
//! them in this order.

use std::mem;

use serde_json::{Map, Value, json};

use crate::messages::render::LEAD_IN;
use crate::messages::render::extra::{add, typed, with};

/// Field of a block that marks a cache breakpoint.
const MARK: &str = "cache_control";

/// A message, and those of the same role merged into it.
#[derive(Debug)]
pub(super) struct Message {
    role: &'static str,
    /// A string, or a list of blocks.
    content: Value,
    fields: Map<String, Value>,
    /// Number of leading blocks that came in this format.
    given_blocks: usize,
    /// Whether all of it came in this format.
    given: bool,
    /// Whether the last message merged into it came in this format.
    ends_given: bool,
}

/// The messages rendered up to now.
#[derive(Default)]
pub(super) struct Conversation {
    messages: Vec<Message>,
    /// Whether the messages are sent to the provider.
    ///
    /// It rejects consecutive system messages, and an assistant message at the beginning.
    pub(super) is_request: bool,
    /// Per turn, the number of messages up to its end.
    pub(super) ends: Vec<usize>,
}

/// Converts content to blocks.
fn into_blocks(content: Value) -> Vec<Value> {
    match content {
        Value::String(text) if !text.is_empty() => vec![text_block(text)],
        Value::Array(blocks) => blocks,
        _ => Vec::new(),
    }
}

pub(super) fn text_block(text: String) -> Value {
    typed("text", "text", text)
}

impl Message {
    /// Wraps a message that came in this format.
    pub(super) fn given(role: &'static str, content: Value, fields: Map<String, Value>) -> Self {
        Self {
            role,
            content,
            fields,
            given_blocks: usize::MAX,
            given: true,
            ends_given: true,
        }
    }

    /// Creates a message from the blocks, not empty, of a turn in another format.
    ///
    /// Its content is a list, because it may grow and must keep what was already sent as a prefix.
    pub(super) fn translated(
        role: &'static str,
        blocks: Vec<Value>,
        fields: Map<String, Value>,
    ) -> Self {
        Self {
            role,
            content: blocks.into(),
            fields,
            given_blocks: 0,
            given: false,
            ends_given: false,
        }
    }

    pub(super) fn is_assistant(&self) -> bool {
        self.role == "assistant"
    }

    pub(super) fn is_system(&self) -> bool {
        self.role == "system"
    }

    pub(super) fn is_empty(&self) -> bool {
        match &self.content {
            Value::String(text) => text.trim().is_empty(),
            Value::Array(blocks) => blocks.is_empty(),
            _ => false,
        }
    }

    /// Drops blocks that the provider rejects: blank texts, and thinking at the end of a message.
    pub(super) fn drop_refused(&mut self) {
        let Value::Array(blocks) = &mut self.content else {
            return;
        };
        blocks.retain(|block| !is(block, "text") || has_words(block));
        while blocks.last().is_some_and(is_thinking) {
            blocks.pop();
        }
    }

    /// Removes the bot's own cache breakpoints, except for the last `left`.
    pub(super) fn drop_marks(&mut self, left: &mut usize) {
        drop_marks(&mut self.content, left);
    }

    /// Whether a system message may follow.
    pub(super) fn takes_system_behind(&self) -> bool {
        let blocks = self.content.as_array();
        let last = blocks.and_then(|blocks| blocks.last());
        let is_served =
            last.is_some_and(|block| is(block, "server_tool_use") || is(block, "mcp_tool_use"));
        self.role == "user" || (self.role == "assistant" && is_served)
    }

    fn join(&mut self, other: Self) {
        let (given, ends_given) = (self.given, other.ends_given);
        add(&mut self.fields, other.fields);
        let mut blocks = into_blocks(self.content.take());
        let before = blocks.len();
        blocks.extend(into_blocks(other.content));
        let after = blocks.len();
        self.content = blocks.into();
        if ends_given {
            self.given_blocks = after;
        } else if given {
            self.given_blocks = before;
        }
        (self.given, self.ends_given) = (false, ends_given);
    }

    /// Brings the blocks into the provider's order, once nothing more is merged.
    ///
    /// Returns false if nothing is left.
    fn close(&mut self) -> bool {
        let Value::Array(blocks) = &mut self.content else {
            return true;
        };
        if self.given {
            return true;
        }
        while blocks.len() > self.given_blocks && blocks.last().is_some_and(is_thinking) {
            blocks.pop();
        }
        if self.role == "user" {
            blocks.sort_by_key(|block| !is(block, "tool_result"));
        }
        !blocks.is_empty()
    }

    /// Sets a cache breakpoint on its last block that can have one. Returns false if there is none.
    fn mark(&mut self) -> bool {
        match &mut self.content {
            Value::String(text) if text.trim().is_empty() => false,
            Value::String(text) => {
                let mut block = text_block(mem::take(text));
                mark(&mut block);
                self.content = vec![block].into();
                true
            }
            Value::Array(blocks) => {
                let block = blocks.iter_mut().rev().find(|block| takes_mark(block));
                block.map(mark).is_some()
            }
            _ => false,
        }
    }

    fn into_value(self) -> Value {
        let mut message = json!({ "role": self.role });
        message["content"] = self.content;
        with(message, self.fields)
    }
}

fn is(block: &Value, kind: &str) -> bool {
    block.get("type").is_some_and(|name| name == kind)
}

fn is_thinking(block: &Value) -> bool {
    is(block, "thinking") || is(block, "redacted_thinking")
}

fn has_words(block: &Value) -> bool {
    let text = block.get("text").and_then(Value::as_str);
    text.is_none_or(|text| !text.trim().is_empty())
}

fn takes_mark(block: &Value) -> bool {
    block.is_object() && !is_thinking(block) && has_words(block)
}

fn mark(block: &mut Value) {
    if block.get(MARK).is_none() {
        block[MARK] = json!({ "type": "ephemeral" });
    }
}

/// Removes breakpoints from blocks, and from the results among them.
fn drop_marks(content: &mut Value, left: &mut usize) {
    let blocks = content.as_array_mut().into_iter().flatten().rev();
    for block in blocks.filter_map(Value::as_object_mut) {
        if block.contains_key(MARK) {
            match left.checked_sub(1) {
                Some(fewer) => *left = fewer,
                None => drop(block.shift_remove(MARK)),
            }
        }
        if let Some(inner) = block.get_mut("content") {
            drop_marks(inner, left);
        }
    }
}

impl Conversation {
    /// Adds the message of the next turn, if it has one.
    pub(super) fn push(&mut self, message: Option<Message>, behind_gap: bool, cache_after: bool) {
        let marked = match message {
            None => false,
            Some(mut message) => {
                let marked = cache_after && message.mark();
                self.put(message, behind_gap);
                marked
            }
        };
        if cache_after && !marked {
            // Mark the last earlier block that can have a breakpoint.
            let mut above = self.messages.iter_mut().rev();
            above.any(Message::mark);
        }
        self.ends.push(self.messages.len());
    }

    fn put(&mut self, message: Message, behind_gap: bool) {
        while let Some(last) = self.messages.last_mut() {
            let are_given = last.ends_given && message.ends_given;
            let is_run = self.is_request && (behind_gap || message.is_system());
            if last.role == message.role && (is_run || !are_given) {
                last.join(message);
                return;
            }
            if last.close() {
                break;
            }
            self.drop_last();
        }
        self.messages.push(message);
    }

    fn drop_last(&mut self) {
        self.messages.pop();
        let count = self.messages.len();
        for end in self.ends.iter_mut().rev().take_while(|end| **end > count) {
            *end = count;
        }
    }

    pub(super) fn finish(mut self) -> (Vec<Value>, Vec<usize>) {
        if self.messages.last_mut().is_some_and(|last| !last.close()) {
            self.drop_last();
            // The message that is now last was closed when the next one was added.
        }
        let mut messages: Vec<Value> = self.messages.into_iter().map(Message::into_value).collect();
        let first = messages.first().filter(|_| self.is_request);
        if first.is_some_and(|first| first["role"] == "assistant") {
            let lead_in = Message::translated("user", vec![text_block(LEAD_IN.into())], Map::new());
            messages.insert(0, lead_in.into_value());
            for end in self.ends.iter_mut().filter(|end| **end > 0) {
                *end += 1;
            }
        }
        (messages, self.ends)
    }
}
