//! Access to the journal's store: reads and rare writes for all components, commits for one.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use memoird_core::ids::{HookName, TenantId};
use memoird_store::{EndedRecord, RetainedStore, Store, StoreError};
use tokio::sync::Mutex;
use tracing::debug;

use crate::blocking::{Blocking, Executor};
use crate::error::EngineError;
use crate::memory_use::MemoryUse;

/// Runs calls of the store off the runtime's threads. Cheap to clone.
#[derive(Clone)]
pub(crate) struct StoreHandle {
    store: Arc<dyn Store>,
    readers: Executor,
    read_delay: Option<fn() -> Duration>,
    retained: Option<Arc<RetainedContent>>,
}

impl StoreHandle {
    pub(crate) fn new(store: Arc<dyn Store>, readers: Executor, blocking: Blocking) -> Self {
        Self {
            store,
            readers,
            read_delay: blocking.read_delay(),
            retained: None,
        }
    }

    /// Creates a store in memory, for pending deliveries and erasures without a journal.
    pub(crate) fn in_memory(memory: &Arc<MemoryUse>) -> Result<Self, EngineError> {
        let store = RetainedStore::new().map_err(|error| EngineError::from(&error))?;
        let store = Arc::new(store);
        let retained = RetainedContent {
            store: Arc::clone(&store),
            memory: Arc::clone(memory),
            bytes: AtomicU64::new(0),
        };
        Ok(Self {
            retained: Some(Arc::new(retained)),
            ..Self::new(store, Executor::readers(Blocking::Inline), Blocking::Inline)
        })
    }

    /// Runs a call on the reader pool, for a tenant or, if `None`, for the daemon itself.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        tenant: Option<&TenantId>,
        action: impl FnOnce(&dyn Store) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, EngineError> {
        let store = Arc::clone(&self.store);
        let outcome = self.readers.run(tenant, move || action(&*store)).await?;
        if let Some(retained) = &self.retained {
            retained.count();
        }
        let delay = self.read_delay.map(|delay| delay());
        if let Some(delay) = delay.filter(|delay| !delay.is_zero()) {
            tokio::time::sleep(delay).await;
        }
        outcome.map_err(|error| EngineError::from(&error))
    }

    /// The content that hooks will receive, if there is no journal.
    pub(crate) fn retained(&self) -> Option<&RetainedContent> {
        self.retained.as_deref()
    }
}

impl fmt::Debug for StoreHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreHandle").finish_non_exhaustive()
    }
}

/// Ended sessions in memory until their deliveries finish. Only without a journal.
pub(crate) struct RetainedContent {
    store: Arc<RetainedStore>,
    memory: Arc<MemoryUse>,
    /// Bytes as of the last count.
    bytes: AtomicU64,
}

impl RetainedContent {
    /// Retains the content of a session for these hooks.
    ///
    /// Returns false if all retained content would exceed `bytes_max`.
    pub(crate) fn add(
        &self,
        ended: EndedRecord,
        hooks: &[HookName],
        bytes_max: usize,
    ) -> Result<bool, StoreError> {
        let is_retained = self.store.retain_ended(ended, hooks, bytes_max);
        self.count();
        is_retained
    }

    /// Updates the accounting of memory for hooks.
    fn count(&self) {
        let bytes = self.store.retained_bytes() as u64;
        let before = self.bytes.swap(bytes, Ordering::Relaxed);
        self.memory.count_hooks(before, bytes);
    }
}

/// Commits, and checkpoints the log. Only the journal has one.
pub(crate) struct CommitHandle {
    store: Arc<dyn Store>,
    /// With [`Blocking::Threads`], commits run inline on the committer's dedicated thread
    /// ([`Supervisor::run_on_thread`](crate::worker::Supervisor::run_on_thread)), so reads cannot
    /// delay them.
    commits: Blocking,
    readers: Executor,
    /// Locked while a checkpoint is running.
    checkpoint: Arc<Mutex<()>>,
}

impl CommitHandle {
    pub(crate) fn new(handle: &StoreHandle, blocking: Blocking) -> Self {
        Self {
            store: Arc::clone(&handle.store),
            commits: match blocking {
                Blocking::Threads => Blocking::Inline,
                other => other,
            },
            readers: handle.readers.clone(),
            checkpoint: Arc::default(),
        }
    }

    /// Whether the store can prewrite turns ([`Store::commit_and_prewrite`]).
    pub(crate) fn can_prewrite(&self) -> bool {
        self.store.can_prewrite()
    }

    /// Writes to the store. Only for the committer.
    pub(crate) async fn commit<T: Send + 'static>(
        &self,
        action: impl FnOnce(&dyn Store) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, EngineError> {
        let store = Arc::clone(&self.store);
        let outcome = self.commits.run(move || action(&*store)).await?;
        outcome.map_err(|error| EngineError::from(&error))
    }

    /// Starts a checkpoint of the store's log ([`Store::checkpoint_log`]).
    ///
    /// Returns false if one is already running.
    pub(crate) fn checkpoint_log(&self) -> bool {
        let Ok(guard) = Arc::clone(&self.checkpoint).try_lock_owned() else {
            return false;
        };
        let store = Arc::clone(&self.store);
        self.readers.start(move || {
            if let Err(error) = store.checkpoint_log() {
                debug!(%error, "the log could not be checkpointed");
            }
            drop(guard);
        });
        true
    }

    pub(crate) fn is_checkpointing(&self) -> bool {
        self.checkpoint.try_lock().is_err()
    }

    /// Waits until no checkpoint is running.
    pub(crate) async fn wait_checkpointed(&self) {
        drop(self.checkpoint.lock().await);
    }
}
