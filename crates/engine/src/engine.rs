//! The handle, and what it is a handle to.

use std::sync::Arc;

use arc_swap::ArcSwap;
use dashmap::DashMap;
use memoird_core::change::EndReason;
use memoird_core::ids::{Generation, SessionKey, TenantId};
use memoird_core::time::Now;
use memoird_store::Store;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::capacity::Capacity;
use crate::cell::{Residence, SessionCell};
use crate::compaction::{Compactions, Compactor, RemoteCounts};
use crate::config::{Durability, EngineConfig};
use crate::dispatch::Dispatcher;
use crate::error::EngineError;
use crate::events::Bell;
use crate::flights::Flights;
use crate::ids::Ids;
use crate::journal::{Committer, Journal};
use crate::machine::Machine;
use crate::mend::{MendWorker, Mender};
use crate::models::{Models, Prompts, ScaleIds};
use crate::outbox::Outbox;
use crate::prune::Pruner;
use crate::stats::{Stats, StatsSnapshot};
use crate::sweep::Sweeper;
use crate::table::Table;
use crate::tenant::{Policy, Tenant};
use crate::worker::{Supervisor, WorkerStatus};

/// All sessions of the process. Cheap to clone; every clone is the same engine.
#[derive(Clone, Debug)]
pub struct Engine {
    pub(crate) shared: Arc<Shared>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: ArcSwap<EngineConfig>,
    pub(crate) machine: Arc<dyn Machine>,
    pub(crate) ids: Ids,
    pub(crate) tenants: DashMap<TenantId, Arc<Tenant>>,
    pub(crate) table: Arc<Table>,
    pub(crate) flights: Flights,
    pub(crate) capacity: Capacity,
    pub(crate) journal: Arc<Journal>,
    pub(crate) mender: Arc<Mender>,
    pub(crate) stats: Arc<Stats>,
    pub(crate) outbox: Arc<Outbox>,
    /// Rung when something has happened that watchers may want to know.
    pub(crate) bell: Arc<Bell>,
    /// Told when tenants have other policies.
    pub(crate) policies_changed: Notify,
    pub(crate) retired_keys: crate::end::RetiredKeys,
    pub(crate) models: ArcSwap<Models>,
    pub(crate) scale_ids: ScaleIds,
    pub(crate) prompts: Prompts,
    pub(crate) compactions: Compactions,
    pub(crate) counts: RemoteCounts,
    pub(crate) blocking: Blocking,
    pub(crate) supervisor: Supervisor,
}

/// Where the stores' blocking calls run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocking {
    /// On tokio's pool of threads for such calls.
    Pool,
    /// Where they stand: a simulation with a seed then repeats exactly.
    Inline,
}

impl Blocking {
    /// Runs a blocking call.
    ///
    /// # Errors
    /// When the call panicked.
    pub async fn run<T: Send + 'static>(
        self,
        action: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, EngineError> {
        if self == Self::Inline {
            return Ok(action());
        }
        tokio::task::spawn_blocking(action)
            .await
            .map_err(|error| EngineError::JournalFailed {
                detail: error.to_string(),
            })
    }
}

