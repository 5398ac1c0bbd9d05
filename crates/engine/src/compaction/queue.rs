//! Bounded queue of requested compactions, deduplicated by session and fair to tenants.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use memoird_core::compaction::Trigger;
use memoird_core::ids::{SessionKey, TenantId};
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

use super::CompactionOutcome;
use super::near_limit::NearLimit;
use super::summarizer::Summarizer;
use crate::error::EngineError;
use crate::sessions::SessionRef;

/// Maximum queue length. A request that finds no room is repeated by the session's next call.
const WAITING_MAX: usize = 10_000;
/// Maximum queue length per tenant, so that others always find room.
const WAITING_TENANT_MAX: usize = 2_500;
/// How long a call waits for a summary of what its window would leave out.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// The queue of requested compactions.
#[derive(Debug, Default)]
pub(crate) struct CompactionQueue {
    queue: Mutex<Queue>,
    arrived: Notify,
    /// Notified when a compaction has finished.
    finished: Notify,
    is_local: AtomicBool,
}

#[derive(Debug, Default)]
struct Queue {
    /// Requests with a waiting caller come first.
    waiting: VecDeque<CompactionRequest>,
    /// Sessions with a queued request without a caller.
    known: HashSet<SessionKey>,
    by_tenant: HashMap<TenantId, usize>,
    /// Sessions whose requests were taken and are not finished.
    running: Vec<SessionKey>,
    /// Set once the worker has stopped.
    is_closed: bool,
}

/// A request that was taken from the queue. Dropping this marks it as finished.
#[derive(Debug)]
pub(super) struct RunningCompaction(Arc<CompactionQueue>, SessionKey);

impl Drop for RunningCompaction {
    fn drop(&mut self) {
        let mut queue = self.0.queue.lock();
        let mut running = queue.running.iter();
        if let Some(index) = running.position(|key| *key == self.1) {
            queue.running.swap_remove(index);
        }
        drop(queue);
        self.0.finished.notify_waiters();
    }
}

#[derive(Debug)]
pub(crate) struct CompactionRequest {
    pub(super) session: SessionRef,
    pub(crate) trigger: Trigger,
    /// Number of newest exchanges to retain, if the call specifies it.
    pub(super) keep_exchanges: Option<u32>,
    /// The window that triggered the request, if its provider can count tokens.
    pub(crate) near_limit: Option<NearLimit>,
    pub(super) reply: Option<Reply>,
}

pub(super) type Reply = oneshot::Sender<Result<CompactionOutcome, EngineError>>;

impl CompactionRequest {
    /// Creates a request without a waiting caller.
    pub(crate) fn new(session: SessionRef, trigger: Trigger) -> Self {
        Self {
            session,
            trigger,
            keep_exchanges: None,
            near_limit: None,
            reply: None,
        }
    }

    fn tenant(&self) -> &TenantId {
        &self.session.key.tenant
    }
}

impl CompactionQueue {
    /// Queues a request without a caller, unless the session has one queued or the queue is full.
    pub(crate) fn request(&self, request: CompactionRequest) {
        let mut queue = self.queue.lock();
        let key = request.session.key.clone();
        if !queue.has_room(request.tenant()) || !queue.known.insert(key) {
            return;
        }
        queue.count(request.tenant());
        queue.waiting.push_back(request);
        drop(queue);
        self.arrived.notify_one();
    }

    /// Queues a request with a caller, ahead of those without one.
    pub(super) fn request_now(&self, request: CompactionRequest) -> Result<(), EngineError> {
        let mut queue = self.queue.lock();
        if queue.is_closed {
            return Err(EngineError::Stopping);
        }
        if !queue.has_room(request.tenant()) {
            return Err(EngineError::CompactionRunning);
        }
        queue.count(request.tenant());
        let index = queue.waiting.partition_point(|known| known.reply.is_some());
        queue.waiting.insert(index, request);
        drop(queue);
        self.arrived.notify_one();
        Ok(())
    }

