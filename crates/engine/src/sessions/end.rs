//! How a generation ends: marked under its session's lock, written, taken out of the table.

use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hashlink::LinkedHashMap;
use memoird_core::change::{Change, EndReason};
use memoird_core::idempotency::Keys;
use memoird_core::ids::{Generation, HookName, SessionId, SessionKey, TenantId};
use memoird_core::session::{Head, Session};
use memoird_core::time::{Now, Steady};

use super::census::ReservedPlace;
use super::freshness::SeenVersion;
use super::slot::{Slot, SlotInner, SlotState};
use super::{ATTEMPTS_MAX, SessionRef, Sessions, Submission};
use crate::error::EngineError;
use crate::journal::{Permit, Submitted};
use crate::tenants::Tenant;

/// A generation that ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndedSession {
    /// Whose it was.
    pub tenant: TenantId,
    /// The bot's own id of it.
    pub session: SessionId,
    /// Which generation.
    pub generation: Generation,
    /// Why it ended.
    pub reason: EndReason,
}

/// Acts on the ends of sessions.
pub(crate) trait EndListener: Debug + Send + Sync + 'static {
    /// The hooks that are owed a delivery for this end.
    fn owed_hooks(&self, tenant: &TenantId, reason: EndReason) -> Arc<[HookName]>;

    /// Gets a session that ends, under its lock. Without a journal its content is nowhere else.
    fn ending(&self, ending: &Ending<'_>, owed: &[HookName]);

    /// Deliveries are owed that were not before, and the journal has them.
    fn deliveries_owed(&self);
}

/// A session that ends, as far as it is in memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ending<'a> {
    pub(crate) key: &'a SessionKey,
    pub(crate) head: &'a Head,
    /// All of it, where it is loaded.
    pub(crate) session: Option<&'a Session>,
    pub(crate) reason: EndReason,
    pub(crate) at: Now,
}

/// Why, and under which condition, a session is to end.
#[derive(Clone, Copy, Debug)]
pub(super) struct EndRequest<'a> {
    pub(super) reason: EndReason,
    pub(super) condition: EndCondition,
    /// The tenant whose new session gets its place.
    pub(super) successor: Option<&'a TenantId>,
}

/// When a session may end: looked at again under its lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EndCondition {
    /// Whatever happened to it.
    Always,
    /// If it was not used after this moment.
    UnusedSince(Steady),
    /// If it is expired, and was not used after this moment.
    ExpiredSince(Steady),
    /// If it is this generation, which is erased: no hook hears of it.
    Erased(Generation),
}

/// What became of an [`EndRequest`].
#[derive(Debug)]
pub(super) enum EndAttempt {
    /// It ends; the end is submitted.
    Ended(EndedSlot),
    /// It has ended already, or does not fulfil the condition.
    NotEnded,
    /// The journal has to be asked for it first.
    NeedsLoad,
}

/// A session whose end is submitted.
#[derive(Debug)]
pub(super) struct EndedSlot {
    pub(super) ended: EndedSession,
    pub(super) submitted: Submitted,
    /// The place that it freed for its successor.
    pub(super) successor_place: Option<ReservedPlace>,
}

impl EndRequest<'_> {
    /// Whatever happened to it.
    pub(super) fn now(reason: EndReason) -> Self {
        Self {
            reason,
            condition: EndCondition::Always,
            successor: None,
        }
    }

    /// If it is expired, and was not used after this moment.
    pub(super) fn expired_since(last_access: Steady) -> Self {
        Self {
            reason: EndReason::Expired,
            condition: EndCondition::ExpiredSince(last_access),
            successor: None,
        }
    }
}

