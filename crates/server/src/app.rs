//! The three states of the process.
//!
//! A configuration becomes an [`App`], with bound sockets and only the admin port answering. That
//! serves calls, and can then be drained.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use hyper_util::server::conn::auto;
use memoird_engine::{Blocking, Engine, Eraser};
use memoird_memories::Memories;
use memoird_proto::DESCRIPTORS;
use memoird_search::Search;
use serde_json::json;
use tokio::sync::{Mutex, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{error, info, warn};

use crate::admin::{Admin, Pages};
use crate::allocator::FreedMemory;
use crate::config::{Config, FilesRead, ServerConfig, UnixConfig};
use crate::connections::schedule::{Schedule, ScheduledExecutor};
use crate::connections::serve::{Io, Port, Protocol, any_http};
use crate::connections::socket::{ListenAddress, Listener};
use crate::connections::{Connection, Connections, Ports};
use crate::data_files::DataFiles;
use crate::exit::{self, CliError, Exit};
use crate::health::{Health, JournalFollower};
use crate::heavy::HeavyWork;
use crate::journal_location::{self, JournalResources, OpenJournal};
use crate::keyring::Keyring;
use crate::layers::auth::Auth;
use crate::layers::limits::TenantLimits;
use crate::layers::limits::rates::Rates;
use crate::layers::{GrpcConnection, GrpcService, Layers};
use crate::learnt_charges::LearntCharges;
use crate::logging::LogControl;
use crate::metrics::{self, Sources};
use crate::nonce_secret;
use crate::process;
use crate::reload::{ReloadCounts, Reloader};
use crate::rpc::Services;
use crate::services::{Api, Maintenance, Watchers};
use crate::tls::{Tls, TlsPort};

/// Maximum time for finishing admin requests at shutdown.
const PAGES_TIME_MAX: Duration = Duration::from_secs(1);
/// Draining ends when this many polls in a row see only event streams.
const WATCHER_POLLS: u32 = 10;
const WATCHER_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// A daemon with bound sockets and loaded sessions. Until it serves, only the admin port answers.
pub(crate) struct App {
    server: ServerConfig,
    service: Arc<GrpcService>,
    health: Health,
    admin: Admin,
    connections: Ports,
    tls: Option<Arc<Tls>>,
    resources: JournalResources,
    /// `None` once it accepts calls.
    grpc: Option<Listener>,
    calls: TaskTracker,
    pages: TaskTracker,
    /// Cancelled when no new calls are accepted.
    stop: CancellationToken,
    /// Cancelled when remaining calls are cut off.
    abort: CancellationToken,
    pub(crate) grpc_addr: ListenAddress,
    pub(crate) admin_addr: ListenAddress,
    endpoints: PathBuf,
}

#[derive(Clone)]
struct Grpc {
    streams_max: u32,
    write_timeout: Duration,
    service: Arc<GrpcService>,
}

impl Protocol for Grpc {
    type Serving = auto::Connection<'static, Io, GrpcConnection, ScheduledExecutor>;

    const CLIENT_SPEAKS_FIRST: bool = true;

    fn serve(&self, io: Io, connection: &Arc<Connection>) -> Self::Serving {
        let service = self.service.of_connection(connection);
        let in_turn = ScheduledExecutor {
            owner: Arc::clone(&connection.owner),
            write_timeout: self.write_timeout,
        };
        let server = any_http(self.streams_max, in_turn);
        server.serve_connection(io, service).into_owned()
    }
}

impl App {
    /// Locks the data directory, binds the sockets and loads the sessions.
    ///
    /// `file` is reloaded when `files_read` change. `waits_for` is set to the daemon that holds the
    /// journal, while this one is on standby.
    pub(crate) async fn bind(
        mut config: Config,
        file: Option<&Path>,
        files_read: FilesRead,
        log: LogControl,
        waits_for: &watch::Sender<Option<String>>,
    ) -> Result<Self, CliError> {
        let key = config.read_data_key()?;
        let data_files = DataFiles {
            data_dir: config.data_dir.clone(),
            memories_dir: config.long_term.dir.clone(),
            config: file.map(Path::to_owned),
            key,
        };
        if data_files.is_restoring() {
            return Err(unavailable(format!(
                "data_dir {} contains an unfinished restore; run `memoird restore` again",
                data_files.data_dir.display()
            )));
        }
        data_files.check_key().map_err(exit::of_store)?;
        let server = config.server.clone();
        let request_bytes = config.request_bytes();
        let tls = server
            .tls
            .clone()
            .zip(config.tls.take())
            .map(|(paths, loaded)| Arc::new(Tls::new(paths, loaded)));
        let schedule = Arc::<Schedule>::default();
        let limits = &server.connections;
        let connections = Ports {
            grpc: Connections::new(server.max_connections, limits, &schedule),
            admin: Connections::new(limits.admin_max, limits, &schedule),
        };
        let (abort, pages) = (CancellationToken::new(), TaskTracker::new());
        let admin = Admin::new(waits_for.subscribe());
        // Report problems of the journal before those of the admin port.
        let listening = listen("server.admin_listen", &server.admin_listen, &server.unix).await;
        let admin_addr = listening.map(|(listener, address)| {
            let port = Port {
                listener,
                tls: tls.clone().map(|tls| (tls, TlsPort::Admin)),
                connections: Arc::clone(&connections.admin),
                config: limits.clone(),
                stop: abort.clone(),
                // Admin requests are cut off only when the process exits.
                abort: CancellationToken::new(),
                tasks: pages.clone(),
            };
            port.run(Pages::new(admin.clone(), limits));
            info!(admin = %address, "the admin port answers");
            address
        });
        let OpenJournal {
            store: journal,
            machine,
            resources,
        } = journal_location::open(&config, key, waits_for).await?;
        let admin_addr = admin_addr?;
        data_files.remove_copies();
        if config.journal.is_outside_data_dir()
            && let Err(error) = data_files.wipe_index()
        {
            warn!(%error, "an old search index could not be removed");
        }
        let files = Arc::new(journal_location::open_memories(&config, key).await?);
        let members = resources.members();
        let joined = members.join(&config.policy).await;
        joined.map_err(|error| unavailable(format!("the cluster's policy: {error}")))?;
        if let Some(newest) = members.policy.newest() {
            let adopted = config.adopt(newest.version, &newest.policy);
            adopted.map_err(|problem| CliError::failed(Exit::Config, problem))?;
            members.policy.compare(&config);
        }
        let elsewhere = journal
            .clone()
            .filter(|_| config.journal.is_outside_data_dir());
        let (grpc, grpc_addr) = listen("server.listen", &server.listen, &server.unix).await?;
        let mut engine_config = config.engine.clone();
        let machine = Arc::new(machine);
        engine_config.cluster = resources.cluster();
        engine_config.nonce_secret = match (&journal, resources.nonce_secret(&*machine).await?) {
            (None, _) => None,
            (Some(_), Some(shared)) => Some(shared),
            (Some(_), None) => Some(nonce_secret::of_dir(&config.data_dir, &*machine)),
        };
        let engine = Engine::open(engine_config, journal.clone(), machine, Blocking::Threads)
            .await
            .map_err(|error| unavailable(format!("the journal cannot be read: {error}")))?;
        engine.run_worker(log.reporter());
        engine.run_worker(FreedMemory::new(Arc::clone(engine.tenants.memory())));
        if journal.is_some() {
            engine.run_worker(LearntCharges::restore(&engine, &config.data_dir));
        }
        let kept = Some(Arc::clone(&files));
        let memories = Memories::open(engine.clone(), kept, config.memories.clone());
        let search = Search::open(engine.clone(), config.search.clone()).await;
        let mut erasers: Vec<Arc<dyn Eraser>> = vec![Arc::new(memories.forgetting.clone())];
        erasers.extend(resources.eraser());
        engine.start_erasing(erasers);
        resources.watch(&engine);
        members.follow(&engine);
        let new_keyring =
            Keyring::new(&config.keys, &config.keyless, &engine, None).ok_or_else(|| {
                unavailable("a key belongs to a tenant that is not configured".to_owned())
            })?;
        let keyring = Arc::new(ArcSwap::from_pointee(new_keyring));
        let endpoints = config.data_dir.join("endpoints.json");
        let stop = CancellationToken::new();
        let api = Arc::new(Api {
            engine: engine.clone(),
            memories: memories.clone(),
            search,
            reloader: Arc::new(Reloader {
                path: file.map(Path::to_owned),
                tls: tls.clone(),
                engine: engine.clone(),
                memories,
                keyring: Arc::clone(&keyring),
                log,
                config: ArcSwap::from_pointee(config),
                published_settings: resources.settings(),
                members: members.clone(),
                counts: ReloadCounts::default(),
                turn: Mutex::default(),
                last_files: parking_lot::Mutex::new(files_read),
                tasks: TaskTracker::new(),
            }),
            members: members.clone(),
            watching: Watchers::new(engine.clone(), stop.clone()),
            maintenance: Maintenance::new(
                data_files,
                elsewhere,
                files,
                engine.erasures.copies().clone(),
            ),
            heavy: HeavyWork::default(),
            rates: Rates::new(request_bytes),
            request_bytes,
            started_at: process::wall_clock(),
        });
        let memory = Arc::clone(engine.tenants.memory());
        let rates = api.rates.clone();
        let auth = Auth::new(keyring, Arc::clone(&schedule));
        let calls_max = server.max_calls_in_flight;
        let tenant_limits = TenantLimits::new(calls_max, memory, schedule, rates);
        let layers = Layers::new(auth, tenant_limits, limits);
        let registry = metrics::registry(Sources {
            api: Arc::clone(&api),
            journal,
            journal_away: resources.away(),
            layers: layers.clone(),
            connections: connections.clone(),
        });
        admin.open(engine, registry, resources.away(), members);
        let (reporter, health_service) = tonic_health::server::health_reporter();
        let mut others = Services::default().with(health_service);
        if server.reflection {
            others = with_reflection(others)?;
        }
        let service = Arc::new(GrpcService {
            layers,
            api,
            others,
            cors: server.cors.layer(),
        });
        Ok(Self {
            server,
            service,
            health: Health::new(reporter),
            admin,
            connections,
            tls,
            resources,
            grpc: Some(grpc),
            calls: TaskTracker::new(),
            pages,
            stop,
            abort,
            grpc_addr,
            admin_addr,
            endpoints,
        })
    }

    /// Reloads the configuration if its files have changed.
    ///
    /// A standby does not watch them, and a key removed in the meantime must not work.
    pub(crate) async fn catch_up(&self) {
        self.service.api.reloader.catch_up().await;
    }

    /// Starts accepting calls.
    ///
    /// Reports SERVING to health checks, and then follows the state of the journal.
    pub(crate) async fn serve(&mut self) {
        let Some(listener) = self.grpc.take() else {
            return;
        };
        let port = Port {
            listener,
            tls: self.tls.clone().map(|tls| (tls, TlsPort::Grpc)),
            connections: Arc::clone(&self.connections.grpc),
            config: self.server.connections.clone(),
            stop: self.stop.clone(),
            abort: self.abort.clone(),
            tasks: self.calls.clone(),
        };
        port.run(Grpc {
            streams_max: self.server.max_streams_per_connection,
            write_timeout: self.server.connections.write_timeout,
            service: Arc::clone(&self.service),
        });
        self.admin.set_ready(true);
        write_endpoints(&self.endpoints, &self.grpc_addr, &self.admin_addr);
        self.health.begin().await;
        let follower = JournalFollower::new(self.health.clone(), self.resources.away());
        self.service.api.engine.run_worker(follower);
    }

    pub(crate) fn reloader(&self) -> Arc<Reloader> {
        Arc::clone(&self.service.api.reloader)
    }

    /// Cancelled on an unrecoverable failure.
    pub(crate) fn broken(&self) -> CancellationToken {
        self.service.api.engine.broken()
    }

    /// Cancelled when another daemon has taken over the journal.
    pub(crate) fn lost(&self) -> CancellationToken {
        self.resources.lost()
    }

    /// Sum of all time limits in [`Self::drain`].
    pub(crate) fn drain_time_max(&self) -> Duration {
        self.service.api.reloader.shutdown_grace() * 3 + PAGES_TIME_MAX
    }

    /// Shuts down step by step, with a time limit for each step.
    ///
    /// Stops accepting calls, finishes those in progress, stops the workers, and flushes changes.
    pub(crate) async fn drain(mut self) {
        self.admin.set_ready(false);
        self.health.end().await;
        // Ignore the error: the file may already be gone.
        let _ = std::fs::remove_file(&self.endpoints);
        self.stop.cancel();
        self.calls.close();
        info!("draining: new calls are rejected");
        let grace = self.service.api.reloader.shutdown_grace();
        let finished = tokio::time::timeout(grace, self.calls.wait());
        tokio::select! {
            finished = finished => match finished {
                Ok(()) => info!("all calls are finished"),
                Err(_) => warn!(?grace, "unfinished calls were cancelled"),
            },
            () = self.wait_for_watchers_only() => info!("closed event streams whose clients did \
                not read"),
        }
        self.abort.cancel();
        self.calls.wait().await;
        // Hooks may use the grace once, and their outcome is written after that.
        match tokio::time::timeout(grace * 2, self.service.api.engine.close()).await {
            Ok(()) => info!("all changes are written"),
            Err(_) => error!(?grace, "changes could not be written in time"),
        }
        std::mem::take(&mut self.resources).release().await;
        self.pages.close();
        let _ = tokio::time::timeout(PAGES_TIME_MAX, self.pages.wait()).await;
    }

    /// Waits until only event streams have been open for a while.
    ///
    /// The daemon has ended these streams, so their clients do not read them.
    async fn wait_for_watchers_only(&self) {
        let mut looks = 0;
        while looks < WATCHER_POLLS {
            tokio::time::sleep(WATCHER_POLL_INTERVAL).await;
            let is_so = self.service.api.watching.count() > 0
                && self.service.layers.limits.calls_in_progress() == 0;
            looks = if is_so { looks + 1 } else { 0 };
        }
    }
}

fn with_reflection(services: Services) -> Result<Services, CliError> {
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let failed =
        |error: tonic_reflection::server::Error| unavailable(format!("reflection: {error}"));
    Ok(services
        .with(reflection().build_v1().map_err(failed)?)
        .with(reflection().build_v1alpha().map_err(failed)?))
}

fn unavailable(problem: String) -> CliError {
    CliError::failed(Exit::Unavailable, problem)
}

async fn listen(
    what: &'static str,
    addr: &ListenAddress,
    unix: &UnixConfig,
) -> Result<(Listener, ListenAddress), CliError> {
    let failed = CliError::io(format!("cannot listen on {addr} ({what})"));
    let listener = addr.bind(unix.mode).await.map_err(&failed)?;
    let bound = listener.address().map_err(&failed)?;
    Ok((listener, bound))
}

/// Writes the bound addresses to a file, for a process that started the daemon on port 0.
fn write_endpoints(path: &Path, grpc: &ListenAddress, admin: &ListenAddress) {
    let endpoints = json!({ "grpc": grpc.to_string(), "admin": admin.to_string() });
    let text = format!("{endpoints}\n");
    let written = path
        .parent()
        .map_or(Ok(()), std::fs::create_dir_all)
        .and_then(|()| std::fs::write(path, text));
    if let Err(error) = written {
        warn!(%error, path = %path.display(), "the endpoints could not be written");
    }
}