    pub(super) fn note_summarizer(&self, summarizer: Option<&Arc<dyn Summarizer>>) {
        let is_local = summarizer.is_some_and(|summarizer| !summarizer.is_remote());
        self.is_local.store(is_local, Ordering::Relaxed);
    }

    /// Whether summaries take only milliseconds, because they are made in this process.
    pub(crate) fn is_local(&self) -> bool {
        self.is_local.load(Ordering::Relaxed)
    }

    /// Requests a summary ahead of those without a caller, and waits for it up to [`WAIT_MAX`].
    ///
    /// The result is visible in the session.
    pub(crate) async fn run_now(&self, mut request: CompactionRequest) {
        let (reply, answer) = oneshot::channel();
        request.reply = Some(reply);
        if self.request_now(request).is_ok() {
            // After a timeout, the summary completes anyway or is dropped without effect.
            let _ = tokio::time::timeout(WAIT_MAX, answer).await;
        }
    }

    pub(super) fn pending(&self) -> usize {
        let queue = self.queue.lock();
        queue.waiting.len() + queue.running.len()
    }

    /// Waits up to [`WAIT_MAX`] for a running compaction of a session.
    pub(crate) async fn wait_for(&self, session: &SessionRef) {
        let is_done = async {
            loop {
                let finished = self.finished.notified();
                if !self.queue.lock().running.contains(&session.key) {
                    return;
                }
                finished.await;
            }
        };
        let _ = tokio::time::timeout(WAIT_MAX, is_done).await;
    }

    pub(super) async fn idle(&self) {
        loop {
            let finished = self.finished.notified();
            if self.pending() == 0 {
                return;
            }
            finished.await;
        }
    }

    pub(super) async fn arrived(&self) {
        self.arrived.notified().await;
    }

    /// Takes the first request of the tenant with the fewest running compactions.
    ///
    /// Skips tenants with `tenant_max` or more.
    pub(super) fn take(
        self: &Arc<Self>,
        tenant_max: usize,
    ) -> Option<(CompactionRequest, RunningCompaction)> {
        let mut queue = self.queue.lock();
        let mut running: HashMap<&TenantId, usize> = HashMap::new();
        for key in &queue.running {
            *running.entry(&key.tenant).or_default() += 1;
        }
        let load = |request: &CompactionRequest| running.get(request.tenant()).copied();
        let loads = queue.waiting.iter().map(load);
        let (index, _) = loads
            .map(Option::unwrap_or_default)
            .enumerate()
            .filter(|(_, load)| *load < tenant_max)
            .min_by_key(|(_, load)| *load)?;
        let request = queue.waiting.remove(index)?;
        queue.discount(request.tenant());
        if request.reply.is_none() {
            queue.known.remove(&request.session.key);
        }
        let key = request.session.key.clone();
        queue.running.push(key.clone());
        Some((request, RunningCompaction(Arc::clone(self), key)))
    }

    /// Closes the queue at shutdown. Queued requests are dropped, later ones rejected.
    pub(super) fn close(&self) {
        let mut queue = self.queue.lock();
        let running = std::mem::take(&mut queue.running);
        let dropped = std::mem::replace(
            &mut *queue,
            Queue {
                is_closed: true,
                running,
                ..Queue::default()
            },
        );
        drop(queue);
        drop(dropped);
    }
}

impl Queue {
    fn has_room(&self, tenant: &TenantId) -> bool {
        let of_tenant = self.by_tenant.get(tenant).copied().unwrap_or(0);
        !self.is_closed && self.waiting.len() < WAITING_MAX && of_tenant < WAITING_TENANT_MAX
    }

    fn count(&mut self, tenant: &TenantId) {
        *self.by_tenant.entry(tenant.clone()).or_default() += 1;
    }

    fn discount(&mut self, tenant: &TenantId) {
        if let Some(count) = self.by_tenant.get_mut(tenant) {
            *count -= 1;
            if *count == 0 {
                self.by_tenant.remove(tenant);
            }
        }
    }
}
