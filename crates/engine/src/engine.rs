//! The engine: opens the components, and closes them in order.

mod cluster_worker;
mod event_exchange;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use memoird_core::change::EndReason;
use memoird_store::{Store, Watched};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::blocking::{Blocking, Executor, StoreAccess};
use crate::cluster::Cluster;
use crate::commands::Commands;
use crate::compaction::{Compaction, CompactionParts, CompactionQueue, CompactionWorker};
use crate::config::EngineConfig;
use crate::eraser::Eraser;
use crate::erasure::Erasures;
use crate::error::EngineError;
use crate::events::EventSignal;
use crate::hooks::{Hooks, Outbox, RetentionConfig};
use crate::journal::{Durability, Journal};
use crate::machine::Machine;
use crate::models::ModelRegistry;
use crate::sessions::{SessionParts, Sessions};
use crate::stats::{Stats, StatsSnapshot};
use crate::tenants::Tenants;
use crate::transcripts::Transcripts;
use crate::watch::Events;
use crate::worker::{OfLeader, Supervisor, Worker, WorkerStatus};
use cluster_worker::ClusterWorker;
use event_exchange::EventExchanger;

/// All sessions of the process, component by component. Cheap to clone; every clone is the
/// same engine.
#[derive(Clone, Debug)]
pub struct Engine {
    /// Who sessions belong to.
    pub tenants: Arc<Tenants>,
    /// The sessions themselves.
    pub sessions: Sessions,
    /// What bots ask of sessions.
    pub commands: Commands,
    /// Summaries of long sessions.
    pub compaction: Compaction,
    /// Hooks and their deliveries.
    pub hooks: Hooks,
    /// What removes a session or a subject for good.
    pub erasures: Erasures,
    /// What was said, for an index that follows the journal.
    pub transcripts: Transcripts,
    /// What happens to sessions.
    pub events: Events,
    /// The clocks and the randomness.
    pub machine: Arc<dyn Machine>,
    /// Where blocking calls run.
    pub blocking: Blocking,
    /// Where files are read for calls, tenants in turn.
    pub readers: Executor,
    models: Arc<ModelRegistry>,
    stats: Arc<Stats>,
    supervisor: Arc<Supervisor>,
    cluster: Option<Cluster>,
}

