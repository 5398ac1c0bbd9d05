//! The handle to all sessions, and the state that its parts share.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use memoird_core::change::{Change, ChangeSet};
use memoird_core::ids::{Generation, SessionId, SessionKey, TenantId};
use memoird_core::nonce::{Nonce, NonceSecret};
use memoird_core::session::Session;
use memoird_core::time::{Now, Steady};
use parking_lot::Mutex;

use super::census::{Census, SessionReservation};
use super::cluster_state::ClusterState;
use super::end_listener::EndListener;
use super::ended_keys::EndedKeys;
use super::keyed_ids::KeyedIds;
use super::reload_queue::ReloadQueue;
use super::slot::{Slot, SlotInner};
use super::table::Table;
use super::tally::{SubmittedChange, Tally};
use crate::error::EngineError;
use crate::events::{EventKind, EventSignal};
use crate::journal::{Journal, Permit, Submitted};
use crate::machine::Machine;
use crate::single_flight::SingleFlight;
use crate::store_handle::StoreHandle;
use crate::tenants::{Tenant, Tenants};

/// Maximum attempts of a command. Each lost attempt means that another command succeeded.
pub(super) const ATTEMPTS_MAX: usize = 64;

/// Handle to all sessions of the process. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Sessions {
    pub(super) shared: Arc<SessionsInner>,
}

#[derive(Debug)]
pub(super) struct SessionsInner {
    pub(super) tenants: Arc<Tenants>,
    pub(super) machine: Arc<dyn Machine>,
    pub(super) last_generation: Mutex<Option<Generation>>,
    pub(super) journal: Arc<Journal<SubmittedChange>>,
    /// Store of the journal, if there is one.
    pub(super) store: Option<StoreHandle>,
    /// Set if other daemons share the journal.
    pub(super) cluster: Option<ClusterState>,
    pub(super) table: Table,
    pub(super) single_flight: SingleFlight<SessionKey>,
    pub(super) census: Arc<Census>,
    pub(super) reload_queue: ReloadQueue,
    /// Held while a session is selected and ended to enforce a cap.
    pub(super) enforcing_caps: Mutex<()>,
    pub(super) keyed_ids: KeyedIds,
    /// Tenants with session starts waiting for a cap.
    pub(super) starters: SingleFlight<TenantId>,
    pub(super) ended_keys: EndedKeys,
    pub(super) end_listener: Arc<dyn EndListener>,
    pub(super) event_signal: Arc<EventSignal>,
    pub(super) nonce_secret: NonceSecret,
}

/// Reference to a session by tenant and client session id.
#[derive(Clone, Debug)]
pub(crate) struct SessionRef {
    pub(crate) tenant: Arc<Tenant>,
    pub(crate) key: SessionKey,
}

/// Changes of one session to be written atomically.
pub(super) struct Submission {
    pub(super) set: ChangeSet,
    /// Turns removed from the history by these changes.
    pub(super) dropped_turns: u64,
    /// For an eviction, the reservation of the session that replaces it.
    pub(super) successor: Option<SessionReservation>,
}

impl Submission {
    pub(super) fn new(changes: Vec<Change>) -> Self {
        Self {
            set: ChangeSet { changes },
            dropped_turns: 0,
            successor: None,
        }
    }
}

impl SessionRef {
    pub(crate) fn new(tenant: &Arc<Tenant>, session: &SessionId) -> Self {
        let key = SessionKey {
            tenant: tenant.id.clone(),
            session: session.clone(),
        };
        Self {
            tenant: Arc::clone(tenant),
            key,
        }
    }

    pub(super) fn not_found(&self) -> EngineError {
        EngineError::SessionNotFound {
            session: self.key.session.clone(),
        }
    }
}

impl SessionsInner {
    /// Store of the journal. Fails with [`EngineError::JournalOff`] without one.
    pub(super) fn store(&self) -> Result<&StoreHandle, EngineError> {
        self.store.as_ref().ok_or(EngineError::JournalOff)
    }
}

impl Sessions {
    /// Nonce for a prompt about the turns of a generation up to `through_seq`.
    pub fn prompt_nonce(&self, generation: Generation, through_seq: u64) -> Nonce {
        let secret = &self.shared.nonce_secret;
        secret.prompt_nonce(generation, through_seq)
    }

