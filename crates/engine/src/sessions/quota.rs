//! Measures the bytes of turns in the journal per tenant, if these are limited.
//!
//! Appends are added immediately. Pruned and erased turns are noticed by counting again.

use std::collections::HashMap;
use std::time::Duration;

use memoird_store::Store;

use super::handle::Sessions;
use crate::machine::Stopwatch;
use crate::worker::{WorkError, Worker};

/// Pauses between counts, which read every turn.
///
/// A pause is [`PAUSE_TIMES`] the duration of the last count, within [`PAUSE_MIN`] and
/// [`PAUSE_MAX`]. The next count then waits for a call that is rejected for lack of room, up to
/// [`COUNT_INTERVAL_MAX`].
const PAUSE_TIMES: u32 = 20;
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);
const COUNT_INTERVAL_MAX: Duration = Duration::from_secs(600);

pub(super) struct QuotaCounter {
    sessions: Sessions,
    /// Pause after the last count, or `None` before the first.
    pause: Option<Duration>,
}

impl QuotaCounter {
    pub(super) fn new(sessions: Sessions) -> Self {
        Self {
            sessions,
            pause: None,
        }
    }
}

impl Worker for QuotaCounter {
    fn name(&self) -> &'static str {
        "quota_counter"
    }

    async fn wait(&mut self) {
        let shared = &self.sessions.shared;
        if let Some(pause) = self.pause {
            tokio::time::sleep(pause).await;
            let refused = shared.tenants.journal().refused.notified();
            let _ = tokio::time::timeout(COUNT_INTERVAL_MAX, refused).await;
        }
        // Without limits, no count is needed.
        loop {
            let changed = shared.census.policies_changed.notified();
            if shared.tenants.has_journal_limits() {
                return;
            }
            changed.await;
        }
    }

    async fn step(&mut self) -> Result<(), WorkError> {
        let shared = &self.sessions.shared;
        let before: HashMap<_, _> = shared
            .tenants
            .all()
            .into_iter()
            .map(|tenant| (tenant.id.clone(), tenant.stats.journal_bytes()))
            .collect();
        let watch = Stopwatch::start();
        let outcome = self
            .sessions
            .store()?
            .run(None, <dyn Store>::turn_bytes)
            .await;
        let pause = watch.elapsed().saturating_mul(PAUSE_TIMES);
        self.pause = Some(pause.clamp(PAUSE_MIN, PAUSE_MAX));
        let counted: HashMap<_, _> = outcome?.into_iter().collect();
        for tenant in shared.tenants.all() {
            let known = before.get(&tenant.id).copied().unwrap_or_default();
            let bytes = counted.get(&tenant.id).copied().unwrap_or_default();
            // Turns appended during the count may be counted twice, until the next count.
            let more = tenant.stats.journal_bytes().saturating_sub(known);
            tenant.set_journal_bytes(bytes + more);
        }
        Ok(())
    }
}
