//! Opens the engine's components, and closes them in order.

mod cluster_worker;
mod event_exchange;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use memoird_core::change::EndReason;
use memoird_store::{EventSubscription, Store};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::blocking::{Blocking, Executor};
use crate::cluster::Cluster;
use crate::commands::Commands;
use crate::compaction::{Compaction, CompactionQueue, CompactionWorker};
use crate::config::EngineConfig;
use crate::eraser::Eraser;
use crate::erasure::Erasures;
use crate::error::EngineError;
use crate::events::EventSignal;
use crate::hooks::{Hooks, RetentionConfig};
use crate::journal::{Durability, Journal};
use crate::machine::Machine;
use crate::models::ModelRegistry;
use crate::outbox::Outbox;
use crate::sessions::{SessionParts, Sessions};
use crate::stats::{Stats, StatsSnapshot};
use crate::store_handle::{CommitHandle, StoreHandle};
use crate::tenants::Tenants;
use crate::transcripts::Transcripts;
use crate::watch::Events;
use crate::worker::{LeaderOnly, Supervisor, Worker, WorkerStatus};
use cluster_worker::ClusterWorker;
use event_exchange::EventExchanger;

/// Handle to all components. Clones are cheap and share the same engine.
#[derive(Clone, Debug)]
pub struct Engine {
    pub tenants: Arc<Tenants>,
    pub sessions: Sessions,
    pub commands: Commands,
    pub compaction: Compaction,
    pub hooks: Hooks,
    pub erasures: Erasures,
    /// Journaled turns, for an index that follows the journal.
    pub transcripts: Transcripts,
    pub events: Events,
    pub machine: Arc<dyn Machine>,
    pub blocking: Blocking,
    /// Threads that read files for calls, shared fairly between tenants.
    pub readers: Executor,
    models: Arc<ModelRegistry>,
    stats: Arc<Stats>,
    supervisor: Arc<Supervisor>,
    cluster: Option<Cluster>,
    store: StoreHandle,
}

