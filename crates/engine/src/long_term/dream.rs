//! The dream sweep: once in a while memories are looked at by how they were recalled, and
//! those that proved themselves are pinned.

use std::sync::Arc;
use std::time::Duration;

use memoird_core::ids::TenantId;
use memoird_core::memory::Pin;
use memoird_core::memory::dream::{DreamPlan, Evidence, plan};
use memoird_core::time::Timestamp;
use memoird_store::long_term::{DreamRow, ForgetFilter, MemoryReader};
use tracing::info;

use super::lane::Touch;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::tenant::{Tenant, ms};
use crate::worker::{WorkError, Worker};

/// Memories of one read.
const PAGE_MAX: usize = 1_000;
/// The pause between two looks for tenants whose sweep is due; a sweep is late by no more.
const LOOK_MAX: Duration = Duration::from_secs(600);

/// The worker that sweeps when it is time.
pub(crate) struct Dreamer {
    engine: Engine,
    /// Tenants of this look that were not asked yet.
    tenants: Vec<TenantId>,
}

impl Dreamer {
    pub(crate) fn new(engine: Engine) -> Self {
        Self {
            engine,
            tenants: Vec::new(),
        }
    }
}

impl Worker for Dreamer {
    fn name(&self) -> &'static str {
        "dreamer"
    }

    async fn wait(&mut self) {
        if self.tenants.is_empty() {
            tokio::time::sleep(LOOK_MAX).await;
        }
    }

    async fn step(&mut self) -> Result<(), WorkError> {
        let work_error = |error: EngineError| WorkError(format!("{error:?}"));
        let interval = self.engine.shared.config.load().long_term.dream_interval;
        let Some(interval) = interval.filter(|_| self.engine.shared.long_term.is_on()) else {
            self.tenants.clear();
            return Ok(());
        };
        let Some(id) = self.tenants.pop() else {
            self.tenants = self.engine.memory_tenants().await.map_err(work_error)?;
            return Ok(());
        };
        let tenant = self.engine.tenant_or_common(&id);
        #[expect(
            clippy::redundant_closure_for_method_calls,
            reason = "it is of one lifetime"
        )]
        let last = self
            .engine
            .read_memories(&tenant, |reader| reader.dream_last_at())
            .await;
        let last = last.map_err(work_error)?;
        let now_ms = self.engine.shared.machine.now().wall.as_ms();
        let interval_ms = i64::try_from(ms(interval)).unwrap_or(i64::MAX);
        // A clock that went back does not put sweeps off for good.
        let is_due = last.is_none_or(|last| (now_ms - last.as_ms()).abs() >= interval_ms);
        if is_due {
            self.engine
                .dream_of(&tenant, false)
                .await
                .map_err(work_error)?;
        }
        Ok(())
    }
}

impl Engine {
    /// Consolidates the memories of one tenant, or of all that have any; gives a report for
    /// each, a JSON object.
    ///
    /// # Errors
    /// A store that cannot be read or written.
    pub async fn dream(
        &self,
        tenant: Option<&TenantId>,
        dry_run: bool,
    ) -> Result<Vec<(TenantId, String)>, EngineError> {
        let tenants = match tenant {
            Some(tenant) => vec![tenant.clone()],
            None => self.memory_tenants().await?,
        };
        let mut reports = Vec::with_capacity(tenants.len());
        for id in tenants {
            let report = self.dream_of(&self.tenant_or_common(&id), dry_run).await?;
            reports.push((id, report));
        }
        Ok(reports)
    }

    /// Sweeps one tenant. Cut off anywhere, the next sweep finds what is left to do: it goes
    /// by what the memories and their recalls say.
    async fn dream_of(&self, tenant: &Arc<Tenant>, dry_run: bool) -> Result<String, EngineError> {
        let now = self.shared.machine.now().wall;
        let evidence = self.evidence(tenant, now).await?;
        let settings = self.shared.config.load().long_term.dream.clone();
        let plan = plan(&evidence, now, &settings);
        if !dry_run {
            self.carry_out(tenant, &plan, now).await?;
            info!(
                tenant = %tenant.id,
                considered = evidence.len(),
                pinned = plan.promote.len(),
                unpinned = plan.demote.len(),
                deleted = plan.delete.len(),
                "a dream sweep is done"
            );
        }
        Ok(plan.report(now, &settings).to_string())
    }

    /// All current memories, with what their recalls say.
    async fn evidence(
        &self,
        tenant: &Tenant,
        now: Timestamp,
    ) -> Result<Vec<Evidence>, EngineError> {
        let (mut evidence, mut after) = (Vec::new(), None);
        loop {
            let read = move |reader: &MemoryReader<'_>| reader.dream_page(after, PAGE_MAX, now);
            let page = self.read_memories(tenant, read).await?;
            let Some(last) = page.last() else {
                return Ok(evidence);
            };
            after = Some(last.memory.id);
            evidence.extend(page.iter().map(evidence_of));
        }
    }

    async fn carry_out(
        &self,
        tenant: &Tenant,
        plan: &DreamPlan,
        now: Timestamp,
    ) -> Result<(), EngineError> {
        let (promote, demote) = (plan.promote.clone(), plan.demote.clone());
        let promoted = self
            .write_memories(tenant, move |writer| {
                let promoted = writer.pin(&promote, Pin::Dream, now)?;
                writer.unpin(&demote, now)?;
                writer.set_dream_last_at(now)?;
                Ok((promoted, Touch::All))
            })
            .await?;
        tenant.stats.memories.count_promoted(promoted as u64);
        for &id in &plan.delete {
            let filter = ForgetFilter::One { id, subject: None };
            match self.forget_all(tenant, filter, now).await {
                // Somebody else may have been quicker.
                Ok(_) | Err(EngineError::Core(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

fn evidence_of(row: &DreamRow) -> Evidence {
    Evidence {
        id: row.memory.id,
        kind: row.memory.kind,
        pin: row.memory.pin,
        pin_changed_at: row.pin_changed_at,
        created_at: row.memory.created_at,
        updated_at: row.memory.updated_at,
        recalls: row.recalls,
        distinct_queries: row.queries,
        distinct_days: row.days,
        last_recall: row.last.or(row.memory.recalled_at),
        mean_score: row.score_mean,
    }
}
