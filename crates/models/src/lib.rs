//! What memoird asks of models, and what it takes from their files: tokenizers of models with
//! open weights, embedders, summarizers and counters of tokens.

mod counters;
mod embedders;
mod error;
mod extractive;
mod http;
#[cfg(feature = "local-embedder")]
mod local;
mod openai;
mod summarizers;
mod tokenizer;
mod vector;

use std::path::Path;
use std::sync::Arc;

use memoird_engine::Embedder;

pub use counters::{
    AnthropicCounter, AnthropicCounterConfig, CountEndpoint, CounterSpec, OpenAiCounter,
    OpenAiCounterConfig,
};
pub use embedders::{EmbedderSpec, LocalEmbedderConfig};
pub use error::ModelError;
pub use extractive::ExtractiveSummarizer;
pub use http::{ApiKey, BaseUrl};
#[cfg(feature = "local-embedder")]
pub use local::LocalEmbedder;
pub use openai::{OpenAiEmbedder, OpenAiEmbedderConfig};
pub use summarizers::{
    AnthropicSummarizer, AnthropicSummarizerConfig, OpenAiSummarizer, OpenAiSummarizerConfig,
    SummarizerSpec, TokenLimit, WebhookSummarizer, WebhookSummarizerConfig,
};
pub use tokenizer::HfTokenizer;

/// Reads a model that computes in this process from its folder. It takes up to some
/// seconds; do it where blocking is allowed.
///
/// # Errors
/// [`ModelError`]; always [`ModelError::LocalNotBuilt`] without the feature
/// `local-embedder`.
#[cfg(feature = "local-embedder")]
pub fn open_local(dir: &Path) -> Result<Arc<dyn Embedder>, ModelError> {
    Ok(Arc::new(LocalEmbedder::open(dir)?))
}

/// Says that this program cannot: it was built without the feature `local-embedder`.
///
/// # Errors
/// Always [`ModelError::LocalNotBuilt`].
#[cfg(not(feature = "local-embedder"))]
pub fn open_local(dir: &Path) -> Result<Arc<dyn Embedder>, ModelError> {
    Err(ModelError::LocalNotBuilt {
        dir: dir.to_owned(),
    })
}
