//! The admin port: is it alive, is it ready, what does it count.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::get;
use http::{Request, Response};
use hyper::body::Incoming;
use memoird_engine::Engine;
use prometheus_client::encoding::text;
use prometheus_client::registry::Registry;
use tower::Service;
use tracing::warn;

use crate::connections::serve::{Io, Protocol, http1};
use crate::connections::{Connection, ConnectionsConfig};

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// What the port tells.
#[derive(Clone, Debug)]
pub(crate) struct Admin {
    ready: Arc<AtomicBool>,
    engine: Engine,
    registry: Arc<Registry>,
}

impl Admin {
    pub(crate) fn new(engine: Engine, registry: Registry) -> Self {
        Self {
            ready: Arc::default(),
            engine,
            registry: Arc::new(registry),
        }
    }

    /// Whether calls are taken; before the first and after the last they are not.
    pub(crate) fn set_ready(&self, ready: bool) {
        self.ready.store(ready, Ordering::Relaxed);
    }

    /// The port's pages.
    fn router(self) -> Router {
        Router::new()
            .route("/healthz", get(|| async { "alive\n" }))
            .route("/readyz", get(readyz))
            .route("/metrics", get(metrics))
            .with_state(self)
    }
}

/// HTTP, as the port speaks it.
#[derive(Clone)]
pub(crate) struct Pages {
    http1: hyper::server::conn::http1::Builder,
    router: Router,
}

/// The pages for the requests of one connection.
#[derive(Clone)]
pub(crate) struct PageService {
    router: Router,
    connection: Arc<Connection>,
}

impl Pages {
    pub(crate) fn new(admin: Admin, limits: &ConnectionsConfig) -> Self {
        Self {
            http1: http1(limits.handshake_timeout),
            router: admin.router(),
        }
    }
}

impl Protocol for Pages {
    type Serving = hyper::server::conn::http1::Connection<Io, PageService>;

    // A limit for the head of a request is one for the first bytes as well.
    const SAYS_HELLO: bool = false;

    fn serve(&self, io: Io, connection: &Arc<Connection>) -> Self::Serving {
        let service = PageService {
            router: self.router.clone(),
            connection: Arc::clone(connection),
        };
        self.http1.serve_connection(io, service)
    }
}

impl hyper::service::Service<Request<Incoming>> for PageService {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let call = self.connection.begin_call();
        let page = self.router.clone().call(request);
        Box::pin(async move {
            let page = page.await;
            drop(call);
            page
        })
    }
}

async fn readyz(State(admin): State<Admin>) -> (StatusCode, &'static str) {
    match admin.ready.load(Ordering::Relaxed) {
        true => (StatusCode::OK, "ready\n"),
        false => (StatusCode::SERVICE_UNAVAILABLE, "not ready\n"),
    }
}

async fn metrics(State(admin): State<Admin>) -> impl IntoResponse {
    // Where it cannot be counted, the page shows what was counted before.
    if let Err(error) = admin.engine.hooks.count_deliveries().await {
        warn!(%error, "hook deliveries could not be counted");
    }
    let mut page = String::new();
    match text::encode(&mut page, &admin.registry) {
        Ok(()) => ([(CONTENT_TYPE, OPEN_METRICS)], page).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}
