//! gRPC health status: accepting calls, and a reachable journal.

use std::sync::Arc;

use memoird_engine::{WorkError, Worker};
use tokio::sync::{Mutex, watch};
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

/// Name of the daemon as a whole.
const DAEMON: &str = "";
/// Services with a status of their own.
const SERVICES: [&str; 4] = [
    "memoird.v1.SessionService",
    "memoird.v1.MemoryService",
    "memoird.v1.DocumentService",
    "memoird.v1.AdminService",
];

/// Publishes the status. After shutdown it publishes nothing.
#[derive(Clone)]
pub(crate) struct Health {
    reporter: Arc<Mutex<Option<HealthReporter>>>,
}

impl Health {
    pub(crate) fn new(reporter: HealthReporter) -> Self {
        Self {
            reporter: Arc::new(Mutex::new(Some(reporter))),
        }
    }

    /// Reports that calls are accepted.
    pub(crate) async fn begin(&self) {
        self.set(DAEMON, true).await;
        self.set_services(true).await;
    }

    /// Reports that no calls are accepted, and ends the streams of watchers.
    pub(crate) async fn end(&self) {
        self.set(DAEMON, false).await;
        self.set_services(false).await;
        if let Some(mut reporter) = self.reporter.lock().await.take() {
            reporter.clear_service_status(DAEMON).await;
            for service in SERVICES {
                reporter.clear_service_status(service).await;
            }
        }
    }

    async fn set_services(&self, are_served: bool) {
        for service in SERVICES {
            self.set(service, are_served).await;
        }
    }

    async fn set(&self, name: &str, is_served: bool) {
        let status = if is_served {
            ServingStatus::Serving
        } else {
            ServingStatus::NotServing
        };
        if let Some(reporter) = &*self.reporter.lock().await {
            reporter.set_service_status(name, status).await;
        }
    }
}

/// Reports NOT_SERVING for all services while the journal is unreachable.
///
/// The daemon as a whole stays SERVING, so that it is not restarted.
pub(crate) struct JournalFollower {
    health: Health,
    away: watch::Receiver<Option<String>>,
}

impl JournalFollower {
    pub(crate) fn new(health: Health, mut away: watch::Receiver<Option<String>>) -> Self {
        // It may already be unreachable.
        away.mark_changed();
        Self { health, away }
    }
}

impl Worker for JournalFollower {
    fn name(&self) -> &'static str {
        "health"
    }

    async fn wait(&mut self) {
        if self.away.changed().await.is_err() {
            // Without a journal, nothing is unreachable.
            std::future::pending::<()>().await;
        }
    }

    async fn step(&mut self) -> Result<(), WorkError> {
        let is_away = self.away.borrow_and_update().is_some();
        self.health.set_services(!is_away).await;
        Ok(())
    }
}
