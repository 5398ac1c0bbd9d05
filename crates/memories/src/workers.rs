//! Background workers of memories, run by the engine's supervisor.

mod consolidation;
mod embedding;
mod learning;
mod maintenance;

use memoird_engine::WorkError;

use crate::error::MemoryError;
use crate::service::Memories;

pub(crate) fn start(memories: &Memories) {
    let engine = &memories.shared.engine;
    engine.run_worker(maintenance::MaintenanceWorker::new(memories.clone()));
    engine.run_worker(embedding::EmbeddingWorker::new(memories.clone()));
    engine.run_worker(learning::LearningWorker::new(memories.clone()));
}

impl From<MemoryError> for WorkError {
    fn from(error: MemoryError) -> Self {
        Self(format!("{error:?}"))
    }
}
