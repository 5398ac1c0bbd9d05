//! Which counter, for which model, and how long it may take.

use std::fmt;
use std::time::Duration;

use crate::error::ModelError;
use crate::http::{self, ApiKey};

/// A model of Anthropic, or of whoever speaks its `/v1/messages/count_tokens`.
#[derive(Clone)]
pub struct AnthropicCounterConfig {
    /// Such as `https://api.anthropic.com`; `/v1/messages/count_tokens` is added. At most
    /// 1,024 bytes. A token in its query is never shown.
    pub base_url: String,
    /// The provider's name of the model, at most 256 bytes.
    pub model: String,
    /// Sent as `x-api-key`.
    pub api_key: Option<ApiKey>,
    /// From connecting to the last byte: 10 ms to 10 minutes. Somebody waits for it.
    pub timeout: Duration,
}

/// A model of OpenAI or of vLLM.
#[derive(Clone)]
pub struct OpenAiCounterConfig {
    /// Such as `https://api.openai.com/v1` or `http://127.0.0.1:8000/v1`. At most 1,024
    /// bytes. A token in its query is never shown.
    pub base_url: String,
    /// The provider's name of the model, at most 256 bytes.
    pub model: String,
    /// Sent as a bearer token.
    pub api_key: Option<ApiKey>,
    /// From connecting to the last byte: 10 ms to 10 minutes. Somebody waits for it.
    pub timeout: Duration,
    /// What is asked. There is no endpoint that all servers have.
    pub endpoint: CountEndpoint,
}

/// Where a provider that speaks OpenAI's formats counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CountEndpoint {
    /// `ResponsesInputTokens` at OpenAI itself and at Azure, else `Tokenize`.
    #[default]
    Auto,
    /// OpenAI's own: `POST {base_url}/responses/input_tokens`, with items of the Responses
    /// API.
    ResponsesInputTokens,
    /// vLLM's: `POST /tokenize`, beside `/v1`, with messages of chat completions.
    Tokenize,
}

const TIMEOUT: Duration = Duration::from_secs(2);

impl AnthropicCounterConfig {
    /// This model at Anthropic.
    pub fn new(model: impl Into<String>) -> Self {
        Self {
            base_url: "https://api.anthropic.com".to_owned(),
            model: model.into(),
            api_key: None,
            timeout: TIMEOUT,
        }
    }

    /// # Errors
    /// [`ModelError::SettingOutOfRange`] for the first setting that is.
    pub(super) fn check(&self) -> Result<(), ModelError> {
        http::check([http::model(&self.model), http::timeout_limit(self.timeout)])
    }
}

impl OpenAiCounterConfig {
    /// This model, there.
    pub fn new(base_url: impl Into<String>, model: impl Into<String>) -> Self {
        Self {
            base_url: base_url.into(),
            model: model.into(),
            api_key: None,
            timeout: TIMEOUT,
            endpoint: CountEndpoint::Auto,
        }
    }

    /// # Errors
    /// [`ModelError::SettingOutOfRange`] for the first setting that is.
    pub(super) fn check(&self) -> Result<(), ModelError> {
        http::check([http::model(&self.model), http::timeout_limit(self.timeout)])
    }
}

impl fmt::Debug for AnthropicCounterConfig {
    /// Without what may be secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AnthropicCounterConfig")
            .field("base_url", &http::shown_base(&self.base_url))
            .field("model", &self.model)
            .field("api_key", &self.api_key)
            .field("timeout", &self.timeout)
            .finish()
    }
}

impl fmt::Debug for OpenAiCounterConfig {
    /// Without what may be secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenAiCounterConfig")
            .field("base_url", &http::shown_base(&self.base_url))
            .field("model", &self.model)
            .field("api_key", &self.api_key)
            .field("timeout", &self.timeout)
            .field("endpoint", &self.endpoint)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::super::RemoteCounter;
    use super::*;

    #[test]
    fn every_setting_has_its_range() {
        let short = Duration::from_millis(9);
        let one = AnthropicCounterConfig::new("m");
        let two = OpenAiCounterConfig::new("http://a.example", "m");
        assert!(one.check().is_ok() && two.check().is_ok());
        for outcome in [
            AnthropicCounterConfig {
                timeout: short,
                ..one.clone()
            }
            .check(),
            AnthropicCounterConfig {
                model: String::new(),
                ..one
            }
            .check(),
            OpenAiCounterConfig {
                timeout: short,
                ..two.clone()
            }
            .check(),
            OpenAiCounterConfig {
                model: String::new(),
                ..two
            }
            .check(),
        ] {
            assert!(
                matches!(outcome, Err(ModelError::SettingOutOfRange { .. })),
                "{outcome:?}"
            );
        }
    }

    #[test]
    fn nothing_shows_a_key_or_a_token() {
        let api_key = Some(ApiKey::parse("sk-hunter2").expect("a key"));
        let base_url = "https://a.example/v1?token=hunter2".to_owned();
        let one = AnthropicCounterConfig {
            base_url: base_url.clone(),
            api_key: api_key.clone(),
            ..AnthropicCounterConfig::new("m")
        };
        let two = OpenAiCounterConfig {
            api_key,
            ..OpenAiCounterConfig::new(base_url, "m")
        };
        let made = (
            RemoteCounter::anthropic(&one).expect("a good configuration"),
            RemoteCounter::openai(&two).expect("a good configuration"),
        );
        let shown = format!("{one:?} {two:?} {made:?}");
        assert!(
            shown.contains("a.example/v1") && !shown.contains("hunter2"),
            "{shown}"
        );
    }
}
