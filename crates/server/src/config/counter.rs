//! The counter of a model in the file: who is asked how many tokens a request has where the
//! estimate is near the limit.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use memoird_engine::TokenCounter;
use memoird_models::{AnthropicCounterConfig, CountEndpoint, OpenAiCounterConfig, RemoteCounter};
use serde::{Deserialize, Serialize};

use super::secret::SecretShape;
use super::summarizer::{anthropic_url, key, openai_url};
use super::units::Span;

/// A counter as it stands in the file.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum CounterShape {
    Anthropic(AnthropicShape),
    OpenAi(OpenAiShape),
}

/// Anthropic's `count_tokens`.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AnthropicShape {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    model: Option<String>,
    #[serde(default = "anthropic_url")]
    base_url: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    api_key: Option<SecretShape>,
    #[serde(default = "timeout")]
    timeout: Span,
}

/// OpenAI's `responses/input_tokens`, or vLLM's `tokenize`.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OpenAiShape {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    model: Option<String>,
    #[serde(default = "openai_url")]
    base_url: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    api_key: Option<SecretShape>,
    #[serde(default = "timeout")]
    timeout: Span,
    #[serde(default)]
    endpoint: EndpointShape,
}

/// What is asked there.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
enum EndpointShape {
    #[default]
    Auto,
    ResponsesInputTokens,
    Tokenize,
}

/// Where in the counter something is wrong, and what.
type Fault = (&'static str, String);

impl CounterShape {
    /// The counter of the model of this name, ready to be asked; or why there is none. Asks
    /// no service.
    pub(super) fn build(&self, name: &str) -> Result<Arc<dyn TokenCounter>, Fault> {
        match self {
            Self::Anthropic(shape) => shape.build(name),
            Self::OpenAi(shape) => shape.build(name),
        }
    }

    /// The file that its key is in.
    pub(super) fn file(&self) -> Option<PathBuf> {
        let secret = match self {
            Self::Anthropic(shape) => shape.api_key.as_ref(),
            Self::OpenAi(shape) => shape.api_key.as_ref(),
        };
        secret?.file.clone()
    }
}

impl AnthropicShape {
    fn build(&self, name: &str) -> Result<Arc<dyn TokenCounter>, Fault> {
        let api_key = key(self.api_key.as_ref());
        let counter = RemoteCounter::anthropic(&AnthropicCounterConfig {
            base_url: self.base_url.clone(),
            api_key: api_key.map_err(|problem| (".anthropic.api_key", problem))?,
            timeout: self.timeout.0,
            ..AnthropicCounterConfig::new(self.model.as_deref().unwrap_or(name))
        });
        Ok(Arc::new(
            counter.map_err(|error| (".anthropic", error.to_string()))?,
        ))
    }
}

impl OpenAiShape {
    fn build(&self, name: &str) -> Result<Arc<dyn TokenCounter>, Fault> {
        let api_key = key(self.api_key.as_ref());
        let model = self.model.as_deref().unwrap_or(name);
        let counter = RemoteCounter::openai(&OpenAiCounterConfig {
            api_key: api_key.map_err(|problem| (".openai.api_key", problem))?,
            timeout: self.timeout.0,
            endpoint: match self.endpoint {
                EndpointShape::Auto => CountEndpoint::Auto,
                EndpointShape::ResponsesInputTokens => CountEndpoint::ResponsesInputTokens,
                EndpointShape::Tokenize => CountEndpoint::Tokenize,
            },
            ..OpenAiCounterConfig::new(self.base_url.clone(), model)
        });
        Ok(Arc::new(
            counter.map_err(|error| (".openai", error.to_string()))?,
        ))
    }
}

fn timeout() -> Span {
    Span(Duration::from_secs(2))
}

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json};

    use super::*;

    #[test]
    fn a_counter_counts_for_its_model_unless_told_another_name() {
        for (shape, name) in [
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
            let shape: CounterShape = from_value(shape).expect("a shape");
            let counter = shape.build("ours").expect("a counter");
            assert!(counter.name().contains(name), "{counter:?}");
        }
    }

    #[test]
    fn what_is_wrong_is_told_with_its_place() {
        for (shape, place) in [
            (json!({"anthropic": {"base_url": "nowhere"}}), ".anthropic"),
            (json!({"openai": {"timeout": "1h"}}), ".openai"),
            (
                json!({"openai": {"api_key": {"file": "/proc/no-such-key"}}}),
                ".openai.api_key",
            ),
        ] {
            let shape: CounterShape = from_value(shape).expect("a shape");
            let (found, problem) = shape.build("ours").expect_err(place);
            assert!(found == place && !problem.is_empty(), "{found}: {problem}");
        }
    }
}
