//! The configuration: one YAML file, validated completely before anything starts.

mod data_key;
mod environment;
mod file;
mod models;
mod plain_text;
mod policy;
mod postgres;
mod settings;
mod tenants;

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use memoird_cli::output;
use memoird_core::config::{AsText, Auto, Environment, Problem, Problems, Size, Span, Unit};
use memoird_core::ids::TenantId;
use memoird_core::limits::Limits;
use memoird_engine::{
    CompactionConfig, ContextConfig, Durability, EngineConfig, HookConfig, HooksConfig,
    TenantConfig, TenantLimits,
};
use memoird_hooks::HookSpec;
use memoird_hooks::git::GitConfig;
use memoird_memories::MemoriesConfig;
use memoird_memories::store::FilesOptions;
use memoird_search::SearchConfig;
use memoird_store::DataKey;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tracing_subscriber::EnvFilter;

use crate::connections::ConnectionsConfig;
use crate::connections::socket::{FileMode, ListenAddress};
use crate::data_files::DataFiles;
use crate::exit::{CliError, Exit};
use crate::keyring::{Key, KeylessCallers};
use crate::layers::CorsConfig;
use crate::process;
use crate::rpc::Role;
use crate::tls::{Tls, TlsConfig, TlsFiles};
use data_key::DataKeySpec;
use environment::ProcessEnvironment;
use file::{AUTO, File, VERSION};

pub(crate) use environment::FilesRead;
pub(crate) use policy::Policy;
pub(crate) use settings::Settings;
#[cfg(feature = "postgres")]
pub(crate) use settings::differing;

/// The default configuration with comments. A test compares it with the components' defaults.
pub(crate) const DEFAULT_YAML: &str = include_str!("../../../config/memoird.yaml");

/// Minimum of the automatic `server.max_request_bytes`, and what it adds to the largest turn.
const REQUEST_BYTES_MIN: usize = 8 << 20;
const REQUEST_ROOM_BYTES: usize = 4 << 20;

/// Directory for `long_term.dir: auto`, relative to the data directory.
const MEMORIES_DIR: &str = crate::data_files::MEMORIES;

/// Where the journal is.
#[derive(Clone, Debug, Default)]
pub(crate) enum JournalLocation {
    /// A file in the data directory.
    #[default]
    DataDir,
    /// A PostgreSQL database.
    #[cfg(feature = "postgres")]
    Postgres(Box<memoird_postgres::PgOptions>),
}

impl JournalLocation {
    /// Whether the journal is not a file, so that a copy of the files does not contain it.
    pub(crate) fn is_outside_data_dir(&self) -> bool {
        !matches!(self, Self::DataDir)
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) data_dir: PathBuf,
    pub(crate) server: ServerConfig,
    pub(crate) log: LogConfig,
    pub(crate) engine: EngineConfig,
    pub(crate) journal: JournalLocation,
    /// Limits and workers of long-term memory.
    pub(crate) memories: MemoriesConfig,
    pub(crate) long_term: LongTerm,
    pub(crate) search: SearchConfig,
    pub(crate) keys: Vec<Key>,
    pub(crate) keyless: KeylessCallers,
    /// Contents of the TLS files.
    pub(crate) tls: Option<TlsFiles>,
    /// Whether the file states its version.
    ///
    /// Without one it may be truncated or empty, and a reload rejects it.
    pub(crate) is_versioned: bool,
    pub(crate) warnings: Vec<String>,
    /// All settings, for comparison with another file.
    pub(crate) settings: Settings,
    pub(crate) cluster: ClusterConfig,
    /// The policy of the file, which is not necessarily the cluster's.
    pub(crate) policy: Policy,
    /// Version of the cluster's policy that applies. `None` if that of the file does.
    pub(crate) policy_version: Option<u64>,
    /// The file as it was read.
    file: Box<File>,
}

#[derive(Clone, Debug)]
pub(crate) struct LongTerm {
    /// Directory with one file per tenant.
    pub(crate) dir: PathBuf,
    pub(crate) options: FilesOptions,
}

