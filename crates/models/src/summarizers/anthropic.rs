//! Summaries by Anthropic's Messages API.

use std::sync::Arc;

use memoird_core::compaction::prompt;
use memoird_engine::{Answer, Stop, Summaries, SummarizeError, Summarizer, SummaryAsk};
use serde_json::json;

use super::AnthropicSummarizerConfig;
use crate::error::ModelError;
use crate::http::{self, ApiKey, Fault, Provider, Question, Site, TimeLimit, Tries};

/// Asks a model of Anthropic for summaries.
#[derive(Debug)]
pub struct AnthropicSummarizer {
    provider: Provider,
    name: String,
    model: String,
    input_tokens_max: u64,
}

const WHOSE: &str = "Anthropic's Messages API";

impl AnthropicSummarizer {
    /// Nothing is sent yet. The key is what [`AnthropicSummarizerConfig::api_key`] names.
    ///
    /// # Errors
    /// [`ModelError::BaseUrlInvalid`], [`ModelError::SettingOutOfRange`],
    /// [`ModelError::TlsUnavailable`].
    pub fn new(
        config: &AnthropicSummarizerConfig,
        api_key: Option<ApiKey>,
    ) -> Result<Self, ModelError> {
        config.check()?;
        let provider = Provider::new(Site {
            what: "summaries",
            base: &http::above_v1(http::base(&config.base_url)?),
            path: "/v1/messages",
            headers: http::anthropic(api_key.as_ref()),
            api_key,
            tries: Tries {
                max: config.tries_max,
                limit: TimeLimit::All(config.timeout),
            },
        })?;
        Ok(Self {
            provider,
            name: format!("anthropic:{}", config.model),
            model: config.model.clone(),
            input_tokens_max: config.input_tokens_max,
        })
    }

    async fn answer(&self, ask: &SummaryAsk) -> Result<Answer, SummarizeError> {
        let prompt = super::prompt(ask);
        let body = json!({
            "model": self.model,
            "max_tokens": super::reply_tokens(ask.tokens_max),
            "system": prompt::system(),
            "messages": [{"role": "user", "content": prompt}],
        });
        let question = Question {
            body: body.to_string(),
            private: &super::private(ask, &prompt),
            bytes_max: super::ANSWER_BYTES_MAX,
        };
        Ok(self.provider.ask(&question, read).await?)
    }
}

impl Summarizer for AnthropicSummarizer {
    fn name(&self) -> &str {
        &self.name
    }

    fn input_tokens_max(&self) -> u64 {
        self.input_tokens_max
    }

    fn is_remote(&self) -> bool {
        true
    }

    fn summarize(&self, ask: Arc<SummaryAsk>) -> Summaries<'_> {
        Box::pin(async move { self.answer(&ask).await })
    }
}

fn read(body: &[u8]) -> Result<Answer, Fault> {
    let answer = super::fields(body, WHOSE)?;
    if !answer["content"].is_array() {
        return Err(super::strange("has no list named content", WHOSE));
    }
    // A reason that is not known yet is judged by what was written.
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
