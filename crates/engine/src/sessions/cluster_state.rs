//! Session counts and version checks of a cluster member.

use std::collections::{BTreeMap, HashMap};

use memoird_core::ids::TenantId;
use parking_lot::Mutex;

use super::version_checks::VersionChecks;
use crate::cluster::Cluster;

#[derive(Debug)]
pub(super) struct ClusterState {
    pub(super) cluster: Cluster,
    pub(super) version_checks: VersionChecks,
    /// Number of live sessions by tenant, as of the last count.
    counts: Mutex<HashMap<TenantId, usize>>,
}

impl ClusterState {
    pub(super) fn new(cluster: Cluster) -> Self {
        Self {
            cluster,
            version_checks: VersionChecks::default(),
            counts: Mutex::default(),
        }
    }

    pub(super) fn set_counts(&self, counted: &BTreeMap<TenantId, usize>) {
        let counted = counted.clone().into_iter().collect();
        *self.counts.lock() = counted;
    }

    /// Number of a tenant's live sessions in the journal, as of the last count.
    pub(super) fn count(&self, tenant: &TenantId) -> usize {
        let counts = self.counts.lock();
        counts.get(tenant).copied().unwrap_or(0)
    }
}