/// The section `server`.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ServerConfig {
    /// Address of the gRPC port.
    pub(crate) listen: ListenAddress,
    /// Address of the admin port.
    pub(crate) admin_listen: ListenAddress,
    pub(crate) unix: UnixConfig,
    pub(crate) tls: Option<TlsConfig>,
    /// Source of the key of the data files.
    pub(crate) data_key: Option<DataKeySpec>,
    /// Time for calls to finish at shutdown, and again for changes to be written.
    #[serde(with = "AsText::<Span>")]
    pub(crate) shutdown_grace: Duration,
    /// Whether to accept every caller as admin of the tenant `default` if there are no keys.
    ///
    /// Only on loopback.
    pub(crate) allow_without_keys: bool,
    /// Maximum concurrent connections. Further ones wait.
    pub(crate) max_connections: usize,
    /// Maximum concurrent calls on one connection. Further ones wait.
    pub(crate) max_streams_per_connection: u32,
    pub(crate) connections: ConnectionsConfig,
    pub(crate) cors: CorsConfig,
    /// Whether to serve gRPC reflection, which needs a key.
    pub(crate) reflection: bool,
    /// Maximum concurrent calls. Further ones are rejected.
    pub(crate) max_calls_in_flight: usize,
    /// Maximum size of a request in bytes. If `None`, see [`request_bytes_for`].
    #[serde(with = "AsText::<Auto>")]
    pub(crate) max_request_bytes: Option<usize>,
}

/// Permissions of Unix sockets, and their users that need no key.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct UnixConfig {
    /// File mode of the socket.
    #[serde(with = "AsText::<FileMode>")]
    pub(crate) mode: u32,
    peers: Vec<UnixPeer>,
}

/// A user of this machine, and the tenant and role of its calls.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct UnixPeer {
    uid: u32,
    tenant: String,
    #[serde(default)]
    role: Role,
}

/// The section `cluster`.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ClusterConfig {
    /// Whether the daemon is not ready while its file differs from the policy of the cluster.
    pub(crate) strict: bool,
}

/// The section `log`.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct LogConfig {
    /// Log filter in the syntax of `tracing_subscriber::EnvFilter`.
    pub(crate) filter: String,
    /// Maximum log lines per minute from one place in the code; 0 means no limit.
    pub(crate) lines_per_minute: u64,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            listen: ListenAddress::Tcp(([127, 0, 0, 1], 7717).into()),
            admin_listen: ListenAddress::Tcp(([127, 0, 0, 1], 7718).into()),
            unix: UnixConfig::default(),
            tls: None,
            data_key: None,
            shutdown_grace: Duration::from_secs(10),
            allow_without_keys: false,
            max_connections: 1_024,
            max_streams_per_connection: 1_024,
            connections: ConnectionsConfig::default(),
            cors: CorsConfig::default(),
            reflection: true,
            max_calls_in_flight: 4_096,
            max_request_bytes: None,
        }
    }
}

impl Default for UnixConfig {
    fn default() -> Self {
        Self {
            mode: 0o600,
            peers: Vec::new(),
        }
    }
}

impl Default for LogConfig {
    fn default() -> Self {
        Self {
            filter: "info".to_owned(),
            lines_per_minute: 100,
        }
    }
}

impl ServerConfig {
    fn check(&self, problems: &mut Problems) {
        if let Some(key) = &self.data_key {
            problems.within("data_key", |problems| key.check(problems));
        }
        problems.span("shutdown_grace", self.shutdown_grace);
        problems.at_least_one("max_connections", self.max_connections);
        let streams = self.max_streams_per_connection;
        problems.at_least_one("max_streams_per_connection", streams);
        problems.at_least_one("max_calls_in_flight", self.max_calls_in_flight);
        problems.at_least_one("max_request_bytes", self.max_request_bytes.unwrap_or(1));
        problems.within("connections", |problems| self.connections.check(problems));
        problems.within("cors", |problems| self.cors.check(problems));
        let is_socket = matches!(self.listen, ListenAddress::Unix(_));
        problems.unless(
            is_socket || self.unix.peers.is_empty(),
            "unix.peers",
            "require a Unix socket, and listen is an address; listen on \
             unix:/run/memoird/grpc.sock, or remove them",
        );
        problems.unless(
            !is_socket || !self.tls.as_ref().is_some_and(TlsConfig::takes_clients),
            "tls.client_ca",
            "requires TLS, and listen is a Unix socket, which has none; listen on an address, or \
             remove it",
        );
    }
}

