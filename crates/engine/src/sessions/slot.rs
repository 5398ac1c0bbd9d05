//! A session in memory, and its lock.
//!
//! Lock order: under a slot's lock, the journal queue, the orders of its tenant, the counts, the
//! keyed ids or a shard of the table may be locked, one at a time. Never lock a slot while holding
//! one of these.
//!
//! A session that ends is removed from the orders, the counts and the table under its lock. Otherwise
//! a preempted thread could remove a session that has since been restored.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use memoird_core::history::{KnownTurns, Totals};
use memoird_core::ids::{Generation, SessionKey};
use memoird_core::session::{Head, Session};
use memoird_core::time::Steady;

use super::orders::{Listed, SessionOrders, UseKey};
use crate::tenants::Tenant;

/// A session in memory.
///
/// Callers clone the `Arc` out of the table and hold the lock briefly. Never hold two slots' locks.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) key: SessionKey,
    pub(super) tenant: Arc<Tenant>,
    pub(super) orders: Arc<SessionOrders>,
    inner: Mutex<SlotInner>,
}

#[derive(Debug)]
pub(super) struct SlotInner {
    state: SlotState,
    /// Ticket of the session's newest submitted change set.
    pub(super) ticket: u64,
    /// Incremented when the state is discarded, because a commit failed or the state was outdated.
    ///
    /// Anything read in an earlier epoch may not be durable or current.
    pub(super) epoch: u32,
    /// Number of further changes before which the session is read again.
    ///
    /// Set when another daemon has changed it: that daemon has probably changed it again.
    pub(super) refreshes: u8,
    /// Its place in its tenant's orders. Set while it is counted for the caps.
    pub(super) listed: Option<Listed>,
    content_bytes: u64,
    options_bytes: u64,
    /// Position in its tenant's queue of loaded sessions, while it is loaded.
    queued: Option<UseKey>,
    /// The slot that contains this state.
    slot: Weak<Slot>,
}

/// The part of a session that is in memory.
///
/// Nearly all slots in use are loaded, so boxing the session would save nothing.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)]
pub(super) enum SlotState {
    /// The whole session.
    Loaded(Session),
    /// The head. The rest is in the journal.
    OnDisk(Box<Head>),
    /// After a failed commit, or in place of an outdated state. Must be loaded again, which may
    /// reuse the turns.
    Stale(Option<Box<OutdatedTurns>>),
    /// Nothing, because the generation ended. The slot is not reused.
    Ended,
}

/// Turns of an outdated session.
#[derive(Debug)]
pub(super) struct OutdatedTurns {
    pub(super) known: KnownTurns,
    /// Revision of the outdated session. 0 if another daemon is known to have changed the session.
    pub(super) revision: u64,
    last_access: Steady,
}

/// Identifies one in-memory state of a generation.
///
/// After the session is discarded because of a failed write, the same seqs may belong to other
/// turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SessionVersion {
    pub(crate) generation: Generation,
    epoch: u32,
}

