//! One session in memory, and the lock around it.
//!
//! Under this lock the journal's queue, an idle list, its index, the counts, the ids with keys and
//! a shard of the table may be taken, each alone, and never the other way round. A session that
//! ends leaves the list, the counts and the table under it: without it a preempted thread could
//! remove a session that had come back in between.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use memoird_core::change::Totals;
use memoird_core::ids::{Generation, SessionKey};
use memoird_core::session::{Head, Session};
use memoird_core::time::Steady;

use super::idle_list::IdleList;
use super::index::Terms;
use super::unload::QueuePlace;
use crate::tenants::Tenant;

/// One session in memory. A caller clones the `Arc` out of the table, takes the lock, does
/// something short, and releases it. No caller holds two locks.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) key: SessionKey,
    pub(super) tenant: Arc<Tenant>,
    /// The list of its tenant.
    pub(super) idle: Arc<IdleList>,
    inner: Mutex<SlotInner>,
}

/// What the lock protects.
#[derive(Debug)]
pub(super) struct SlotInner {
    state: SlotState,
    /// The newest change set of this session that was submitted.
    pub(super) ticket: u64,
    /// Counts how often the session was discarded because a commit failed: what was read
    /// before such a moment may never have become durable.
    pub(super) epoch: u32,
    /// True while the caps count it and it is in its tenant's idle list.
    pub(super) is_listed: bool,
    /// What it is found by in its tenant's index.
    terms: Option<Terms>,
    /// Bytes of its content, as memory counts them.
    content_bytes: u64,
    /// Bytes of what its bot decided about it.
    options_bytes: u64,
    /// Where it stands in the queue of its tenant's loaded sessions, while it is loaded.
    queued: Option<QueuePlace>,
    /// The slot that this is of.
    slot: Weak<Slot>,
}

/// What memory has of a session. Nearly all slots in use are loaded, so boxing the session
/// would save nothing.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)]
pub(super) enum SlotState {
    /// All of it.
    Loaded(Session),
    /// Its head; the rest is in the journal.
    OnDisk(Box<Head>),
    /// Nothing: a commit failed, and only the journal knows the session.
    Stale,
    /// Nothing: its generation ended. The slot is not used again.
    Ended,
}

/// One state of one generation in memory. A session that was discarded since, because
/// something of it was not written, may have other turns under the same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SessionVersion {
    pub(crate) generation: Generation,
    epoch: u32,
}

impl SessionVersion {
    /// Of a session that has just started.
    pub(super) fn first(generation: Generation) -> Self {
        Self {
            generation,
            epoch: 0,
        }
    }
}

impl Slot {
    pub(super) fn new(
        key: SessionKey,
        tenant: Arc<Tenant>,
        idle: Arc<IdleList>,
        state: SlotState,
    ) -> Arc<Self> {
        tenant.memory.count_session();
        let slot = Arc::new_cyclic(|slot| Self {
            key,
            tenant,
            idle,
            inner: Mutex::new(SlotInner {
                state: SlotState::Ended,
                ticket: 0,
                epoch: 0,
                is_listed: false,
                terms: None,
                content_bytes: 0,
                options_bytes: 0,
                queued: None,
                slot: Weak::clone(slot),
            }),
        });
        slot.lock().set_state(&slot.tenant, state);
        slot
    }

    /// A panic while the session was being changed may have left it half changed: then only
    /// the journal knows it, and without a journal it is lost.
    pub(super) fn lock(&self) -> MutexGuard<'_, SlotInner> {
        self.inner.lock().unwrap_or_else(|poisoned| {
            self.inner.clear_poison();
            let mut inner = poisoned.into_inner();
            inner.discard(&self.tenant);
            inner
        })
    }
}

impl SlotInner {
    pub(super) fn state(&self) -> &SlotState {
        &self.state
    }

    /// The session, where it is loaded.
    pub(super) fn session(&self) -> Option<&Session> {
        match &self.state {
            SlotState::Loaded(session) => Some(session),
            _ => None,
        }
    }

    /// The session, where it is loaded.
    pub(super) fn session_mut(&mut self) -> Option<&mut Session> {
        match &mut self.state {
            SlotState::Loaded(session) => Some(session),
            _ => None,
        }
    }

    /// The head of a session that lives, loaded or not.
    pub(super) fn head(&self) -> Option<&Head> {
        self.state.head()
    }

    /// True when its generation ended.
    pub(super) fn has_ended(&self) -> bool {
        matches!(self.state, SlotState::Ended)
    }

    /// Which state of which generation is loaded.
    pub(super) fn version(&self, generation: Generation) -> SessionVersion {
        SessionVersion {
            generation,
            epoch: self.epoch,
        }
    }

