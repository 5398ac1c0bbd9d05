//! What happened to sessions: a bounded log of events for each tenant, and the signal that
//! wakes those who watch.
//!
//! They are published when they are durable. Each tenant has a log of its own: ids of one tenant
//! say nothing of another's traffic.

use std::borrow::Cow;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hashlink::LinkedHashMap;
use memoird_core::change::EndReason;
use memoird_core::ids::{Generation, HookName, SessionId, TenantId};
use memoird_core::time::{Steady, Timestamp};
use memoird_store::Watched;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use crate::memory_use::MemoryUse;

/// Events of a tenant that are kept, if they have no more bytes than the tenant's part of what
/// events may have of `limits.memory`: some hundred each, and a KiB more where clients name their
/// turns.
pub const EVENTS_KEPT: usize = 4_096;

/// What happened to a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Counts the tenant's events one by one, from 1 at the daemon's start.
    pub id: u64,
    /// When it was true.
    pub at: Timestamp,
    /// The session.
    pub session: SessionId,
    /// Which life of it.
    pub generation: Generation,
    /// What.
    pub kind: EventKind,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub enum EventKind {
    /// A generation started.
    Created,
    /// Turns were added.
    Appended {
        /// The first of them.
        first_seq: u64,
        /// The last of them.
        last_seq: u64,
        /// Turns that left to make room.
        dropped_turns: u64,
        /// The client's own ids of those that have one, as many as an event tells.
        client_ids: Vec<Box<str>>,
    },
    /// Its newest turns were taken back.
    Rewound {
        /// The newest turn that stays.
        after_seq: u64,
        /// The newest turn until then.
        through_seq: u64,
    },
    /// A turn says something else.
    TurnUpdated {
        /// Which turn.
        seq: u64,
    },
    /// A generation ended.
    Ended(EndReason),
    /// All that was said in it was erased.
    Erased,
    /// The oldest exchanges became a summary.
    Compacted {
        /// Counts the summaries of the generation, from 1.
        number: u32,
        /// Why: a trigger's name.
        trigger: Cow<'static, str>,
        /// Who made it.
        by: Box<str>,
        /// The first turn that it newly stands for.
        first_seq: u64,
        /// The last one.
        through_seq: u64,
        /// Tokens of what it newly stands for and of the summary before it. Estimated.
        tokens_before: u64,
        /// Its own.
        tokens_after: u64,
    },
    /// No summary could be made; nothing changed.
    CompactionFailed {
        /// Why it was wanted: a trigger's name.
        trigger: Cow<'static, str>,
        /// Why there is none: a name.
        reason: Cow<'static, str>,
        /// For an operator.
        problem: String,
        /// What the session's breaker lets through from now on.
        breaker: Cow<'static, str>,
    },
    /// The last summary was taken back.
    CompactionUndone {
        /// Which one.
        number: u32,
    },
    /// A model found facts in its turns, which are remembered.
    Learned {
        /// Which model.
        by: Box<str>,
        /// The first turn that it was shown.
        first_seq: u64,
        /// The last one.
        through_seq: u64,
        /// Facts that were believed.
        kept: usize,
        /// Facts that were not.
        refused: usize,
        /// Tokens of the prompt and of the answer.
        tokens: u64,
    },
    /// A model found no facts; its turns are shown to it again.
    ExtractionFailed {
        /// Why: a name.
        reason: Cow<'static, str>,
        /// For an operator.
        problem: String,
        /// True where they are not shown to it again.
        gave_up: bool,
    },
    /// A hook has done what it is for.
    HookDelivered {
        /// Which.
        hook: HookName,
        /// Tries so far, this one included.
        tries: u32,
    },
    /// A hook could not do it.
    HookFailed {
        /// Which.
        hook: HookName,
        /// Tries so far, this one included.
        tries: u32,
        /// Why not.
        problem: String,
        /// True when it is not tried again.
        gave_up: bool,
    },
}

/// The last events of one tenant, of this daemon and of those that it was told of.
#[derive(Debug, Default)]
pub(crate) struct EventLog {
    inner: Mutex<Inner>,
    memory: Arc<MemoryUse>,
    /// How many tenants have one.
    tenants: Arc<AtomicUsize>,
    /// Wakes those who watch this tenant: what others say is no reason to.
    published: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    /// The id of the newest event; 0 before the first.
    last_id: u64,
    /// The number of the newest one of this daemon; 0 before the first.
    own_number: u64,
    /// The number of the newest one that other daemons were told of.
    posted_number: u64,
    /// The numbers of the newest ones of other daemons.
    numbers: LinkedHashMap<u128, u64>,
    events: VecDeque<LoggedEvent>,
    /// Of these events.
    bytes: u64,
}

