//! Ending expired sessions: by the sweeper, or by the call that finds one first.

use std::sync::Arc;
use std::time::Duration;

use memoird_core::ids::TenantId;
use tracing::debug;

use super::end::{EndAttempt, EndRequest, EndedSession};
use super::evict::correct_list;
use super::slot::Slot;
use super::{SessionRef, Sessions};
use crate::error::EngineError;
use crate::journal::Submitted;
use crate::machine::Stopwatch;
use crate::tenants::Tenant;
use crate::worker::{WorkError, Worker};

/// Sessions that are ended before the sweep waits for the journal: enough that a sweep makes
/// progress, and few enough that the appends beside them do not wait for long.
pub(super) const BATCH_SESSIONS: usize = 128;

/// How often to sweep while there is no tenant.
const SWEEP_MS_DEFAULT: u64 = 60_000;

/// The worker that sweeps, as often as the tenant with the shortest interval needs.
pub(super) struct Sweeper {
    sessions: Sessions,
    /// True at the start, when much may have expired, and when the last sweep failed: the next
    /// one does not wait for the whole interval.
    is_overdue: bool,
}

impl Sweeper {
    pub(super) fn new(sessions: Sessions) -> Self {
        Self {
            sessions,
            is_overdue: true,
        }
    }
}

impl Worker for Sweeper {
    fn name(&self) -> &'static str {
        "sweeper"
    }

    async fn wait(&mut self) {
        if self.is_overdue {
            return;
        }
        // Another policy may ask for a shorter pause.
        let changed = self.sessions.shared.census.policies_changed.notified();
        let pause = Duration::from_millis(self.sessions.sweep_pause_ms());
        let _ = tokio::time::timeout(pause, changed).await;
    }

    async fn step(&mut self) -> Result<(), WorkError> {
        self.is_overdue = true;
        let failed = |error: EngineError| WorkError(error.to_string());
        // There may be more than the caps allow, when there was no room to end it before.
        self.sessions.enforce_caps().await.map_err(failed)?;
        let ended = self.sessions.sweep(None).await.map_err(failed)?;
        self.is_overdue = false;
        if !ended.is_empty() {
            debug!(sessions = ended.len(), "expired sessions ended");
        }
        Ok(())
    }
}

impl Sessions {
    /// Ends every session past its TTL, of one tenant or of all. The cost grows with what
    /// there is to end, not with the number of sessions; in a cluster also with what the journal has
    /// to sort.
    ///
    /// # Errors
    /// When the journal cannot be written.
    pub async fn sweep(&self, only: Option<&TenantId>) -> Result<Vec<EndedSession>, EngineError> {
        if self.shared.cluster.is_some() {
            return self.sweep_journal(only).await;
        }
        let mut ended = Vec::new();
        for tenant in self.shared.tenants.all() {
            if only.is_some_and(|only| *only != tenant.id) {
                continue;
            }
            while self.sweep_batch(&tenant, &mut ended).await? == BATCH_SESSIONS {}
        }
        Ok(ended)
    }

    /// How often to sweep, as the tenant with the shortest interval needs.
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
        let idle = self.shared.census.idle_list(&tenant.id);
        let policy = tenant.policy();
        idle.set_classes(policy.ttl_classes.keys());
        let mut submitted = Vec::new();
        while submitted.len() < BATCH_SESSIONS {
            let now = self.now().steady;
            let ttl_ms = |class: Option<&str>| policy.class_ttl_ms(class);
            let Some(oldest) = idle.expired(now, ttl_ms) else {
                break;
            };
            let permit = self.shared.journal.permit(0).await?;
            let request = EndRequest::expired_since(oldest.last_access);
            match self.end_slot(&oldest.slot, request, permit) {
                EndAttempt::Ended(done) => {
                    submitted.push(done.submitted);
                    ended.push(done.ended);
                }
                EndAttempt::NotEnded => correct_list(&oldest.slot),
                EndAttempt::NeedsLoad => self.load(&oldest.slot).await?,
            }
        }
        let count = submitted.len();
        wait_for_ends(&mut submitted).await?;
        Ok(count)
    }

    /// A session past its TTL is dead from that instant: ends it. True when it was.
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
            // Another call used or ended it in between.
            EndAttempt::NotEnded | EndAttempt::NeedsLoad => {
                let has_ended = slot.lock().has_ended();
                Ok(has_ended && self.has_durably_ended(slot).await)
            }
        }
    }

    /// True when the session that is asked for lives, as far as memory knows.
    pub(super) fn is_live(&self, session: &SessionRef) -> bool {
        let slot = self.shared.table.get(&session.key);
        slot.is_some_and(|slot| !slot.lock().has_ended())
    }
}

/// Waits until ends are written, and after a full batch twice as long again: the appends
/// beside a sweep have most of the journal's time to themselves.
pub(super) async fn wait_for_ends(submitted: &mut Vec<Submitted>) -> Result<(), EngineError> {
    let watch = Stopwatch::start();
    let is_full = submitted.len() >= BATCH_SESSIONS;
    for end in submitted.drain(..) {
        end.written().await?;
    }
    if is_full {
        tokio::time::sleep(watch.elapsed() * 2).await;
    }
    Ok(())
}
