//! Which summarizer, which of its models, and within which bounds.

use std::fmt;
use std::time::Duration;

use crate::error::ModelError;
use crate::http::{self, ApiKey};

/// A model of Anthropic, or of whoever speaks its Messages API.
#[derive(Clone)]
pub struct AnthropicSummarizerConfig {
    /// Such as `https://api.anthropic.com`; `/v1/messages` is added. At most 1,024 bytes. A
    /// token in its query is never shown.
    pub base_url: String,
    /// The provider's name of the model, at most 256 bytes.
    pub model: String,
    /// Sent as `x-api-key`.
    pub api_key: Option<ApiKey>,
    /// For a summary, all tries and pauses together: 10 ms to 10 minutes.
    pub timeout: Duration,
    /// Tries of a request, 1 to 10.
    pub tries_max: u32,
    /// Tokens of turns that a request takes, 1,000 to 10,000,000: what the model reads,
    /// less its answer and what counts may be wrong by.
    pub input_tokens_max: u64,
}

/// A model of any provider that speaks OpenAI's `/v1/chat/completions`.
#[derive(Clone)]
pub struct OpenAiSummarizerConfig {
    /// Such as `https://api.openai.com/v1` or `http://127.0.0.1:11434/v1`;
    /// `/chat/completions` is added. At most 1,024 bytes. A token in its query is never
    /// shown.
    pub base_url: String,
    /// The provider's name of the model, at most 256 bytes.
    pub model: String,
    /// Sent as a bearer token.
    pub api_key: Option<ApiKey>,
    /// For a summary, all tries and pauses together: 10 ms to 10 minutes.
    pub timeout: Duration,
    /// Tries of a request, 1 to 10.
    pub tries_max: u32,
    /// Tokens of turns that a request takes, 1,000 to 10,000,000. Some servers (Ollama) cut
    /// what is too long without a word, so this has to be less than the context that the
    /// server really gives the model.
    pub input_tokens_max: u64,
    /// In which field the limit of the answer stands.
    pub token_limit: TokenLimit,
    /// Added to the limit of the answer for a model that thinks before it writes: at most
    /// 1,000,000.
    pub thinking_tokens: u64,
    /// Asks for `response_format: json_object`. Not every server knows it.
    pub json_object: bool,
}

/// The field for the limit of an answer. OpenAI's newer models refuse `max_tokens`, and
/// Ollama does not look at `max_completion_tokens`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TokenLimit {
    /// `max_completion_tokens` at OpenAI itself and at Azure, else `max_tokens`.
    #[default]
    Auto,
    /// `max_tokens`.
    MaxTokens,
    /// `max_completion_tokens`.
    MaxCompletionTokens,
}

/// The bot's own service.
#[derive(Clone)]
pub struct WebhookSummarizerConfig {
    /// Where it is asked, as it stands. At most 1,024 bytes. A token in its query is never
    /// shown.
    pub url: String,
    /// Sent as a bearer token.
    pub api_key: Option<ApiKey>,
    /// For a summary, all tries and pauses together: 10 ms to 10 minutes.
    pub timeout: Duration,
    /// Tries of a request, 1 to 10.
    pub tries_max: u32,
    /// Tokens of turns that a request takes, 1,000 to 10,000,000.
    pub input_tokens_max: u64,
}

const TIMEOUT: Duration = Duration::from_secs(120);
const TRIES: u32 = 3;
const THINKING_TOKENS_MAX: u64 = 1_000_000;

impl AnthropicSummarizerConfig {
    /// This model at Anthropic, and for the rest what suits a context of 200,000 tokens.
    pub fn new(model: impl Into<String>) -> Self {
        Self {
            base_url: "https://api.anthropic.com".to_owned(),
            model: model.into(),
            api_key: None,
            timeout: TIMEOUT,
            tries_max: TRIES,
            input_tokens_max: 150_000,
        }
    }

    pub(super) fn check(&self) -> Result<(), ModelError> {
        check(self.timeout, self.tries_max, self.input_tokens_max)?;
        http::check([http::model(&self.model)])
    }
}

impl OpenAiSummarizerConfig {
    /// This model, and for the rest what suits most servers.
    pub fn new(base_url: impl Into<String>, model: impl Into<String>) -> Self {
        Self {
            base_url: base_url.into(),
            model: model.into(),
            api_key: None,
            timeout: TIMEOUT,
            tries_max: TRIES,
            input_tokens_max: 16_000,
            token_limit: TokenLimit::Auto,
            thinking_tokens: 0,
            json_object: false,
        }
    }

    pub(super) fn check(&self) -> Result<(), ModelError> {
        check(self.timeout, self.tries_max, self.input_tokens_max)?;
        let thinking = self.thinking_tokens <= THINKING_TOKENS_MAX;
        http::check([
            http::model(&self.model),
            (thinking, "thinking_tokens", "at most 1000000"),
        ])
    }
}

impl WebhookSummarizerConfig {
    /// This service, and for the rest what suits a model behind it.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            api_key: None,
            timeout: TIMEOUT,
            tries_max: TRIES,
            input_tokens_max: 100_000,
        }
    }

    pub(super) fn check(&self) -> Result<(), ModelError> {
        check(self.timeout, self.tries_max, self.input_tokens_max)
    }
}