/// An event, and which daemon's it is.
#[derive(Clone, Debug)]
pub(crate) struct LoggedEvent {
    pub(crate) event: Event,
    /// `None`: this one's.
    pub(crate) node: Option<u128>,
    /// Counts the tenant's events of that daemon one by one, from 1.
    pub(crate) number: u64,
    /// When it happened, on the line of time that daemons have in common. Of this daemon's
    /// it does not matter.
    pub(crate) happened: Steady,
}

/// Daemons whose numbers are kept: more than share a journal, and enough for those of them that
/// were started anew while somebody watches.
pub(crate) const NODES_KEPT: usize = 64;

/// Who watches, and what wakes those who watch all tenants.
#[derive(Debug, Default)]
pub(crate) struct EventSignal {
    published: Notify,
    /// Who watches all. Without them an append has nothing to do here.
    watchers: AtomicUsize,
    /// Of each tenant; `None`: of all.
    watched: Mutex<BTreeMap<Option<TenantId>, usize>>,
    /// Somebody watches what nobody did before.
    began: Notify,
}

impl EventSignal {
    pub(crate) fn notify(&self) {
        if self.watchers.load(Ordering::SeqCst) > 0 {
            self.published.notify_waiters();
        }
    }

    /// Somebody watches a tenant, or all.
    pub(crate) fn add_watcher(&self, tenant: Option<TenantId>) {
        self.watchers
            .fetch_add(tenant.is_none().into(), Ordering::SeqCst);
        let mut watched = self.lock();
        let count = watched.entry(tenant).or_default();
        *count += 1;
        if *count == 1 {
            self.began.notify_one();
        }
    }

    pub(crate) fn remove_watcher(&self, tenant: Option<TenantId>) {
        self.watchers
            .fetch_sub(tenant.is_none().into(), Ordering::SeqCst);
        if let Entry::Occupied(mut count) = self.lock().entry(tenant) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }

