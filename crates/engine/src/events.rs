//! What happened, for whoever watches: a bounded ring for each tenant, from which
//! watchers take at their own pace. Nobody waits for them: whoever is too slow is told
//! how many events it missed.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use memoird_core::change::EndReason;
use memoird_core::compaction::probe::Probe;
use memoird_core::ids::{Generation, HookName, SessionId, TenantId};
use memoird_core::time::Timestamp;
use tokio::sync::Notify;

use crate::engine::Engine;
use crate::tenant::Tenant;

/// Events of a tenant that are kept: some hundred bytes each.
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
#[derive(Clone, Debug, PartialEq, Eq)]
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
    },
    /// A generation ended.
    Ended(EndReason),
    /// The oldest exchanges became a summary.
    Compacted {
        /// Counts the summaries of the generation, from 1.
        number: u32,
        /// Why: a trigger's name.
        trigger: &'static str,
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
        /// What of it can still be found.
        probe: Probe,
    },
    /// No summary could be made; nothing changed.
    CompactionFailed {
        /// Why it was wanted: a trigger's name.
        trigger: &'static str,
        /// Why there is none: a name.
        reason: &'static str,
        /// For an operator.
        problem: String,
        /// What the session's breaker lets through from now on.
        breaker: &'static str,
    },
    /// The last summary was taken back.
    CompactionUndone {
        /// Which one.
        number: u32,
    },
    /// A hook has done what it is for.
    HookDelivered {
        /// Which.
        hook: HookName,
        /// After so many tries.
        tries: u32,
    },
    /// A hook could not do it.
    HookFailed {
        /// Which.
        hook: HookName,
        /// After so many tries.
        tries: u32,
        /// Why not.
        problem: String,
        /// True when it is not tried again.
        gave_up: bool,
    },
}

/// The last events of one tenant.
#[derive(Debug, Default)]
pub(crate) struct Ring {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// The id of the newest event; 0 before the first.
    last_id: u64,
    events: VecDeque<Event>,
}

/// Wakes those who watch.
#[derive(Debug, Default)]
pub(crate) struct Bell {
    rung: Notify,
    /// Those who may want to hear it: without any, an append has nothing to do here.
    watchers: AtomicUsize,
}

impl Bell {
    pub(crate) fn ring(&self) {
        if self.watchers.load(Ordering::SeqCst) > 0 {
            self.rung.notify_waiters();
        }
    }
}

/// Whose events somebody watches.
#[derive(Clone, Debug)]
pub enum Watched {
    /// One tenant's.
    Tenant(Arc<Tenant>),
    /// Everybody's, for an operator.
    All,
}

/// What a watcher is told.
#[derive(Clone, Debug)]
pub enum Seen {
    /// Something happened.
    Event {
        /// To a session of this tenant.
        tenant: Arc<Tenant>,
        /// What.
        event: Event,
    },
    /// So many events had left the ring before they could be told.
    Missed {
        /// Events of this tenant.
        tenant: Arc<Tenant>,
        /// How many.
        count: u64,
    },
}

/// Somebody who watches.
#[derive(Debug)]
pub struct Watcher {
    engine: Engine,
    watched: Watched,
    /// The last event of each tenant that was told.
    told: BTreeMap<TenantId, (Arc<Tenant>, u64)>,
    waiting: VecDeque<Seen>,
}

/// Events that are taken from a ring at once.
const TAKEN_MAX: usize = 64;

impl Ring {
    /// Notes what happened, and forgets the oldest event where the ring is full.
    pub(crate) fn put(
        &self,
        at: Timestamp,
        session: &SessionId,
        generation: Generation,
        kind: EventKind,
    ) {
        let mut inner = self.lock();
        inner.last_id += 1;
        let event = Event {
            id: inner.last_id,
            at,
            session: session.clone(),
            generation,
            kind,
        };
        if inner.events.len() >= EVENTS_KEPT {
            inner.events.pop_front();
        }
        inner.events.push_back(event);
    }

