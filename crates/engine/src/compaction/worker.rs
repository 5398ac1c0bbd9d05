//! The worker that runs compactions concurrently, each in a task.
//!
//! Aborting a task at any point changes nothing.

use std::collections::HashMap;

use memoird_core::ids::TenantId;
use tokio::task::{self, JoinError, JoinSet};
use tracing::error;

use super::Compaction;
use crate::worker::{WorkError, Worker};

pub(crate) struct CompactionWorker {
    compaction: Compaction,
    tasks: JoinSet<()>,
    tenants: HashMap<task::Id, TenantId>,
    /// Number of running compactions by tenant.
    running: HashMap<TenantId, usize>,
}

impl CompactionWorker {
    pub(crate) fn new(compaction: Compaction) -> Self {
        Self {
            compaction,
            tasks: JoinSet::new(),
            tenants: HashMap::new(),
            running: HashMap::new(),
        }
    }

    fn finished(&mut self, result: Result<(task::Id, ()), JoinError>) {
        let id = match result {
            Ok((id, ())) => id,
            Err(failure) => {
                if failure.is_panic() {
                    error!(%failure, "a compaction panicked; its session is unchanged");
                }
                failure.id()
            }
        };
        let Some(tenant) = self.tenants.remove(&id) else {
            return;
        };
        if let Some(count) = self.running.get_mut(&tenant) {
            *count -= 1;
            if *count == 0 {
                self.running.remove(&tenant);
            }
        }
    }

    fn start(&mut self) {
        let config = self.compaction.config();
        while self.tasks.len() < config.concurrency {
            let tenant_max = config.tenant_concurrency;
            let taken = self.compaction.queue().take(&self.running, tenant_max);
            let Some((request, under_way)) = taken else {
                return;
            };
            let tenant = request.session.key.tenant.clone();
            *self.running.entry(tenant.clone()).or_default() += 1;
            let task = self
                .tasks
                .spawn(self.compaction.clone().run(request, under_way));
            self.tenants.insert(task.id(), tenant);
        }
    }
}

impl Worker for CompactionWorker {
    fn name(&self) -> &'static str {
        "compactor"
    }

    async fn wait(&mut self) {
        let compaction = self.compaction.clone();
        tokio::select! {
            biased;
            Some(result) = self.tasks.join_next_with_id() => self.finished(result),
            () = compaction.queue().arrived() => {}
        }
    }

    async fn step(&mut self) -> Result<(), WorkError> {
        while let Some(result) = self.tasks.try_join_next_with_id() {
            self.finished(result);
        }
        self.start();
        Ok(())
    }

    /// Aborts running compactions and closes the queue. Waiting callers get an error.
    ///
    /// Nothing was committed. Sessions request a compaction again on their next use.
    async fn finish(&mut self) {
        self.compaction.queue().close();
        self.tasks.shutdown().await;
    }
}
