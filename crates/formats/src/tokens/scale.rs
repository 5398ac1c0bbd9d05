//! Tokens of a turn for one model: those of its parts, and those that the provider adds.

use std::borrow::Cow;
use std::sync::Arc;

use memoird_core::embedded_media::{self, Embedded};
use memoird_core::turn::{MessageFormat, Part, PartKind, Turn};
use serde_json::{Map, Value};

use super::dialect::{Dialect, Overheads, Unseen};
use super::{Tokenizer, media, tools};
use crate::model::Provider;

/// Counts the tokens of a request. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Scale {
    tokenizer: Arc<dyn Tokenizer>,
    dialect: Dialect,
    overheads: Overheads,
}

/// Four characters of base64 are three bytes, and a token is at least three bytes.
const OPAQUE_CHARS_PER_TOKEN: u64 = 4;

/// Fields of encrypted reasoning: Anthropic's and Google's signatures, OpenAI's content.
const ENCRYPTED_FIELDS: [&str; 4] = [
    "encrypted_content",
    "signature",
    "thoughtSignature",
    "thought_signature",
];

/// Tokens of a reference to a deferred tool, which expands to its definition.
///
/// Recorded ones took 60.
const TOOL_REFERENCE_TOKENS: u64 = 64;

/// Minimum characters of a run of base64 in an extra that is not counted as text.
///
/// It is content without a part of its own: media, or encrypted data of a provider.
const OPAQUE_RUN_CHARS_MIN: usize = 2_048;
/// Maximum tokens of such a run, because no kind of media has more.
const OPAQUE_RUN_TOKENS_MAX: u64 = 16_384;

/// Fields of messages and parts that providers do not show to their models.
const UNSEEN_FIELDS: [&str; 8] = [
    "cache_control",
    "detail",
    "id",
    "index",
    "logprobs",
    "status",
    "strict",
    "type",
];

impl Scale {
    /// Creates a scale for models of this dialect with this tokenizer.
    pub fn new(tokenizer: Arc<dyn Tokenizer>, dialect: Dialect) -> Self {
        Self {
            tokenizer,
            dialect,
            overheads: Overheads::for_dialect(dialect),
        }
    }

    /// Maximum relative error of counts; see [`Tokenizer::margin`].
    pub fn margin(&self) -> f64 {
        self.tokenizer.margin()
    }

    /// Tokens of plain text.
    pub fn text(&self, text: &str) -> u64 {
        if text.is_empty() {
            0
        } else {
            self.tokenizer.count(text) as u64
        }
    }

    /// Tokens of a turn as a message, at least 1.
    ///
    /// Includes all parts, the provider's fields that are sent back, and the provider's overhead.
    pub fn turn(&self, turn: &Turn) -> u64 {
        let parts = turn.parts.iter().map(|part| self.part(part));
        let all = parts.chain([self.extra(&turn.extra_json)]);
        all.fold(self.overheads.message, u64::saturating_add).max(1)
    }

    /// Tokens of a system prompt as a message. 0 for an empty one.
    pub fn system(&self, system: &str) -> u64 {
        if system.is_empty() {
            0
        } else {
            self.overheads.message + self.text(system)
        }
    }

    /// Tokens of tool schemas as shown to the provider's models, and of the prompt added for them.
    ///
    /// 0 for empty text. `format` is the API that the request is sent to, if known.
    pub fn tools(&self, tools_json: &str, format: Option<MessageFormat>) -> u64 {
        let json = match tools_json.trim() {
            "" | "[]" | "{}" | "null" => return 0,
            json => json,
        };
        let Ok(given) = serde_json::from_str::<Value>(json) else {
            return self.overheads.tools + self.text(json);
        };
        let (tools, unknown) = tools::tools(&given);
        let others: u64 = unknown.iter().map(|tool| self.provider_tool(tool)).sum();
        let json_and = |around: u64| -> u64 {
            let each = tools.iter().map(|tool| self.text(&tool.json()) + around);
            each.sum()
        };
        let shown = match self.dialect {
            _ if tools.is_empty() => 0,
            Dialect::OpenAiChat | Dialect::OpenAiReasoning => {
                let namespace = self.text(&tools::namespace(&tools));
                namespace.saturating_add_signed(self.around_namespace(format))
            }
            Dialect::Anthropic { .. } => {
                // Its form of a schema takes about half as many tokens again as the JSON in
                // `o200k_base`.
                let seen = tools.iter().filter(|tool| !tool.is_deferred);
                seen.map(|tool| self.text(&tool.full_json()) * 4 / 3 + 2)
                    .sum()
            }
            Dialect::Google => json_and(6) + 3,
            Dialect::Open(_) => json_and(8),
        };
        self.overheads.tools + shown + others
    }

