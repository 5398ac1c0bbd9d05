//! Background workers: bounded steps under one supervisor.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;
use tracing::{Instrument, error, info_span, warn};

use crate::cluster::Cluster;
use crate::error::EngineError;

/// A background worker, driven by the supervisor.
pub trait Worker: Send + 'static {
    /// Name in logs and metrics.
    fn name(&self) -> &'static str;

    /// Waits until there is work. Cancelled when the daemon stops.
    fn wait(&mut self) -> impl Future<Output = ()> + Send;

    /// Does one bounded unit of work. Never cancelled.
    ///
    /// # Errors
    /// If the step failed. The next step runs after an exponential backoff.
    fn step(&mut self) -> impl Future<Output = Result<(), WorkError>> + Send;

    /// Does the last unit of work when the daemon stops.
    fn finish(&mut self) -> impl Future<Output = ()> + Send {
        async {}
    }
}

/// A worker that runs only on the cluster's leader.
pub(crate) struct LeaderOnly<W> {
    worker: W,
    cluster: Option<Cluster>,
}

impl<W> LeaderOnly<W> {
    /// Without a cluster, the worker always runs.
    pub(crate) fn new(worker: W, cluster: Option<Cluster>) -> Self {
        Self { worker, cluster }
    }
}

impl<W: Worker> Worker for LeaderOnly<W> {
    fn name(&self) -> &'static str {
        self.worker.name()
    }

    async fn wait(&mut self) {
        if let Some(cluster) = &mut self.cluster {
            cluster.lead().await;
        }
        self.worker.wait().await;
    }

    async fn step(&mut self) -> Result<(), WorkError> {
        match &self.cluster {
            Some(cluster) if !cluster.leads() => Ok(()),
            _ => self.worker.step().await,
        }
    }

    async fn finish(&mut self) {
        self.worker.finish().await;
    }
}

/// The error of a worker's step, for the log.
#[derive(Debug)]
pub struct WorkError(pub String);

impl From<EngineError> for WorkError {
    fn from(error: EngineError) -> Self {
        Self(error.detail())
    }
}

#[derive(Debug)]
pub struct WorkerStatus {
    pub name: &'static str,
    steps: AtomicU64,
    failures: AtomicU64,
}

/// Runs the background workers.
#[derive(Debug, Default)]
pub(crate) struct Supervisor {
    pub(crate) stop: CancellationToken,
    /// Cancelled when a worker has panicked. The process must exit then.
    pub(crate) broken: CancellationToken,
    tasks: TaskTracker,
    pub(crate) statuses: Mutex<Vec<Arc<WorkerStatus>>>,
}

const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(30);

impl WorkerStatus {
    /// Number of steps completed, including failed ones.
    pub fn steps(&self) -> u64 {
        self.steps.load(Ordering::Relaxed)
    }

    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }
}

impl Supervisor {
    /// Runs a worker until the daemon stops.
    pub(crate) fn run(&self, worker: impl Worker) {
        let (alarm, task) = self.prepare(worker);
        self.tasks.spawn(async move {
            task.await;
            alarm.disarm();
        });
    }

    /// Runs a worker on a dedicated thread.
    ///
    /// For workers whose steps block: they would delay other tasks of a runtime thread.
    pub(crate) fn run_on_thread(&self, worker: impl Worker) {
        let name = worker.name();
        let (alarm, task) = self.prepare(worker);
        // Timers and spawned tasks use the runtime.
        let (runtime, tracked) = (Handle::current(), self.tasks.token());
        let started = thread::Builder::new().name(name.to_owned()).spawn(move || {
            let _entered = runtime.enter();
            block_on(task);
            alarm.disarm();
            drop(tracked);
        });
        if let Err(error) = started {
            error!(%error, name, "could not start a thread for a worker");
        }
    }

    /// Returns the worker's main loop, and a guard that reports its panic.
    ///
    /// Dropping the guard, as an unwinding panic does, cancels `broken`. Disarm it after an orderly
    /// end.
    fn prepare<W: Worker>(
        &self,
        worker: W,
    ) -> (DropGuard, impl Future<Output = ()> + Send + use<W>) {
        let name = worker.name();
        let status = Arc::new(WorkerStatus {
            name,
            steps: AtomicU64::new(0),
            failures: AtomicU64::new(0),
        });
        self.statuses.lock().push(Arc::clone(&status));
        let task = drive(worker, status, self.stop.clone()).instrument(info_span!("worker", name));
        (self.broken.clone().drop_guard(), task)
    }

    /// Stops all workers and waits for their last unit of work.
    pub(crate) async fn stop(&self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

async fn drive(mut worker: impl Worker, status: Arc<WorkerStatus>, stop: CancellationToken) {
    let mut pause = PAUSE_MIN;
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => break,
            () = worker.wait() => {}
        }
        let outcome = worker.step().await;
        status.steps.fetch_add(1, Ordering::Relaxed);
        let Err(WorkError(detail)) = outcome else {
            pause = PAUSE_MIN;
            continue;
        };
        status.failures.fetch_add(1, Ordering::Relaxed);
        warn!(detail, pause = ?pause, "a background step failed and will be retried");
        tokio::select! {
            biased;
            () = stop.cancelled() => break,
            () = tokio::time::sleep(pause) => {}
        }
        pause = (pause * 2).min(PAUSE_MAX);
    }
    worker.finish().await;
}

/// A waker that unparks a thread.
struct ThreadWaker(Thread);

impl Wake for ThreadWaker {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future to completion on the calling thread, which is parked between polls.
fn block_on(task: impl Future<Output = ()>) {
    let mut task = pin!(task);
    let waker = Waker::from(Arc::new(ThreadWaker(thread::current())));
    while task.as_mut().poll(&mut Context::from_waker(&waker)) == Poll::Pending {
        thread::park();
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        if self.broken.is_cancelled() {
            error!("a background worker panicked");
        }
    }
}
