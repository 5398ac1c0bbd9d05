//! Watching events. Watchers read the tenants' event logs at their own pace. Nothing waits for
//! them, and one that is too slow learns how many events it missed.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use memoird_core::ids::{Generation, SessionId, TenantId};
use memoird_core::time::Timestamp;

use crate::events::{Event, EventKind, EventSignal};
use crate::tenants::{Tenant, Tenants};

/// Whose events are watched.
#[derive(Clone, Debug)]
pub enum WatchScope {
    /// One tenant's.
    Tenant(Arc<Tenant>),
    /// Everybody's, for an operator.
    All,
}

/// What a watcher reads.
#[derive(Clone, Debug)]
pub enum WatchItem {
    /// Something happened.
    Event {
        /// To a session of this tenant.
        tenant: Arc<Tenant>,
        /// What.
        event: Event,
    },
    /// Events left the log before the watcher read them.
    Missed {
        /// Events of this tenant.
        tenant: Arc<Tenant>,
        /// How many.
        count: u64,
    },
}

/// The events of all tenants.
#[derive(Clone, Debug)]
pub struct Events {
    tenants: Arc<Tenants>,
    signal: Arc<EventSignal>,
}

/// Reads events as they come.
#[derive(Debug)]
pub struct Watcher {
    events: Events,
    scope: WatchScope,
    /// The last event of each tenant that was read.
    positions: BTreeMap<TenantId, (Arc<Tenant>, u64)>,
    ready: VecDeque<WatchItem>,
}

impl Events {
    pub(crate) fn new(tenants: Arc<Tenants>, signal: Arc<EventSignal>) -> Self {
        Self { tenants, signal }
    }

    /// Publishes an event of a session.
    pub fn publish(
        &self,
        tenant: &Tenant,
        at: Timestamp,
        session: &SessionId,
        generation: Generation,
        kind: EventKind,
    ) {
        tenant.events.push(at, session, generation, kind);
        self.signal.notify();
    }

    /// Watches what happens from now on, or, of one tenant, after the event of this id.
    pub fn watch(&self, scope: WatchScope, after: Option<u64>) -> Watcher {
        let (tenants, after) = match &scope {
            WatchScope::Tenant(tenant) => (vec![Arc::clone(tenant)], after),
            WatchScope::All => (self.tenants.all(), None),
        };
        self.signal.add_watcher();
        let positions = tenants.into_iter().map(|tenant| {
            let last = tenant.events.last_id();
            // An id from before the daemon's start means nothing: then all of them are new.
            let position = after.map_or(last, |after| if after > last { 0 } else { after });
            (tenant.id.clone(), (tenant, position))
        });
        Watcher {
            events: self.clone(),
            scope,
            positions: positions.collect(),
            ready: VecDeque::new(),
        }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.events.signal.remove_watcher();
    }
}

impl Watcher {
    /// Waits for the next event, or for the news that some were missed. Cancelling the wait
    /// loses no event.
    pub async fn next(&mut self) -> WatchItem {
        let signal = Arc::clone(&self.events.signal);
        loop {
            let published = signal.notified();
            tokio::pin!(published);
            published.as_mut().enable();
            if self.ready.is_empty() {
                self.read();
            }
            if let Some(item) = self.ready.pop_front() {
                return item;
            }
            published.await;
        }
    }

    fn read(&mut self) {
        if matches!(self.scope, WatchScope::All) {
            for tenant in self.events.tenants.all() {
                self.positions
                    .entry(tenant.id.clone())
                    .or_insert((tenant, 0));
            }
        }
        for (tenant, position) in self.positions.values_mut() {
            let (missed, events) = tenant.events.after(*position);
            if missed > 0 {
                self.ready.push_back(WatchItem::Missed {
                    tenant: Arc::clone(tenant),
                    count: missed,
                });
            }
            for event in events {
                *position = event.id;
                self.ready.push_back(WatchItem::Event {
                    tenant: Arc::clone(tenant),
                    event,
                });
            }
        }
    }
}
