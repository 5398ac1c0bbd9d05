//! Configuration of the summarizer.

use std::sync::Arc;
use std::time::Duration;

use memoird_core::config::{AsText, Environment, Problem, SecretRef, Span};
use memoird_engine::Summarizer;
use serde::{Deserialize, Serialize};

use super::RemoteSummarizer;
use crate::error::ModelError;
use crate::extractive::ExtractiveSummarizer;
use crate::http::{self, BaseUrl, with_key};

/// Which summarizer to use.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SummarizerSpec {
    /// None: windows are cut.
    None,
    /// In this process, without a model.
    #[default]
    Extractive,
    Anthropic(AnthropicSummarizerConfig),
    /// Any service with OpenAI's `/v1/chat/completions`.
    OpenAi(OpenAiSummarizerConfig),
    Webhook(WebhookSummarizerConfig),
}

impl SummarizerSpec {
    /// Creates the summarizer. `None` if none is configured. No request is sent yet.
    ///
    /// # Errors
    /// A [`Problem`] if the configuration is invalid.
    pub fn build(
        &self,
        environment: &dyn Environment,
    ) -> Result<Option<Arc<dyn Summarizer>>, Problem> {
        Ok(match self {
            Self::None => None,
            Self::Extractive => Some(Arc::new(ExtractiveSummarizer)),
            Self::Anthropic(config) => {
                let new = |key| RemoteSummarizer::anthropic(config, key);
                Some(with_key("anthropic", &config.api_key, environment, new)?)
            }
            Self::OpenAi(config) => {
                let new = |key| RemoteSummarizer::openai(config, key);
                Some(with_key("openai", &config.api_key, environment, new)?)
            }
            Self::Webhook(config) => {
                let new = |key| RemoteSummarizer::webhook(config, key);
                Some(with_key("webhook", &config.api_key, environment, new)?)
            }
        })
    }
}

/// Configuration of Anthropic's Messages API, or of a compatible service.
///
/// The defaults suit a context of 200,000 tokens.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct AnthropicSummarizerConfig {
    /// For example `https://api.anthropic.com`; `/v1/messages` is appended.
    ///
    /// At most 1,024 bytes. A token in its query is never logged or displayed.
    #[serde(default = "BaseUrl::anthropic")]
    pub base_url: BaseUrl,
    /// The provider's name of the model, at most 256 bytes.
    pub model: String,
    /// Sent as `x-api-key`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_key: Option<SecretRef>,
    /// Timeout of a summary with all attempts and pauses, 10 ms to 10 minutes.
    #[serde(default = "timeout", with = "AsText::<Span>")]
    pub timeout: Duration,
    /// Maximum attempts per request, 1 to 10.
    #[serde(rename = "tries", default = "tries")]
    pub tries_max: u32,
    /// Maximum tokens of turns per request, 1,000 to 10,000,000.
    ///
    /// This is the model's context less the reply and the error of token counts.
    #[serde(rename = "input_tokens", default = "anthropic_input_tokens")]
    pub input_tokens_max: u64,
}

/// Configuration of a provider with OpenAI's `/v1/chat/completions`.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct OpenAiSummarizerConfig {
    /// For example `https://api.openai.com/v1` or `http://127.0.0.1:11434/v1`.
    ///
    /// `/chat/completions` is appended. At most 1,024 bytes. A token in its query is never logged
    /// or displayed.
    #[serde(default = "BaseUrl::openai")]
    pub base_url: BaseUrl,
    /// The provider's name of the model, at most 256 bytes.
    pub model: String,
    /// Sent as a bearer token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_key: Option<SecretRef>,
    /// Timeout of a summary with all attempts and pauses, 10 ms to 10 minutes.
    #[serde(default = "timeout", with = "AsText::<Span>")]
    pub timeout: Duration,
    /// Maximum attempts per request, 1 to 10.
    #[serde(rename = "tries", default = "tries")]
    pub tries_max: u32,
    /// Maximum tokens of turns per request, 1,000 to 10,000,000.
    ///
    /// Some servers (Ollama) silently truncate a longer prompt, so this must be less than the
    /// context that the server actually configures for the model.
    #[serde(rename = "input_tokens", default = "openai_input_tokens")]
    pub input_tokens_max: u64,
    #[serde(default)]
    pub token_limit: TokenLimit,
    /// Added to the limit of the reply for a reasoning model, at most 1,000,000.
    #[serde(default)]
    pub thinking_tokens: u64,
    /// Sends `response_format: json_object`, which not every server supports.
    #[serde(default)]
    pub json_object: bool,
}

