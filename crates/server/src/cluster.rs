//! The daemons that share a journal, and the calls that a cluster does not serve.
//!
//! These calls need data that each daemon has only for itself.

use memoird_core::time::Timestamp;
use tonic::Status;

use crate::wire::status;

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
                "{} has other values of {}",
                other.name,
                other.differing.join(", ")
            )
        };
        others.map(line).collect()
    }
}

/// Calls that need the search index, which is a file of each daemon.
const METHODS: [&str; 1] = ["SearchTranscripts"];

/// Rejects a call that is not served in a cluster.
pub(crate) fn check_served(path: &str) -> Result<(), Status> {
    let method = path.rsplit('/').next().unwrap_or_default();
    if METHODS.contains(&method) {
        Err(status::not_in_cluster(method))
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use memoird_proto::DESCRIPTOR_POOL;

    use super::*;

    #[test]
    fn what_is_named_here_is_in_the_contract() {
        let services: Vec<_> = DESCRIPTOR_POOL.services().collect();
        let mut methods = Vec::new();
        for service in &services {
            methods.extend(service.methods().map(|method| method.name().to_owned()));
        }
        assert!(
            METHODS
                .iter()
                .all(|name| methods.iter().any(|it| it == name))
        );
    }

    #[test]
    fn all_is_served_but_searches_of_what_was_said() {
        for method in [
            "Append",
            "GetContext",
            "EraseSubject",
            "ListSessions",
            "WatchEvents",
        ] {
            let path = format!("/memoird.v1.SessionService/{method}");
            assert!(check_served(&path).is_ok(), "{path}");
        }
        for path in [
            "/grpc.health.v1.Health/Watch",
            "/memoird.v1.MemoryService/Recall",
            "/memoird.v1.DocumentService/GetDocument",
            "/memoird.v1.AdminService/RunDream",
        ] {
            assert!(check_served(path).is_ok(), "{path}");
        }
        let path = "/memoird.v1.MemoryService/SearchTranscripts";
        let refused = check_served(path).unwrap_err();
        assert_eq!(refused.code(), tonic::Code::Unimplemented, "{path}");
    }
}