impl Config {
    pub(crate) fn request_bytes(&self) -> usize {
        let configured = self.server.max_request_bytes;
        configured.unwrap_or_else(|| request_bytes_for(self.engine.limits.turn_bytes))
    }

    /// Replaces the settings of the policy by those of the cluster.
    ///
    /// # Errors
    /// If they are invalid together with the rest of the file. Nothing has changed then.
    pub(crate) fn adopt(&mut self, version: u64, policy: &Policy) -> Result<(), String> {
        let rejected = |problem: String| {
            format!("version {version} of the cluster's policy does not fit this file: {problem}")
        };
        let mut file = (*self.file).clone();
        policy.apply_to(&mut file).map_err(rejected)?;
        let adopted = check(file, &ProcessEnvironment::default()).map_err(rejected)?;
        let others = policy.other_tenants(&adopted.engine.tenants);
        let others = others.map_err(rejected)?;
        self.engine = adopted.engine;
        self.engine.tenants.extend(others);
        self.memories = adopted.memories;
        self.settings = adopted.settings;
        self.policy_version = Some(version);
        Ok(())
    }

    /// Digests of the settings that daemons sharing a journal must agree on, for the other members.
    pub(crate) fn digests(&self) -> Vec<u8> {
        self.settings.digests(&self.policy)
    }

    /// Whether callers need no credentials.
    pub(crate) fn is_open(&self) -> bool {
        self.keys.is_empty() && self.keyless == KeylessCallers::default()
    }

    /// Takes over the listeners of a running daemon, which do not change before a restart.
    ///
    /// This includes callers that need no key, if their tenants still exist.
    pub(crate) fn keep_listeners_of(&mut self, running: &Self) {
        self.server.tls.clone_from(&running.server.tls);
        self.server.unix.clone_from(&running.server.unix);
        // Not an error in the new file: callers of a removed tenant are removed with it.
        let mut gone = Problems::default();
        self.keyless = keyless(&self.server, &self.engine.tenants, &mut gone);
    }

    /// Reads the key of the data files, at startup only.
    pub(crate) fn read_data_key(&self) -> Result<Option<DataKey>, CliError> {
        data_key(self.server.data_key.as_ref())
    }
}

fn data_key(spec: Option<&DataKeySpec>) -> Result<Option<DataKey>, CliError> {
    let read = |spec: &DataKeySpec| spec.read(&ProcessEnvironment::default());
    let key = spec.map(read).transpose();
    key.map_err(|problem| CliError::failed(Exit::Config, format!("server.data_key {problem}")))
}

/// Reads the locations and the key of a configuration's data files, and no other secret.
pub(crate) fn data_files(path: &Path) -> Result<DataFiles, CliError> {
    let file = read(path, File::parse)?;
    Ok(DataFiles {
        memories_dir: memories_dir(&file),
        key: data_key(file.server.data_key.as_ref())?,
        data_dir: file.data_dir,
        config: Some(path.to_owned()),
    })
}

/// Like [`data_files`], with the location of the journal.
pub(crate) fn data_location(path: &Path) -> Result<(DataFiles, JournalLocation), CliError> {
    let journal = read(path, |text| {
        let file = File::parse(text)?;
        let mut problems = Problems::default();
        let journal = problems.within("journal", |problems| journal_location(&file, problems));
        problems.or(journal)
    })?;
    Ok((data_files(path)?, journal))
}

/// Reads and validates a configuration file.
pub(crate) fn load(path: &Path) -> Result<Config, CliError> {
    load_noting(path).0
}

