//! Work that keeps a core busy for long, such as reading megabytes of JSON: it runs on threads
//! of its own, tenants in turn, so that small calls do not wait for it.

use memoird_core::ids::TenantId;
use memoird_engine::{Blocking, Executor};
use tonic::Status;

use crate::wire::status;

/// Requests and answers of more bytes than these are heavy.
pub(crate) const HEAVY_BYTES: usize = 64 << 10;

/// Runs heavy work. Cheap to clone; all clones share the threads.
#[derive(Clone, Debug)]
pub(crate) struct HeavyWork {
    executor: Executor,
}

impl Default for HeavyWork {
    /// One core is left for small calls.
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads_max = (cores - 1).max(1);
        Self {
            executor: Executor::new(Blocking::Threads, "heavy", threads_max),
        }
    }
}

impl HeavyWork {
    /// Does a tenant's work on this many bytes; in place unless they are more than
    /// [`HEAVY_BYTES`].
    ///
    /// # Errors
    /// The error of the work; that too much work of the tenant waits, that the work panicked,
    /// or that the daemon stops.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        tenant: &TenantId,
        bytes: usize,
        work: impl FnOnce() -> Result<T, Status> + Send + 'static,
    ) -> Result<T, Status> {
        if bytes <= HEAVY_BYTES {
            return work();
        }
        let done = self.executor.run(Some(tenant), work).await;
        done.map_err(|error| status::engine(&error))?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn light_work_is_done_in_place_and_heavy_work_on_another_thread() {
        let heavy = HeavyWork::default();
        let tenant = TenantId::parse("acme").unwrap();
        let here = std::thread::current().id();
        let is_here = move || Ok(std::thread::current().id() == here);
        assert!(heavy.run(&tenant, HEAVY_BYTES, is_here).await.unwrap());
        assert!(!heavy.run(&tenant, HEAVY_BYTES + 1, is_here).await.unwrap());
        let refused = || Err::<(), _>(status::stopping());
        let refused = heavy.run(&tenant, HEAVY_BYTES + 1, refused).await;
        assert_eq!(refused.unwrap_err().code(), status::stopping().code());
    }
}
