//! The session table: sessions are loaded, started, evicted, expired and ended here.
//!
//! Commands and workers use two methods: [`Sessions::update`] changes a session, and
//! [`Sessions::view`] reads one. Nothing outside this module knows where a session is stored, which
//! of its changes are not yet written, or what to repeat when a write is lost.
//!
//! Without a cluster, the table contains every live session. In a cluster, a session that is
//! missing in the table is loaded from the journal.

mod census;
mod cluster;
mod commit;
mod end;
mod ended_keys;
mod evict;
mod expiry;
mod freshness;
mod keyed_ids;
mod listing;
mod load;
mod orders;
mod quota;
mod recover;
mod slot;
mod start;
mod table;
mod unload;
mod update;
mod view;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use memoird_core::change::{Change, ChangeSet, EndReason};
use memoird_core::ids::{Generation, SessionId, SessionKey, TenantId};
use memoird_core::nonce::{Nonce, NonceSecret};
use memoird_core::session::Session;
use memoird_core::time::{Now, Steady};
use parking_lot::Mutex;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};

use crate::blocking::Blocking;
use crate::cluster::Cluster;
use crate::error::EngineError;
use crate::events::{EventKind, EventSignal};
use crate::journal::{Committer, Journal, JournalConfig, Permit, Submitted};
use crate::machine::{self, Machine};
use crate::outbox::Outbox;
use crate::single_flight::SingleFlight;
use crate::stats::Stats;
use crate::store_handle::StoreHandle;
use crate::tenants::{Tenant, Tenants};
use crate::worker::Supervisor;

use census::{Census, SessionReservation};
use cluster::{ClusterSessionsWorker, ClusterState};
use commit::{SubmittedChange, Tally};
use ended_keys::EndedKeys;
use expiry::Sweeper;
use freshness::FreshnessWorker;
use keyed_ids::{KeyedIds, KeyedIdsReader};
use load::ReloadWorker;
use quota::QuotaCounter;
use slot::{Slot, SlotInner};
use table::Table;
use unload::Unloader;

pub use end::EndedSession;
pub use listing::{SessionListPosition, SessionOrder, SessionPage, SessionQuery};
pub(crate) use slot::SessionVersion;
pub(crate) use update::{Decision, Effect, Update, UpdateOptions};
pub use view::SessionView;

/// Maximum attempts of a command. Each lost attempt means that another command succeeded.
const ATTEMPTS_MAX: usize = 64;

/// Handle to all sessions of the process. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Sessions {
    shared: Arc<SessionsInner>,
}

#[derive(Debug)]
struct SessionsInner {
    tenants: Arc<Tenants>,
    machine: Arc<dyn Machine>,
    last_generation: Mutex<Option<Generation>>,
    journal: Arc<Journal<SubmittedChange>>,
    /// Store of the journal, if there is one.
    store: Option<StoreHandle>,
    /// Set if other daemons share the journal.
    cluster: Option<ClusterState>,
    table: Table,
    single_flight: SingleFlight<SessionKey>,
    census: Arc<Census>,
    /// Sessions with a failed write. They are reloaded immediately, not on the next use, so that
    /// counts and lists are correct.
    failed: UnboundedSender<Arc<Slot>>,
    /// Taken by the worker that reloads.
    failed_receiver: Mutex<Option<UnboundedReceiver<Arc<Slot>>>>,
    /// Held while a session is selected and ended to enforce a cap.
    enforcing_caps: Mutex<()>,
    keyed_ids: KeyedIds,
    /// Tenants with session starts waiting for a cap.
    starters: SingleFlight<TenantId>,
    ended_keys: EndedKeys,
    outbox: Arc<Outbox>,
    event_signal: Arc<EventSignal>,
    nonce_secret: NonceSecret,
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

