//! Where blocking calls run: those of a store, and long computations.
//!
//! Commits have a thread of their own, which is that of the worker that makes them. At most
//! `READERS_MAX` threads read: the journal, memories, and the index of what was said. Counting tokens
//! and making summaries have a thread for each core. What waits for threads is served tenant by
//! tenant. Tests with a paused clock use tokio's pool or no thread at all.

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

/// A thread of the runtime that is ready to run gets nine tenths of a core that it shares with
/// a thread of this niceness.
const NICENESS: i32 = 10;

/// From now on the calling thread gives way to those of the runtime, so that no call waits for
/// the long work of another one.
pub(crate) fn give_way() {
    thread_local!(static GIVES_WAY: Cell<bool> = const { Cell::new(false) });
    if GIVES_WAY.replace(true) {
        return;
    }
    // On Linux this is of the thread alone. Where it is refused, the work is done all the same.
    #[cfg(target_os = "linux")]
    let _ = rustix::process::nice(NICENESS);
}

/// How many threads can compute at once here.
pub(crate) fn cores() -> usize {
    available_parallelism().map_or(1, usize::from)
}

/// Where blocking calls run.
#[derive(Clone, Copy, Debug)]
pub enum Blocking {
    /// On threads of the engine's own, a bounded number for each kind of call, so that no kind
    /// starves another one: commits; reads of the journal, of memories and of the index of what
    /// was said; counting. All else runs on tokio's pool.
    Threads,
    /// On tokio's pool of threads for such calls. For tests: a paused clock stands still while
    /// one of these threads works, and does not know of any other thread.
    Pool,
    /// On the calling thread: a simulation with a seed then repeats exactly.
    Inline,
    /// The same, but every answer to a read of the store takes so long on its way back, on the
    /// runtime's clock: what it says may be old by then.
    InlineWithReadDelay(fn() -> Duration),
}

impl Blocking {
    /// True where blocking calls run on the calling thread.
    pub(crate) fn is_inline(self) -> bool {
        matches!(self, Self::Inline | Self::InlineWithReadDelay(_))
    }

    fn read_delay(self) -> Option<fn() -> Duration> {
        match self {
            Self::InlineWithReadDelay(delay) => Some(delay),
            Self::Threads | Self::Pool | Self::Inline => None,
        }
    }

    /// Runs a blocking call.
    ///
    /// # Errors
    /// When the call panicked.
    pub async fn run<T: Send + 'static>(
        self,
        action: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, EngineError> {
        if self.is_inline() {
            return Ok(action());
        }
        let gives_way = matches!(self, Self::Threads);
        let action = move || {
            if gives_way {
                give_way();
            }
            action()
        };
        tokio::task::spawn_blocking(action)
            .await
            .map_err(|error| EngineError::JournalFailed {
                detail: error.to_string(),
            })
    }
}

/// Where blocking calls of one kind run: at most so many at once, and tenants in turn.
#[derive(Clone, Debug)]
pub struct Executor(Place);

#[derive(Clone, Debug)]
enum Place {
    /// On threads of their own.
    Own(Arc<FairThreads>),
    /// Where other blocking calls run.
    Shared(Blocking),
}

impl Executor {
    /// Up to `threads_max` threads of this name, where calls run on threads at all. They give
    /// way to those of the runtime.
    pub fn new(blocking: Blocking, name: &'static str, threads_max: usize) -> Self {
        Self::on(blocking, FairThreads::new(name, threads_max, give_way))
    }

    /// Those that read files for calls: the journal, memories, the index of what was said.
    pub(crate) fn readers(blocking: Blocking) -> Self {
        Self::new(blocking, "reader", READERS_MAX)
    }

    /// Up to `threads_max` threads of this name that give way to nobody, because calls wait for what
    /// they do.
    pub(crate) fn awaited(blocking: Blocking, name: &'static str, threads_max: usize) -> Self {
        Self::on(blocking, FairThreads::new(name, threads_max, || {}))
    }

