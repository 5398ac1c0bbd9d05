//! Work that keeps a core busy for long, such as reading megabytes of JSON: done beside the
//! executor, by a few threads, tenants in turn.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use memoird_core::ids::TenantId;
use tokio::sync::Semaphore;
use tonic::Status;

use crate::wire::status;

/// Requests and answers of more bytes are work for here.
pub(crate) const HEAVY_BYTES: usize = 64 << 10;

/// Where heavy work is done. Cheap to clone; every clone is the same place.
#[derive(Clone, Debug)]
pub(crate) struct HeavyWork {
    /// First come, first served; a tenant has few pieces of work here at a time. So the others
    /// are never behind more than these.
    threads: Arc<Semaphore>,
    by_tenant: Arc<Mutex<HashMap<TenantId, Arc<Semaphore>>>>,
    own_max: usize,
}

impl Default for HeavyWork {
    /// One core stays for what is quick.
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = (cores - 1).max(1);
        Self {
            threads: Arc::new(Semaphore::new(threads)),
            by_tenant: Arc::default(),
            own_max: threads.div_ceil(2),
        }
    }
}

impl HeavyWork {
    /// Does a tenant's work on `bytes` bytes: at once where these are few.
    ///
    /// # Errors
    /// What the work gives, or that the daemon is stopping.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        tenant: &TenantId,
        bytes: usize,
        work: impl FnOnce() -> Result<T, Status> + Send + 'static,
    ) -> Result<T, Status> {
        if bytes <= HEAVY_BYTES {
            return work();
        }
        let own = self.own(tenant);
        let stopping = |_| status::stopping();
        let _own = own.acquire().await.map_err(stopping)?;
        let thread = Arc::clone(&self.threads).acquire_owned().await;
        let thread = thread.map_err(stopping)?;
        let done = tokio::task::spawn_blocking(move || {
            // Kept by the thread: the work goes on where its caller has gone.
            let _thread = thread;
            work()
        });
        match done.await {
            Ok(done) => done,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // Nobody cancels it: the runtime itself is going down.
                Err(_) => Err(status::stopping()),
            },
        }
    }

    fn own(&self, tenant: &TenantId) -> Arc<Semaphore> {
        let mut by_tenant = self
            .by_tenant
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = by_tenant.get(tenant) {
            return Arc::clone(known);
        }
        let own = Arc::new(Semaphore::new(self.own_max));
        by_tenant.insert(tenant.clone(), Arc::clone(&own));
        own
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_tenant_s_work_is_behind_a_few_pieces_of_another_s() {
        let heavy = HeavyWork {
            threads: Arc::new(Semaphore::new(2)),
            by_tenant: Arc::default(),
            own_max: 1,
        };
        let (flood, victim) = (TenantId::parse("flood"), TenantId::parse("victim"));
        let (flood, victim) = (flood.unwrap(), victim.unwrap());
        let (release, gate) = mpsc::channel::<()>();
        let gate = Arc::new(Mutex::new(gate));
        let mut calls = tokio::task::JoinSet::new();
        for _ in 0..10 {
            let (heavy, flood, gate) = (heavy.clone(), flood.clone(), Arc::clone(&gate));
            calls.spawn(async move {
                let wait = move || Ok(gate.lock().unwrap().recv().is_ok());
                heavy.run(&flood, HEAVY_BYTES + 1, wait).await
            });
        }
        let done = heavy.run(&victim, HEAVY_BYTES + 1, || Ok(7)).await;
        assert_eq!(done.unwrap(), 7);
        (0..10).for_each(|_| release.send(()).unwrap());
        assert!(calls.join_all().await.into_iter().all(|done| done.unwrap()));
        let refused = heavy
            .run::<()>(&victim, 1, || Err(status::stopping()))
            .await;
        assert!(refused.is_err());
    }
}
