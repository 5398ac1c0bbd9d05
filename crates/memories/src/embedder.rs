//! The `Embedder` port.
//!
//! An embedder only computes vectors. Queueing, retries and storage are up to its callers.

use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;

use memoird_engine::ModelFault;

/// Computes embeddings: vectors whose cosine measures similarity of meaning.
pub trait Embedder: Debug + Send + Sync + 'static {
    /// Name of the model, unique for its vectors. Vectors of different names are never compared.
    ///
    /// It includes everything that changes the vectors: provider, version, digest of local files.
    fn model(&self) -> &str;

    /// Maximum number of texts per call, at least 1.
    fn batch_max(&self) -> usize;

    /// Returns one vector per text, in order, all of the same dimension and of Euclidean length 1.
    ///
    /// A text longer than the model's input is truncated, never rejected. Dropping the future
    /// cancels the call.
    fn embed(&self, purpose: Purpose, texts: Vec<String>) -> Embeddings<'_>;
}

/// Use of an embedding. Some models expect a different prefix for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Stored, to be found by queries.
    Memory,
    /// Used to search.
    Query,
}

pub type Embeddings<'a> =
    Pin<Box<dyn Future<Output = Result<Vec<Vec<f32>>, ModelFault>> + Send + 'a>>;
