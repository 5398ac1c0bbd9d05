//! The daemons that share a journal.

use memoird_proto::v1::{ClusterMember, GetClusterResponse};

/// Members that were seen recently.
pub(crate) fn here(cluster: &GetClusterResponse) -> impl Iterator<Item = &ClusterMember> {
    cluster.members.iter().filter(|member| member.is_here)
}

/// Lists which settings differ on other members, one line per member.
pub(crate) fn disagreements(cluster: &GetClusterResponse) -> Vec<String> {
    let others = here(cluster).filter(|member| !member.differing_settings.is_empty());
    let line = |other: &ClusterMember| {
        let settings = other.differing_settings.join(", ");
        format!("{}: settings differ: {settings}", other.name)
    };
    others.map(line).collect()
}
