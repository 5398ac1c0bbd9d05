//! The admin port: is it alive, is it ready, what does it count.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::get;
use memoird_engine::Engine;
use prometheus_client::encoding::text;
use prometheus_client::registry::Registry;
use tracing::warn;

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
    pub(crate) fn router(self) -> Router {
        Router::new()
            .route("/healthz", get(|| async { "alive\n" }))
            .route("/readyz", get(readyz))
            .route("/metrics", get(metrics))
            .with_state(self)
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
