//! The process in three states: a configuration, an `App` with its sockets bound and
//! nothing running, and a `Running` daemon that can be drained.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use memoird_core::ids::TenantId;
use memoird_engine::{Blocking, Durability, Engine, EngineError, SystemMachine};
use memoird_memories::Memories;
use memoird_memories::files::MemoryFiles;
use memoird_proto::DESCRIPTORS;
use memoird_proto::spliced::admin_service_server::AdminServiceServer;
use memoird_proto::spliced::memory_service_server::MemoryServiceServer;
use memoird_proto::spliced::session_service_server::SessionServiceServer;
use memoird_store::{SqliteOptions, SqliteStore, Store, StoreError};
use thiserror::Error;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::transport::Server;
use tonic_health::server::HealthReporter;
use tracing::{error, info, warn};

use crate::admin::Admin;
use crate::admission::Admission;
use crate::auth::Keyring;
use crate::auth_layer::AuthLayer;
use crate::config::{Config, ServerConfig};
use crate::listener::connections;
use crate::logging::LogControl;
use crate::metrics::{self, CallMetrics, Sources};
use crate::process;
use crate::reload::{self, Reloader};
use crate::services::{AdminApi, MemoryApi, SessionApi, Watching};

/// How long the admin port may take to finish its pages when the daemon stops.
const PAGES_TIME_MAX: Duration = Duration::from_secs(1);
/// How often, and with which pause, it is looked whether only watchers are left.
const WATCHERS_LOOKS: u32 = 10;
const WATCHERS_PAUSE: Duration = Duration::from_millis(100);

