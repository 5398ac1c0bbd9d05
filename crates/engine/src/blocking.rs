//! Thread pools for blocking calls: store access and long computations.
//!
//! - The worker that commits has a dedicated thread.
//! - At most `READERS_MAX` threads read files: the journal, memories and the transcript index.
//! - Token counting and summarizing have one thread per core.
//!
//! Waiting calls are served round-robin by tenant. Tests with a paused clock use tokio's blocking
//! pool, or run the call inline.

use std::cell::Cell;
use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::Duration;

use memoird_core::ids::TenantId;
use memoird_store::READERS_MAX;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::Semaphore;
use tokio::task::JoinError;

use crate::error::EngineError;
use crate::single_flight::SingleFlight;

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
        let outcome = tokio::task::spawn_blocking(action).await;
        outcome.map_err(call_failed)
    }
}

#[allow(clippy::needless_pass_by_value, reason = "an argument of map_err")]
fn call_failed(error: JoinError) -> EngineError {
    EngineError::BlockingCallFailed {
        detail: error.to_string(),
    }
}

/// Runs blocking calls of one kind with bounded concurrency, round-robin by tenant.
///
/// Admission control limits the number of waiting calls. A call takes its idle thread only when its
/// future is polled.
#[derive(Clone, Debug)]
pub struct Executor(ExecutorBackend);

#[derive(Clone, Debug)]
enum ExecutorBackend {
    Threads(Arc<Threads>),
    Runtime(Blocking),
}

/// A pool of threads that start on demand.
#[derive(Debug)]
struct Threads {
    /// The blocking threads of a runtime that runs no task. Taken when the pool is dropped.
    runtime: Option<Runtime>,
    handle: Handle,
    /// A permit for each idle thread.
    idle: Arc<Semaphore>,
    /// Admits one waiting call of each tenant to the queue of `idle`, which is in order of arrival.
    ///
    /// So a tenant's backlog delays only that tenant. Calls without a tenant share a turn.
    turns: SingleFlight<Option<TenantId>>,
}

impl Threads {
    /// Each thread runs `begin` first.
    fn new(name: &'static str, threads_max: usize, begin: fn()) -> Self {
        let threads_max = threads_max.max(1);
        let runtime = Builder::new_current_thread()
            .thread_name(name)
            .max_blocking_threads(threads_max)
            .on_thread_start(begin)
            .build()
            .expect("a runtime without drivers needs nothing from the system");
        Self {
            handle: runtime.handle().clone(),
            runtime: Some(runtime),
            idle: Arc::new(Semaphore::new(threads_max)),
            turns: SingleFlight::default(),
        }
    }

    async fn run<T: Send + 'static>(
        &self,
        tenant: Option<&TenantId>,
        action: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, EngineError> {
        let permit = match Arc::clone(&self.idle).try_acquire_owned() {
            Ok(permit) => permit,
            Err(_) => {
                let tenant = tenant.cloned();
                let _turn = self.turns.enter(&tenant).await;
                let idle = Arc::clone(&self.idle).acquire_owned();
                idle.await.map_err(|_| EngineError::Stopping)?
            }
        };
        let call = move || {
            let _permit = permit;
            action()
        };
        self.handle.spawn_blocking(call).await.map_err(call_failed)
    }
}

