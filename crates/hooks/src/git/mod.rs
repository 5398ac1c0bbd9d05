//! The git hook commits ended sessions to one repository per tenant.
//!
//! Each session becomes a Markdown file and a file of its turns, with one commit per batch. The
//! work runs on blocking threads, one delivery per repository at a time; see `deliver`.
//! [`Checkpoints`] reads the files.

mod branch_tips;
mod config;
mod deliver;
mod erase;
mod error;
mod history;
mod jsonl;
mod links;
mod lock;
mod log;
mod markdown;
mod message;
mod names;
mod new_file;
mod objects;
mod packs;
mod progress;
mod read;
mod repo;
mod sweep;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use memoird_core::ids::TenantId;
use memoird_core::time::Timestamp;
use memoird_engine::{
    EraseFuture, EraseRequest, ErasedElsewhere, Hook, HookCall, HookError, HookFuture,
    SessionContent, run_in_background,
};

pub use branch_tips::{BranchTip, branch_tips};
pub use config::{EraseMode, GitConfig};
pub use erase::EraseStep;
pub use error::GitError;
use lock::CancelSignal;
pub use log::LogEntry;
pub use read::{CheckpointEntry, Checkpoints};

/// Commits ended sessions to a repository of their tenant.
#[derive(Debug)]
pub struct GitHook {
    config: Arc<GitConfig>,
    erase_step: EraseStep,
    /// A lock per tenant, for one delivery per repository at a time.
    busy: Mutex<HashMap<TenantId, Arc<tokio::sync::Mutex<()>>>>,
}

impl GitHook {
    /// Creates a hook. [`GitConfig::problem`] must have returned `None`.
    pub fn new(config: GitConfig) -> Self {
        Self::with_erase_step(config, EraseStep::default())
    }

    /// Creates a hook with other limits for the steps of its erasures.
    pub fn with_erase_step(config: GitConfig, erase_step: EraseStep) -> Self {
        Self {
            config: Arc::new(config),
            erase_step,
            busy: Mutex::default(),
        }
    }

    async fn deliver_all(&self, calls: Vec<HookCall>) -> Vec<Result<(), HookError>> {
        let at = calls.iter().map(|call| call.at).max().unwrap_or_default();
        let is_first = calls.iter().all(|call| call.attempt <= 1);
        let mut batches: HashMap<&TenantId, Vec<Arc<SessionContent>>> = HashMap::new();
        for call in &calls {
            let batch = batches.entry(&call.content.tenant).or_default();
            batch.push(Arc::clone(&call.content));
        }
        let mut results = HashMap::new();
        for (tenant, batch) in batches {
            let result = self
                .deliver_batch(tenant.clone(), batch, at, is_first)
                .await;
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
        is_first: bool,
    ) -> Result<(), HookError> {
        let guard = self.busy_of(&tenant).lock_owned().await;
        let config = Arc::clone(&self.config);
        let (_waiting, stop) = CancelSignal::on_drop();
        let work = run_in_background("git hook", move || {
            // The thread holds the lock, so that an aborted delivery keeps it until the thread has
            // ended.
            let _guard = guard;
            let batch: Vec<&SessionContent> = batch.iter().map(|ended| &**ended).collect();
            deliver::deliver(&config, &tenant, &batch, at, is_first, &stop)
        });
        match work.await {
            Some(result) => result.map_err(HookError::from),
            None => Err(HookError::later("the commit failed; see the daemon's log")),
        }
    }

    async fn erase_all(&self, request: EraseRequest) -> Result<ErasedElsewhere, String> {
        let guard = self.busy_of(&request.tenant).lock_owned().await;
        let (config, step) = (Arc::clone(&self.config), self.erase_step);
        let (_waiting, stop) = CancelSignal::on_drop();
        let work = run_in_background("git hook", move || {
            let _guard = guard;
            erase::erase(&config, &request, step, &stop)
        });
        match work.await {
            Some(result) => result.map_err(|error| error.to_string()),
            None => Err("the erasure failed; see the daemon's log".to_owned()),
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

    fn erase(&self, request: EraseRequest) -> Option<EraseFuture<'_>> {
        Some(Box::pin(self.erase_all(request)))
    }
}
