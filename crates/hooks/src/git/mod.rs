//! The git hook: every session that ended becomes a readable file and a file of its
//! turns in a repository of its tenant, one commit for each batch of ends.
//!
//! The work is done on blocking threads, one delivery at a time for each repository; see
//! `deliver` for its order. [`Checkpoints`] reads what was written.

mod config;
mod deliver;
mod delta;
mod error;
mod existing;
mod heads;
mod jsonl;
mod lock;
mod log;
mod markdown;
mod message;
mod names;
mod pack;
mod read;
mod repo;
mod tree;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use memoird_core::ids::TenantId;
use memoird_core::time::Timestamp;
use memoird_engine::{Hook, HookCall, HookError, HookFuture, SessionContent};

pub use config::GitConfig;
pub use error::GitError;
pub use heads::{Head, heads};
use lock::Stop;
pub use log::LogEntry;
pub use read::{CheckpointEntry, Checkpoints};

/// Commits ended sessions to a repository of their tenant.
#[derive(Debug)]
pub struct GitHook {
    config: Arc<GitConfig>,
    /// One delivery at a time for each repository; as many as there are tenants.
    busy: Mutex<HashMap<TenantId, Arc<tokio::sync::Mutex<()>>>>,
}

impl GitHook {
    /// A hook that is to be set up as [`GitConfig::problem`] finds no fault with.
    pub fn new(config: GitConfig) -> Self {
        Self {
            config: Arc::new(config),
            busy: Mutex::default(),
        }
    }

    async fn deliver_all(&self, calls: Vec<HookCall>) -> Vec<Result<(), HookError>> {
        let at = calls.iter().map(|call| call.at).max().unwrap_or_default();
        let mut batches: HashMap<&TenantId, Vec<Arc<SessionContent>>> = HashMap::new();
        for call in &calls {
            let batch = batches.entry(&call.content.tenant).or_default();
            batch.push(Arc::clone(&call.content));
        }
        let mut results = HashMap::new();
        for (tenant, batch) in batches {
            let result = self.deliver_batch(tenant.clone(), batch, at).await;
            results.insert(tenant, result);
        }
        let answer = |call: &HookCall| results.get(&call.content.tenant).cloned();
        calls.iter().filter_map(answer).collect()
    }

    async fn deliver_batch(
        &self,
        tenant: TenantId,
        batch: Vec<Arc<SessionContent>>,
        at: Timestamp,
    ) -> Result<(), HookError> {
        let guard = self.busy_of(&tenant).lock_owned().await;
        let config = Arc::clone(&self.config);
        let stop = StopOnDrop::default();
        let stopped = stop.0.clone();
        let work = aside(move || {
            // The repository is free again when this thread is done with it, not when
            // somebody stops waiting for the thread.
            let _guard = guard;
            let batch: Vec<&SessionContent> = batch.iter().map(|ended| &**ended).collect();
            deliver::deliver(&config, &tenant, &batch, at, &stopped)
        });
        match work.await {
            Some(result) => result.map_err(HookError::from),
            None => Err(HookError::later(
                "the commit was broken off; see the daemon's log",
            )),
        }
    }

    fn busy_of(&self, tenant: &TenantId) -> Arc<tokio::sync::Mutex<()>> {
        let mut busy = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(busy.entry(tenant.clone()).or_default())
    }
}

impl Hook for GitHook {
    fn batch_max(&self) -> usize {
        self.config.batch_max
    }

    fn batch_wait(&self) -> Duration {
        self.config.batch_wait
    }

    fn deliver(&self, calls: Vec<HookCall>) -> HookFuture<'_> {
        Box::pin(self.deliver_all(calls))
    }
}

/// Behind those who wait for an answer: the work of a thousand ends takes half a second of
/// a core, and nobody misses it.
const NICENESS: i32 = 10;

/// Does it on a thread of its own that gives way to others. `None` when it panicked, or
/// there was no thread to have.
async fn aside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (sender, answer) = tokio::sync::oneshot::channel();
    let named = std::thread::Builder::new().name("git hook".to_owned());
    let spawned = named.spawn(move || {
        // Of this thread only, on Linux; where it is refused, the work is done all the same.
        #[cfg(target_os = "linux")]
        let _ = rustix::process::nice(NICENESS);
        // Whoever asked may have gone.
        let _ = sender.send(work());
    });
    match spawned {
        Ok(_) => answer.await.ok(),
        Err(error) => {
            tracing::warn!(%error, "there is no thread for a commit");
            None
        }
    }
}

/// Stops the work when nobody waits for it any more.
#[derive(Default)]
struct StopOnDrop(Stop);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.stop();
    }
}