/// # Errors
/// [`ModelError::SettingOutOfRange`] for the first setting that is.
fn check(timeout: Duration, tries_max: u32, input_tokens_max: u64) -> Result<(), ModelError> {
    let input = (1_000..=10_000_000).contains(&input_tokens_max);
    http::check([
        http::timeout_limit(timeout),
        http::tries_limit(tries_max),
        (input, "input_tokens_max", "1000 to 10000000"),
    ])
}

impl fmt::Debug for AnthropicSummarizerConfig {
    /// Without what may be secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AnthropicSummarizerConfig")
            .field("base_url", &http::shown_base(&self.base_url))
            .field("model", &self.model)
            .field("api_key", &self.api_key)
            .field("timeout", &self.timeout)
            .field("tries_max", &self.tries_max)
            .field("input_tokens_max", &self.input_tokens_max)
            .finish()
    }
}

impl fmt::Debug for OpenAiSummarizerConfig {
    /// Without what may be secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenAiSummarizerConfig")
            .field("base_url", &http::shown_base(&self.base_url))
            .field("model", &self.model)
            .field("api_key", &self.api_key)
            .field("timeout", &self.timeout)
            .field("tries_max", &self.tries_max)
            .field("input_tokens_max", &self.input_tokens_max)
            .field("token_limit", &self.token_limit)
            .field("thinking_tokens", &self.thinking_tokens)
            .field("json_object", &self.json_object)
            .finish()
    }
}

impl fmt::Debug for WebhookSummarizerConfig {
    /// Without what may be secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebhookSummarizerConfig")
            .field("url", &http::shown_base(&self.url))
            .field("api_key", &self.api_key)
            .field("timeout", &self.timeout)
            .field("tries_max", &self.tries_max)
            .field("input_tokens_max", &self.input_tokens_max)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::super::RemoteSummarizer;
    use super::*;

    #[track_caller]
    fn is_out_of_range(outcome: Result<(), ModelError>, name: &str) {
        match outcome {
            Err(ModelError::SettingOutOfRange { setting, .. }) => assert_eq!(setting, name),
            other => panic!("{name}: {other:?}"),
        }
    }

    #[test]
    fn every_setting_has_its_range() {
        type Change = fn(&mut OpenAiSummarizerConfig);
        let changes: [(&str, Change); 9] = [
            ("model", |c| c.model.clear()),
            ("model", |c| c.model = "x".repeat(257)),
            ("timeout", |c| c.timeout = Duration::from_millis(9)),
            ("timeout", |c| c.timeout = Duration::from_secs(601)),
            ("tries_max", |c| c.tries_max = 0),
            ("tries_max", |c| c.tries_max = 11),
            ("input_tokens_max", |c| c.input_tokens_max = 999),
            ("input_tokens_max", |c| c.input_tokens_max = 10_000_001),
            ("thinking_tokens", |c| c.thinking_tokens = 1_000_001),
        ];
        let good = OpenAiSummarizerConfig::new("http://a.example", "m");
        assert!(good.check().is_ok());
        for (name, change) in changes {
            let mut config = good.clone();
            change(&mut config);
            is_out_of_range(config.check(), name);
        }
        let good = AnthropicSummarizerConfig::new("m");
        assert!(good.check().is_ok());
        is_out_of_range(AnthropicSummarizerConfig::new("").check(), "model");
        let config = AnthropicSummarizerConfig {
            tries_max: 0,
            ..good
        };
        is_out_of_range(config.check(), "tries_max");
        let good = WebhookSummarizerConfig::new("http://a.example");
        assert!(good.check().is_ok());
        let config = WebhookSummarizerConfig {
            input_tokens_max: 0,
            ..good
        };
        is_out_of_range(config.check(), "input_tokens_max");
    }

    #[test]
    fn nothing_shows_a_key_or_a_token() {
        let api_key = Some(ApiKey::parse("sk-hunter2").expect("a key"));
        let base_url = "https://a.example/v1?token=hunter2".to_owned();
        let one = AnthropicSummarizerConfig {
            base_url: base_url.clone(),
            api_key: api_key.clone(),
            ..AnthropicSummarizerConfig::new("m")
        };
        let two = OpenAiSummarizerConfig {
            api_key: api_key.clone(),
            ..OpenAiSummarizerConfig::new(&base_url, "m")
        };
        let three = WebhookSummarizerConfig {
            api_key,
            ..WebhookSummarizerConfig::new(&base_url)
        };
        let made = (
            RemoteSummarizer::anthropic(&one).expect("a good configuration"),
            RemoteSummarizer::openai(&two).expect("a good configuration"),
            RemoteSummarizer::webhook(&three).expect("a good configuration"),
        );
        let shown = format!("{one:?} {two:?} {three:?} {made:?}");
        assert!(
            shown.contains("a.example/v1") && !shown.contains("hunter2"),
            "{shown}"
        );
    }
}