/// Like [`load`], with the files that were read.
///
/// These are returned for an invalid configuration as well: a missing file may appear later.
pub(crate) fn load_noting(path: &Path) -> (Result<Config, CliError>, FilesRead) {
    let environment = ProcessEnvironment::default();
    let text = environment.file(path);
    let config = parsed(path, text, |text| parse(text, &environment));
    (config, environment.into_files())
}

/// Returns the git hooks of a configuration file.
///
/// Reads no secrets, for which a user who reads checkpoints may lack permission.
pub(crate) fn git_hooks(path: &Path) -> Result<Vec<GitConfig>, CliError> {
    let file = read(path, File::parse)?;
    Ok(file.hooks.into_iter().filter_map(|hook| hook.git).collect())
}

/// Prints all problems of a configuration file, or its warnings.
pub(crate) fn print_check(path: &Path, json: bool) -> Result<(), CliError> {
    let config = load(path)?;
    if json {
        let found = json!({ "file": path.display().to_string(), "warnings": config.warnings });
        return output::print_json(&found);
    }
    for warning in &config.warnings {
        output::print(&format!("warning: {warning}"))?;
    }
    output::print(&format!("{}: good", path.display()))
}

#[cfg(feature = "postgres")]
pub(crate) fn variable(name: &str) -> Option<String> {
    let text = ProcessEnvironment::default().variable(name)?;
    text.into_string().ok()
}

fn read<T>(path: &Path, parse: impl FnOnce(&str) -> Result<T, String>) -> Result<T, CliError> {
    parsed(path, std::fs::read_to_string(path), parse)
}

fn parsed<T>(
    path: &Path,
    text: io::Result<String>,
    parse: impl FnOnce(&str) -> Result<T, String>,
) -> Result<T, CliError> {
    let text = text.map_err(CliError::no_input(path))?;
    let invalid = |problem| format!("{}: {problem}", path.display());
    parse(&text).map_err(|problem| CliError::failed(Exit::Config, invalid(problem)))
}

pub(crate) fn reload_tls(tls: &Tls) -> (Result<(), String>, FilesRead) {
    let environment = ProcessEnvironment::default();
    let loaded = tls.reload(&environment);
    (loaded, environment.into_files())
}

/// The configuration of a daemon started without a file.
pub(crate) fn embedded() -> Result<Config, CliError> {
    let mut file = File::default();
    file.server.allow_without_keys = true;
    check(file, &ProcessEnvironment::default())
        .map_err(|problem| CliError::failed(Exit::Config, format!("embedded default: {problem}")))
}

fn parse(text: &str, environment: &ProcessEnvironment) -> Result<Config, String> {
    let checked = check(File::parse(text)?, environment);
    checked.map_err(|problem| file::without_values(&problem, text))
}

