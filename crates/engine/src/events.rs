//! What happened to sessions: a bounded log of events for each tenant, and the signal that
//! wakes those who watch.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use memoird_core::change::EndReason;
use memoird_core::compaction::probe::Probe;
use memoird_core::ids::{Generation, HookName, SessionId};
use memoird_core::time::Timestamp;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

/// Events of a tenant that are kept: some hundred bytes each, and a KiB more where clients name
/// their turns.
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
        reason: &'static str,
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

/// The last events of one tenant.
#[derive(Debug, Default)]
pub(crate) struct EventLog {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// The id of the newest event; 0 before the first.
    last_id: u64,
    events: VecDeque<Event>,
}

/// Wakes the watchers when something was published.
#[derive(Debug, Default)]
pub(crate) struct EventSignal {
    published: Notify,
    /// Without watchers an append has nothing to do here.
    watchers: AtomicUsize,
}

impl EventSignal {
    pub(crate) fn notify(&self) {
        if self.watchers.load(Ordering::SeqCst) > 0 {
            self.published.notify_waiters();
        }
    }

    pub(crate) fn add_watcher(&self) {
        self.watchers.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn remove_watcher(&self) {
        self.watchers.fetch_sub(1, Ordering::SeqCst);
    }

    pub(crate) fn notified(&self) -> Notified<'_> {
        self.published.notified()
    }
}

/// Events that are read at once.
const READ_MAX: usize = 64;

impl EventLog {
    /// Adds an event; the oldest one leaves where the log is full.
    pub(crate) fn push(
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

    pub(crate) fn last_id(&self) -> u64 {
        self.lock().last_id
    }

    /// How many events after this one have left the log, and the next ones.
    pub(crate) fn after(&self, id: u64) -> (u64, Vec<Event>) {
        let inner = self.lock();
        let gone = inner.last_id - inner.events.len() as u64;
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

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
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
    fn a_log_says_how_many_events_have_left() {
        let log = EventLog::default();
        assert_eq!(log.after(0), (0, Vec::new()));
        (0..EVENTS_KEPT + 10).for_each(|_| push(&log));
        let (missed, next) = log.after(3);
        assert_eq!((missed, next.len(), next[0].id), (7, READ_MAX, 11));
        let (missed, next) = log.after(10);
        assert_eq!((missed, next[0].id), (0, 11));
        let last = (EVENTS_KEPT + 10) as u64;
        let (missed, next) = log.after(last - 1);
        assert_eq!((missed, next.len(), next[0].id), (0, 1, last));
        assert_eq!(log.after(last), (0, Vec::new()));
    }
}
