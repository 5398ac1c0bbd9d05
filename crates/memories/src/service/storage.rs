//! Access to the memories of all tenants.
//!
//! All writes of a tenant go through one queue ([`write_queue`](super::write_queue)) and are
//! committed in groups. Reads bypass it.

use std::sync::{Arc, Mutex};

use arc_swap::ArcSwap;
use dashmap::DashMap;
use memoird_core::ids::{MemoryId, TenantId};
use memoird_core::time::Timestamp;
use memoird_engine::Engine;

use super::tenants::{TenantQueue, TenantState};
use crate::config::MemoriesConfig;
use crate::error::MemoryError;
use crate::lock;
use crate::rules::MemoryLimits;
use crate::store::{FactLookup, MemoryReader, MemoryStore, MemoryWriter};

/// Reads and queued writes of all tenants, and their state in memory.
#[derive(Debug)]
pub(crate) struct MemoryStorage {
    pub(crate) engine: Engine,
    /// `None` if long-term memory is disabled. Every call is then rejected.
    store: Option<Arc<MemoryStore>>,
    config: ArcSwap<MemoriesConfig>,
    tenants: DashMap<TenantId, Arc<TenantState>>,
    last_id: Mutex<Option<MemoryId>>,
    /// Tenants that may have texts queued for embedding.
    pub(crate) embedding: TenantQueue,
    /// Tenants with recall events to write, or with unfinished forget jobs.
    pub(crate) maintenance: TenantQueue,
}

/// Guard for a write whose caller may be dropped before it completes.
///
/// The queued job is written anyway: by the tenant's next write, or else by the maintenance worker,
/// which the guard notifies.
struct Abandoned<'a> {
    storage: &'a MemoryStorage,
    tenant: &'a TenantId,
    is_answered: bool,
}

impl Drop for Abandoned<'_> {
    fn drop(&mut self) {
        if !self.is_answered {
            self.storage.maintenance.add(self.tenant);
        }
    }
}

impl MemoryStorage {
    pub(super) fn new(
        engine: Engine,
        store: Option<Arc<MemoryStore>>,
        mut config: MemoriesConfig,
    ) -> Self {
        if store.as_ref().is_some_and(|store| !store.has_vectors()) {
            // The store has no vector support, so do not compute vectors.
            config.embedder = None;
        }
        Self {
            engine,
            store,
            config: ArcSwap::from_pointee(config),
            tenants: DashMap::default(),
            last_id: Mutex::default(),
            embedding: TenantQueue::default(),
            maintenance: TenantQueue::default(),
        }
    }

    /// Applies a reloaded configuration, except for the embedder and the reranker.
    ///
    /// Vectors of another model would have to be computed first, which only happens after a
    /// restart.
    pub(super) fn adopt(&self, mut config: MemoriesConfig) {
        let running = self.config();
        config.embedder.clone_from(&running.embedder);
        config.reranker.clone_from(&running.reranker);
        self.config.store(Arc::new(config));
    }

    pub(crate) fn is_on(&self) -> bool {
        self.store.is_some()
    }

    /// Whether other daemons write to the same memories.
    pub(crate) fn are_shared(&self) -> bool {
        self.engine.cluster().is_some()
    }

    /// Whether this daemon runs the tasks that must run once per cluster.
    pub(crate) fn leads(&self) -> bool {
        let cluster = self.engine.cluster();
        cluster.is_none_or(memoird_engine::Cluster::leads)
    }

    pub(super) fn store(&self) -> Result<&Arc<MemoryStore>, MemoryError> {
        self.store.as_ref().ok_or(MemoryError::Off)
    }

    pub(crate) fn config(&self) -> Arc<MemoriesConfig> {
        self.config.load_full()
    }

    pub(crate) fn limits(&self) -> MemoryLimits {
        self.config().limits.clone()
    }

    /// The current time. Daemons that share a database use its clock, so that a memory expires for
    /// all of them at once.
    pub(crate) fn now(&self) -> Timestamp {
        let shared = self.store.as_ref().and_then(|store| store.now());
        shared.unwrap_or_else(|| self.engine.machine.now().wall)
    }

