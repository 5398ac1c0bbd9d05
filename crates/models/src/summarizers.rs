//! Summarizers that ask somebody else: Anthropic, any provider that speaks OpenAI's chat
//! completions, or the bot's own service.

mod anthropic;
mod config;
mod openai;
mod webhook;

use memoird_core::compaction::prompt;
use memoird_engine::{SummarizeError, SummaryAsk};
use serde_json::Value;

use crate::http::{self, Fault};
pub use anthropic::AnthropicSummarizer;
pub use config::{
    AnthropicSummarizerConfig, OpenAiSummarizerConfig, SummarizerSpec, TokenLimit,
    WebhookSummarizerConfig,
};
pub use openai::OpenAiSummarizer;
pub use webhook::WebhookSummarizer;

/// Bytes of an answer. A summary has a hundredth of it; the rest is for models that think
/// aloud.
const ANSWER_BYTES_MAX: usize = 1024 * 1024;

/// The prompt for a model.
fn prompt(ask: &SummaryAsk) -> String {
    prompt::prompt(&prompt::Ask {
        previous: ask.previous.as_deref(),
        pieces: &ask.pieces,
        turns: &ask.turns,
        notes: &ask.notes,
        tokens_max: ask.tokens_max,
    })
}

/// What no problem may repeat: the prompt, and what it was made from.
fn private<'a>(ask: &'a SummaryAsk, prompt: &'a str) -> Vec<&'a str> {
    let previous = ask.previous.iter().map(|summary| &*summary.text);
    let turns = ask.turns.iter().map(|turn| turn.text.as_str());
    std::iter::once(prompt)
        .chain(previous)
        .chain(turns)
        .collect()
}

/// Tokens that a model may write: a quarter more than it is told. It does not count them as
/// memoird does, and a summary that is cut off is worth nothing; one that is too long is
/// still found out.
fn reply_tokens(tokens_max: u64) -> u64 {
    tokens_max.saturating_add(tokens_max / 4)
}

/// An answer's fields. `whose` says who should answer so.
fn fields(body: &[u8], whose: &str) -> Result<Value, Fault> {
    let answer = serde_json::from_slice::<Value>(body)
        .ok()
        .filter(Value::is_object);
    let answer = answer.ok_or_else(|| strange("is no JSON object", whose))?;
    match answer.get("error") {
        None | Some(Value::Null) => Ok(answer),
        Some(_) => Err(http::refusal_inside(body)),
    }
}

/// Not what the contract says.
fn strange(what: &str, whose: &str) -> Fault {
    Fault::Strange {
        problem: format!("the answer {what}; is base_url the one of {whose}?"),
    }
}

/// The texts of a content, which is a text or a list of parts.
fn texts(content: &Value) -> String {
    let Some(parts) = content.as_array() else {
        return content.as_str().unwrap_or_default().to_owned();
    };
    let parts = parts.iter().filter(|part| part["type"] == "text");
    parts.filter_map(|part| part["text"].as_str()).collect()
}

impl From<Fault> for SummarizeError {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Later { problem, after } => Self::Later { problem, after },
            Fault::Strange { problem } => Self::Later {
                problem,
                after: None,
            },
            Fault::Misconfigured { problem } => Self::Misconfigured { problem },
            Fault::TooLong { problem } => Self::TooLong { problem },
            Fault::Refused { problem } => Self::Refused { problem },
        }
    }
}
