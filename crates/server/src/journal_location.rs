//! Opens the journal at its location: a file in the data directory, or a database.

use std::sync::Arc;
use std::time::Duration;

use memoird_core::nonce::NonceSecret;
use memoird_engine::{
    Cluster, Durability, Engine, EngineError, Eraser, Machine, SystemMachine, WorkError, Worker,
};
use memoird_memories::store::{FilesOptions, MemoryStore};
#[cfg(feature = "postgres")]
use memoird_postgres::PgStore;
use memoird_proto::v1::{ClusterMember, GetClusterResponse};
use memoird_store::encoding::timestamp_to_proto;
use memoird_store::sqlite_file::limit_caches;
use memoird_store::{DataKey, SqliteOptions, SqliteStore, Store, StoreError};
use tokio::sync::watch;
use tokio::task::{JoinError, spawn_blocking};
use tokio_util::sync::CancellationToken;
use tracing::{error, info};

use crate::cluster::PolicyState;
#[cfg(feature = "postgres")]
use crate::config::JournalLocation;
use crate::config::{Config, Policy};
use crate::exit::{CliError, Exit, of_store};

/// Page caches may use 1/`FILES_SHARE` of `limits.memory`, in addition to it.
///
/// They may use at least `FILES_BYTES_MIN` bytes.
const FILES_SHARE: u64 = 8;
const FILES_BYTES_MIN: u64 = 16 << 20;

/// Interval of checks that the files of the journal are still in place.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

pub(crate) struct OpenJournal {
    /// `None` with durability `off`.
    pub(crate) store: Option<Arc<dyn Store>>,
    /// Clocks that continue from the last time in the journal.
    pub(crate) machine: SystemMachine,
    pub(crate) resources: JournalResources,
}

/// Resources of a daemon next to its journal.
#[derive(Default)]
pub(crate) struct JournalResources {
    /// Cancelled when another daemon has taken over the journal.
    lost: CancellationToken,
    /// Settings of this daemon, published to the other members.
    settings: watch::Sender<Vec<u8>>,
    files: Option<JournalFiles>,
    #[cfg(feature = "postgres")]
    postgres: Option<postgres::PostgresJournal>,
}

/// Opens the journal, or creates an empty one.
///
/// `waits_for` is set to the daemon that holds it, while this one is on standby.
pub(crate) async fn open(
    config: &Config,
    key: Option<DataKey>,
    waits_for: &watch::Sender<Option<String>>,
) -> Result<OpenJournal, CliError> {
    let cache_bytes = file_cache_bytes(config.engine.memory_bytes);
    limit_caches(cache_bytes.unwrap_or(0)).map_err(of_store)?;
    if config.engine.journal.durability == Durability::Off {
        return Ok(OpenJournal {
            store: None,
            machine: SystemMachine::resume(None),
            resources: JournalResources::default(),
        });
    }
    #[cfg(feature = "postgres")]
    if let JournalLocation::Postgres(options) = &config.journal {
        let settings = config.digests();
        return postgres::open(&config.data_dir, options, settings, waits_for).await;
    }
    #[cfg(not(feature = "postgres"))]
    let _ = waits_for;
    // Checking a large journal takes some seconds until the next log line.
    info!(data_dir = %config.data_dir.display(), "opening the journal");
    let mut options = SqliteOptions {
        key,
        ..SqliteOptions::default()
    };
    if let Some(bytes) = cache_bytes {
        // The rest is for memories and the search index.
        options.cache_bytes = options.cache_bytes.min(bytes / 4 * 3);
    }
    let dir = config.data_dir.clone();
    // On a blocking thread, so that a signal can stop the daemon in the meantime.
    let opened = spawn_blocking(move || {
        let store = SqliteStore::open(&dir, options)?;
        let clock = store.clock()?;
        Ok::<_, StoreError>((store, clock))
    });
    let (store, clock) = opened
        .await
        .map_err(|error| open_interrupted(&error))?
        .map_err(of_store)?;
    let machine = SystemMachine::resume(clock.as_ref());
    let store: Arc<dyn Store> = Arc::new(store);
    let files = JournalFiles {
        store: Arc::clone(&store),
        away: watch::Sender::default(),
    };
    Ok(OpenJournal {
        store: Some(store),
        machine,
        resources: JournalResources {
            files: Some(files),
            ..JournalResources::default()
        },
    })
}

/// The journal in the data directory.
#[derive(Clone)]
struct JournalFiles {
    store: Arc<dyn Store>,
    away: watch::Sender<Option<String>>,
}

/// Reports the journal as unreachable while its files are not in place.
struct FilesWatcher(JournalFiles);

