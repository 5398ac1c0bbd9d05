//! What outlives a session: memories are promoted, found, handed to models, forgotten.
//!
//! Each tenant's memories are in a file of their own. All its writes go through one lane
//! ([`lane`]), in groups; reads go past it.

mod asks;
mod counters;
mod dream;
mod embedding;
mod extraction;
mod forget;
mod keeper;
mod lane;
mod manifests;
mod recall;
mod remember;
mod window;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dashmap::DashMap;
use hashlink::LinkedHashSet;
use memoird_core::CoreError;
use memoird_core::config::{AsText, Problems, Span};
use memoird_core::ids::{MemoryId, Subject, TenantId};
use memoird_core::memory::dream::DreamSettings;
use memoird_core::memory::fuse::Fusion;
use memoird_core::memory::manifest::{Caps, Manifest, manifest};
use memoird_core::memory::secrets::SecretPolicy;
use memoird_core::memory::{Memory, MemoryLimits};
use memoird_store::StoreError;
use memoird_store::long_term::{ListFilter, LongTermStore, MemoryReader, MemoryWriter};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use self::lane::{Lane, Written};
use self::recall::QueryVectors;
use crate::embedder::Embedder;
use crate::engine::{Blocking, Engine};
use crate::error::EngineError;
use crate::tenant::Tenant;

pub use asks::{
    ExtractedFact, ExtractionLease, ExtractionOutcome, ForgetAsk, ForgetOutcome, MemoryFilter,
    MemoryPage, MemoryQuery, MemoryStats, RecallAsk, RecallHit, RecallMode, RecallOutcome,
    RememberAsk, RememberOutcome, SourceAsk,
};
pub(crate) use counters::MemoryCounters;
pub use counters::MemorySnapshot;
pub(crate) use dream::Dreamer;
pub(crate) use embedding::EmbeddingWorker;
pub(crate) use keeper::Keeper;
pub(crate) use window::{Recalled, Told};

/// What an operator decides of memories.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct LongTermConfig {
    /// What clients may keep and ask.
    #[serde(skip)]
    pub limits: MemoryLimits,
    /// Hits of a recall that names no number.
    pub recall_limit: usize,
    /// Tokens that the block of memories may use of a window.
    pub window_tokens: u64,
    /// From which cosine on two memories say the same; only with an embedder.
    #[serde(rename = "near_duplicate_cosine")]
    pub near_cosine: f32,
    /// How what was found by words and by meaning becomes one list.
    #[serde(rename = "half_lives")]
    pub fusion: Fusion,
    /// What is done with secrets in what is to be remembered.
    pub secrets: SecretPolicy,
    /// What turns texts into vectors; `None`: recall is lexical only.
    #[serde(skip)]
    pub embedder: Option<Arc<dyn Embedder>>,
    /// How long a recall waits for the vector of its query before it goes by words only.
    #[serde(with = "AsText::<Span>")]
    pub query_wait: Duration,
    /// How long a lease of turns runs.
    #[serde(rename = "extraction_lease", with = "AsText::<Span>")]
    pub lease: Duration,
    /// How often memories are consolidated; `None`: only when asked.
    #[serde(skip)]
    pub dream_interval: Option<Duration>,
    /// How they are.
    #[serde(skip)]
    pub dream: DreamSettings,
    /// How long a memory that has expired stays readable by its id.
    #[serde(with = "AsText::<Span>")]
    pub expired_kept: Duration,
}

impl Default for LongTermConfig {
    fn default() -> Self {
        Self {
            limits: MemoryLimits::default(),
            recall_limit: 8,
            window_tokens: 1_000,
            near_cosine: 0.95,
            fusion: Fusion::default(),
            secrets: SecretPolicy::Redact,
            embedder: None,
            query_wait: Duration::from_secs(1),
            lease: Duration::from_secs(300),
            dream_interval: Some(Duration::from_secs(24 * 60 * 60)),
            dream: DreamSettings::default(),
            expired_kept: Duration::from_secs(30 * 24 * 60 * 60),
        }
    }
}