    fn not_found(&self) -> EngineError {
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
        let shared = SessionsInner {
            nonce_secret,
            tenants: parts.tenants,
            machine: parts.machine,
            last_generation: Mutex::default(),
            cluster: parts.cluster.map(ClusterState::new),
            journal: Arc::new(parts.journal),
            store: parts.store,
            table: Table::default(),
            single_flight: SingleFlight::default(),
            census: Arc::new(Census::new(max_sessions)),
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

    pub(crate) fn start_workers(
        &self,
        supervisor: &Supervisor,
        stats: &Arc<Stats>,
        blocking: Blocking,
    ) {
        let shared = &self.shared;
        if shared.journal.is_on() {
            let committer = Committer::new(
                Arc::clone(&shared.journal),
                self.clone(),
                Arc::clone(&shared.machine),
                Arc::clone(stats),
            );
            match blocking {
                Blocking::Threads => supervisor.run_on_thread(committer),
                _ => supervisor.run(committer),
            }
            supervisor.run(Unloader::new(self.clone()));
            supervisor.run(QuotaCounter::new(self.clone()));
        }
        if let Some(failed) = shared.failed_receiver.lock().take() {
            supervisor.run(ReloadWorker::new(self.clone(), failed));
        }
        if let Some(cluster) = &shared.cluster {
            if let Some(requested) = cluster.requested_checks.lock().take() {
                supervisor.run(FreshnessWorker::new(self.clone(), requested));
            }
            supervisor.run(ClusterSessionsWorker::new(self.clone()));
            return;
        }
        // In a cluster, other daemons also record idempotency keys, so an index of keys would be
        // incomplete.
        if shared.journal.is_on() {
            supervisor.run(KeyedIdsReader::new(self.clone()));
        }
        supervisor.run(Sweeper::new(self.clone()));
    }

    /// Applies a configuration, after the tenants have applied it.
    ///
    /// Trims the histories of the tenants in `shortened`, whose limits were lowered.
    pub(crate) fn reconfigure(
        &self,
        max_sessions: usize,
        journal: &JournalConfig,
        shortened: &[Arc<Tenant>],
    ) {
        let shared = &self.shared;
        shared.census.set_max_sessions(max_sessions);
        shared.journal.reconfigure(journal);
        shared.census.policies_changed.notify_waiters();
        for tenant in shortened {
            self.shorten_histories(tenant);
        }
    }

    /// Trims loaded histories to lowered limits. Others are trimmed when they are loaded.
    ///
    /// The journal records the trimming with the next append.
    fn shorten_histories(&self, tenant: &Tenant) {
        let policy = tenant.policy();
        for slot in self.shared.table.orders(&tenant.id).slots() {
            let mut inner = slot.lock();
            if let Some(session) = inner.session_mut() {
                let before = session.head().totals;
                session.trim(&policy.limits);
                tenant.stats.count_live(before, session.head().totals);
                inner.count_content(tenant);
            }
        }
    }

    /// Ends every session at shutdown. Used only without a journal.
    pub(crate) async fn end_all(&self, reason: EndReason) -> Result<(), EngineError> {
        for tenant in self.shared.tenants.all() {
            let orders = self.shared.table.orders(&tenant.id);
            while let Some(oldest) = orders.oldest() {
                let permit = self.shared.journal.permit(0).await?;
                let request = end::EndRequest::now(reason);
                let ended = self.end_slot(&oldest.slot, request, permit);
                if let end::EndAttempt::NeedsLoad = ended {
                    self.load(&oldest.slot).await?;
                }
            }
        }
        Ok(())
    }

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
    fn keys_since(&self, tenant: &Tenant) -> Steady {
        let limit_ms = tenant.policy().limits.idempotency_ms;
        Steady(self.now().steady.0.saturating_sub(limit_ms))
    }

    /// Creates a session, or its next generation.
    ///
    /// Generations sort by creation time. Those of the same millisecond are also ordered: with
    /// random numbers alone, two generations of a session could sort in either order.
    fn begin(&self, key: &SessionKey, now: Now) -> (Session, Change) {
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
    fn submit(
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
