//! Watching of session events.
//!
//! Watchers read the event logs at their own pace and never block a publisher. A watcher that falls
//! behind receives the number of events it missed.

mod cursor;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use memoird_core::ids::{Generation, SessionId, TenantId};
use memoird_core::time::{Steady, Timestamp};

pub use self::cursor::{CursorInvalid, EventCursor};
use crate::cluster::Cluster;
use crate::events::{Event, EventKind, EventSignal, LoggedEvent};
use crate::machine::Machine;
use crate::tenants::{Tenant, Tenants};

#[derive(Clone, Debug)]
pub enum WatchScope {
    Tenant(Arc<Tenant>),
    /// All tenants, for operators.
    All,
}

#[derive(Clone, Debug)]
pub enum WatchItem {
    Event {
        tenant: Arc<Tenant>,
        event: Event,
    },
    /// Events were removed from the log before the watcher read them.
    Missed {
        tenant: Arc<Tenant>,
        count: u64,
    },
}

/// Access to the events of all tenants.
#[derive(Clone, Debug)]
pub struct Events {
    pub(crate) tenants: Arc<Tenants>,
    pub(crate) signal: Arc<EventSignal>,
    machine: Arc<dyn Machine>,
    /// Number of this daemon in the exchange of events.
    node: u128,
    /// Start time of this daemon.
    started_at: Timestamp,
    /// Whether other daemons share the journal.
    is_shared: bool,
}

#[derive(Clone, Debug)]
pub enum WatchFrom {
    /// Only new events.
    Now,
    /// All events in the log.
    Start,
    Cursor(EventCursor),
}

/// A stream of events.
#[derive(Debug)]
pub struct Watcher {
    events: Events,
    scope: WatchScope,
    positions: BTreeMap<TenantId, Position>,
    ready: VecDeque<(TenantId, LogRead)>,
}

#[derive(Debug)]
enum LogRead {
    Event(LoggedEvent),
    /// Number of events removed from the log before they were read.
    Missed(u64),
}

#[derive(Debug)]
struct Position {
    tenant: Arc<Tenant>,
    id: u64,
    cursor: EventCursor,
    /// Earlier events, to be skipped.
    start_bound: StartBound,
    /// Daemons with an unknown number of missed events. Their next gap is not reported again.
    unknown_gaps: BTreeSet<u128>,
}

/// Which events precede a watcher's first one.
#[derive(Clone, Copy, Debug)]
enum StartBound {
    None,
    /// Events of other daemons before this time on the shared steady clock.
    SteadyTime(Steady),
    /// Events before this wall-clock time, from daemons that are not in the cursor.
    WallTime(Timestamp),
}

/// How an event relates to the watcher's position.
enum EventOrder {
    Next,
    /// Already delivered, or before the start.
    Duplicate,
    /// Number of missed events before it.
    Gap(u64),
}

impl Events {
    pub(crate) fn new(
        tenants: Arc<Tenants>,
        signal: Arc<EventSignal>,
        machine: Arc<dyn Machine>,
        cluster: Option<&Cluster>,
    ) -> Self {
        Self {
            tenants,
            signal,
            // Without a cluster, a random number identifies this start.
            node: cluster.map_or_else(|| machine.random(), Cluster::node),
            started_at: machine.now().wall,
            is_shared: cluster.is_some(),
            machine,
        }
    }

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

    /// Starts a watcher. `from` is ignored for all tenants: they are watched from now on.
    pub fn watch(&self, scope: WatchScope, from: &WatchFrom) -> Watcher {
        let tenants = match &scope {
            WatchScope::Tenant(tenant) => vec![Arc::clone(tenant)],
            WatchScope::All => self.tenants.all(),
        };
        let from = match &scope {
            WatchScope::Tenant(_) => from,
            WatchScope::All => &WatchFrom::Now,
        };
        let positions = tenants.into_iter().map(|tenant| {
            let position = self.position(Arc::clone(&tenant), from);
            (tenant.id.clone(), position)
        });
        let watcher = Watcher {
            events: self.clone(),
            positions: positions.collect(),
            scope,
            ready: VecDeque::new(),
        };
        self.signal.add_watcher(watcher.scope.tenant());
        watcher
    }

    fn position(&self, tenant: Arc<Tenant>, from: &WatchFrom) -> Position {
        let log = &tenant.events;
        let last = log.last_id();
        let now = self.machine.now();
        let (id, start_bound) = match from {
            WatchFrom::Now => (last, StartBound::SteadyTime(now.steady)),
            WatchFrom::Start => (0, StartBound::None),
            WatchFrom::Cursor(cursor) => {
                let early = cursor.at.as_ms().saturating_sub(CLOCK_SKEW_MAX_MS);
                (
                    log.last_removed_id(),
                    StartBound::WallTime(Timestamp::from_ms(early)),
                )
            }
        };
        let cursor = match from {
            WatchFrom::Cursor(cursor) => cursor.clone(),
            WatchFrom::Start => EventCursor::at(now.wall),
            WatchFrom::Now => {
                let mut cursor = EventCursor::at(now.wall);
                let (own, of_others) = log.numbers();
                let known = of_others.into_iter().chain([(self.node, own)]);
                known.for_each(|(node, number)| cursor.set(node, number));
                cursor
            }
        };
        Position {
            tenant,
            id,
            cursor,
            start_bound,
            unknown_gaps: BTreeSet::new(),
        }
    }
}

