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
use std::thread::available_parallelism;
use std::time::Duration;

use memoird_core::ids::TenantId;
use memoird_store::READERS_MAX;

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

    pub(crate) fn read_delay(self) -> Option<fn() -> Duration> {
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
    pub(crate) fn start(&self, action: impl FnOnce() + Send + 'static) {
        match &self.0 {
            ExecutorBackend::FairThreads(threads) => threads.start(action),
            ExecutorBackend::Runtime(blocking) if blocking.is_inline() => action(),
            ExecutorBackend::Runtime(_) => drop(tokio::task::spawn_blocking(action)),
        }
    }
}