impl Engine {
    /// Starts the engine with every session that lives in `journal`, and starts the background
    /// work, which ends what expired meanwhile or is above the caps: however much that is,
    /// nobody waits for it. In a cluster sessions are loaded when they are asked for. Without a
    /// journal, or with durability `off`, no session outlives the process.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn open(
        config: EngineConfig,
        journal: Option<Arc<dyn Store>>,
        machine: Arc<dyn Machine>,
        blocking: Blocking,
    ) -> Result<Self, EngineError> {
        let engine = Self::compose(&config, journal, machine, blocking);
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
                erasures: engine.erasures.clone(),
                machine: Arc::clone(&engine.machine),
            });
            supervisor.run(EventExchanger {
                outbox: engine.hooks.outbox(),
                events: engine.events.clone(),
                machine: Arc::clone(&engine.machine),
                watched: Watched::default(),
                is_behind: false,
            });
        }
        Ok(engine)
    }

    fn compose(
        config: &EngineConfig,
        journal: Option<Arc<dyn Store>>,
        machine: Arc<dyn Machine>,
        blocking: Blocking,
    ) -> Self {
        let is_kept = config.journal.durability != Durability::Off;
        let access = journal.filter(|_| is_kept);
        let readers = Executor::readers(blocking);
        let access = access.map(|store| StoreAccess::beside(readers.clone(), store, blocking));
        let tenants = Arc::new(Tenants::new(config.tenants()));
        tenants.memory().set_limit(config.memory_bytes);
        tenants.journal().set_limit(config.journal_bytes);
        let stats = Arc::<Stats>::default();
        let models = Arc::new(ModelRegistry::new(&config.context));
        let event_signal = Arc::<EventSignal>::default();
        let outbox = Outbox::new(access.clone(), config.hooks.clone(), tenants.memory());
        let outbox = Arc::new(outbox);
        let sessions = Sessions::new(
            SessionParts {
                tenants: Arc::clone(&tenants),
                machine: Arc::clone(&machine),
                journal: Journal::new(&config.journal, access),
                end_listener: Arc::clone(&outbox) as _,
                event_signal: Arc::clone(&event_signal),
                idempotency_ms: config.limits.idempotency_ms,
                mark_secret: config.mark_secret.clone(),
                cluster: config.cluster.clone(),
            },
            config.sessions.max_sessions,
        );
        let compaction_queue = Arc::<CompactionQueue>::default();
        let compaction = Compaction::new(
            CompactionParts {
                sessions: sessions.clone(),
                queue: Arc::clone(&compaction_queue),
                models: Arc::clone(&models),
                stats: Arc::clone(&stats),
                blocking,
            },
            config.compaction.clone(),
        );
        let erasures = Erasures::new(sessions.clone(), Arc::clone(&outbox), Arc::clone(&machine));
        let hooks = Hooks::new(
            outbox,
            sessions.clone(),
            Arc::clone(&machine),
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
        Self {
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
        }
    }

    /// Applies another configuration to an engine that runs: nothing stops, and no session is
    /// lost that the new limits allow. Lowered caps evict, a shortened TTL expires, and both
    /// are done when this returns; histories that are longer than allowed are shortened.
    /// Durability and the room of the journal's queue stay as they are. A tenant that is gone
    /// lives by the common limits until its sessions end.
    pub async fn reconfigure(&self, config: EngineConfig) {
        self.adopt(config);
        self.enforce_limits().await;
    }

    /// The first half of [`Self::reconfigure`]: from here on every call lives by the other
    /// configuration. Sessions that it no longer allows are still there.
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

    /// The second half: ends the sessions that the limits no longer allow.
    pub async fn enforce_limits(&self) {
        let enforced = async {
            self.sessions.enforce_caps().await?;
            // The sweeper may have been faster: its ends have to be written, too.
            self.sessions.wait_all_processed().await
        };
        if let Err(error) = enforced.await {
            warn!(%error, "not all sessions above the new caps could be evicted yet");
        }
        match self.sessions.sweep(None).await {
            Ok(expired) => info!(expired = expired.len(), "another configuration applies"),
            Err(error) => warn!(%error, "not all expired sessions could be ended yet"),
        }
    }

    /// The daemons that share the journal; `None` where this one has it alone.
    pub fn cluster(&self) -> Option<&Cluster> {
        self.cluster.as_ref()
    }

    /// True where this daemon does what is to be done once, and tells what is of all of them.
    pub fn leads(&self) -> bool {
        self.cluster.as_ref().is_none_or(Cluster::leads)
    }

    /// Why the last commit failed, for the operator; `None` where it did not.
    pub fn journal_failure(&self) -> Option<String> {
        let failure = self.sessions.journal_failure()?;
        Some(match failure {
            EngineError::JournalFailed { detail } => detail,
            other => other.to_string(),
        })
    }

    /// How long the turns of an ended generation stay readable.
    pub fn retention(&self) -> Duration {
        self.hooks.retention()
    }

    /// Counts at this moment.
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

    /// How long commits take and how much they hold, for a metrics registry.
    pub fn commit_stats(&self) -> Arc<Stats> {
        Arc::clone(&self.stats)
    }

    /// Runs a worker until the engine is closed.
    pub fn run_worker(&self, worker: impl Worker) {
        self.supervisor.run(worker);
    }

    /// Starts to erase, with all that keeps something beside the journal, until the engine is
    /// closed. Until then erasures are only written down.
    pub fn start_erasing(&self, erasers: Vec<Arc<dyn Eraser>>) {
        let worker = self.erasures.worker(erasers, self.stopping());
        let worker = OfLeader::new(worker, self.cluster.clone());
        self.supervisor.run(worker);
    }

    /// What the background workers have done so far.
    pub fn workers(&self) -> Vec<Arc<WorkerStatus>> {
        self.supervisor.statuses()
    }

    /// Cancelled when the workers are to stop: for what may hang in the middle of a step.
    pub fn stopping(&self) -> CancellationToken {
        self.supervisor.stopping()
    }

    /// Cancelled when a background worker has panicked: the process has to end.
    pub fn broken(&self) -> CancellationToken {
        self.supervisor.broken()
    }

    /// Stops the background work and writes what waits. Without a journal every session ends,
    /// with its hooks. No call may follow.
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
    RetentionConfig::new(config.journal.retention, config.limits.idempotency_ms)
}