/// Builds the configuration from a file, or reports all its problems at once.
fn check(file: File, environment: &ProcessEnvironment) -> Result<Config, String> {
    let (settings, policy) = (Settings::of(&file), Policy::of(&file));
    let as_read = Box::new(file.clone());
    let mut problems = Problems::default();
    let is_known = file.version.is_none_or(|version| version == VERSION);
    problems.unless(is_known, "version", "this memoird reads version 1");
    if let Err(error) = EnvFilter::try_new(&file.log.filter) {
        problems.add("log.filter", error);
    }
    let needs_keys = !has_keyless(&file.server);
    let keys = tenants::keys(&file.tenants, needs_keys, environment, &mut problems);
    let tls = problems.within("server", |problems| {
        file.server.check(problems);
        let has_keys = tenants::have_keys(&file.tenants);
        check_access(&file.server, has_keys, problems);
        let tls = file.server.tls.as_ref().map(|tls| tls.load(environment));
        let loaded = tls.transpose().map_err(|error| Problem::new("tls", error));
        problems.take("", loaded).flatten()
    });
    let mut engine = engine(&file, environment, &mut problems);
    let keyless = keyless(&file.server, &engine.tenants, &mut problems);
    let mut warnings = plain_text::warnings(&file);
    if file.version.is_none() {
        let unversioned = "version is missing: the file is accepted at startup, and rejected by a \
            reload; add `version: 1`";
        warnings.push(unversioned.to_owned());
    }
    if engine.sessions.max_sessions == 0 {
        let unbounded =
            "short_term.max_sessions is 0: only the TTL of sessions limits the daemon's memory";
        warnings.push(unbounded.to_owned());
    }
    if tenants::are_journals_unbounded(&file.tenants)
        && file.journal.first.durability != Durability::Off
    {
        let unbounded = "no tenant has limits.journal_bytes: one of them can fill the disk for all";
        warnings.push(unbounded.to_owned());
    }
    if keys.is_empty() && keyless == KeylessCallers::default() {
        let open = "no keys are configured: every process on this machine is an operator of \
            `default` (server.allow_without_keys)";
        warnings.push(open.to_owned());
        let default = TenantId::default_tenant();
        if engine.tenants.iter().all(|tenant| tenant.id != default) {
            engine.tenants.push(TenantConfig {
                id: default,
                limits: TenantLimits::default(),
            });
        }
    }
    if !keys.is_empty() && file.server.allow_without_keys {
        let unused = "server.allow_without_keys is true although keys are configured: a file that \
            loses its keys would start an open daemon; remove it";
        warnings.push(unused.to_owned());
    }
    warnings.extend(
        tls.as_ref()
            .and_then(|tls| tls.warning(process::wall_clock())),
    );
    warnings.extend(tenants::unknown_to(&engine));
    let memories = problems.within("long_term", |problems| {
        memories(&file, environment, problems)
    });
    let long_term = long_term_files(&file, &mut problems);
    let journal = problems.within("journal", |problems| journal_location(&file, problems));
    if journal.is_outside_data_dir() && file.server.data_key.is_some() {
        let plain = "server.data_key encrypts the files of data_dir; the journal is in the database \
                     of journal.postgres, and is not encrypted by it";
        warnings.push(plain.to_owned());
    }
    problems.within("search", |problems| file.search.check(problems));
    problems.or(Config {
        memories,
        data_dir: file.data_dir,
        server: file.server,
        log: file.log,
        engine,
        journal,
        long_term,
        search: file.search,
        keys,
        is_versioned: file.version.is_some(),
        keyless,
        tls,
        warnings,
        settings,
        cluster: file.cluster,
        policy,
        policy_version: None,
        file: as_read,
    })
}

/// Returns the location of the journal. It applies at startup, so its secrets are not watched.
fn journal_location(file: &File, problems: &mut Problems) -> JournalLocation {
    let Some(spec) = &file.journal.second.postgres else {
        return JournalLocation::DataDir;
    };
    problems.unless(
        file.journal.first.durability == Durability::Sync,
        "durability",
        "must be sync with journal.postgres",
    );
    problems.within("postgres", |problems| {
        spec.build(&ProcessEnvironment::default(), problems)
    })
}

fn has_keyless(server: &ServerConfig) -> bool {
    let takes_certificates = server.tls.as_ref().is_some_and(TlsConfig::takes_clients);
    takes_certificates || !server.unix.peers.is_empty()
}

/// Returns the callers of these tenants that need no key.
fn keyless(
    server: &ServerConfig,
    tenants: &[TenantConfig],
    problems: &mut Problems,
) -> KeylessCallers {
    let takes_certificates = server.tls.as_ref().is_some_and(TlsConfig::takes_clients);
    let ids = || tenants.iter().map(|tenant| tenant.id.clone());
    if has_keyless(server) && tenants.is_empty() {
        let problem = "there is none, so no client could call; configure one, such as { id: acme }";
        problems.add("tenants", problem);
    }
    let mut by_uid = Vec::new();
    for (index, peer) in server.unix.peers.iter().enumerate() {
        let before = &server.unix.peers[..index];
        if let Some(first) = before.iter().position(|other| other.uid == peer.uid) {
            let problem = format!("is that of server.unix.peers[{first}]");
            problems.add(format!("server.unix.peers[{index}].uid"), problem);
        }
        match ids().find(|id| id.as_str() == peer.tenant) {
            Some(tenant) => by_uid.push((peer.uid, tenant, peer.role)),
            None => {
                let place = format!("server.unix.peers[{index}].tenant");
                problems.add(place, "is none of tenants");
            }
        }
    }
    KeylessCallers {
        by_certificate: if takes_certificates {
            ids().collect()
        } else {
            Vec::new()
        },
        by_uid,
    }
}