impl Worker for FilesWatcher {
    fn name(&self) -> &'static str {
        "journal-files"
    }

    async fn wait(&mut self) {
        tokio::time::sleep(CHECK_INTERVAL).await;
    }

    async fn step(&mut self) -> Result<(), WorkError> {
        let store = Arc::clone(&self.0.store);
        let checked = spawn_blocking(move || store.check_in_place()).await;
        let problem = checked
            .map_err(|failure| WorkError(failure.to_string()))?
            .err()
            .map(|problem| problem.to_string());
        self.0.away.send_if_modified(|known| {
            let is_news = *known != problem;
            if is_news {
                match &problem {
                    Some(problem) => error!("not ready: {problem}"),
                    None => info!("the files of the journal are in place again"),
                }
                *known = problem;
            }
            is_news
        });
        Ok(())
    }
}

/// Maximum bytes of page caches, in addition to `limits.memory`. `None` means no limit.
fn file_cache_bytes(memory_bytes: u64) -> Option<u64> {
    (memory_bytes > 0).then(|| (memory_bytes / FILES_SHARE).max(FILES_BYTES_MIN))
}

fn open_interrupted(error: &JoinError) -> CliError {
    CliError::failed(Exit::Internal, format!("opening the journal: {error}"))
}

/// Opens the memories, in the same place as the journal.
pub(crate) async fn open_memories(
    config: &Config,
    key: Option<DataKey>,
) -> Result<MemoryStore, CliError> {
    #[cfg(feature = "postgres")]
    if let JournalLocation::Postgres(options) = &config.journal
        && config.engine.journal.durability != Durability::Off
    {
        return postgres::open_memories(config, options).await;
    }
    let options = FilesOptions {
        key,
        ..config.long_term.options.clone()
    };
    MemoryStore::open(&config.long_term.dir, &options).map_err(of_store)
}

impl JournalResources {
    pub(crate) fn watch(&self, engine: &Engine) {
        #[cfg(feature = "postgres")]
        if let Some(postgres) = &self.postgres {
            postgres.watch(engine, self.lost.clone());
        }
        if let Some(files) = &self.files {
            engine.run_worker(FilesWatcher(files.clone()));
        }
    }

    /// Cancelled when another daemon has taken over the journal, and so this one may be stale.
    pub(crate) fn lost(&self) -> CancellationToken {
        self.lost.clone()
    }

    /// Describes the problem while the journal's database or files are unreachable.
    pub(crate) fn away(&self) -> watch::Receiver<Option<String>> {
        if let Some(files) = &self.files {
            return files.away.subscribe();
        }
        #[cfg(feature = "postgres")]
        if let Some(postgres) = &self.postgres {
            return postgres.away();
        }
        watch::channel(None).1
    }

    pub(crate) fn cluster(&self) -> Option<Cluster> {
        #[cfg(feature = "postgres")]
        if let Some(postgres) = &self.postgres {
            return postgres.cluster();
        }
        None
    }

    /// Publishes changed settings to the other members.
    pub(crate) fn settings(&self) -> watch::Sender<Vec<u8>> {
        self.settings.clone()
    }

    pub(crate) fn members(&self) -> Members {
        Members {
            #[cfg(feature = "postgres")]
            store: self
                .postgres
                .as_ref()
                .and_then(postgres::PostgresJournal::shared),
            seen: watch::Sender::default(),
            policy: PolicyState::default(),
        }
    }

    /// The cluster's nonce key, if daemons share the journal.
    pub(crate) async fn nonce_secret(
        &self,
        machine: &dyn Machine,
    ) -> Result<Option<NonceSecret>, CliError> {
        #[cfg(feature = "postgres")]
        if let Some(postgres) = &self.postgres {
            return postgres.nonce_secret(machine).await;
        }
        let _ = machine;
        Ok(None)
    }

    /// Reports what an erasure cannot reach in the database.
    pub(crate) fn eraser(&self) -> Option<Arc<dyn Eraser>> {
        #[cfg(feature = "postgres")]
        if self.postgres.is_some() {
            return Some(Arc::new(postgres::DatabaseEraser));
        }
        None
    }

    /// Releases the journal. No write follows.
    pub(crate) async fn release(self) {
        #[cfg(feature = "postgres")]
        if let Some(postgres) = self.postgres {
            postgres.release().await;
        }
    }
}

/// Access to the members that share the journal.
#[derive(Clone, Debug)]
pub(crate) struct Members {
    /// `None` if the journal is not shared.
    #[cfg(feature = "postgres")]
    store: Option<Arc<PgStore>>,
    seen: watch::Sender<GetClusterResponse>,
    pub(crate) policy: PolicyState,
}

