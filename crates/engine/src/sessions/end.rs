//! Ending a generation: it is marked under the session's lock, written, and removed from the table.

use std::sync::Arc;

use memoird_core::change::{Change, EndReason};
use memoird_core::idempotency::{Fingerprint, IdempotencyKey, KeyRecord};
use memoird_core::ids::{Generation, SessionId, SessionKey, TenantId};
use memoird_core::session::{Head, Session};
use memoird_core::time::{Now, Steady};

use super::census::SessionReservation;
use super::freshness::ObservedVersion;
use super::handle::{ATTEMPTS_MAX, SessionRef, Sessions};
use super::slot::{Slot, SlotInner, SlotState};
use super::view::SessionView;
use crate::error::EngineError;
use crate::journal::{Permit, Submitted};
use crate::outbox::Ending;
use crate::tenants::Tenant;

/// A generation that ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndedSession {
    pub tenant: TenantId,
    pub session: SessionId,
    pub generation: Generation,
    pub reason: EndReason,
}

/// The `EndSession` command, and the part of `ResetSession` that ends a generation.
#[derive(Clone, Copy, Debug, Default)]
pub struct EndCommand {
    /// Fail unless this is the live generation.
    pub expected_generation: Option<Generation>,
    pub idempotency: Option<IdempotencyKey>,
}

#[derive(Clone, Debug)]
pub struct EndOutcome {
    /// The session before its end, or after a reset.
    ///
    /// `None` for a duplicate of an end, and for a duplicate of a reset if the session has since
    /// ended.
    pub session: Option<SessionView>,
    /// Generation that ended, by this command or by the original one.
    pub ended_generation: Generation,
    /// Whether the idempotency key was already used, so that nothing was changed.
    pub duplicate: bool,
}

impl EndOutcome {
    pub(crate) fn duplicate(record: &KeyRecord, session: Option<SessionView>) -> Self {
        Self {
            session,
            ended_generation: record.generation,
            duplicate: true,
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct EndRequest<'a> {
    pub(super) reason: EndReason,
    pub(super) condition: EndCondition,
    pub(super) successor: Option<&'a TenantId>,
    /// Recorded with the end. The session must be loaded then, with its keys.
    pub(super) idempotency: Option<IdempotencyKey>,
}

/// Condition for ending a session, checked under its lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EndCondition {
    Always,
    /// Not used after this time.
    UnusedSince(Steady),
    /// Expired, and not used after this time.
    ExpiredSince(Steady),
    /// This is the live generation, and it is being erased. No hook runs.
    Erased(Generation),
}

#[derive(Debug)]
pub(super) enum EndAttempt {
    Ended(EndedSlot),
    /// It has already ended, or does not meet the condition.
    NotEnded,
    NeedsLoad,
}

#[derive(Debug)]
pub(super) struct EndedSlot {
    pub(super) ended: EndedSession,
    pub(super) submitted: Submitted,
    /// Reservation of the session that replaces it.
    pub(super) successor_reservation: Option<Arc<SessionReservation>>,
}

impl EndRequest<'_> {
    pub(super) fn now(reason: EndReason) -> Self {
        Self {
            reason,
            condition: EndCondition::Always,
            successor: None,
            idempotency: None,
        }
    }

    /// Ends the session if it is expired and was not used after `last_access`.
    pub(super) fn expired_since(last_access: Steady) -> Self {
        Self {
            condition: EndCondition::ExpiredSince(last_access),
            ..Self::now(EndReason::Expired)
        }
    }
}

impl Sessions {
    /// Ends a session if the condition holds under its lock.
    pub(super) fn end_slot(
        &self,
        slot: &Arc<Slot>,
        request: EndRequest<'_>,
        permit: Permit,
    ) -> EndAttempt {
        let mut inner = slot.lock();
        let Some(head) = inner.head() else {
            return if inner.has_ended() {
                EndAttempt::NotEnded
            } else {
                EndAttempt::NeedsLoad
            };
        };
        let may_end = match request.condition {
            EndCondition::Always => true,
            EndCondition::UnusedSince(moment) => head.last_access <= moment,
            EndCondition::ExpiredSince(moment) => {
                head.last_access <= moment
                    && head.is_expired(self.now().steady, slot.tenant.ttl_ms(head))
            }
            EndCondition::Erased(generation) => head.generation == generation,
        };
        if !may_end {
            return EndAttempt::NotEnded;
        }
        match self.submit_end(slot, &mut inner, request, permit) {
            Some(ended) => EndAttempt::Ended(ended),
            None => EndAttempt::NotEnded,
        }
    }

    /// Ends a session whose lock is held. Returns `None` if not even its head is in memory.
    pub(super) fn submit_end(
        &self,
        slot: &Arc<Slot>,
        inner: &mut SlotInner,
        request: EndRequest<'_>,
        permit: Permit,
    ) -> Option<EndedSlot> {
        let successor = request.successor;
        let at = self.now();
        let named = inner.session_mut().and_then(|session| {
            let limits = &slot.tenant.policy().limits;
            let last_seq = session.head().last_seq;
            session.use_key(request.idempotency, last_seq, limits, at)
        });
        let head = inner.head()?;
        let reason = if head.is_expired(at.steady, slot.tenant.ttl_ms(head)) {
            EndReason::Expired
        } else {
            request.reason
        };
        let ended = EndedSession {
            tenant: slot.key.tenant.clone(),
            session: slot.key.session.clone(),
            generation: head.generation,
            reason,
        };
        let end = match request.condition {
            EndCondition::Erased(_) => head.end(reason, at, Arc::default(), named),
            _ => {
                let ending = Ending {
                    key: &slot.key,
                    head,
                    session: inner.session(),
                    reason,
                    at,
                };
                self.end_change(ending, named)
            }
        };
        let successor_reservation =
            successor.map(|tenant| SessionReservation::new(&self.shared.census, tenant));
        let submitted = self.submit(
            slot,
            inner,
            permit,
            vec![end],
            successor_reservation.clone(),
        );
        let previous = self.mark_ended(slot, inner, successor);
        if let (SlotState::Loaded(mut session), false) = (previous, self.shared.journal.is_on())
            && let Some(keys) = session.take_keys()
        {
            self.shared.ended_keys.insert(&slot.key, keys);
        }
        Some(EndedSlot {
            ended,
            submitted,
            successor_reservation,
        })
    }

