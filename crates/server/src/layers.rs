//! The tower layers that every call passes before its handler, one per file.
//!
//! A call is classified before the layers, and a rejection becomes a response after them, both in
//! this file. The layers between do not depend on gRPC, except for the framing in `body`.

pub(crate) mod auth;
mod body;
pub(crate) mod call_metrics;
mod deadline;
mod health;
pub(crate) mod limits;
pub(crate) mod reply_limit;

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use tokio_util::either::Either;
use tonic::body::Body;
use tonic::{Code, Status};
use tower::{Service, ServiceBuilder};

use crate::connections::{Connection, ConnectionsConfig};
use crate::rpc::{Call, Services};
use crate::wire::refusal::Refusal;
use crate::wire::status;
use auth::{Auth, AuthLayer};
use body::BodyLayer;
use call_metrics::{CallMetrics, CallMetricsLayer};
use deadline::DeadlineLayer;
use health::HealthLayer;
use limits::{TenantLimits, TenantLimitsLayer};

/// Content type of gRPC requests. A suffix such as `+proto` may follow.
const GRPC: &str = "application/grpc";

/// A call on its way through the layers.
pub(crate) struct IncomingCall {
    pub(crate) request: Request<Body>,
    pub(crate) call: Call,
    /// Time that the client allows for the call.
    pub(crate) deadline: Option<Duration>,
    pub(crate) connection: Arc<Connection>,
}

/// Why a call does not get the response of a handler.
pub(crate) enum Rejection {
    /// The response is this error, after a delay.
    Refused(Refusal, Duration),
    /// No response: the stream is reset.
    Reset,
}

/// The error that resets the stream of a call without a response.
#[derive(Debug, thiserror::Error)]
#[error("too many calls were rejected on this connection")]
pub(crate) struct StreamReset(#[source] h2::Error);

type CallResult = Result<Response<Body>, Rejection>;
type CallFuture = Pin<Box<dyn Future<Output = CallResult> + Send>>;
type ResponseFuture = Pin<Box<dyn Future<Output = Result<Response<Body>, StreamReset>> + Send>>;

/// The future of a layer that rejects some calls at once.
type OrRejected<F> = Either<F, Ready<CallResult>>;

/// A layer around a handler. Always ready.
pub(crate) trait CallService:
    Service<IncomingCall, Response = Response<Body>, Error = Rejection, Future: Send + 'static>
{
}

impl<S> CallService for S where
    S: Service<IncomingCall, Response = Response<Body>, Error = Rejection, Future: Send + 'static>
{
}

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

type Stack =
    CallMetricsLayer<HealthLayer<AuthLayer<TenantLimitsLayer<DeadlineLayer<BodyLayer<Services>>>>>>;

/// The gRPC services behind the layers.
#[derive(Clone)]
pub(crate) struct GrpcService {
    auth: Arc<Auth>,
    stack: Stack,
}

/// A [`GrpcService`] for one connection.
pub(crate) struct GrpcConnection {
    stack: Stack,
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

    pub(crate) fn around(&self, services: Services) -> GrpcService {
        let auth = || Arc::clone(&self.auth);
        let stack = ServiceBuilder::new()
            .layer_fn(|inner| CallMetricsLayer {
                inner,
                metrics: self.metrics.clone(),
            })
            .layer_fn(|inner| HealthLayer {
                inner,
                auth: auth(),
                services: services.clone(),
                timeout: self.probe_timeout,
            })
            .layer_fn(|inner| AuthLayer {
                inner,
                auth: auth(),
            })
            .layer_fn(|inner| TenantLimitsLayer {
                inner,
                limits: self.limits.clone(),
            })
            .layer_fn(DeadlineLayer)
            .layer_fn(|inner| BodyLayer {
                inner,
                timeout: self.request_timeout,
            })
            .service(services.clone());
        GrpcService {
            auth: auth(),
            stack,
        }
    }
}

impl GrpcService {
    pub(crate) fn of_connection(&self, connection: &Arc<Connection>) -> GrpcConnection {
        self.auth.begin(connection);
        GrpcConnection {
            stack: self.stack.clone(),
            connection: Arc::clone(connection),
        }
    }
}

impl hyper::service::Service<Request<Incoming>> for GrpcConnection {
    type Response = Response<Body>;
    type Error = StreamReset;
    type Future = ResponseFuture;

    fn call(&self, request: Request<Incoming>) -> ResponseFuture {
        let connection = &self.connection;
        if connection.is_closing() {
            return Box::pin(ready(Err(StreamReset::new())));
        }
        if let Some(status) = non_grpc_status(&request) {
            return Box::pin(ready(reject_http(status, connection)));
        }
        self.stack.clone().call(IncomingCall {
            call: Call::of(request.uri().path()),
            deadline: deadline::of_grpc(request.headers()),
            request: request.map(Body::new),
            connection: Arc::clone(connection),
        })
    }
}

impl Rejection {
    fn ready<F>(self) -> OrRejected<F> {
        Either::Right(ready(Err(self)))
    }
}

impl From<Refusal> for Rejection {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal, Duration::ZERO)
    }
}

impl From<Infallible> for Rejection {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

impl StreamReset {
    fn new() -> Self {
        Self(h2::Reason::ENHANCE_YOUR_CALM.into())
    }
}

/// Renders the outcome of a call for gRPC.
async fn render(result: CallResult) -> Result<Response<Body>, StreamReset> {
    match result {
        Ok(mut answer) => {
            add_error_details(&mut answer);
            Ok(answer)
        }
        Err(Rejection::Refused(refusal, delay)) => {
            if !delay.is_zero() {
                tokio::time::sleep(delay).await;
            }
            Ok(Status::from(refusal).into_http())
        }
        Err(Rejection::Reset) => Err(StreamReset::new()),
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

/// Adds the usual error details to errors of the gRPC library, such as malformed messages.
fn add_error_details(answer: &mut Response<Body>) {
    let headers = answer.headers_mut();
    if !headers.contains_key(Status::GRPC_STATUS)
        || headers.contains_key(Status::GRPC_STATUS_DETAILS)
    {
        return;
    }
    let refusal = Status::from_header_map(headers).filter(|status| status.code() != Code::Ok);
    if let Some(refusal) = refusal {
        // Fails only for a message that no header can hold.
        let _ = Status::from(status::transport(&refusal)).add_header(headers);
    }
}
