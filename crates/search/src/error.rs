//! Errors of searches and of the index file.

use std::sync::Arc;

use memoird_engine::EngineError;
use memoird_store::StoreError;
use rusqlite::ErrorCode;
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
pub struct IndexError(#[from] pub(crate) StoreError);

impl IndexError {
    /// Whether the file is damaged and must be rebuilt.
    pub(crate) fn is_damage(&self) -> bool {
        match &self.0 {
            StoreError::Corrupt { .. } | StoreError::TooNew { .. } => true,
            StoreError::Sqlite { source } => matches!(
                source.sqlite_error_code(),
                Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase)
            ),
            _ => false,
        }
    }
}

impl From<rusqlite::Error> for IndexError {
    fn from(error: rusqlite::Error) -> Self {
        Self(error.into())
    }
}

impl From<IndexError> for SearchError {
    fn from(error: IndexError) -> Self {
        Self::Failed {
            cause: Arc::new(error),
        }
    }
}