    fn on(blocking: Blocking, threads: FairThreads) -> Self {
        Self(match blocking {
            Blocking::Threads => Place::Own(Arc::new(threads)),
            Blocking::Pool | Blocking::Inline | Blocking::InlineWithReadDelay(_) => {
                Place::Shared(blocking)
            }
        })
    }

    /// Runs a blocking call for a tenant; `None`: for the daemon itself.
    ///
    /// # Errors
    /// When too many calls wait, or the call panicked.
    pub async fn run<T: Send + 'static>(
        &self,
        tenant: Option<&TenantId>,
        action: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, EngineError> {
        match &self.0 {
            Place::Own(threads) => threads.run(tenant, action).await,
            Place::Shared(blocking) => blocking.run(action).await,
        }
    }

    /// Runs a blocking call of the daemon itself, whose outcome nobody waits for. It is not run
    /// where too many calls wait.
    fn start(&self, action: impl FnOnce() + Send + 'static) {
        match &self.0 {
            Place::Own(threads) => threads.start(action),
            Place::Shared(blocking) if blocking.is_inline() => action(),
            Place::Shared(_) => drop(tokio::task::spawn_blocking(action)),
        }
    }
}

/// Whether the log is moved.
#[derive(Debug, Default)]
struct LogMove {
    is_under_way: AtomicBool,
    is_over: Notify,
}

/// One move of the log, also one that is not begun.
struct Settling(Arc<LogMove>);

impl Drop for Settling {
    fn drop(&mut self) {
        self.0.is_under_way.store(false, Ordering::Release);
        self.0.is_over.notify_one();
    }
}

/// A store, and where its calls run.
#[derive(Clone)]
pub(crate) struct StoreAccess {
    store: Arc<dyn Store>,
    /// Where commits run. They have a thread of their own, which is the one that calls
    /// ([`Supervisor::run_on_thread`](crate::worker::Supervisor::run_on_thread)): no read ever takes
    /// it from a commit.
    commits: Blocking,
    readers: Executor,
    log_move: Arc<LogMove>,
    read_delay: Option<fn() -> Duration>,
}

impl StoreAccess {
    pub(crate) fn new(store: Arc<dyn Store>, blocking: Blocking) -> Self {
        Self::beside(Executor::readers(blocking), store, blocking)
    }

    /// The same, where other files are read as well.
    pub(crate) fn beside(readers: Executor, store: Arc<dyn Store>, blocking: Blocking) -> Self {
        Self {
            store,
            commits: match blocking {
                Blocking::Threads => Blocking::Inline,
                other => other,
            },
            readers,
            log_move: Arc::default(),
            read_delay: blocking.read_delay(),
        }
    }

    /// True where turns can be written ahead of their set ([`Store::commit_beside`]).
    pub(crate) fn writes_ahead(&self) -> bool {
        self.store.writes_ahead()
    }

    /// Calls the store, off the runtime's threads, for a tenant; `None`: for the daemon itself.
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

    /// Moves the store's log to its place ([`Store::settle_log`]). False where that is under way.
    pub(crate) fn settle_log(&self) -> bool {
        if self.log_move.is_under_way.swap(true, Ordering::AcqRel) {
            return false;
        }
        let settling = Settling(Arc::clone(&self.log_move));
        let store = Arc::clone(&self.store);
        self.readers.start(move || {
            if let Err(error) = store.settle_log() {
                debug!(%error, "the log could not be moved beside the commits");
            }
            drop(settling);
        });
        true
    }

    /// True while the log is moved to its place.
    pub(crate) fn is_settling(&self) -> bool {
        self.log_move.is_under_way.load(Ordering::Acquire)
    }

    /// Waits for the end of a move of the log. Only for the one caller that commits.
    pub(crate) async fn settled(&self) {
        while self.is_settling() {
            self.log_move.is_over.notified().await;
        }
    }

    /// The same for the one caller that commits.
    pub(crate) async fn commit<T: Send + 'static>(
        &self,
        action: impl FnOnce(&dyn Store) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, EngineError> {
        let store = Arc::clone(&self.store);
        let outcome = self.commits.run(move || action(&*store)).await?;
        outcome.map_err(|error| EngineError::from(&error))
    }
}