impl Members {
    /// Reads the policy of the cluster. If there is none yet, the file's becomes it.
    ///
    /// # Errors
    /// If the database cannot be read, or its policy is not readable.
    pub(crate) async fn join(&self, own: &Policy) -> Result<(), EngineError> {
        #[cfg(feature = "postgres")]
        if let Some(store) = &self.store {
            let offered = own.encode();
            let joined = postgres::policy_of(store, move |store| store.policy(&offered)).await?;
            self.policy.note(joined);
        }
        let _ = own;
        Ok(())
    }

    /// Replaces a version of the cluster's policy by the file's, unless it was replaced already.
    ///
    /// # Errors
    /// If the database cannot be written.
    pub(crate) async fn replace_policy(&self, was: u64, own: &Policy) -> Result<(), EngineError> {
        #[cfg(feature = "postgres")]
        if let Some(store) = &self.store {
            let own = own.encode();
            let replace = move |store: &PgStore| store.replace_policy(was, &own);
            self.policy.note(postgres::policy_of(store, replace).await?);
        }
        let _ = (was, own);
        Ok(())
    }

    /// Keeps [`Self::seen`] up to date.
    pub(crate) fn follow(&self, engine: &Engine) {
        #[cfg(feature = "postgres")]
        if self.store.is_some() {
            engine.run_worker(postgres::MembersPoller {
                members: self.clone(),
                machine: Arc::clone(&engine.machine),
            });
        }
        #[cfg(not(feature = "postgres"))]
        let _ = engine;
    }

    /// The members some seconds ago. Empty if the journal is not shared.
    pub(crate) fn seen(&self) -> watch::Ref<'_, GetClusterResponse> {
        self.seen.borrow()
    }

    /// Reads the current members.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub(crate) async fn read(
        &self,
        machine: &dyn Machine,
    ) -> Result<GetClusterResponse, EngineError> {
        #[cfg(feature = "postgres")]
        if let Some(store) = &self.store {
            return postgres::read(store, machine.now().steady, &self.policy).await;
        }
        let member = ClusterMember {
            name: name_of_this(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            is_self: true,
            leads: true,
            is_here: true,
            last_seen: Some(timestamp_to_proto(machine.now().wall)),
            ..ClusterMember::default()
        };
        Ok(GetClusterResponse {
            members: vec![member],
            deliveries_late: Some(prost_types::Duration::default()),
            ..GetClusterResponse::default()
        })
    }
}

/// Name of this daemon for other daemons.
fn name_of_this() -> String {
    let system = rustix::system::uname();
    let machine = system.nodename().to_string_lossy();
    format!("process {} of {machine}", std::process::id())
}

#[cfg(feature = "postgres")]
mod postgres {
    use std::path::Path;
    use std::sync::Arc;
    use std::time::Duration;

    use memoird_core::nonce::NonceSecret;
    use memoird_core::time::Steady;
    use memoird_engine::{
        Cluster, Engine, EngineError, EraseFuture, EraseRequest, ErasedElsewhere, Eraser, Machine,
        SystemMachine, WorkError, Worker, new_nonce_secret,
    };
    use memoird_memories::store::{MemoryStore, tenant_files};
    use memoird_postgres::{DatabaseUse, Member, PgOptions, PgStore, StoredPolicy};
    use memoird_proto::v1::{ClusterMember, GetClusterResponse};
    use memoird_store::encoding::timestamp_to_proto;
    use memoird_store::{DirLock, Store, StoreError};
    use tokio::runtime::Handle;
    use tokio::sync::watch;
    use tokio::task::spawn_blocking;
    use tokio_util::sync::CancellationToken;
    use tracing::{info, warn};

    use super::{JournalResources, Members, OpenJournal, name_of_this, open_interrupted};
    use crate::cluster::{ClusterPolicy, PolicyState, disagreements};
    use crate::config::{Config, Policy, differing};
    use crate::data_files::JOURNAL;
    use crate::exit::{CliError, Exit, of_store};
    use crate::wire::to::duration;

    /// Interval for polling the members.
    const POLL_INTERVAL: Duration = Duration::from_secs(2);
    const RELEASE_TIME_MAX: Duration = Duration::from_secs(1);

    pub(super) struct PostgresJournal {
        store: Arc<PgStore>,
        /// Whether other daemons share it.
        is_shared: bool,
        /// Locks the data directory, which still contains the search index.
        _lock: DirLock,
    }