impl Drop for Threads {
    /// Running calls finish. The last owner may be a task, which must not wait for them.
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Executor {
    /// Creates a pool of up to `threads_max` low-priority threads, if `blocking` uses threads.
    pub fn new(blocking: Blocking, name: &'static str, threads_max: usize) -> Self {
        Self::on(blocking, name, threads_max, lower_thread_priority)
    }

    /// Creates the pool that reads files for calls: the journal, memories and the transcript index.
    pub(crate) fn readers(blocking: Blocking) -> Self {
        Self::new(blocking, "reader", READERS_MAX)
    }

    /// Like [`Self::new`], but with normal priority, for work that calls wait for.
    pub(crate) fn awaited(blocking: Blocking, name: &'static str, threads_max: usize) -> Self {
        Self::on(blocking, name, threads_max, || {})
    }

    fn on(blocking: Blocking, name: &'static str, threads_max: usize, begin: fn()) -> Self {
        Self(match blocking {
            Blocking::Threads => {
                ExecutorBackend::Threads(Arc::new(Threads::new(name, threads_max, begin)))
            }
            Blocking::Pool | Blocking::Inline | Blocking::InlineWithReadDelay(_) => {
                ExecutorBackend::Runtime(blocking)
            }
        })
    }

    /// Runs a blocking call for a tenant, or for the daemon itself if `None`.
    ///
    /// Fails if the call panicked. If the future is dropped before a thread is idle, the call does
    /// not run.
    pub async fn run<T: Send + 'static>(
        &self,
        tenant: Option<&TenantId>,
        action: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, EngineError> {
        match &self.0 {
            ExecutorBackend::Threads(threads) => threads.run(tenant, action).await,
            ExecutorBackend::Runtime(blocking) => blocking.run(action).await,
        }
    }

    /// Starts a blocking call of the daemon itself without waiting for it.
    ///
    /// It runs on the next idle thread, before the calls that wait.
    pub(crate) fn start(&self, action: impl FnOnce() + Send + 'static) {
        match &self.0 {
            ExecutorBackend::Threads(threads) => drop(threads.handle.spawn_blocking(action)),
            ExecutorBackend::Runtime(blocking) if blocking.is_inline() => action(),
            ExecutorBackend::Runtime(_) => drop(tokio::task::spawn_blocking(action)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Waker};
    use std::thread;

    use parking_lot::Mutex;
    use tokio::task::JoinSet;

    use super::*;

    fn threads(threads_max: usize) -> Executor {
        Executor::new(Blocking::Threads, "test", threads_max)
    }

    /// A call that reaches the first barrier when it starts, and waits for the second.
    fn blocking_call() -> (impl FnOnce() + Send + 'static, [Arc<Barrier>; 2]) {
        let barriers = [(); 2].map(|()| Arc::new(Barrier::new(2)));
        let [begins, ends] = barriers.clone();
        let call = move || {
            begins.wait();
            ends.wait();
        };
        (call, barriers)
    }

    fn is_pending(future: std::pin::Pin<&mut impl Future>) -> bool {
        let mut context = Context::from_waker(Waker::noop());
        future.poll(&mut context).is_pending()
    }

    #[tokio::test]
    async fn cancelled_call_does_not_run_and_is_dropped_at_once() {
        let threads = threads(1);
        let (call, [begun, over]) = blocking_call();
        let mut first = Box::pin(threads.run(None, call));
        assert!(is_pending(first.as_mut()));
        begun.wait();
        let held = Arc::new(());
        let holds = Arc::clone(&held);
        let mut second = Box::pin(threads.run(None, move || drop(holds)));
        assert!(is_pending(second.as_mut()));
        drop(second);
        assert_eq!(Arc::strong_count(&held), 1, "nothing holds it any more");
        over.wait();
        assert!(first.await.is_ok());
        assert!(threads.run(None, || {}).await.is_ok());
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn only_awaited_calls_run_at_normal_priority() {
        let niceness = || rustix::process::getpriority_process(None);
        let own = niceness().unwrap();
        let lowered = threads(1).run(None, niceness).await.unwrap();
        assert_eq!(lowered.unwrap(), (own + NICENESS).min(19));
        let awaited = Executor::awaited(Blocking::Threads, "test", 1);
        assert_eq!(awaited.run(None, niceness).await.unwrap().unwrap(), own);
    }

    #[tokio::test]
    async fn waiting_tenants_are_served_round_robin() {
        let threads = threads(1);
        let (call, [begun, over]) = blocking_call();
        let mut first = Box::pin(threads.run(None, call));
        assert!(is_pending(first.as_mut()));
        begun.wait();
        let served = Arc::new(Mutex::new(Vec::new()));
        let mut calls = JoinSet::new();
        for name in ["flood", "flood", "flood", "b", "c", "b"] {
            let (threads, served) = (threads.clone(), Arc::clone(&served));
            calls.spawn(async move {
                let tenant = TenantId::parse(name).unwrap();
                let call = move || served.lock().push(name);
                threads.run(Some(&tenant), call).await
            });
            // Lets it wait before the next one.
            tokio::task::yield_now().await;
        }
        over.wait();
        first.await.unwrap();
        assert!(calls.join_all().await.iter().all(Result::is_ok));
        assert_eq!(*served.lock(), ["flood", "b", "c", "flood", "b", "flood"]);
    }

    #[tokio::test]
    async fn calls_run_concurrently_up_to_limit_and_survive_panics() {
        let threads = threads(2);
        let panicked: Result<(), _> = threads
            .run(None, || std::panic::resume_unwind(Box::new("a test's")))
            .await;
        assert!(matches!(
            panicked,
            Err(EngineError::BlockingCallFailed { .. })
        ));
        let meeting = Arc::new(Barrier::new(2));
        let running = Arc::new(AtomicUsize::new(0));
        let meet = || {
            let (meeting, running) = (Arc::clone(&meeting), Arc::clone(&running));
            move || {
                let count = running.fetch_add(1, Ordering::SeqCst) + 1;
                meeting.wait();
                running.fetch_sub(1, Ordering::SeqCst);
                count
            }
        };
        let [one, two, three, four] = [(); 4].map(|()| threads.run(None, meet()));
        let (one, two, three, four) = tokio::join!(one, two, three, four);
        for count in [one, two, three, four] {
            assert!(count.unwrap() <= 2);
        }
        let name = threads.run(None, || thread::current().name().map(str::to_owned));
        assert_eq!(name.await.unwrap().as_deref(), Some("test"));
    }
}
