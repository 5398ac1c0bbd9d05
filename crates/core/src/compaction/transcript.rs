//! Turns as a summarizer reads them: text, with markers where there is something else.

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
use crate::turn::{Part, PartKind, Role, Turn};
use crate::window::LABEL;

pub use json::compact;
pub use sentences::sentences;

/// A turn as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TranscriptTurn {
    /// Its number.
    pub seq: u64,
    /// Who said it.
    pub role: Role,
    /// What was said: text, calls as `name(arguments)`, results, `[image]` and `[document]`
    /// for media. No thinking, no recalled memories, no summary.
    pub text: String,
    /// Calls of tools in it.
    pub calls: Vec<Call>,
    /// Results of tools in it, in the order of `text`.
    pub results: Vec<CallResult>,
    /// Its time; `None` if unknown.
    pub said_at: Option<Timestamp>,
    /// What the bot marked as decided, by the metadata label [`DECISION`].
    pub decisions: Vec<String>,
    /// Encoded bytes of the turn: an estimate of its size.
    pub bytes: usize,
    /// Where in `text` its role speaks: all of it but calls, results and media.
    spoken: Vec<Range<usize>>,
}

/// A call of a tool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Call {
    /// Names its result.
    pub id: String,
    /// The tool.
    pub name: String,
    /// The arguments, as they were written.
    pub input: String,
}

/// The result of a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallResult {
    /// That of the call; empty where it is not known.
    pub call_id: String,
    /// Where it stands in the turn's text, in bytes.
    pub range: Range<usize>,
    /// True where its format says that the call failed.
    pub is_error: bool,
}

/// The metadata label by which a bot marks what a turn decided.
pub const DECISION: &str = "memoird.decision";

/// Begins the result of a call that failed.
const FAILED: &str = "failed: ";

/// Values of the label [`LABEL`] that mark content which is no part of the conversation.
const NOT_SAID: &[&str] = &[
    "acknowledgement",
    "elision",
    "memories",
    "memory",
    "recalled",
    "recalled_memories",
    "summary",
];
/// How the text of a summary begins.
pub(super) const SUMMARY: &str = "[memoird: a summary of the ";

/// A turn as a summarizer reads it.
///
/// Pieces stand in lines of their own. JSON is shown without the blanks between its tokens.
/// Of a turn, or a part, whose label `memoird` says that it is a summary or recalled
/// memories, nothing is shown: somebody sent a window back, and the user did not say that. A
/// text is shown whatever it looks like, because users write texts; what looks like memoird's own
/// words is told from them, in calls and results as well.
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
    /// A turn of text alone. That of a tool is a result.
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

    /// A part of the same turn.
    pub fn with_text(&self, text: &str) -> Self {
        Self {
            calls: self.calls.clone(),
            said_at: self.said_at,
            decisions: self.decisions.clone(),
            bytes: self.bytes,
            ..Self::new(self.seq, self.role, text)
        }
    }

    /// What its role says, in pieces: no calls, results or media.
    pub fn spoken(&self) -> impl DoubleEndedIterator<Item = &str> {
        self.spoken.iter().map(|range| &self.text[range.clone()])
    }

    /// The texts of its results.
    pub fn result_texts(&self) -> impl Iterator<Item = &str> {
        let results = self.results.iter();
        results.filter_map(|result| self.text.get(result.range.clone()))
    }

    /// The same turn with a call behind what is said.
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
                // Some providers' tools answer in texts.
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
                let texts = parts.iter().map(|part| match &part.kind {
                    PartKind::Text(text) => compact(&without_media(text)).into_owned(),
                    kind => media(kind),
                });
                let content = compact(&without_media(content)).into_owned();
                let texts = std::iter::once(content).chain(texts);
                let texts: Vec<String> = texts.filter(|text| !text.is_empty()).collect();
                let text = texts.join("\n");
                let range = if *is_error {
                    // The range is what the tool said.
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

    /// Adds a piece in lines of its own, without what looks like memoird's words; gives where it
    /// stands.
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

/// A text with a marker in place of each of its media in base64, which no excerpt may cut.
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

/// The marker of a media part; nothing for what else has no text.
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

/// False for a part that the provider's fields mark as ours.
fn was_said(part: &Part) -> bool {
    if !part.extra_json.contains(LABEL) {
        return true;
    }
    let extra: Map<String, Value> = serde_json::from_str(&part.extra_json).unwrap_or_default();
    let label = extra.get(LABEL).and_then(Value::as_str);
    !label.is_some_and(|label| NOT_SAID.contains(&label))
}

/// A decision in each line.
fn lines(decisions: &str) -> Vec<String> {
    let lines = decisions.lines().map(str::trim);
    let lines = lines.filter(|line| !line.is_empty());
    lines.map(str::to_owned).collect()
}
