//! Errors of searches and of the index file.

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
        /// Details for the log.
        cause: Arc<IndexError>,
    },
}

/// Error of the index file. Logged, and never returned to a client.
#[derive(Debug, Error)]
#[error(transparent)]
pub struct IndexError(pub(crate) StoreError);

impl From<IndexError> for SearchError {
    fn from(error: IndexError) -> Self {
        Self::Failed {
            cause: Arc::new(error),
        }
    }
}
