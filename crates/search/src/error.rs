//! Errors of searches.

use std::sync::Arc;

use memoird_engine::EngineError;
use memoird_store::StoreError;
use thiserror::Error;

/// A failed search.
#[derive(Clone, Debug, Error)]
pub enum SearchError {
    /// The journal is off or cannot be read.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// Search is disabled.
    #[error("nothing is indexed here; ask your operator to set search.enabled")]
    Off,
    /// The query has neither words nor filters.
    #[error("query has no words; give some, or at least one of the filters")]
    QueryEmpty,
    /// The index is being opened or built.
    #[error("the index is not ready yet; try again")]
    NotReady,
    /// The index cannot be read. A damaged one is rebuilt.
    #[error("the index cannot be read; try again")]
    Failed {
        /// Details for the log. Never returned to a client.
        cause: Arc<StoreError>,
    },
}

impl From<StoreError> for SearchError {
    fn from(error: StoreError) -> Self {
        Self::Failed {
            cause: Arc::new(error),
        }
    }
}
