//! The `Reranker` port.
//!
//! A reranker only scores texts. The service selects the texts, and handles failures.

use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;

use memoird_engine::ModelFault;

/// Scores how well texts answer a query by reading both together.
///
/// This costs more than comparing vectors, and is more accurate.
pub trait Reranker: Debug + Send + Sync + 'static {
    /// Name for responses and logs: provider and model.
    fn name(&self) -> &str;

    /// Maximum number of texts per call, at least 1.
    fn documents_max(&self) -> usize;

    /// Returns one score from 0 to 1 per text, in order, within the time limit of the reranker.
    ///
    /// A text longer than the model's input is truncated, never rejected. Dropping the future
    /// cancels the call.
    fn rerank(&self, query: String, documents: Vec<String>) -> Reranking<'_>;
}

pub type Reranking<'a> = Pin<Box<dyn Future<Output = Result<Vec<f64>, ModelFault>> + Send + 'a>>;
