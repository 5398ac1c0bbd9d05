//! Retention: turns of ended generations are deleted once it is over and no hook is owed them,
//! and idempotency keys after their day.

use std::time::Duration;

use memoird_core::time::Steady;
use memoird_store::PruneBefore;

use super::Hooks;
use crate::tenants::ms;
use crate::worker::{WorkError, Worker};

/// Rows of one step: commits wait no longer than that takes.
const ROWS_MAX: usize = 1_000;
const PAUSE_BETWEEN_STEPS: Duration = Duration::from_millis(50);
const PAUSE_BETWEEN_RUNS: Duration = Duration::from_secs(60);
/// Without a journal, how long a delivery that was made can still be looked at.
const KEPT_WITHOUT_JOURNAL_MS: u64 = 60_000;

/// How long what has ended is kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RetentionConfig {
    turns_ms: u64,
    idempotency_keys_ms: u64,
}

impl RetentionConfig {
    pub(crate) fn new(turns: Duration, idempotency_keys_ms: u64) -> Self {
        Self {
            turns_ms: ms(turns),
            idempotency_keys_ms,
        }
    }

    pub(super) fn turns(&self) -> Duration {
        Duration::from_millis(self.turns_ms)
    }
}

/// The worker that forgets.
pub(super) struct RetentionWorker {
    hooks: Hooks,
    has_more: bool,
}

impl RetentionWorker {
    pub(super) fn new(hooks: Hooks) -> Self {
        Self {
            hooks,
            has_more: true,
        }
    }
}

impl Worker for RetentionWorker {
    fn name(&self) -> &'static str {
        "pruner"
    }

    async fn wait(&mut self) {
        let pause = match self.has_more {
            true => PAUSE_BETWEEN_STEPS,
            false => PAUSE_BETWEEN_RUNS,
        };
        tokio::time::sleep(pause).await;
    }

    async fn step(&mut self) -> Result<(), WorkError> {
        let shared = &self.hooks.shared;
        let now_ms = shared.sessions.now().steady.0;
        let config = shared.retention.load();
        let turns_ms = match shared.sessions.have_journal() {
            true => config.turns_ms,
            false => KEPT_WITHOUT_JOURNAL_MS,
        };
        let before = PruneBefore {
            ended: Steady(now_ms.saturating_sub(turns_ms)),
            keys: Steady(now_ms.saturating_sub(config.idempotency_keys_ms)),
        };
        let pruned = shared
            .outbox
            .with_store(move |store| store.prune(before, ROWS_MAX));
        self.has_more = pruned.await.map_err(|error| WorkError(error.to_string()))?;
        Ok(())
    }
}
