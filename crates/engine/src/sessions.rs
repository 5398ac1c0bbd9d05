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
mod cluster_state;
mod commit;
mod end;
mod end_listener;
mod ended_keys;
mod evict;
mod expiry;
mod freshness;
mod handle;
mod keyed_ids;
mod keyed_ids_reader;
mod listing;
mod load;
mod orders;
mod quota;
mod recover;
mod reload_queue;
mod slot;
mod start;
mod table;
mod tally;
mod unload;
mod update;
mod version_checks;
mod view;

use std::sync::Arc;

use memoird_core::change::EndReason;
use memoird_core::nonce::NonceSecret;
use parking_lot::Mutex;

use crate::blocking::Blocking;
use crate::cluster::Cluster;
use crate::error::EngineError;
use crate::events::EventSignal;
use crate::journal::{Committer, Journal, JournalConfig};
use crate::machine::{self, Machine};
use crate::single_flight::SingleFlight;
use crate::stats::Stats;
use crate::store_handle::StoreHandle;
use crate::tenants::{Tenant, Tenants};
use crate::worker::Supervisor;

use census::Census;
use cluster::ClusterSessionsWorker;
use cluster_state::ClusterState;
use ended_keys::EndedKeys;
use expiry::Sweeper;
use freshness::FreshnessWorker;
use handle::SessionsInner;
use keyed_ids::KeyedIds;
use keyed_ids_reader::KeyedIdsReader;
use load::ReloadWorker;
use quota::QuotaCounter;
use reload_queue::ReloadQueue;
use table::Table;
use tally::SubmittedChange;
use unload::Unloader;

pub use end::EndedSession;
pub(crate) use end_listener::{EndListener, Ending};
pub(crate) use handle::SessionRef;
pub use handle::Sessions;
pub use listing::{SessionListPosition, SessionOrder, SessionPage, SessionQuery};
pub(crate) use slot::SessionVersion;
pub(crate) use update::{Decision, Effect, Update, UpdateOptions, WhenAbsent};
pub use view::SessionView;

pub(crate) struct SessionParts {
    pub(crate) tenants: Arc<Tenants>,
    pub(crate) machine: Arc<dyn Machine>,
    pub(crate) journal: Journal<SubmittedChange>,
    /// Store of the journal, if there is one.
    pub(crate) store: Option<StoreHandle>,
    pub(crate) end_listener: Arc<dyn EndListener>,
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
            reload_queue: ReloadQueue::default(),
            enforcing_caps: Mutex::default(),
            keyed_ids: KeyedIds::new(parts.idempotency_ms),
            starters: SingleFlight::default(),
            ended_keys: EndedKeys::default(),
            end_listener: parts.end_listener,
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
        supervisor.run(ReloadWorker::new(self.clone()));
        if shared.cluster.is_some() {
            supervisor.run(FreshnessWorker::new(self.clone()));
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
}