impl LongTermConfig {
    /// Adds what is wrong with it.
    pub fn check(&self, problems: &mut Problems) {
        let limits = &self.limits;
        // A recall gives 100 of them in one answer, which clients have to accept.
        let is_content = (1..=32 << 10).contains(&limits.content_bytes);
        problems.unless(is_content, "content_bytes", "must be 1 to 32KiB");
        problems.range("recall_limit", self.recall_limit as u64, 1..=100);
        let is_cosine = self.near_cosine > 0.0 && self.near_cosine <= 1.0;
        let range = "must be more than 0, and at most 1";
        problems.unless(is_cosine, "near_duplicate_cosine", range);
        problems.at_least_one("max_memories", limits.memories);
        problems.at_least_one("window_tokens", self.window_tokens);
        problems.at_least_one("recall_events", limits.recall_events);
        problems.not_zero("extraction_lease", self.lease);
        problems.not_zero("query_wait", self.query_wait);
        let half_lives = &self.fusion.half_lives;
        problems.within("half_lives", |problems| half_lives.check(problems));
        problems.within("dream", |problems| {
            self.dream.check(problems);
            if let Some(interval) = self.dream_interval {
                problems.not_zero("interval", interval);
            }
        });
    }
}

/// The memories of all tenants, as far as the engine knows of them.
#[derive(Debug)]
pub(crate) struct LongTerm {
    /// `None`: there are none, and every call says so.
    store: Option<Arc<LongTermStore>>,
    blocking: Blocking,
    lanes: DashMap<TenantId, Arc<Lane>>,
    query_vectors: QueryVectors,
    /// Tenants with texts that may wait to be embedded.
    embedder: Chores,
    /// Tenants with notes of recalls to write, or something to go on forgetting.
    keeper: Chores,
}

/// Tenants for which a worker has something to do, in the order in which they came: who has
/// much to do, or fails again and again, stands behind the others each time.
#[derive(Debug, Default)]
struct Chores {
    tenants: Mutex<LinkedHashSet<TenantId>>,
    bell: Notify,
}

impl Chores {
    fn add(&self, tenant: &TenantId) {
        let mut tenants = self.tenants.lock().unwrap_or_else(PoisonError::into_inner);
        if !tenants.contains(tenant) {
            tenants.insert(tenant.clone());
            self.bell.notify_one();
        }
    }

    fn take(&self) -> Option<TenantId> {
        self.tenants
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop_front()
    }

    fn len(&self) -> usize {
        self.tenants
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .len()
    }

    /// Waits until there is something to do.
    async fn wait(&self) {
        loop {
            let rung = self.bell.notified();
            if !self
                .tenants
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .is_empty()
            {
                return;
            }
            rung.await;
        }
    }
}

/// A write whose caller may leave before it is done. What is queued is written all the same:
/// by the next one, and where none comes by the keeper.
struct Abandoned<'a> {
    long_term: &'a LongTerm,
    tenant: &'a TenantId,
    is_answered: bool,
}

impl Drop for Abandoned<'_> {
    fn drop(&mut self) {
        if !self.is_answered {
            self.long_term.wake_keeper(self.tenant);
        }
    }
}

impl LongTerm {
    pub(crate) fn new(store: Option<Arc<LongTermStore>>, blocking: Blocking) -> Self {
        Self {
            store,
            blocking,
            lanes: DashMap::default(),
            query_vectors: QueryVectors::default(),
            embedder: Chores::default(),
            keeper: Chores::default(),
        }
    }

    /// A lane is small, and there is one for each tenant that ever called.
    fn lane(&self, tenant: &TenantId) -> Arc<Lane> {
        Arc::clone(&self.lanes.entry(tenant.clone()).or_default())
    }

    fn is_on(&self) -> bool {
        self.store.is_some()
    }

    fn store(&self) -> Result<&Arc<LongTermStore>, EngineError> {
        self.store.as_ref().ok_or(EngineError::MemoriesOff)
    }

    fn wake_embedder(&self, tenant: &TenantId) {
        self.embedder.add(tenant);
    }

    fn wake_keeper(&self, tenant: &TenantId) {
        self.keeper.add(tenant);
    }
}

impl Engine {
    /// Writes to a tenant's memories; answers when the disk has it.
    async fn write_memories<T: Send + 'static>(
        &self,
        tenant: &Tenant,
        job: impl FnOnce(&MemoryWriter<'_>) -> Written<T> + Send + 'static,
    ) -> Result<T, EngineError> {
        let long_term = &self.shared.long_term;
        let at = (long_term.store()?, long_term.blocking);
        let mut abandoned = Abandoned {
            long_term,
            tenant: &tenant.id,
            is_answered: false,
        };
        let answer = long_term.lane(&tenant.id).write(&tenant.id, at, job).await;
        abandoned.is_answered = true;
        answer
    }

    /// Writes what waits.
    async fn flush_memories(&self, tenant: &Tenant) -> Result<(), EngineError> {
        let long_term = &self.shared.long_term;
        let at = (long_term.store()?, long_term.blocking);
        long_term.lane(&tenant.id).flush(&tenant.id, at).await
    }

