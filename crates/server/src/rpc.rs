//! The rpcs of the API: who may call each, how large its request may be, and what serves it.

use std::collections::HashMap;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, LazyLock};

use http::{Request, Response};
use memoird_proto::prost_reflect::MethodDescriptor;
use memoird_proto::{DESCRIPTOR_POOL, PACKAGE, UnaryCall};
use prost::{Message, Name};
use serde::{Deserialize, Serialize};
use tokio_stream::Stream;
use tonic::Status;
use tonic::body::Body;
use tonic::server::{Grpc, NamedService};
use tower::{Service, service_fn};

use crate::layers::reply_limit;
use crate::request_codec::RequestCodec;
use crate::services::{ApiCall, admin, document, memory, session};
use crate::wire::refusal::Refusal;
use crate::wire::status;

use RequestSize::{Large, Patch, Small, Text, Unlimited};

/// Maximum size of an AdminService request in bytes.
///
/// `Backup` requests contain block hashes: 16 MiB for 256 GiB of files.
const ADMIN_REQUEST_BYTES_MAX: usize = 16 << 20;

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

pub(crate) struct Rpc {
    pub(crate) path: &'static str,
    pub(crate) role: Role,
    pub(crate) request: RequestSize,
    /// Whether the response is a stream.
    pub(crate) has_stream: bool,
    pub(crate) method: MethodDescriptor,
    handler: Handler,
}

/// Decodes the message of a call, of at most this many bytes, and encodes its reply.
type Handler = Box<dyn Fn(ApiCall<()>, usize, Request<Body>) -> AnswerFuture + Send + Sync>;

type AnswerFuture = Pin<Box<dyn Future<Output = Response<Body>> + Send>>;

pub(crate) static RPCS: LazyLock<Vec<Rpc>> = LazyLock::new(|| {
    vec![
        unary(Large, session::append),
        unary(Large, session::build_context),
        unary(Small, session::resolve_recall_tool),
        unary(Small, session::get_history),
        unary(Small, session::get_session),
        unary(Small, session::list_sessions),
        unary(Small, session::search_transcripts),
        unary(Patch, session::update_session),
        unary(Large, session::rewind_session),
        unary(Large, session::update_turn),
        unary(Small, session::copy_session),
        unary(Small, session::compact_session),
        unary(Small, session::undo_compaction),
        unary(Small, session::reset_session),
        unary(Small, session::end_session),
        unary(Small, session::erase_session),
        unary(Small, session::erase_subject),
        unary(Small, session::get_erasure),
        streaming(
            "/memoird.v1.SessionService/WatchEvents",
            Small,
            session::watch_events,
        ),
        unary(Text, memory::remember),
        unary(Text, memory::recall),
        unary(Small, memory::get_memory),
        unary(Small, memory::list_memories),
        unary(Small, memory::list_subjects),
        unary(Small, memory::list_conflicts),
        unary(Text, memory::update_memory),
        unary(Small, memory::forget),
        unary(Small, memory::get_manifest),
        unary(Small, memory::lease_extraction),
        unary(Large, memory::commit_extraction),
        unary(Small, memory::learn_session),
        unary(Large, memory::import_memories),
        unary(Small, memory::get_memory_stats),
        unary(Small, document::get_document),
        unary(Large, document::put_document),
        unary(Small, document::delete_document),
        unary(Small, document::delete_documents),
        unary(Small, document::list_documents),
        unary(Small, document::list_namespaces),
        unary(Large, document::batch_documents),
        unary(Small, admin::get_stats),
        unary(Small, admin::get_cluster),
        unary(Small, admin::sweep_now),
        unary(Small, admin::run_dream),
        unary(Small, admin::reindex_memories),
        unary(Small, admin::list_hook_deliveries),
        unary(Small, admin::retry_hook_delivery),
        unary(Small, admin::drop_hook_delivery),
        unary(Small, admin::reload_config),
        unary(Small, admin::verify),
        streaming("/memoird.v1.AdminService/Backup", Unlimited, admin::backup),
    ]
});

/// The kind of call that a path denotes.
#[derive(Clone, Copy)]
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
    fn new(path: &'static str, request: RequestSize, has_stream: bool, handler: Handler) -> Self {
        let service = path.trim_start_matches('/').trim_start_matches(PACKAGE);
        let role = if service.starts_with(".AdminService/") {
            Role::Admin
        } else {
            Role::Bot
        };
        Self {
            path,
            role,
            request,
            has_stream,
            method: descriptor(path).expect("a method of the contract"),
            handler,
        }
    }

    /// Name without that of the service.
    pub(crate) fn name(&self) -> &'static str {
        self.path.rsplit('/').next().unwrap_or_default()
    }

    /// Serves an admitted call.
    pub(crate) fn serve(&self, call: ApiCall<()>, request: Request<Body>) -> AnswerFuture {
        let bytes_max = match self.role {
            Role::Admin => ADMIN_REQUEST_BYTES_MAX,
            Role::Bot => call.api.request_bytes,
        };
        (self.handler)(call, bytes_max, request)
    }
}

