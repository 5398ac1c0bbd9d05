//! Watching events. Watchers read the tenants' event logs at their own pace. Nothing waits for
//! them, and one that is too slow learns how many events it missed.

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
    machine: Arc<dyn Machine>,
    /// The number of this daemon among those that tell each other what happened.
    node: u128,
    /// When it began.
    began: Timestamp,
    /// Whether others share its journal.
    is_shared: bool,
}

/// From where on to watch.
#[derive(Clone, Debug)]
pub enum WatchFrom {
    /// What happens from now on.
    Now,
    /// What came after the event of this id, which this daemon gave it.
    After(u64),
    /// What came after this place.
    Cursor(EventCursor),
}

/// Reads events as they come.
#[derive(Debug)]
pub struct Watcher {
    events: Events,
    scope: WatchScope,
    /// Where it is in the events of each tenant.
    positions: BTreeMap<TenantId, Position>,
    ready: VecDeque<(TenantId, Read)>,
}

/// What was read of a tenant.
#[derive(Debug)]
enum Read {
    Event(LoggedEvent),
    /// So many events left the log before.
    Missed(u64),
}

#[derive(Debug)]
struct Position {
    tenant: Arc<Tenant>,
    /// The last event of the log that was read.
    id: u64,
    cursor: EventCursor,
    /// What came before its first event, and is not told.
    before: Before,
    /// Daemons of which events were missed, so many that it is not known how many of which.
    unsure: BTreeSet<u128>,
}

/// What came before a watcher's first event.
#[derive(Clone, Copy, Debug)]
enum Before {
    Nothing,
    /// What other daemons saw before this moment.
    Moment(Steady),
    /// Of daemons that are not in the cursor, what was seen before this time, by their clocks.
    Time(Timestamp),
}

/// What an event is to a watcher.
enum Judged {
    Next,
    Known,
    Missed(u64),
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
            // Without others it is the number of this start.
            node: cluster.map_or_else(|| machine.random(), Cluster::node),
            began: machine.now().wall,
            is_shared: cluster.is_some(),
            machine,
        }
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

    /// Watches events. Those of all tenants are watched from now on, whatever `from` says.
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

    /// Who watches, here.
    pub(crate) fn signal(&self) -> &EventSignal {
        &self.signal
    }

    /// The tenants whose events these are.
    pub(crate) fn tenants(&self) -> &Tenants {
        &self.tenants
    }

    fn position(&self, tenant: Arc<Tenant>, from: &WatchFrom) -> Position {
        let log = &tenant.events;
        let last = log.last_id();
        let now = self.machine.now();
        let (id, before) = match from {
            WatchFrom::Now => (last, Before::Moment(now.steady)),
            // An id from before the daemon's start means nothing: then all of them are new.
            WatchFrom::After(id) if *id > last => (0, Before::Nothing),
            WatchFrom::After(id) => (*id, Before::Nothing),
            WatchFrom::Cursor(cursor) => {
                let early = cursor.at.as_ms().saturating_sub(CLOCKS_APART_MS);
                (log.left_id(), Before::Time(Timestamp::from_ms(early)))
            }
        };
        let cursor = match from {
            WatchFrom::Cursor(cursor) => cursor.clone(),
            WatchFrom::After(_) => EventCursor::at(now.wall),
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
            before,
            unsure: BTreeSet::new(),
        }
    }
}

/// What the clocks of daemons may be apart, where nothing else tells what came first.
const CLOCKS_APART_MS: i64 = 2_000;

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
    /// Waits for the next event, or for the news that some were missed. Cancelling the wait
    /// loses no event.
    pub async fn next(&mut self) -> WatchItem {
        let (signal, scope) = (Arc::clone(&self.events.signal), self.scope.clone());
        loop {
            let published = match &scope {
                WatchScope::Tenant(tenant) => tenant.events.published(),
                WatchScope::All => signal.notified(),
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

    /// The place behind what was read last, for whoever goes on from there, also at another daemon.
    /// `None` for the events of all tenants.
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
                Read::Event(logged) => logged,
                // The numbers of each daemon say what is missing, and how far the cursor was.
                Read::Missed(_) if matches!(position.before, Before::Time(_)) => continue,
                Read::Missed(count) => {
                    position.unsure = position.cursor.nodes().collect();
                    return Some(WatchItem::Missed { tenant, count });
                }
            };
            match position.judge(&logged, &self.events) {
                Judged::Known => {}
                Judged::Next => {
                    let event = logged.event;
                    return Some(WatchItem::Event { tenant, event });
                }
                Judged::Missed(count) => {
                    self.ready.push_front((name, Read::Event(logged)));
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
                    events.position(tenant, &WatchFrom::After(0))
                });
            }
        }
        for (name, position) in &mut self.positions {
            let (missed, events) = position.tenant.events.after(position.id);
            if missed > 0 {
                self.ready.push_back((name.clone(), Read::Missed(missed)));
            }
            for logged in events {
                position.id = logged.event.id;
                self.ready.push_back((name.clone(), Read::Event(logged)));
            }
        }
    }
}

impl Position {
    /// What an event is, beside those that were told before.
    fn judge(&mut self, logged: &LoggedEvent, events: &Events) -> Judged {
        let (node, number) = (logged.node.unwrap_or(events.node), logged.number);
        let last = self.cursor.get(node);
        if last.is_some_and(|last| number <= last) {
            return Judged::Known;
        }
        match self.before {
            // Daemons tell what they saw since somebody watched last.
            Before::Moment(started) if logged.node.is_some() && logged.happened < started => {
                // With its number, so that the next one is not taken for one behind a gap.
                self.cursor.set(node, number);
                return Judged::Known;
            }
            // A daemon that is alone began after a cursor that does not know it.
            Before::Time(early)
                if last.is_none() && events.is_shared && logged.event.at < early =>
            {
                return Judged::Known;
            }
            _ => {}
        }
        // How many events came before the first of a daemon is known where it began after the cursor.
        let last = last.or_else(|| match self.before {
            Before::Time(early) if logged.node.is_none() => {
                (!events.is_shared || events.began >= early).then_some(0)
            }
            _ => None,
        });
        if let Some(last) = last.filter(|last| number > last + 1)
            && !self.unsure.remove(&node)
        {
            self.cursor.set(node, number - 1);
            return Judged::Missed(number - last - 1);
        }
        self.unsure.remove(&node);
        self.cursor.set(node, number);
        self.cursor.at = self.cursor.at.max(logged.event.at);
        Judged::Next
    }
}
