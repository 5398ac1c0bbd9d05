//! What a turn weighs for one model: the tokens of its parts by the tokenizer, and what
//! the provider adds around them.

use std::sync::Arc;

use memoird_core::turn::{MessageFormat, Part, PartKind, Turn};
use serde_json::{Map, Value};

use super::{Tokenizer, media, tools};
use crate::model::Provider;

/// Counts the tokens of what a model is sent. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Scale {
    tokenizer: Arc<dyn Tokenizer>,
    dialect: Dialect,
    overheads: Overheads,
}

/// How a provider puts a request before its models.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// OpenAI's models before those that reason: GPT-3.5, GPT-4, GPT-4o, GPT-4.1.
    OpenAiChat,
    /// OpenAI's models that reason, from o1 on.
    OpenAiReasoning,
    /// Anthropic's.
    Anthropic,
    /// Google's.
    Google,
    /// A model with open weights.
    Open,
}

impl Dialect {
    /// The dialect of a model.
    pub fn of(provider: Provider, model: &str) -> Self {
        let name = model.rsplit('/').next().unwrap_or_default();
        let is_chat = ["gpt-4", "gpt-3", "chatgpt-4"].iter().any(|old| {
            name.get(..old.len())
                .is_some_and(|start| start.eq_ignore_ascii_case(old))
        });
        match provider {
            Provider::OpenAi if is_chat => Self::OpenAiChat,
            Provider::OpenAi => Self::OpenAiReasoning,
            Provider::Anthropic => Self::Anthropic,
            Provider::Google => Self::Google,
            Provider::Open => Self::Open,
        }
    }

    fn provider(self) -> Provider {
        match self {
            Self::OpenAiChat | Self::OpenAiReasoning => Provider::OpenAi,
            Self::Anthropic => Provider::Anthropic,
            Self::Google => Provider::Google,
            Self::Open => Provider::Open,
        }
    }
}

/// Opaque data is base64: four characters for three bytes, of which a token is at least
/// three.
const OPAQUE_CHARS_PER_TOKEN: u64 = 4;

/// A run of base64 in an extra of at least this many characters is not text but content without
/// a part of its own: a kind of media, or encrypted data of a provider.
const OPAQUE_RUN_CHARS_MIN: usize = 2_048;
/// And no such run weighs more, because no kind of media does.
const OPAQUE_RUN_TOKENS_MAX: u64 = 16_384;