    /// Tokens of the prompt for a provider's tool. An unknown tool counts as a typical one.
    fn provider_tool(&self, tool: &Value) -> u64 {
        let usual = match self.provider() {
            Provider::Anthropic => 700,
            Provider::OpenAi => 300,
            Provider::Google => 200,
            Provider::Open => 0,
        };
        tools::provider_tool_tokens(self.provider(), tool)
            .unwrap_or_else(|| self.text(&tool.to_string()).max(usual))
    }

    /// Tokens that OpenAI adds around the namespace of tools.
    ///
    /// For reasoning models, its older API adds text of its own there.
    fn around_namespace(&self, format: Option<MessageFormat>) -> i64 {
        let is_chat_interface = format == Some(MessageFormat::OpenAi);
        match self.dialect {
            Dialect::OpenAiReasoning if is_chat_interface => 84,
            Dialect::OpenAiReasoning => 2,
            _ if is_chat_interface => 2,
            _ => -3,
        }
    }

    /// Returns the tokens that the provider may add without showing them.
    pub fn unseen(&self) -> Unseen {
        self.dialect.unseen()
    }

    /// Tokens of every request.
    pub fn request(&self) -> u64 {
        self.overheads.request
    }

    fn part(&self, part: &Part) -> u64 {
        let extra = self.extra(&part.extra_json);
        extra.saturating_add(match &part.kind {
            PartKind::Text(text) => self.text(text),
            // Models do not see the ids of calls.
            PartKind::ToolUse {
                id: _,
                name,
                input_json,
            } => self.text(name) + self.text(input_json) + self.overheads.call,
            PartKind::ToolResult {
                tool_use_id: _,
                content,
                parts,
                is_error: _,
            } => {
                let text = self.result_text(content) + self.overheads.result;
                let inner = parts.iter().map(|part| match &part.kind {
                    PartKind::Text(text) => self
                        .structured(text)
                        .saturating_add(self.extra(&part.extra_json)),
                    _ => self.part(part),
                });
                inner.fold(text, u64::saturating_add)
            }
            PartKind::Media {
                media_type,
                source,
                name,
            } => {
                let media = media::Media {
                    media_type,
                    content: media::Content::new(source),
                    extra_json: &part.extra_json,
                };
                media.tokens(self).saturating_add(self.text(name))
            }
            PartKind::Thinking {
                text,
                signature,
                redacted: false,
            } => {
                // The text may be a summary of the reasoning, or empty. The signature holds all of
                // it, encrypted, and all of it is charged.
                self.text(text).max(self.encrypted(signature.len()))
            }
            PartKind::Thinking {
                text,
                signature,
                redacted: true,
            } => self.encrypted(text.len()) + self.encrypted(signature.len()),
        })
    }

    pub(super) fn provider(&self) -> Provider {
        self.dialect.provider()
    }

    /// Tokens of a tool result's text.
    ///
    /// Google shows the values of a JSON object without quotes and escapes.
    fn result_text(&self, content: &str) -> u64 {
        let is_object = self.dialect == Dialect::Google && content.trim_start().starts_with('{');
        if !is_object {
            return self.structured(content);
        }
        match serde_json::from_str(content) {
            Ok(Value::Object(fields)) => {
                let field = |(key, value): (&String, &Value)| {
                    let value = match value {
                        Value::String(text) => self.structured(text),
                        other => self.structured(&other.to_string()),
                    };
                    self.text(key).saturating_add(value)
                };
                fields.iter().map(field).fold(0, u64::saturating_add)
            }
            _ => self.text(content),
        }
    }

    /// Tokens of a text that may be JSON with content blocks, as in MCP.
    ///
    /// In other text, base64 counts as the model reads it.
    fn structured(&self, text: &str) -> u64 {
        if text.trim_start().starts_with(['{', '[']) {
            self.mixed(text, Other::Text)
        } else {
            self.text(text)
        }
    }

    /// Tokens of encrypted reasoning, by its characters of base64.
    ///
    /// Each provider adds a fixed number of bytes, derived from recorded requests. Google charges a
    /// signature only in the step after it, and on some hosts never. [`Unseen`] covers that.
    fn encrypted(&self, chars: usize) -> u64 {
        let bytes = chars as u64 * 3 / 4;
        match self.provider() {
            Provider::OpenAi => bytes.saturating_sub(650) * 2 / 9,
            Provider::Anthropic => bytes.saturating_sub(170) * 2 / 9,
            Provider::Google => 0,
            Provider::Open => bytes / 3,
        }
    }

