//! Background maintenance.
//!
//! Writes recall events, continues interrupted forget jobs, rebuilds and merges indexes, deletes
//! expired documents and memories that expired long ago, and starts consolidations that are due.

use std::sync::Arc;
use std::time::Duration;

use memoird_core::ids::TenantId;
use memoird_core::time::Steady;
use memoird_engine::{WorkError, Worker};
use tokio::time::sleep;

use super::consolidation::Consolidation;
use crate::error::{FileError, MemoryError};
use crate::service::MemoryStorage;
use crate::store::time::before;
use crate::store::{MemoryReader, MemoryStore, MemoryWriter, is_scattered};

/// Time for which recall events are collected before a commit.
const COMPANY_WAIT: Duration = Duration::from_millis(200);
/// Interval between rounds over the tenants, for expired memories and due consolidations.
const ROUND_MS: u64 = 600_000;
/// One round in this many covers all tenants.
///
/// The others cover only tenants with work, if a single statement can list them, because
/// maintaining a tenant costs some ten transactions.
const ROUNDS_OF_ALL: u64 = 6;
/// Rows per step. A step delays the tenant's other writes.
const ROWS_MAX: usize = 500;
/// Pages of the word index to merge per step: half a MiB.
const MERGED_PAGES: usize = 1_024;

pub(super) struct MaintenanceWorker {
    storage: Arc<MemoryStorage>,
    consolidation: Consolidation,
    /// Tenants of the current round that are left.
    round: Vec<TenantId>,
    /// Start time of the next round.
    round_due: Steady,
    /// Number of rounds started.
    rounds: u64,
    /// Whether this daemon led when the last round started.
    leads: bool,
    /// Number of queued tenants whose events were collected long enough.
    ripe: usize,
    /// Whether this step serves the round before the queue.
    is_rounds_turn: bool,
}

impl MaintenanceWorker {
    pub(super) fn new(consolidation: Consolidation) -> Self {
        let storage = Arc::clone(&consolidation.storage);
        Self {
            round: Vec::new(),
            round_due: storage.engine.machine.now().steady,
            rounds: 0,
            leads: false,
            ripe: 0,
            is_rounds_turn: false,
            storage,
            consolidation,
        }
    }

    fn now(&self) -> Steady {
        self.storage.engine.machine.now().steady
    }

    fn is_round_due(&self) -> bool {
        let begins_to_lead = !self.leads && self.storage.leads();
        self.storage.is_on() && (begins_to_lead || self.round_due <= self.now())
    }

    fn put_off_round(&mut self) {
        self.round_due = Steady(self.now().0.saturating_add(ROUND_MS));
    }

    /// Starts a round over the tenants that have memories. Only the leading daemon runs it.
    async fn begin_round(&mut self) -> Result<(), MemoryError> {
        let leads = self.storage.leads();
        let is_of_all = !self.leads || self.rounds.is_multiple_of(ROUNDS_OF_ALL);
        if leads {
            self.round = if is_of_all {
                self.storage.tenants().await?
            } else {
                let kept = self.storage.config().expired_kept;
                let expired_before = before(self.storage.now(), kept);
                self.storage.tenants_due(expired_before).await?
            };
        }
        if leads && (!self.leads || self.storage.are_shared()) {
            for tenant in &self.round {
                // A crash of this or another daemon may have left unfinished work.
                self.storage.state(tenant).leave_unfinished();
                self.storage.embedding.add(tenant);
            }
        }
        self.leads = leads;
        self.put_off_round();
        self.rounds += 1;
        if leads {
            let stopping = self.storage.engine.stopping();
            tokio::select! {
                made = self.storage.run(MemoryStore::make_vector_indexes) => made?,
                // This may take long. On shutdown the database continues alone, and the next round
                // drops an index that was not completed.
                () = stopping.cancelled() => {}
            }
        }
        Ok(())
    }

    async fn maintain(&self, tenant: &TenantId, is_round: bool) -> Result<(), MemoryError> {
        self.storage.flush(tenant).await?;
        let state = self.storage.state(tenant);
        if state.take_unfinished() {
            let finished = self.finish_work(tenant).await;
            if !matches!(finished, Ok(true)) {
                state.leave_unfinished();
            }
            if !finished? {
                return Err(FileError::LogInUse.into());
            }
        }
        if is_round {
            self.remove_expired(tenant).await?;
            self.merge_words(tenant).await?;
            // Not in the first round after the start, when the daemon is busy.
            if self.rounds > 1 {
                self.consolidation.run_when_due(tenant).await?;
            }
        }
        Ok(())
    }
}

