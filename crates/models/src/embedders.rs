//! Configuration of the embedder.

use std::path::PathBuf;
use std::sync::Arc;

use memoird_core::config::{Environment, Problem};
use memoird_memories::Embedder;
use serde::{Deserialize, Serialize};

use crate::http::with_key;
use crate::openai::{OpenAiEmbedder, OpenAiEmbedderConfig};

/// Which embedder converts texts to vectors.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum EmbedderSpec {
    /// None: recall matches words only.
    #[default]
    None,
    /// Any service with OpenAI's `/v1/embeddings`.
    OpenAi(OpenAiEmbedderConfig),
    /// A model in this process.
    Local(LocalEmbedderConfig),
}

/// Configuration of a model in this process.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct LocalEmbedderConfig {
    /// Directory with the model and its tokenizer.
    pub dir: PathBuf,
}

impl EmbedderSpec {
    /// Creates the embedder. `None` if none is configured.
    ///
    /// Reading a local model takes up to several seconds. No request is sent yet.
    ///
    /// # Errors
    /// A [`Problem`] if the configuration is invalid.
    pub fn build(
        &self,
        environment: &dyn Environment,
    ) -> Result<Option<Arc<dyn Embedder>>, Problem> {
        Ok(match self {
            Self::None => None,
            Self::OpenAi(config) => {
                let new = |key| OpenAiEmbedder::new(config, key);
                Some(with_key("openai", &config.api_key, environment, new)?)
            }
            Self::Local(config) => {
                let opened = crate::open_local(&config.dir);
                Some(opened.map_err(|error| Problem::new("local", error))?)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json};

    use super::*;
    use crate::http::Hunter2;

    #[test]
    fn keys_and_tokens_are_hidden_in_debug() {
        let url = "https://a.example/v1?token=hunter2";
        let config = json!({"openai": {"model": "m", "base_url": url, "api_key": {"env": "KEY"}}});
        let spec: EmbedderSpec = from_value(config).expect("an embedder");
        let embedder = spec.build(&Hunter2).expect("a good configuration");
        let shown = format!("{spec:?} {embedder:?}");
        assert!(
            shown.contains("a.example/v1") && !shown.contains("hunter2"),
            "{shown}"
        );
    }
}
