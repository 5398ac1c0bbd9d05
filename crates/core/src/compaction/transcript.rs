//! Turns as text for a summarizer, with markers in place of media.

mod json;
mod sentences;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::ops::Range;

use serde_json::{Map, Value};

use crate::embedded_media;
use crate::quote::unmarked;
use crate::time::Timestamp;
use crate::turn::{LABEL, Part, PartKind, Role, Turn};

pub use json::compact;
pub use sentences::sentences;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TranscriptTurn {
    pub seq: u64,
    pub role: Role,
    /// Text, calls as `name(arguments)`, results, and `[image]` or `[document]` for media.
    ///
    /// Does not contain reasoning, recalled memories or summaries.
    pub text: String,
    pub calls: Vec<Call>,
    /// Its tool results, in the order of `text`.
    pub results: Vec<CallResult>,
    /// Time, or `None` if unknown.
    pub said_at: Option<Timestamp>,
    /// Decisions marked by the bot with the metadata label [`DECISION`].
    pub decisions: Vec<String>,
    /// Encoded size of the turn, an estimate of its tokens.
    pub bytes: usize,
    /// Ranges of `text` that the role wrote: everything but calls, results and media.
    spoken: Vec<Range<usize>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Call {
    /// Matches the call to its result.
    pub id: String,
    pub name: String,
    /// The arguments as the model wrote them.
    pub input: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallResult {
    /// Id of the call, or empty if unknown.
    pub call_id: String,
    /// Byte range in the turn's text.
    pub range: Range<usize>,
    /// Whether the format reports a failed call.
    pub is_error: bool,
}

/// Metadata label for the decision of a turn, set by the bot.
pub const DECISION: &str = "memoird.decision";

/// Prefix of a failed call's result.
const FAILED: &str = "failed: ";

/// Values of the label [`LABEL`] for content that is not part of the conversation.
const NOT_SAID: &[&str] = &[
    "acknowledgement",
    "elision",
    "memories",
    "memory",
    "recalled",
    "recalled_memories",
    "summary",
];
/// Start of a summary's text.
pub(super) const SUMMARY: &str = "[memoird: a summary of the ";

/// Converts a turn to text for a summarizer.
///
/// Each piece is on lines of its own, and JSON loses the whitespace between its tokens. Turns and
/// parts labelled as summaries or recalled memories are left out: a client sent back a window, and
/// the user did not write them. No other text is left out, but imitations of memoird's own text are
/// neutralized, also in calls and results.
pub fn transcript_turn(seq: u64, turn: &Turn, bytes: usize) -> TranscriptTurn {
    let label = |name| turn.metadata.get(name).map_or("", String::as_str);
    let mut transcribed = TranscriptTurn {
        decisions: lines(label(DECISION)),
        said_at: turn.timestamp,
        bytes,
        ..TranscriptTurn::new(seq, turn.role, String::new())
    };
    if !NOT_SAID.contains(&label(LABEL)) {
        let said = turn.parts.iter().filter(|part| was_said(part));
        said.for_each(|part| transcribed.add_part(part));
    }
    transcribed
}

impl TranscriptTurn {
    /// Creates a turn of text alone. For [`Role::Tool`] the text is a result.
    pub fn new(seq: u64, role: Role, text: impl Into<String>) -> Self {
        let text = text.into();
        let all = 0..text.len();
        let result = CallResult {
            range: all.clone(),
            ..CallResult::default()
        };
        let is_result = role == Role::Tool && !text.is_empty();
        let is_spoken = role != Role::Tool && !text.is_empty();
        Self {
            seq,
            role,
            bytes: text.len(),
            text,
            calls: Vec::new(),
            results: Vec::from_iter(is_result.then_some(result)),
            spoken: Vec::from_iter(is_spoken.then_some(all)),
            said_at: None,
            decisions: Vec::new(),
        }
    }

    /// A copy with a part of the text.
    pub fn with_text(&self, text: &str) -> Self {
        Self {
            calls: self.calls.clone(),
            said_at: self.said_at,
            decisions: self.decisions.clone(),
            bytes: self.bytes,
            ..Self::new(self.seq, self.role, text)
        }
    }

    /// The pieces that the role wrote, without calls, results and media.
    pub fn spoken(&self) -> impl DoubleEndedIterator<Item = &str> {
        self.spoken.iter().map(|range| &self.text[range.clone()])
    }

    pub fn result_texts(&self) -> impl Iterator<Item = &str> {
        let results = self.results.iter();
        results.filter_map(|result| self.text.get(result.range.clone()))
    }

    #[must_use]
    pub fn with_call(mut self, call: Call) -> Self {
        self.add_call(call);
        self
    }

    fn add_call(&mut self, call: Call) {
        self.push(&format!("{}({})", call.name, compact(&call.input)));
        self.calls.push(call);
    }

    fn add_part(&mut self, part: &Part) {
        match &part.kind {
            PartKind::Text(text) => {
                let range = self.push(&without_media(text));
                // The tools of some providers answer with text parts.
                if self.role == Role::Tool {
                    self.results.push(CallResult {
                        range,
                        ..CallResult::default()
                    });
                } else if !range.is_empty() {
                    self.spoken.push(range);
                }
            }
            PartKind::ToolUse {
                id,
                name,
                input_json,
            } => {
                self.add_call(Call {
                    id: id.clone(),
                    name: name.clone(),
                    input: without_media(input_json).into_owned(),
                });
            }
            PartKind::ToolResult {
                tool_use_id,
                content,
                parts,
                is_error,
            } => {
                let of_parts = parts.iter().map(|part| match &part.kind {
                    PartKind::Text(text) => compact(&without_media(text)).into_owned(),
                    kind => media(kind),
                });
                let content = compact(&without_media(content)).into_owned();
                let texts: Vec<String> = std::iter::once(content)
                    .chain(of_parts)
                    .filter(|text| !text.is_empty())
                    .collect();
                let text = texts.join("\n");
                let range = if *is_error {
                    // The range excludes the prefix.
                    let Range { start, end } = self.push(&format!("{FAILED}{text}"));
                    (start + FAILED.len()).min(end)..end
                } else {
                    self.push(&text)
                };
                self.results.push(CallResult {
                    call_id: tool_use_id.clone(),
                    range,
                    is_error: *is_error,
                });
            }
            kind => {
                self.push(&media(kind));
            }
        }
    }

    /// Appends a piece on its own lines, with imitations neutralized. Returns its range.
    fn push(&mut self, text: &str) -> Range<usize> {
        let text = unmarked(text.trim());
        if !self.text.is_empty() && !text.is_empty() {
            self.text.push('\n');
        }
        let start = self.text.len();
        self.text.push_str(&text);
        start..self.text.len()
    }
}

/// Replaces base64 media with markers, so that no excerpt cuts into them.
fn without_media(text: &str) -> Cow<'_, str> {
    embedded_media::replaced(text, media_marker)
}

fn media_marker(media_type: &str) -> &'static str {
    match media_type.split('/').next() {
        Some("image") => "[image]",
        Some("audio") => "[audio]",
        Some("video") => "[video]",
        _ => "[document]",
    }
}

/// The marker of a media part, or an empty string for other parts.
fn media(kind: &PartKind) -> String {
    let PartKind::Media {
        media_type, name, ..
    } = kind
    else {
        return String::new();
    };
    let marker = media_marker(media_type);
    let name: Vec<&str> = name.split_whitespace().collect();
    if name.is_empty() {
        marker.to_owned()
    } else {
        format!("{marker} {}", name.join(" "))
    }
}

/// Whether a part belongs to the conversation, according to its `memoird` label.
fn was_said(part: &Part) -> bool {
    if !part.extra_json.contains(LABEL) {
        return true;
    }
    let extra: Map<String, Value> = serde_json::from_str(&part.extra_json).unwrap_or_default();
    let label = extra.get(LABEL).and_then(Value::as_str);
    !label.is_some_and(|label| NOT_SAID.contains(&label))
}

/// One decision per line.
fn lines(decisions: &str) -> Vec<String> {
    let lines = decisions
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty());
    lines.map(str::to_owned).collect()
}