    pub(crate) fn notified(&self) -> Notified<'_> {
        self.published.notified()
    }

    /// Ends once somebody watches what nobody did before.
    pub(crate) fn began(&self) -> Notified<'_> {
        self.began.notified()
    }

    /// What is watched here.
    pub(crate) fn watched(&self) -> Watched {
        let watched = self.lock();
        let tenants = watched.keys().flatten();
        match watched.contains_key(&None) || watched.len() > WATCHED_MAX {
            true => Watched {
                all: true,
                ..Watched::default()
            },
            false => Watched {
                all: false,
                tenants: tenants.cloned().collect(),
            },
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Option<TenantId>, usize>> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where more tenants are watched than so many, other daemons are told that all are.
const WATCHED_MAX: usize = 256;

/// Events of a tenant that a watcher reads at once, and holds until they are sent.
const READ_MAX: usize = 8;

impl EventLog {
    pub(crate) fn new(memory: Arc<MemoryUse>, tenants: Arc<AtomicUsize>) -> Self {
        Self {
            memory,
            tenants,
            ..Self::default()
        }
    }

    /// Adds an event of this daemon; the oldest one leaves where the log is full.
    pub(crate) fn push(
        &self,
        at: Timestamp,
        session: &SessionId,
        generation: Generation,
        kind: EventKind,
    ) {
        let mut inner = self.lock();
        inner.own_number += 1;
        let number = inner.own_number;
        let event = |id| Event {
            id,
            at,
            session: session.clone(),
            generation,
            kind,
        };
        self.add(&mut inner, None, number, Steady(0), event);
        drop(inner);
        self.published.notify_waiters();
    }

    /// Ends once there is another event.
    pub(crate) fn published(&self) -> Notified<'_> {
        self.published.notified()
    }

    /// Adds an event of another daemon, unless it is there already.
    pub(crate) fn push_of_other(&self, node: u128, told: ToldEvent, happened: Steady) {
        let mut inner = self.lock();
        if inner.numbers.get(&node) >= Some(&told.number) {
            return;
        }
        inner.numbers.insert(node, told.number);
        if inner.numbers.len() > NODES_KEPT {
            inner.numbers.pop_front();
        }
        let event = |id| Event {
            id,
            at: Timestamp::from_ms(told.at_ms),
            session: told.session,
            generation: told.generation,
            kind: told.kind,
        };
        self.add(&mut inner, Some(node), told.number, happened, event);
        drop(inner);
        self.published.notify_waiters();
    }

    /// The oldest events of this daemon that no other one was told of, at most `max`, of those that
    /// are not older than `since`.
    pub(crate) fn to_post(&self, since: Timestamp, max: usize) -> Vec<ToldEvent> {
        let inner = self.lock();
        if inner.own_number == inner.posted_number {
            return Vec::new();
        }
        let newest_first = inner.events.iter().rev();
        let own = newest_first.filter(|entry| entry.node.is_none());
        let new: Vec<_> = own
            .take_while(|entry| entry.number > inner.posted_number && entry.event.at >= since)
            .collect();
        new.into_iter().rev().take(max).map(ToldEvent::of).collect()
    }

    /// Notes that other daemons were told of the events up to this number.
    pub(crate) fn note_posted(&self, number: u64) {
        self.lock().posted_number = number;
    }

    pub(crate) fn last_id(&self) -> u64 {
        self.lock().last_id
    }

    /// The id of the newest event that has left the log; 0 where none has.
    pub(crate) fn left_id(&self) -> u64 {
        self.lock().left_id()
    }

    /// The number of the newest event of this daemon, and those of others.
    pub(crate) fn numbers(&self) -> (u64, Vec<(u128, u64)>) {
        let inner = self.lock();
        let of_others = inner.numbers.iter().map(|(node, number)| (*node, *number));
        (inner.own_number, of_others.collect())
    }

    /// How many events after this one have left the log, and the next ones.
    pub(crate) fn after(&self, id: u64) -> (u64, Vec<LoggedEvent>) {
        let inner = self.lock();
        let gone = inner.left_id();
        let skipped = usize::try_from(id.saturating_sub(gone)).unwrap_or(usize::MAX);
        let next = inner
            .events
            .iter()
            .skip(skipped)
            .take(READ_MAX)
            .cloned()
            .collect();
        (gone.saturating_sub(id), next)
    }

    /// Adds an event; the oldest ones leave where there are too many, or too many bytes.
    fn add(
        &self,
        inner: &mut Inner,
        node: Option<u128>,
        number: u64,
        happened: Steady,
        event: impl FnOnce(u64) -> Event,
    ) {
        inner.last_id += 1;
        let logged = LoggedEvent {
            event: event(inner.last_id),
            node,
            number,
            happened,
        };
        let before = inner.bytes;
        inner.bytes += logged.bytes();
        let tenants = self.tenants.load(Ordering::Relaxed).max(1) as u64;
        let bytes_max = self.memory.events_max() / tenants;
        while inner.events.len() >= EVENTS_KEPT || inner.bytes > bytes_max {
            let Some(oldest) = inner.events.pop_front() else {
                break;
            };
            inner.bytes -= oldest.bytes();
        }
        inner.events.push_back(logged);
        self.memory.count_events(before, inner.bytes);
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LoggedEvent {
    /// What it takes in memory.
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
    fn left_id(&self) -> u64 {
        self.last_id - self.events.len() as u64
    }
}

/// An event as daemons tell each other of it.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct ToldEvent {
    pub(crate) number: u64,
    at_ms: i64,
    session: SessionId,
    generation: Generation,
    kind: EventKind,
}

impl ToldEvent {
    /// How long ago it happened, in milliseconds.
    pub(crate) fn age_ms(&self, now: Timestamp) -> u64 {
        u64::try_from(now.as_ms().saturating_sub(self.at_ms)).unwrap_or(0)
    }

    fn of(entry: &LoggedEvent) -> Self {
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
    fn the_events_of_all_tenants_have_a_part_of_the_memory_and_the_oldest_leave() {
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
            "who watches is told of the gap"
        );
        assert!(missed > 100 && missed < 200, "{missed}");
        memory.set_limit(1);
        push(&logs[0]);
        let (_, next) = logs[0].after(0);
        assert_eq!(next.len(), 1, "the newest one stays");
    }

    #[test]
    fn a_log_says_how_many_events_have_left() {
        let log = EventLog::default();
        assert!(log.after(0).1.is_empty());
        (0..EVENTS_KEPT + 10).for_each(|_| push(&log));
        let (missed, next) = log.after(3);
        assert_eq!((missed, next.len(), next[0].event.id), (7, READ_MAX, 11));
        let (missed, next) = log.after(10);
        assert_eq!((missed, next[0].event.id), (0, 11));
        let last = (EVENTS_KEPT + 10) as u64;
        let (missed, next) = log.after(last - 1);
        assert_eq!((missed, next.len(), next[0].event.id), (0, 1, last));
        assert!(log.after(last).1.is_empty());
    }
}