    /// Looks at one moment of a tenant's memories.
    async fn read_memories<T: Send + 'static>(
        &self,
        tenant: &Tenant,
        look: impl FnOnce(&MemoryReader<'_>) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, EngineError> {
        let long_term = &self.shared.long_term;
        let (store, id) = (Arc::clone(long_term.store()?), tenant.id.clone());
        let read = move || store.tenant(&id)?.read(look);
        long_term
            .blocking
            .run(read)
            .await?
            .map_err(|error| EngineError::of_memories(&error))
    }

    /// One memory; with a subject only if that one may see it.
    ///
    /// # Errors
    /// [`CoreError::MemoryNotFound`].
    pub async fn memory(
        &self,
        tenant: &Arc<Tenant>,
        id: MemoryId,
        subject: Option<Subject>,
    ) -> Result<Memory, EngineError> {
        let memory = self
            .read_memories(tenant, move |reader| reader.get(id))
            .await?;
        memory
            .filter(|memory| subject.is_none_or(|subject| memory.is_visible_to(&subject)))
            .ok_or(EngineError::Core(CoreError::MemoryNotFound { id }))
    }

    /// A page of memories.
    ///
    /// # Errors
    /// A store that cannot be read.
    pub async fn memories(
        &self,
        tenant: &Arc<Tenant>,
        query: MemoryQuery,
    ) -> Result<MemoryPage, EngineError> {
        let (now, count) = (self.shared.machine.now().wall, query.count);
        let filter = ListFilter {
            subject: query.subject,
            kind: query.kind,
            tag: query.tag,
            include_superseded: query.include_history,
            include_expired: query.include_history,
            after: query.after,
        };
        let read =
            move |reader: &MemoryReader<'_>| reader.list(&filter, count.saturating_add(1), now);
        let mut memories = self.read_memories(tenant, read).await?;
        let has_more = memories.len() > count;
        memories.truncate(count);
        let next = memories.last().filter(|_| has_more).map(|memory| memory.id);
        Ok(MemoryPage { memories, next })
    }

    /// What is known of a subject. 0 lines or bytes: as many as the limits allow.
    ///
    /// # Errors
    /// A store that cannot be read.
    pub async fn manifest(
        &self,
        tenant: &Arc<Tenant>,
        subject: Subject,
        lines_max: usize,
        bytes_max: usize,
    ) -> Result<Arc<Manifest>, EngineError> {
        let config = self.shared.config.load_full();
        let limits = &config.long_term.limits;
        let at_most =
            |asked: usize, limit: usize| if asked == 0 { limit } else { asked.min(limit) };
        let caps = Caps {
            lines: at_most(lines_max, limits.manifest_lines),
            bytes: at_most(bytes_max, limits.manifest_bytes),
        };
        let key = (subject, caps.lines, caps.bytes);
        let lane = self.shared.long_term.lane(&tenant.id);
        let now = self.shared.machine.now().wall;
        let version = match lane.manifests.get(&key, now) {
            Ok(known) => return Ok(known),
            Err(version) => version,
        };
        let subject = key.0.clone();
        let read = move |reader: &MemoryReader<'_>| reader.manifest(&subject, now, caps.lines);
        let rows = self.read_memories(tenant, read).await?;
        let made = Arc::new(manifest(&rows.memories, rows.total, caps));
        lane.manifests
            .keep(version, key, Arc::clone(&made), rows.expires_at);
        Ok(made)
    }

    /// Counts.
    ///
    /// # Errors
    /// A store that cannot be read.
    pub async fn memory_stats(&self, tenant: &Arc<Tenant>) -> Result<MemoryStats, EngineError> {
        let model = self.embedding_model();
        let now = self.shared.machine.now().wall;
        let wanted = model.clone();
        let read = move |reader: &MemoryReader<'_>| {
            let counts = reader.counts(now)?;
            let wanted = wanted.as_deref().unwrap_or_default();
            Ok((counts, reader.embedding_counts(wanted, now)?))
        };
        let (counts, vectors) = self.read_memories(tenant, read).await?;
        Ok(MemoryStats {
            memories: counts.memories - counts.superseded - counts.expired,
            superseded: counts.superseded,
            subjects: counts.subjects,
            recall_events: counts.recall_events,
            embedding_model: model,
            embedded: vectors.embedded,
            embedding_queued: vectors.queued,
            embedding_failed: vectors.failed,
            file_bytes: counts.file_bytes,
        })
    }

    fn embedding_model(&self) -> Option<String> {
        let config = self.shared.config.load();
        config
            .long_term
            .embedder
            .as_ref()
            .map(|embedder| embedder.model().to_owned())
    }
}
