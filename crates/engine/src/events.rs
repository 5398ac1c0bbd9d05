//! Session events: a bounded log per tenant, and the signal that wakes watchers.
//!
//! Events are published once they are durable. Each tenant has its own log, so that event ids
//! reveal nothing about another tenant's traffic.

use std::borrow::Cow;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hashlink::LinkedHashMap;
use memoird_core::breaker::BreakerState;
use memoird_core::change::EndReason;
use memoird_core::compaction::Trigger;
use memoird_core::ids::{Generation, HookName, SessionId, TenantId};
use memoird_core::time::{Steady, Timestamp};
use memoird_store::EventSubscription;
use parking_lot::{Mutex, MutexGuard};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use crate::memory_use::MemoryUse;

/// Maximum number of events retained per tenant.
///
/// The share of `limits.memory` for events, split evenly between tenants, may allow fewer. An event
/// takes a few hundred bytes, and up to 1 KiB more if clients assign ids to their turns.
pub const EVENTS_MAX: usize = 4_096;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Consecutive per tenant, from 1 at the daemon's start.
    pub id: u64,
    /// Time of publication.
    pub at: Timestamp,
    pub session: SessionId,
    pub generation: Generation,
    pub kind: EventKind,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub enum EventKind {
    Created,
    Appended {
        first_seq: u64,
        last_seq: u64,
        /// Turns removed from the history to make room.
        dropped_turns: u64,
        /// Client-assigned turn ids, up to the maximum number per event.
        client_ids: Vec<Box<str>>,
    },
    Rewound {
        /// The newest remaining turn.
        after_seq: u64,
        /// The newest turn before the rewind.
        through_seq: u64,
    },
    /// The content of a turn was replaced.
    TurnUpdated {
        seq: u64,
    },
    Ended(EndReason),
    /// All content of the generation was erased.
    Erased,
    /// The oldest exchanges were replaced by a summary.
    Compacted {
        /// Number of the summary within its generation, from 1.
        number: u32,
        trigger: Trigger,
        by: Box<str>,
        /// First turn that the summary newly covers.
        first_seq: u64,
        /// Last turn that the summary covers.
        through_seq: u64,
        /// Number of turns that the summary covers.
        turns: u64,
        /// Estimated tokens of the newly covered turns and of the previous summary.
        tokens_before: u64,
        /// Tokens of the summary.
        tokens_after: u64,
    },
    /// No summary could be made. Nothing was changed.
    CompactionFailed {
        trigger: Trigger,
        reason: Cow<'static, str>,
        /// For operators.
        problem: String,
        /// State of the session's circuit breaker after the failure.
        breaker: BreakerState,
    },
    CompactionUndone {
        number: u32,
    },
    /// A model extracted facts from turns, and they were stored.
    Learned {
        by: Box<str>,
        /// First turn in the prompt.
        first_seq: u64,
        /// Last turn in the prompt.
        through_seq: u64,
        /// Number of facts accepted.
        kept: usize,
        /// Number of facts rejected.
        refused: usize,
        /// Tokens of the prompt and the reply.
        tokens: u64,
    },
    /// The extraction of facts failed. It is retried unless `gave_up` is set.
    ExtractionFailed {
        reason: Cow<'static, str>,
        problem: String,
        /// Whether these turns are skipped from now on.
        gave_up: bool,
    },
    HookDelivered {
        hook: HookName,
        /// Number of attempts, including this one.
        tries: u32,
    },
    HookFailed {
        hook: HookName,
        /// Number of attempts, including this one.
        tries: u32,
        problem: String,
        /// Whether the delivery is abandoned.
        gave_up: bool,
    },
}