impl Engine {
    /// Opens the engine with the live sessions of `journal`, and starts the background workers.
    ///
    /// The workers end sessions that expired during the downtime or exceed the caps, without
    /// delaying calls. In a cluster, sessions are loaded on demand instead. Without a journal, or
    /// with durability `off`, no session survives the process.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn open(
        config: EngineConfig,
        journal: Option<Arc<dyn Store>>,
        machine: Arc<dyn Machine>,
        blocking: Blocking,
    ) -> Result<Self, EngineError> {
        let engine = Self::compose(&config, journal, machine, blocking)?;
        engine.sessions.recover().await?;
        let supervisor = &engine.supervisor;
        engine
            .sessions
            .start_workers(supervisor, &engine.stats, blocking);
        engine
            .hooks
            .start_workers(supervisor, engine.cluster.as_ref());
        supervisor.run(CompactionWorker::new(engine.compaction.clone()));
        if engine.cluster.is_some() {
            supervisor.run(ClusterWorker {
                outbox: engine.hooks.outbox(),
                store: engine.store.clone(),
                erasures: engine.erasures.clone(),
                machine: Arc::clone(&engine.machine),
            });
            supervisor.run(EventExchanger {
                store: engine.store.clone(),
                events: engine.events.clone(),
                machine: Arc::clone(&engine.machine),
                watched: EventSubscription::default(),
                has_more: false,
            });
        }
        Ok(engine)
    }

    fn compose(
        config: &EngineConfig,
        journal: Option<Arc<dyn Store>>,
        machine: Arc<dyn Machine>,
        blocking: Blocking,
    ) -> Result<Self, EngineError> {
        let is_kept = config.journal.durability != Durability::Off;
        let readers = Executor::readers(blocking);
        let journal_store = journal
            .filter(|_| is_kept)
            .map(|store| StoreHandle::new(store, readers.clone(), blocking));
        let tenants = Arc::new(Tenants::new(config.tenants()));
        let store = match &journal_store {
            Some(store) => store.clone(),
            None => StoreHandle::in_memory(tenants.memory())?,
        };
        tenants.memory().set_limit(config.memory_bytes);
        tenants.journal().set_limit(config.journal_bytes);
        let stats = Arc::<Stats>::default();
        let models = Arc::new(ModelRegistry::new(&config.context));
        let event_signal = Arc::<EventSignal>::default();
        let outbox = Arc::new(Outbox::new(
            store.clone(),
            config.hooks.clone(),
            tenants.memory(),
        ));
        let commits = journal_store
            .as_ref()
            .map(|store| CommitHandle::new(store, blocking));
        let sessions = Sessions::new(
            SessionParts {
                tenants: Arc::clone(&tenants),
                machine: Arc::clone(&machine),
                journal: Journal::new(&config.journal, commits),
                store: journal_store,
                outbox: Arc::clone(&outbox),
                event_signal: Arc::clone(&event_signal),
                idempotency_ms: config.limits.idempotency_ms,
                nonce_secret: config.nonce_secret.clone(),
                cluster: config.cluster.clone(),
            },
            config.sessions.max_sessions,
        );
        let compaction_queue = Arc::<CompactionQueue>::default();
        let compaction = Compaction::new(
            config.compaction.clone(),
            sessions.clone(),
            Arc::clone(&compaction_queue),
            Arc::clone(&models),
            Arc::clone(&stats),
            blocking,
        );
        let erasures = Erasures::new(sessions.clone(), Arc::clone(&outbox), store.clone());
        let hooks = Hooks::new(
            outbox,
            store.clone(),
            sessions.clone(),
            Arc::clone(&stats),
            retention_of(config),
        );
        let commands = Commands::new(
            sessions.clone(),
            compaction_queue,
            Arc::clone(&models),
            config.context.settings,
            blocking,
        );
        Ok(Self {
            events: Events::new(
                Arc::clone(&tenants),
                event_signal,
                Arc::clone(&machine),
                config.cluster.as_ref(),
            ),
            tenants,
            transcripts: Transcripts::new(sessions.clone()),
            sessions,
            commands,
            compaction,
            hooks,
            erasures,
            machine,
            blocking,
            readers,
            models,
            stats,
            supervisor: Arc::default(),
            cluster: config.cluster.clone(),
            store,
        })
    }

    /// Applies a new configuration to the running engine.
    ///
    /// When this returns, sessions above lowered caps are evicted, sessions past a shortened TTL
    /// are expired, and histories above lowered limits are shortened. Other sessions stay live. The
    /// durability and the size of the journal queue do not change. A tenant that is no longer
    /// configured has the common limits until its sessions end.
    pub async fn reconfigure(&self, config: EngineConfig) {
        self.adopt(config);
        self.enforce_limits().await;
    }

    /// First half of [`Self::reconfigure`]: the new settings apply to all calls from here on.
    ///
    /// Sessions that exceed the new limits are still live.
    pub fn adopt(&self, config: EngineConfig) {
        self.models.reconfigure(&config.context);
        self.commands.reconfigure(config.context.settings);
        let shortened = self.tenants.reconfigure(config.tenants());
        self.tenants.memory().set_limit(config.memory_bytes);
        self.tenants.journal().set_limit(config.journal_bytes);
        let retention = retention_of(&config);
        self.compaction.reconfigure(config.compaction);
        self.hooks.reconfigure(config.hooks, retention);
        let max_sessions = config.sessions.max_sessions;
        self.sessions
            .reconfigure(max_sessions, &config.journal, &shortened);
    }

    /// Second half of [`Self::reconfigure`]: ends the sessions that exceed the limits.
    ///
    /// In a cluster, only the leader does.
    pub async fn enforce_limits(&self) {
        if !self.leads() {
            return;
        }
        let enforced = async {
            self.sessions.enforce_caps().await?;
            // The sweeper may have ended some of them already. Wait for its writes, too.
            self.sessions.journal().wait_all_processed().await
        };
        if let Err(error) = enforced.await {
            warn!(%error, "not all sessions above the new caps could be evicted yet");
        }
        match self.sessions.sweep(None).await {
            Ok(expired) => info!(expired = expired.len(), "another configuration applies"),
            Err(error) => warn!(%error, "not all expired sessions could be ended yet"),
        }
    }

    pub fn cluster(&self) -> Option<&Cluster> {
        self.cluster.as_ref()
    }

    /// Whether this daemon runs the cluster-wide tasks. Always true without a cluster.
    pub fn leads(&self) -> bool {
        self.cluster.as_ref().is_none_or(Cluster::leads)
    }

    /// The error of the last commit, for the operator. `None` if it succeeded.
    pub fn journal_failure(&self) -> Option<String> {
        let failure = self.sessions.journal().last_failure()?;
        Some(failure.detail())
    }

    /// How long the turns of an ended generation remain readable.
    pub fn retention(&self) -> Duration {
        self.hooks.retention()
    }

    pub fn stats(&self) -> StatsSnapshot {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let tenants = self.tenants.all().into_iter().map(|tenant| {
            let policy = tenant.policy();
            let mut snapshot = tenant.stats.snapshot(tenant.id.clone());
            snapshot.sessions_live = self.sessions.count(&tenant.id) as u64;
            snapshot.max_sessions = policy.max_sessions as u64;
            snapshot.session_ttl_ms = policy.ttl_ms;
            snapshot.max_history_turns = policy.limits.max_history_turns as u64;
            snapshot
        });
        StatsSnapshot {
            tenants: tenants.collect(),
            memory: self.tenants.memory().snapshot(),
            commits: load(&self.stats.commits),
            commit_sets: load(&self.stats.commit_sets),
            commit_failures: load(&self.stats.commit_failures),
        }
    }

    /// The same, with the current number of live sessions also in a cluster.
    ///
    /// # Errors
    /// In a cluster, an error of the journal.
    pub async fn exact_stats(&self) -> Result<StatsSnapshot, EngineError> {
        let counted = self.sessions.counts_of_all().await?;
        let mut stats = self.stats();
        if let Some(counts) = counted {
            for tenant in &mut stats.tenants {
                tenant.sessions_live = counts.get(&tenant.id).map_or(0, |count| *count as u64);
            }
        }
        Ok(stats)
    }

    /// Process-wide counters and histograms, for a metrics registry.
    pub fn commit_stats(&self) -> Arc<Stats> {
        Arc::clone(&self.stats)
    }

    pub fn run_worker(&self, worker: impl Worker) {
        self.supervisor.run(worker);
    }

    /// Runs a worker until the engine is closed. In a cluster, only the leader's takes steps.
    pub fn run_worker_on_leader(&self, worker: impl Worker) {
        let worker = LeaderOnly::new(worker, self.cluster.clone());
        self.supervisor.run(worker);
    }

    /// Starts the erasure worker, which erases in the journal and in `erasers`.
    ///
    /// Before this call, erasures are only recorded as jobs.
    pub fn start_erasing(&self, erasers: Vec<Arc<dyn Eraser>>) {
        self.run_worker_on_leader(self.erasures.worker(erasers, self.stopping()));
    }

    pub fn workers(&self) -> Vec<Arc<WorkerStatus>> {
        self.supervisor.statuses.lock().clone()
    }

    /// Cancelled at shutdown. For operations in a worker's step that may hang and can be dropped.
    pub fn stopping(&self) -> CancellationToken {
        self.supervisor.stop.clone()
    }

    /// Cancelled when a background worker has panicked. The process must exit then.
    pub fn broken(&self) -> CancellationToken {
        self.supervisor.broken.clone()
    }

    /// Stops the background workers and flushes the journal queue.
    ///
    /// Without a journal, this ends every session and runs its hooks. No call may follow.
    pub async fn close(&self) {
        if !self.sessions.have_journal()
            && let Err(error) = self.sessions.end_all(EndReason::Shutdown).await
        {
            warn!(%error, "not all sessions could be ended");
        }
        self.supervisor.stop().await;
    }
}

fn retention_of(config: &EngineConfig) -> RetentionConfig {
    RetentionConfig {
        turns: config.journal.retention,
        idempotency_keys_ms: config.limits.idempotency_ms,
    }
}
