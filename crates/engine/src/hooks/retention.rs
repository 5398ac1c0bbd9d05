//! Retention: deletes turns of ended generations, and expired idempotency keys.
//!
//! Turns are deleted after their retention once no delivery of them is pending.

use std::sync::atomic::Ordering;
use std::time::Duration;

use memoird_core::time::Steady;
use memoird_store::{PruneBefore, PruneBounds, Store};

use super::Hooks;
use crate::machine::Stopwatch;
use crate::tenants::ms;
use crate::worker::{WorkError, Worker};

/// Maximum rows per step, which bounds how long commits wait.
const ROWS_MAX: usize = 1_000;
const PAUSE_BETWEEN_STEPS: Duration = Duration::from_millis(50);
const PAUSE_BETWEEN_RUNS: Duration = Duration::from_secs(60);
/// Pages of 4 KiB released to the file system per step. Commits may wait for that.
///
/// More pages are released while there are hardly any commits.
const PAGES_MAX: usize = 256;
const PAGES_MAX_WHEN_IDLE: usize = 2_048;
/// The journal counts as idle up to this commit rate, plus one commit.
const IDLE_COMMITS_PER_SECOND: f64 = 2.0;
/// Without a journal, how long finished deliveries remain visible.
const KEPT_WITHOUT_JOURNAL_MS: u64 = 60_000;

#[derive(Clone, Copy, Debug)]
pub(crate) struct RetentionConfig {
    pub(crate) turns: Duration,
    pub(crate) idempotency_keys_ms: u64,
}

/// Worker that prunes expired rows.
pub(super) struct RetentionWorker {
    hooks: Hooks,
    has_more: bool,
    watch: Stopwatch,
    commits: u64,
}

impl RetentionWorker {
    pub(super) fn new(hooks: Hooks) -> Self {
        Self {
            hooks,
            has_more: true,
            watch: Stopwatch::start(),
            commits: 0,
        }
    }

    /// Whether there were hardly any commits since the previous call.
    fn is_idle(&mut self) -> bool {
        let commits = self.hooks.shared.stats.commits.load(Ordering::Relaxed);
        let since = commits - std::mem::replace(&mut self.commits, commits);
        let seconds = std::mem::replace(&mut self.watch, Stopwatch::start()).seconds();
        since as f64 <= 1.0 + seconds * IDLE_COMMITS_PER_SECOND
    }
}

impl Worker for RetentionWorker {
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
        let is_idle = self.is_idle();
        let shared = &self.hooks.shared;
        let now_ms = shared.sessions.now().steady.0;
        let config = shared.retention.load();
        let turns_ms = if shared.sessions.have_journal() {
            ms(config.turns)
        } else {
            KEPT_WITHOUT_JOURNAL_MS
        };
        let before = PruneBefore {
            ended: Steady(now_ms.saturating_sub(turns_ms)),
            keys: Steady(now_ms.saturating_sub(config.idempotency_keys_ms)),
        };
        let bounds = PruneBounds {
            rows_max: ROWS_MAX,
            pages_max: if is_idle {
                PAGES_MAX_WHEN_IDLE
            } else {
                PAGES_MAX
            },
        };
        let prune = move |store: &dyn Store| store.prune(before, bounds);
        let left = shared.store.run(None, prune).await?;
        self.has_more = left.rows || (left.pages && is_idle);
        Ok(())
    }
}
