//! The embedder of the file: what turns memories into vectors, if anything does.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use memoird_memories::Embedder;
use memoird_models::{ApiKey, OpenAiEmbedder, OpenAiEmbedderConfig};
use serde::{Deserialize, Serialize};

use super::secret::SecretShape;
use super::units::Span;

/// An embedder as it stands in the file: `none`, or one of a kind.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum EmbedderShape {
    #[default]
    None,
    OpenAi(OpenAiShape),
    Local(LocalShape),
}

/// Any service that speaks OpenAI's `/v1/embeddings`.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OpenAiShape {
    #[serde(default = "base_url")]
    base_url: String,
    model: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    api_key: Option<SecretShape>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    dimensions: Option<u32>,
    #[serde(default = "batch")]
    batch: usize,
    #[serde(default = "timeout")]
    timeout: Span,
    #[serde(default)]
    query_prefix: String,
    #[serde(default)]
    memory_prefix: String,
}

/// A model in a folder, in this process.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LocalShape {
    dir: PathBuf,
}

/// The embedder; `None` where the file says `none`.
pub(super) type Built = Option<Arc<dyn Embedder>>;

/// Where in the embedder something is wrong, and what.
pub(super) type Fault = (&'static str, String);

impl EmbedderShape {
    /// The embedder that the file names, ready to be asked; or why there is none. Reads a
    /// model's folder, and asks no service.
    pub(super) fn build(&self) -> Result<Built, Fault> {
        match self {
            Self::None => Ok(None),
            Self::OpenAi(shape) => shape.build().map(Some),
            Self::Local(shape) => shape.build().map(Some),
        }
    }
}

fn base_url() -> String {
    "https://api.openai.com/v1".to_owned()
}

fn batch() -> usize {
    64
}

fn timeout() -> Span {
    Span(Duration::from_secs(30))
}

impl OpenAiShape {
    fn build(&self) -> Result<Arc<dyn Embedder>, Fault> {
        let key = self.api_key.as_ref().map(SecretShape::read).transpose();
        let key = key.map_err(|problem| (".openai.api_key", problem))?;
        let key = key.map(|key| ApiKey::parse(&key)).transpose();
        let config = OpenAiEmbedderConfig {
            api_key: key.map_err(|error| (".openai.api_key", error.to_string()))?,
            dimensions: self.dimensions,
            batch: self.batch,
            timeout: self.timeout.0,
            query_prefix: self.query_prefix.clone(),
            memory_prefix: self.memory_prefix.clone(),
            ..OpenAiEmbedderConfig::new(self.base_url.clone(), self.model.clone())
        };
        let embedder = OpenAiEmbedder::new(&config);
        Ok(Arc::new(
            embedder.map_err(|error| (".openai", error.to_string()))?,
        ))
    }
}

impl LocalShape {
    fn build(&self) -> Result<Arc<dyn Embedder>, Fault> {
        memoird_models::open_local(&self.dir).map_err(|error| (".local", error.to_string()))
    }
}
