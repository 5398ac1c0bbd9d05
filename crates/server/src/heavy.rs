//! CPU-intensive work, such as parsing megabytes of JSON, on separate threads.
//!
//! Tenants take turns, and small calls do not wait for it.

use memoird_core::ids::TenantId;
use memoird_engine::{Blocking, Executor};

use crate::wire::refusal::Refusal;

/// Requests and responses above this size in bytes count as heavy.
pub(crate) const HEAVY_BYTES: usize = 64 << 10;

/// Executor of heavy work. Clones share the threads.
#[derive(Clone, Debug)]
pub(crate) struct HeavyWork {
    executor: Executor,
}

impl Default for HeavyWork {
    /// Leaves one core for small calls.
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads_max = (cores - 1).max(1);
        Self {
            executor: Executor::new(Blocking::Threads, "heavy", threads_max),
        }
    }
}

impl HeavyWork {
    /// Runs a tenant's work on this many bytes; inline up to [`HEAVY_BYTES`].
    ///
    /// # Errors
    /// Those of the work. Also if the work panicked.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        tenant: &TenantId,
        bytes: usize,
        work: impl FnOnce() -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, Refusal> {
        if bytes <= HEAVY_BYTES {
            return work();
        }
        let done = self.executor.run(Some(tenant), work).await;
        done?
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::status;

    #[tokio::test]
    async fn light_work_runs_inline_and_heavy_work_on_thread() {
        let heavy = HeavyWork::default();
        let tenant = TenantId::parse("acme").unwrap();
        let here = std::thread::current().id();
        let is_here = move || Ok(std::thread::current().id() == here);
        assert!(heavy.run(&tenant, HEAVY_BYTES, is_here).await.unwrap());
        assert!(!heavy.run(&tenant, HEAVY_BYTES + 1, is_here).await.unwrap());
        let refuse = || Err::<(), _>(status::stopping());
        let refused = heavy.run(&tenant, HEAVY_BYTES + 1, refuse).await;
        assert_eq!(refused.unwrap_err().reason, "STOPPING");
    }
}
