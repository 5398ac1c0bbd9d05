//! A turn during translation to another provider's format.
//!
//! Its parts are in a neutral form, with only those fields of the bot that may be sent along.

use std::borrow::Cow;

use memoird_core::turn::{MessageFormat, Part, PartKind, Role, Turn};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::EMPTY;
use super::extra::Extra;
use super::ids::Ids;
use super::media::Media;

/// Characters of a failed tool's result within which the word "error" makes `Error: ` unnecessary.
const ERROR_SAID_CHARS: usize = 64;

/// A turn to be translated. No piece is empty. A user turn without content contains `(empty)`.
pub(super) struct Pieces<'a> {
    pub(super) role: Role,
    pub(super) fields: Map<String, Value>,
    /// Tool results, in order.
    pub(super) results: Vec<ToolResult<'a>>,
    /// All other pieces, in order.
    pub(super) rest: Vec<Piece<'a>>,
}

/// A part with the fields for its object.
pub(super) enum Piece<'a> {
    Text(Cow<'a, str>, Map<String, Value>),
    Media(Media<'a>, Map<String, Value>),
    ToolUse(ToolUse<'a>, Map<String, Value>),
    /// For Anthropic only: signed, or redacted.
    Thinking(&'a PartKind, Map<String, Value>),
    /// The bot's own object in the target format.
    Whole(Map<String, Value>),
}

pub(super) struct ToolUse<'a> {
    pub(super) id: Cow<'a, str>,
    pub(super) name: &'a str,
    input_json: &'a str,
}

/// A tool result. It has text, media or both.
pub(super) struct ToolResult<'a> {
    pub(super) id: Cow<'a, str>,
    /// Texts and media only.
    pub(super) content: Vec<Piece<'a>>,
    pub(super) is_error: bool,
    pub(super) fields: Map<String, Value>,
}

impl<'a> Pieces<'a> {
    pub(super) fn read(turn: &'a Turn, to: MessageFormat, ids: &Ids<'a>) -> Self {
        let reader = Reader {
            from: turn.format,
            to,
            role: turn.role,
            ids,
        };
        let mut results = Vec::new();
        let mut rest = Vec::new();
        for part in &turn.parts {
            if let PartKind::ToolResult { .. } = part.kind {
                results.extend(reader.result(part));
            } else {
                rest.extend(reader.piece(part));
            }
        }
        if turn.role == Role::User && results.is_empty() && rest.is_empty() {
            // Regardless of its position, so that the same turn is always rendered the same.
            rest.push(text(EMPTY.into()));
        }
        let fields = reader.fields(Extra::read(&turn.extra_json));
        Self {
            role: turn.role,
            fields,
            results,
            rest,
        }
    }
}

impl<'a> ToolUse<'a> {
    /// Returns the arguments as JSON text, unchanged if the model wrote valid JSON.
    pub(super) fn arguments(&self) -> Cow<'a, str> {
        match self.input_json.trim_ascii() {
            "" => "{}".into(),
            json if serde_json::from_str::<&RawValue>(json).is_ok() => self.input_json.into(),
            _ => json!({ "input": self.input_json }).to_string().into(),
        }
    }

    /// Returns the arguments as a JSON object.
    pub(super) fn input(&self) -> Value {
        match serde_json::from_str(self.input_json) {
            Ok(Value::Object(input)) => input.into(),
            _ if self.input_json.trim_ascii().is_empty() => json!({}),
            _ => json!({ "input": self.input_json }),
        }
    }
}

impl<'a> ToolResult<'a> {
    /// Takes the content for a provider that has no error field.
    pub(super) fn take_content_with_error(&mut self) -> Vec<Piece<'a>> {
        let mut content = std::mem::take(&mut self.content);
        if !self.is_error {
            return content;
        }
        match content.iter_mut().find_map(|piece| match piece {
            Piece::Text(text, _) => Some(text),
            _ => None,
        }) {
            Some(text) if mentions_error(text) => {}
            Some(text) => *text = format!("Error: {text}").into(),
            None => content.insert(0, text("Error".into())),
        }
        content
    }
}