    fn last_id(&self) -> u64 {
        self.lock().last_id
    }

    /// How many events after this one are gone, and the next ones.
    fn after(&self, id: u64) -> (u64, Vec<Event>) {
        let inner = self.lock();
        let gone = inner.last_id - inner.events.len() as u64;
        let skipped = usize::try_from(id.saturating_sub(gone)).unwrap_or(usize::MAX);
        let next = inner
            .events
            .iter()
            .skip(skipped)
            .take(TAKEN_MAX)
            .cloned()
            .collect();
        (gone.saturating_sub(id), next)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Engine {
    /// Watches what happens from now on, or, of one tenant, after the event of this id.
    pub fn watch(&self, watched: Watched, after: Option<u64>) -> Watcher {
        let (tenants, after) = match &watched {
            Watched::Tenant(tenant) => (vec![Arc::clone(tenant)], after),
            Watched::All => (self.tenants(), None),
        };
        let told = tenants.into_iter().map(|tenant| {
            let last = tenant.events.last_id();
            // An id from before the daemon's start means nothing: then all of them are new.
            let last = after.map_or(last, |after| if after > last { 0 } else { after });
            (tenant.id.clone(), (tenant, last))
        });
        self.shared.bell.watchers.fetch_add(1, Ordering::SeqCst);
        let told = told.collect();
        Watcher {
            engine: self.clone(),
            watched,
            told,
            waiting: VecDeque::new(),
        }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.engine
            .shared
            .bell
            .watchers
            .fetch_sub(1, Ordering::SeqCst);
    }
}

impl Watcher {
    /// Waits for the next event, or for the word that some were missed. Losing the wait
    /// loses no event.
    pub async fn next(&mut self) -> Seen {
        let engine = self.engine.clone();
        loop {
            let rung = engine.shared.bell.rung.notified();
            tokio::pin!(rung);
            rung.as_mut().enable();
            if let Some(seen) = self.take() {
                return seen;
            }
            rung.await;
        }
    }

    /// What has happened by now and was not told yet.
    fn take(&mut self) -> Option<Seen> {
        if self.waiting.is_empty() {
            self.fill();
        }
        self.waiting.pop_front()
    }

    fn fill(&mut self) {
        if matches!(self.watched, Watched::All) {
            for tenant in self.engine.tenants() {
                self.told.entry(tenant.id.clone()).or_insert((tenant, 0));
            }
        }
        for (tenant, told) in self.told.values_mut() {
            let (missed, events) = tenant.events.after(*told);
            if missed > 0 {
                let tenant = Arc::clone(tenant);
                self.waiting.push_back(Seen::Missed {
                    tenant,
                    count: missed,
                });
            }
            for event in events {
                *told = event.id;
                self.waiting.push_back(Seen::Event {
                    tenant: Arc::clone(tenant),
                    event,
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(ring: &Ring) {
        let session = SessionId::parse("a").unwrap();
        ring.put(
            Timestamp::default(),
            &session,
            Generation::new(0, 0),
            EventKind::Created,
        );
    }

    #[test]
    fn a_ring_tells_what_it_had_to_forget() {
        let ring = Ring::default();
        assert_eq!(ring.after(0), (0, Vec::new()));
        (0..EVENTS_KEPT + 10).for_each(|_| put(&ring));
        let (missed, next) = ring.after(3);
        assert_eq!((missed, next.len(), next[0].id), (7, TAKEN_MAX, 11));
        let (missed, next) = ring.after(10);
        assert_eq!((missed, next[0].id), (0, 11));
        let last = (EVENTS_KEPT + 10) as u64;
        let (missed, next) = ring.after(last - 1);
        assert_eq!((missed, next.len(), next[0].id), (0, 1, last));
        assert_eq!(ring.after(last), (0, Vec::new()));
    }
}
