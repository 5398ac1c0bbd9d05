//! The daemons that share a journal, as an operator sees them, and what they do not serve: what the own
//! files or the own memory of each would have to answer for all of them.

use memoird_core::time::Timestamp;
use tonic::Status;

use crate::wire::status;

/// The daemons over one journal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClusterView {
    /// False where one daemon has the journal alone.
    pub(crate) is_shared: bool,
    pub(crate) members: Vec<MemberView>,
    /// Until when the one that leads does so unless it renews its lease.
    pub(crate) lease_until: Option<Timestamp>,
    /// Deliveries of hooks that are due.
    pub(crate) deliveries_due: u64,
    /// How long the first of them has been due.
    pub(crate) deliveries_late_ms: u64,
    /// The version of the database's schema; 0 where one daemon has the journal alone.
    pub(crate) schema_version: u32,
}

/// One of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct MemberView {
    pub(crate) name: String,
    pub(crate) version: String,
    /// It is the daemon that answers.
    pub(crate) is_self: bool,
    /// It does what one of them does.
    pub(crate) leads: bool,
    /// False where it was not seen for some seconds.
    pub(crate) is_here: bool,
    pub(crate) seen_at: Timestamp,
    /// Settings that its file says something else of than that of the daemon that answers.
    pub(crate) differing: Vec<String>,
    pub(crate) commits: u64,
    pub(crate) commits_in_doubt: u64,
    pub(crate) committed_at: Option<Timestamp>,
}

impl ClusterView {
    /// Of those that are there, who is here.
    pub(crate) fn here(&self) -> impl Iterator<Item = &MemberView> {
        self.members.iter().filter(|member| member.is_here)
    }

    /// What the others say of settings that all have to agree on: a line for each of them.
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

/// Calls that would need an index of what was said, which is a file of each daemon.
const METHODS: [&str; 1] = ["SearchTranscripts"];

/// Refuses a call that is not served in a cluster, by its path.
pub(crate) fn check_served(path: &str) -> Result<(), Status> {
    let method = path.rsplit('/').next().unwrap_or_default();
    match METHODS.contains(&method) {
        true => Err(status::not_in_cluster(method)),
        false => Ok(()),
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