/// Recent events of one tenant, from this daemon and received from others.
#[derive(Debug, Default)]
pub(crate) struct EventLog {
    inner: Mutex<Inner>,
    memory: Arc<MemoryUse>,
    /// Number of tenants that share the memory for events.
    tenants: Arc<AtomicUsize>,
    /// Wakes the watchers of this tenant only.
    pub(crate) published: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    /// Id of the newest event, or 0.
    last_id: u64,
    /// Number of this daemon's newest event, or 0.
    own_number: u64,
    /// Number of this daemon's newest event that was posted to other daemons, or 0.
    posted_number: u64,
    /// Number of the newest event of each other daemon.
    numbers: LinkedHashMap<u128, u64>,
    events: VecDeque<LoggedEvent>,
    bytes: u64,
}

/// An event with its origin.
#[derive(Clone, Debug)]
pub(crate) struct LoggedEvent {
    pub(crate) event: Event,
    /// `None` for this daemon.
    pub(crate) node: Option<u128>,
    /// Consecutive per tenant and daemon, from 1.
    pub(crate) number: u64,
    /// Time on the steady clock shared by the daemons. Unused for events of this daemon.
    pub(crate) happened: Steady,
}

/// Maximum number of daemons whose event numbers are retained.
///
/// Exceeds the size of a cluster, because a restarted member counts as a new one.
pub(crate) const NODES_MAX: usize = 64;

/// Registry of watchers, and the signal for watchers of all tenants.
#[derive(Debug, Default)]
pub(crate) struct EventSignal {
    pub(crate) published: Notify,
    /// Number of watchers of all tenants. While it is 0, publishing needs no notification here.
    watchers: AtomicUsize,
    /// Number of watchers by tenant. `None` for watchers of all tenants.
    watched: Mutex<BTreeMap<Option<TenantId>, usize>>,
    /// Notified when a tenant, or all of them, gets its first watcher.
    pub(crate) first_watcher_added: Notify,
}

impl EventSignal {
    pub(crate) fn notify(&self) {
        if self.watchers.load(Ordering::SeqCst) > 0 {
            self.published.notify_waiters();
        }
    }

    /// Registers a watcher of one tenant, or of all if `None`.
    pub(crate) fn add_watcher(&self, tenant: Option<TenantId>) {
        self.watchers
            .fetch_add(tenant.is_none().into(), Ordering::SeqCst);
        let mut watched = self.watched.lock();
        let count = watched.entry(tenant).or_default();
        *count += 1;
        if *count == 1 {
            self.first_watcher_added.notify_one();
        }
    }

    pub(crate) fn remove_watcher(&self, tenant: Option<TenantId>) {
        self.watchers
            .fetch_sub(tenant.is_none().into(), Ordering::SeqCst);
        if let Entry::Occupied(mut count) = self.watched.lock().entry(tenant) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }

    pub(crate) fn watched(&self) -> EventSubscription {
        let watched = self.watched.lock();
        let tenants = watched.keys().flatten();
        if watched.contains_key(&None) || watched.len() > WATCHED_TENANTS_MAX {
            EventSubscription {
                all: true,
                ..EventSubscription::default()
            }
        } else {
            EventSubscription {
                all: false,
                tenants: tenants.cloned().collect(),
            }
        }
    }
}

/// Above this number of watched tenants, other daemons are asked for the events of all tenants.
const WATCHED_TENANTS_MAX: usize = 256;

/// Maximum events of a tenant that a watcher reads at once, and buffers until they are sent.
const EVENTS_PER_READ_MAX: usize = 8;

impl EventLog {
    pub(crate) fn new(memory: Arc<MemoryUse>, tenants: Arc<AtomicUsize>) -> Self {
        Self {
            memory,
            tenants,
            ..Self::default()
        }
    }

    /// Adds an event of this daemon. Removes the oldest if the log is full.
    pub(crate) fn push(
        &self,
        at: Timestamp,
        session: &SessionId,
        generation: Generation,
        kind: EventKind,
    ) {
        let mut inner = self.inner.lock();
        inner.own_number += 1;
        let message = EventMessage {
            number: inner.own_number,
            at_ms: at.as_ms(),
            session: session.clone(),
            generation,
            kind,
        };
        self.add(inner, None, Steady(0), message);
    }

