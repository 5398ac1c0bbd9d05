//! The port of embedders: text in, a point in a space of meanings out. The engine queues,
//! repeats and stores; an embedder only computes.

use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;

use memoird_engine::ModelFault;

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

/// The purpose of an embedding: some models want a different prefix for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To be found.
    Memory,
    /// To find.
    Query,
}

/// The vectors, on their way.
pub type Embeddings<'a> =
    Pin<Box<dyn Future<Output = Result<Vec<Vec<f32>>, ModelFault>> + Send + 'a>>;
