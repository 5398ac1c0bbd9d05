//! [`Sessions`]: the entry point to all sessions of the process, and their shared state.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use memoird_core::change::{Change, ChangeSet};
use memoird_core::ids::{Generation, SessionId, SessionKey, TenantId};
use memoird_core::nonce::{Nonce, NonceSecret};
use memoird_core::session::Session;
use memoird_core::time::{Now, Steady};
use parking_lot::Mutex;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};

use crate::cluster::Cluster;
use crate::error::EngineError;
use crate::events::{EventKind, EventSignal};
use crate::journal::{Journal, Permit, Submitted};
use crate::machine::{self, Machine};
use crate::outbox::Outbox;
use crate::single_flight::SingleFlight;
use crate::store_handle::StoreHandle;
use crate::tenants::{Tenant, Tenants};

use super::census::{Census, SessionReservation};
use super::cluster::ClusterState;
use super::commit::{SubmittedChange, Tally};
use super::due_time::DueTime;
use super::ended_keys::EndedKeys;
use super::keyed_ids::KeyedIds;
use super::slot::{Slot, SlotInner};
use super::table::Table;

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
    /// When expired sessions are ended next.
    pub(super) sweep_due: DueTime,
    /// Sessions with a failed write. They are reloaded immediately, not on the next use, so that
    /// counts and lists are correct.
    pub(super) failed: UnboundedSender<Arc<Slot>>,
    /// Taken by the worker that reloads.
    pub(super) failed_receiver: Mutex<Option<UnboundedReceiver<Arc<Slot>>>>,
    /// Held while a session is selected and ended to enforce a cap.
    pub(super) enforcing_caps: Mutex<()>,
    pub(super) keyed_ids: KeyedIds,
    /// Tenants with session starts waiting for a cap.
    pub(super) starters: SingleFlight<TenantId>,
    pub(super) ended_keys: EndedKeys,
    pub(super) outbox: Arc<Outbox>,
    pub(super) event_signal: Arc<EventSignal>,
    pub(super) nonce_secret: NonceSecret,
}

/// Reference to a session by tenant and client session id.
#[derive(Clone, Debug)]
pub(crate) struct SessionRef {
    pub(crate) tenant: Arc<Tenant>,
    pub(crate) key: SessionKey,
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

pub(crate) struct SessionParts {
    pub(crate) tenants: Arc<Tenants>,
    pub(crate) machine: Arc<dyn Machine>,
    pub(crate) journal: Journal<SubmittedChange>,
    /// Store of the journal, if there is one.
    pub(crate) store: Option<StoreHandle>,
    pub(crate) outbox: Arc<Outbox>,
    pub(crate) event_signal: Arc<EventSignal>,
    /// How long idempotency keys are valid, in milliseconds.
    pub(crate) idempotency_ms: u64,
    /// Secret for deriving the nonces of sessions.
    pub(crate) nonce_secret: Option<NonceSecret>,
    /// Set if other daemons share the journal.
    pub(crate) cluster: Option<Cluster>,
}

impl Sessions {
    pub(crate) fn new(parts: SessionParts, max_sessions: usize) -> Self {
        let nonce_secret = parts
            .nonce_secret
            .unwrap_or_else(|| machine::new_nonce_secret(&*parts.machine));
        let (failed, failed_receiver) = mpsc::unbounded_channel();
        let now = parts.machine.now().steady;
        let shared = SessionsInner {
            nonce_secret,
            tenants: parts.tenants,
            machine: parts.machine,
            last_generation: Mutex::default(),
            cluster: parts.cluster.map(|cluster| ClusterState::new(cluster, now)),
            journal: Arc::new(parts.journal),
            store: parts.store,
            table: Table::default(),
            single_flight: SingleFlight::default(),
            census: Arc::new(Census::new(max_sessions)),
            sweep_due: DueTime::new(now),
            failed,
            failed_receiver: Mutex::new(Some(failed_receiver)),
            enforcing_caps: Mutex::default(),
            keyed_ids: KeyedIds::new(parts.idempotency_ms),
            starters: SingleFlight::default(),
            ended_keys: EndedKeys::default(),
            outbox: parts.outbox,
            event_signal: parts.event_signal,
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Nonce for a prompt about the turns of a generation up to `through_seq`.
    pub fn prompt_nonce(&self, generation: Generation, through_seq: u64) -> Nonce {
        let secret = &self.shared.nonce_secret;
        secret.prompt_nonce(generation, through_seq)
    }

    pub(crate) fn tenants(&self) -> &Tenants {
        &self.shared.tenants
    }

    /// Whether other daemons serve the sessions as well.
    pub(crate) fn are_shared(&self) -> bool {
        self.shared.cluster.is_some()
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

    /// Store of the journal. Fails with [`EngineError::JournalOff`] without one.
    pub(crate) fn store(&self) -> Result<&StoreHandle, EngineError> {
        self.shared.store.as_ref().ok_or(EngineError::JournalOff)
    }

    pub(crate) fn journal(&self) -> &Journal<SubmittedChange> {
        &self.shared.journal
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

    pub(crate) fn random(&self) -> u128 {
        self.shared.machine.random()
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

    /// Submits changes of one session, to be written atomically. Must be called under its lock.
    ///
    /// `successor` is the reservation of the session that replaces an evicted one.
    pub(super) fn submit(
        &self,
        slot: &Arc<Slot>,
        inner: &mut SlotInner,
        permit: Permit,
        changes: Vec<Change>,
        successor: Option<Arc<SessionReservation>>,
    ) -> Submitted {
        let shared = &self.shared;
        let mut tally = Tally::new(&changes);
        if !shared.journal.is_on() {
            tally.publish(slot, self.now().wall);
            shared.event_signal.notify();
        } else if changes.iter().any(Change::has_idempotency_key) {
            shared.keyed_ids.insert(&slot.key, self.now().steady);
        }
        let change = SubmittedChange {
            slot: Arc::clone(slot),
            epoch: inner.epoch,
            tally,
            has_deliveries: changes.iter().any(Change::owes),
            successor,
        };
        let submitted = shared.journal.submit(permit, ChangeSet { changes }, change);
        inner.ticket = submitted.ticket;
        let last = &slot.tenant.last_ticket;
        last.fetch_max(submitted.ticket, Ordering::Relaxed);
        submitted
    }
}
