//! The rpcs of the API: who may call each, how large its request may be, and what serves it.

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::ready;
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll};

use http::{Request, Response};
use serde::{Deserialize, Serialize};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::BoxFuture;
use tonic::server::NamedService;
use tower::Service;

use RequestSize::{Large, Patch, Small, Text, Unlimited};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Role {
    /// Calls the services for bots, for its tenant.
    #[default]
    Bot,
    /// Also calls AdminService, which covers every tenant.
    Admin,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestSize {
    /// Ids and options.
    Small,
    /// A text, such as a memory.
    Text,
    /// A patch of a session's state.
    Patch,
    /// Limited by `server.max_request_bytes`.
    Large,
    /// Hashes of all blocks of the client's files.
    Unlimited,
}

#[derive(Debug)]
pub(crate) struct Rpc {
    pub(crate) path: &'static str,
    pub(crate) role: Role,
    pub(crate) request: RequestSize,
    /// Whether the response is a stream.
    pub(crate) has_stream: bool,
}

pub(crate) static RPCS: [Rpc; 52] = [
    bot("/memoird.v1.SessionService/Append", Large),
    bot("/memoird.v1.SessionService/GetContext", Large),
    bot("/memoird.v1.SessionService/ResolveRecallTool", Small),
    bot("/memoird.v1.SessionService/GetHistory", Small),
    bot("/memoird.v1.SessionService/GetSession", Small),
    bot("/memoird.v1.SessionService/ListSessions", Small),
    bot("/memoird.v1.SessionService/PatchState", Patch),
    bot("/memoird.v1.SessionService/RewindSession", Large),
    bot("/memoird.v1.SessionService/UpdateTurn", Large),
    bot("/memoird.v1.SessionService/CopySession", Small),
    bot("/memoird.v1.SessionService/CompactSession", Small),
    bot("/memoird.v1.SessionService/UndoCompaction", Small),
    bot("/memoird.v1.SessionService/ResetSession", Small),
    bot("/memoird.v1.SessionService/EndSession", Small),
    bot("/memoird.v1.SessionService/EraseSession", Small),
    bot("/memoird.v1.SessionService/EraseSubject", Small),
    bot("/memoird.v1.SessionService/GetErasure", Small),
    bot("/memoird.v1.SessionService/WatchEvents", Small).streams(),
    bot("/memoird.v1.MemoryService/Remember", Text),
    bot("/memoird.v1.MemoryService/Recall", Text),
    bot("/memoird.v1.MemoryService/GetMemory", Small),
    bot("/memoird.v1.MemoryService/ListMemories", Small),
    bot("/memoird.v1.MemoryService/ListSubjects", Small),
    bot("/memoird.v1.MemoryService/ListConflicts", Small),
    bot("/memoird.v1.MemoryService/UpdateMemory", Text),
    bot("/memoird.v1.MemoryService/Forget", Small),
    bot("/memoird.v1.MemoryService/GetManifest", Small),
    bot("/memoird.v1.MemoryService/LeaseExtraction", Small),
    bot("/memoird.v1.MemoryService/CommitExtraction", Large),
    bot("/memoird.v1.MemoryService/LearnSession", Small),
    bot("/memoird.v1.MemoryService/ImportMemories", Large),
    bot("/memoird.v1.MemoryService/GetMemoryStats", Small),
    bot("/memoird.v1.MemoryService/ReindexMemories", Small),
    bot("/memoird.v1.MemoryService/SearchTranscripts", Small),
    bot("/memoird.v1.DocumentService/GetDocument", Small),
    bot("/memoird.v1.DocumentService/PutDocument", Large),
    bot("/memoird.v1.DocumentService/DeleteDocument", Small),
    bot("/memoird.v1.DocumentService/DeleteDocuments", Small),
    bot("/memoird.v1.DocumentService/ListDocuments", Small),
    bot("/memoird.v1.DocumentService/ListNamespaces", Small),
    bot("/memoird.v1.DocumentService/BatchDocuments", Large),
    admin("/memoird.v1.AdminService/GetStats", Small),
    admin("/memoird.v1.AdminService/GetCluster", Small),
    admin("/memoird.v1.AdminService/ListTenants", Small),
    admin("/memoird.v1.AdminService/SweepNow", Small),
    admin("/memoird.v1.AdminService/RunDream", Small),
    admin("/memoird.v1.AdminService/ListHookDeliveries", Small),
    admin("/memoird.v1.AdminService/RetryHookDelivery", Small),
    admin("/memoird.v1.AdminService/DropHookDelivery", Small),
    admin("/memoird.v1.AdminService/ReloadConfig", Small),
    admin("/memoird.v1.AdminService/Verify", Small),
    admin("/memoird.v1.AdminService/Backup", Unlimited).streams(),
];

/// The kind of call that a path denotes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Call {
    Rpc(&'static Rpc),
    /// A health check, which needs no key.
    Health,
    /// A stream of requests and responses about the API itself.
    Reflection,
    Unknown,
}

impl Call {
    pub(crate) fn of(path: &str) -> Self {
        static BY_PATH: LazyLock<HashMap<&'static str, &'static Rpc>> =
            LazyLock::new(|| RPCS.iter().map(|rpc| (rpc.path, rpc)).collect());
        match BY_PATH.get(path) {
            Some(rpc) => Self::Rpc(rpc),
            None if path.starts_with("/grpc.health.") => Self::Health,
            None if path.starts_with("/grpc.reflection.") => Self::Reflection,
            None => Self::Unknown,
        }
    }

    pub(crate) fn rpc(self) -> Option<&'static Rpc> {
        match self {
            Self::Rpc(rpc) => Some(rpc),
            Self::Health | Self::Reflection | Self::Unknown => None,
        }
    }

    pub(crate) fn is_admin(self) -> bool {
        self.rpc().is_some_and(|rpc| rpc.role == Role::Admin)
    }

    pub(crate) fn has_stream(self) -> bool {
        self.rpc().is_some_and(|rpc| rpc.has_stream)
    }

    pub(crate) fn request_size(self) -> RequestSize {
        self.rpc().map_or(Large, |rpc| rpc.request)
    }
}

