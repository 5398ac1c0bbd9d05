//! The calls of long-term memory, by component.

mod documents;
mod embedder_check;
mod erase;
mod extraction;
mod facts;
mod forget;
mod learning;
mod recall;
mod sources;
mod storage;
mod tenants;
mod vectors;
mod window;
mod write_queue;

use std::sync::Arc;

use memoird_core::ids::TenantId;
use memoird_engine::Engine;
use prometheus_client::metrics::histogram::Histogram;

pub use documents::Documents;
pub use extraction::Learning;
pub use facts::Facts;
pub use forget::Forgetting;
pub use recall::Recall;
pub(crate) use storage::MemoryStorage;
pub(crate) use vectors::TextVectors;
pub use window::RecallForWindow;

use crate::config::MemoriesConfig;
use crate::counters::MemorySnapshot;
use crate::rules::MemoryLimits;
use crate::store::MemoryStore;
use crate::workers::{self, Consolidation};

/// Handle to the memories of all tenants. Clones share their state.
///
/// Every call returns an error if the memories cannot be read or written.
#[derive(Clone, Debug)]
pub struct Memories {
    storage: Arc<MemoryStorage>,
    pub facts: Facts,
    pub recall: Arc<Recall>,
    pub forgetting: Forgetting,
    pub learning: Arc<Learning>,
    pub documents: Documents,
    pub consolidation: Consolidation,
}

impl Memories {
    /// Serves the memories in `store` and starts the workers, which run until `engine` is closed.
    ///
    /// Without a store every call is rejected.
    pub fn open(engine: Engine, store: Option<Arc<MemoryStore>>, config: MemoriesConfig) -> Self {
        let storage = Arc::new(MemoryStorage::new(engine, store, config));
        let vectors = Arc::new(TextVectors::new(&storage));
        let recall = Arc::new(Recall::new(&storage, &vectors));
        let facts = Facts {
            storage: Arc::clone(&storage),
            vectors: Arc::clone(&vectors),
        };
        let forgetting = Forgetting {
            storage: Arc::clone(&storage),
        };
        let memories = Self {
            learning: Arc::new(Learning::new(&facts, &recall)),
            documents: Documents {
                storage: Arc::clone(&storage),
                forgetting: forgetting.clone(),
            },
            consolidation: Consolidation::new(forgetting.clone()),
            storage,
            facts,
            recall,
            forgetting,
        };
        workers::start(&memories.consolidation, vectors, &memories.learning);
        memories
    }

    /// Applies a reloaded configuration, except for the embedder and the reranker.
    pub fn adopt(&self, config: MemoriesConfig) {
        self.storage.adopt(config);
        self.learning.released.changed.notify_one();
    }

    /// Counters of a tenant's memories since the daemon started.
    pub fn counts(&self, tenant: &TenantId) -> MemorySnapshot {
        *self.storage.state(tenant).counters()
    }

    /// Duration of recalls, including the embedding of the query, for a metrics registry.
    pub fn recall_seconds(&self) -> Histogram {
        self.recall.seconds()
    }

    pub fn limits(&self) -> MemoryLimits {
        self.storage.limits()
    }
}
