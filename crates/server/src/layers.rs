//! The tower layers that every call passes before its handler, one per file.
//!
//! A call is classified before the layers, here, and a rejection becomes a response after them, in
//! `call`. The layers between do not depend on gRPC, except for the framing in `body`.

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
use tonic::body::Body;
use tower::{Service, ServiceBuilder};

use crate::connections::{Connection, ConnectionsConfig};
use crate::rpc::{Call, Services};
use auth::{Auth, AuthLayer};
use body::BodyLayer;
use call::{GRPC, IncomingCall, ResponseFuture, StreamReset};
use call_metrics::{CallMetrics, CallMetricsLayer};
use deadline::DeadlineLayer;
use health::HealthLayer;
use limits::{TenantLimits, TenantLimitsLayer};

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

/// The gRPC services, within the layers.
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

    pub(crate) fn around(&self, services: &Services) -> GrpcService {
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
