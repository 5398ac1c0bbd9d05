//! Summaries by Anthropic's Messages API.

use memoird_core::compaction::prompt;
use memoird_engine::{Answer, Stop, SummaryAsk};
use serde_json::{Value, json};

use super::{AnthropicSummarizerConfig, Protocol};
use crate::http::Fault;

/// `POST /v1/messages` to this model.
#[derive(Debug)]
pub(super) struct Messages {
    model: String,
}

const API: &str = "Anthropic's Messages API";

impl Messages {
    pub(super) fn new(config: &AnthropicSummarizerConfig) -> Self {
        Self {
            model: config.model.clone(),
        }
    }
}

impl Protocol for Messages {
    fn body(&self, ask: &SummaryAsk, prompt: &str) -> Value {
        json!({
            "model": self.model,
            "max_tokens": super::reply_tokens(ask.tokens_max),
            "system": prompt::system(),
            "messages": [{"role": "user", "content": prompt}],
        })
    }

    fn read(&self, body: &[u8]) -> Result<Answer, Fault> {
        let answer = super::object(body, API)?;
        if !answer["content"].is_array() {
            return Err(super::unexpected("has no list named content", API));
        }
        // For a reason that is not known yet, the text decides.
        let stop = match answer["stop_reason"].as_str() {
            Some("max_tokens" | "model_context_window_exceeded") => Stop::CutOff,
            Some("refusal") => Stop::Refused,
            _ => Stop::Complete,
        };
        Ok(Answer::Text {
            text: super::texts(&answer["content"]),
            stop,
        })
    }
}
