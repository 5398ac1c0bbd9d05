//! The calls of long-term memory.
//!
//! All writes of a tenant go through one queue ([`write_queue`]) and are committed in groups. Reads
//! bypass it.

mod documents;
mod embedder_check;
mod erase;
mod extraction;
mod forget;
mod learning;
mod manifests;
mod recall;
mod remember;
mod sources;
mod tenants;
mod window;
mod write_queue;

use std::sync::{Arc, Mutex};

use arc_swap::ArcSwap;
use dashmap::DashMap;
use memoird_core::breaker::Breaker;
use memoird_core::ids::{MemoryId, Subject, TenantId};
use memoird_core::time::Timestamp;
use memoird_engine::{Engine, Tenant};
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use tokio::sync::Notify;

use self::embedder_check::EmbedderCheck;
use self::extraction::DroppedLease;
use self::recall::QueryVectors;
use self::tenants::{TenantQueue, TenantState};
use crate::config::MemoriesConfig;
use crate::counters::MemorySnapshot;
use crate::error::MemoryError;
use crate::lock;
use crate::requests::{Conflicts, ListRequest, MemoryPage, MemoryStats, SubjectPage};
use crate::rules::manifest::{Caps, Manifest, manifest};
use crate::rules::{Memory, MemoryLimits, external_key};
use crate::store::{MemoryReader, MemoryStore, MemoryWriter};
use crate::workers;

pub(crate) use forget::Unfinished;
pub use window::RecallForWindow;

/// Handle to the memories of all tenants. Clones share their state.
///
/// Every call returns an error if the memories cannot be read or written.
#[derive(Clone, Debug)]
pub struct Memories {
    pub(crate) shared: Arc<Shared>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) engine: Engine,
    /// `None` if long-term memory is disabled. Every call is then rejected.
    store: Option<Arc<MemoryStore>>,
    config: ArcSwap<MemoriesConfig>,
    tenants: DashMap<TenantId, Arc<TenantState>>,
    query_vectors: QueryVectors,
    /// Measures whether the embedder distinguishes texts.
    pub(crate) embedder_check: EmbedderCheck,
    reranker_breaker: Mutex<Breaker>,
    last_id: Mutex<Option<MemoryId>>,
    recall_seconds: Histogram,
    /// Circuit breaker of the extraction model.
    extractor_breaker: Mutex<Breaker>,
    dropped_leases: Mutex<Vec<DroppedLease>>,
    /// Signals a changed configuration, or leases to release.
    pub(crate) extraction_changed: Notify,
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
    shared: &'a Shared,
    tenant: &'a TenantId,
    is_answered: bool,
}

impl Drop for Abandoned<'_> {
    fn drop(&mut self) {
        if !self.is_answered {
            self.shared.maintenance.add(self.tenant);
        }
    }
}

impl Memories {
    /// Serves the memories in `store` and starts the workers, which run until `engine` is closed.
    ///
    /// Without a store every call is rejected.
    pub fn open(
        engine: Engine,
        store: Option<Arc<MemoryStore>>,
        mut config: MemoriesConfig,
    ) -> Self {
        if store.as_ref().is_some_and(|store| !store.has_vectors()) {
            // The store has no vector support, so do not compute vectors.
            config.embedder = None;
        }
        let shared = Shared {
            engine,
            store,
            config: ArcSwap::from_pointee(config),
            tenants: DashMap::default(),
            query_vectors: QueryVectors::default(),
            embedder_check: EmbedderCheck::default(),
            reranker_breaker: Mutex::default(),
            last_id: Mutex::default(),
            recall_seconds: Histogram::new(exponential_buckets(0.000_25, 2.0, 14)),
            extractor_breaker: Mutex::default(),
            dropped_leases: Mutex::default(),
            extraction_changed: Notify::new(),
            embedding: TenantQueue::default(),
            maintenance: TenantQueue::default(),
        };
        let memories = Self {
            shared: Arc::new(shared),
        };
        workers::start(&memories);
        memories
    }

    /// Applies a reloaded configuration, except for the embedder and the reranker.
    ///
    /// Vectors of another model would have to be computed first, which only happens after a
    /// restart.
    pub fn adopt(&self, mut config: MemoriesConfig) {
        let running = self.config();
        config.embedder.clone_from(&running.embedder);
        config.reranker.clone_from(&running.reranker);
        self.shared.config.store(Arc::new(config));
        self.shared.extraction_changed.notify_one();
    }

    /// Counters of a tenant's memories since the daemon started.
    pub fn counts(&self, tenant: &TenantId) -> MemorySnapshot {
        self.state(tenant).counters.snapshot()
    }