/// Why the daemon did not start.
#[derive(Debug, Error)]
pub(crate) enum StartError {
    /// The journal cannot be opened.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The journal cannot be read.
    #[error("the journal cannot be read: {0}")]
    Engine(#[from] EngineError),
    /// A socket cannot be bound.
    #[error("cannot listen on {addr} ({what}): {source}")]
    Bind {
        /// For what.
        what: &'static str,
        /// Where.
        addr: SocketAddr,
        /// Why not.
        source: io::Error,
    },
    /// The contract's descriptors do not load.
    #[error("reflection: {0}")]
    Reflection(#[from] tonic_reflection::server::Error),
    /// A key names a tenant that the engine does not have.
    #[error("a key belongs to a tenant that is not configured")]
    KeyWithoutTenant,
}

/// Sockets bound, sessions back, nothing running.
pub(crate) struct App {
    server: ServerConfig,
    engine: Engine,
    memories: Memories,
    reloader: Arc<Reloader>,
    watching: Watching,
    stop: CancellationToken,
    auth_layer: AuthLayer,
    admin: Admin,
    grpc: TcpListener,
    http: TcpListener,
    grpc_addr: SocketAddr,
    admin_addr: SocketAddr,
    endpoints: std::path::PathBuf,
}

/// A daemon that serves.
pub(crate) struct Running {
    engine: Engine,
    reloader: Arc<Reloader>,
    watching: Watching,
    auth_layer: AuthLayer,
    admin: Admin,
    health: HealthReporter,
    /// No new calls.
    stop: CancellationToken,
    /// No more waiting for old ones.
    abort: CancellationToken,
    calls: TaskTracker,
    pages: TaskTracker,
    endpoints: std::path::PathBuf,
}

impl App {
    /// Takes the data directory and the sockets, and brings the sessions back. `file` is
    /// where the configuration came from, to be read again.
    pub(crate) async fn bind(
        config: Config,
        file: Option<&Path>,
        log: LogControl,
    ) -> Result<Self, StartError> {
        // Now: while a large journal is opened the file may change, and that is noticed.
        let seen = reload::fingerprint(file, &config.secret_files);
        let (journal, machine) = open_journal(&config)?;
        let files = Arc::new(open_memories(&config)?);
        let (grpc, grpc_addr) = listen("server.listen", config.server.listen).await?;
        let (http, admin_addr) = listen("server.admin_listen", config.server.admin_listen).await?;
        let engine = config.engine.clone();
        let engine = Engine::open(engine, journal, Arc::new(machine), Blocking::Pool).await?;
        engine.run_worker(log.reporter());
        let memories = Memories::open(engine.clone(), Some(files), config.memories.clone());
        let keyring = Keyring::new(&config.keys, &TenantId::default_tenant(), &engine)
            .ok_or(StartError::KeyWithoutTenant)?;
        let keyring = Arc::new(ArcSwap::from_pointee(keyring));
        let keys = Arc::clone(&keyring);
        let lost_lines = Arc::clone(&log.lost);
        let reloader = Reloader::new(
            file,
            &config,
            engine.clone(),
            memories.clone(),
            keys,
            log,
            seen,
        );
        let reloader = Arc::new(reloader);
        let (stop, streams) = (CancellationToken::new(), TaskTracker::new());
        let watching = Watching::new(engine.clone(), streams, stop.clone());
        let calls = CallMetrics::new();
        let sources = Sources {
            engine: engine.clone(),
            memories: memories.clone(),
            calls: calls.clone(),
            watching: watching.clone(),
            reloader: Arc::clone(&reloader),
            lost_lines,
        };
        let registry = metrics::registry(sources);
        let admin = Admin::new(engine.clone(), registry);
        let memory = Arc::clone(engine.tenants.memory());
        let admission = Admission::new(config.server.max_calls_in_flight, memory);
        let auth_layer = AuthLayer::new(keyring, admission, calls);
        let endpoints = config.data_dir.join("endpoints.json");
        Ok(Self {
            server: config.server,
            engine,
            memories,
            reloader,
            watching,
            stop,
            auth_layer,
            admin,
            grpc,
            http,
            grpc_addr,
            admin_addr,
            endpoints,
        })
    }

    /// Where gRPC is served.
    pub(crate) fn grpc_addr(&self) -> SocketAddr {
        self.grpc_addr
    }

    /// Where the admin port is.
    pub(crate) fn admin_addr(&self) -> SocketAddr {
        self.admin_addr
    }

    /// Serves.
    pub(crate) fn serve(self) -> Result<Running, StartError> {
        let (stop, abort) = (self.stop, CancellationToken::new());
        let (calls, pages) = (TaskTracker::new(), TaskTracker::new());
        let (health, health_service) = tonic_health::server::health_reporter();
        let reflection = tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
            .build_v1()?;
        let reflection_old = tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
            .build_v1alpha()?;
        let sessions = SessionApi::new(
            self.engine.clone(),
            self.memories.clone(),
            self.watching.clone(),
        );
        let sessions = SessionServiceServer::new(sessions)
            .max_decoding_message_size(self.server.max_request_bytes);
        let memories = MemoryServiceServer::new(MemoryApi::new(self.memories.clone()))
            .max_decoding_message_size(self.server.max_request_bytes);
        let reloader = Arc::clone(&self.reloader);
        let admin_api = AdminApi::new(
            self.engine.clone(),
            self.memories,
            reloader,
            process::wall_clock(),
        );
        let grpc = Server::builder()
            .http2_keepalive_interval(Some(Duration::from_secs(60)))
            .max_concurrent_streams(self.server.max_streams_per_connection)
            .layer(self.auth_layer.clone())
            .add_service(sessions)
            .add_service(memories)
            .add_service(AdminServiceServer::new(admin_api))
            .add_service(health_service)
            .add_service(reflection)
            .add_service(reflection_old)
            .serve_with_incoming_shutdown(
                connections(self.grpc, self.server.max_connections),
                stop.clone().cancelled_owned(),
            );
        let give_up = abort.clone();
        calls.spawn(async move {
            tokio::select! {
                served = grpc => served.unwrap_or_else(|error| error!(%error, "gRPC stopped")),
                () = give_up.cancelled() => {}
            }
        });
        let router = self.admin.clone().router();
        let until = abort.clone().cancelled_owned();
        pages.spawn(async move {
            let served = axum::serve(self.http, router)
                .with_graceful_shutdown(until)
                .await;
            served.unwrap_or_else(|error| error!(%error, "the admin port stopped"));
        });
        self.admin.set_ready(true);
        write_endpoints(&self.endpoints, self.grpc_addr, self.admin_addr);
        Ok(Running {
            engine: self.engine,
            reloader: self.reloader,
            watching: self.watching,
            auth_layer: self.auth_layer,
            admin: self.admin,
            health,
            stop,
            abort,
            calls,
            pages,
            endpoints: self.endpoints,
        })
    }
}

impl Running {
    /// Tells probes that calls are taken.
    pub(crate) async fn announce(&self) {
        self.health
            .set_serving::<SessionServiceServer<SessionApi>>()
            .await;
        self.health
            .set_serving::<MemoryServiceServer<MemoryApi>>()
            .await;
        self.health
            .set_serving::<AdminServiceServer<AdminApi>>()
            .await;
    }

    /// What reads the configuration again.
    pub(crate) fn reloader(&self) -> Arc<Reloader> {
        Arc::clone(&self.reloader)
    }

    /// Cancelled when the daemon cannot go on.
    pub(crate) fn broken(&self) -> CancellationToken {
        self.engine.broken()
    }

    /// All limits of [`Self::drain`] together.
    pub(crate) fn drain_time_max(&self) -> Duration {
        self.reloader.shutdown_grace() * 3 + PAGES_TIME_MAX
    }

    /// Stops in order, each step with a limit: no new calls, old calls finished, workers
    /// stopped, changes flushed.
    pub(crate) async fn drain(self) {
        self.admin.set_ready(false);
        self.health
            .set_not_serving::<SessionServiceServer<SessionApi>>()
            .await;
        self.health
            .set_not_serving::<MemoryServiceServer<MemoryApi>>()
            .await;
        self.health
            .set_not_serving::<AdminServiceServer<AdminApi>>()
            .await;
        // A file that is gone already is what is wanted.
        let _ = std::fs::remove_file(&self.endpoints);
        self.stop.cancel();
        self.calls.close();
        info!("no new calls are taken");
        let grace = self.reloader.shutdown_grace();
        let finished = tokio::time::timeout(grace, self.calls.wait());
        tokio::select! {
            finished = finished => match finished {
                Ok(()) => info!("all calls are finished"),
                Err(_) => warn!(?grace, "calls were cut off"),
            },
            () = self.only_watchers() => info!("watchers that read nothing were cut off"),
        }
        self.abort.cancel();
        self.calls.wait().await;
        // Hooks have that time for themselves, and what they did is written after it.
        match tokio::time::timeout(grace * 2, self.engine.close()).await {
            Ok(()) => info!("all changes are written"),
            Err(_) => error!(?grace, "changes could not be written in time"),
        }
        self.pages.close();
        let _ = tokio::time::timeout(PAGES_TIME_MAX, self.pages.wait()).await;
    }
}

impl Running {
    /// Waits until nothing but streams of events has been open for a while. These were told
    /// that the daemon stops: who still has one does not read it.
    async fn only_watchers(&self) {
        let mut looks = 0;
        while looks < WATCHERS_LOOKS {
            tokio::time::sleep(WATCHERS_PAUSE).await;
            let is_so = self.watching.count() > 0 && self.auth_layer.calls_under_way() == 0;
            looks = if is_so { looks + 1 } else { 0 };
        }
    }
}

type Opened = (Option<Arc<dyn Store>>, SystemMachine);

fn open_journal(config: &Config) -> Result<Opened, StartError> {
    if config.engine.journal.durability == Durability::Off {
        return Ok((None, SystemMachine::resume(None)));
    }
    // A large journal is checked for some seconds before the next line comes.
    info!(data_dir = %config.data_dir.display(), "opening the journal");
    let store = SqliteStore::open(&config.data_dir, SqliteOptions::default())?;
    let machine = SystemMachine::resume(store.clock()?.as_ref());
    Ok((Some(Arc::new(store)), machine))
}

/// The memories of all tenants. What a tenant's file holds is looked at when it is first
/// asked for.
fn open_memories(config: &Config) -> Result<MemoryFiles, StoreError> {
    MemoryFiles::open(&config.long_term.dir, &config.long_term.options)
}

async fn listen(
    what: &'static str,
    addr: SocketAddr,
) -> Result<(TcpListener, SocketAddr), StartError> {
    let failed = |source| StartError::Bind { what, addr, source };
    let listener = TcpListener::bind(addr).await.map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    Ok((listener, bound))
}

/// For whoever started the daemon on port 0 and wants to know where it listens.
fn write_endpoints(path: &Path, grpc: SocketAddr, admin: SocketAddr) {
    let text = format!("{{\"grpc\":\"{grpc}\",\"admin\":\"{admin}\"}}\n");
    let written = path
        .parent()
        .map_or(Ok(()), std::fs::create_dir_all)
        .and_then(|()| std::fs::write(path, text));
    if let Err(error) = written {
        warn!(%error, path = %path.display(), "the endpoints could not be written");
    }
}
