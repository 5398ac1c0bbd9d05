//! Several daemons over one journal: which of them does what is to be done once.
//!
//! No session's safety depends on it: a change is written on the version that it was built on, or
//! not at all, whoever made it.

use tokio::sync::watch;

/// The cluster, as this daemon sees it.
#[derive(Clone, Debug)]
pub struct Cluster {
    node: u128,
    leads: watch::Receiver<bool>,
}

impl Cluster {
    /// Of which this daemon has a number that no other one has or had, and leads while `leads` is true.
    pub fn new(node: u128, leads: watch::Receiver<bool>) -> Self {
        Self { node, leads }
    }

    /// The number of this daemon.
    pub fn node(&self) -> u128 {
        self.node
    }

    /// True while this daemon does what is to be done once.
    pub fn leads(&self) -> bool {
        *self.leads.borrow()
    }

    /// Waits until this daemon leads.
    pub async fn lead(&mut self) {
        // Where nobody says so any more, it never does.
        if self.leads.wait_for(|leads| *leads).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