impl Worker for MaintenanceWorker {
    fn name(&self) -> &'static str {
        "memory-keeper"
    }

    async fn wait(&mut self) {
        if self.is_round_due() || self.ripe > 0 || !self.round.is_empty() {
            return;
        }
        let pause = Duration::from_millis(self.round_due.since(self.now()));
        let queue = &self.storage.maintenance;
        let mut others = self.storage.engine.cluster().cloned();
        let begins_to_lead = async {
            match others.as_mut().filter(|_| !self.leads) {
                Some(cluster) => cluster.lead().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = queue.wait() => {
                sleep(COMPANY_WAIT).await;
                self.ripe = queue.len();
            }
            () = sleep(pause) => {}
            () = begins_to_lead => {}
        }
    }

    async fn step(&mut self) -> Result<(), WorkError> {
        if !self.storage.is_on() {
            self.put_off_round();
            return Ok(());
        }
        // Alternate, because a tenant that fails is queued again at once.
        self.is_rounds_turn = !self.is_rounds_turn;
        let queue = &self.storage.maintenance;
        let has_round = !self.round.is_empty() || self.is_round_due();
        let is_round = queue.len() == 0 || self.is_rounds_turn && has_round;
        let next = if is_round {
            self.round.pop()
        } else {
            self.ripe = self.ripe.saturating_sub(1);
            queue.take()
        };
        let Some(tenant) = next else {
            return Ok(self.begin_round().await?);
        };
        let maintained = self.maintain(&tenant, is_round).await;
        if maintained.is_err() {
            self.storage.maintenance.add(&tenant);
        }
        Ok(maintained?)
    }

    async fn finish(&mut self) {
        while let Some(tenant) = self.storage.maintenance.take() {
            if let Err(error) = self.maintain(&tenant, false).await {
                tracing::warn!(%error, %tenant, "not all of its recalls are written down");
            }
        }
    }
}

/// The work on one tenant.
impl MaintenanceWorker {
    /// Continues all interrupted work of a tenant, and computes missing checksums. Returns `false` if the WAL is not truncated yet.
    async fn finish_work(&self, tenant: &TenantId) -> Result<bool, MemoryError> {
        self.consolidation.forgetting.finish_jobs(tenant).await?;
        let erased = self.storage.truncate_log(tenant).await?;
        let mut is_moved = false;
        loop {
            let step = |writer: &MemoryWriter<'_>| writer.words_step(ROWS_MAX);
            let left = self.storage.write(tenant, step).await?;
            if left == 0 {
                break;
            }
            is_moved = true;
            tracing::info!(%tenant, left, "words of memories are indexed anew");
        }
        if is_moved {
            tracing::info!(%tenant, "all words of memories are indexed anew");
        }
        loop {
            let now = self.storage.now();
            let left = self
                .storage
                .write(tenant, move |writer| writer.reindex_step(ROWS_MAX, now))
                .await?;
            if left == 0 {
                break;
            }
        }
        loop {
            let step = |writer: &MemoryWriter<'_>| writer.checksums_step(ROWS_MAX);
            if self.storage.write(tenant, step).await? == 0 {
                break;
            }
        }
        self.storage.embedding.add(tenant);
        Ok(erased)
    }

    /// Merges a word index with many segments in steps, so that other writes can run in between.
    async fn merge_words(&self, tenant: &TenantId) -> Result<(), MemoryError> {
        let read = |reader: &MemoryReader<'_>| reader.word_segments();
        if !is_scattered(self.storage.read(tenant, read).await?) {
            return Ok(());
        }
        let merge = |writer: &MemoryWriter<'_>| writer.merge_words_step(MERGED_PAGES);
        while self.storage.write(tenant, merge).await? {}
        Ok(())
    }

    /// Deletes expired documents, and memories that expired long ago.
    async fn remove_expired(&self, tenant: &TenantId) -> Result<(), MemoryError> {
        let now = self.storage.now();
        let expire = move |writer: &MemoryWriter<'_>| writer.expire_documents(now, ROWS_MAX);
        while self.storage.write(tenant, expire).await? > 0 {}
        let expired_before = before(now, self.storage.config().expired_kept);
        let cursors_before = before(now, self.storage.engine.retention());
        loop {
            let removed = self
                .storage
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
