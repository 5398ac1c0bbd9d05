//! Forgetting what nobody may ask for any more: turns past their retention that no hook
//! is owed, idempotency keys past their day.

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
/// Without a journal, how long a delivery that was made can still be looked at.
const KEPT_WITHOUT_JOURNAL_MS: u64 = 60_000;

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
        let pause = if self.has_more {
            PAUSE_BETWEEN_STEPS
        } else {
            PAUSE_BETWEEN_RUNS
        };
        tokio::time::sleep(pause).await;
    }

    async fn step(&mut self) -> Result<(), WorkError> {
        let shared = &self.engine.shared;
        let now = shared.machine.now().steady.0;
        let config = shared.config.load();
        let retention_ms = match shared.journal.is_on() {
            true => ms(config.journal.retention),
            false => KEPT_WITHOUT_JOURNAL_MS,
        };
        let before = PruneBefore {
            ended: Steady(now.saturating_sub(retention_ms)),
            keys: Steady(now.saturating_sub(config.limits.idempotency_ms)),
        };
        let pruned = shared
            .outbox
            .with_store(move |store| store.prune(before, ROWS_MAX))
            .await;
        self.has_more = pruned.map_err(|error| WorkError(error.to_string()))?;
        Ok(())
    }
}
