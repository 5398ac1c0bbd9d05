//! Periodic tasks of a cluster member.

use std::sync::Arc;
use std::time::Duration;

use memoird_store::Store;

use crate::erasure::Erasures;
use crate::machine::Machine;
use crate::outbox::Outbox;
use crate::store_handle::StoreHandle;
use crate::worker::{WorkError, Worker};

/// Polling interval for work that other daemons created.
const PAUSE: Duration = Duration::from_millis(500);

/// Synchronizes the steady clock, and wakes the workers that handle work of other daemons.
pub(crate) struct ClusterWorker {
    pub(crate) outbox: Arc<Outbox>,
    pub(crate) store: StoreHandle,
    pub(crate) erasures: Erasures,
    pub(crate) machine: Arc<dyn Machine>,
}

impl Worker for ClusterWorker {
    fn name(&self) -> &'static str {
        "cluster"
    }

    async fn wait(&mut self) {
        tokio::time::sleep(PAUSE).await;
    }

    async fn step(&mut self) -> Result<(), WorkError> {
        self.outbox.notify();
        self.erasures.check_for_jobs();
        let own = self.machine.now().steady;
        let sync = move |store: &dyn Store| store.sync_clock(own);
        let synced = self.store.run(None, sync).await?;
        self.machine.advance_to(synced);
        Ok(())
    }
}