    /// Adds an event received from another daemon, unless it is a duplicate.
    pub(crate) fn push_of_other(&self, node: u128, message: EventMessage, happened: Steady) {
        let mut inner = self.inner.lock();
        if inner.numbers.get(&node) >= Some(&message.number) {
            return;
        }
        inner.numbers.insert(node, message.number);
        if inner.numbers.len() > NODES_MAX {
            inner.numbers.pop_front();
        }
        self.add(inner, Some(node), happened, message);
    }

    /// The oldest `max` unposted events of this daemon that are not older than `since`.
    pub(crate) fn to_post(&self, since: Timestamp, max: usize) -> Vec<EventMessage> {
        let inner = self.inner.lock();
        if inner.own_number == inner.posted_number {
            return Vec::new();
        }
        let newest_first = inner.events.iter().rev();
        let own = newest_first.filter(|entry| entry.node.is_none());
        let new: Vec<_> = own
            .take_while(|entry| entry.number > inner.posted_number && entry.event.at >= since)
            .collect();
        new.into_iter()
            .rev()
            .take(max)
            .map(EventMessage::from_entry)
            .collect()
    }

    /// Records that events up to this number were posted to other daemons.
    pub(crate) fn note_posted(&self, number: u64) {
        self.inner.lock().posted_number = number;
    }

    pub(crate) fn last_id(&self) -> u64 {
        self.inner.lock().last_id
    }

    /// Id of the newest event removed from the log, or 0.
    pub(crate) fn last_removed_id(&self) -> u64 {
        self.inner.lock().last_removed_id()
    }

    /// Number of this daemon's newest event, and those of other daemons.
    pub(crate) fn numbers(&self) -> (u64, Vec<(u128, u64)>) {
        let inner = self.inner.lock();
        let of_others = inner.numbers.iter().map(|(node, number)| (*node, *number));
        (inner.own_number, of_others.collect())
    }

    /// Number of events after `id` that were removed from the log, and the next events in it.
    pub(crate) fn after(&self, id: u64) -> (u64, Vec<LoggedEvent>) {
        let inner = self.inner.lock();
        let gone = inner.last_removed_id();
        let skipped = usize::try_from(id.saturating_sub(gone)).unwrap_or(usize::MAX);
        let next = inner
            .events
            .iter()
            .skip(skipped)
            .take(EVENTS_PER_READ_MAX)
            .cloned()
            .collect();
        (gone.saturating_sub(id), next)
    }

    /// Publishes an event, and removes the oldest ones above the limits on number and bytes.
    fn add(
        &self,
        mut inner: MutexGuard<'_, Inner>,
        node: Option<u128>,
        happened: Steady,
        message: EventMessage,
    ) {
        inner.last_id += 1;
        let logged = LoggedEvent {
            event: Event {
                id: inner.last_id,
                at: Timestamp::from_ms(message.at_ms),
                session: message.session,
                generation: message.generation,
                kind: message.kind,
            },
            node,
            number: message.number,
            happened,
        };
        let before = inner.bytes;
        inner.bytes += logged.bytes();
        let tenants = self.tenants.load(Ordering::Relaxed).max(1) as u64;
        let bytes_max = self.memory.events_max() / tenants;
        while inner.events.len() >= EVENTS_MAX || inner.bytes > bytes_max {
            let Some(oldest) = inner.events.pop_front() else {
                break;
            };
            inner.bytes -= oldest.bytes();
        }
        inner.events.push_back(logged);
        self.memory.count_events(before, inner.bytes);
        drop(inner);
        self.published.notify_waiters();
    }
}