impl SessionVersion {
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
        orders: Arc<SessionOrders>,
        state: SlotState,
    ) -> Arc<Self> {
        tenant.memory.count_sessions(0, 1);
        let slot = Arc::new_cyclic(|slot| Self {
            key,
            tenant,
            orders,
            inner: Mutex::new(SlotInner {
                state: SlotState::Ended,
                ticket: 0,
                epoch: 0,
                refreshes: 0,
                listed: None,
                content_bytes: 0,
                options_bytes: 0,
                queued: None,
                slot: Weak::clone(slot),
            }),
        });
        slot.lock().set_state(&slot.tenant, state);
        slot
    }

    /// Locks the slot, and discards its state if a panic may have left it half changed.
    ///
    /// The session is then read from the journal. Without a journal it is lost.
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

    pub(super) fn session(&self) -> Option<&Session> {
        match &self.state {
            SlotState::Loaded(session) => Some(session),
            _ => None,
        }
    }

    pub(super) fn session_mut(&mut self) -> Option<&mut Session> {
        match &mut self.state {
            SlotState::Loaded(session) => Some(session),
            _ => None,
        }
    }

    pub(super) fn head(&self) -> Option<&Head> {
        self.state.head()
    }

    pub(super) fn has_ended(&self) -> bool {
        matches!(self.state, SlotState::Ended)
    }

    pub(super) fn version(&self, generation: Generation) -> SessionVersion {
        SessionVersion {
            generation,
            epoch: self.epoch,
        }
    }

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

    /// Adds the session to its tenant's orders.
    pub(super) fn list(&mut self, slot: &Arc<Slot>) {
        if let Some(head) = self.state.head() {
            self.listed = Some(slot.orders.insert(slot, head));
        }
    }

    /// Removes the session from its tenant's orders. Returns whether it was there.
    pub(super) fn unlist(&mut self, slot: &Slot) -> bool {
        let listed = self.listed.take();
        if let Some(listed) = &listed {
            slot.orders.remove(slot, listed);
        }
        listed.is_some()
    }

    /// Moves a listed session to its place in its tenant's orders, after its head changed.
    ///
    /// Without a head in memory, it keeps its place until it is read.
    pub(super) fn relist(&mut self, slot: &Arc<Slot>, is_use: bool) {
        if let (Some(head), Some(listed)) = (self.state.head(), &mut self.listed) {
            slot.orders.refresh(slot, head, is_use, listed);
        }
    }

    /// Updates the accounting of its memory, and queues a loaded session for unloading.
    pub(super) fn count_content(&mut self, tenant: &Tenant) {
        let before = self.content_bytes;
        self.content_bytes = match &self.state {
            SlotState::Loaded(session) => session.content_bytes(),
            SlotState::Stale(Some(outdated)) => outdated.known.bytes(),
            _ => 0,
        };
        tenant.count_content(before, self.content_bytes);
        let before = self.options_bytes;
        let options = self.head().and_then(|head| head.options.as_ref());
        self.options_bytes = options.map_or(0, |options| options.bytes() as u64);
        if before != self.options_bytes {
            tenant.memory.count_options(before, self.options_bytes);
        }
        self.keep_queued();
    }

    /// Last access of a session that has turns in memory.
    fn access_of_turns(&self) -> Option<Steady> {
        match &self.state {
            SlotState::Loaded(session) => Some(session.head().last_access),
            SlotState::Stale(Some(outdated)) => Some(outdated.last_access),
            _ => None,
        }
    }

    /// Adds the session to the queue of loaded sessions, or removes it, to match its state.
    fn keep_queued(&mut self) {
        let last_access = self.access_of_turns();
        if last_access.is_some() == self.queued.is_some() {
            return;
        }
        let Some(slot) = self.slot.upgrade() else {
            return;
        };
        match (last_access, self.queued.take()) {
            (Some(last_access), _) => {
                self.queued = Some(
                    slot.orders
                        .push_loaded(Weak::clone(&self.slot), last_access),
                );
            }
            (None, Some(queued)) => slot.orders.remove_loaded(queued),
            (None, None) => {}
        }
    }

    /// Unloads a session taken from the queue of loaded sessions.
    ///
    /// If it was used after `moment`, it is queued again instead.
    pub(super) fn unload_if_unused_since(&mut self, tenant: &Tenant, moment: Steady) {
        self.queued = None;
        let Some(last_access) = self.access_of_turns() else {
            return;
        };
        if last_access <= moment {
            let head = self.head().cloned().map(Box::new);
            let state = head.map_or(SlotState::Stale(None), SlotState::OnDisk);
            self.set_state(tenant, state);
            tenant.memory.count_unload();
        } else if let Some(slot) = self.slot.upgrade() {
            let queued = slot
                .orders
                .requeue_loaded(Weak::clone(&self.slot), last_access);
            self.queued = Some(queued);
        }
    }

    /// Drops the in-memory state, so that the session must be read from the journal.
    pub(super) fn discard(&mut self, tenant: &Tenant) {
        self.epoch += 1;
        self.set_state(tenant, SlotState::Stale(None));
    }

    /// Like [`Self::discard`], but retains the turns up to `through_seq` for the next load.
    ///
    /// `revision` is that of [`OutdatedTurns`].
    pub(super) fn outdate(&mut self, tenant: &Tenant, through_seq: u64, revision: u64) {
        self.epoch += 1;
        let outdated = match self.set_state(tenant, SlotState::Stale(None)) {
            SlotState::Loaded(session) => Some(Box::new(OutdatedTurns {
                last_access: session.head().last_access,
                known: session.into_known_turns(through_seq),
                revision,
            })),
            SlotState::Stale(outdated) => outdated,
            SlotState::OnDisk(_) | SlotState::Ended => None,
        };
        self.set_state(tenant, SlotState::Stale(outdated));
    }

    /// Removes the turns of an outdated session.
    pub(super) fn take_outdated(&mut self, tenant: &Tenant) -> Option<OutdatedTurns> {
        let SlotState::Stale(outdated) = &mut self.state else {
            return None;
        };
        let outdated = outdated.take();
        self.count_content(tenant);
        outdated.map(|outdated| *outdated)
    }
}

/// Undoes the accounting, even if a cancelled caller never put the slot into the table.
impl Drop for Slot {
    fn drop(&mut self) {
        let inner = self.inner.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(queued) = inner.queued.take() {
            self.orders.remove_loaded(queued);
        }
        inner.set_state(&self.tenant, SlotState::Ended);
        self.tenant.memory.count_sessions(1, 0);
    }
}

impl SlotState {
    fn head(&self) -> Option<&Head> {
        match self {
            Self::Loaded(session) => Some(session.head()),
            Self::OnDisk(head) => Some(head),
            Self::Stale(_) | Self::Ended => None,
        }
    }

    /// Whether its compaction breaker is open or half open.
    fn is_breaker_open(&self) -> bool {
        self.head().is_some_and(is_breaker_open)
    }

    fn totals(&self) -> Totals {
        self.head().map(|head| head.totals).unwrap_or_default()
    }
}

pub(super) fn is_breaker_open(head: &Head) -> bool {
    let status = head.compaction.as_ref();
    status.is_some_and(|status| status.opened.is_some())
}
