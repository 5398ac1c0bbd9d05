//! How many bytes of turns the journal may have, of one tenant and of all, and whether there is
//! room for more.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Notify;

use crate::error::EngineError;
use crate::tenants::Tenant;

/// The turns of all tenants in the journal, in bytes: as they were counted last, and what came
/// since.
#[derive(Debug, Default)]
pub(crate) struct JournalUse {
    /// 0: no limit.
    limit: AtomicU64,
    used: AtomicU64,
    /// Notified when there was no room: meanwhile turns may have been forgotten, or erased.
    pub(crate) refused: Notify,
}

impl JournalUse {
    /// Another limit of all tenants together applies, in bytes; 0: none.
    pub(crate) fn set_limit(&self, limit_bytes: u64) {
        self.limit.store(limit_bytes, Ordering::Relaxed);
    }

    /// True where all tenants together have a limit.
    pub(crate) fn is_limited(&self) -> bool {
        self.limit.load(Ordering::Relaxed) > 0
    }

    /// A tenant's turns changed from `before` to `after` bytes.
    pub(crate) fn change(&self, before: u64, after: u64) {
        self.used
            .fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
    }

    /// Whether a tenant has room for so many bytes more.
    ///
    /// # Errors
    /// [`EngineError::JournalQuota`].
    pub(crate) fn check_room(&self, tenant: &Tenant, more: u64) -> Result<(), EngineError> {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let own = (
            "tenant",
            tenant.stats.journal_bytes(),
            tenant.policy().journal_bytes,
        );
        let all = ("all", read(&self.used), read(&self.limit));
        for (whose, used_bytes, limit_bytes) in [own, all] {
            if limit_bytes > 0 && used_bytes.saturating_add(more) > limit_bytes {
                self.refused.notify_one();
                return Err(EngineError::JournalQuota {
                    whose,
                    used_bytes,
                    limit_bytes,
                });
            }
        }
        Ok(())
    }
}