/// Name of the field that limits the reply.
///
/// OpenAI's newer models reject `max_tokens`, and Ollama ignores `max_completion_tokens`. If a
/// provider rejects one, the other is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TokenLimit {
    /// `max_completion_tokens` for OpenAI and Azure hosts, otherwise `max_tokens`.
    #[default]
    Auto,
    MaxTokens,
    MaxCompletionTokens,
}

/// Configuration of the bot's own service.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct WebhookSummarizerConfig {
    /// Complete URL of the service.
    ///
    /// At most 1,024 bytes. A token in its query is never logged or displayed.
    pub url: BaseUrl,
    /// Sent as a bearer token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_key: Option<SecretRef>,
    /// Timeout of a summary with all attempts and pauses, 10 ms to 10 minutes.
    #[serde(default = "timeout", with = "AsText::<Span>")]
    pub timeout: Duration,
    /// Maximum attempts per request, 1 to 10.
    #[serde(rename = "tries", default = "tries")]
    pub tries_max: u32,
    /// Maximum tokens of turns per request, 1,000 to 10,000,000.
    #[serde(rename = "input_tokens", default = "webhook_input_tokens")]
    pub input_tokens_max: u64,
}

const THINKING_TOKENS_MAX: u64 = 1_000_000;

fn timeout() -> Duration {
    Duration::from_secs(60)
}

fn tries() -> u32 {
    3
}

fn anthropic_input_tokens() -> u64 {
    150_000
}

fn openai_input_tokens() -> u64 {
    16_000
}

fn webhook_input_tokens() -> u64 {
    100_000
}

impl AnthropicSummarizerConfig {
    pub(super) fn check(&self) -> Result<(), ModelError> {
        check(self.timeout, self.tries_max, self.input_tokens_max)?;
        http::check([http::model(&self.model)])
    }
}

impl OpenAiSummarizerConfig {
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
    pub(super) fn check(&self) -> Result<(), ModelError> {
        check(self.timeout, self.tries_max, self.input_tokens_max)
    }
}

