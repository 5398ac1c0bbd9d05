//! Several daemons over one journal: which of them does what is to be done once, and that all of them
//! have one time line.
//!
//! No session's safety depends on either: a change is written on the version that it was built on, or
//! not at all, whoever made it.

use std::sync::Arc;
use std::time::Duration;

use memoird_store::Store;
use tokio::sync::watch;

use crate::erasure::Erasures;
use crate::hooks::Outbox;
use crate::machine::Machine;
use crate::worker::{WorkError, Worker};

/// How often others may have given this daemon something to do.
const PAUSE: Duration = Duration::from_millis(500);

/// The cluster, as this daemon sees it.
#[derive(Clone, Debug)]
pub struct Cluster {
    leads: watch::Receiver<bool>,
}

impl Cluster {
    /// Of which this daemon leads while that is true.
    pub fn new(leads: watch::Receiver<bool>) -> Self {
        Self { leads }
    }

    /// True while this daemon does what is to be done once.
    pub fn leads(&self) -> bool {
        *self.leads.borrow()
    }

    /// Waits until this daemon leads.
    pub(crate) async fn lead(&mut self) {
        // Where nobody says so any more, it never does.
        if self.leads.wait_for(|leads| *leads).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// The worker that keeps the time line, and asks the journal what other daemons left to be done.
pub(crate) struct ClusterWorker {
    pub(crate) outbox: Arc<Outbox>,
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
        self.outbox.look_again();
        self.erasures.look_again();
        let own = self.machine.now().steady;
        let met = self
            .outbox
            .with_store(move |store: &dyn Store| store.meet(own));
        let met = met.await.map_err(|error| WorkError(error.to_string()))?;
        self.machine.advance_to(met);
        Ok(())
    }
}