    /// The change that ends a generation, with its pending deliveries.
    ///
    /// A generation without turns and state, as after a reset, has no deliveries.
    pub(super) fn end_change(
        &self,
        ending: Ending<'_>,
        named: Option<(Fingerprint, KeyRecord)>,
    ) -> Change {
        let outbox = &self.shared.outbox;
        let is_empty = ending.head.last_seq == 0 && ending.head.state_version == 0;
        let hooks_to_call = if is_empty {
            Arc::default()
        } else {
            outbox.hooks_for_end(&ending.key.tenant, ending.reason)
        };
        if !hooks_to_call.is_empty() {
            outbox.session_ending(&ending, &hooks_to_call);
        }
        let Ending { reason, at, .. } = ending;
        ending.head.end(reason, at, hooks_to_call, named)
    }

    /// Removes a session from the orders and the counts. Returns its previous state.
    ///
    /// Must be called under its lock, so that slot, orders and counts agree. A successor takes over
    /// its count.
    pub(super) fn mark_ended(
        &self,
        slot: &Arc<Slot>,
        inner: &mut SlotInner,
        successor: Option<&TenantId>,
    ) -> SlotState {
        let census = &self.shared.census;
        let tenant = &slot.tenant.id;
        match (inner.unlist(slot), successor) {
            (true, Some(successor)) => census.transfer(tenant, successor),
            (true, None) => census.release(tenant),
            (false, Some(successor)) => census.count_unconditionally(successor),
            (false, None) => {}
        }
        // With a journal, the slot stays in the table until the end is written, so that callers can
        // wait for it.
        if !self.shared.journal.is_on() {
            self.shared.table.remove(slot);
        }
        inner.set_state(&slot.tenant, SlotState::Ended)
    }

    /// Ends a live generation that is being erased, without hooks.
    ///
    /// Returns whether this call ended it.
    pub(crate) async fn end_without_hooks(
        &self,
        session: &SessionRef,
        generation: Generation,
    ) -> Result<bool, EngineError> {
        let request = EndRequest {
            condition: EndCondition::Erased(generation),
            ..EndRequest::now(EndReason::Ended)
        };
        for _ in 0..ATTEMPTS_MAX {
            let Some(slot) = self.find(session).await? else {
                return Ok(false);
            };
            let permit = self.shared.journal.permit(0).await?;
            match self.end_slot(&slot, request, permit) {
                EndAttempt::Ended(ended) => match ended.submitted.written().await {
                    Err(EngineError::SessionReloaded) => {}
                    written => return written.map(|()| true),
                },
                EndAttempt::NotEnded => {
                    let seen = ObservedVersion::new(&slot.lock());
                    let is_so = match seen {
                        // Another daemon may have started the generation in question.
                        Some(seen) => self.is_current(&slot, seen).await?,
                        None => self.has_durably_ended(&slot).await,
                    };
                    if is_so {
                        return Ok(false);
                    }
                }
                EndAttempt::NeedsLoad => self.load(&slot, None).await?,
            }
        }
        Err(EngineError::RetriesExhausted)
    }

    /// Heads of a tenant's live sessions in memory.
    pub(crate) fn live_heads(&self, tenant: &Tenant) -> Vec<(SessionId, Head)> {
        let slots = self.shared.table.orders(&tenant.id).slots();
        let head = |slot: &Arc<Slot>| {
            let head = slot.lock().head().cloned()?;
            Some((slot.key.session.clone(), head))
        };
        slots.iter().filter_map(head).collect()
    }

    /// Removes the idempotency keys retained for an ended session without a journal.
    ///
    /// Returns their number.
    pub(crate) fn forget_ended_keys(&self, session: &SessionRef) -> u64 {
        self.shared.ended_keys.remove(&session.key)
    }

    /// Waits until the observed end of a session is durable. Returns false if it was not written.
    pub(super) async fn has_durably_ended(&self, slot: &Slot) -> bool {
        let ticket = slot.lock().ticket;
        self.shared.journal.wait_durable(ticket).await;
        slot.lock().has_ended()
    }

    /// Ends a generation with a reset, and starts the next one in the same session.
    ///
    /// `named` is an idempotency key that the session has recorded for this command.
    pub(super) fn restart(
        &self,
        session: &mut Session,
        key: &SessionKey,
        run_hooks: bool,
        named: Option<(Fingerprint, KeyRecord)>,
        at: Now,
    ) -> Vec<Change> {
        let reason = EndReason::Reset;
        let head = session.head();
        let end = if run_hooks {
            let ending = Ending {
                key,
                head,
                session: Some(session),
                reason,
                at,
            };
            self.end_change(ending, named)
        } else {
            head.end(reason, at, Arc::default(), named)
        };
        let (mut fresh, begin) = self.begin(key, at);
        if let Some(keys) = session.take_keys() {
            fresh.set_keys(keys);
        }
        // Options are set on the session and outlive a reset.
        let options = session
            .head()
            .options
            .clone()
            .map(|options| fresh.set_options(options));
        *session = fresh;
        [end, begin].into_iter().chain(options).collect()
    }
}
