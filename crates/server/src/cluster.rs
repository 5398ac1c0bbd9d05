//! What a daemon does not serve while it shares its journal with others: what its own files or its own
//! memory would have to answer for all of them.

use tonic::Status;

use crate::wire::status;

/// Services whose data is in files of each daemon.
const SERVICES: [&str; 2] = ["MemoryService", "DocumentService"];
/// Calls of the others.
const METHODS: [&str; 1] = ["RunDream"];

/// Refuses a call that is not served in a cluster, by its path.
pub(crate) fn check_served(path: &str) -> Result<(), Status> {
    let mut parts = path.trim_start_matches('/').split('/');
    let service = parts.next().and_then(|name| name.rsplit('.').next());
    let method = parts.next().unwrap_or_default();
    let is_unserved = service.is_some_and(|name| SERVICES.contains(&name));
    match is_unserved || METHODS.contains(&method) {
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
        for name in SERVICES {
            let full = format!("memoird.v1.{name}");
            assert!(services.iter().any(|it| it.full_name() == full), "{name}");
        }
    }

    #[test]
    fn sessions_are_served_and_memories_are_not() {
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
        assert!(check_served("/grpc.health.v1.Health/Watch").is_ok());
        for path in [
            "/memoird.v1.MemoryService/Recall",
            "/memoird.v1.MemoryService/SearchTranscripts",
            "/memoird.v1.DocumentService/GetDocument",
            "/memoird.v1.AdminService/RunDream",
        ] {
            let refused = check_served(path).unwrap_err();
            assert_eq!(refused.code(), tonic::Code::Unimplemented, "{path}");
        }
    }
}
