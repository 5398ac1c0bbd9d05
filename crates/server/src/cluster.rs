//! The daemons that share a journal.

use memoird_core::time::Timestamp;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClusterView {
    /// False if the journal belongs to a single daemon.
    pub(crate) is_shared: bool,
    pub(crate) members: Vec<MemberView>,
    /// Expiry of the leader's lease, unless it is renewed.
    pub(crate) lease_until: Option<Timestamp>,
    /// Number of hook deliveries that are due.
    pub(crate) deliveries_due: u64,
    /// How long the oldest of them has been due, in milliseconds.
    pub(crate) deliveries_late_ms: u64,
    /// Schema version of the database; 0 if the journal is not shared.
    pub(crate) schema_version: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct MemberView {
    pub(crate) name: String,
    pub(crate) version: String,
    /// Whether it is the daemon that answers.
    pub(crate) is_self: bool,
    /// Whether it holds the leader's lease.
    pub(crate) leads: bool,
    /// False if it was not seen for some seconds.
    pub(crate) is_here: bool,
    pub(crate) seen_at: Timestamp,
    /// Settings with other values than on the daemon that answers.
    pub(crate) differing: Vec<String>,
    pub(crate) commits: u64,
    pub(crate) commits_in_doubt: u64,
    pub(crate) committed_at: Option<Timestamp>,
}

impl ClusterView {
    /// Members that were seen recently.
    pub(crate) fn here(&self) -> impl Iterator<Item = &MemberView> {
        self.members.iter().filter(|member| member.is_here)
    }

    /// Lists which settings differ on other members, one line per member.
    pub(crate) fn disagreements(&self) -> Vec<String> {
        let others = self.here().filter(|member| !member.differing.is_empty());
        let line = |other: &MemberView| {
            format!(
                "{}: settings differ: {}",
                other.name,
                other.differing.join(", ")
            )
        };
        others.map(line).collect()
    }
}
