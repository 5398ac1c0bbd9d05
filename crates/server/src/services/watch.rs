//! WatchEvents: what happens, to whoever watches. A watcher gets its events through a
//! small channel of its own; one that takes nothing for too long is dropped.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use memoird_core::ids::TenantId;
use memoird_engine::{Engine, WatchScope, Watcher};
use memoird_proto::v1;
use tokio::sync::mpsc;
use tokio_stream::Stream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::Status;

use crate::auth::{Caller, Role};
use crate::wire::{status, to};

/// Those who watch at the same time for one tenant.
const WATCHERS_MAX: usize = 64;
/// Events on their way to one watcher.
const BUFFERED_MAX: usize = 64;
/// How long a watcher may take nothing while something waits for it.
const PATIENCE: Duration = Duration::from_secs(30);

/// All who watch.
#[derive(Clone, Debug)]
pub(crate) struct Watching {
    engine: Engine,
    tasks: TaskTracker,
    stop: CancellationToken,
    counts: Arc<Mutex<HashMap<TenantId, usize>>>,
}

/// A place among those who watch for a tenant.
struct Place {
    tenant: TenantId,
    counts: Arc<Mutex<HashMap<TenantId, usize>>>,
}

/// The stream of one watcher.
pub(crate) struct EventStream {
    events: mpsc::Receiver<v1::WatchEventsResponse>,
    /// Why it ends, where it does before the client wants it to.
    farewell: Arc<Mutex<Option<Status>>>,
    is_over: AtomicBool,
    /// As long as the stream is there: one that nobody reads costs memory, too.
    _place: Place,
}

impl Watching {
    pub(crate) fn new(engine: Engine, tasks: TaskTracker, stop: CancellationToken) -> Self {
        Self {
            engine,
            tasks,
            stop,
            counts: Arc::default(),
        }
    }

    /// How many watch.
    pub(crate) fn count(&self) -> usize {
        lock(&self.counts).values().sum()
    }

    /// Starts to watch.
    pub(crate) fn watch(
        &self,
        caller: &Caller,
        request: &v1::WatchEventsRequest,
    ) -> Result<EventStream, Status> {
        let watched = match request.all_tenants {
            true if caller.role != Role::Admin => return Err(status::role_required()),
            true => WatchScope::All,
            false => WatchScope::Tenant(Arc::clone(&caller.tenant)),
        };
        let place = self.take_place(&caller.tenant.id)?;
        let after = Some(request.after_event_id).filter(|id| *id > 0);
        let watcher = self.engine.events.watch(watched, after);
        let (sender, events) = mpsc::channel(BUFFERED_MAX);
        let farewell = Arc::default();
        let told = Arc::clone(&farewell);
        let (stop, revoked) = (self.stop.clone(), Arc::clone(&caller.revoked));
        self.tasks.spawn(async move {
            // Said before the channel is closed: whoever sees it closed looks here.
            *lock(&told) = pump(watcher, &sender, stop, &revoked).await;
            drop(sender);
        });
        let is_over = AtomicBool::new(false);
        Ok(EventStream {
            events,
            farewell,
            is_over,
            _place: place,
        })
    }

    fn take_place(&self, tenant: &TenantId) -> Result<Place, Status> {
        let mut counts = lock(&self.counts);
        let count = counts.entry(tenant.clone()).or_default();
        if *count >= WATCHERS_MAX {
            return Err(status::too_many_watchers());
        }
        *count += 1;
        Ok(Place {
            tenant: tenant.clone(),
            counts: Arc::clone(&self.counts),
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut counts = lock(&self.counts);
        if let Some(count) = counts.get_mut(&self.tenant) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.tenant);
            }
        }
    }
}

/// Hands events over until the client goes, the daemon stops, or nobody takes them. Gives
/// what to say at the end.
async fn pump(
    mut watcher: Watcher,
    sender: &mpsc::Sender<v1::WatchEventsResponse>,
    stop: CancellationToken,
    revoked: &CancellationToken,
) -> Option<Status> {
    loop {
        let next = async {
            let event = to::event(watcher.next().await);
            sender.send_timeout(event, PATIENCE).await
        };
        let sent = tokio::select! {
            () = stop.cancelled() => return Some(status::stopping()),
            () = revoked.cancelled() => return Some(status::keys_changed()),
            () = sender.closed() => return None,
            sent = next => sent,
        };
        match sent {
            Ok(()) => {}
            Err(mpsc::error::SendTimeoutError::Closed(_)) => return None,
            Err(mpsc::error::SendTimeoutError::Timeout(_)) => {
                return Some(status::watcher_too_slow());
            }
        }
    }
}

impl Stream for EventStream {
    type Item = Result<v1::WatchEventsResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        match self.events.poll_recv(cx) {
            Poll::Ready(None) if !self.is_over.swap(true, Ordering::Relaxed) => {
                Poll::Ready(lock(&self.farewell).take().map(Err))
            }
            Poll::Ready(event) => Poll::Ready(event.map(Ok)),
            Poll::Pending => Poll::Pending,
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
