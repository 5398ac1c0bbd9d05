//! Forgetting what nobody may ask for any more: turns past their retention, idempotency
//! keys past their day.

use std::time::Duration;

use memoird_core::time::Steady;
use memoird_store::PruneBefore;

use crate::engine::Engine;
use crate::tenant::ms;
use crate::worker::{WorkError, Worker};

/// Rows of one step: commits wait no longer than that takes.
const ROWS_MAX: usize = 1_000;
const PAUSE_BETWEEN_STEPS: Duration = Duration::from_millis(50);
const PAUSE_BETWEEN_RUNS: Duration = Duration::from_secs(60);

/// The worker that forgets.
pub(crate) struct Pruner {
    pub(crate) engine: Engine,
    pub(crate) has_more: bool,
}

impl Worker for Pruner {
    fn name(&self) -> &'static str {
        "pruner"
    }

    async fn wait(&mut self) {
        let pause = if self.has_more { PAUSE_BETWEEN_STEPS } else { PAUSE_BETWEEN_RUNS };
        tokio::time::sleep(pause).await;
    }

    async fn step(&mut self) -> Result<(), WorkError> {
        let shared = &self.engine.shared;
        let now = shared.machine.now().steady.0;
        let retention_ms = ms(shared.config.journal.retention);
        let before = PruneBefore {
            ended: Steady(now.saturating_sub(retention_ms)),
            keys: Steady(now.saturating_sub(shared.config.limits.idempotency_ms)),
        };
        let pruned = shared.journal.with_store(move |store| store.prune(before, ROWS_MAX)).await;
        self.has_more = pruned.map_err(|error| WorkError(error.to_string()))?;
        Ok(())
    }
}
