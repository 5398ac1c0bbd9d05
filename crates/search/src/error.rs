//! Why a search could not be done, and what befalls the index.

use std::sync::Arc;

use memoird_engine::EngineError;
use memoird_store::StoreError;
use rusqlite::ErrorCode;
use thiserror::Error;

/// A search that was not done.
#[derive(Clone, Debug, Error)]
pub enum SearchError {
    /// The journal is off, or cannot be read.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// Searching is switched off.
    #[error("nothing is indexed here; ask your operator to set search.enabled")]
    Off,
    /// Neither words nor anything else to look for.
    #[error("query has no words; give some, or at least one of the filters")]
    QueryEmpty,
    /// The index is being opened or made.
    #[error("the index is not ready yet; try again")]
    NotReady,
    /// The index cannot be read. Where it is damaged, it is built anew.
    #[error("the index cannot be read; try again")]
    Failed {
        /// What happened, for the log.
        cause: Arc<IndexError>,
    },
}

/// What went wrong with the index's file. For the log, never for a client.
#[derive(Debug, Error)]
#[error(transparent)]
pub struct IndexError(#[from] pub(crate) StoreError);

impl IndexError {
    /// True when the file is not what was written to it: it has to be made anew.
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