    /// Duration of recalls, including the embedding of the query, for a metrics registry.
    pub fn recall_seconds(&self) -> Histogram {
        self.shared.recall_seconds.clone()
    }

    pub(crate) fn is_on(&self) -> bool {
        self.shared.store.is_some()
    }

    /// Whether other daemons write to the same memories.
    pub(crate) fn are_shared(&self) -> bool {
        self.shared.engine.cluster().is_some()
    }

    /// Whether this daemon runs the tasks that must run once per cluster.
    pub(crate) fn leads(&self) -> bool {
        let cluster = self.shared.engine.cluster();
        cluster.is_none_or(memoird_engine::Cluster::leads)
    }

    fn store(&self) -> Result<&Arc<MemoryStore>, MemoryError> {
        self.shared.store.as_ref().ok_or(MemoryError::Off)
    }

    pub(crate) fn config(&self) -> Arc<MemoriesConfig> {
        self.shared.config.load_full()
    }

    pub fn limits(&self) -> MemoryLimits {
        self.config().limits.clone()
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.shared.engine.machine.now().wall
    }

    /// Returns the state of a tenant.
    ///
    /// It is small, and never removed once the tenant has made a call.
    pub(crate) fn state(&self, tenant: &TenantId) -> Arc<TenantState> {
        if let Some(state) = self.shared.tenants.get(tenant) {
            return Arc::clone(&state);
        }
        let state = || Arc::new(TenantState::new(tenant.clone()));
        let tenants = &self.shared.tenants;
        Arc::clone(&tenants.entry(tenant.clone()).or_insert_with(state))
    }

    /// Generates an id for a memory or a job.
    ///
    /// Ids are strictly increasing, even within a millisecond.
    fn next_id(&self, at: Timestamp) -> MemoryId {
        let random = self.shared.engine.machine.random();
        let mut last = lock(&self.shared.last_id);
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
        let store = Arc::clone(self.store()?);
        let list = move || list(&store);
        let tenants: Vec<TenantId> = self.shared.engine.blocking.run(list).await??;
        for tenant in &tenants {
            self.shared.engine.tenants.get_or_insert(tenant);
        }
        Ok(tenants)
    }

    /// Creates missing indexes for the vectors of very large subjects.
    pub(crate) async fn make_vector_indexes(&self) -> Result<(), MemoryError> {
        let store = Arc::clone(self.store()?);
        let make = move || store.make_vector_indexes();
        self.shared.engine.blocking.run(make).await?
    }

    /// Runs a write on a tenant's memories. Returns once it is durable.
    pub(crate) async fn write<T: Send + 'static>(
        &self,
        tenant: &TenantId,
        job: impl FnOnce(&MemoryWriter<'_>) -> Result<T, MemoryError> + Send + 'static,
    ) -> Result<T, MemoryError> {
        let store = self.store()?;
        let mut abandoned = Abandoned {
            shared: &self.shared,
            tenant,
            is_answered: false,
        };
        let blocking = self.shared.engine.blocking;
        let answer = self.state(tenant).write(store, blocking, job).await;
        abandoned.is_answered = true;
        answer
    }

    pub(crate) async fn flush(&self, tenant: &TenantId) -> Result<(), MemoryError> {
        let (store, blocking) = (self.store()?, self.shared.engine.blocking);
        self.state(tenant).flush(store, blocking).await
    }

    /// Runs a read on a consistent snapshot of a tenant's memories.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        tenant: &TenantId,
        look: impl FnOnce(&MemoryReader<'_>) -> Result<T, MemoryError> + Send + 'static,
    ) -> Result<T, MemoryError> {
        let (store, owner) = (Arc::clone(self.store()?), tenant.clone());
        let read = move || store.tenant(&owner)?.read(look);
        self.shared.engine.readers.run(Some(tenant), read).await?
    }

    /// Journal position up to which extraction is done. `None` if it never ran.
    pub(crate) async fn read_learnt(&self) -> Result<Option<u64>, MemoryError> {
        let store = Arc::clone(self.store()?);
        let read = move || store.read_learnt();
        self.shared.engine.blocking.run(read).await?
    }

    pub(crate) async fn write_learnt(&self, number: u64) -> Result<(), MemoryError> {
        let store = Arc::clone(self.store()?);
        let write = move || store.write_learnt(number);
        self.shared.engine.blocking.run(write).await?
    }

    /// Returns one memory. With a subject, only if the subject may see it.
    ///
    /// # Errors
    /// [`MemoryError::NotFound`].
    pub async fn memory(
        &self,
        tenant: &Tenant,
        id: MemoryId,
        subject: Option<Subject>,
    ) -> Result<Memory, MemoryError> {
        let memory = self.read(&tenant.id, move |reader| reader.get(id)).await?;
        memory
            .filter(|memory| subject.is_none_or(|subject| memory.is_visible_to(&subject)))
            .ok_or(MemoryError::NotFound { id })
    }