    pub(super) async fn open_memories(
        config: &Config,
        options: &PgOptions,
    ) -> Result<MemoryStore, CliError> {
        let dir = &config.long_term.dir;
        if tenant_files(dir).is_ok_and(|files| !files.is_empty()) {
            let dir = dir.display();
            warn!(%dir, "the memory files in this directory are not used: memories are in the \
                database of journal.postgres; `memoird migrate` copies them there");
        }
        let (options, runtime) = (options.clone(), Handle::current());
        let opened = spawn_blocking(move || MemoryStore::in_postgres(options, &runtime))
            .await
            .map_err(|error| {
                CliError::failed(Exit::Internal, format!("opening the memories: {error}"))
            })?;
        opened.map_err(of_store)
    }

    pub(super) async fn open(
        dir: &Path,
        options: &PgOptions,
        settings: Vec<u8>,
        waits_for: &watch::Sender<Option<String>>,
    ) -> Result<OpenJournal, CliError> {
        info!(database = options.shown(), "opening the journal");
        let lock = DirLock::take(dir).map_err(of_store)?;
        let unused = dir.join(JOURNAL);
        if unused.exists() {
            let journal = unused.display();
            warn!(%journal, "the journal file in this directory is not used: the journal is in \
                the database of journal.postgres");
        }
        let mut options = options.clone();
        let is_shared = options.sharing == DatabaseUse::Cluster;
        options.name = name_of_this();
        env!("CARGO_PKG_VERSION").clone_into(&mut options.version);
        options.waits_for = waits_for.clone();
        options.settings.send_replace(settings);
        let settings = options.settings.clone();
        let runtime = Handle::current();
        let opened = spawn_blocking(move || {
            let store = PgStore::open(options, &runtime)?;
            let steady = store.steady()?;
            let machine = SystemMachine::at(steady.unwrap_or_default());
            Ok::<_, StoreError>((Arc::new(store), machine))
        });
        let (store, machine) = opened
            .await
            .map_err(|error| open_interrupted(&error))?
            .map_err(of_store)?;
        Ok(OpenJournal {
            store: Some(Arc::clone(&store) as Arc<dyn Store>),
            machine,
            resources: JournalResources {
                postgres: Some(PostgresJournal {
                    store,
                    is_shared,
                    _lock: lock,
                }),
                settings,
                ..JournalResources::default()
            },
        })
    }

    impl PostgresJournal {
        pub(super) fn watch(&self, engine: &Engine, lost: CancellationToken) {
            let store = Arc::clone(&self.store);
            engine.run_worker(LeaseWatcher { store, lost });
        }

        pub(super) fn shared(&self) -> Option<Arc<PgStore>> {
            self.is_shared.then(|| Arc::clone(&self.store))
        }

        pub(super) fn cluster(&self) -> Option<Cluster> {
            let store = &self.store;
            self.is_shared
                .then(|| Cluster::new(store.node(), store.leads()))
        }

        pub(super) async fn nonce_secret(
            &self,
            machine: &dyn Machine,
        ) -> Result<Option<NonceSecret>, CliError> {
            if !self.is_shared {
                return Ok(None);
            }
            let store = Arc::clone(&self.store);
            let offered = new_nonce_secret(machine);
            let postgres = spawn_blocking(move || store.secret("marks", offered.bytes()))
                .await
                .map_err(|error| open_interrupted(&error))?
                .map_err(of_store)?;
            let bytes = postgres.try_into().map_err(|_| {
                let problem = "the nonce secret `marks` in memoird.secrets is damaged: delete its \
                    row, and new nonces are used";
                CliError::failed(Exit::Unavailable, problem)
            })?;
            Ok(Some(NonceSecret::new(bytes)))
        }

        pub(super) fn away(&self) -> watch::Receiver<Option<String>> {
            self.store.away()
        }

        pub(super) async fn release(self) {
            let store = self.store;
            let released = spawn_blocking(move || store.release());
            if tokio::time::timeout(RELEASE_TIME_MAX, released)
                .await
                .is_err()
            {
                warn!("the database lease could not be released; it expires in a few seconds");
            }
        }
    }

    /// Runs a call of the store on a thread that may block.
    async fn call<T: Send + 'static>(
        store: &Arc<PgStore>,
        action: impl FnOnce(&PgStore) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, EngineError> {
        let store = Arc::clone(store);
        spawn_blocking(move || action(&store))
            .await
            .unwrap_or_else(|error| {
                Err(StoreError::Unavailable {
                    detail: error.to_string(),
                })
            })
            .map_err(|error| EngineError::from(&error))
    }

