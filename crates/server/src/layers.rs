//! What every call passes before its handler, and its response after it, one part per file.
//!
//! A call is classified before the layers, here, and a rejection becomes a response after them, in
//! `call`. The parts between do not depend on gRPC, except for the framing in `limits`.

pub(crate) mod auth;
mod body;
mod call;
pub(crate) mod call_metrics;
mod cors;
mod deadline;
mod health;
pub(crate) mod limits;
pub(crate) mod reply_limit;

use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use http::header::ORIGIN;
use http::{Request, Response};
use http_body::Body as _;
use hyper::body::Incoming;
use tokio::time::timeout;
use tonic::body::Body;
use tower::{Layer, ServiceExt, service_fn};
use tower_http::cors::CorsLayer;

use crate::connect::{self, Conversions, Head, HttpProblem};
use crate::connections::{Connection, ConnectionsConfig};
use crate::rpc::{Call, Role, Services};
use crate::services::{Api, ApiCall};
use crate::wire::status;
use auth::Auth;
use body::AdmittedCall;
use call::{CallFuture, CallResult, Rejection, ResponseFuture, StreamReset, render};
use call_metrics::CallMetrics;
use limits::TenantLimits;

pub(crate) use body::HeldBody;
pub(crate) use call::GRPC;
pub(crate) use cors::CorsConfig;

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
    /// For web pages of other origins. `None` if none may call.
    pub(crate) cors: Option<CorsLayer>,
}

/// A [`GrpcService`] for one connection.
#[derive(Clone)]
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
        head: Head,
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
        if !matches!(head, Head::Grpc)
            && !Auth::has_credential(&request, connection)
            && !connect::is_for_this_machine(&request)
        {
            return Err(status::host_not_local().into());
        }
        if call.is_admin() && caller.role != Role::Admin {
            return Err(status::role_required().into());
        }
        let permit = Arc::new(layers.limits.admit(&caller, call)?);
        let admitted = AdmittedCall::new(call, request.headers(), connection, &permit)?;
        let api_call = ApiCall {
            api: Arc::clone(&self.api),
            caller,
            permit,
            message: (),
        };
        let http = match head {
            Head::Http(http) => http,
            Head::OpenAi(operation) => {
                let announced = request.body().size_hint().exact();
                api_call.permit.announce(announced.unwrap_or_default())?;
                let request = admitted.counted(request, layers.request_timeout);
                return Ok(Box::pin(async move {
                    let answer = operation.serve(api_call, request).await;
                    Ok(admitted.respond(answer))
                }));
            }
            Head::OpenApi => {
                let answer = admitted.respond(connect::openapi());
                return Ok(Box::pin(ready(Ok(answer))));
            }
            Head::Grpc => {
                let deadline = deadline::of_grpc(request.headers());
                let request = admitted.counted(request, layers.request_timeout);
                let answer = match call {
                    Call::Rpc(rpc) => rpc.serve(api_call, request),
                    _ => self.others.call(request),
                };
                let call = async { Ok(admitted.respond(answer.await)) };
                return Ok(within(deadline, call));
            }
        };
        let deadline = http.deadline(request.headers())?;
        let request = http.with_body(request)?;
        let announced = request.body().size_hint().exact();
        api_call.permit.announce(announced.unwrap_or_default())?;
        let request = admitted.counted(request, layers.request_timeout);
        let conversions = Conversions {
            heavy: self.api.heavy.clone(),
            tenant: api_call.caller.tenant.id.clone(),
            permit: Arc::clone(&api_call.permit),
        };
        Ok(within(deadline, async move {
            let answer = match http.request(request, &conversions).await {
                Ok(request) => http.rpc.serve(api_call, request).await,
                Err(status) => return Ok(status.into_http()),
            };
            Ok(admitted.respond(http.reply(answer, conversions).await))
        }))
    }
}

impl hyper::service::Service<Request<Incoming>> for GrpcConnection {
    type Response = Response<Body>;
    type Error = StreamReset;
    type Future = ResponseFuture;

    fn call(&self, request: Request<Incoming>) -> ResponseFuture {
        if self.connection.is_closing() {
            return Box::pin(ready(Err(StreamReset::new())));
        }
        self.connection.note_request();
        let cors = self.service.cors.as_ref();
        // Only browsers send an origin.
        let Some(cors) = cors.filter(|_| request.headers().contains_key(ORIGIN)) else {
            return self.answer(request);
        };
        let inner = self.clone();
        let answer = service_fn(move |request| inner.answer(request));
        Box::pin(cors.layer(answer).oneshot(request))
    }
}

impl GrpcConnection {
    fn answer(&self, request: Request<Incoming>) -> ResponseFuture {
        let (service, connection) = (&self.service, &self.connection);
        let call = Call::of(request.uri().path());
        let head = match Head::of(&request, call) {
            Ok(head) => head,
            Err(problem) => return Box::pin(ready(reject_http(problem, connection))),
        };
        let call = head.call(call);
        let timer = service.layers.metrics.start(call);
        let admitted = service.admit(call, head, request.map(Body::new), connection);
        Box::pin(async move {
            let result = match admitted {
                Ok(call) => call.await,
                Err(rejection) => Err(rejection),
            };
            timer.stop(&result);
            render(result, head).await
        })
    }
}

/// Ends a call after its deadline, if its client has set one.
fn within(
    deadline: Option<Duration>,
    call: impl Future<Output = CallResult> + Send + 'static,
) -> CallFuture {
    let Some(deadline) = deadline else {
        return Box::pin(call);
    };
    let call = timeout(deadline, call);
    Box::pin(async {
        let late = |_| Err(status::deadline_exceeded().into());
        call.await.unwrap_or_else(late)
    })
}

/// Answers a request that is no call. Without a key, a connection gets few such answers.
fn reject_http(
    problem: HttpProblem,
    connection: &Connection,
) -> Result<Response<Body>, StreamReset> {
    if connection.count_refusal() {
        Ok(problem.into_response())
    } else {
        Err(StreamReset::new())
    }
}