/// Creates a text piece without further fields.
pub(super) fn text<'a>(said: Cow<'a, str>) -> Piece<'a> {
    Piece::Text(said, Map::new())
}

fn mentions_error(text: &str) -> bool {
    let early: String = text.chars().take(ERROR_SAID_CHARS).collect();
    early.to_ascii_lowercase().contains("error")
}

struct Reader<'a, 'b> {
    from: Option<MessageFormat>,
    to: MessageFormat,
    role: Role,
    ids: &'b Ids<'a>,
}

impl<'a> Reader<'a, '_> {
    /// Whether the extras are in the target format.
    fn is_ours(&self) -> bool {
        self.from.is_none_or(|from| from == self.to)
    }

    /// Returns the fields to send along. An object of the provider is not split into fields.
    fn fields(&self, extra: Extra) -> Map<String, Value> {
        if self.is_ours() && extra.kind().is_none() {
            extra.rest
        } else {
            Map::new()
        }
    }

    fn piece(&self, part: &'a Part) -> Option<Piece<'a>> {
        let extra = Extra::read(&part.extra_json);
        if extra.is_placeholder() {
            return None;
        }
        match &part.kind {
            PartKind::Text(text) if text.trim().is_empty() => {
                let is_object = text.is_empty() && extra.kind().is_some();
                (is_object && self.is_ours()).then(|| Piece::Whole(extra.rest))
            }
            PartKind::Text(text) => Some(Piece::Text(text.into(), self.fields(extra))),
            PartKind::Media { .. } => self.media(part, extra, false),
            PartKind::ToolUse {
                id,
                name,
                input_json,
            } if self.role == Role::Assistant => {
                let call = ToolUse {
                    id: self.ids.of_call(id),
                    name,
                    input_json,
                };
                Some(Piece::ToolUse(call, self.fields(extra)))
            }
            PartKind::Thinking {
                signature,
                redacted,
                ..
            } => {
                let is_signed = *redacted || !signature.is_empty();
                let takes_it = self.to == MessageFormat::Anthropic && self.is_ours();
                (is_signed && takes_it && self.role == Role::Assistant)
                    .then(|| Piece::Thinking(&part.kind, self.fields(extra)))
            }
            PartKind::ToolUse { .. } | PartKind::ToolResult { .. } => None,
        }
    }

    /// Converts media, to a label if only text is allowed here.
    fn media(&self, part: &'a Part, extra: Extra, in_result: bool) -> Option<Piece<'a>> {
        let media = Media::read(part, &extra, self.from, self.to)?;
        if in_result || matches!(self.role, Role::User | Role::Tool) {
            Some(Piece::Media(media, self.fields(extra)))
        } else {
            Some(text(media.label().into()))
        }
    }

    fn result(&self, part: &'a Part) -> Option<ToolResult<'a>> {
        let PartKind::ToolResult {
            tool_use_id,
            content,
            parts,
            is_error,
        } = &part.kind
        else {
            return None;
        };
        if !matches!(self.role, Role::User | Role::Tool) {
            return None;
        }
        let said = (!content.trim().is_empty()).then(|| text(content.into()));
        let rich = parts.iter().filter_map(|part| match &part.kind {
            PartKind::Media { .. } => self.media(part, Extra::read(&part.extra_json), true),
            PartKind::Text(_) => self.piece(part),
            _ => None,
        });
        let mut content: Vec<_> = said.into_iter().chain(rich).collect();
        if content.is_empty() {
            content.push(text(EMPTY.into()));
        }
        Some(ToolResult {
            id: self.ids.of_result(tool_use_id),
            content,
            is_error: *is_error,
            fields: self.fields(Extra::read(&part.extra_json)),
        })
    }
}