    pub(crate) fn tenants(&self) -> &Tenants {
        &self.shared.tenants
    }

    /// Number of a tenant's live sessions. In a cluster, the number of some seconds ago.
    pub(crate) fn count(&self, tenant: &TenantId) -> usize {
        match &self.shared.cluster {
            Some(cluster) => cluster.count(tenant),
            None => self.shared.census.count(tenant),
        }
    }

    pub(crate) fn have_journal(&self) -> bool {
        self.shared.journal.is_on()
    }

    pub(crate) fn is_journal_failing(&self) -> bool {
        self.shared.journal.is_failing()
    }

    pub(crate) fn journal_failure(&self) -> Option<EngineError> {
        self.shared.journal.last_failure()
    }

    /// Waits until every change submitted so far is written or rejected.
    ///
    /// Fails if they cannot be written now and are retried later.
    pub(crate) async fn wait_all_processed(&self) -> Result<(), EngineError> {
        self.shared.journal.wait_all_processed().await
    }

    /// Waits until every change of a tenant submitted so far is written or rejected.
    ///
    /// Returns the number of the batch that contains the last of them.
    pub(crate) async fn wait_processed_of(&self, tenant: &Tenant) -> Result<u64, EngineError> {
        let last = tenant.last_ticket.load(Ordering::Relaxed);
        let journal = &self.shared.journal;
        journal.wait_processed_of(&tenant.id, last).await?;
        Ok(tenant.last_batch.load(Ordering::Relaxed))
    }

    pub(crate) fn notify_watchers(&self) {
        self.shared.event_signal.notify();
    }

    pub(crate) fn publish(&self, session: &SessionRef, generation: Generation, kind: EventKind) {
        let at = self.now().wall;
        let events = &session.tenant.events;
        events.push(at, &session.key.session, generation, kind);
        self.shared.event_signal.notify();
    }

    pub(crate) fn now(&self) -> Now {
        self.shared.machine.now()
    }

    /// Idempotency keys from before this time are expired.
    pub(super) fn keys_since(&self, tenant: &Tenant) -> Steady {
        let limit_ms = tenant.policy().limits.idempotency_ms;
        Steady(self.now().steady.0.saturating_sub(limit_ms))
    }

    /// Creates a session, or its next generation.
    ///
    /// Generations sort by creation time. Those of the same millisecond are also ordered: with
    /// random numbers alone, two generations of a session could sort in either order.
    pub(super) fn begin(&self, key: &SessionKey, now: Now) -> (Session, Change) {
        let shared = &self.shared;
        let mut last = shared.last_generation.lock();
        let generation = Generation::after(*last, now.wall.as_ms(), shared.machine.random());
        *last = Some(generation);
        drop(last);
        let (mut fresh, begin) = Session::begin(key, generation, now);
        fresh.set_nonce(shared.nonce_secret.nonce(generation));
        (fresh, begin)
    }

    /// Submits changes of one session. Must be called under its lock.
    pub(super) fn submit(
        &self,
        slot: &Arc<Slot>,
        inner: &mut SlotInner,
        permit: Permit,
        submission: Submission,
    ) -> Submitted {
        let Submission {
            set,
            dropped_turns,
            successor,
        } = submission;
        let shared = &self.shared;
        let mut tally = Tally::new(&set, dropped_turns);
        if !shared.journal.is_on() {
            tally.publish(slot, self.now().wall);
            shared.event_signal.notify();
        } else if set.changes.iter().any(Change::has_idempotency_key) {
            shared.keyed_ids.insert(&slot.key, self.now().steady);
        }
        let change = SubmittedChange {
            slot: Arc::clone(slot),
            epoch: inner.epoch,
            tally,
            has_deliveries: set.changes.iter().any(Change::owes),
            successor,
        };
        let submitted = shared.journal.submit(permit, set, change);
        inner.ticket = submitted.ticket;
        let last = &slot.tenant.last_ticket;
        last.fetch_max(submitted.ticket, Ordering::Relaxed);
        submitted
    }
}
