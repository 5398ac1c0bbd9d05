//! The searchable content of a turn: its text as given to a summarizer, and the tools it involves.

use std::collections::HashMap;

use crate::encoding;
use memoird_core::compaction::transcript::transcript_turn;
use memoird_core::time::Timestamp;
use memoird_core::turn::{PartKind, Role, Turn};

/// Maximum bytes of a turn's text that are searched.
const TEXT_BYTES_MAX: usize = 32 << 10;

/// A turn in its searchable form.
#[derive(Clone, Debug)]
pub struct SearchedTurn {
    pub role: Role,
    pub at: Timestamp,
    /// Text, calls with their arguments, and results, but no thinking and no recalled memories.
    pub text: String,
    /// Tool calls of the turn.
    pub(crate) calls: Vec<ToolCall>,
    /// Ids of the calls that it has results of.
    pub(crate) answers: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ToolCall {
    pub(crate) id: String,
    pub(crate) tool: String,
}

/// Tool names by call id, within one generation.
pub(crate) type ToolNames = HashMap<String, String>;

impl SearchedTurn {
    /// Decodes a turn. `None` if its bytes are damaged.
    pub fn open(seq: u64, content: &[u8]) -> Option<Self> {
        let turn = encoding::open(content)?;
        let mut text = transcript_turn(seq, &turn, content.len()).text;
        text.truncate(text.floor_char_boundary(TEXT_BYTES_MAX));
        Some(Self {
            role: turn.role,
            at: turn.timestamp.unwrap_or_default(),
            text,
            calls: calls(&turn),
            answers: answers(&turn),
        })
    }

    /// Adds the calls of this turn to `names`.
    pub(crate) fn note_calls(&self, names: &mut ToolNames) {
        let calls = self.calls.iter();
        names.extend(calls.map(|call| (call.id.clone(), call.tool.clone())));
    }

    /// Returns the tools that it calls or has results of, as far as their names are known.
    pub(crate) fn tools<'a>(&'a self, names: &'a ToolNames) -> impl Iterator<Item = &'a str> {
        let called = self.calls.iter().map(|call| call.tool.as_str());
        let answered = self.answers.iter().filter_map(|id| names.get(id));
        called.chain(answered.map(String::as_str))
    }
}

fn calls(turn: &Turn) -> Vec<ToolCall> {
    let calls = turn.parts.iter().filter_map(|part| match &part.kind {
        PartKind::ToolUse { id, name, .. } => Some(ToolCall {
            id: id.clone(),
            tool: name.clone(),
        }),
        _ => None,
    });
    calls.collect()
}

fn answers(turn: &Turn) -> Vec<String> {
    let answers = turn.parts.iter().filter_map(|part| match &part.kind {
        PartKind::ToolResult { tool_use_id, .. } => Some(tool_use_id.clone()),
        _ => None,
    });
    answers.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opened(parts: Vec<PartKind>) -> SearchedTurn {
        let parts = parts.into_iter().map(Into::into).collect();
        let turn = encoding::encode(Turn::new(Role::Assistant, parts));
        let content = encoding::seal(&turn, 7, Timestamp::from_ms(5));
        SearchedTurn::open(7, &content).unwrap()
    }

    #[test]
    fn text_calls_and_results_are_indexed_thinking_is_not() {
        let call = PartKind::ToolUse {
            id: "1".into(),
            name: "book".into(),
            input_json: r#"{"city":"Oslo"}"#.into(),
        };
        let result = PartKind::ToolResult {
            tool_use_id: "0".into(),
            content: "no seat".into(),
            parts: Vec::new(),
            is_error: false,
        };
        let thinking = PartKind::Thinking {
            text: "secret".into(),
            signature: String::new(),
            redacted: false,
        };
        let turn = opened(vec![PartKind::Text("Hi".into()), thinking, call, result]);
        assert_eq!(turn.at, Timestamp::from_ms(5));
        for said in ["Hi", "book", "Oslo", "no seat"] {
            assert!(turn.text.contains(said), "{said}");
        }
        assert!(!turn.text.contains("secret"));
        let mut names = ToolNames::from([("0".to_owned(), "find".to_owned())]);
        assert_eq!(turn.tools(&names).collect::<Vec<_>>(), ["book", "find"]);
        turn.note_calls(&mut names);
        assert_eq!(names["1"], "book");
    }

    #[test]
    fn huge_turn_is_indexed_up_to_a_limit() {
        let turn = opened(vec![PartKind::Text("ä".repeat(TEXT_BYTES_MAX))]);
        assert!((TEXT_BYTES_MAX - 1..=TEXT_BYTES_MAX).contains(&turn.text.len()));
        assert!(SearchedTurn::open(1, b"\xff\xff").is_none());
    }
}
