//! Cluster membership: several daemons share one journal, and one of them leads.
//!
//! The leader runs the cluster-wide tasks. Correctness does not depend on a single leader: the
//! store applies a change only to the revision it was based on, whichever daemon sends it.

use tokio::sync::watch;

/// This daemon's view of the cluster.
#[derive(Clone, Debug)]
pub struct Cluster {
    node: u128,
    leads: watch::Receiver<bool>,
}

impl Cluster {
    /// `node` must be unique among all past and present members.
    pub fn new(node: u128, leads: watch::Receiver<bool>) -> Self {
        Self { node, leads }
    }

    pub fn node(&self) -> u128 {
        self.node
    }

    /// Whether this daemon runs the cluster-wide tasks.
    pub fn leads(&self) -> bool {
        *self.leads.borrow()
    }

    pub async fn lead(&mut self) {
        // The sender was dropped, so this daemon never becomes the leader again.
        if self.leads.wait_for(|leads| *leads).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
