//! Background workers of memories, run by the engine's supervisor.

mod consolidation;
mod embedding;
mod learning;
mod maintenance;

use std::sync::Arc;

use memoird_engine::WorkError;

use crate::error::MemoryError;
use crate::service::{Learning, TextVectors};

pub use consolidation::Consolidation;

pub(crate) fn start(
    consolidation: &Consolidation,
    vectors: Arc<TextVectors>,
    learning: &Arc<Learning>,
) {
    let engine = &learning.storage.engine;
    engine.run_worker(maintenance::MaintenanceWorker::new(consolidation.clone()));
    engine.run_worker(embedding::EmbeddingWorker::new(vectors));
    engine.run_worker(learning::LearningWorker::new(Arc::clone(learning)));
}

impl From<MemoryError> for WorkError {
    fn from(error: MemoryError) -> Self {
        Self(format!("{error:?}"))
    }
}
