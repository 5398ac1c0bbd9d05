//! Where calls of a store run, which may block.

use std::sync::Arc;

use memoird_store::{Store, StoreError};

use crate::error::EngineError;

/// Where blocking calls run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocking {
    /// On tokio's pool of threads for such calls.
    Pool,
    /// On the calling thread: a simulation with a seed then repeats exactly.
    Inline,
}

impl Blocking {
    /// Runs a blocking call.
    ///
    /// # Errors
    /// When the call panicked.
    pub async fn run<T: Send + 'static>(
        self,
        action: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, EngineError> {
        if self == Self::Inline {
            return Ok(action());
        }
        tokio::task::spawn_blocking(action)
            .await
            .map_err(|error| EngineError::JournalFailed {
                detail: error.to_string(),
            })
    }
}

/// A store, and where its calls run.
#[derive(Clone)]
pub(crate) struct StoreAccess {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) blocking: Blocking,
}

impl StoreAccess {
    /// Calls the store, off the executor's threads.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        action: impl FnOnce(&dyn Store) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, EngineError> {
        let store = Arc::clone(&self.store);
        let outcome = self.blocking.run(move || action(&*store)).await?;
        outcome.map_err(|error| EngineError::from(&error))
    }
}