impl Sessions {
    /// Ends a session, if the condition holds under its lock.
    pub(super) fn end_slot(
        &self,
        slot: &Arc<Slot>,
        request: EndRequest<'_>,
        permit: Permit,
    ) -> EndAttempt {
        let mut inner = slot.lock();
        let Some(head) = inner.head() else {
            return match inner.has_ended() {
                true => EndAttempt::NotEnded,
                false => EndAttempt::NeedsLoad,
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

    /// Ends a session whose lock is held; `None` where memory has nothing of it.
    pub(super) fn submit_end(
        &self,
        slot: &Arc<Slot>,
        inner: &mut SlotInner,
        request: EndRequest<'_>,
        permit: Permit,
    ) -> Option<EndedSlot> {
        let EndRequest {
            reason, successor, ..
        } = request;
        let head = inner.head()?;
        let at = self.now();
        let reason = match head.is_expired(at.steady, slot.tenant.ttl_ms(head)) {
            true => EndReason::Expired,
            false => reason,
        };
        let ended = EndedSession {
            tenant: slot.key.tenant.clone(),
            session: slot.key.session.clone(),
            generation: head.generation,
            reason,
        };
        let end = match request.condition {
            EndCondition::Erased(_) => head.end(reason, at, Arc::default()),
            _ => self.end_change(Ending {
                key: &slot.key,
                head,
                session: inner.session(),
                reason,
                at,
            }),
        };
        let mut submission = Submission::new(vec![end]);
        let successor_place =
            successor.map(|tenant| ReservedPlace::new(&self.shared.census, tenant));
        submission.successor.clone_from(&successor_place);
        let submitted = self.submit(slot, inner, permit, submission);
        let was = self.mark_ended(slot, inner, successor);
        if let (SlotState::Loaded(mut session), false) = (was, self.shared.journal.is_on())
            && let Some(keys) = session.take_keys()
        {
            self.shared.ended_keys.insert(&slot.key, keys);
        }
        Some(EndedSlot {
            ended,
            submitted,
            successor_place,
        })
    }

    /// The change that ends a generation, with what it owes to hooks: nothing where nothing was
    /// said or kept in it, as after a reset.
    pub(super) fn end_change(&self, ending: Ending<'_>) -> Change {
        let listener = &self.shared.end_listener;
        let is_empty = ending.head.last_seq == 0 && ending.head.state_version == 0;
        let owed = match is_empty {
            true => Arc::default(),
            false => listener.owed_hooks(&ending.key.tenant, ending.reason),
        };
        if !owed.is_empty() {
            listener.ending(&ending, &owed);
        }
        ending.head.end(ending.reason, ending.at, owed)
    }

    /// Takes a session out of its list and the counts, under its lock: the slot's own
    /// state always agrees with both. Its place goes to the successor, where there is one.
    /// Gives the state before.
    pub(super) fn mark_ended(
        &self,
        slot: &Arc<Slot>,
        inner: &mut SlotInner,
        successor: Option<&TenantId>,
    ) -> SlotState {
        let census = &self.shared.census;
        let tenant = &slot.tenant.id;
        match (std::mem::take(&mut inner.is_listed), successor) {
            (true, Some(successor)) => census.pass_on(tenant, successor),
            (true, None) => census.give_back(tenant),
            (false, Some(successor)) => census.take_anyway(successor),
            (false, None) => {}
        }
        slot.idle.remove(slot);
        inner.reindex(slot);
        // Callers find it until its end is written, and wait for that where they have to.
        if !self.shared.journal.is_on() {
            self.shared.table.remove(slot);
        }
        inner.set_state(&slot.tenant, SlotState::Ended)
    }

    /// Ends a generation, if it lives, without hooks: it is erased. True when this ended it.
    pub(crate) async fn end_unheard(
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
                    let seen = SeenVersion::of(&slot.lock());
                    let is_so = match seen {
                        // Another daemon may have started the generation that is meant.
                        Some(seen) => self.is_current(&slot, seen).await?,
                        None => self.has_durably_ended(&slot).await,
                    };
                    if is_so {
                        return Ok(false);
                    }
                }
                EndAttempt::NeedsLoad => self.load(&slot).await?,
            }
        }
        Err(EngineError::RetriesExhausted)
    }

    /// The sessions of a tenant that live, as far as memory knows them.
    pub(crate) fn live_heads(&self, tenant: &Tenant) -> Vec<(SessionId, Head)> {
        let slots = self.shared.census.idle_list(&tenant.id).slots();
        let head = |slot: &Arc<Slot>| {
            let head = slot.lock().head().cloned()?;
            Some((slot.key.session.clone(), head))
        };
        slots.iter().filter_map(head).collect()
    }

    /// Forgets the idempotency keys that were kept of a session without a journal; gives how
    /// many there were.
    pub(crate) fn forget_ended_keys(&self, session: &SessionRef) -> u64 {
        self.shared.ended_keys.remove(&session.key)
    }

    /// Waits for the end of a session that was found ended. False when it was not written.
    pub(super) async fn has_durably_ended(&self, slot: &Slot) -> bool {
        let ticket = slot.lock().ticket;
        self.shared.journal.wait_durable(ticket).await;
        slot.lock().has_ended()
    }

    /// Starts a generation in place of one that is reset; the same session goes on.
    pub(super) fn restart(
        &self,
        session: &mut Session,
        key: &SessionKey,
        run_hooks: bool,
        at: Now,
    ) -> Vec<Change> {
        let reason = EndReason::Reset;
        let end = match run_hooks {
            true => self.end_change(Ending {
                key,
                head: session.head(),
                session: Some(session),
                reason,
                at,
            }),
            false => session.head().end(reason, at, Arc::default()),
        };
        let (mut fresh, begin) = self.begin(key, at);
        if let Some(keys) = session.take_keys() {
            fresh.set_keys(keys);
        }
        // What was decided about the session stays.
        let options = session.head().options.clone();
        let options = options.map(|options| fresh.set_options(options));
        *session = fresh;
        [end, begin].into_iter().chain(options).collect()
    }
}

/// Idempotency keys of sessions that ended while there was no journal to keep them: of the
/// sessions that ended last, up to [`ENDED_KEYS_MAX`] keys.
#[derive(Debug, Default)]
pub(super) struct EndedKeys {
    kept: Mutex<KeptKeys>,
}

#[derive(Debug, Default)]
struct KeptKeys {
    sessions: LinkedHashMap<SessionKey, Keys>,
    count: usize,
}

const ENDED_KEYS_MAX: usize = 100_000;

impl EndedKeys {
    fn insert(&self, key: &SessionKey, keys: Keys) {
        if keys.is_empty() {
            return;
        }
        let mut kept = self.lock();
        kept.count += keys.len();
        if let Some(before) = kept.sessions.insert(key.clone(), keys) {
            kept.count -= before.len();
        }
        while kept.count > ENDED_KEYS_MAX {
            let Some((_, oldest)) = kept.sessions.pop_front() else {
                break;
            };
            kept.count -= oldest.len();
        }
    }

    fn remove(&self, key: &SessionKey) -> u64 {
        let mut kept = self.lock();
        let removed = kept.sessions.remove(key).map_or(0, |keys| keys.len());
        kept.count -= removed;
        removed as u64
    }

    pub(super) fn get(&self, key: &SessionKey) -> Keys {
        self.lock().sessions.get(key).cloned().unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, KeptKeys> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
