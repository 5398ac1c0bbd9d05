//! Accounting of the bytes of turns in the journal, per tenant and in total, against their limits.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Notify;

use crate::error::EngineError;
use crate::tenants::Tenant;

/// Bytes of turns in the journal across all tenants: the last count, plus changes since.
#[derive(Debug, Default)]
pub(crate) struct JournalUse {
    /// 0 means no limit.
    limit: AtomicU64,
    used: AtomicU64,
    /// Notified when a call found no room, so that pruned and erased turns are recounted.
    pub(crate) refused: Notify,
}

impl JournalUse {
    /// Sets the limit in bytes. 0 removes it.
    pub(crate) fn set_limit(&self, limit_bytes: u64) {
        self.limit.store(limit_bytes, Ordering::Relaxed);
    }

    pub(crate) fn is_limited(&self) -> bool {
        self.limit.load(Ordering::Relaxed) > 0
    }

    /// Records that a tenant's turns changed from `before` to `after` bytes.
    pub(crate) fn change(&self, before: u64, after: u64) {
        self.used
            .fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
    }

    /// Checks that a tenant may add `more` bytes of turns under its own and the global limit.
    pub(crate) fn check_room(&self, tenant: &Tenant, more: u64) -> Result<(), EngineError> {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let own = (
            "tenant",
            tenant.stats.journal_bytes(),
            tenant.policy().journal_bytes,
        );
        let all = ("all", read(&self.used), read(&self.limit));
        for (scope, used_bytes, limit_bytes) in [own, all] {
            if limit_bytes > 0 && used_bytes.saturating_add(more) > limit_bytes {
                self.refused.notify_one();
                return Err(EngineError::JournalQuota {
                    scope,
                    used_bytes,
                    limit_bytes,
                });
            }
        }
        Ok(())
    }
}