impl Rpc {
    /// Name without that of the service.
    pub(crate) fn name(&self) -> &'static str {
        self.path.rsplit('/').next().unwrap_or_default()
    }

    const fn streams(self) -> Self {
        Self {
            has_stream: true,
            ..self
        }
    }
}

const fn bot(path: &'static str, request: RequestSize) -> Rpc {
    Rpc {
        path,
        role: Role::Bot,
        request,
        has_stream: false,
    }
}

const fn admin(path: &'static str, request: RequestSize) -> Rpc {
    Rpc {
        role: Role::Admin,
        ..bot(path, request)
    }
}

/// The gRPC services by name.
#[derive(Clone, Default)]
pub(crate) struct Services(Arc<HashMap<&'static str, Handler>>);

type Handler = Box<dyn Fn(Request<Body>) -> ServiceFuture + Send + Sync>;
type ServiceFuture = BoxFuture<Response<Body>, Infallible>;

impl Services {
    /// Adds a service. Only before the services are shared.
    pub(crate) fn with<S>(mut self, service: S) -> Self
    where
        S: NamedService + Clone + Send + Sync + 'static,
        S: Service<
                Request<Body>,
                Response = Response<Body>,
                Error = Infallible,
                Future = ServiceFuture,
            >,
    {
        if let Some(services) = Arc::get_mut(&mut self.0) {
            // gRPC services are always ready.
            let handler = move |request| service.clone().call(request);
            services.insert(S::NAME, Box::new(handler));
        }
        self
    }
}

impl Service<Request<Body>> for Services {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = ServiceFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    /// Passes a call to the service of its path. UNIMPLEMENTED if there is none.
    fn call(&mut self, request: Request<Body>) -> ServiceFuture {
        let path = request.uri().path().strip_prefix('/');
        let named = path.and_then(|path| path.split_once('/'));
        match named.and_then(|(name, _)| self.0.get(name)) {
            Some(handler) => handler(request),
            None => Box::pin(ready(Ok(Status::unimplemented("").into_http()))),
        }
    }
}

#[cfg(test)]
mod tests {
    use memoird_proto::DESCRIPTOR_POOL;

    use super::*;
    use crate::config::DEFAULT_YAML;

    #[test]
    fn table_lists_every_rpc_of_the_contract() {
        let services = DESCRIPTOR_POOL.services();
        let methods = services.flat_map(|service| service.methods().collect::<Vec<_>>());
        let mut contract: Vec<_> = methods
            .map(|method| {
                let service = method.parent_service().full_name().to_owned();
                let is_admin = service.ends_with(".AdminService");
                let path = format!("/{service}/{}", method.name());
                (path, method.is_server_streaming(), is_admin)
            })
            .collect();
        let row = |rpc: &Rpc| (rpc.path.to_owned(), rpc.has_stream, rpc.role == Role::Admin);
        let mut table: Vec<_> = RPCS.iter().map(row).collect();
        contract.sort();
        table.sort();
        assert_eq!(table, contract);
    }

    #[test]
    fn default_file_names_rpcs_with_large_requests() {
        let (before, _) = DEFAULT_YAML.split_once("max_request_bytes:").unwrap();
        let (_, comment) = before.rsplit_once("max_calls_in_flight:").unwrap();
        for rpc in &RPCS {
            let is_named = !matches!(rpc.request, Small | Patch);
            assert_eq!(comment.contains(rpc.name()), is_named, "{}", rpc.path);
        }
    }

    #[test]
    fn other_paths_are_told_apart() {
        assert!(matches!(
            Call::of("/grpc.health.v1.Health/Watch"),
            Call::Health
        ));
        let reflection = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
        assert!(matches!(Call::of(reflection), Call::Reflection));
        for path in [
            "",
            "/",
            "/memoird.v1.AdminService/",
            "/memoird.v1.SessionService/append",
        ] {
            assert!(matches!(Call::of(path), Call::Unknown), "{path}");
        }
    }
}