    /// Returns the state of a tenant.
    ///
    /// It is small, and never removed once the tenant has made a call.
    pub(crate) fn state(&self, tenant: &TenantId) -> Arc<TenantState> {
        if let Some(state) = self.tenants.get(tenant) {
            return Arc::clone(&state);
        }
        let state = || Arc::new(TenantState::new(tenant.clone()));
        let tenants = &self.tenants;
        Arc::clone(&tenants.entry(tenant.clone()).or_insert_with(state))
    }

    /// Generates an id for a memory or a job.
    ///
    /// Ids are strictly increasing, even within a millisecond.
    pub(super) fn next_id(&self, at: Timestamp) -> MemoryId {
        let random = self.engine.machine.random();
        let mut last = lock(&self.last_id);
        let next = MemoryId::after(*last, at.as_ms(), random);
        *last = Some(next);
        next
    }

    /// Lists the tenants that have memories, and registers them with the engine.
    pub(crate) async fn tenants(&self) -> Result<Vec<TenantId>, MemoryError> {
        self.listed(MemoryStore::tenants).await
    }

    /// Lists the tenants that have maintenance work.
    pub(crate) async fn tenants_due(
        &self,
        expired_before: Timestamp,
    ) -> Result<Vec<TenantId>, MemoryError> {
        let now = self.now();
        self.listed(move |store| store.tenants_due(now, expired_before))
            .await
    }

    async fn listed(
        &self,
        list: impl FnOnce(&MemoryStore) -> Result<Vec<TenantId>, MemoryError> + Send + 'static,
    ) -> Result<Vec<TenantId>, MemoryError> {
        let tenants = self.run(list).await?;
        for tenant in &tenants {
            self.engine.tenants.get_or_insert(tenant);
        }
        Ok(tenants)
    }

    /// Runs a blocking call of the store.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        call: impl FnOnce(&MemoryStore) -> Result<T, MemoryError> + Send + 'static,
    ) -> Result<T, MemoryError> {
        let store = Arc::clone(self.store()?);
        self.engine.blocking.run(move || call(&store)).await?
    }

    /// Runs a write on a tenant's memories. Returns once it is durable.
    pub(crate) async fn write<T: Send + 'static>(
        &self,
        tenant: &TenantId,
        job: impl FnOnce(&MemoryWriter<'_>) -> Result<T, MemoryError> + Send + 'static,
    ) -> Result<T, MemoryError> {
        self.write_fact(tenant, None, job).await
    }

    /// Runs a write that may remember a fact. Facts of queued writes are looked up together.
    pub(crate) async fn write_fact<T: Send + 'static>(
        &self,
        tenant: &TenantId,
        fact: Option<FactLookup>,
        job: impl FnOnce(&MemoryWriter<'_>) -> Result<T, MemoryError> + Send + 'static,
    ) -> Result<T, MemoryError> {
        let store = self.store()?;
        let mut abandoned = Abandoned {
            storage: self,
            tenant,
            is_answered: false,
        };
        let blocking = self.engine.blocking;
        let answer = self.state(tenant).write(store, blocking, fact, job).await;
        abandoned.is_answered = true;
        answer
    }

    pub(crate) async fn flush(&self, tenant: &TenantId) -> Result<(), MemoryError> {
        let (store, blocking) = (self.store()?, self.engine.blocking);
        self.state(tenant).flush(store, blocking).await
    }

    /// Runs a read on a consistent snapshot of a tenant's memories.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        tenant: &TenantId,
        look: impl FnOnce(&MemoryReader<'_>) -> Result<T, MemoryError> + Send + 'static,
    ) -> Result<T, MemoryError> {
        let (store, state) = (Arc::clone(self.store()?), self.state(tenant));
        let read = move || {
            let memories = store.tenant(&state.tenant)?;
            memories.read(|reader| {
                let found = look(reader);
                state.note_damage(reader.take_damage());
                found
            })
        };
        self.engine.readers.run(Some(tenant), read).await?
    }

    /// Truncates the WAL, which may still contain forgotten text.
    ///
    /// Returns `false` while a reader blocks it.
    pub(crate) async fn truncate_log(&self, tenant: &TenantId) -> Result<bool, MemoryError> {
        let tenant = tenant.clone();
        self.run(move |store| store.tenant(&tenant)?.truncate_log())
            .await
    }
}
