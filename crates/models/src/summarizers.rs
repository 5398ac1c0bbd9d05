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
    FaultKind, ModelFault, Summarizer, SummarizerAnswer, SummarizerFuture, SummaryRequest, TextEnd,
};
use serde_json::Value;

use crate::error::ModelError;
use crate::http::{self, ApiKey, Auth, Outcome, Provider, Request, Tries};
pub use config::{
    AnthropicSummarizerConfig, OpenAiSummarizerConfig, SummarizerSpec, TokenLimit,
    WebhookSummarizerConfig,
};

/// Requests summaries from a provider or a service.
#[derive(Debug)]
pub struct RemoteSummarizer(RemoteModel);

/// A provider or a service that answers prompts.
#[derive(Debug)]
pub(crate) struct RemoteModel {
    provider: Provider,
    pub(crate) name: String,
    pub(crate) input_tokens_max: u64,
    protocol: Box<dyn Protocol>,
}

/// What a model is asked.
pub(crate) struct Ask<'a> {
    /// What stands apart from the prompt, where something does.
    pub(crate) system: Option<&'a str>,
    /// All of the request for a model.
    pub(crate) prompt: &'a str,
    /// Tokens that the answer may have.
    pub(crate) tokens_max: u64,
    /// The same as data: what a service of the operator's own gets.
    pub(crate) for_service: &'a (dyn Fn() -> Value + Sync),
}

/// What a model wrote.
pub(crate) struct Reply {
    /// All of it.
    pub(crate) text: String,
    /// How it ended.
    pub(crate) end: TextEnd,
    /// Tokens of the prompt and of the answer, where the provider counts them.
    pub(crate) tokens: Option<(u64, u64)>,
}

/// How a provider takes a request, and how it answers.
trait Protocol: fmt::Debug + Send + Sync {
    /// The body of the request.
    fn body(&self, ask: &Ask<'_>) -> Value;

    /// The current name of the field that limits the answer, if it has two names.
    fn limit_field(&self) -> Option<&'static str> {
        None
    }

    /// Switches to the other name.
    fn refuse_limit_field(&self, _field: &'static str) {}

    /// The answer in the body of a response.
    fn read(&self, body: &[u8]) -> Result<Reply, ModelFault>;
}

/// Bytes of an answer. A summary has a hundredth of it; the rest is for models that write
/// down their thoughts.
const ANSWER_BYTES_MAX: usize = 1024 * 1024;

impl RemoteModel {
    /// A model of Anthropic, asked for `what`. Nothing is sent yet.
    pub(crate) fn anthropic(
        what: &str,
        config: &AnthropicSummarizerConfig,
        api_key: Option<ApiKey>,
    ) -> Result<Self, ModelError> {
        config.check()?;
        let base = http::above_v1(http::base(&config.base_url)?);
        let tries = Tries::within(config.tries_max, config.timeout);
        let auth = Auth::anthropic(api_key);
        let model = config.model.clone();
        Ok(Self {
            provider: Provider::new(what, &base, "/v1/messages", auth, tries)?,
            name: format!("anthropic:{model}"),
            input_tokens_max: config.input_tokens_max,
            protocol: Box::new(anthropic::Messages { model }),
        })
    }

    /// A model of a provider with OpenAI's chat completions, asked for `what`.
    pub(crate) fn openai(
        what: &str,
        config: &OpenAiSummarizerConfig,
        api_key: Option<ApiKey>,
    ) -> Result<Self, ModelError> {
        config.check()?;
        let base = http::base(&config.base_url)?;
        let tries = Tries::within(config.tries_max, config.timeout);
        let auth = Auth::bearer(api_key);
        Ok(Self {
            provider: Provider::new(what, &base, "/chat/completions", auth, tries)?,
            name: format!("openai:{}", config.model),
            input_tokens_max: config.input_tokens_max,
            protocol: Box::new(openai::ChatCompletions::new(config, &base)),
        })
    }

    /// The operator's own service, asked for `what`.
    pub(crate) fn webhook(
        what: &str,
        config: &WebhookSummarizerConfig,
        api_key: Option<ApiKey>,
    ) -> Result<Self, ModelError> {
        config.check()?;
        let tries = Tries::within(config.tries_max, config.timeout);
        let base = http::base(&config.url)?;
        let auth = Auth::bearer(api_key);
        Ok(Self {
            provider: Provider::new(what, &base, "", auth, tries)?,
            name: "webhook".to_owned(),
            input_tokens_max: config.input_tokens_max,
            protocol: Box::new(webhook::Webhook),
        })
    }

    /// Asks, and reads the answer. No problem repeats a text of `private`. Where the provider does not
    /// take the field for the limit of the answer, it is asked once more with the other one.
    pub(crate) async fn ask(&self, ask: &Ask<'_>, private: &[&str]) -> Result<Reply, ModelFault> {
        let post = || Request {
            body: self.protocol.body(ask).to_string(),
            private,
            bytes_max: ANSWER_BYTES_MAX,
            optional_field: self.protocol.limit_field(),
        };
        let read = |body: &[u8]| self.protocol.read(body);
        let first = post();
        match (
            self.provider.try_send(&first, read).await?,
            first.optional_field,
        ) {
            (Outcome::Answer(reply), _) => Ok(reply),
            (Outcome::UnknownField(_), Some(field)) => {
                self.protocol.refuse_limit_field(field);
                self.provider.send(&post(), read).await
            }
            (Outcome::UnknownField(fault), None) => Err(fault),
        }
    }
}

impl RemoteSummarizer {
    /// What the problems of a summarizer begin with.
    const WHAT: &'static str = "summaries";

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
        RemoteModel::anthropic(Self::WHAT, config, api_key).map(Self)
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
        RemoteModel::openai(Self::WHAT, config, api_key).map(Self)
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
        RemoteModel::webhook(Self::WHAT, config, api_key).map(Self)
    }

    async fn answer(&self, request: &SummaryRequest) -> Result<SummarizerAnswer, ModelFault> {
        let prompt = prompt::prompt(&prompt::Ask {
            previous: request.previous.as_deref(),
            pieces: &request.chunks,
            turns: &request.turns,
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
        let ask = Ask {
            system: Some(prompt::system()),
            prompt: &prompt,
            tokens_max: request.tokens_max,
            for_service: &|| webhook::summary(request, &prompt),
        };
        let Reply { text, end, .. } = self.0.ask(&ask, &private).await?;
        Ok(SummarizerAnswer::Text { text, end })
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

/// Tokens of a prompt and of its answer, as a provider counted them.
fn tokens(usage: &Value, prompt: &str, answer: &str) -> Option<(u64, u64)> {
    Some((usage[prompt].as_u64()?, usage[answer].as_u64()?))
}

/// The texts of a content, which is a text or a list of parts.
fn texts(content: &Value) -> String {
    let Some(parts) = content.as_array() else {
        return content.as_str().unwrap_or_default().to_owned();
    };
    let parts = parts.iter().filter(|part| part["type"] == "text");
    parts.filter_map(|part| part["text"].as_str()).collect()
}
