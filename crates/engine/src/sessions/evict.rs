//! Eviction: at a cap, the longest idle session ends so that another one can start.
//!
//! If no session can be evicted at once, the starts of a tenant wait in order of arrival.

use std::sync::Arc;
use std::time::Duration;

use memoird_core::change::EndReason;

use super::census::{ReserveOutcome, SessionReservation};
use super::end::{EndAttempt, EndCondition, EndRequest};
use super::expiry::{ENDS_PER_BATCH, wait_for_ends};
use super::handle::Sessions;
use super::slot::Slot;
use crate::error::EngineError;
use crate::journal::{Permit, Submitted};
use crate::tenants::Tenant;

/// How long the first start in a tenant's line waits for room.
const ROOM_WAIT_MAX: Duration = Duration::from_secs(2);

/// Room for a session that is to start, and the end of the evicted one, if it is not yet written.
type StartReservation = (Arc<SessionReservation>, Option<Submitted>);

impl Sessions {
    /// Reserves room for a session of `tenant`, evicting the longest idle one at a cap.
    ///
    /// The eviction is a change set of its own, and is written before this returns. Fails with
    /// [`EngineError::NoRoomForSession`] if no session could be evicted within [`ROOM_WAIT_MAX`]
    /// once the call was first in line.
    pub(super) async fn reserve(
        &self,
        tenant: &Tenant,
    ) -> Result<Arc<SessionReservation>, EngineError> {
        if self.shared.cluster.is_some() {
            // The leader enforces the caps, based on the sessions of all daemons.
            self.shared.census.count_unconditionally(&tenant.id);
            return Ok(SessionReservation::new(&self.shared.census, &tenant.id));
        }
        loop {
            let (reservation, evicted) = self.reserve_or_evict(tenant).await?;
            let Some(evicted) = evicted else {
                return Ok(reservation);
            };
            match evicted.written().await {
                Ok(()) => return Ok(reservation),
                // The victim stays live. Find another one.
                Err(EngineError::SessionReloaded) => {}
                Err(error) => return Err(error),
            }
        }
    }

    async fn reserve_or_evict(&self, tenant: &Tenant) -> Result<StartReservation, EngineError> {
        let starters = &self.shared.starters;
        // Fast path: nearly always there is room, or a session to evict.
        if !starters.is_busy(&tenant.id)
            && let Some(reservation) = self.try_reserve_or_evict(tenant).await?
        {
            return Ok(reservation);
        }
        let _turn = starters.enter(&tenant.id).await;
        let taking = async {
            loop {
                let changed = self.shared.census.changed.notified();
                if let Some(reservation) = self.try_reserve_or_evict(tenant).await? {
                    return Ok(reservation);
                }
                changed.await;
            }
        };
        let taken = tokio::time::timeout(ROOM_WAIT_MAX, taking).await;
        taken.unwrap_or(Err(EngineError::NoRoomForSession))
    }

    /// Reserves room, evicting a session if needed.
    ///
    /// Returns `None` if all room is reserved for sessions that are about to start.
    async fn try_reserve_or_evict(
        &self,
        tenant: &Tenant,
    ) -> Result<Option<StartReservation>, EngineError> {
        let census = &self.shared.census;
        loop {
            let victims = match census.reserve(tenant) {
                ReserveOutcome::Reserved => {
                    let reservation = SessionReservation::new(census, &tenant.id);
                    return Ok(Some((reservation, None)));
                }
                ReserveOutcome::EvictFrom(victim) => self.shared.table.orders(&victim),
            };
            let Some(oldest) = victims.oldest() else {
                return Ok(None);
            };
            let request = EndRequest {
                // The session may have been used after the lock on the orders was released.
                condition: EndCondition::UnusedSince(oldest.used.at),
                successor: Some(&tenant.id),
                ..EndRequest::now(EndReason::Evicted)
            };
            let permit = self.shared.journal.permit(0).await?;
            match self.end_slot(&oldest.slot, request, permit) {
                EndAttempt::Ended(ended) => {
                    let reservation = ended.successor_reservation;
                    return Ok(reservation.map(|reserved| (reserved, Some(ended.submitted))));
                }
                EndAttempt::NotEnded => correct_place(&oldest.slot),
                EndAttempt::NeedsLoad => self.reload(&oldest.slot, None).await?,
            }
        }
    }

    /// Evicts sessions above the caps, longest idle first.
    ///
    /// They exceed the caps after these are lowered, or when an end was not written after its room
    /// was reassigned. Does nothing in a cluster, where the leader evicts within seconds.
    pub(crate) async fn enforce_caps(&self) -> Result<(), EngineError> {
        if self.shared.cluster.is_some() {
            return Ok(());
        }
        let tenants = self.shared.tenants.all();
        let mut submitted = Vec::new();
        loop {
            let permit = self.shared.journal.permit(0).await?;
            match self.evict_surplus(&tenants, permit) {
                None => break,
                Some((_, EndAttempt::Ended(ended))) => submitted.push(ended.submitted),
                Some((slot, EndAttempt::NotEnded)) => correct_place(&slot),
                Some((slot, EndAttempt::NeedsLoad)) => self.load(&slot, None).await?,
            }
            if submitted.len() == ENDS_PER_BATCH {
                wait_for_ends(&mut submitted).await?;
            }
        }
        wait_for_ends(&mut submitted).await
    }

    /// Tries to end one session above the caps. Returns `None` if there is none.
    ///
    /// Serialized, so that concurrent callers see what the others ended.
    fn evict_surplus(
        &self,
        tenants: &[Arc<Tenant>],
        permit: Permit,
    ) -> Option<(Arc<Slot>, EndAttempt)> {
        let census = &self.shared.census;
        let _one_at_a_time = self.shared.enforcing_caps.lock();
        let tenant = census.overfull(tenants)?;
        let slot = self.shared.table.orders(&tenant).oldest()?.slot;
        let attempt = self.end_slot(&slot, EndRequest::now(EndReason::Evicted), permit);
        Some((slot, attempt))
    }
}

/// Moves a session to its place if it was used since it became the longest idle one.
pub(super) fn correct_place(slot: &Arc<Slot>) {
    slot.lock().relist(slot, false);
}
