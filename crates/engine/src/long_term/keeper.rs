//! What nobody waits for: notes of recalls are written, forgetting that was cut off goes on,
//! indexes are built anew, what expired long ago is removed.

use std::sync::Arc;
use std::time::Duration;

use memoird_core::ids::TenantId;
use memoird_core::time::Timestamp;

use super::forget::Unfinished;
use super::lane::Touch;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::tenant::{Tenant, ms};
use crate::worker::{WorkError, Worker};

/// Notes of recalls wait so long for company: a commit each would be one too many.
const COMPANY_WAIT: Duration = Duration::from_millis(200);
/// How often all tenants are looked at for what expired.
const ROUND: Duration = Duration::from_secs(600);
/// Rows of one step: other writes of the tenant wait no longer than that takes.
const ROWS_MAX: usize = 500;

/// The worker that does it.
pub(crate) struct Keeper {
    engine: Engine,
    /// Tenants of a round that were not looked at yet.
    round: Vec<TenantId>,
    /// Tenants whose notes had company for long enough, and are written one after the other.
    ripe: usize,
    is_first: bool,
}

impl Keeper {
    pub(crate) fn new(engine: Engine) -> Self {
        Self {
            engine,
            round: Vec::new(),
            ripe: 0,
            is_first: true,
        }
    }

    /// Begins a round over all tenants that have memories.
    async fn begin_round(&mut self) -> Result<(), EngineError> {
        self.round = self.engine.memory_tenants().await?;
        let first = std::mem::take(&mut self.is_first);
        for tenant in self.round.iter().filter(|_| first) {
            // A crash may have left anything.
            self.engine.shared.long_term.lane(tenant).leave_unfinished();
            self.engine.shared.long_term.wake_embedder(tenant);
        }
        Ok(())
    }

    async fn keep(&self, id: &TenantId, is_round: bool) -> Result<(), EngineError> {
        let engine = &self.engine;
        let tenant = engine.tenant_or_common(id);
        engine.flush_memories(&tenant).await?;
        let lane = engine.shared.long_term.lane(id);
        if lane.take_unfinished() {
            let finished = engine.finish(&tenant).await;
            if !matches!(finished, Ok(true)) {
                lane.leave_unfinished();
            }
            if !finished? {
                let detail = "somebody reads memories: their log is emptied later".to_owned();
                return Err(EngineError::MemoriesFailed { detail });
            }
        }
        if is_round {
            engine.expire_memories(&tenant).await
        } else {
            Ok(())
        }
    }
}

impl Worker for Keeper {
    fn name(&self) -> &'static str {
        "memory-keeper"
    }

    async fn wait(&mut self) {
        if self.is_first || self.ripe > 0 || !self.round.is_empty() {
            return;
        }
        let chores = &self.engine.shared.long_term.keeper;
        tokio::select! {
            () = chores.wait() => {
                tokio::time::sleep(COMPANY_WAIT).await;
                self.ripe = chores.len();
            }
            () = tokio::time::sleep(ROUND) => {}
        }
    }

    async fn step(&mut self) -> Result<(), WorkError> {
        let work_error = |error: EngineError| WorkError(format!("{error:?}"));
        if !self.engine.shared.long_term.is_on() {
            self.is_first = false;
            return Ok(());
        }
        let chores = &self.engine.shared.long_term.keeper;
        self.ripe = self.ripe.saturating_sub(1);
        let (id, is_round) = match (chores.take(), self.round.pop()) {
            (Some(id), next) => {
                self.round.extend(next);
                (id, false)
            }
            (None, Some(id)) => (id, true),
            (None, None) => return self.begin_round().await.map_err(work_error),
        };
        self.keep(&id, is_round).await.map_err(|error| {
            self.engine.shared.long_term.wake_keeper(&id);
            work_error(error)
        })
    }

    async fn finish(&mut self) {
        while let Some(id) = self.engine.shared.long_term.keeper.take() {
            if let Err(error) = self.keep(&id, false).await {
                tracing::warn!(%error, tenant = %id, "not all of its recalls are written down");
            }
        }
    }
}

impl Engine {
    /// The tenants that have memories.
    pub(super) async fn memory_tenants(&self) -> Result<Vec<TenantId>, EngineError> {
        let long_term = &self.shared.long_term;
        let store = Arc::clone(long_term.store()?);
        let tenants = long_term.blocking.run(move || store.tenants()).await?;
        tenants.map_err(|error| EngineError::of_memories(&error))
    }

    /// Goes on with all that was cut off. False when the log still has to be emptied.
    async fn finish(&self, tenant: &Tenant) -> Result<bool, EngineError> {
        let erased = self.finish_forgetting(tenant).await?;
        loop {
            let now = self.shared.machine.now().wall;
            let left = self
                .write_memories(tenant, move |writer| {
                    Ok((writer.reindex_step(ROWS_MAX, now)?, Touch::Nothing))
                })
                .await?;
            if left == 0 {
                break;
            }
        }
        self.shared.long_term.wake_embedder(&tenant.id);
        Ok(erased)
    }

    /// Removes what expired so long ago that nobody may ask for it any more.
    async fn expire_memories(&self, tenant: &Tenant) -> Result<(), EngineError> {
        let config = self.shared.config.load_full();
        let now_ms = self.shared.machine.now().wall.as_ms();
        let before = |kept: Duration| {
            let kept_ms = i64::try_from(ms(kept)).unwrap_or(i64::MAX);
            Timestamp::from_ms(now_ms.saturating_sub(kept_ms))
        };
        let expired_before = before(config.long_term.expired_kept);
        let cursors_before = before(config.journal.retention);
        loop {
            let removed = self
                .write_memories(tenant, move |writer| {
                    let memories = writer.expire_step(expired_before, ROWS_MAX)?;
                    let cursors = writer.prune_cursors(cursors_before, ROWS_MAX)?;
                    let touch = if memories == 0 {
                        Touch::Nothing
                    } else {
                        Touch::All
                    };
                    Ok((memories.max(cursors), touch))
                })
                .await?;
            if removed < ROWS_MAX {
                return Ok(());
            }
        }
    }

    /// Builds the indexes anew, in the background; says how many wait for an embedding.
    ///
    /// # Errors
    /// A store that cannot be written.
    pub async fn reindex_memories(&self, tenant: &Arc<Tenant>) -> Result<u64, EngineError> {
        // Not done here: dropped, also with the call, it is left to the keeper.
        let _unfinished = Unfinished::new(self, &tenant.id, None);
        let begun = self
            .write_memories(tenant, |writer| {
                writer.reindex_begin()?;
                Ok(((), Touch::Nothing))
            })
            .await;
        begun?;
        let stats = self.memory_stats(tenant).await?;
        Ok(if stats.embedding_model.is_some() {
            stats.memories
        } else {
            0
        })
    }
}
