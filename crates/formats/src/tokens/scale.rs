//! What a turn weighs for one model: the tokens of its parts by the tokenizer, and what
//! the provider adds around them.

use std::sync::Arc;

use memoird_core::turn::{Part, PartKind, Turn};

use super::{Tokenizer, media};
use crate::model::Provider;

/// Counts the tokens of what a model is sent. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Scale {
    tokenizer: Arc<dyn Tokenizer>,
    provider: Provider,
    overheads: Overheads,
}

/// Opaque data is base64: four characters for three bytes, of which a token is at least
/// three.
const OPAQUE_CHARS_PER_TOKEN: u64 = 4;

/// A run of base64 in an extra of at least this many characters is not text but content without
/// a part of its own: a kind of media, or encrypted data of a provider.
const OPAQUE_RUN_CHARS_MIN: usize = 2_048;
/// And no such run weighs more, because no kind of media does.
const OPAQUE_RUN_TOKENS_MAX: u64 = 16_384;

impl Scale {
    /// A scale for the models of `provider` that tokenize as `tokenizer` does.
    pub fn new(tokenizer: Arc<dyn Tokenizer>, provider: Provider) -> Self {
        Self {
            tokenizer,
            provider,
            overheads: Overheads::of(provider),
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

    /// Tokens of tool schemas, with the prompt that the provider adds where there are
    /// any; 0 for empty text.
    pub fn tools(&self, tools_json: &str) -> u64 {
        match tools_json.trim() {
            "" | "[]" | "null" => 0,
            json => self.overheads.tools + self.text(json),
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
            PartKind::ToolUse {
                id,
                name,
                input_json,
            } => {
                let said = self.text(name) + self.text(input_json);
                said + self.id(id) + self.overheads.call
            }
            PartKind::ToolResult {
                tool_use_id,
                content,
                parts,
                is_error: _,
            } => {
                let said = self.text(content) + self.id(tool_use_id) + self.overheads.result;
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
        self.provider
    }

    fn id(&self, id: &str) -> u64 {
        if self.overheads.reads_ids {
            self.text(id)
        } else {
            0
        }
    }

    /// The provider's own fields, as the JSON that goes back. Of their content long
    /// base64 is not weighed as text, which it is not.
    fn extra(&self, json: &str) -> u64 {
        if json.len() < OPAQUE_RUN_CHARS_MIN {
            return self.text(json);
        }
        let mut tokens = 0_u64;
        let mut text_start = 0;
        for run in base64_runs(json) {
            let data = opaque(run.len()).min(OPAQUE_RUN_TOKENS_MAX);
            tokens += self.text(&json[text_start..run.start]) + data;
            text_start = run.end;
        }
        tokens + self.text(&json[text_start..])
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
    /// Whether the model reads the ids of calls.
    reads_ids: bool,
}

impl Overheads {
    /// OpenAI: its cookbook, "How to count tokens with tiktoken" (three tokens a message,
    /// three for the reply's priming, twelve around all tools, of which each takes less
    /// than its JSON); a call with its result was seen to cost eight more than its text.
    /// Anthropic: the table of tool-use prompts in its documentation (346 with the choice
    /// `auto`, the most of the Claude 4 models) and the example of its counting endpoint
    /// (14 for a system prompt of four words and a greeting of two); how it writes calls is
    /// not published, so these are estimates of the safe side. Google publishes none;
    /// Gemma's chat template has five around a turn. Open models: estimates after the
    /// templates of Llama, Qwen, Mistral and DeepSeek, the largest of each.
    fn of(provider: Provider) -> Self {
        // In the order of the fields.
        let [request, message, part, call, result, tools] = match provider {
            Provider::OpenAi => [3, 3, 0, 6, 4, 12],
            Provider::Anthropic => [4, 4, 1, 24, 16, 346],
            Provider::Google => [4, 5, 1, 12, 12, 32],
            Provider::Open => [5, 6, 1, 16, 12, 160],
        };
        Self {
            request,
            message,
            part,
            call,
            result,
            tools,
            reads_ids: matches!(provider, Provider::Anthropic | Provider::Open),
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
