//! Clients of model providers, and models that run in this process.
//!
//! These are summarizers, extractors, embedders, rerankers, token counters, and tokenizers of
//! open-weight models.

mod counters;
mod embedders;
mod error;
mod extractive;
mod extractors;
mod http;
#[cfg(feature = "local-embedder")]
mod local;
mod openai;
mod rerankers;
mod summarizers;
#[cfg(feature = "tokenizer-json")]
mod tokenizer;
mod vector;

use std::path::Path;
use std::sync::Arc;

use memoird_formats::tokens::Tokenizer;
use memoird_memories::Embedder;

pub use counters::{
    AnthropicCounterConfig, CountEndpoint, CounterSpec, OpenAiCounterConfig, RemoteCounter,
};
pub use embedders::{EmbedderSpec, LocalEmbedderConfig};
pub use error::ModelError;
pub use extractive::ExtractiveSummarizer;
pub use extractors::{ExtractorKeys, ExtractorSpec, RemoteExtractor};
pub use http::{ApiKey, BaseUrl};
#[cfg(feature = "local-embedder")]
pub use local::LocalEmbedder;
pub use openai::{OpenAiEmbedder, OpenAiEmbedderConfig};
pub use rerankers::{JinaRerankerConfig, RemoteReranker, RerankerSpec, TeiRerankerConfig};
pub use summarizers::{
    AnthropicSummarizerConfig, OpenAiSummarizerConfig, RemoteSummarizer, SummarizerSpec,
    TokenLimit, WebhookSummarizerConfig,
};
#[cfg(feature = "tokenizer-json")]
pub use tokenizer::HfTokenizer;

/// Reads a tokenizer from a `tokenizer.json`. Blocks for up to several seconds.
///
/// # Errors
/// [`ModelError`]; always [`ModelError::TokenizerNotBuilt`] without the feature `tokenizer-json`.
#[cfg(feature = "tokenizer-json")]
pub fn open_tokenizer(path: &Path) -> Result<Arc<dyn Tokenizer>, ModelError> {
    Ok(Arc::new(HfTokenizer::from_file(path)?))
}

/// Fails, because this binary was built without the feature `tokenizer-json`.
///
/// # Errors
/// Always [`ModelError::TokenizerNotBuilt`].
#[cfg(not(feature = "tokenizer-json"))]
pub fn open_tokenizer(path: &Path) -> Result<Arc<dyn Tokenizer>, ModelError> {
    Err(ModelError::TokenizerNotBuilt {
        path: path.to_owned(),
    })
}

/// Reads a local model from its directory. Blocks for up to several seconds.
///
/// # Errors
/// [`ModelError`]; always [`ModelError::LocalNotBuilt`] without the feature `local-embedder`.
#[cfg(feature = "local-embedder")]
pub fn open_local(dir: &Path) -> Result<Arc<dyn Embedder>, ModelError> {
    Ok(Arc::new(LocalEmbedder::open(dir)?))
}

/// Fails, because this binary was built without the feature `local-embedder`.
///
/// # Errors
/// Always [`ModelError::LocalNotBuilt`].
#[cfg(not(feature = "local-embedder"))]
pub fn open_local(dir: &Path) -> Result<Arc<dyn Embedder>, ModelError> {
    Err(ModelError::LocalNotBuilt {
        dir: dir.to_owned(),
    })
}
