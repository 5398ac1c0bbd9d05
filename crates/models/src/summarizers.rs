//! Summarizers behind HTTP: Anthropic, any provider with OpenAI's chat completions, or the
//! bot's own service.

mod anthropic;
mod config;
mod openai;
mod webhook;

use std::fmt;
use std::sync::Arc;

use memoird_core::compaction::prompt;
use memoird_engine::{
    FaultKind, ModelFault, Summarizer, SummarizerAnswer, SummarizerFuture, SummaryRequest,
};
use serde_json::Value;

use crate::error::ModelError;
use crate::http::{self, ApiKey, Auth, Provider, Request, Tries};
pub use config::{
    AnthropicSummarizerConfig, OpenAiSummarizerConfig, SummarizerSpec, TokenLimit,
    WebhookSummarizerConfig,
};

/// Requests summaries from a provider or a service.
#[derive(Debug)]
pub struct RemoteSummarizer {
    provider: Provider,
    name: String,
    input_tokens_max: u64,
    protocol: Box<dyn Protocol>,
}

/// How a provider takes a request for a summary, and how it answers.
trait Protocol: fmt::Debug + Send + Sync {
    /// The body of the request. `prompt` holds all of `request` for a model.
    fn body(&self, request: &SummaryRequest, prompt: &str) -> Value;

    /// The answer in the body of a response.
    fn read(&self, body: &[u8]) -> Result<SummarizerAnswer, ModelFault>;
}

/// Bytes of an answer. A summary has a hundredth of it; the rest is for models that write
/// down their thoughts.
const ANSWER_BYTES_MAX: usize = 1024 * 1024;

impl RemoteSummarizer {
    /// A model of Anthropic. Nothing is sent yet.
    /// The key is what [`AnthropicSummarizerConfig::api_key`] names.
    ///
    /// # Errors
    /// [`ModelError::BaseUrlInvalid`], [`ModelError::SettingOutOfRange`],
    /// [`ModelError::TlsUnavailable`].
    pub fn anthropic(
        config: &AnthropicSummarizerConfig,
        api_key: Option<ApiKey>,
    ) -> Result<Self, ModelError> {
        config.check()?;
        let base = http::above_v1(http::base(&config.base_url)?);
        let tries = Tries::within(config.tries_max, config.timeout);
        let auth = Auth::anthropic(api_key);
        let model = config.model.clone();
        Ok(Self {
            provider: Provider::new("summaries", &base, "/v1/messages", auth, tries)?,
            name: format!("anthropic:{model}"),
            input_tokens_max: config.input_tokens_max,
            protocol: Box::new(anthropic::Messages { model }),
        })
    }

    /// A model of a provider with OpenAI's chat completions. Nothing is sent yet.
    /// The key is what [`OpenAiSummarizerConfig::api_key`] names.
    ///
    /// # Errors
    /// The same as [`RemoteSummarizer::anthropic`].
    pub fn openai(
        config: &OpenAiSummarizerConfig,
        api_key: Option<ApiKey>,
    ) -> Result<Self, ModelError> {
        config.check()?;
        let base = http::base(&config.base_url)?;
        let tries = Tries::within(config.tries_max, config.timeout);
        let auth = Auth::bearer(api_key);
        Ok(Self {
            provider: Provider::new("summaries", &base, "/chat/completions", auth, tries)?,
            name: format!("openai:{}", config.model),
            input_tokens_max: config.input_tokens_max,
            protocol: Box::new(openai::ChatCompletions::new(config, &base)),
        })
    }

    /// The bot's own service. Nothing is sent yet.
    /// The key is what [`WebhookSummarizerConfig::api_key`] names.
    ///
    /// # Errors
    /// The same as [`RemoteSummarizer::anthropic`].
    pub fn webhook(
        config: &WebhookSummarizerConfig,
        api_key: Option<ApiKey>,
    ) -> Result<Self, ModelError> {
        config.check()?;
        let tries = Tries::within(config.tries_max, config.timeout);
        let base = http::base(&config.url)?;
        let auth = Auth::bearer(api_key);
        Ok(Self {
            provider: Provider::new("summaries", &base, "", auth, tries)?,
            name: "webhook".to_owned(),
            input_tokens_max: config.input_tokens_max,
            protocol: Box::new(webhook::Webhook),
        })
    }

    async fn answer(&self, request: &SummaryRequest) -> Result<SummarizerAnswer, ModelFault> {
        let prompt = prompt::prompt(&prompt::Ask {
            previous: request.previous.as_deref(),
            pieces: &request.chunks,
            turns: &request.turns,
            notes: &request.notes,
            tokens_max: request.tokens_max,
            mark: request.mark,
        });
        // No problem may repeat the prompt, or what it was made from.
        let previous = request.previous.iter().map(|summary| &*summary.text);
        let turns = request.turns.iter().map(|turn| turn.text.as_str());
        let private: Vec<&str> = [&*prompt]
            .into_iter()
            .chain(previous)
            .chain(turns)
            .collect();
        let post = Request {
            body: self.protocol.body(request, &prompt).to_string(),
            private: &private,
            bytes_max: ANSWER_BYTES_MAX,
        };
        let read = |body: &[u8]| self.protocol.read(body);
        self.provider.send(&post, read).await
    }
}

impl Summarizer for RemoteSummarizer {
    fn name(&self) -> &str {
        &self.name
    }

    fn input_tokens_max(&self) -> u64 {
        self.input_tokens_max
    }

    fn is_remote(&self) -> bool {
        true
    }

    fn summarize(&self, request: Arc<SummaryRequest>) -> SummarizerFuture<'_> {
        Box::pin(async move { self.answer(&request).await })
    }
}

/// Tokens that a model may write: a quarter more than the prompt allows. Models count
/// differently, and a summary that is cut off is useless; one that is too long is refused
/// later.
fn reply_tokens(tokens_max: u64) -> u64 {
    tokens_max.saturating_add(tokens_max / 4)
}

/// The JSON object of an answer. `api` is the one that `base_url` should have.
fn object(body: &[u8], api: &str) -> Result<Value, ModelFault> {
    let answer = serde_json::from_slice::<Value>(body)
        .ok()
        .filter(Value::is_object);
    let answer = answer.ok_or_else(|| unexpected("is no JSON object", api))?;
    match answer.get("error") {
        None | Some(Value::Null) => Ok(answer),
        Some(_) => Err(http::refusal_inside(body)),
    }
}

/// An answer that the API does not allow.
fn unexpected(what: &str, api: &str) -> ModelFault {
    let problem = format!("the answer {what}; is base_url the one of {api}?");
    ModelFault::new(FaultKind::Unusable, problem)
}

/// The texts of a content, which is a text or a list of parts.
fn texts(content: &Value) -> String {
    let Some(parts) = content.as_array() else {
        return content.as_str().unwrap_or_default().to_owned();
    };
    let parts = parts.iter().filter(|part| part["type"] == "text");
    parts.filter_map(|part| part["text"].as_str()).collect()
}
