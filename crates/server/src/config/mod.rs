//! The configuration: one YAML file, checked whole before anything starts.

pub(crate) mod cli;
mod compaction;
mod context;
mod counter;
mod embedder;
mod file;
mod hooks;
mod long_term;
mod print;
mod secret;
mod settings;
mod summarizer;
mod tenants;
mod tokenizers;
mod units;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use memoird_core::ids::TenantId;
use memoird_engine::{EngineConfig, TenantConfig, TenantLimits};
use memoird_hooks::git::GitConfig;
use memoird_memories::MemoriesConfig;
use tracing_subscriber::EnvFilter;

use crate::auth::Key;
use crate::cli::exit::CliError;
use file::{FileConfig, Problems};
use tenants::TenantShape;

pub(crate) use long_term::LongTerm;
pub(crate) use print::default_yaml;
pub(crate) use settings::Settings;

/// What the daemon was told.
#[derive(Debug)]
pub(crate) struct Config {
    /// Where the journal is.
    pub(crate) data_dir: PathBuf,
    /// How it is reached.
    pub(crate) server: ServerConfig,
    /// How it logs.
    pub(crate) log: LogConfig,
    /// What the engine does.
    pub(crate) engine: EngineConfig,
    /// Where memories are.
    pub(crate) long_term: LongTerm,
    /// What is done with memories.
    pub(crate) memories: MemoriesConfig,
    /// Who may call.
    pub(crate) keys: Vec<Key>,
    /// What an operator may not have meant.
    pub(crate) warnings: Vec<String>,
    /// All settings, to compare with those of another file.
    pub(crate) settings: Settings,
    /// The files in which secrets were found.
    pub(crate) secret_files: Vec<PathBuf>,
}

/// How the daemon is reached.
#[derive(Clone, Debug)]
pub(crate) struct ServerConfig {
    /// Where gRPC is served.
    pub(crate) listen: SocketAddr,
    /// Where health and metrics are served.
    pub(crate) admin_listen: SocketAddr,
    /// How long calls may take to finish when the daemon stops, and changes to be
    /// written after that.
    pub(crate) shutdown_grace: Duration,
    /// Connections at once; more wait.
    pub(crate) max_connections: usize,
    /// Calls at once on one connection; more wait.
    pub(crate) max_streams_per_connection: u32,
    /// Calls at once; more are refused.
    pub(crate) max_calls_in_flight: usize,
    /// Bytes of one request.
    pub(crate) max_request_bytes: usize,
}

/// How the daemon logs.
#[derive(Clone, Debug)]
pub(crate) struct LogConfig {
    /// Which events, in the syntax of `tracing_subscriber::EnvFilter`.
    pub(crate) filter: String,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 7717)),
            admin_listen: SocketAddr::from(([127, 0, 0, 1], 7718)),
            shutdown_grace: Duration::from_secs(10),
            max_connections: 1_024,
            max_streams_per_connection: 1_024,
            max_calls_in_flight: 4_096,
            max_request_bytes: 8 << 20,
        }
    }
}

/// Reads and checks a configuration file.
pub(crate) fn load(path: &Path) -> Result<Config, CliError> {
    read(path, parse)
}

/// Where the first git hook of a configuration file writes. Needs none of the secrets that
/// the file names, which whoever reads checkpoints may not have.
pub(crate) fn first_git_hook(path: &Path) -> Result<Option<GitConfig>, CliError> {
    let file = read(path, FileConfig::parse)?;
    Ok(file.hooks.iter().find_map(hooks::HookShape::git))
}

fn read<T>(path: &Path, parse: impl FnOnce(&str) -> Result<T, String>) -> Result<T, CliError> {
    let text = std::fs::read_to_string(path).map_err(|source| CliError::NoInput {
        path: path.to_owned(),
        source,
    })?;
    parse(&text).map_err(|problem| CliError::Config {
        problem: format!("{}: {problem}", path.display()),
    })
}

/// The configuration of a daemon that was given none.
pub(crate) fn embedded() -> Result<Config, CliError> {
    check(&FileConfig::default()).map_err(|problem| CliError::Config {
        problem: format!("embedded default: {problem}"),
    })
}

fn parse(text: &str) -> Result<Config, String> {
    check(&FileConfig::parse(text)?)
}

/// Says everything that is wrong at once.
fn check(file: &FileConfig) -> Result<Config, String> {
    let mut problems = Problems::default();
    let mut warnings = Vec::new();
    file.check_values(&mut problems);
    let tenants: Vec<TenantConfig> = file
        .tenants
        .iter()
        .enumerate()
        .filter_map(|(place, shape)| tenant(place, shape, &mut problems))
        .collect();
    let keys = tenants::keys(&file.tenants, &mut problems);
    let hooks = hooks::hooks(&file.hooks, &mut problems);
    let context = file.context.engine(&mut problems);
    let compaction = file.compaction.engine(&mut problems);
    let (long_term, memories) = file.long_term.build(&file.data_dir, &mut problems);
    check_access(file, &keys, &mut problems);
    if let Err(error) = EnvFilter::try_new(&file.log.filter) {
        problems.add("log.filter", error.to_string());
    }
    let mut engine = file.engine();
    if engine.sessions.max_sessions == 0 {
        let unbounded = "short_term.max_sessions is 0: there is no cap on sessions, and only \
                         their TTL bounds the memory of the daemon";
        warnings.push(unbounded.to_owned());
    }
    if keys.is_empty() {
        warnings.push("no keys are configured: everybody on this machine is `default`".into());
    }
    engine.tenants = tenants;
    engine.hooks.hooks = hooks;
    engine.context = context;
    engine.compaction = compaction;
    let default = TenantId::default_tenant();
    if keys.is_empty() && engine.tenants.iter().all(|tenant| tenant.id != default) {
        engine.tenants.push(TenantConfig {
            id: default,
            limits: TenantLimits::default(),
        });
    }
    problems.or(Config {
        data_dir: file.data_dir.clone(),
        server: file.server(),
        log: LogConfig {
            filter: file.log.filter.clone(),
        },
        engine,
        long_term,
        memories,
        keys,
        warnings,
        settings: Settings::of(file),
        secret_files: files_of(file),
    })
}

/// The files that secrets are in.
fn files_of(file: &FileConfig) -> Vec<PathBuf> {
    let of_tenants = file.tenants.iter().flat_map(TenantShape::files);
    let of_hooks = file.hooks.iter().flat_map(hooks::HookShape::files);
    let of_models = file
        .compaction
        .summarizer
        .file()
        .into_iter()
        .chain(file.context.files());
    of_tenants.chain(of_hooks).chain(of_models).collect()
}

fn tenant(place: usize, shape: &TenantShape, problems: &mut Problems) -> Option<TenantConfig> {
    match TenantId::parse(&shape.id) {
        Ok(id) => Some(TenantConfig {
            id,
            limits: shape.limits.engine(),
        }),
        Err(error) => {
            problems.add(&format!("tenants[{place}].id"), error.to_string());
            None
        }
    }
}

/// Without keys anybody who can connect is let in: that must be this machine alone.
fn check_access(file: &FileConfig, keys: &[Key], problems: &mut Problems) {
    if keys.is_empty() && !file.server.listen.ip().is_loopback() {
        let problem = format!(
            "{} can be reached from other machines, and no keys are configured; give tenants \
             keys, or listen on 127.0.0.1",
            file.server.listen
        );
        problems.add("server.listen", problem);
    }
}

#[cfg(test)]
mod tests;
