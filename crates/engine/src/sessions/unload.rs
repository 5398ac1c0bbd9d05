//! Unloading of idle sessions when memory limits are exceeded.
//!
//! The content is dropped, and reloaded from the journal on demand. The head stays. Tenants above
//! their own limit are unloaded first, then the tenant with the most content, longest idle sessions
//! first. So a flooding tenant does not push out the sessions of others.

use std::time::Duration;

use super::handle::Sessions;
use crate::tenants::Tenant;
use crate::worker::{WorkError, Worker};

/// Sessions unloaded before the largest tenant is determined again, and batches per step.
const UNLOADS_PER_BATCH: usize = 64;
const BATCHES_PER_STEP: usize = 64;
/// Pause after nothing could be unloaded.
const PAUSE: Duration = Duration::from_secs(1);

impl Sessions {
    /// Unloads sessions of tenants above their own limit and, above the global one, of the largest.
    ///
    /// Returns false if that makes no room.
    fn unload_batch(&self) -> bool {
        let tenants = self.shared.tenants.all();
        let over = tenants.iter().filter(|tenant| !tenant.has_own_free_share());
        let most = tenants
            .iter()
            .max_by_key(|tenant| tenant.stats.bytes_loaded())
            .filter(|_| !self.shared.tenants.memory().has_free_share());
        let some = over
            .chain(most)
            .fold(false, |some, tenant| self.unload_of(tenant) | some);
        some || self.shared.tenants.have_free_memory()
    }

    fn unload_of(&self, tenant: &Tenant) -> bool {
        let orders = self.shared.table.orders(&tenant.id);
        for _ in 0..UNLOADS_PER_BATCH {
            if tenant.memory.has_free_share() && tenant.has_own_free_share() {
                break;
            }
            let Some((last_access, slot)) = orders.pop_loaded() else {
                return false;
            };
            if let Some(slot) = slot.upgrade() {
                slot.lock()
                    .unload_if_unused_since(&slot.tenant, last_access);
            }
        }
        true
    }
}

pub(super) struct Unloader {
    sessions: Sessions,
    /// Whether the last step could not make room.
    is_stuck: bool,
}

impl Unloader {
    pub(super) fn new(sessions: Sessions) -> Self {
        Self {
            sessions,
            is_stuck: false,
        }
    }
}

impl Worker for Unloader {
    fn name(&self) -> &'static str {
        "unloader"
    }

    async fn wait(&mut self) {
        if self.is_stuck {
            tokio::time::sleep(PAUSE).await;
        }
        self.sessions.shared.tenants.memory_exceeded().await;
    }

    async fn step(&mut self) -> Result<(), WorkError> {
        // Sessions with failed writes are reloaded from the journal. Do not add more loads while it
        // fails.
        if self.sessions.journal().is_failing() {
            self.is_stuck = true;
            return Ok(());
        }
        for _ in 0..BATCHES_PER_STEP {
            self.is_stuck = !self.sessions.unload_batch();
            if self.is_stuck || self.sessions.shared.tenants.have_free_memory() {
                break;
            }
            // Let calls run first.
            tokio::task::yield_now().await;
        }
        Ok(())
    }
}
