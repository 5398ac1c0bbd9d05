//! The worker that compacts: as many sessions at once as configured, each in a task of its
//! own that may be dropped at any moment without changing anything.

use std::collections::HashMap;
use std::sync::Arc;

use memoird_core::ids::TenantId;
use tokio::task::{self, JoinError, JoinSet};
use tracing::error;

use super::attempt::attempt;
use crate::engine::Engine;
use crate::worker::{WorkError, Worker};

/// The worker that compacts.
pub(crate) struct Compactor {
    engine: Engine,
    attempts: JoinSet<()>,
    tenants: HashMap<task::Id, TenantId>,
    under_way: HashMap<TenantId, usize>,
}

impl Compactor {
    pub(crate) fn new(engine: Engine) -> Self {
        let (attempts, tenants, under_way) = (JoinSet::new(), HashMap::new(), HashMap::new());
        Self {
            engine,
            attempts,
            tenants,
            under_way,
        }
    }

    fn ended(&mut self, ended: Result<(task::Id, ()), JoinError>) {
        let id = match ended {
            Ok((id, ())) => id,
            Err(failure) => {
                if failure.is_panic() {
                    error!(%failure, "a compaction panicked; its session is as it was");
                }
                failure.id()
            }
        };
        let Some(tenant) = self.tenants.remove(&id) else {
            return;
        };
        if let Some(count) = self.under_way.get_mut(&tenant) {
            *count -= 1;
            if *count == 0 {
                self.under_way.remove(&tenant);
            }
        }
    }

    fn start(&mut self) {
        let config = self.engine.shared.config.load_full();
        let limits = &config.compaction;
        while self.attempts.len() < limits.concurrency {
            let tenant_max = limits.tenant_concurrency;
            let compactions = &self.engine.shared.compactions;
            let Some(wanted) = compactions.take(&self.under_way, tenant_max) else {
                return;
            };
            let tenant = wanted.cell.key.tenant.clone();
            *self.under_way.entry(tenant.clone()).or_default() += 1;
            let task = self.attempts.spawn(attempt(self.engine.clone(), wanted));
            self.tenants.insert(task.id(), tenant);
        }
    }
}

impl Worker for Compactor {
    fn name(&self) -> &'static str {
        "compactor"
    }

    async fn wait(&mut self) {
        let shared = Arc::clone(&self.engine.shared);
        tokio::select! {
            biased;
            Some(ended) = self.attempts.join_next_with_id() => self.ended(ended),
            () = shared.compactions.arrived.notified() => {}
        }
    }

    async fn step(&mut self) -> Result<(), WorkError> {
        while let Some(ended) = self.attempts.try_join_next_with_id() {
            self.ended(ended);
        }
        self.start();
        Ok(())
    }

    /// What is under way is dropped: nothing of it was true yet, and it is wanted again when
    /// the session is used again. Whoever waits for something is told.
    async fn finish(&mut self) {
        self.engine.shared.compactions.close();
        self.attempts.shutdown().await;
    }
}
