//! Ending what nobody used: the sweeper, and whoever meets an expired session first.

use std::sync::Arc;
use std::time::Duration;

use memoird_core::change::EndReason;
use memoird_core::ids::TenantId;
use tracing::debug;

use crate::append::Attempt;
use crate::cell::SessionCell;
use crate::end::EndedSession;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::journal::Submitted;
use crate::machine::Stopwatch;
use crate::tenant::Tenant;
use crate::worker::{WorkError, Worker};

/// Sessions that are ended before the sweep waits for the disk: so many, that a sweep gets
/// on, and so few, that the appends beside them do not wait for long.
const SWEEP_BATCH: usize = 128;

/// The worker that sweeps, as often as the tenant with the shortest interval needs.
pub(crate) struct Sweeper {
    pub(crate) engine: Engine,
    /// True when the last sweep was cut off: the next one comes after a pause, not after
    /// the whole interval.
    pub(crate) is_overdue: bool,
}

impl Worker for Sweeper {
    fn name(&self) -> &'static str {
        "sweeper"
    }

    async fn wait(&mut self) {
        if self.is_overdue {
            return;
        }
        let changed = self.engine.shared.policies_changed.notified();
        let shortest = self
            .engine
            .tenants()
            .iter()
            .map(|tenant| tenant.policy().sweep_ms)
            .min();
        // Another policy may ask for a shorter pause.
        let _ =
            tokio::time::timeout(Duration::from_millis(shortest.unwrap_or(60_000)), changed).await;
    }

    async fn step(&mut self) -> Result<(), WorkError> {
        self.is_overdue = true;
        let failed = |error: EngineError| WorkError(error.to_string());
        // There may be more than the caps allow, when there was no room to end it before.
        self.engine.enforce_caps().await.map_err(failed)?;
        let ended = self.engine.sweep(None).await.map_err(failed)?;
        self.is_overdue = false;
        if !ended.is_empty() {
            debug!(sessions = ended.len(), "expired sessions ended");
        }
        Ok(())
    }
}

impl Engine {
    /// Ends every session past its TTL, of one tenant or of all. Costs what there is to
    /// end, however many sessions live.
    ///
    /// # Errors
    /// When the journal cannot be written.
    pub async fn sweep(&self, only: Option<&TenantId>) -> Result<Vec<EndedSession>, EngineError> {
        let mut ended = Vec::new();
        for tenant in self.tenants() {
            if only.is_some_and(|only| *only != tenant.id) {
                continue;
            }
            while self.sweep_batch(&tenant, &mut ended).await? == SWEEP_BATCH {}
        }
        Ok(ended)
    }

    async fn sweep_batch(
        &self,
        tenant: &Arc<Tenant>,
        ended: &mut Vec<EndedSession>,
    ) -> Result<usize, EngineError> {
        let mut submitted = Vec::new();
        let mut permit = None;
        while submitted.len() < SWEEP_BATCH {
            let now = self.shared.machine.now().steady;
            let Some(oldest) = tenant.idle.oldest() else {
                break;
            };
            if now.since(oldest.last_access) < tenant.ttl_ms() {
                break;
            }
            if permit.is_none() {
                permit = Some(self.shared.journal.permit(0).await?);
            }
            let idle_since = Some(oldest.last_access);
            match self.end_cell(&oldest.cell, EndReason::Expired, idle_since, &mut permit)? {
                Attempt::Done((_, session), write) => {
                    submitted.push(write);
                    ended.push(session);
                }
                Attempt::Gone => self.look_again(&oldest.cell),
                _ => self.load(&oldest.cell).await?,
            }
        }
        let count = submitted.len();
        written(&mut submitted).await?;
        Ok(count)
    }

    /// A session stood at the front of the list and was not expired after all.
    fn look_again(&self, cell: &Arc<SessionCell>) {
        let last_access = cell.lock().head().map(|head| head.last_access);
        if let Some(last_access) = last_access {
            cell.tenant.idle.touch(cell, last_access);
        }
    }

    /// A session past its TTL is dead from that instant: ends it. True when it was.
    pub(crate) async fn end_if_expired(
        &self,
        cell: &Arc<SessionCell>,
    ) -> Result<bool, EngineError> {
        let now = self.shared.machine.now().steady;
        let idle_since = {
            let inner = cell.lock();
            let expired = inner
                .head()
                .filter(|head| head.is_expired(now, cell.tenant.ttl_ms()));
            expired.map(|head| head.last_access)
        };
        if idle_since.is_none() {
            return Ok(false);
        }
        let mut permit = Some(self.shared.journal.permit(0).await?);
        match self.end_cell(cell, EndReason::Expired, idle_since, &mut permit)? {
            Attempt::Done(_, submitted) => submitted.written().await.map(|()| true),
            // Somebody used it, or ended it, in between.
            _ => Ok(cell.lock().is_gone() && self.is_gone_for_good(cell).await),
        }
    }

    /// Evicts what the caps do not allow, longest idle first: after they were lowered, or
    /// after the end of a session was not written whose place was given away.
    pub(crate) async fn enforce_caps(&self) -> Result<(), EngineError> {
        let tenants = self.tenants();
        let mut submitted = Vec::new();
        while let Some(id) = self
            .shared
            .capacity
            .overfull(tenants.iter().map(|tenant| &**tenant))
        {
            let Some(oldest) = self.tenant_or_common(&id).idle.oldest() else {
                break;
            };
            let mut permit = Some(self.shared.journal.permit(0).await?);
            match self.end_cell(&oldest.cell, EndReason::Evicted, None, &mut permit)? {
                Attempt::Done(_, write) => submitted.push(write),
                Attempt::Gone => self.look_again(&oldest.cell),
                _ => self.load(&oldest.cell).await?,
            }
            if submitted.len() == SWEEP_BATCH {
                written(&mut submitted).await?;
            }
        }
        written(&mut submitted).await
    }
}

/// Waits for the disk, and after a full batch twice as long again: the appends beside a
/// sweep have most of the journal's time to themselves.
async fn written(submitted: &mut Vec<Submitted>) -> Result<(), EngineError> {
    let (watch, is_full) = (Stopwatch::start(), submitted.len() >= SWEEP_BATCH);
    for write in submitted.drain(..) {
        write.written().await?;
    }
    if is_full {
        tokio::time::sleep(watch.elapsed() * 2).await;
    }
    Ok(())
}
