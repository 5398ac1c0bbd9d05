//! Summarizers behind HTTP: Anthropic, OpenAI-compatible providers, or the bot's own service.

mod anthropic;
mod config;
mod openai;
mod webhook;

use std::fmt;
use std::sync::Arc;

use memoird_core::compaction::prompt;
use memoird_engine::{
    FaultKind, ModelFault, Summarizer, SummarizerFuture, SummarizerReply, SummaryRequest, TextEnd,
};
use serde_json::Value;

use crate::error::ModelError;
use crate::http::{self, ApiKey, Auth, Provider, Request, RetryLimits, SendOutcome};
pub use config::{
    AnthropicSummarizerConfig, OpenAiSummarizerConfig, SummarizerSpec, TokenLimit,
    WebhookSummarizerConfig,
};

/// Requests summaries from a provider or service.
#[derive(Debug)]
pub struct RemoteSummarizer(RemoteModel);

/// A provider or service that replies to prompts.
#[derive(Debug)]
pub(crate) struct RemoteModel {
    provider: Provider,
    pub(crate) name: String,
    pub(crate) input_tokens_max: u64,
    protocol: Box<dyn Protocol>,
}

/// A prompt for a model, or the same as data for a service.
pub(crate) struct ModelRequest<'a> {
    /// The part of the prompt before the conversation, if there is one.
    pub(crate) system: Option<&'a str>,
    pub(crate) prompt: &'a str,
    pub(crate) tokens_max: u64,
    /// The request as data, for the operator's own service.
    pub(crate) for_service: &'a (dyn Fn() -> Value + Sync),
}

/// A model's reply.
pub(crate) struct ModelReply {
    pub(crate) text: String,
    pub(crate) end: TextEnd,
    /// Tokens of the prompt and of the reply, if the provider counts them.
    pub(crate) tokens: Option<(u64, u64)>,
}

/// Request and response format of a provider.
trait Protocol: fmt::Debug + Send + Sync {
    /// Formats the body of the request.
    fn body(&self, ask: &ModelRequest<'_>) -> Value;

    /// Current name of the field that limits the reply, if it has two names.
    fn limit_field(&self) -> Option<&'static str> {
        None
    }

    /// Switches to the other name.
    fn switch_limit_field(&self, _field: &'static str) {}

    /// Parses the body of a response.
    fn read(&self, body: &[u8]) -> Result<ModelReply, ModelFault>;
}

/// Maximum bytes of a response. A summary has a hundredth of it; the rest is for reasoning models.
const RESPONSE_BYTES_MAX: usize = 1024 * 1024;

impl RemoteModel {
    /// Uses a model of Anthropic for `what`. Nothing is sent yet.
    pub(crate) fn anthropic(
        what: &str,
        config: &AnthropicSummarizerConfig,
        api_key: Option<ApiKey>,
    ) -> Result<Self, ModelError> {
        config.check()?;
        let base = http::above_v1(http::base(&config.base_url)?);
        let retry_limits = RetryLimits::within(config.tries_max, config.timeout);
        let auth = Auth::anthropic(api_key);
        let model = config.model.clone();
        Ok(Self {
            provider: Provider::new(what, &base, "/v1/messages", auth, retry_limits)?,
            name: format!("anthropic:{model}"),
            input_tokens_max: config.input_tokens_max,
            protocol: Box::new(anthropic::Messages { model }),
        })
    }

    /// Uses a model of a provider with OpenAI's chat completions for `what`.
    pub(crate) fn openai(
        what: &str,
        config: &OpenAiSummarizerConfig,
        api_key: Option<ApiKey>,
    ) -> Result<Self, ModelError> {
        config.check()?;
        let base = http::base(&config.base_url)?;
        let retry_limits = RetryLimits::within(config.tries_max, config.timeout);
        let auth = Auth::bearer(api_key);
        Ok(Self {
            provider: Provider::new(what, &base, "/chat/completions", auth, retry_limits)?,
            name: format!("openai:{}", config.model),
            input_tokens_max: config.input_tokens_max,
            protocol: Box::new(openai::ChatCompletions::new(config, &base)),
        })
    }

    /// Uses the operator's own service for `what`.
    pub(crate) fn webhook(
        what: &str,
        config: &WebhookSummarizerConfig,
        api_key: Option<ApiKey>,
    ) -> Result<Self, ModelError> {
        config.check()?;
        let retry_limits = RetryLimits::within(config.tries_max, config.timeout);
        let base = http::base(&config.url)?;
        let auth = Auth::bearer(api_key);
        Ok(Self {
            provider: Provider::new(what, &base, "", auth, retry_limits)?,
            name: "webhook".to_owned(),
            input_tokens_max: config.input_tokens_max,
            protocol: Box::new(webhook::Webhook),
        })
    }