/// Fields of messages and their parts that providers keep from their models.
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
    /// A scale for models of this dialect that tokenize as `tokenizer` does.
    pub fn new(tokenizer: Arc<dyn Tokenizer>, dialect: Dialect) -> Self {
        Self {
            tokenizer,
            dialect,
            overheads: Overheads::of(dialect),
        }
    }

    /// How far its weights may be off, as a share; see [`Tokenizer::margin`].
    pub fn margin(&self) -> f64 {
        self.tokenizer.margin()
    }

    /// Tokens of text with nothing around it.
    pub fn text(&self, text: &str) -> u64 {
        if text.is_empty() {
            0
        } else {
            self.tokenizer.count(text) as u64
        }
    }

    /// Tokens of a turn as a message: all its parts, the provider's fields that go back
    /// with them, and what the provider adds. Never 0.
    pub fn turn(&self, turn: &Turn) -> u64 {
        let between = self.overheads.part * turn.parts.len().saturating_sub(1) as u64;
        let parts = turn.parts.iter().map(|part| self.part(part));
        let all = parts.chain([self.extra(&turn.extra_json)]);
        let around = self.overheads.message + between;
        all.fold(around, u64::saturating_add).max(1)
    }

    /// Tokens of a system prompt as a message; 0 for an empty one.
    pub fn system(&self, system: &str) -> u64 {
        if system.is_empty() {
            0
        } else {
            self.overheads.message + self.text(system)
        }
    }

    /// Tokens of tool schemas as the provider shows them to its models, with the prompt that it
    /// adds where there are any; 0 for empty text. `format` is the interface that the request
    /// goes to, where it is known.
    pub fn tools(&self, tools_json: &str, format: Option<MessageFormat>) -> u64 {
        let json = match tools_json.trim() {
            "" | "[]" | "{}" | "null" => return 0,
            json => json,
        };
        let Ok(given) = serde_json::from_str::<Value>(json) else {
            return self.overheads.tools + self.text(json);
        };
        let (tools, others) = tools::tools(&given);
        let others: u64 = others.iter().map(|tool| self.text(&tool.to_string())).sum();
        let of_each = |each: fn(u64) -> u64| -> u64 {
            tools.iter().map(|tool| each(self.text(&tool.json()))).sum()
        };
        let shown = match self.dialect {
            _ if tools.is_empty() => 0,
            Dialect::OpenAiChat | Dialect::OpenAiReasoning => {
                let namespace = self.text(&tools::namespace(&tools));
                namespace.saturating_add_signed(self.around_namespace(format))
            }
            Dialect::Anthropic => of_each(|json| json * 4 / 3 + 4),
            Dialect::Google => of_each(|json| json + 6),
            Dialect::Open => of_each(|json| json + 8),
        };
        self.overheads.tools + shown + others
    }

    /// What OpenAI adds to the namespace of tools: its older interface puts words of its own
    /// there for models that reason.
    fn around_namespace(&self, format: Option<MessageFormat>) -> i64 {
        let is_chat_interface = format == Some(MessageFormat::OpenAi);
        match self.dialect {
            Dialect::OpenAiReasoning if is_chat_interface => 84,
            Dialect::OpenAiReasoning => 2,
            _ if is_chat_interface => 2,
            _ => -3,
        }
    }

    /// Tokens that every request costs.
    pub fn request(&self) -> u64 {
        self.overheads.request
    }

    fn part(&self, part: &Part) -> u64 {
        let extra = self.extra(&part.extra_json);
        extra.saturating_add(match &part.kind {
            PartKind::Text(text) => self.text(text),
            // Models do not read the ids of calls.
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
                let said = self.text(content) + self.overheads.result;
                let inner = parts.iter().map(|part| self.part(part));
                inner.fold(said, u64::saturating_add)
            }
            PartKind::Media {
                media_type,
                source,
                name,
            } => {
                let media = media::Media {
                    media_type,
                    source,
                    extra_json: &part.extra_json,
                };
                media.tokens(self).saturating_add(self.text(name))
            }
            PartKind::Thinking {
                text,
                signature,
                redacted: false,
            } => {
                // What a provider shows of its reasoning may be a summary, or nothing:
                // then the signature holds the whole, encrypted, and the whole is charged.
                self.text(text).max(opaque(signature.len()))
            }
            PartKind::Thinking {
                text,
                signature,
                redacted: true,
            } => opaque(text.len()) + opaque(signature.len()),
        })
    }

    pub(super) fn provider(&self) -> Provider {
        self.dialect.provider()
    }

    /// The provider's own fields, as the JSON that goes back, without those that its models do
    /// not see.
    fn extra(&self, json: &str) -> u64 {
        let Ok(fields) = serde_json::from_str::<Map<String, Value>>(json) else {
            return self.mixed(json);
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
        let seen = fields.iter().filter(is_seen);
        seen.map(|(key, value)| self.text(key) + self.mixed(&value.to_string()))
            .sum()
    }

    /// Text in which data may stand. Long base64 is not weighed as text, which it is not.
    fn mixed(&self, text: &str) -> u64 {
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

/// Tokens that a provider adds, beside what the text itself takes.
#[derive(Clone, Copy, Debug)]
struct Overheads {
    /// To every request: what primes the reply.
    request: u64,
    /// To a message: its role and where it begins and ends.
    message: u64,
    /// To a part after the first one of its message.
    part: u64,
    /// To a call of a tool, beside name and arguments.
    call: u64,
    /// To a tool's result, beside its content.
    result: u64,
    /// To a request that has tools.
    tools: u64,
}

impl Overheads {
    /// Fitted to what providers charged for recorded requests. OpenAI's come out to the token
    /// for texts (its cookbook, "How to count tokens with tiktoken", has the same numbers for
    /// messages). Anthropic's prompt for tools grew from some 315 tokens to 495 for its models
    /// of late 2025; its table of prompts (346) is not what is charged today. Google adds a
    /// token to a message. Open models: what most of Mistral, Qwen, GLM and Llama charged; a few hosts
    /// put prompts of some hundred tokens before tools, which only their charges tell.
    fn of(dialect: Dialect) -> Self {
        // In the order of the fields.
        let [request, message, part, call, result, tools] = match dialect {
            Dialect::OpenAiChat => [3, 4, 0, 5, 4, 0],
            Dialect::OpenAiReasoning => [2, 4, 0, 7, 6, 0],
            Dialect::Anthropic => [3, 4, 0, 28, 17, 495],
            Dialect::Google => [0, 1, 0, 3, 3, 2],
            Dialect::Open => [4, 4, 0, 8, 6, 24],
        };
        Self {
            request,
            message,
            part,
            call,
            result,
            tools,
        }
    }
}

fn opaque(chars: usize) -> u64 {
    (chars as u64).div_ceil(OPAQUE_CHARS_PER_TOKEN)
}

/// Where long base64 stands, in order. It is ASCII, so text may be cut there.
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