fn descriptor(path: &str) -> Option<MethodDescriptor> {
    let (service, name) = path.strip_prefix('/')?.split_once('/')?;
    let service = DESCRIPTOR_POOL.get_service_by_name(service)?;
    service.methods().find(|method| method.name() == name)
}

fn unary<Q, R, F>(
    request: RequestSize,
    handler: impl Fn(ApiCall<Q>) -> F + Copy + Send + Sync + 'static,
) -> Rpc
where
    Q: UnaryCall + Default + 'static,
    R: Message + 'static,
    F: Future<Output = Result<R, Refusal>> + Send + 'static,
{
    let serve = move |call: ApiCall<()>, bytes_max, request| -> AnswerFuture {
        let permit = Arc::clone(&call.permit);
        let service = service_fn(move |request| {
            let (permit, reply) = (call.permit.clone(), run(handler, call.clone(), request));
            async move {
                let reply = reply.await?;
                reply_limit::check(reply.get_ref(), &permit)?;
                Ok(reply)
            }
        });
        let codec = RequestCodec::<R, Q>::new(permit);
        let mut grpc = Grpc::new(codec).max_decoding_message_size(bytes_max);
        Box::pin(async move { grpc.unary(service, request).await })
    };
    Rpc::new(Q::PATH, request, false, Box::new(serve))
}

/// An rpc with a streamed response.
fn streaming<Q, R, S, F>(
    path: &'static str,
    request: RequestSize,
    handler: impl Fn(ApiCall<Q>) -> F + Copy + Send + Sync + 'static,
) -> Rpc
where
    Q: Message + Name + Default + 'static,
    R: Message + 'static,
    S: Stream<Item = Result<R, Status>> + Send + 'static,
    F: Future<Output = Result<S, Refusal>> + Send + 'static,
{
    let serve = move |call: ApiCall<()>, bytes_max, request| -> AnswerFuture {
        let permit = Arc::clone(&call.permit);
        let service = service_fn(move |request| run(handler, call.clone(), request));
        let codec = RequestCodec::<R, Q>::new(permit);
        let mut grpc = Grpc::new(codec).max_decoding_message_size(bytes_max);
        Box::pin(async move { grpc.server_streaming(service, request).await })
    };
    Rpc::new(path, request, true, Box::new(serve))
}

/// Runs a handler, after checking the key again: the message may have taken long to arrive.
async fn run<Q, T, F: Future<Output = Result<T, Refusal>>>(
    handler: impl Fn(ApiCall<Q>) -> F,
    call: ApiCall<()>,
    request: tonic::Request<Q>,
) -> Result<tonic::Response<T>, Status> {
    call.caller.key.check()?;
    let call = ApiCall {
        message: request.into_inner(),
        api: call.api,
        caller: call.caller,
        permit: call.permit,
    };
    Ok(tonic::Response::new(handler(call).await?))
}

/// The services of gRPC itself, by name: health checks and reflection.
#[derive(Clone, Default)]
pub(crate) struct Services(Arc<HashMap<&'static str, ServiceHandler>>);

type ServiceHandler = Box<dyn Fn(Request<Body>) -> AnswerFuture + Send + Sync>;

impl Services {
    /// Adds a service. Only before the services are shared.
    pub(crate) fn with<S>(mut self, service: S) -> Self
    where
        S: NamedService + Clone + Send + Sync + 'static,
        S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
        S::Future: Send + 'static,
    {
        if let Some(services) = Arc::get_mut(&mut self.0) {
            let handler = move |request| -> AnswerFuture {
                // gRPC services are always ready.
                let call = service.clone().call(request);
                Box::pin(async { call.await.unwrap_or_else(|never| match never {}) })
            };
            services.insert(S::NAME, Box::new(handler));
        }
        self
    }

    /// Passes a call to the service of its path. UNIMPLEMENTED if there is none.
    pub(crate) fn call(&self, request: Request<Body>) -> AnswerFuture {
        let path = request.uri().path().strip_prefix('/');
        let named = path.and_then(|path| path.split_once('/'));
        match named.and_then(|(name, _)| self.0.get(name)) {
            Some(handler) => handler(request),
            None => Box::pin(async { Status::from(status::unimplemented()).into_http() }),
        }
    }
}

#[cfg(test)]
mod tests {
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
        for rpc in RPCS.iter() {
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
