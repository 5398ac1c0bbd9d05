//! Thread pools for blocking calls: store access and long computations.
//!
//! - The worker that commits has a dedicated thread.
//! - At most `READERS_MAX` threads read files: the journal, memories and the transcript index.
//! - Token counting and summarizing have one thread per core.
//!
//! Queued calls are served round-robin by tenant. Tests with a paused clock use tokio's blocking
//! pool, or run the call inline.

mod fair_queue;
mod fair_threads;

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::available_parallelism;
use std::time::Duration;

use memoird_core::ids::TenantId;
use memoird_store::{READERS_MAX, Store, StoreError};
use tokio::sync::Notify;
use tracing::debug;

use crate::error::EngineError;
use fair_threads::FairThreads;

/// Niceness of background threads.
///
/// A runnable runtime thread gets nine tenths of a core that it shares with such a thread.
const NICENESS: i32 = 10;

/// Lowers the calling thread's priority, so that its long work does not delay calls.
pub(crate) fn lower_thread_priority() {
    thread_local!(static IS_LOWERED: Cell<bool> = const { Cell::new(false) });
    if IS_LOWERED.replace(true) {
        return;
    }
    // Linux applies niceness per thread. If the call is denied, the work still runs.
    #[cfg(target_os = "linux")]
    let _ = rustix::process::nice(NICENESS);
}

pub(crate) fn cores() -> usize {
    available_parallelism().map_or(1, usize::from)
}

/// Strategy for running blocking calls.
#[derive(Clone, Copy, Debug)]
pub enum Blocking {
    /// On the engine's own threads, with a bounded pool per kind of call, so that no kind starves
    /// another: commits, file reads, counting. Other calls use tokio's blocking pool.
    Threads,
    /// On tokio's blocking pool. For tests: a paused clock does not auto-advance while such a
    /// thread works, but it ignores other threads.
    Pool,
    /// On the calling thread, so that a seeded simulation is reproducible.
    Inline,
    /// Like `Inline`, but delays the result of each store read on the runtime's clock, so that it
    /// may be stale on arrival.
    InlineWithReadDelay(fn() -> Duration),
}

impl Blocking {
    pub(crate) fn is_inline(self) -> bool {
        matches!(self, Self::Inline | Self::InlineWithReadDelay(_))
    }

    fn read_delay(self) -> Option<fn() -> Duration> {
        match self {
            Self::InlineWithReadDelay(delay) => Some(delay),
            Self::Threads | Self::Pool | Self::Inline => None,
        }
    }

    pub async fn run<T: Send + 'static>(
        self,
        action: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, EngineError> {
        if self.is_inline() {
            return Ok(action());
        }
        let lowers_priority = matches!(self, Self::Threads);
        let action = move || {
            if lowers_priority {
                lower_thread_priority();
            }
            action()
        };
        tokio::task::spawn_blocking(action)
            .await
            .map_err(|error| EngineError::BlockingCallFailed {
                detail: error.to_string(),
            })
    }
}

/// Runs blocking calls of one kind with bounded concurrency, round-robin by tenant.
#[derive(Clone, Debug)]
pub struct Executor(ExecutorBackend);

#[derive(Clone, Debug)]
enum ExecutorBackend {
    FairThreads(Arc<FairThreads>),
    Runtime(Blocking),
}

impl Executor {
    /// Creates a pool of up to `threads_max` low-priority threads, if `blocking` uses threads.
    pub fn new(blocking: Blocking, name: &'static str, threads_max: usize) -> Self {
        Self::on(
            blocking,
            FairThreads::new(name, threads_max, lower_thread_priority),
        )
    }

    /// Creates the pool that reads files for calls: the journal, memories and the transcript index.
    pub(crate) fn readers(blocking: Blocking) -> Self {
        Self::new(blocking, "reader", READERS_MAX)
    }

    /// Like [`Self::new`], but with normal priority, for work that calls wait for.
    pub(crate) fn awaited(blocking: Blocking, name: &'static str, threads_max: usize) -> Self {
        Self::on(blocking, FairThreads::new(name, threads_max, || {}))
    }