    /// Sends the prompt and parses the reply. No error message repeats a text of `private`.
    ///
    /// If the provider rejects the field that limits the reply, the request is repeated with its
    /// other name.
    pub(crate) async fn ask(
        &self,
        ask: &ModelRequest<'_>,
        private: &[&str],
    ) -> Result<ModelReply, ModelFault> {
        let post = || Request {
            body: self.protocol.body(ask).to_string(),
            private,
            bytes_max: RESPONSE_BYTES_MAX,
            optional_field: self.protocol.limit_field(),
        };
        let read = |body: &[u8]| self.protocol.read(body);
        let first = post();
        match (
            self.provider.try_send(&first, read).await?,
            first.optional_field,
        ) {
            (SendOutcome::Response(reply), _) => Ok(reply),
            (SendOutcome::UnknownField(_), Some(field)) => {
                self.protocol.switch_limit_field(field);
                self.provider.send(&post(), read).await
            }
            (SendOutcome::UnknownField(fault), None) => Err(fault),
        }
    }
}

impl RemoteSummarizer {
    /// Prefix of a summarizer's error messages.
    const WHAT: &'static str = "summaries";

    /// Uses a model of Anthropic. Nothing is sent yet.
    ///
    /// `api_key` is the secret named by [`AnthropicSummarizerConfig::api_key`].
    ///
    /// # Errors
    /// [`ModelError::BaseUrlInvalid`], [`ModelError::SettingOutOfRange`],
    /// [`ModelError::TlsUnavailable`].
    pub fn anthropic(
        config: &AnthropicSummarizerConfig,
        api_key: Option<ApiKey>,
    ) -> Result<Self, ModelError> {
        RemoteModel::anthropic(Self::WHAT, config, api_key).map(Self)
    }

    /// Uses a model of a provider with OpenAI's chat completions. Nothing is sent yet.
    ///
    /// `api_key` is the secret named by [`OpenAiSummarizerConfig::api_key`].
    ///
    /// # Errors
    /// The same as [`RemoteSummarizer::anthropic`].
    pub fn openai(
        config: &OpenAiSummarizerConfig,
        api_key: Option<ApiKey>,
    ) -> Result<Self, ModelError> {
        RemoteModel::openai(Self::WHAT, config, api_key).map(Self)
    }

    /// Uses the bot's own service. Nothing is sent yet.
    ///
    /// `api_key` is the secret named by [`WebhookSummarizerConfig::api_key`].
    ///
    /// # Errors
    /// The same as [`RemoteSummarizer::anthropic`].
    pub fn webhook(
        config: &WebhookSummarizerConfig,
        api_key: Option<ApiKey>,
    ) -> Result<Self, ModelError> {
        RemoteModel::webhook(Self::WHAT, config, api_key).map(Self)
    }

    async fn answer(&self, request: &SummaryRequest) -> Result<SummarizerReply, ModelFault> {
        let prompt = prompt::prompt(&prompt::SummaryPrompt {
            previous: request.previous.as_deref(),
            pieces: &request.chunks,
            turns: &request.turns,
            tokens_max: request.tokens_max,
            nonce: request.nonce,
        });
        // Error messages must not repeat the prompt or its sources.
        let previous = request.previous.iter().map(|summary| &*summary.text);
        let turns = request.turns.iter().map(|turn| turn.text.as_str());
        let private: Vec<&str> = [&*prompt]
            .into_iter()
            .chain(previous)
            .chain(turns)
            .collect();
        let ask = ModelRequest {
            system: Some(prompt::system()),
            prompt: &prompt,
            tokens_max: request.tokens_max,
            for_service: &|| webhook::summary(request, &prompt),
        };
        let ModelReply { text, end, .. } = self.0.ask(&ask, &private).await?;
        Ok(SummarizerReply::Text { text, end })
    }
}

impl Summarizer for RemoteSummarizer {
    fn name(&self) -> &str {
        &self.0.name
    }

    fn input_tokens_max(&self) -> u64 {
        self.0.input_tokens_max
    }

    fn is_remote(&self) -> bool {
        true
    }

    fn summarize(&self, request: Arc<SummaryRequest>) -> SummarizerFuture<'_> {
        Box::pin(async move { self.answer(&request).await })
    }
}

/// Maximum tokens that a model may write: a quarter more than the prompt allows.
///
/// Models count differently. A truncated summary is useless, and one that is too long is rejected
/// later.
fn reply_tokens(tokens_max: u64) -> u64 {
    tokens_max.saturating_add(tokens_max / 4)
}

/// Parses the JSON object of a response. `api` names the API expected at `base_url`.
fn object(body: &[u8], api: &str) -> Result<Value, ModelFault> {
    let answer = serde_json::from_slice::<Value>(body)
        .ok()
        .filter(Value::is_object)
        .ok_or_else(|| unexpected("is not a JSON object", api))?;
    match answer.get("error") {
        None | Some(Value::Null) => Ok(answer),
        Some(_) => Err(http::error_in_success_body(body)),
    }
}

/// An error for a response that the API does not allow.
fn unexpected(what: &str, api: &str) -> ModelFault {
    let problem = format!("the response {what}; check that base_url is that of {api}");
    ModelFault::new(FaultKind::Unusable, problem)
}

/// Tokens of a prompt and its reply, as counted by the provider.
fn tokens(usage: &Value, prompt: &str, answer: &str) -> Option<(u64, u64)> {
    Some((usage[prompt].as_u64()?, usage[answer].as_u64()?))
}

/// The texts of a content field, which is a text or a list of parts.
fn texts(content: &Value) -> String {
    let Some(parts) = content.as_array() else {
        return content.as_str().unwrap_or_default().to_owned();
    };
    let parts = parts.iter().filter(|part| part["type"] == "text");
    parts.filter_map(|part| part["text"].as_str()).collect()
}
