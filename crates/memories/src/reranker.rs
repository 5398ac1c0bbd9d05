//! The port of rerankers: a query and texts in, how well each text answers it out. What is judged,
//! and what is done without an answer, the service decides.

use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;

use memoird_engine::ModelFault;

/// Reads a query and a text together, which costs more than comparing vectors and tells more.
pub trait Reranker: Debug + Send + Sync + 'static {
    /// Names it in answers and logs: a provider and its model.
    fn name(&self) -> &str;

    /// Texts that one call takes. At least 1.
    fn documents_max(&self) -> usize;

    /// How well each of these texts answers the query, in their order: from 0 to 1. Within its
    /// time limit; a text longer than the model reads is cut, never refused.
    ///
    /// Cancelled by being dropped.
    fn rerank(&self, query: String, documents: Vec<String>) -> Reranking<'_>;
}

/// The scores, on their way.
pub type Reranking<'a> = Pin<Box<dyn Future<Output = Result<Vec<f64>, ModelFault>> + Send + 'a>>;
