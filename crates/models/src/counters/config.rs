//! Which counter, for which model, and how long it may take.

use std::sync::Arc;
use std::time::Duration;

use memoird_core::config::{AsText, Environment, Problem, SecretRef, Span};
use memoird_engine::TokenCounter;
use serde::{Deserialize, Serialize};

use super::RemoteCounter;
use crate::error::ModelError;
use crate::http::{self, BaseUrl, with_key};

/// Who counts the tokens of a model, as a configuration names it.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CounterSpec {
    /// Anthropic's `count_tokens`.
    Anthropic(AnthropicCounterConfig),
    /// OpenAI's `responses/input_tokens`, or vLLM's `tokenize`.
    OpenAi(OpenAiCounterConfig),
}

impl CounterSpec {
    /// The counter for the model that bots know by this name. No service is asked yet.
    ///
    /// # Errors
    /// The [`Problem`] for which it cannot be.
    pub fn build(
        &self,
        name: &str,
        environment: &dyn Environment,
    ) -> Result<Arc<dyn TokenCounter>, Problem> {
        Ok(match self.clone() {
            Self::Anthropic(mut config) => {
                config.model.get_or_insert_with(|| name.to_owned());
                let new = |key| RemoteCounter::anthropic(&config, key);
                with_key("anthropic", &config.api_key, environment, new)?
            }
            Self::OpenAi(mut config) => {
                config.model.get_or_insert_with(|| name.to_owned());
                let new = |key| RemoteCounter::openai(&config, key);
                with_key("openai", &config.api_key, environment, new)?
            }
        })
    }
}

/// A model of Anthropic, or of whoever speaks its `/v1/messages/count_tokens`.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct AnthropicCounterConfig {
    /// Such as `https://api.anthropic.com`; `/v1/messages/count_tokens` is added. At most
    /// 1,024 bytes. A token in its query is never shown.
    #[serde(default = "BaseUrl::anthropic")]
    pub base_url: BaseUrl,
    /// The provider's name of the model, at most 256 bytes; `None`: the name by which bots
    /// know it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Sent as `x-api-key`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_key: Option<SecretRef>,
    /// From connecting to the last byte: 10 ms to 10 minutes. Somebody waits for it.
    #[serde(default = "timeout", with = "AsText::<Span>")]
    pub timeout: Duration,
}

/// A model of OpenAI or of vLLM.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct OpenAiCounterConfig {
    /// Such as `https://api.openai.com/v1` or `http://127.0.0.1:8000/v1`. At most 1,024
    /// bytes. A token in its query is never shown.
    #[serde(default = "BaseUrl::openai")]
    pub base_url: BaseUrl,
    /// The provider's name of the model, at most 256 bytes; `None`: the name by which bots
    /// know it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Sent as a bearer token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_key: Option<SecretRef>,
    /// From connecting to the last byte: 10 ms to 10 minutes. Somebody waits for it.
    #[serde(default = "timeout", with = "AsText::<Span>")]
    pub timeout: Duration,
    /// What is asked. There is no endpoint that all servers have.
    #[serde(default)]
    pub endpoint: CountEndpoint,
}

/// Where a provider that speaks OpenAI's formats counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
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

fn timeout() -> Duration {
    Duration::from_secs(2)
}

impl AnthropicCounterConfig {
    /// # Errors
    /// [`ModelError::SettingOutOfRange`] for the first setting that is.
    pub(super) fn check(&self) -> Result<(), ModelError> {
        check(self.model.as_deref(), self.timeout)
    }
}

impl OpenAiCounterConfig {
    /// # Errors
    /// [`ModelError::SettingOutOfRange`] for the first setting that is.
    pub(super) fn check(&self) -> Result<(), ModelError> {
        check(self.model.as_deref(), self.timeout)
    }
}

fn check(model: Option<&str>, timeout: Duration) -> Result<(), ModelError> {
    let model = http::model(model.unwrap_or_default());
    http::check([model, http::timeout_limit(timeout)])
}

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json};

    use super::*;
    use crate::http::Hunter2;

    #[test]
    fn every_setting_has_its_range() {
        let short = Duration::from_millis(9);
        let one: AnthropicCounterConfig = from_value(json!({"model": "m"})).expect("one");
        let two: OpenAiCounterConfig = from_value(json!({"model": "m"})).expect("one");
        assert!(one.check().is_ok() && two.check().is_ok());
        for outcome in [
            AnthropicCounterConfig {
                timeout: short,
                ..one.clone()
            }
            .check(),
            AnthropicCounterConfig {
                model: Some(String::new()),
                ..one
            }
            .check(),
            OpenAiCounterConfig {
                timeout: short,
                ..two.clone()
            }
            .check(),
            OpenAiCounterConfig {
                model: Some(String::new()),
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

    fn built(spec: &serde_json::Value) -> Result<Arc<dyn TokenCounter>, Problem> {
        let spec: CounterSpec = from_value(spec.clone()).expect("a counter");
        spec.build("ours", &Hunter2)
    }

    #[test]
    fn a_counter_counts_for_its_model_unless_another_name_is_configured() {
        for (spec, name) in [
            (json!({"anthropic": {}}), "ours"),
            (
                json!({"anthropic": {"model": "claude-opus-5-5"}}),
                "claude-opus-5-5",
            ),
            (json!({"openai": {}}), "ours"),
            (
                json!({"openai": {
                    "model": "glm", "base_url": "http://127.0.0.1:8000/v1", "timeout": "1s",
                    "endpoint": "tokenize",
                }}),
                "glm",
            ),
        ] {
            let counter = built(&spec).expect("a counter");
            assert!(counter.name().contains(name), "{counter:?}");
        }
    }

    #[test]
    fn what_is_wrong_is_told_with_its_key() {
        for (spec, key) in [
            (json!({"anthropic": {"base_url": "nowhere"}}), "anthropic"),
            (json!({"openai": {"timeout": "1h"}}), "openai"),
            (
                json!({"openai": {"api_key": {"file": "/proc/no-such-key"}}}),
                "openai.api_key",
            ),
        ] {
            let problem = built(&spec).expect_err(key);
            assert!(
                problem.key == key && !problem.problem.is_empty(),
                "{problem}"
            );
        }
    }

    #[test]
    fn nothing_shows_a_key_or_a_token() {
        let url = "https://a.example/v1?token=hunter2";
        for kind in ["anthropic", "openai"] {
            let spec = json!({kind: {"base_url": url, "api_key": {"env": "KEY"}}});
            let spec: CounterSpec = from_value(spec).expect("a counter");
            let counter = spec.build("m", &Hunter2).expect("a good configuration");
            let shown = format!("{spec:?} {counter:?}");
            assert!(
                shown.contains("a.example/v1") && !shown.contains("hunter2"),
                "{shown}"
            );
        }
    }
}
