//! A bounded pool of threads for blocking calls, with a queue that is fair to tenants.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use memoird_core::ids::TenantId;
use tokio::sync::oneshot;
use tracing::debug;

use super::fair_queue::{FairQueue, Number};
use crate::error::EngineError;

/// Maximum queued calls per tenant. Exceeds the number of calls that a daemon has in flight.
const CALLS_WAITING_MAX: usize = 16_384;

/// A thread pool. Threads start on demand, and exit after the pool is dropped.
#[derive(Debug)]
pub(crate) struct FairThreads {
    shared: Arc<PoolInner>,
}

#[derive(Debug)]
struct PoolInner {
    name: &'static str,
    threads_max: usize,
    /// Runs first on each thread.
    begin: fn(),
    state: Mutex<State>,
    /// Notified when a call is queued or the pool is closed.
    changed: Condvar,
}

struct State {
    /// Queued calls. Those without a tenant share one queue.
    calls: FairQueue<Option<TenantId>, Call>,
    threads: usize,
    idle: usize,
    is_closed: bool,
}

type Call = Box<dyn FnOnce() + Send>;

/// A caller waiting for its result. If it is dropped, its call is removed from the queue.
struct Caller<'a> {
    shared: &'a PoolInner,
    tenant: Option<TenantId>,
    /// `None` once the call has completed.
    number: Option<Number>,
}

impl Drop for Caller<'_> {
    fn drop(&mut self) {
        let Some(number) = self.number else { return };
        let call = self.shared.lock().calls.remove(&self.tenant, number);
        // Drop the call's captures only after the queue's lock is released.
        drop(call);
    }
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State")
            .field("calls", &self.calls.len())
            .field("threads", &self.threads)
            .finish_non_exhaustive()
    }
}

impl FairThreads {
    /// Creates a pool of up to `threads_max` threads. Each runs `begin` first.
    pub(super) fn new(name: &'static str, threads_max: usize, begin: fn()) -> Self {
        let state = State {
            calls: FairQueue::new(CALLS_WAITING_MAX),
            threads: 0,
            idle: 0,
            is_closed: false,
        };
        let shared = PoolInner {
            name,
            threads_max: threads_max.max(1),
            begin,
            state: Mutex::new(state),
            changed: Condvar::new(),
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Runs a call for a tenant, or for the daemon itself if `None`.
    ///
    /// If the future is dropped while the call is queued, the call is removed from the queue. Fails
    /// if too many calls are queued, the call panicked, or no thread could be started.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        tenant: Option<&TenantId>,
        action: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, EngineError> {
        let (reply, receiver) = oneshot::channel();
        let call = move || {
            if !reply.is_closed() {
                let outcome = catch_unwind(AssertUnwindSafe(action));
                // The caller may have been cancelled.
                let _ = reply.send(outcome);
            }
        };
        let number = self.push(tenant, Box::new(call))?;
        let mut caller = Caller {
            shared: &self.shared,
            tenant: tenant.cloned(),
            number: Some(number),
        };
        let answer = receiver.await;
        caller.number = None;
        match answer {
            Ok(Ok(outcome)) => Ok(outcome),
            Ok(Err(_)) => Err(call_failed("a blocking call panicked".to_owned())),
            Err(_) => Err(EngineError::Stopping),
        }
    }

    /// Starts a call of the daemon itself without waiting for it.
    pub(super) fn start(&self, action: impl FnOnce() + Send + 'static) {
        let call = move || drop(catch_unwind(AssertUnwindSafe(action)));
        if let Err(error) = self.push(None, Box::new(call)) {
            debug!(%error, "an internal call was dropped: its queue is full");
        }
    }

    fn push(&self, tenant: Option<&TenantId>, call: Call) -> Result<Number, EngineError> {
        let mut state = self.shared.lock();
        let number = state
            .calls
            .push(tenant.cloned(), call)
            .ok_or(EngineError::JournalBusy)?;
        let needs_thread = state.calls.len() > state.idle;
        if needs_thread && state.threads < self.shared.threads_max {
            state.threads += 1;
            drop(state);
            if let Err(error) = self.start_thread() {
                self.shared.lock().calls.remove(&tenant.cloned(), number);
                return Err(error);
            }
            return Ok(number);
        }
        drop(state);
        self.shared.changed.notify_one();
        Ok(number)
    }

    /// Starts a thread. Fails only if no thread of the pool is running.
    fn start_thread(&self) -> Result<(), EngineError> {
        let shared = Arc::clone(&self.shared);
        let started: io::Result<_> = thread::Builder::new()
            .name(shared.name.to_owned())
            .spawn(move || shared.run_calls());
        let Err(error) = started else {
            return Ok(());
        };
        let mut state = self.shared.lock();
        state.threads -= 1;
        match state.threads {
            0 => Err(call_failed(format!("no thread can be started: {error}"))),
            _ => Ok(()),
        }
    }
}

impl Drop for FairThreads {
    fn drop(&mut self) {
        self.shared.lock().is_closed = true;
        self.shared.changed.notify_all();
    }
}

impl PoolInner {
    fn run_calls(&self) {
        (self.begin)();
        while let Some(call) = self.next_call() {
            call();
        }
    }

    /// Waits for a call. Returns `None` once the pool is closed and the queue is empty.
    fn next_call(&self) -> Option<Call> {
        let mut state = self.lock();
        loop {
            if let Some(call) = state.calls.pop() {
                return Some(call);
            }
            if state.is_closed {
                return None;
            }
            state.idle += 1;
            let waited = self.changed.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
            state.idle -= 1;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn call_failed(detail: String) -> EngineError {
    EngineError::BlockingCallFailed { detail }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::task::{Context, Waker};

    use super::*;

    #[tokio::test]
    async fn cancelled_call_leaves_queue_at_once() {
        let threads = FairThreads::new("test", 1, || {});
        let begun = Arc::new(Barrier::new(2));
        let over = Arc::new(Barrier::new(2));
        let [begins, ends] = [&begun, &over].map(Arc::clone);
        let first = move || {
            begins.wait();
            ends.wait();
        };
        threads.push(None, Box::new(first)).expect("room");
        begun.wait();
        let held = Arc::new(());
        let holds = Arc::clone(&held);
        let mut second = Box::pin(threads.run(None, move || drop(holds)));
        let polled = second
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()));
        assert!(polled.is_pending());
        assert_eq!(threads.shared.lock().calls.len(), 1);
        drop(second);
        assert_eq!(Arc::strong_count(&held), 1, "nothing holds it any more");
        assert_eq!(threads.shared.lock().calls.len(), 0);
        over.wait();
    }

    #[tokio::test]
    async fn calls_run_concurrently_up_to_limit_and_survive_panics() {
        let threads = FairThreads::new("test", 2, || {});
        let panicked: Result<(), _> = threads
            .run(None, || std::panic::resume_unwind(Box::new("a test's")))
            .await;
        assert!(matches!(
            panicked,
            Err(EngineError::BlockingCallFailed { .. })
        ));
        let meeting = Arc::new(Barrier::new(2));
        let meet = |meeting: &Arc<Barrier>| {
            let meeting = Arc::clone(meeting);
            move || {
                meeting.wait();
            }
        };
        let (one, other) = tokio::join!(
            threads.run(None, meet(&meeting)),
            threads.run(None, meet(&meeting))
        );
        assert!(one.is_ok() && other.is_ok());
        let name = threads.run(None, || thread::current().name().map(str::to_owned));
        assert_eq!(name.await.unwrap().as_deref(), Some("test"));
        assert!(threads.shared.lock().threads <= 2);
    }
}
