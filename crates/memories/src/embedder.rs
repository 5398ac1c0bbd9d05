//! The port of embedders: text in, a point in a space of meanings out. The engine queues,
//! repeats and stores; an embedder only computes.

use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use thiserror::Error;

/// Turns texts into vectors whose cosine says how near their meanings are.
pub trait Embedder: Debug + Send + Sync + 'static {
    /// Names the model, with everything that changes its vectors (provider, version, a
    /// digest of local files). Vectors of different names are never compared.
    fn model(&self) -> &str;

    /// Texts that one call takes. At least 1.
    fn batch_max(&self) -> usize;

    /// The vectors of these texts, in their order, all of one length and of length 1 in
    /// Euclid's sense. A text longer than the model reads is cut, never refused.
    ///
    /// Cancelled by being dropped.
    fn embed(&self, purpose: Purpose, texts: Vec<String>) -> Embeddings<'_>;
}

/// What a text is embedded for: some models want a different prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To be found.
    Memory,
    /// To find.
    Query,
}

/// The vectors, on their way.
pub type Embeddings<'a> =
    Pin<Box<dyn Future<Output = Result<Vec<Vec<f32>>, EmbedError>> + Send + 'a>>;

/// Why texts could not be embedded.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum EmbedError {
    /// The provider is not there, is busy, or failed; trying again may help.
    #[error("{problem}")]
    Later {
        /// For an operator. Never a secret, never what a memory says.
        problem: String,
        /// The pause that the provider asked for.
        after: Option<Duration>,
    },
    /// The configuration is wrong (key, model, address): it will not help before it changes.
    #[error("{problem}")]
    Misconfigured {
        /// For an operator. Never a secret, never what a memory says.
        problem: String,
    },
    /// The provider refuses one of these texts, and would again.
    #[error("{problem}")]
    Refused {
        /// For an operator. Never a secret, never what a memory says.
        problem: String,
    },
}
