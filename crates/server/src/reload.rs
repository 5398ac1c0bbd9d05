//! Configuration reload, triggered by RPC, by SIGHUP, or by a change of the file.
//!
//! An invalid file changes nothing. Readers see a tenant's old policy or its new one, never a mix.
//! A reload cannot disable authentication.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use memoird_engine::Engine;
use memoird_memories::Memories;
use thiserror::Error;
use tokio::sync::{Mutex, watch};
use tokio_util::task::TaskTracker;
use tonic::Code;
use tracing::{error, info, warn};

use crate::config::{self, Config, FilesRead};
use crate::journal_location::Members;
use crate::keyring::Keyring;
use crate::logging::LogControl;
use crate::tls::Tls;
use crate::wire::refusal::Refusal;
use crate::wire::status;

/// Interval for polling the files.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Why a reload was rejected. The current configuration stays.
#[derive(Debug, Error)]
pub(crate) enum ReloadError {
    /// The daemon runs on the embedded default.
    #[error("the daemon was started without --config; there is no file to reload")]
    NoFile,
    /// The file cannot be read, or is invalid.
    #[error("{problem}")]
    Invalid {
        /// The problems, as shown to the operator.
        problem: String,
    },
}

impl From<ReloadError> for Refusal {
    fn from(error: ReloadError) -> Self {
        let reason = match error {
            ReloadError::NoFile => "CONFIG_NOT_A_FILE",
            ReloadError::Invalid { .. } => "CONFIG_INVALID",
        };
        status::new(Code::FailedPrecondition, reason, error.to_string(), None)
    }
}

/// Why the configuration is read again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReloadCause {
    /// `ReloadConfig`.
    Call,
    /// SIGHUP.
    Signal,
    /// The files changed while the daemon ran, or while it started.
    FileChange,
}

