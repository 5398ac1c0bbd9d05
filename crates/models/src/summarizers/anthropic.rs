//! Summaries by Anthropic's Messages API.

use memoird_core::compaction::prompt;
use memoird_engine::{ModelFault, SummarizerAnswer, SummaryRequest, TextEnd};
use serde_json::{Value, json};

use super::Protocol;

/// `POST /v1/messages` to this model.
#[derive(Debug)]
pub(super) struct Messages {
    pub(super) model: String,
}

const API: &str = "Anthropic's Messages API";

impl Protocol for Messages {
    fn body(&self, request: &SummaryRequest, prompt: &str) -> Value {
        json!({
            "model": self.model,
            "max_tokens": super::reply_tokens(request.tokens_max),
            "system": prompt::system(),
            "messages": [{"role": "user", "content": prompt}],
        })
    }

    fn read(&self, body: &[u8]) -> Result<SummarizerAnswer, ModelFault> {
        let answer = super::object(body, API)?;
        if !answer["content"].is_array() {
            return Err(super::unexpected("has no list named content", API));
        }
        // For a reason that is not known yet, the text decides.
        let end = match answer["stop_reason"].as_str() {
            Some("max_tokens" | "model_context_window_exceeded") => TextEnd::CutOff,
            Some("refusal") => TextEnd::Refused,
            _ => TextEnd::Complete,
        };
        Ok(SummarizerAnswer::Text {
            text: super::texts(&answer["content"]),
            end,
        })
    }
}
