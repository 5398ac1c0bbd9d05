//! Making room: the longest idle session ends, so that another one may start. Where more want
//! to start than there are places, they have their turns in their order.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use memoird_core::change::EndReason;

use super::Sessions;
use super::census::{Reservation, ReservedPlace};
use super::end::{EndAttempt, EndCondition, EndRequest, EndedSlot};
use super::expiry::{BATCH_SESSIONS, wait_for_ends};
use super::slot::Slot;
use crate::error::EngineError;
use crate::journal::Permit;
use crate::tenants::Tenant;

/// How long a session whose turn it is waits for a place.
const ROOM_WAIT_MAX: Duration = Duration::from_secs(2);

/// A place for a session that is to start.
enum Place {
    /// It was free.
    Free(ReservedPlace),
    /// It is this session's, whose end is not written yet.
    Freed(EndedSlot),
}

impl Sessions {
    /// Counts one more session of a tenant. Where a cap is reached, the longest idle session
    /// ends first; its end is a change set of its own, and is written when this returns.
    ///
    /// # Errors
    /// [`EngineError::NoRoomForSession`] when it was the caller's turn and no session could be
    /// evicted within [`ROOM_WAIT_MAX`], or a journal that cannot be written.
    pub(super) async fn reserve(&self, tenant: &Tenant) -> Result<ReservedPlace, EngineError> {
        if self.shared.cluster.is_some() {
            // Who leads sees to the caps, by what all daemons have started.
            self.shared.census.take_anyway(&tenant.id);
            return Ok(ReservedPlace::new(&self.shared.census, &tenant.id));
        }
        loop {
            let ended = match self.take_place(tenant).await? {
                Place::Free(place) => return Ok(place),
                Place::Freed(ended) => ended,
            };
            match ended.submitted.written().await {
                Ok(()) => {
                    if let Some(place) = ended.successor_place {
                        return Ok(place);
                    }
                }
                // The victim lives on; another one is looked for.
                Err(EngineError::SessionReloaded) => {}
                Err(error) => return Err(error),
            }
        }
    }

    async fn take_place(&self, tenant: &Tenant) -> Result<Place, EngineError> {
        let starters = &self.shared.starters;
        // Nearly always there is a place, or a session to evict, for everybody at once.
        if !starters.is_busy(&tenant.id)
            && let Some(place) = self.try_take_place(tenant).await?
        {
            return Ok(place);
        }
        let _turn = starters.enter(&tenant.id).await;
        let taken = async {
            loop {
                let changed = self.shared.census.changed.notified();
                if let Some(place) = self.try_take_place(tenant).await? {
                    return Ok(place);
                }
                changed.await;
            }
        };
        let taken = tokio::time::timeout(ROOM_WAIT_MAX, taken).await;
        taken.unwrap_or(Err(EngineError::NoRoomForSession))
    }

    /// Takes a place, and ends a session where it has to; `None` when every place is taken by a
    /// session that is about to start.
    async fn try_take_place(&self, tenant: &Tenant) -> Result<Option<Place>, EngineError> {
        let census = &self.shared.census;
        loop {
            let victims = match census.reserve(tenant) {
                Reservation::Taken => {
                    let place = ReservedPlace::new(census, &tenant.id);
                    return Ok(Some(Place::Free(place)));
                }
                Reservation::EvictFrom(victim) => census.idle_list(&victim),
            };
            let Some(oldest) = victims.oldest() else {
                return Ok(None);
            };
            let request = EndRequest {
                reason: EndReason::Evicted,
                // The list was released: it may have been used in between.
                condition: EndCondition::UnusedSince(oldest.last_access),
                successor: Some(&tenant.id),
            };
            let permit = self.shared.journal.permit(0).await?;
            match self.end_slot(&oldest.slot, request, permit) {
                EndAttempt::Ended(ended) => return Ok(Some(Place::Freed(ended))),
                EndAttempt::NotEnded => correct_list(&oldest.slot),
                EndAttempt::NeedsLoad => self.reload(&oldest.slot).await?,
            }
        }
    }

    /// Evicts what the caps do not allow, longest idle first: after they were lowered, or
    /// after an end was not written whose place was given away. In a cluster who leads does so within
    /// seconds.
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
                Some((slot, EndAttempt::NotEnded)) => correct_list(&slot),
                Some((slot, EndAttempt::NeedsLoad)) => self.load(&slot).await?,
            }
            if submitted.len() == BATCH_SESSIONS {
                wait_for_ends(&mut submitted).await?;
            }
        }
        wait_for_ends(&mut submitted).await
    }

    /// Tries to end one session that the caps do not allow; `None` where there is none. Of
    /// several that enforce the caps at once, each sees what the others ended.
    fn evict_surplus(
        &self,
        tenants: &[Arc<Tenant>],
        permit: Permit,
    ) -> Option<(Arc<Slot>, EndAttempt)> {
        let census = &self.shared.census;
        let enforcing = &self.shared.enforcing_caps;
        let _one_at_a_time = enforcing.lock().unwrap_or_else(PoisonError::into_inner);
        let tenant = census.overfull(tenants)?;
        let slot = census.idle_list(&tenant).oldest()?.slot;
        let attempt = self.end_slot(&slot, EndRequest::now(EndReason::Evicted), permit);
        Some((slot, attempt))
    }
}

/// A session at the front of its list may have been used since, and belongs elsewhere then.
pub(super) fn correct_list(slot: &Arc<Slot>) {
    let inner = slot.lock();
    if let Some(head) = inner.head() {
        slot.idle.reorder(slot, head);
    }
}
