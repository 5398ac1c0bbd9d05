//! Another configuration while the daemon runs: by call, by SIGHUP, and when the file
//! changes. A file that is not valid changes nothing.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use memoird_core::ids::TenantId;
use memoird_engine::Engine;
use memoird_memories::Memories;
use sha2::{Digest, Sha256};
use thiserror::Error;
use tokio::sync::Mutex;
use tokio_util::task::TaskTracker;
use tracing::{info, warn};

use crate::auth::{Key, Keyring};
use crate::config::{self, Config, Settings};
use crate::logging::LogControl;

/// How often the file is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Why a configuration was not read again. The one that was stays, whole.
#[derive(Debug, Error)]
pub(crate) enum ReloadError {
    /// The daemon runs on the embedded default.
    #[error("the daemon was started without --config; there is no file to read again")]
    NoFile,
    /// The file cannot be read, or something in it is wrong.
    #[error("{problem}")]
    Invalid {
        /// What is wrong.
        problem: String,
    },
}

/// What a reload did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reloaded {
    /// Settings that are other than before.
    pub(crate) applied: Vec<String>,
    /// Settings that stay until the next start, and why.
    pub(crate) refused: Vec<String>,
}

/// How often a configuration was read again.
#[derive(Debug, Default)]
pub(crate) struct ReloadCounts {
    /// And applied.
    pub(crate) applied: AtomicU64,
    /// And refused.
    pub(crate) refused: AtomicU64,
}

/// Reads the configuration again and applies it.
#[derive(Debug)]
pub(crate) struct Reloader {
    path: Option<PathBuf>,
    /// Where calls come in, whatever a newer file says.
    listen: SocketAddr,
    engine: Engine,
    memories: Memories,
    keyring: Arc<ArcSwap<Keyring>>,
    log: LogControl,
    grace_ms: AtomicU64,
    pub(crate) counts: ReloadCounts,
    running: Mutex<Running>,
    /// Of the files as they were when they were last read, whatever came of it.
    seen: std::sync::Mutex<Fingerprint>,
    tasks: TaskTracker,
}

/// Of the content of some files.
pub(crate) type Fingerprint = [u8; 32];

/// The configuration that applies.
#[derive(Debug)]
struct Running {
    settings: Settings,
    keys: Vec<Key>,
    secret_files: Vec<PathBuf>,
}

impl Reloader {
    /// Of a daemon that runs on this configuration.
    pub(crate) fn new(
        path: Option<&Path>,
        config: &Config,
        engine: Engine,
        memories: Memories,
        keyring: Arc<ArcSwap<Keyring>>,
        log: LogControl,
        seen_first: Fingerprint,
    ) -> Self {
        let reloader = Self {
            path: path.map(Path::to_owned),
            listen: config.server.listen,
            engine,
            memories,
            keyring,
            log,
            grace_ms: AtomicU64::default(),
            counts: ReloadCounts::default(),
            running: Mutex::new(Running {
                settings: config.settings.clone(),
                keys: config.keys.clone(),
                secret_files: config.secret_files.clone(),
            }),
            seen: std::sync::Mutex::new(seen_first),
            tasks: TaskTracker::new(),
        };
        reloader.set_grace(config);
        reloader
    }

    /// How long calls may take to finish when the daemon stops.
    pub(crate) fn shutdown_grace(&self) -> Duration {
        Duration::from_millis(self.grace_ms.load(Ordering::Relaxed))
    }

    /// Reads the file again and applies it, whole or not at all.
    ///
    /// # Errors
    /// When there is no file, or it is not valid: then nothing has changed.
    pub(crate) async fn reload(&self, why: &str) -> Result<Reloaded, ReloadError> {
        // Before they are read: what changes after this is seen as another change.
        let fingerprint = self.fingerprint().await;
        let outcome = self.try_reload().await;
        *self.seen() = fingerprint;
        match &outcome {
            Ok(Reloaded { applied, refused }) => {
                self.counts.applied.fetch_add(1, Ordering::Relaxed);
                info!(why, ?applied, "the configuration was read again");
                if !refused.is_empty() {
                    warn!(?refused, "some settings apply with the next start only");
                }
            }
            Err(error) => {
                self.counts.refused.fetch_add(1, Ordering::Relaxed);
                warn!(why, %error, "the new configuration is refused; the old one stays");
            }
        }
        outcome
    }

