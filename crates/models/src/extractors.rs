//! Extractors find facts in conversations, by a provider's model or the operator's own service.
//!
//! A service receives `POST url` with JSON:
//!
//! | field | content |
//! |---|---|
//! | `version` | 1, the version of this format |
//! | `tenant`, `session_id`, `generation`, `subject` | the conversation and its subject |
//! | `turns` | `seq`, `on` (a date, or null), `role` and `text` of each |
//! | `known` | the manifest of the subject: one line per known memory |
//! | `recalled` | memories that the assistant was given, which are not new facts |
//! | `tokens_max` | maximum size of the reply in tokens |
//! | `prompt` | all of the above as a prompt, for a service that uses a model itself |
//!
//! It replies 200 with a JSON list of facts, with the fields described in the prompt. 429 and 5xx
//! are retried, respecting `Retry-After`. 400 and 422 reject the turns.

use std::sync::Arc;

use memoird_core::config::{Environment, Problem};
use memoird_engine::ModelFault;
use memoird_memories::rules::prompt::TranscriptTurn;
use memoird_memories::{Extractor, ExtractorFuture, ExtractorReply, ExtractorRequest};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::error::ModelError;
use crate::http::{ApiKey, with_key};
use crate::summarizers::{ModelReply, ModelRequest, RemoteModel};
use crate::{AnthropicSummarizerConfig, OpenAiSummarizerConfig, WebhookSummarizerConfig};

/// The version of the format above.
const VERSION: u32 = 1;
/// Prefix of an extractor's error messages.
const WHAT: &str = "extractions";

/// Configuration of the extractor: at most one of these, with a summarizer's settings.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct ExtractorKeys {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub anthropic: Option<AnthropicSummarizerConfig>,
    /// Any service with OpenAI's `/v1/chat/completions`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub openai: Option<OpenAiSummarizerConfig>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub webhook: Option<WebhookSummarizerConfig>,
}

/// Which extractor to use.
#[derive(Clone, Debug, Default)]
pub enum ExtractorSpec {
    /// None: bots extract facts themselves.
    #[default]
    None,
    Anthropic(AnthropicSummarizerConfig),
    OpenAi(OpenAiSummarizerConfig),
    Webhook(WebhookSummarizerConfig),
}

/// Extracts facts by requests to a provider or service.
#[derive(Debug)]
pub struct RemoteExtractor(RemoteModel);

impl ExtractorKeys {
    /// Returns the configured extractor.
    ///
    /// # Errors
    /// A [`Problem`] if there are several.
    pub fn spec(&self) -> Result<ExtractorSpec, Problem> {
        Ok(match (&self.anthropic, &self.openai, &self.webhook) {
            (None, None, None) => ExtractorSpec::None,
            (Some(config), None, None) => ExtractorSpec::Anthropic(config.clone()),
            (None, Some(config), None) => ExtractorSpec::OpenAi(config.clone()),
            (None, None, Some(config)) => ExtractorSpec::Webhook(config.clone()),
            _ => {
                let problem = "has several; use one of anthropic, openai and webhook";
                return Err(Problem::new("", problem));
            }
        })
    }
}

impl ExtractorSpec {
    /// Creates the extractor. `None` if none is configured. No request is sent yet.
    ///
    /// # Errors
    /// A [`Problem`] if the configuration is invalid.
    pub fn build(
        &self,
        environment: &dyn Environment,
    ) -> Result<Option<Arc<dyn Extractor>>, Problem> {
        Ok(match self {
            Self::None => None,
            Self::Anthropic(config) => {
                let new = |key| RemoteExtractor::anthropic(config, key);
                Some(with_key("anthropic", &config.api_key, environment, new)?)
            }
            Self::OpenAi(config) => {
                let new = |key| RemoteExtractor::openai(config, key);
                Some(with_key("openai", &config.api_key, environment, new)?)
            }
            Self::Webhook(config) => {
                let new = |key| RemoteExtractor::webhook(config, key);
                Some(with_key("webhook", &config.api_key, environment, new)?)
            }
        })
    }
}

impl RemoteExtractor {
    /// Uses a model of Anthropic. Nothing is sent yet.
    ///
    /// # Errors
    /// [`ModelError::BaseUrlInvalid`], [`ModelError::SettingOutOfRange`],
    /// [`ModelError::TlsUnavailable`].
    pub fn anthropic(
        config: &AnthropicSummarizerConfig,
        api_key: Option<ApiKey>,
    ) -> Result<Self, ModelError> {
        RemoteModel::anthropic(WHAT, config, api_key).map(Self)
    }

