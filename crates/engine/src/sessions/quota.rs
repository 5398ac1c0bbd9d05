//! Counting what the journal has of each tenant, where that is limited. What is appended is
//! added at once; what retention has forgotten is found by counting again.

use std::collections::HashMap;
use std::time::Duration;

use memoird_store::Store;

use super::Sessions;
use crate::worker::{WorkError, Worker};

/// A count looks at every turn: between two of them is at least the first time, and at most
/// the second, which comes where nobody was refused meanwhile. Retention comes as often as the
/// first: a call is refused for no longer after there is room.
const PAUSE_MIN: Duration = Duration::from_secs(60);
const PAUSE_MAX: Duration = Duration::from_secs(600);

/// The worker that counts.
pub(super) struct QuotaCounter {
    sessions: Sessions,
    is_first: bool,
}

impl QuotaCounter {
    pub(super) fn new(sessions: Sessions) -> Self {
        Self {
            sessions,
            is_first: true,
        }
    }
}

impl Worker for QuotaCounter {
    fn name(&self) -> &'static str {
        "quota_counter"
    }

    async fn wait(&mut self) {
        let shared = &self.sessions.shared;
        if !std::mem::take(&mut self.is_first) {
            tokio::time::sleep(PAUSE_MIN).await;
            let refused = shared.tenants.journal().refused.notified();
            let _ = tokio::time::timeout(PAUSE_MAX - PAUSE_MIN, refused).await;
        }
        // Where nothing is limited nobody has to know.
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
        let count = |store: &dyn Store| store.turn_bytes();
        let counted = shared.journal.with_store(None, count).await;
        let counted = counted.map_err(|error| WorkError(error.to_string()))?;
        let counted: HashMap<_, _> = counted.into_iter().collect();
        for tenant in shared.tenants.all() {
            let known = before.get(&tenant.id).copied().unwrap_or_default();
            let bytes = counted.get(&tenant.id).copied().unwrap_or_default();
            // What came meanwhile may be counted twice, until the next time.
            let more = tenant.stats.journal_bytes().saturating_sub(known);
            tenant.set_journal_bytes(bytes + more);
        }
        Ok(())
    }
}