    /// Tokens of the provider's own fields, as JSON, without those that its models do not see.
    fn extra(&self, json: &str) -> u64 {
        let Ok(fields) = serde_json::from_str::<Map<String, Value>>(json) else {
            return self.mixed(json, Other::Data);
        };
        let is_seen = |(key, value): &(&String, &Value)| {
            let is_empty = match value {
                Value::Null | Value::Bool(_) => true,
                Value::Array(list) => list.is_empty(),
                Value::Object(fields) => fields.is_empty(),
                Value::Number(_) | Value::String(_) => false,
            };
            !is_empty && !UNSEEN_FIELDS.contains(&key.as_str())
        };
        let kind = fields.get("type").and_then(Value::as_str);
        match kind {
            Some("tool_reference") => return TOOL_REFERENCE_TOKENS,
            // OpenAI shows tools that come with a message like those of a request, under a separate
            // heading.
            Some("additional_tools") => {
                if let Some(tools) = fields.get("tools") {
                    return self.tools(&tools.to_string(), Some(MessageFormat::OpenAi));
                }
            }
            _ => {}
        }
        let seen = fields.iter().filter(is_seen);
        seen.map(|(key, value)| self.field(key, value))
            .fold(0, u64::saturating_add)
    }

    /// Tokens of one of the provider's own fields.
    fn field(&self, key: &str, value: &Value) -> u64 {
        match value {
            Value::String(data) if ENCRYPTED_FIELDS.contains(&key) => self.encrypted(data.len()),
            // Google's OpenAI-compatible API puts a signature there.
            Value::Object(inner) if key == "extra_content" || key == "google" => inner
                .iter()
                .map(|(key, value)| self.field(key, value))
                .fold(0, u64::saturating_add),
            // This field always holds audio.
            Value::Object(_) if key == "audio" => {
                self.mixed(&format!("\"{key}\":{value}"), Other::Data)
            }
            other => self.text(key) + self.mixed(&other.to_string(), Other::Data),
        }
    }

    /// Tokens of a text in which base64 media count by the rules of media.
    fn mixed(&self, text: &str, other: Other) -> u64 {
        let mut tokens = 0_u64;
        let mut text_start = 0;
        for embedded in embedded_media::find(text) {
            let Some(data) = self.embedded(&embedded) else {
                continue;
            };
            let before = self.around(&text[text_start..embedded.range.start], other);
            tokens = tokens.saturating_add(before).saturating_add(data);
            text_start = embedded.range.end;
        }
        tokens.saturating_add(self.around(&text[text_start..], other))
    }

    fn around(&self, text: &str, other: Other) -> u64 {
        match other {
            Other::Data => self.text_around_data(text),
            Other::Text => self.text(text),
        }
    }

    /// Tokens of base64 media. `None` if it counts like the text around it.
    fn embedded(&self, embedded: &Embedded<'_>) -> Option<u64> {
        let is_broken = |c| matches!(c, '\\' | '\r' | '\n');
        let data: Cow<'_, str> = if embedded.data.contains(is_broken) {
            unescaped(embedded.data).into()
        } else {
            embedded.data.into()
        };
        let media = media::Media {
            media_type: embedded.media_type,
            content: media::Content::Base64 {
                media_type: "",
                data: &data,
            },
            extra_json: "",
        };
        media.is_known().then(|| media.tokens(self))
    }

    /// Tokens of a text in which long base64 of unknown type counts as data.
    fn text_around_data(&self, text: &str) -> u64 {
        if text.len() < OPAQUE_RUN_CHARS_MIN {
            return self.text(text);
        }
        let mut tokens = 0_u64;
        let mut text_start = 0;
        for run in base64_runs(text) {
            let data = opaque(run.len()).min(OPAQUE_RUN_TOKENS_MAX);
            tokens += self.text(&text[text_start..run.start]) + data;
            text_start = run.end;
        }
        tokens + self.text(&text[text_start..])
    }
}

/// How text outside of media is counted.
#[derive(Clone, Copy)]
enum Other {
    /// As data that the provider hides from its model, or shows in another form.
    Data,
    /// As text that the model reads.
    Text,
}

/// Removes line breaks and JSON escapes from base64.
fn unescaped(data: &str) -> String {
    let breaks = ["\\r", "\\n", "\\", "\r", "\n"];
    let text = data.to_owned();
    breaks
        .iter()
        .fold(text, |text, part| text.replace(part, ""))
}

fn opaque(chars: usize) -> u64 {
    (chars as u64).div_ceil(OPAQUE_CHARS_PER_TOKEN)
}

/// Returns the ranges of long base64, in order. It is ASCII, so the text can be split there.
fn base64_runs(text: &str) -> impl Iterator<Item = std::ops::Range<usize>> {
    let mut start = 0;
    let pieces = text.as_bytes().split(|byte| !is_base64(*byte));
    let runs = pieces.map(move |piece| {
        let run = start..start + piece.len();
        start = run.end + 1;
        run
    });
    runs.filter(|run| run.len() >= OPAQUE_RUN_CHARS_MIN)
}

fn is_base64(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'-' | b'_' | b'=')
}

#[cfg(test)]
#[path = "scale_tests.rs"]
mod tests;