    /// Runs a call that returns the policy of the cluster.
    pub(super) async fn policy_of(
        store: &Arc<PgStore>,
        action: impl FnOnce(&PgStore) -> Result<StoredPolicy, StoreError> + Send + 'static,
    ) -> Result<ClusterPolicy, EngineError> {
        decoded(&call(store, action).await?)
    }

    fn decoded(stored: &StoredPolicy) -> Result<ClusterPolicy, EngineError> {
        let policy = Policy::decode(&stored.body).map_err(|problem| {
            let detail = format!("memoird.policy is not readable: {problem}");
            EngineError::from(&StoreError::Database { detail })
        })?;
        Ok(ClusterPolicy {
            version: stored.version,
            policy: Arc::new(policy),
        })
    }

    /// Reads the members, the cluster's policy, and the deliveries due at `now`.
    pub(super) async fn read(
        store: &Arc<PgStore>,
        now: Steady,
        policy: &PolicyState,
    ) -> Result<GetClusterResponse, EngineError> {
        let own = store.node();
        let membership = call(store, move |store| store.membership(now)).await?;
        if let Some(stored) = &membership.policy {
            policy.note(decoded(stored)?);
        }
        let common = policy.newest().map(|newest| newest.policy);
        let members = membership.members;
        let settings = members
            .iter()
            .find(|member| member.node == own)
            .map(|member| member.settings.clone())
            .unwrap_or_default();
        let view = |member: Member| ClusterMember {
            differing_settings: common
                .as_ref()
                .map(|policy| differing(policy, &settings, &member.settings))
                .unwrap_or_default(),
            is_self: member.node == own,
            name: member.name,
            version: member.version,
            leads: member.leads,
            is_here: member.is_here,
            last_seen: Some(timestamp_to_proto(member.seen_at)),
            commits: member.commits,
            commits_in_doubt: member.commits_in_doubt,
            last_commit: member.committed_at.map(timestamp_to_proto),
        };
        let late_ms = membership
            .due_since
            .map_or(0, |since| now.0.saturating_sub(since.0));
        Ok(GetClusterResponse {
            is_shared: true,
            members: members.into_iter().map(view).collect(),
            lease_until: membership.lease_until.map(timestamp_to_proto),
            deliveries_due: membership.deliveries_due,
            deliveries_late: Some(duration(Duration::from_millis(late_ms))),
            schema_version: membership.schema_version,
        })
    }

    /// Polls the members, and logs settings they disagree on.
    pub(super) struct MembersPoller {
        pub(super) members: Members,
        pub(super) machine: Arc<dyn Machine>,
    }

    impl Worker for MembersPoller {
        fn name(&self) -> &'static str {
            "members"
        }

        async fn wait(&mut self) {
            tokio::time::sleep(POLL_INTERVAL).await;
        }

        async fn step(&mut self) -> Result<(), WorkError> {
            let view = match self.members.read(&*self.machine).await {
                Ok(view) => view,
                Err(error) => {
                    // Without access to the database, no members are known.
                    self.members.seen.send_replace(GetClusterResponse {
                        is_shared: true,
                        ..GetClusterResponse::default()
                    });
                    return Err(WorkError(error.to_string()));
                }
            };
            let differing = disagreements(&view);
            let before = disagreements(&self.members.seen.send_replace(view));
            for other in differing.iter().filter(|it| !before.contains(it)) {
                warn!("{other}; daemons that share a journal must agree on these settings");
            }
            if differing.is_empty() && !before.is_empty() {
                info!("all daemons that share the journal agree on their settings again");
            }
            Ok(())
        }
    }

    /// Reports when another daemon has taken over the database.
    struct LeaseWatcher {
        store: Arc<PgStore>,
        lost: CancellationToken,
    }

    impl Worker for LeaseWatcher {
        fn name(&self) -> &'static str {
            "lease"
        }

        async fn wait(&mut self) {
            if self.lost.is_cancelled() {
                std::future::pending::<()>().await;
            } else {
                self.store.lost().await;
            }
        }

        async fn step(&mut self) -> Result<(), WorkError> {
            self.lost.cancel();
            Ok(())
        }
    }

    /// Reports what an erasure cannot reach in the database.
    #[derive(Debug)]
    pub(super) struct DatabaseEraser;

    impl Eraser for DatabaseEraser {
        fn name(&self) -> &'static str {
            "postgres"
        }

        fn erase(&self, _: EraseRequest) -> EraseFuture<'_> {
            let outside = "the database's pages until they are vacuumed and used again, its \
                           events of the last ten minutes, its write-ahead log and its backups";
            Box::pin(async move {
                Ok(ErasedElsewhere {
                    outside: vec![outside.to_owned()],
                    ..ErasedElsewhere::default()
                })
            })
        }
    }
}
