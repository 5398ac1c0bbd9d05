//! The summarizer of the file: who writes summaries, if anybody does.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use memoird_engine::Summarizer;
use memoird_models::{ApiKey, ExtractiveSummarizer};
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
}

/// A service of the operator's own.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WebhookShape {
    url: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    api_key: Option<SecretShape>,
    #[serde(default = "openai_tokens")]
    input_tokens: u64,
    #[serde(default = "timeout")]
    timeout: Span,
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
            Self::Extractive => Ok(Some(Arc::new(ExtractiveSummarizer))),
            Self::Anthropic(AnthropicShape { api_key, .. }) => key(api_key.as_ref())
                .map(|_| None)
                .map_err(|problem| (".anthropic.api_key", problem)),
            Self::OpenAi(OpenAiShape { api_key, .. }) => {
                key(api_key.as_ref()).map(|_| None).map_err(|problem| (".openai.api_key", problem))
            }
            Self::Webhook(WebhookShape { api_key, .. }) => {
                key(api_key.as_ref()).map(|_| None).map_err(|problem| (".webhook.api_key", problem))
            }
        }
    }

    /// The file that its secret is in.
    pub(super) fn files(&self) -> impl Iterator<Item = PathBuf> {
        let secret = match self {
            Self::None | Self::Extractive => None,
            Self::Anthropic(shape) => shape.api_key.as_ref(),
            Self::OpenAi(shape) => shape.api_key.as_ref(),
            Self::Webhook(shape) => shape.api_key.as_ref(),
        };
        secret.and_then(|secret| secret.file.clone()).into_iter()
    }
}

/// The key, if there is one.
pub(super) fn key(secret: Option<&SecretShape>) -> Result<Option<ApiKey>, String> {
    let Some(secret) = secret else { return Ok(None) };
    let key = ApiKey::parse(&secret.read()?);
    key.map(Some).map_err(|error| error.to_string())
}

fn anthropic_url() -> String {
    "https://api.anthropic.com".to_owned()
}

fn openai_url() -> String {
    "https://api.openai.com/v1".to_owned()
}

fn anthropic_tokens() -> u64 {
    150_000
}

fn openai_tokens() -> u64 {
    100_000
}

fn timeout() -> Span {
    Span(Duration::from_secs(60))
}