impl ReloadCause {
    /// Description for the log.
    fn why(self) -> &'static str {
        match self {
            Self::Call => "ReloadConfig",
            Self::Signal => "the signal SIGHUP",
            Self::FileChange => "the file changed",
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReloadReport {
    /// Settings with a new value.
    pub(crate) applied: Vec<String>,
    /// Settings that need a restart, with their current values.
    pub(crate) refused: Vec<String>,
}

/// Reload counters for metrics.
#[derive(Debug, Default)]
pub(crate) struct ReloadCounts {
    pub(crate) applied: AtomicU64,
    pub(crate) refused: AtomicU64,
}

#[derive(Debug)]
pub(crate) struct Reloader {
    /// `None` for the embedded default.
    pub(crate) path: Option<PathBuf>,
    pub(crate) tls: Option<Arc<Tls>>,
    pub(crate) engine: Engine,
    pub(crate) memories: Memories,
    pub(crate) keyring: Arc<ArcSwap<Keyring>>,
    pub(crate) log: LogControl,
    pub(crate) config: ArcSwap<Config>,
    /// Digests of the settings, published to the other cluster members.
    pub(crate) published_settings: watch::Sender<Vec<u8>>,
    /// The other cluster members, and their policy.
    pub(crate) members: Members,
    pub(crate) counts: ReloadCounts,
    /// Serializes reloads.
    pub(crate) turn: Mutex<()>,
    /// The files as last read, also by a rejected reload.
    pub(crate) last_files: parking_lot::Mutex<FilesRead>,
    pub(crate) tasks: TaskTracker,
}

impl Reloader {
    pub(crate) fn shutdown_grace(&self) -> Duration {
        self.config.load().server.shutdown_grace
    }

    /// Reads the file again and applies it as a whole.
    ///
    /// # Errors
    /// If there is no file, or it is invalid. Nothing has changed then.
    pub(crate) async fn reload(&self, cause: ReloadCause) -> Result<ReloadReport, ReloadError> {
        let (outcome, why) = (self.try_reload(cause).await, cause.why());
        match &outcome {
            Ok(ReloadReport { applied, refused }) => {
                self.counts.applied.fetch_add(1, Ordering::Relaxed);
                info!(why, ?applied, "the configuration was reloaded");
                if !refused.is_empty() {
                    warn!(?refused, "some settings apply only after a restart");
                }
            }
            Err(error) => {
                self.counts.refused.fetch_add(1, Ordering::Relaxed);
                error!(why, %error, "the new configuration is invalid; the current one stays in \
                    effect");
            }
        }
        outcome
    }

    /// Runs [`Self::reload`] in its own task, so that it completes even if the caller is cancelled.
    ///
    /// # Errors
    /// Those of [`Self::reload`].
    pub(crate) async fn reload_in_task(
        self: Arc<Self>,
        cause: ReloadCause,
    ) -> Result<ReloadReport, ReloadError> {
        let tasks = self.tasks.clone();
        let done = tasks.spawn(async move { self.reload(cause).await }).await;
        done.unwrap_or_else(|error| {
            Err(ReloadError::Invalid {
                problem: error.to_string(),
            })
        })
    }

    async fn try_reload(&self, cause: ReloadCause) -> Result<ReloadReport, ReloadError> {
        let _turn = self.turn.lock().await;
        let path = self.path.clone().ok_or(ReloadError::NoFile)?;
        let invalid = |problem: String| ReloadError::Invalid { problem };
        // Keep file reads and certificate parsing off the async workers.
        let loaded = tokio::task::spawn_blocking(move || config::load_noting(&path)).await;
        let (parsed, files) = loaded.map_err(|error| invalid(error.to_string()))?;
        *self.last_files.lock() = files;
        let mut config = parsed.map_err(|error| invalid(error.to_string()))?;
        if !config.is_versioned {
            let problem = "version is missing: the file is empty or cut off, or lacks `version: 1`";
            return Err(invalid(problem.to_owned()));
        }
        let running = self.config.load_full();
        let is_open = config.is_open();
        if is_open && !running.is_open() {
            let problem = "tenants: all keys were removed, and a reload cannot disable \
                authentication; configure keys, or restart the daemon";
            return Err(invalid(problem.to_owned()));
        }
        let has_other_tls = config.server.tls != running.server.tls;
        config.keep_listeners_of(&running);
        if config.is_open() && !is_open {
            let problem = "tenants: no keys are configured, and clients without keys (server.tls, \
                server.unix.peers) are accepted only after a restart; configure keys, or restart \
                the daemon";
            return Err(invalid(problem.to_owned()));
        }
        for warning in &config.warnings {
            warn!("{warning}");
        }
        if let Some(tls) = self.tls.clone() {
            // The paths from startup: a changed `server.tls` needs a restart.
            let loaded = tokio::task::spawn_blocking(move || config::reload_tls(&tls)).await;
            let (loaded, files) = loaded.map_err(|error| invalid(error.to_string()))?;
            self.last_files.lock().extend(files);
            match loaded {
                // The rest of the new file still applies.
                Err(problem) if has_other_tls => {
                    warn!("server.tls: {problem}; the current certificates stay in use");
                }
                loaded => loaded.map_err(|problem| invalid(format!("server.tls: {problem}")))?,
            }
        }
        // Last, because a rejected file must not change the policy.
        self.publish_policy(&config, cause).await;
        self.adopt_newest(&mut config).map_err(invalid)?;
        self.log
            .apply(&config.log)
            .map_err(|error| invalid(error.to_string()))?;
        Ok(self.apply(&running, config).await)
    }

    /// Makes the file's policy that of the cluster, if this daemon leads.
    ///
    /// A changed file replaces the policy only if its own policy changed. So rotating a key in a file
    /// that differs from the policy does not replace it.
    async fn publish_policy(&self, config: &Config, cause: ReloadCause) {
        let Some(newest) = self.members.policy.newest() else {
            return;
        };
        let is_requested =
            cause != ReloadCause::FileChange || config.policy != self.config.load().policy;
        let differs = !newest.policy.differing(&config.policy).is_empty();
        if !is_requested || !differs || !self.engine.leads() {
            return;
        }
        let replaced = self.members.replace_policy(newest.version, &config.policy);
        if let Err(error) = replaced.await {
            // The rest of the file still applies.
            warn!(%error, "the cluster's policy stays: it cannot be written");
        }
    }

    /// Replaces the policy of a file by the cluster's.
    fn adopt_newest(&self, config: &mut Config) -> Result<(), String> {
        match self.members.policy.newest() {
            Some(newest) => config.adopt(newest.version, &newest.policy),
            None => Ok(()),
        }
    }

    /// Applies the newest policy of the cluster, if it does not apply yet.
    async fn adopt_policy(&self) -> Result<(), String> {
        let _turn = self.turn.lock().await;
        let running = self.config.load_full();
        let newest = self.members.policy.newest().map(|newest| newest.version);
        if running.policy_version == newest {
            return Ok(());
        }
        let mut config = Config::clone(&running);
        self.adopt_newest(&mut config)?;
        let ReloadReport { applied, .. } = self.apply(&running, config).await;
        info!(
            version = newest,
            ?applied,
            "another policy of the cluster applies"
        );
        Ok(())
    }

    /// Applies a valid configuration. Must be called by one task at a time.
    async fn apply(&self, running: &Config, mut config: Config) -> ReloadReport {
        self.engine.adopt(config.engine.clone());
        self.memories.adopt(config.memories.clone());
        // Revoke keys before ending sessions over the limits: that may take long.
        self.set_keys(running, &config);

        let difference = running.settings.difference(&config.settings);
        let mut applied = difference.at_once;
        if config.keys != running.keys && !applied.iter().any(|path| path == "tenants") {
            applied.push("tenants (changed keys)".to_owned());
        }
        let stays = |(path, value)| format!("{path}: stays {value} until the daemon restarts");
        let refused = difference.at_start.into_iter().map(stays).collect();
        let settings = std::mem::take(&mut config.settings);
        config.settings = settings.applied_to(&running.settings);
        self.published_settings.send_replace(config.digests());
        self.members.policy.compare(&config);
        self.config.store(Arc::new(config));
        self.engine.enforce_limits().await;
        ReloadReport { applied, refused }
    }

    /// Replaces the credentials if they have changed.
    ///
    /// Ends the streams of all watchers, and calls with a removed key.
    fn set_keys(&self, old: &Config, new: &Config) {
        if old.keys == new.keys && old.keyless == new.keyless {
            return;
        }
        // The engine has just adopted every tenant that a key names.
        let before = self.keyring.load_full();
        let next = Keyring::new(&new.keys, &new.keyless, &self.engine, Some(&before));
        if let Some(next) = next.map(Arc::new) {
            self.keyring.store(Arc::clone(&next));
            before.revoke(&next);
        }
    }

    /// Reloads the configuration if its files have changed.
    pub(crate) async fn catch_up(&self) {
        if self.path.is_some() && self.read_files().await.1 {
            // The outcome is logged. [`Self::follow_file`] reads a file again that is being
            // written.
            let _ = self.reload(ReloadCause::FileChange).await;
        }
    }

    /// Polls the configuration and secret files every second, and reloads on change.
    ///
    /// Also adopts a new policy of the cluster.
    ///
    /// Two polls in a row must return the same content, because a file may be half written.
    pub(crate) async fn follow_file(&self) {
        if self.path.is_none() {
            return std::future::pending().await;
        }
        let mut last = self.last_files.lock().clone();
        let mut rejected = None;
        loop {
            tokio::time::sleep(POLL_INTERVAL).await;
            if let Err(problem) = self.adopt_policy().await {
                if rejected.as_ref() != Some(&problem) {
                    error!(
                        problem,
                        "the previous policy stays in effect at this daemon"
                    );
                }
                rejected = Some(problem);
            }
            let (now, is_new) = self.read_files().await;
            if is_new && now == last {
                // The outcome is logged. A rejected file is tried again when it changes.
                let _ = self.reload(ReloadCause::FileChange).await;
            }
            last = now;
        }
    }

    /// Reads the files after a running reload. Returns whether they have changed.
    async fn read_files(&self) -> (FilesRead, bool) {
        let _turn = self.turn.lock().await;
        let last = self.last_files.lock().clone();
        let files = last.clone();
        let now = tokio::task::spawn_blocking(move || files.again())
            .await
            .unwrap_or_default();
        let is_new = now != last;
        (now, is_new)
    }
}
