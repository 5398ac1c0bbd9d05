//! The summarizer of the file: who writes summaries, if anybody does.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use memoird_engine::Summarizer;
use memoird_models::{
    AnthropicSummarizerConfig, ApiKey, ExtractiveSummarizer, OpenAiSummarizerConfig,
    RemoteSummarizer, TokenLimit, WebhookSummarizerConfig,
};
use serde::{Deserialize, Serialize};

use super::secret::SecretShape;
use super::units::Span;

/// A summarizer as it stands in the file: a word, or one of a kind.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum SummarizerShape {
    /// Nobody: windows are cut.
    None,
    /// This process, without a model.
    #[default]
    Extractive,
    Anthropic(AnthropicShape),
    OpenAi(OpenAiShape),
    Webhook(WebhookShape),
}

/// Anthropic's Messages API.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AnthropicShape {
    model: String,
    #[serde(default = "anthropic_url")]
    base_url: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    api_key: Option<SecretShape>,
    #[serde(default = "anthropic_tokens")]
    input_tokens: u64,
    #[serde(default = "timeout")]
    timeout: Span,
    #[serde(default = "tries")]
    tries: u32,
}

/// Any service that speaks OpenAI's `/v1/chat/completions`.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OpenAiShape {
    model: String,
    #[serde(default = "openai_url")]
    base_url: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    api_key: Option<SecretShape>,
    #[serde(default = "openai_tokens")]
    input_tokens: u64,
    #[serde(default = "timeout")]
    timeout: Span,
    #[serde(default = "tries")]
    tries: u32,
    #[serde(default)]
    token_limit: TokenLimitShape,
    #[serde(default)]
    thinking_tokens: u64,
    #[serde(default)]
    json_object: bool,
}

/// In which field the limit of an answer stands.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
enum TokenLimitShape {
    #[default]
    Auto,
    MaxTokens,
    MaxCompletionTokens,
}

/// A service of the operator's own.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WebhookShape {
    url: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    api_key: Option<SecretShape>,
    #[serde(default = "webhook_tokens")]
    input_tokens: u64,
    #[serde(default = "timeout")]
    timeout: Span,
    #[serde(default = "tries")]
    tries: u32,
}

/// The summarizer; `None` where the file says `none`.
type Built = Option<Arc<dyn Summarizer>>;

/// Where in the summarizer something is wrong, and what.
type Fault = (&'static str, String);

impl SummarizerShape {
    /// The summarizer that the file names, ready to be asked; or why there is none. Asks no
    /// service.
    pub(super) fn build(&self) -> Result<Built, Fault> {
        match self {
            Self::None => Ok(None),
            Self::Extractive => Ok(Some(Arc::new(ExtractiveSummarizer::default()))),
            Self::Anthropic(shape) => shape.build().map(Some),
            Self::OpenAi(shape) => shape.build().map(Some),
            Self::Webhook(shape) => shape.build().map(Some),
        }
    }

    /// The file that its key is in.
    pub(super) fn file(&self) -> Option<PathBuf> {
        let secret = match self {
            Self::None | Self::Extractive => None,
            Self::Anthropic(shape) => shape.api_key.as_ref(),
            Self::OpenAi(shape) => shape.api_key.as_ref(),
            Self::Webhook(shape) => shape.api_key.as_ref(),
        };
        secret?.file.clone()
    }
}

impl AnthropicShape {
    fn build(&self) -> Result<Arc<dyn Summarizer>, Fault> {
        let api_key = key(self.api_key.as_ref());
        let summarizer = RemoteSummarizer::anthropic(&AnthropicSummarizerConfig {
            base_url: self.base_url.clone(),
            api_key: api_key.map_err(|problem| (".anthropic.api_key", problem))?,
            timeout: self.timeout.0,
            tries_max: self.tries,
            input_tokens_max: self.input_tokens,
            ..AnthropicSummarizerConfig::new(self.model.clone())
        });
        Ok(Arc::new(
            summarizer.map_err(|error| (".anthropic", error.to_string()))?,
        ))
    }
}

impl OpenAiShape {
    fn build(&self) -> Result<Arc<dyn Summarizer>, Fault> {
        let api_key = key(self.api_key.as_ref());
        let summarizer = RemoteSummarizer::openai(&OpenAiSummarizerConfig {
            api_key: api_key.map_err(|problem| (".openai.api_key", problem))?,
            timeout: self.timeout.0,
            tries_max: self.tries,
            input_tokens_max: self.input_tokens,
            token_limit: match self.token_limit {
                TokenLimitShape::Auto => TokenLimit::Auto,
                TokenLimitShape::MaxTokens => TokenLimit::MaxTokens,
                TokenLimitShape::MaxCompletionTokens => TokenLimit::MaxCompletionTokens,
            },
            thinking_tokens: self.thinking_tokens,
            json_object: self.json_object,
            ..OpenAiSummarizerConfig::new(self.base_url.clone(), self.model.clone())
        });
        Ok(Arc::new(
            summarizer.map_err(|error| (".openai", error.to_string()))?,
        ))
    }
}

impl WebhookShape {
    fn build(&self) -> Result<Arc<dyn Summarizer>, Fault> {
        let api_key = key(self.api_key.as_ref());
        let summarizer = RemoteSummarizer::webhook(&WebhookSummarizerConfig {
            api_key: api_key.map_err(|problem| (".webhook.api_key", problem))?,
            timeout: self.timeout.0,
            tries_max: self.tries,
            input_tokens_max: self.input_tokens,
            ..WebhookSummarizerConfig::new(self.url.clone())
        });
        Ok(Arc::new(
            summarizer.map_err(|error| (".webhook", error.to_string()))?,
        ))
    }
}

/// The key, if the file says where it is.
pub(super) fn key(secret: Option<&SecretShape>) -> Result<Option<ApiKey>, String> {
    let Some(secret) = secret else {
        return Ok(None);
    };
    let key = ApiKey::parse(&secret.read()?);
    key.map(Some).map_err(|error| error.to_string())
}

pub(super) fn anthropic_url() -> String {
    "https://api.anthropic.com".to_owned()
}

pub(super) fn openai_url() -> String {
    "https://api.openai.com/v1".to_owned()
}

fn anthropic_tokens() -> u64 {
    150_000
}

fn openai_tokens() -> u64 {
    16_000
}

fn webhook_tokens() -> u64 {
    100_000
}

fn timeout() -> Span {
    Span(Duration::from_secs(60))
}

fn tries() -> u32 {
    3
}

#[cfg(test)]
mod tests;