    /// Replaces the state; gives the one before.
    pub(super) fn set_state(&mut self, tenant: &Tenant, state: SlotState) -> SlotState {
        tenant
            .stats
            .compaction
            .count_open(self.state.is_breaker_open(), state.is_breaker_open());
        tenant.stats.count_live(self.state.totals(), state.totals());
        let before = std::mem::replace(&mut self.state, state);
        self.count_content(tenant);
        before
    }

    /// Sees to it that it is found in its tenant's lists, while it is listed, by what its head
    /// says. Where only the journal knows that, it is done when it was read.
    pub(super) fn reindex(&mut self, slot: &Arc<Slot>) {
        let head = self.head().filter(|_| self.is_listed);
        let is_right = match (&self.terms, head) {
            (Some(terms), Some(head)) => terms.are_of(head),
            (Some(_), None) => self.is_listed,
            (None, head) => head.is_none(),
        };
        if is_right {
            return;
        }
        let new = head.map(Terms::of);
        let old = std::mem::replace(&mut self.terms, new);
        let index = &slot.idle.index;
        index.replace(slot, old.as_ref(), self.terms.as_ref());
        let class = |terms: &Option<Terms>| terms.as_ref().and_then(Terms::class).cloned();
        if let Some(head) = self.head().filter(|_| class(&old) != class(&self.terms)) {
            slot.idle.reorder(slot, head);
        }
    }

    /// Counts the memory that its content takes by now. Where it is loaded, it can be found
    /// from now on to be unloaded.
    pub(super) fn count_content(&mut self, tenant: &Tenant) {
        let before = self.content_bytes;
        self.content_bytes = self.session().map_or(0, Session::content_bytes);
        tenant.count_content(before, self.content_bytes);
        let before = self.options_bytes;
        let options = self.head().and_then(|head| head.options.as_ref());
        self.options_bytes = options.map_or(0, |options| options.bytes() as u64);
        if before != self.options_bytes {
            tenant.memory.count_options(before, self.options_bytes);
        }
        self.keep_queued();
    }

    /// Sees to it that it is in the queue of loaded sessions while it is loaded.
    fn keep_queued(&mut self) {
        let last_access = self.session().map(|session| session.head().last_access);
        if last_access.is_some() == self.queued.is_some() {
            return;
        }
        let Some(slot) = self.slot.upgrade() else {
            return;
        };
        let queue = &slot.idle.loaded;
        match (last_access, self.queued.take()) {
            (Some(last_access), _) => {
                self.queued = Some(queue.push_loaded(Weak::clone(&self.slot), last_access));
            }
            (None, Some(place)) => queue.remove(place),
            (None, None) => {}
        }
    }

    /// Unloads a session that was taken from the queue of loaded sessions; one that was used after
    /// this moment is put there again.
    pub(super) fn unload_if_unused_since(&mut self, tenant: &Tenant, moment: Steady) {
        self.queued = None;
        let Some(session) = self.session() else {
            return;
        };
        let last_access = session.head().last_access;
        if last_access <= moment {
            let head = Box::new(session.head().clone());
            self.set_state(tenant, SlotState::OnDisk(head));
            tenant.memory.count_unload();
        } else if let Some(slot) = self.slot.upgrade() {
            let queue = &slot.idle.loaded;
            self.queued = Some(queue.push(Weak::clone(&self.slot), last_access));
        }
    }

    /// Drops what memory has of the session: only the journal knows it.
    pub(super) fn discard(&mut self, tenant: &Tenant) {
        self.epoch += 1;
        self.set_state(tenant, SlotState::Stale);
    }
}

/// A slot is counted from its making to its drop: also where the caller hung up before it was
/// put into the table.
impl Drop for Slot {
    fn drop(&mut self) {
        let inner = self.inner.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(place) = inner.queued.take() {
            self.idle.loaded.remove(place);
        }
        inner.set_state(&self.tenant, SlotState::Ended);
        self.tenant.memory.count_session_gone();
    }
}

impl SlotState {
    fn head(&self) -> Option<&Head> {
        match self {
            Self::Loaded(session) => Some(session.head()),
            Self::OnDisk(head) => Some(head),
            Self::Stale | Self::Ended => None,
        }
    }

    /// True when the breaker of its compaction is open, or half open.
    fn is_breaker_open(&self) -> bool {
        self.head().is_some_and(is_breaker_open)
    }

    fn totals(&self) -> Totals {
        self.head().map(|head| head.totals).unwrap_or_default()
    }
}

/// True when the breaker of a session's compaction is open, or half open.
pub(super) fn is_breaker_open(head: &Head) -> bool {
    let status = head.compaction.as_ref();
    status.is_some_and(|status| status.opened.is_some())
}
