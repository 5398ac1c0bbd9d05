//! Maintenance, which nobody waits for: events of recalls are written, forgetting that was
//! cut off goes on, indexes are built anew, what expired long ago is removed.

use std::time::Duration;

use memoird_core::ids::TenantId;
use memoird_engine::{WorkError, Worker};

use crate::error::{FileError, MemoryError};
use crate::files::time::before;
use crate::service::Memories;

/// Events of recalls wait so long for others: a commit each would be one too many.
const COMPANY_WAIT: Duration = Duration::from_millis(200);
/// How often all tenants are looked at for what expired.
const ROUND: Duration = Duration::from_secs(600);
/// Rows of one step: other writes of the tenant wait no longer than that takes.
const ROWS_MAX: usize = 500;

/// The worker that does it.
pub(super) struct MaintenanceWorker {
    memories: Memories,
    /// Tenants of a round that were not looked at yet.
    round: Vec<TenantId>,
    /// Tenants whose events waited long enough, and are written one after the other.
    ripe: usize,
    is_first: bool,
}

impl MaintenanceWorker {
    pub(super) fn new(memories: Memories) -> Self {
        Self {
            memories,
            round: Vec::new(),
            ripe: 0,
            is_first: true,
        }
    }

    /// Begins a round over all tenants that have memories.
    async fn begin_round(&mut self) -> Result<(), MemoryError> {
        self.round = self.memories.tenants().await?;
        if std::mem::take(&mut self.is_first) {
            for tenant in &self.round {
                // A crash may have left anything.
                self.memories.state(tenant).leave_unfinished();
                self.memories.shared.embedding.add(tenant);
            }
        }
        Ok(())
    }

    async fn maintain(&self, tenant: &TenantId, is_round: bool) -> Result<(), MemoryError> {
        self.memories.flush(tenant).await?;
        let state = self.memories.state(tenant);
        if state.take_unfinished() {
            let finished = self.memories.finish(tenant).await;
            if !matches!(finished, Ok(true)) {
                state.leave_unfinished();
            }
            if !finished? {
                return Err(FileError::LogInUse.into());
            }
        }
        if is_round {
            self.memories.remove_expired(tenant).await?;
        }
        Ok(())
    }
}

impl Worker for MaintenanceWorker {
    fn name(&self) -> &'static str {
        "memory-keeper"
    }

    async fn wait(&mut self) {
        if self.is_first || self.ripe > 0 || !self.round.is_empty() {
            return;
        }
        let queue = &self.memories.shared.maintenance;
        tokio::select! {
            () = queue.wait() => {
                tokio::time::sleep(COMPANY_WAIT).await;
                self.ripe = queue.len();
            }
            () = tokio::time::sleep(ROUND) => {}
        }
    }

    async fn step(&mut self) -> Result<(), WorkError> {
        if !self.memories.is_on() {
            self.is_first = false;
            return Ok(());
        }
        self.ripe = self.ripe.saturating_sub(1);
        let queued = self.memories.shared.maintenance.take();
        let is_round = queued.is_none();
        let Some(tenant) = queued.or_else(|| self.round.pop()) else {
            return Ok(self.begin_round().await?);
        };
        let maintained = self.maintain(&tenant, is_round).await;
        if maintained.is_err() {
            self.memories.shared.maintenance.add(&tenant);
        }
        Ok(maintained?)
    }

    async fn finish(&mut self) {
        while let Some(tenant) = self.memories.shared.maintenance.take() {
            if let Err(error) = self.maintain(&tenant, false).await {
                tracing::warn!(%error, %tenant, "not all of its recalls are written down");
            }
        }
    }
}

impl Memories {
    /// Goes on with all that was cut off. False when the log still has to be emptied.
    async fn finish(&self, tenant: &TenantId) -> Result<bool, MemoryError> {
        let erased = self.finish_forgetting(tenant).await?;
        loop {
            let now = self.now();
            let left = self
                .write(tenant, move |writer| writer.reindex_step(ROWS_MAX, now))
                .await?;
            if left == 0 {
                break;
            }
        }
        self.shared.embedding.add(tenant);
        Ok(erased)
    }

    /// Removes what expired so long ago that nobody may ask for it any more.
    async fn remove_expired(&self, tenant: &TenantId) -> Result<(), MemoryError> {
        let now = self.now();
        let expired_before = before(now, self.config().expired_kept);
        let cursors_before = before(now, self.shared.engine.retention());
        loop {
            let removed = self
                .write(tenant, move |writer| {
                    let memories = writer.expire_step(expired_before, ROWS_MAX)?;
                    let cursors = writer.prune_cursors(cursors_before, ROWS_MAX)?;
                    Ok(memories.max(cursors))
                })
                .await?;
            if removed < ROWS_MAX {
                return Ok(());
            }
        }
    }
}
