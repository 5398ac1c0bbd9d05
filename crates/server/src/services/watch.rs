//! WatchEvents. A watcher has a small channel, and is cut off if it reads nothing for too long.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use memoird_core::ids::TenantId;
use memoird_engine::{Engine, EventCursor, WatchFrom, WatchScope, Watcher};
use memoird_proto::v1;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::Status;

use crate::keyring::Caller;
use crate::process;
use crate::rpc::Role;
use crate::wire::event::{self, Epoch, EventView};
use crate::wire::refusal::Refusal;
use crate::wire::status;

/// Maximum concurrent watchers of a tenant.
const WATCHERS_MAX: usize = 64;
/// Capacity of a watcher's channel, not counted in `limits.memory`. Other events stay in the log.
const CHANNEL_EVENTS_MAX: usize = 8;
/// How long a watcher may leave an event unread.
const UNREAD_TIME_MAX: Duration = Duration::from_secs(30);

/// An event, or the error that ends the stream.
type Item = Result<v1::WatchEventsResponse, Status>;

pub(crate) type EventStream = Pin<Box<dyn Stream<Item = Item> + Send>>;

#[derive(Clone, Debug)]
pub(crate) struct Watchers {
    engine: Engine,
    tasks: TaskTracker,
    stop: CancellationToken,
    epoch: Epoch,
    counts: WatcherCounts,
}

/// Number of watchers by tenant, without zeros.
type WatcherCounts = Arc<Mutex<HashMap<TenantId, usize>>>;

/// Counts a watcher until it is dropped.
struct WatcherGuard {
    tenant: TenantId,
    counts: WatcherCounts,
}

impl Watchers {
    pub(crate) fn new(engine: Engine, stop: CancellationToken) -> Self {
        Self {
            engine,
            tasks: TaskTracker::new(),
            stop,
            epoch: Epoch::begin(process::wall_clock()),
            counts: Arc::default(),
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.counts.lock().values().sum()
    }

    /// Starts a stream of events.
    pub(crate) fn watch(
        &self,
        caller: &Caller,
        request: &v1::WatchEventsRequest,
    ) -> Result<EventStream, Refusal> {
        if request.all_tenants && caller.role != Role::Admin {
            return Err(status::role_required());
        }
        let scope = if request.all_tenants {
            WatchScope::All
        } else {
            WatchScope::Tenant(Arc::clone(&caller.tenant))
        };
        let from = Self::from(request)?;
        let counted = self.add_watcher(&caller.tenant.id)?;
        let watcher = self.engine.events.watch(scope, &from);
        // One slot more, for the error that ends the stream.
        let (sender, receiver) = mpsc::channel(CHANNEL_EVENTS_MAX + 1);
        let last_word = sender.clone().try_reserve_owned();
        let (stop, revoked) = (self.stop.clone(), Arc::clone(&caller.revoked));
        let view = EventView {
            epoch: self.epoch,
            role: caller.role,
        };
        self.tasks.spawn(async move {
            let error = send_all(watcher, view, &sender, &stop, &revoked).await;
            if let (Some(error), Ok(last_word)) = (error, last_word) {
                last_word.send(Err(error.into()));
            }
        });
        // Counted while the stream exists, because an unread one uses memory as well.
        let events = ReceiverStream::new(receiver).map(move |item| {
            let _counted = &counted;
            item
        });
        Ok(Box::pin(events))
    }

    fn from(request: &v1::WatchEventsRequest) -> Result<WatchFrom, Refusal> {
        if request.after_cursor.is_empty() {
            return Ok(WatchFrom::Now);
        }
        match request.after_cursor.parse::<EventCursor>() {
            Ok(cursor) if !request.all_tenants => Ok(WatchFrom::Cursor(cursor)),
            Ok(_) => Err(status::cursor_with_others()),
            Err(_) => Err(status::cursor_invalid()),
        }
    }

    fn add_watcher(&self, tenant: &TenantId) -> Result<WatcherGuard, Refusal> {
        let mut counts = self.counts.lock();
        let count = counts.entry(tenant.clone()).or_default();
        if *count >= WATCHERS_MAX {
            return Err(status::too_many_watchers());
        }
        *count += 1;
        Ok(WatcherGuard {
            tenant: tenant.clone(),
            counts: Arc::clone(&self.counts),
        })
    }
}

impl Drop for WatcherGuard {
    fn drop(&mut self) {
        let mut counts = self.counts.lock();
        if let Some(count) = counts.get_mut(&self.tenant) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.tenant);
            }
        }
    }
}

/// Sends events, and returns the error for the client, if any.
///
/// Ends when the client is gone or reads nothing for too long, the daemon stops, or the keys
/// change.
async fn send_all(
    mut watcher: Watcher,
    view: EventView,
    sender: &mpsc::Sender<Item>,
    stop: &CancellationToken,
    revoked: &CancellationToken,
) -> Option<Refusal> {
    loop {
        let next = async {
            let seen = watcher.next().await;
            let event = event::event(seen, watcher.cursor(), view);
            sender.send_timeout(Ok(event), UNREAD_TIME_MAX).await
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