    /// The same for somebody who may go away while it is done: it is done to its end.
    ///
    /// # Errors
    /// As of [`Self::reload`].
    pub(crate) async fn reload_aside(
        self: Arc<Self>,
        why: &'static str,
    ) -> Result<Reloaded, ReloadError> {
        let tasks = self.tasks.clone();
        let done = tasks.spawn(async move { self.reload(why).await }).await;
        done.unwrap_or_else(|error| {
            Err(ReloadError::Invalid {
                problem: error.to_string(),
            })
        })
    }

    async fn try_reload(&self) -> Result<Reloaded, ReloadError> {
        let mut running = self.running.lock().await;
        let path = self.path.clone().ok_or(ReloadError::NoFile)?;
        let invalid = |problem: String| ReloadError::Invalid { problem };
        // Files are read and certificates are parsed: not on a thread that answers calls.
        let loaded = tokio::task::spawn_blocking(move || config::load(&path)).await;
        let config = loaded.map_err(|error| invalid(error.to_string()))?;
        let config = config.map_err(|error| invalid(error.to_string()))?;
        if config.keys.is_empty() && !self.listen.ip().is_loopback() {
            let problem = "tenants: there are no keys any more, and the daemon listens on \
                           an address that other machines reach; give them keys";
            return Err(invalid(format!("{problem} ({})", self.listen)));
        }
        for warning in &config.warnings {
            warn!("{warning}");
        }
        self.log
            .apply(&config.log)
            .map_err(|error| invalid(error.to_string()))?;
        self.set_grace(&config);
        let Config {
            settings,
            keys,
            secret_files,
            engine,
            memories,
            ..
        } = config;
        self.engine.adopt(engine);
        self.memories.adopt(memories);
        // Before sessions are ended, which may take long: a key that is gone is gone.
        self.set_keys(&running.keys, &keys);

        let difference = running.settings.difference(&settings);
        let mut applied = difference.at_once;
        if keys != running.keys && !applied.iter().any(|path| path == "tenants") {
            applied.push("tenants (other keys in the same places)".to_owned());
        }
        let stays = |(path, value)| format!("{path}: stays {value} until the daemon starts anew");
        let refused = difference.at_start.into_iter().map(stays).collect();
        let settings = settings.applied_to(&running.settings);
        *running = Running {
            settings,
            keys,
            secret_files,
        };
        self.engine.enforce_limits().await;
        Ok(Reloaded { applied, refused })
    }

    fn set_grace(&self, config: &Config) {
        let ms = u64::try_from(config.server.shutdown_grace.as_millis()).unwrap_or(u64::MAX);
        self.grace_ms.store(ms, Ordering::Relaxed);
    }

    /// Lets in who has these keys; who watches has to ask anew where they are others.
    fn set_keys(&self, was: &[Key], keys: &[Key]) {
        if was == keys {
            return;
        }
        // The engine has just been given every tenant that a key names.
        if let Some(keyring) = Keyring::new(keys, &TenantId::default_tenant(), &self.engine) {
            self.keyring.swap(Arc::new(keyring)).revoke();
        }
    }

    /// Looks at the file, and at those with secrets, again and again, and reads them when
    /// they have changed and are the same twice: whoever writes them may be in the middle.
    pub(crate) async fn follow_file(&self) {
        if self.path.is_none() {
            return std::future::pending().await;
        }
        let mut last = *self.seen();
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let now = self.fingerprint().await;
            let is_new = *self.seen() != now;
            if is_new && now == last {
                // What came of it is in the log; a refused one is not tried again until it
                // changes.
                let _ = self.reload("the file changed").await;
            }
            last = now;
        }
    }

    fn seen(&self) -> std::sync::MutexGuard<'_, Fingerprint> {
        self.seen
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Of what is in the files now.
    async fn fingerprint(&self) -> Fingerprint {
        let secret_files = self.running.lock().await.secret_files.clone();
        let path = self.path.clone();
        let read = move || fingerprint(path.as_deref(), &secret_files);
        tokio::task::spawn_blocking(read).await.unwrap_or_default()
    }
}

/// Of what is in these files; by content, because a mounted volume swaps links.
pub(crate) fn fingerprint(path: Option<&Path>, secret_files: &[PathBuf]) -> Fingerprint {
    let mut hasher = Sha256::new();
    for file in path
        .into_iter()
        .chain(secret_files.iter().map(PathBuf::as_path))
    {
        // One that is not there is nothing, and that is another thing than empty.
        let text = std::fs::read(file).ok();
        hasher.update([u8::from(text.is_some())]);
        let digest: [u8; 32] = Sha256::digest(text.unwrap_or_default()).into();
        hasher.update(digest);
    }
    hasher.finalize().into()
}
