//! Anthropic's Messages API.

use memoird_engine::{ModelFault, TextEnd};
use serde_json::{Value, json};

use super::{ModelReply, ModelRequest, Protocol};

/// `POST /v1/messages` with this model.
#[derive(Debug)]
pub(super) struct Messages {
    pub(super) model: String,
}

const API: &str = "Anthropic's Messages API";

impl Protocol for Messages {
    fn body(&self, ask: &ModelRequest<'_>) -> Value {
        let mut body = json!({
            "model": self.model,
            "max_tokens": super::reply_tokens(ask.tokens_max),
            "messages": [{"role": "user", "content": ask.prompt}],
        });
        if let Some(system) = ask.system {
            body["system"] = json!(system);
        }
        body
    }

    fn read(&self, body: &[u8]) -> Result<ModelReply, ModelFault> {
        let answer = super::object(body, API)?;
        if !answer["content"].is_array() {
            return Err(super::unexpected("has no list named content", API));
        }
        // For an unknown reason, the text decides.
        let end = match answer["stop_reason"].as_str() {
            Some("max_tokens" | "model_context_window_exceeded") => TextEnd::CutOff,
            Some("refusal") => TextEnd::Refused,
            _ => TextEnd::Complete,
        };
        Ok(ModelReply {
            text: super::texts(&answer["content"]),
            end,
            tokens: super::tokens(&answer["usage"], "input_tokens", "output_tokens"),
        })
    }
}
