//! Consolidation: pins memories that are recalled often enough. Users know it as the dream sweep.
//!
//! The maintenance worker starts it when it is due.

use std::sync::Arc;

use memoird_core::ids::TenantId;
use memoird_core::time::Timestamp;
use tracing::info;

use crate::error::MemoryError;
use crate::requests::ForgetRequest;
use crate::rules::Pin;
use crate::rules::consolidation::{ConsolidationPlan, Evidence, plan};
use crate::service::{Forgetting, MemoryStorage};
use crate::store::MemoryReader;
use crate::store::time::ms;

/// Memories per read.
const PAGE_MAX: usize = 1_000;

/// Consolidations. Clones share their state.
#[derive(Clone, Debug)]
pub struct Consolidation {
    pub(super) storage: Arc<MemoryStorage>,
    pub(super) forgetting: Forgetting,
}

impl Consolidation {
    pub(crate) fn new(forgetting: Forgetting) -> Self {
        Self {
            storage: Arc::clone(&forgetting.storage),
            forgetting,
        }
    }

    /// Consolidates the memories of a tenant if the configured interval has passed.
    pub(super) async fn run_when_due(&self, tenant: &TenantId) -> Result<(), MemoryError> {
        let Some(interval) = self.storage.config().consolidation_interval else {
            return Ok(());
        };
        let read = |reader: &MemoryReader<'_>| reader.consolidated_at();
        let last = self.storage.read(tenant, read).await?;
        let now_ms = self.storage.now().as_ms();
        // A clock that was set back must not delay it indefinitely.
        let is_due = last.is_none_or(|last| (now_ms - last.as_ms()).abs() >= ms(interval));
        if is_due {
            self.run_tenant(tenant, false).await?;
        }
        Ok(())
    }

    /// Consolidates one tenant, or all tenants that have memories.
    ///
    /// Returns a report per tenant, as a JSON object.
    pub async fn run(
        &self,
        tenant: Option<&TenantId>,
        dry_run: bool,
    ) -> Result<Vec<(TenantId, String)>, MemoryError> {
        let tenants = match tenant {
            Some(tenant) => vec![tenant.clone()],
            None => self.storage.tenants().await?,
        };
        let mut reports = Vec::with_capacity(tenants.len());
        for tenant in tenants {
            let report = self.run_tenant(&tenant, dry_run).await?;
            reports.push((tenant, report));
        }
        Ok(reports)
    }

    /// Consolidates one tenant.
    ///
    /// If it is interrupted, the next sweep completes it, because a plan only depends on the
    /// memories and their recalls.
    async fn run_tenant(&self, tenant: &TenantId, dry_run: bool) -> Result<String, MemoryError> {
        let now = self.storage.now();
        let evidence = self.evidence(tenant, now).await?;
        let settings = self.storage.config().consolidation.clone();
        let plan = plan(&evidence, now, &settings);
        if !dry_run {
            self.carry_out(tenant, &plan, &evidence, now).await?;
            info!(
                %tenant,
                considered = evidence.len(),
                pinned = plan.promote.len(),
                unpinned = plan.demote.len(),
                deleted = plan.delete.len(),
                "a dream sweep is done"
            );
        }
        Ok(plan.report(now, &settings).to_string())
    }

    /// Reads the evidence of all current memories.
    async fn evidence(
        &self,
        tenant: &TenantId,
        now: Timestamp,
    ) -> Result<Vec<Evidence>, MemoryError> {
        let (mut evidence, mut after) = (Vec::new(), None);
        loop {
            let read = move |reader: &MemoryReader<'_>| reader.evidence_page(after, PAGE_MAX, now);
            let page = self.storage.read(tenant, read).await?;
            let Some(last) = page.last() else {
                return Ok(evidence);
            };
            after = Some(last.id);
            evidence.extend(page);
        }
    }

    async fn carry_out(
        &self,
        tenant: &TenantId,
        plan: &ConsolidationPlan,
        evidence: &[Evidence],
        now: Timestamp,
    ) -> Result<(), MemoryError> {
        let (promote, demote) = (plan.promote.clone(), plan.demote.clone());
        let promoted = self
            .storage
            .write(tenant, move |writer| {
                let promoted = writer.pin(&promote, Pin::Consolidation, now)?;
                writer.unpin(&demote, now)?;
                writer.set_consolidated_at(now)?;
                Ok(promoted)
            })
            .await?;
        let state = self.storage.state(tenant);
        state.counters().promoted += promoted as u64;
        let is_over = |one: &&Evidence| plan.delete.binary_search(&one.id).is_ok();
        for one in evidence.iter().filter(is_over) {
            let unused = ForgetRequest::Unused(one.clone());
            match self.forgetting.forget_all(tenant, unused, now).await {
                // It was used or forgotten in the meantime.
                Err(error) if !error.is_refusal() => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}
