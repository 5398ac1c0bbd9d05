//! The daemons that share a journal, and their policy as this one knows it.

use std::sync::Arc;

use memoird_proto::v1::{ClusterMember, GetClusterResponse};
use tokio::sync::watch;
use tracing::{info, warn};

use crate::config::{Config, Policy};

/// The policy that the cluster's database has.
#[derive(Clone, Debug)]
pub(crate) struct ClusterPolicy {
    pub(crate) version: u64,
    pub(crate) policy: Arc<Policy>,
}

/// The cluster's policy, and how the file of this daemon differs from it.
#[derive(Clone, Debug, Default)]
pub(crate) struct PolicyState {
    /// `None` without a cluster.
    newest: watch::Sender<Option<ClusterPolicy>>,
    /// The settings of the file that differ.
    differing: watch::Sender<Vec<String>>,
    /// Why the daemon is not ready because of them.
    problem: watch::Sender<Option<String>>,
}

impl PolicyState {
    pub(crate) fn newest(&self) -> Option<ClusterPolicy> {
        self.newest.borrow().clone()
    }

    /// Records the policy of the database. The daemon adopts a newer one when it polls its files.
    #[cfg(feature = "postgres")]
    pub(crate) fn note(&self, policy: ClusterPolicy) {
        self.newest.send_if_modified(|newest| {
            let is_newer = newest
                .as_ref()
                .is_none_or(|newest| newest.version < policy.version);
            if is_newer {
                *newest = Some(policy);
            }
            is_newer
        });
    }

    /// Why the daemon is not ready because its file differs from the policy.
    pub(crate) fn problem(&self) -> Option<String> {
        self.problem.borrow().clone()
    }

    /// Compares the file of this configuration with the policy, and logs a change.
    pub(crate) fn compare(&self, config: &Config) {
        let Some(ClusterPolicy { version, policy }) = self.newest() else {
            return;
        };
        let differing = policy.differing(&config.policy);
        let settings = differing.join(", ");
        let before = self.differing.send_replace(differing);
        if settings.is_empty() {
            if !before.is_empty() {
                info!(version, "the file agrees with the cluster's policy again");
            }
        } else if before.join(", ") != settings {
            warn!(
                version,
                settings,
                "the file differs from the cluster's policy, which applies; reload the file at the \
                 leader, or run `memoird cluster apply FILE`, if the file is right"
            );
        }
        let is_problem = config.cluster.strict && !settings.is_empty();
        self.problem.send_replace(is_problem.then(|| {
            format!(
                "this file differs from version {version} of the cluster's policy \
                 (cluster.strict): {settings}"
            )
        }));
    }
}

/// Members that were seen recently.
pub(crate) fn here(cluster: &GetClusterResponse) -> impl Iterator<Item = &ClusterMember> {
    cluster.members.iter().filter(|member| member.is_here)
}

/// Lists which settings differ on members, one line per member.
pub(crate) fn disagreements(cluster: &GetClusterResponse) -> Vec<String> {
    let others = here(cluster).filter(|member| !member.differing_settings.is_empty());
    let line = |other: &ClusterMember| {
        let settings = other.differing_settings.join(", ");
        format!("{}: settings differ: {settings}", other.name)
    };
    others.map(line).collect()
}
