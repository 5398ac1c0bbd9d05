//! Expiry: sessions past their TTL are ended by the sweeper, or by the first call that finds one.

use std::sync::Arc;
use std::time::Duration;

use memoird_core::ids::TenantId;
use tracing::debug;

use super::end::{EndAttempt, EndRequest, EndedSession};
use super::evict::correct_place;
use super::handle::{SessionRef, Sessions};
use super::slot::Slot;
use crate::error::EngineError;
use crate::journal::Submitted;
use crate::machine::Stopwatch;
use crate::tenants::Tenant;
use crate::worker::{WorkError, Worker};

/// Maximum ends that a sweep submits before it waits for the journal.
///
/// Few enough that concurrent appends are not delayed for long.
pub(super) const ENDS_PER_BATCH: usize = 128;

/// Sweep interval while there is no tenant.
const SWEEP_MS_DEFAULT: u64 = 60_000;

/// Worker that ends expired sessions. In a cluster, only the leader's sweeps.
pub(super) struct Sweeper {
    sessions: Sessions,
}

impl Sweeper {
    pub(super) fn new(sessions: Sessions) -> Self {
        Self { sessions }
    }
}

impl Worker for Sweeper {
    fn name(&self) -> &'static str {
        "sweeper"
    }

    async fn wait(&mut self) {
        let sessions = &self.sessions;
        sessions.wait_to_lead(&sessions.shared.sweep_due).await;
        // A policy change may shorten the pause.
        let changed = sessions.shared.census.policies_changed.notified();
        let pause = sessions.shared.sweep_due.remaining(sessions.now().steady);
        let _ = tokio::time::timeout(pause, changed).await;
    }

    async fn step(&mut self) -> Result<(), WorkError> {
        if !self.sessions.leads() {
            return Ok(());
        }
        // Sessions may exceed the caps if they could not be evicted before.
        self.sessions.enforce_caps().await?;
        let ended = self.sessions.sweep(None).await?;
        let pause = Duration::from_millis(self.sessions.sweep_pause_ms());
        let now = self.sessions.now().steady;
        self.sessions.shared.sweep_due.set(now, pause);
        if !ended.is_empty() {
            debug!(sessions = ended.len(), "expired sessions ended");
        }
        Ok(())
    }
}

impl Sessions {
    /// Ends every session past its TTL, of one tenant or of all.
    ///
    /// The cost depends on the number of expired sessions, not on the number of live ones. In a
    /// cluster, the journal additionally sorts the live sessions.
    ///
    /// # Errors
    /// If the journal cannot be written.
    pub async fn sweep(&self, only: Option<&TenantId>) -> Result<Vec<EndedSession>, EngineError> {
        if self.shared.cluster.is_some() {
            return self.sweep_journal(only).await;
        }
        let mut ended = Vec::new();
        for tenant in self.shared.tenants.all() {
            if only.is_some_and(|only| *only != tenant.id) {
                continue;
            }
            while self.sweep_batch(&tenant, &mut ended).await? == ENDS_PER_BATCH {}
        }
        Ok(ended)
    }

    /// Shortest sweep interval of any tenant.
    pub(super) fn sweep_pause_ms(&self) -> u64 {
        let tenants = self.shared.tenants.all();
        let shortest_ms = tenants.iter().map(|tenant| tenant.policy().sweep_ms).min();
        shortest_ms.unwrap_or(SWEEP_MS_DEFAULT)
    }

    async fn sweep_batch(
        &self,
        tenant: &Arc<Tenant>,
        ended: &mut Vec<EndedSession>,
    ) -> Result<usize, EngineError> {
        let orders = self.shared.table.orders(&tenant.id);
        let policy = tenant.policy();
        let mut submitted = Vec::new();
        while submitted.len() < ENDS_PER_BATCH {
            let now = self.now().steady;
            let ttl_ms = |class: Option<&str>| policy.class_ttl_ms(class);
            let Some(oldest) = orders.expired(now, ttl_ms) else {
                break;
            };
            let permit = self.shared.journal.permit(0).await?;
            let request = EndRequest::expired_since(oldest.used.at);
            match self.end_slot(&oldest.slot, request, permit) {
                EndAttempt::Ended(done) => {
                    submitted.push(done.submitted);
                    ended.push(done.ended);
                }
                EndAttempt::NotEnded => correct_place(&oldest.slot),
                EndAttempt::NeedsLoad => self.load(&oldest.slot, None).await?,
            }
        }
        let count = submitted.len();
        wait_for_ends(&mut submitted).await?;
        Ok(count)
    }

    /// Ends a session if it is past its TTL: from that instant it counts as ended.
    ///
    /// Returns whether it has ended.
    pub(super) async fn end_if_expired(&self, slot: &Arc<Slot>) -> Result<bool, EngineError> {
        let now = self.now().steady;
        let last_access = {
            let inner = slot.lock();
            let expired = inner
                .head()
                .filter(|head| head.is_expired(now, slot.tenant.ttl_ms(head)));
            expired.map(|head| head.last_access)
        };
        let Some(last_access) = last_access else {
            return Ok(false);
        };
        let permit = self.shared.journal.permit(0).await?;
        match self.end_slot(slot, EndRequest::expired_since(last_access), permit) {
            EndAttempt::Ended(ended) => ended.submitted.written().await.map(|()| true),
            // A concurrent call used or ended it.
            EndAttempt::NotEnded | EndAttempt::NeedsLoad => {
                let has_ended = slot.lock().has_ended();
                Ok(has_ended && self.has_durably_ended(slot).await)
            }
        }
    }

    /// Whether the session is live, as far as this process knows.
    pub(super) fn is_live(&self, session: &SessionRef) -> bool {
        let slot = self.shared.table.get(&session.key);
        slot.is_some_and(|slot| !slot.lock().has_ended())
    }
}

/// Waits until ends are written. After a full batch, also sleeps for twice as long.
///
/// This leaves most of the journal's throughput to concurrent appends.
pub(super) async fn wait_for_ends(submitted: &mut Vec<Submitted>) -> Result<(), EngineError> {
    let watch = Stopwatch::start();
    let is_full = submitted.len() >= ENDS_PER_BATCH;
    for end in submitted.drain(..) {
        end.written().await?;
    }
    if is_full {
        tokio::time::sleep(watch.elapsed() * 2).await;
    }
    Ok(())
}
