//! Tokens as Anthropic counts them.

use memoird_core::formats::MessageFormat;
use memoird_engine::{CountAsk, Counting, TokenCounter};

use super::{AnthropicCounterConfig, Object, put, put_text};
use crate::error::ModelError;
use crate::http::{self, ApiKey, Fault, Provider, Site, TimeLimit, Tries};

/// Asks Anthropic how many tokens a request has. That costs nothing, and has a limit of
/// requests a minute of its own.
#[derive(Debug)]
pub struct AnthropicCounter {
    provider: Provider,
    name: String,
    model: String,
}

impl AnthropicCounter {
    /// Nothing is sent yet. The key is what [`AnthropicCounterConfig::api_key`] names.
    ///
    /// # Errors
    /// [`ModelError::BaseUrlInvalid`], [`ModelError::SettingOutOfRange`],
    /// [`ModelError::TlsUnavailable`].
    pub fn new(
        config: &AnthropicCounterConfig,
        api_key: Option<ApiKey>,
    ) -> Result<Self, ModelError> {
        config.check()?;
        let provider = Provider::new(Site {
            what: "counts",
            base: &http::above_v1(http::base(&config.base_url)?),
            path: "/v1/messages/count_tokens",
            headers: http::anthropic(api_key.as_ref()),
            api_key,
            tries: Tries {
                max: 1,
                limit: TimeLimit::All(config.timeout),
            },
        })?;
        let model = config.model.clone().unwrap_or_default();
        let name = format!("anthropic:{model}");
        Ok(Self {
            provider,
            name,
            model,
        })
    }

    async fn tokens(&self, ask: &CountAsk) -> Result<u64, Fault> {
        let mut request = Object::new();
        put_text(&mut request, "model", &self.model)?;
        if !ask.system.is_empty() {
            put_text(&mut request, "system", &ask.system)?;
        }
        if !ask.tools_json.is_empty() {
            put(&mut request, "tools", &ask.tools_json)?;
        }
        put(&mut request, "messages", &ask.messages_json)?;
        super::count(&self.provider, ask, &request, "input_tokens").await
    }
}

impl TokenCounter for AnthropicCounter {
    fn name(&self) -> &str {
        &self.name
    }

    fn format(&self) -> MessageFormat {
        MessageFormat::Anthropic
    }

    fn count(&self, ask: CountAsk) -> Counting<'_> {
        Box::pin(async move { Ok(self.tokens(&ask).await?) })
    }
}