/// Assumed maximum clock difference between daemons, where only wall clocks order events.
const CLOCK_SKEW_MAX_MS: i64 = 2_000;

impl WatchScope {
    fn tenant(&self) -> Option<TenantId> {
        match self {
            Self::Tenant(tenant) => Some(tenant.id.clone()),
            Self::All => None,
        }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.events.signal.remove_watcher(self.scope.tenant());
    }
}

impl Watcher {
    /// Waits for the next event, or for the number of missed ones. Cancel safe.
    pub async fn next(&mut self) -> WatchItem {
        let (signal, scope) = (Arc::clone(&self.events.signal), self.scope.clone());
        loop {
            let published = match &scope {
                WatchScope::Tenant(tenant) => tenant.events.published.notified(),
                WatchScope::All => signal.published.notified(),
            };
            tokio::pin!(published);
            published.as_mut().enable();
            if self.ready.is_empty() {
                self.read();
            }
            if let Some(item) = self.pop() {
                return item;
            }
            if !self.is_behind() {
                published.await;
            }
        }
    }

    /// Position after the last item, from which a watcher can resume, even at another daemon.
    ///
    /// `None` for a watcher of all tenants.
    pub fn cursor(&self) -> Option<&EventCursor> {
        let WatchScope::Tenant(tenant) = &self.scope else {
            return None;
        };
        self.positions.get(&tenant.id).map(|it| &it.cursor)
    }

    fn pop(&mut self) -> Option<WatchItem> {
        while let Some((name, read)) = self.ready.pop_front() {
            let Some(position) = self.positions.get_mut(&name) else {
                continue;
            };
            let tenant = Arc::clone(&position.tenant);
            let logged = match read {
                LogRead::Event(logged) => logged,
                // After a cursor, the numbers of each daemon reveal which events are missing.
                LogRead::Missed(_) if matches!(position.start_bound, StartBound::WallTime(_)) => {
                    continue;
                }
                LogRead::Missed(count) => {
                    position.unknown_gaps = position.cursor.nodes().collect();
                    return Some(WatchItem::Missed { tenant, count });
                }
            };
            match position.check(&logged, &self.events) {
                EventOrder::Duplicate => {}
                EventOrder::Next => {
                    let event = logged.event;
                    return Some(WatchItem::Event { tenant, event });
                }
                EventOrder::Gap(count) => {
                    self.ready.push_front((name, LogRead::Event(logged)));
                    return Some(WatchItem::Missed { tenant, count });
                }
            }
        }
        None
    }

    fn is_behind(&self) -> bool {
        let mut positions = self.positions.values();
        positions.any(|position| position.tenant.events.last_id() > position.id)
    }

    fn read(&mut self) {
        if matches!(self.scope, WatchScope::All) {
            for tenant in self.events.tenants.all() {
                self.positions.entry(tenant.id.clone()).or_insert_with(|| {
                    let events = &self.events;
                    events.position(tenant, &WatchFrom::Start)
                });
            }
        }
        for (name, position) in &mut self.positions {
            let (missed, events) = position.tenant.events.after(position.id);
            if missed > 0 {
                self.ready
                    .push_back((name.clone(), LogRead::Missed(missed)));
            }
            for logged in events {
                position.id = logged.event.id;
                self.ready.push_back((name.clone(), LogRead::Event(logged)));
            }
        }
    }
}

impl Position {
    /// Compares an event with the position, and advances the position.
    fn check(&mut self, logged: &LoggedEvent, events: &Events) -> EventOrder {
        let (node, number) = (logged.node.unwrap_or(events.node), logged.number);
        let last = self.cursor.get(node);
        if last.is_some_and(|last| number <= last) {
            return EventOrder::Duplicate;
        }
        match self.start_bound {
            // Daemons also post events from before this watcher started.
            StartBound::SteadyTime(started)
                if logged.node.is_some() && logged.happened < started =>
            {
                // Record its number, so that the next event does not look like one after a gap.
                self.cursor.set(node, number);
                return EventOrder::Duplicate;
            }
            // Without a cluster, a daemon that is missing in the cursor started after it, so all
            // its events are new.
            StartBound::WallTime(early)
                if last.is_none() && events.is_shared && logged.event.at < early =>
            {
                return EventOrder::Duplicate;
            }
            _ => {}
        }
        // A daemon that started after the cursor counts from 1, which reveals how many events were
        // missed.
        let last = last.or_else(|| match self.start_bound {
            StartBound::WallTime(early) if logged.node.is_none() => {
                (!events.is_shared || events.started_at >= early).then_some(0)
            }
            _ => None,
        });
        if let Some(last) = last.filter(|last| number > last + 1)
            && !self.unknown_gaps.remove(&node)
        {
            self.cursor.set(node, number - 1);
            return EventOrder::Gap(number - last - 1);
        }
        self.unknown_gaps.remove(&node);
        self.cursor.set(node, number);
        self.cursor.at = self.cursor.at.max(logged.event.at);
        EventOrder::Next
    }
}