impl Engine {
    /// Starts the engine with everything that lives in `journal`, ends what expired while
    /// nobody looked, and starts the background work. Without a journal, or with durability
    /// `off`, no session is kept.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn open(
        config: EngineConfig,
        journal: Option<Arc<dyn Store>>,
        machine: Arc<dyn Machine>,
        blocking: Blocking,
    ) -> Result<Self, EngineError> {
        let tenants = config.tenants.iter().map(|tenant| {
            let built = Tenant::new(tenant.id.clone(), Policy::of(&config, &tenant.id));
            (tenant.id.clone(), Arc::new(built))
        });
        let kept = journal.filter(|_| config.journal.durability != Durability::Off);
        let outbox = Outbox::new(kept.clone(), blocking, config.hooks.clone());
        let bell: Arc<Bell> = Arc::default();
        let (told, clock) = (Arc::clone(&bell), Arc::clone(&machine));
        let scale_ids = ScaleIds::default();
        let models = Models::new(&config.context, &scale_ids);
        let shared = Shared {
            tenants: tenants.collect(),
            machine,
            ids: Ids::default(),
            outbox: Arc::new(outbox),
            bell,
            policies_changed: Notify::new(),
            table: Arc::default(),
            flights: Flights::default(),
            capacity: Capacity::new(config.sessions.max_sessions),
            journal: Arc::new(Journal::new(&config.journal, kept, blocking, told, clock)),
            mender: Arc::default(),
            stats: Arc::default(),
            retired_keys: crate::end::RetiredKeys::default(),
            models: ArcSwap::from_pointee(models),
            scale_ids,
            prompts: Prompts::default(),
            compactions: Compactions::default(),
            counts: RemoteCounts::default(),
            blocking,
            supervisor: Supervisor::default(),
            config: ArcSwap::from_pointee(config),
        };
        let engine = Self {
            shared: Arc::new(shared),
        };
        engine.recover().await?;
        engine.start_workers();
        if let Err(error) = engine.end_what_may_not_live().await {
            warn!(%error, "not all sessions that have to end could; they are tried again");
        }
        Ok(engine)
    }

    async fn end_what_may_not_live(&self) -> Result<(), EngineError> {
        self.enforce_caps().await?;
        self.sweep(None).await.map(drop)
    }

    fn start_workers(&self) {
        let shared = &self.shared;
        if shared.journal.is_on() {
            shared.supervisor.run(Committer {
                journal: Arc::clone(&shared.journal),
                machine: Arc::clone(&shared.machine),
                stats: Arc::clone(&shared.stats),
                mender: Arc::clone(&shared.mender),
                last_batch: 0,
                table: Arc::clone(&shared.table),
                outbox: Arc::clone(&shared.outbox),
            });
        }
        shared.supervisor.run(Pruner {
            engine: self.clone(),
            has_more: true,
        });
        shared.supervisor.run(Dispatcher::new(self.clone()));
        shared.supervisor.run(MendWorker {
            engine: self.clone(),
        });
        shared.supervisor.run(Sweeper {
            engine: self.clone(),
            is_overdue: false,
        });
        shared.supervisor.run(Compactor::new(self.clone()));
    }

    /// The tenant of this id, if it is known.
    pub fn tenant(&self, id: &TenantId) -> Option<Arc<Tenant>> {
        self.shared
            .tenants
            .get(id)
            .map(|tenant| Arc::clone(&tenant))
    }

    /// All tenants, ordered by id.
    pub fn tenants(&self) -> Vec<Arc<Tenant>> {
        let mut all: Vec<_> = self
            .shared
            .tenants
            .iter()
            .map(|tenant| Arc::clone(&tenant))
            .collect();
        all.sort_by(|a, b| a.id.cmp(&b.id));
        all
    }

    /// Counts at this moment.
    pub fn stats(&self) -> StatsSnapshot {
        let load = |counter: &std::sync::atomic::AtomicU64| {
            counter.load(std::sync::atomic::Ordering::Relaxed)
        };
        let tenants = self.tenants().into_iter().map(|tenant| {
            let mut snapshot = tenant.stats.snapshot(tenant.id.clone());
            snapshot.sessions_live = self.shared.capacity.of(&tenant.id) as u64;
            let policy = tenant.policy();
            snapshot.max_sessions = policy.max_sessions as u64;
            snapshot.session_ttl_ms = policy.ttl_ms;
            snapshot.max_history_turns = policy.limits.max_history_turns as u64;
            snapshot
        });
        StatsSnapshot {
            tenants: tenants.collect(),
            commits: load(&self.shared.stats.commits),
            commit_sets: load(&self.shared.stats.commit_sets),
            commit_failures: load(&self.shared.stats.commit_failures),
        }
    }

    /// How long commits take and how much they hold, for a metrics registry.
    pub fn commit_stats(&self) -> Arc<Stats> {
        Arc::clone(&self.shared.stats)
    }

    /// What the background workers have done so far.
    pub fn workers(&self) -> Vec<Arc<WorkerStatus>> {
        self.shared.supervisor.statuses()
    }

    /// Cancelled when a background worker has panicked: the process has to end.
    pub fn broken(&self) -> CancellationToken {
        self.shared.supervisor.broken()
    }

    /// Stops the background work and writes what waits. Without a journal every session
    /// ends, with its hooks. No call may follow.
    pub async fn close(&self) {
        if !self.shared.journal.is_on()
            && let Err(error) = self.end_all(EndReason::Shutdown).await
        {
            warn!(%error, "not all sessions could be ended");
        }
        self.shared.supervisor.stop().await;
    }

    pub(crate) fn new_generation(&self, now: Now) -> Generation {
        self.shared.ids.generation(&*self.shared.machine, now.wall)
    }

    /// Makes sure that a session which only the journal has is in memory, or that its
    /// cell is known to be of no use.
    pub(crate) async fn load(&self, cell: &Arc<SessionCell>) -> Result<(), EngineError> {
        let _flight = self.shared.flights.enter(&cell.key).await;
        match self.is_replaced(cell) {
            true => Ok(()),
            false => self.reload(cell).await,
        }
    }

    /// The same, perhaps at the same time as others. For whoever is in a flight already:
    /// nobody waits for a second one.
    pub(crate) async fn reload(&self, cell: &Arc<SessionCell>) -> Result<(), EngineError> {
        let (ticket, epoch) = {
            let inner = cell.lock();
            if matches!(inner.residence(), Residence::Live(_) | Residence::Gone) {
                return Ok(());
            }
            (inner.ticket, inner.epoch)
        };
        self.shared.journal.settled(ticket).await;
        let saved = match self.shared.journal.is_on() {
            true => self.read_session(&cell.key, &cell.tenant).await?,
            // A session that a panic left half changed, and no journal to ask.
            false => None,
        };
        let mut inner = cell.lock();
        // Meanwhile it may have ended, been thrown away again, or been loaded and changed.
        let is_wanted = matches!(inner.residence(), Residence::Stored(_) | Residence::Unknown);
        if inner.epoch != epoch || !is_wanted {
            return Ok(());
        }
        if let Some(mut session) = saved {
            let now = self.shared.machine.now().steady;
            session.used_at_most(inner.head().map_or(now, |known| known.last_access));
            inner.settle(&cell.tenant, Residence::Live(session));
            return Ok(());
        }
        self.leave(cell, &mut inner, None);
        self.shared.table.remove(cell);
        Ok(())
    }

    async fn read_session(
        &self,
        key: &SessionKey,
        tenant: &Arc<Tenant>,
    ) -> Result<Option<memoird_core::session::Session>, EngineError> {
        let since = self.keys_since(tenant);
        let (wanted, policy) = (key.clone(), tenant.policy());
        self.shared
            .journal
            .with_store(move |store| {
                let saved = store.load(&wanted, since)?;
                Ok(saved.map(|saved| {
                    let mut session = memoird_core::session::Session::restore(saved);
                    session.trim(&policy.limits);
                    session
                }))
            })
            .await
    }

    /// The age up to which idempotency keys count.
    pub(crate) fn keys_since(&self, tenant: &Tenant) -> memoird_core::time::Steady {
        let now = self.shared.machine.now().steady.0;
        memoird_core::time::Steady(now.saturating_sub(tenant.policy().limits.idempotency_ms))
    }

    /// The tenant of a session in the journal; one that the configuration does not know
    /// any more lives by the common limits until its sessions end.
    pub fn tenant_or_common(&self, id: &TenantId) -> Arc<Tenant> {
        let common = || {
            let policy = Policy::of(&self.shared.config.load(), id);
            Arc::new(Tenant::new(id.clone(), policy))
        };
        Arc::clone(&self.shared.tenants.entry(id.clone()).or_insert_with(common))
    }
}
