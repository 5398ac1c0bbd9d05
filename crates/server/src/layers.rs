//! What every call passes before its handler, and its response after it, one part per file.
//!
//! A call is classified before the layers, here, and a rejection becomes a response after them, in
//! `call`. The parts between do not depend on gRPC, except for the framing in `body`.

pub(crate) mod auth;
mod body;
mod call;
pub(crate) mod call_metrics;
mod deadline;
mod health;
pub(crate) mod limits;
pub(crate) mod reply_limit;

use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use tokio::time::timeout;
use tonic::body::Body;

use crate::connections::{Connection, ConnectionsConfig};
use crate::rpc::{Call, Role, Services};
use crate::services::{Api, ApiCall};
use crate::wire::status;
use auth::Auth;
use body::AdmittedCall;
use call::{CallFuture, GRPC, Rejection, ResponseFuture, StreamReset, render};
use call_metrics::CallMetrics;
use limits::TenantLimits;

/// State of the layers. Clones share it.
#[derive(Clone)]
pub(crate) struct Layers {
    pub(crate) metrics: CallMetrics,
    pub(crate) auth: Arc<Auth>,
    pub(crate) limits: TenantLimits,
    request_timeout: Duration,
    /// Timeout of requests without a key.
    probe_timeout: Duration,
}

/// The gRPC services, within the layers.
pub(crate) struct GrpcService {
    pub(crate) layers: Layers,
    pub(crate) api: Arc<Api>,
    /// Health checks and reflection.
    pub(crate) others: Services,
}

/// A [`GrpcService`] for one connection.
pub(crate) struct GrpcConnection {
    service: Arc<GrpcService>,
    connection: Arc<Connection>,
}

impl Layers {
    pub(crate) fn new(auth: Auth, limits: TenantLimits, config: &ConnectionsConfig) -> Self {
        Self {
            metrics: CallMetrics::new(),
            auth: Arc::new(auth),
            limits,
            request_timeout: config.request_timeout,
            probe_timeout: config.request_timeout.min(config.handshake_timeout),
        }
    }
}

impl GrpcService {
    pub(crate) fn of_connection(self: &Arc<Self>, connection: &Arc<Connection>) -> GrpcConnection {
        self.layers.auth.begin(connection);
        GrpcConnection {
            service: Arc::clone(self),
            connection: Arc::clone(connection),
        }
    }

    /// Admits a call, or rejects it at once.
    ///
    /// Nothing of a call is retained before its key is verified. This happens before the call gets
    /// a task, because the tenant determines the queue of the task.
    fn admit(
        &self,
        call: Call,
        request: Request<Body>,
        connection: &Arc<Connection>,
    ) -> Result<CallFuture, Rejection> {
        let layers = &self.layers;
        if let Call::Health = call {
            let open = layers.auth.begin_probe(&request, connection)?;
            let services = self.others.clone();
            let check = health::check(request, open, services, layers.probe_timeout);
            return Ok(Box::pin(check));
        }
        let caller = layers.auth.caller(&request, connection);
        let caller = caller.map_err(|denied| layers.auth.deny(denied, connection))?;
        if call.is_admin() && caller.role != Role::Admin {
            return Err(status::role_required().into());
        }
        let permit = Arc::new(layers.limits.admit(&caller, call)?);
        let deadline = deadline::of_grpc(request.headers());
        let admitted = AdmittedCall::new(call, request.headers(), connection, &permit)?;
        let request = admitted.counted(request, layers.request_timeout);
        let answer = match call {
            Call::Rpc(rpc) => {
                let api = Arc::clone(&self.api);
                let message = ();
                let call = ApiCall {
                    api,
                    caller,
                    permit,
                    message,
                };
                rpc.serve(call, request)
            }
            _ => self.others.call(request),
        };
        let call = async { Ok(admitted.respond(answer.await)) };
        let Some(deadline) = deadline else {
            return Ok(Box::pin(call));
        };
        let call = timeout(deadline, call);
        Ok(Box::pin(async {
            let late = |_| Err(status::deadline_exceeded().into());
            call.await.unwrap_or_else(late)
        }))
    }
}

impl hyper::service::Service<Request<Incoming>> for GrpcConnection {
    type Response = Response<Body>;
    type Error = StreamReset;
    type Future = ResponseFuture;

    fn call(&self, request: Request<Incoming>) -> ResponseFuture {
        let (service, connection) = (&self.service, &self.connection);
        if connection.is_closing() {
            return Box::pin(ready(Err(StreamReset::new())));
        }
        if let Some(status) = non_grpc_status(&request) {
            return Box::pin(ready(reject_http(status, connection)));
        }
        let call = Call::of(request.uri().path());
        let timer = service.layers.metrics.start(call);
        let admitted = service.admit(call, request.map(Body::new), connection);
        Box::pin(async {
            let result = match admitted {
                Ok(call) => call.await,
                Err(rejection) => Err(rejection),
            };
            timer.stop(&result);
            render(result).await
        })
    }
}

/// Why a request is not gRPC, if so.
fn non_grpc_status<B>(request: &Request<B>) -> Option<StatusCode> {
    if request.method() != Method::POST {
        return Some(StatusCode::METHOD_NOT_ALLOWED);
    }
    let content_type = request
        .headers()
        .get(CONTENT_TYPE)
        .map(HeaderValue::as_bytes);
    let rest = content_type.and_then(|of| of.strip_prefix(GRPC.as_bytes()));
    match rest {
        Some([] | [b'+' | b';', ..]) => None,
        _ => Some(StatusCode::UNSUPPORTED_MEDIA_TYPE),
    }
}

fn reject_http(status: StatusCode, connection: &Connection) -> Result<Response<Body>, StreamReset> {
    if !connection.count_refusal() {
        return Err(StreamReset::new());
    }
    let mut answer = Response::new(Body::empty());
    *answer.status_mut() = status;
    Ok(answer)
}