/// Checks that a daemon without keys is intended, and reachable only from this machine.
fn check_access(server: &ServerConfig, has_keys: bool, problems: &mut Problems) {
    if has_keys || has_keyless(server) {
        return;
    }
    if !server.listen.is_of_this_machine() {
        let problem = format!(
            "{} is reachable from other machines, and no keys are configured; configure keys, or \
             listen on 127.0.0.1",
            server.listen
        );
        problems.add("listen", problem);
    }
    let is_missing = "is not set, and no keys are configured: configure keys, or, if every \
        process on this machine may do everything, add this line\n\
                      server: { allow_without_keys: true }";
    problems.unless(server.allow_without_keys, "allow_without_keys", is_missing);
}

/// Default maximum size of a request: the largest turn in base64 plus 4 MiB, at least 8 MiB.
fn request_bytes_for(turn_bytes: usize) -> usize {
    let in_base64 = turn_bytes.saturating_add(turn_bytes / 3);
    let bytes = in_base64.saturating_add(REQUEST_ROOM_BYTES);
    bytes.max(REQUEST_BYTES_MIN)
}

/// Returns the maximum size of a turn in bytes.
///
/// The default depends on the memory limit, and on configured sizes of requests and histories.
fn turn_bytes(file: &File, memory_bytes: u64, problems: &mut Problems) -> usize {
    let around = [
        ("server.max_request_bytes", file.server.max_request_bytes),
        (
            "short_term.max_history_bytes",
            file.short_term.first.max_history_bytes,
        ),
    ];
    let Some(bytes) = file.limits.third.turn_bytes else {
        let sizes = around.iter().filter_map(|(_, bytes)| *bytes);
        return sizes.fold(Limits::turn_bytes_for(memory_bytes), usize::min);
    };
    problems.at_least_one("limits.turn_bytes", bytes);
    for (setting, size) in around {
        if let Some(size) = size.filter(|size| *size < bytes) {
            let [bytes, size] = [bytes, size].map(|bytes| Size::format(&bytes));
            let problem = format!(
                "is {bytes}, but {setting} is {size}, so no turn could be that large; set \
                 {setting} to auto, or remove it"
            );
            problems.add("limits.turn_bytes", problem);
        }
    }
    bytes
}

fn engine(file: &File, environment: &ProcessEnvironment, problems: &mut Problems) -> EngineConfig {
    let (caps, sessions) = (&file.short_term.first, &file.short_term.second);
    problems.within("short_term", |problems| {
        problems.at_least_one("max_history_turns", caps.max_history_turns);
        problems.at_least_one("max_history_bytes", caps.max_history_bytes.unwrap_or(1));
        sessions.check(problems);
    });
    problems.within("journal", |problems| file.journal.first.check(problems));
    problems.within("limits", |problems| {
        file.limits.first.check(problems);
        file.limits.second.check(problems);
    });
    let context = problems.within("context", |problems| context(file, environment, problems));
    let windows = context
        .models
        .iter()
        .map(|model| model.profile.budget.context_window);
    let window_max = windows.max().unwrap_or_default();
    let memory_bytes = match file.limits.third.memory {
        Some(bytes) => bytes as u64,
        None => process::memory_bytes() / 2,
    };
    let turn_bytes = turn_bytes(file, memory_bytes, problems);
    EngineConfig {
        limits: Limits {
            max_history_turns: caps.max_history_turns,
            max_history_bytes: caps
                .max_history_bytes
                .unwrap_or_else(|| Limits::history_bytes_for(window_max, turn_bytes)),
            turn_bytes,
            ..file.limits.first.clone()
        },
        sessions: sessions.clone(),
        memory_bytes,
        journal_bytes: file.limits.third.journal_bytes as u64,
        journal: file.journal.first.clone(),
        context,
        compaction: problems.within("compaction", |problems| {
            compaction(file, environment, problems)
        }),
        hooks: HooksConfig {
            drain: file.server.shutdown_grace,
            hooks: hooks(&file.hooks, environment, problems),
            ..file.limits.second.clone()
        },
        tenants: tenants::tenants(&file.tenants, problems),
        nonce_secret: None,
        cluster: None,
    }
}