impl LoggedEvent {
    /// Estimated size in memory.
    fn bytes(&self) -> u64 {
        let texts = match &self.event.kind {
            EventKind::Appended { client_ids, .. } => {
                let ids = client_ids.iter();
                ids.map(|id| id.len() + size_of::<Box<str>>()).sum()
            }
            EventKind::Compacted { by, .. } | EventKind::Learned { by, .. } => by.len(),
            EventKind::CompactionFailed { problem, .. }
            | EventKind::ExtractionFailed { problem, .. }
            | EventKind::HookFailed { problem, .. } => problem.len(),
            EventKind::Created
            | EventKind::Rewound { .. }
            | EventKind::TurnUpdated { .. }
            | EventKind::Ended(_)
            | EventKind::Erased
            | EventKind::CompactionUndone { .. }
            | EventKind::HookDelivered { .. } => 0,
        };
        (size_of::<Self>() + self.event.session.as_str().len() + texts) as u64
    }
}

impl Inner {
    fn last_removed_id(&self) -> u64 {
        self.last_id - self.events.len() as u64
    }
}

/// Wire format of an event exchanged between daemons.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct EventMessage {
    pub(crate) number: u64,
    at_ms: i64,
    session: SessionId,
    generation: Generation,
    kind: EventKind,
}

impl EventMessage {
    /// Age in milliseconds.
    pub(crate) fn age_ms(&self, now: Timestamp) -> u64 {
        u64::try_from(now.as_ms().saturating_sub(self.at_ms)).unwrap_or(0)
    }

    fn from_entry(entry: &LoggedEvent) -> Self {
        Self {
            number: entry.number,
            at_ms: entry.event.at.as_ms(),
            session: entry.event.session.clone(),
            generation: entry.event.generation,
            kind: entry.event.kind.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn push(log: &EventLog) {
        let session = SessionId::parse("a").unwrap();
        log.push(
            Timestamp::default(),
            &session,
            Generation::new(0, 0),
            EventKind::Created,
        );
    }

    #[test]
    fn event_logs_share_a_memory_limit_and_drop_oldest() {
        let (memory, tenants) = (Arc::<MemoryUse>::default(), Arc::new(AtomicUsize::new(2)));
        memory.set_limit(4 << 20);
        let logs = [(); 2].map(|()| EventLog::new(Arc::clone(&memory), Arc::clone(&tenants)));
        let session = SessionId::parse("a").unwrap();
        let failed = || EventKind::HookFailed {
            hook: HookName::parse("a").unwrap(),
            tries: 1,
            problem: "x".repeat(1_000),
            gave_up: false,
        };
        for _ in 0..200 {
            for log in &logs {
                log.push(
                    Timestamp::default(),
                    &session,
                    Generation::new(0, 0),
                    failed(),
                );
            }
        }
        let used = memory.snapshot().event_bytes;
        assert!((100 << 10..=128 << 10).contains(&used), "{used}");
        assert_eq!(memory.snapshot().used_bytes(), used);
        let (missed, next) = logs[0].after(0);
        assert_eq!(
            next[0].event.id,
            missed + 1,
            "a watcher receives the number of missed events"
        );
        assert!(missed > 100 && missed < 200, "{missed}");
        memory.set_limit(1);
        push(&logs[0]);
        let (_, next) = logs[0].after(0);
        assert_eq!(next.len(), 1, "the newest one stays");
    }

    #[test]
    fn event_log_reports_number_of_missed_events() {
        let log = EventLog::default();
        assert!(log.after(0).1.is_empty());
        (0..EVENTS_MAX + 10).for_each(|_| push(&log));
        let (missed, next) = log.after(3);
        assert_eq!(
            (missed, next.len(), next[0].event.id),
            (7, EVENTS_PER_READ_MAX, 11)
        );
        let (missed, next) = log.after(10);
        assert_eq!((missed, next[0].event.id), (0, 11));
        let last = (EVENTS_MAX + 10) as u64;
        let (missed, next) = log.after(last - 1);
        assert_eq!((missed, next.len(), next[0].event.id), (0, 1, last));
        assert!(log.after(last).1.is_empty());
    }
}