    pub async fn list(
        &self,
        tenant: &Tenant,
        request: ListRequest,
    ) -> Result<MemoryPage, MemoryError> {
        let now = self.now();
        let read = move |reader: &MemoryReader<'_>| reader.page_of(&request, now);
        self.read(&tenant.id, read).await
    }

    /// Lists a page of subjects that have memories.
    pub async fn subjects(
        &self,
        tenant: &Tenant,
        prefix: String,
        after: Option<Subject>,
        count: usize,
    ) -> Result<SubjectPage, MemoryError> {
        let now = self.now();
        let read = move |reader: &MemoryReader<'_>| {
            reader.subjects(&prefix, after.as_ref(), count.saturating_add(1), now)
        };
        let mut subjects = self.read(&tenant.id, read).await?;
        let has_more = subjects.len() > count;
        subjects.truncate(count);
        Ok(SubjectPage { subjects, has_more })
    }

    /// Returns the current memory of a subject with this external key.
    ///
    /// # Errors
    /// [`MemoryError::KeyNotFound`].
    pub async fn memory_of_key(
        &self,
        tenant: &Tenant,
        subject: Subject,
        key: String,
    ) -> Result<Memory, MemoryError> {
        external_key(&key)?;
        let wanted = key.clone();
        let read = move |reader: &MemoryReader<'_>| reader.named(&subject, &wanted);
        let found = self.read(&tenant.id, read).await?;
        found.ok_or(MemoryError::KeyNotFound { key })
    }

    /// Finds up to `count_max` pairs of possible contradictions among a subject's newest memories.
    pub async fn conflicts(
        &self,
        tenant: &Tenant,
        subject: Subject,
        count_max: usize,
    ) -> Result<Conflicts, MemoryError> {
        let now = self.now();
        let read = move |reader: &MemoryReader<'_>| {
            reader.conflicts(&subject, MemoryLimits::COMPARED, count_max, now)
        };
        self.read(&tenant.id, read).await
    }

    pub async fn stats(&self, tenant: &Tenant) -> Result<MemoryStats, MemoryError> {
        let (config, now) = (self.config(), self.now());
        let reranker = config.reranker.as_ref().map(|one| one.name().to_owned());
        let read = move |reader: &MemoryReader<'_>| {
            let model = config.embedder.as_ref().map(|embedder| embedder.model());
            reader.stats(model, now)
        };
        let stats = self.read(&tenant.id, read).await?;
        Ok(MemoryStats { reranker, ..stats })
    }

    /// Rebuilds the indexes in the background. Returns the number of memories queued for embedding.
    pub async fn reindex(&self, tenant: &Tenant) -> Result<u64, MemoryError> {
        // On drop, hands the work to the maintenance worker, also if this call is cancelled.
        let _unfinished = Unfinished::new(self, &tenant.id, None);
        let begin = |writer: &MemoryWriter<'_>| writer.reindex_begin();
        self.write(&tenant.id, begin).await?;
        let stats = self.stats(tenant).await?;
        Ok(if stats.embedding_model.is_some() {
            stats.memories
        } else {
            0
        })
    }
    /// Returns the manifest of a subject. 0 lines or bytes select the maximum.
    pub async fn manifest(
        &self,
        tenant: &Tenant,
        subject: Subject,
        lines_max: usize,
        bytes_max: usize,
    ) -> Result<Arc<Manifest>, MemoryError> {
        let at_most =
            |asked: usize, limit: usize| if asked == 0 { limit } else { asked.min(limit) };
        let caps = Caps {
            lines: at_most(lines_max, MemoryLimits::MANIFEST_LINES),
            bytes: at_most(bytes_max, MemoryLimits::MANIFEST_BYTES),
        };
        let key = (subject, caps.lines, caps.bytes);
        let state = self.state(&tenant.id);
        let now = self.now();
        // Writes of other daemons do not invalidate the local cache.
        let version = if self.are_shared() {
            None
        } else {
            match state.manifests.get(&key, now) {
                Ok(known) => return Ok(known),
                Err(version) => Some(version),
            }
        };
        let subject = key.0.clone();
        let read = move |reader: &MemoryReader<'_>| reader.manifest(&subject, now, caps.lines);
        let rows = self.read(&tenant.id, read).await?;
        let made = Arc::new(manifest(&rows.memories, rows.total, caps));
        if let Some(version) = version {
            state
                .manifests
                .keep(version, key, Arc::clone(&made), rows.expires_at);
        }
        Ok(made)
    }
}