/// # Errors
/// [`ModelError::SettingOutOfRange`] for the first invalid setting.
fn check(timeout: Duration, tries_max: u32, input_tokens_max: u64) -> Result<(), ModelError> {
    let input = (1_000..=10_000_000).contains(&input_tokens_max);
    http::check([
        http::timeout_limit(timeout),
        http::tries_limit(tries_max),
        (input, "input_tokens_max", "1000 to 10000000"),
    ])
}

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json};

    use super::*;
    use crate::http::Hunter2;

    fn config<T: serde::de::DeserializeOwned>(text: serde_json::Value) -> T {
        from_value(text).expect("a configuration")
    }

    #[track_caller]
    fn is_out_of_range(outcome: Result<(), ModelError>, name: &str) {
        match outcome {
            Err(ModelError::SettingOutOfRange { setting, .. }) => assert_eq!(setting, name),
            other => panic!("{name}: {other:?}"),
        }
    }

    #[test]
    fn settings_out_of_range_are_rejected() {
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
        let good: OpenAiSummarizerConfig = config(json!({"model": "m"}));
        assert!(good.check().is_ok());
        for (name, change) in changes {
            let mut bad = good.clone();
            change(&mut bad);
            is_out_of_range(bad.check(), name);
        }
        let good: AnthropicSummarizerConfig = config(json!({"model": "m"}));
        assert!(good.check().is_ok());
        let nameless: AnthropicSummarizerConfig = config(json!({"model": ""}));
        is_out_of_range(nameless.check(), "model");
        let never = AnthropicSummarizerConfig {
            tries_max: 0,
            ..good
        };
        is_out_of_range(never.check(), "tries_max");
        let good: WebhookSummarizerConfig = config(json!({"url": "http://a.example"}));
        assert!(good.check().is_ok());
        let nothing = WebhookSummarizerConfig {
            input_tokens_max: 0,
            ..good
        };
        is_out_of_range(nothing.check(), "input_tokens_max");
    }

    fn read(spec: serde_json::Value) -> SummarizerSpec {
        from_value(spec).expect("a summarizer")
    }

    fn name(spec: serde_json::Value) -> String {
        let built = read(spec).build(&Hunter2).expect("a good one");
        built.expect("one").name().to_owned()
    }

    #[test]
    fn every_summarizer_kind_can_be_configured() {
        let none = read(json!("none")).build(&Hunter2).expect("nobody");
        assert!(none.is_none());
        assert_eq!(name(json!("extractive")), "extractive");
        let remote = [
            (json!({"anthropic": {"model": "claude-haiku-4-5"}}), 150_000),
            (
                json!({"openai": {
                    "model": "qwen3:8b", "base_url": "http://127.0.0.1:11434/v1",
                    "input_tokens": 24_000, "timeout": "5s", "tries": 1,
                    "token_limit": "max_tokens", "thinking_tokens": 9, "json_object": true,
                }}),
                24_000,
            ),
            (
                json!({"webhook": {"url": "https://bots.example/summarize"}}),
                100_000,
            ),
        ];
        for (spec, tokens) in remote {
            let summarizer = read(spec)
                .build(&Hunter2)
                .expect("a good one")
                .expect("one");
            assert!(summarizer.is_remote(), "{summarizer:?}");
            assert_eq!(summarizer.input_tokens_max(), tokens, "{summarizer:?}");
        }
        assert!(name(json!({"openai": {"model": "qwen3:8b"}})).contains("qwen3:8b"));
    }

    #[test]
    fn problem_names_the_setting() {
        for (spec, key) in [
            (json!({"anthropic": {"model": ""}}), "anthropic"),
            (
                json!({"openai": {"model": "m", "base_url": "ftp://a.example"}}),
                "openai",
            ),
            (
                json!({"openai": {"model": "m", "input_tokens": 999}}),
                "openai",
            ),
            (json!({"webhook": {"url": "nowhere"}}), "webhook"),
            (
                json!({"webhook": {"url": "https://a.example", "tries": 0}}),
                "webhook",
            ),
            (
                json!({"webhook": {"url": "https://a.example", "api_key": {}}}),
                "webhook.api_key",
            ),
        ] {
            let problem = read(spec).build(&Hunter2).expect_err(key);
            assert!(
                problem.key == key && !problem.problem.is_empty(),
                "{problem}"
            );
        }
    }

    #[test]
    fn keys_and_tokens_are_hidden_in_debug() {
        let url = "https://a.example/v1?token=hunter2";
        let key = json!({"env": "KEY"});
        for spec in [
            json!({"anthropic": {"model": "m", "base_url": url, "api_key": key}}),
            json!({"openai": {"model": "m", "base_url": url, "api_key": key}}),
            json!({"webhook": {"url": url, "api_key": key}}),
        ] {
            let spec = read(spec);
            let built = spec.build(&Hunter2).expect("a good configuration");
            let shown = format!("{spec:?} {built:?}");
            assert!(
                shown.contains("a.example/v1") && !shown.contains("hunter2"),
                "{shown}"
            );
        }
    }
}