    fn on(blocking: Blocking, threads: FairThreads) -> Self {
        Self(match blocking {
            Blocking::Threads => ExecutorBackend::FairThreads(Arc::new(threads)),
            Blocking::Pool | Blocking::Inline | Blocking::InlineWithReadDelay(_) => {
                ExecutorBackend::Runtime(blocking)
            }
        })
    }

    /// Runs a blocking call for a tenant, or for the daemon itself if `None`.
    ///
    /// Fails if too many calls are queued, or the call panicked.
    pub async fn run<T: Send + 'static>(
        &self,
        tenant: Option<&TenantId>,
        action: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, EngineError> {
        match &self.0 {
            ExecutorBackend::FairThreads(threads) => threads.run(tenant, action).await,
            ExecutorBackend::Runtime(blocking) => blocking.run(action).await,
        }
    }

    /// Starts a blocking call of the daemon itself without waiting for it.
    ///
    /// The call is dropped if too many calls are queued.
    fn start(&self, action: impl FnOnce() + Send + 'static) {
        match &self.0 {
            ExecutorBackend::FairThreads(threads) => threads.start(action),
            ExecutorBackend::Runtime(blocking) if blocking.is_inline() => action(),
            ExecutorBackend::Runtime(_) => drop(tokio::task::spawn_blocking(action)),
        }
    }
}

/// State of the log checkpoint.
#[derive(Debug, Default)]
struct CheckpointState {
    is_running: AtomicBool,
    finished: Notify,
}

struct CheckpointGuard(Arc<CheckpointState>);

impl Drop for CheckpointGuard {
    fn drop(&mut self) {
        self.0.is_running.store(false, Ordering::Release);
        self.0.finished.notify_one();
    }
}

#[derive(Clone)]
pub(crate) struct StoreAccess {
    store: Arc<dyn Store>,
    /// With [`Blocking::Threads`], commits run inline on the committer's dedicated thread
    /// ([`Supervisor::run_on_thread`](crate::worker::Supervisor::run_on_thread)), so reads cannot
    /// delay them.
    commits: Blocking,
    readers: Executor,
    checkpoint: Arc<CheckpointState>,
    read_delay: Option<fn() -> Duration>,
}

impl StoreAccess {
    pub(crate) fn new(store: Arc<dyn Store>, blocking: Blocking) -> Self {
        Self::with_readers(Executor::readers(blocking), store, blocking)
    }

    /// Like [`Self::new`], but shares the pool of readers.
    pub(crate) fn with_readers(
        readers: Executor,
        store: Arc<dyn Store>,
        blocking: Blocking,
    ) -> Self {
        Self {
            store,
            commits: match blocking {
                Blocking::Threads => Blocking::Inline,
                other => other,
            },
            readers,
            checkpoint: Arc::default(),
            read_delay: blocking.read_delay(),
        }
    }

    /// Whether the store can prewrite turns ([`Store::commit_and_prewrite`]).
    pub(crate) fn can_prewrite(&self) -> bool {
        self.store.can_prewrite()
    }

    /// Reads the store on the reader pool, for a tenant or, if `None`, for the daemon itself.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        tenant: Option<&TenantId>,
        action: impl FnOnce(&dyn Store) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, EngineError> {
        let store = Arc::clone(&self.store);
        let outcome = self.readers.run(tenant, move || action(&*store)).await?;
        let delay = self.read_delay.map(|delay| delay());
        if let Some(delay) = delay.filter(|delay| !delay.is_zero()) {
            tokio::time::sleep(delay).await;
        }
        outcome.map_err(|error| EngineError::from(&error))
    }

    /// Starts a checkpoint of the store's log ([`Store::checkpoint_log`]).
    ///
    /// Returns false if one is already running.
    pub(crate) fn checkpoint_log(&self) -> bool {
        if self.checkpoint.is_running.swap(true, Ordering::AcqRel) {
            return false;
        }
        let guard = CheckpointGuard(Arc::clone(&self.checkpoint));
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
        self.checkpoint.is_running.load(Ordering::Acquire)
    }

    /// Waits until no checkpoint is running. Only for the committer: a single waiter is notified.
    pub(crate) async fn wait_checkpointed(&self) {
        while self.is_checkpointing() {
            self.checkpoint.finished.notified().await;
        }
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
}