fn context(
    file: &File,
    environment: &ProcessEnvironment,
    problems: &mut Problems,
) -> ContextConfig {
    let (settings, models) = (&file.context.first, &file.context.second);
    settings.check(problems);
    ContextConfig {
        settings: *settings,
        models: models.build(environment, problems),
        default_model: models.default_model.clone(),
    }
}

fn compaction(
    file: &File,
    environment: &ProcessEnvironment,
    problems: &mut Problems,
) -> CompactionConfig {
    let section = &file.compaction;
    section.first.check(problems);
    section.second.check(problems);
    let summarizer = section.third.summarizer.build(environment);
    CompactionConfig {
        policy: section.first,
        summarizer: problems.take("summarizer", summarizer).flatten(),
        ..section.second.clone()
    }
}

fn memories(
    file: &File,
    environment: &ProcessEnvironment,
    problems: &mut Problems,
) -> MemoriesConfig {
    let (keys, limits) = (&file.long_term.third, &file.long_term.second);
    // Embedder and reranker apply at startup, so their keys are not watched.
    let embedder = keys.embedder.build(&ProcessEnvironment::default());
    let extraction = &keys.extraction;
    let spec = extraction.first.spec();
    let built = spec.and_then(|spec| spec.build(environment));
    let extractor = problems.take("extraction", built).flatten();
    let has_journal = file.journal.first.durability != Durability::Off;
    problems.unless(
        extractor.is_none() || has_journal,
        "extraction",
        "requires a journal; use a journal.durability other than off",
    );
    let reranker = keys.reranker.build(&ProcessEnvironment::default());
    let config = MemoriesConfig {
        limits: limits.clone(),
        extractor,
        extraction: extraction.second,
        embedder: problems.take("embedder", embedder).flatten(),
        reranker: problems.take("reranker", reranker).flatten(),
        consolidation: keys.dream.first.clone(),
        consolidation_interval: keys.dream.second.interval,
        ..file.long_term.first.clone()
    };
    config.check(problems);
    config
}

fn long_term_files(file: &File, problems: &mut Problems) -> LongTerm {
    let keys = &file.long_term.third;
    problems.at_least_one("long_term.open_files", keys.open_files);
    let is_named = !keys.dir.as_os_str().is_empty();
    problems.unless(is_named, "long_term.dir", "must be a directory, or auto");
    let dir = memories_dir(file);
    let options = FilesOptions {
        files_open_max: keys.open_files,
        ..FilesOptions::default()
    };
    LongTerm { dir, options }
}

fn memories_dir(file: &File) -> PathBuf {
    let dir = &file.long_term.third.dir;
    if dir == Path::new(AUTO) {
        file.data_dir.join(MEMORIES_DIR)
    } else {
        dir.clone()
    }
}

/// Builds the hooks and checks that their names are unique.
fn hooks(
    specs: &[HookSpec],
    environment: &ProcessEnvironment,
    problems: &mut Problems,
) -> Vec<HookConfig> {
    let mut names = HashMap::new();
    let mut hooks = Vec::with_capacity(specs.len());
    for (index, spec) in specs.iter().enumerate() {
        let section = format!("hooks[{index}]");
        if let Some(first) = names.insert(&spec.name, index) {
            let problem = format!("is that of hooks[{first}]");
            problems.add(format!("{section}.name"), problem);
        }
        hooks.extend(problems.within(&section, |problems| spec.build(environment, problems)));
    }
    hooks
}

#[cfg(test)]
mod tests;