    /// Uses a model of a provider with OpenAI's chat completions. Nothing is sent yet.
    ///
    /// # Errors
    /// The same as [`RemoteExtractor::anthropic`].
    pub fn openai(
        config: &OpenAiSummarizerConfig,
        api_key: Option<ApiKey>,
    ) -> Result<Self, ModelError> {
        RemoteModel::openai(WHAT, config, api_key).map(Self)
    }

    /// Uses the operator's own service. Nothing is sent yet.
    ///
    /// # Errors
    /// The same as [`RemoteExtractor::anthropic`].
    pub fn webhook(
        config: &WebhookSummarizerConfig,
        api_key: Option<ApiKey>,
    ) -> Result<Self, ModelError> {
        RemoteModel::webhook(WHAT, config, api_key).map(Self)
    }

    async fn answer(&self, request: &ExtractorRequest) -> Result<ExtractorReply, ModelFault> {
        // Error messages must not repeat the prompt or its sources.
        let turns = request.turns.iter().map(|turn| turn.text.as_str());
        let recalled = request.recalled.iter().map(String::as_str);
        let known = request.manifest.lines();
        let private: Vec<&str> = [&*request.prompt]
            .into_iter()
            .chain(turns)
            .chain(recalled)
            .chain(known)
            .collect();
        let ask = ModelRequest {
            system: None,
            prompt: &request.prompt,
            tokens_max: request.tokens_max,
            for_service: &|| for_service(request),
        };
        let ModelReply { text, end, tokens } = self.0.ask(&ask, &private).await?;
        Ok(ExtractorReply { text, end, tokens })
    }
}

impl Extractor for RemoteExtractor {
    fn name(&self) -> &str {
        &self.0.name
    }

    fn input_tokens_max(&self) -> u64 {
        self.0.input_tokens_max
    }

    fn extract(&self, request: Arc<ExtractorRequest>) -> ExtractorFuture<'_> {
        Box::pin(async move { self.answer(&request).await })
    }
}

fn for_service(request: &ExtractorRequest) -> Value {
    let turn = |turn: &TranscriptTurn| {
        json!({
            "seq": turn.seq, "on": turn.on.map(|on| on.to_string()),
            "role": turn.role.name(), "text": turn.text,
        })
    };
    json!({
        "version": VERSION,
        "tenant": request.tenant.as_str(),
        "session_id": request.session.as_str(),
        "generation": request.generation.to_string(),
        "subject": request.subject.as_str(),
        "turns": request.turns.iter().map(turn).collect::<Vec<_>>(),
        "known": request.manifest.lines().collect::<Vec<_>>(),
        "recalled": request.recalled,
        "tokens_max": request.tokens_max,
        "prompt": request.prompt,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::from_value;

    use super::*;
    use crate::http::Hunter2;

    fn read(keys: Value) -> ExtractorKeys {
        from_value(keys).expect("keys")
    }

    #[test]
    fn at_most_one_extractor_is_accepted_and_keys_are_hidden() {
        assert!(matches!(read(json!({})).spec(), Ok(ExtractorSpec::None)));
        let url = "https://a.example/v1?token=hunter2";
        let key = json!({"env": "KEY"});
        let anthropic = json!({"model": "m", "base_url": url, "api_key": key});
        let openai = anthropic.clone();
        for keys in [
            json!({"anthropic": anthropic}),
            json!({"openai": openai}),
            json!({"webhook": {"url": url, "api_key": key}}),
        ] {
            let spec = read(keys).spec().expect("one");
            let built = spec.build(&Hunter2).expect("a good configuration");
            assert!(built.is_some());
            let shown = format!("{spec:?} {built:?}");
            assert!(
                shown.contains("a.example/v1") && !shown.contains("hunter2"),
                "{shown}"
            );
        }
        let both = read(json!({"anthropic": anthropic, "openai": openai}));
        let problem = both.spec().expect_err("several").problem;
        assert!(problem.contains("use one of"), "{problem}");
        let bad = read(json!({"openai": {"model": ""}})).spec().expect("one");
        assert_eq!(bad.build(&Hunter2).expect_err("nameless").key, "openai");
    }
}
