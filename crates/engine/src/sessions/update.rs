//! Changing a session: the command decides under the session's lock, and this module does the rest.
//!
//! It finds, loads or starts the session, first ends an expired generation, submits the change in
//! order, and returns once it is durable. If the store rejects a change because an earlier one was
//! not written, the command decides again.
//!
//! A change carries the revision of its generation, not only a seq, so that stale patches and ends
//! are rejected by the same rule as stale appends.

use std::sync::Arc;

use memoird_core::CoreError;
use memoird_core::change::{Change, EndReason};
use memoird_core::idempotency::{Fingerprint, IdempotencyKey, KeyRecord};
use memoird_core::ids::SessionKey;
use memoird_core::session::Session;
use memoird_core::time::Now;

use super::end::{EndCommand, EndOutcome, EndRequest};
use super::freshness::ObservedVersion;
use super::handle::{ATTEMPTS_MAX, SessionRef, Sessions};
use super::slot::SessionVersion;
use super::slot::{Slot, SlotInner, SlotState, is_breaker_open};
use super::view::SessionView;
use crate::error::EngineError;
use crate::journal::{Permit, Submitted};
use crate::tenants::{Policy, Tenant};

/// Requirements of a command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UpdateOptions {
    /// Whether to start the session if none is live.
    pub(crate) starts: bool,
    /// Approximate bytes of its change in the journal queue.
    pub(crate) bytes: usize,
    /// The command's idempotency key. Its earlier use must be known.
    pub(crate) key: Option<Fingerprint>,
    /// Whether the command proceeds without a permit if the queue is full or commits fail.
    ///
    /// It must then change nothing that has to be written.
    pub(crate) is_optional: bool,
}

impl UpdateOptions {
    /// Options of a command on a live session whose change takes `bytes` in the queue.
    pub(crate) fn of_live(bytes: usize) -> Self {
        Self {
            starts: false,
            bytes,
            key: None,
            is_optional: false,
        }
    }

    /// Options of a command on a live session whose change, if any, may be lost.
    pub(crate) fn optional() -> Self {
        Self {
            is_optional: true,
            ..Self::of_live(0)
        }
    }
}

/// A session under its lock, passed to a command for its decision.
pub(crate) struct Update<'a> {
    pub(crate) session: &'a mut Session,
    pub(crate) key: &'a SessionKey,
    pub(crate) tenant: &'a Arc<Tenant>,
    pub(crate) policy: &'a Policy,
    pub(crate) now: Now,
    pub(crate) version: SessionVersion,
    /// Whether the session starts with this command.
    pub(crate) is_new: bool,
    /// Whether a change that only records a use may be submitted.
    ///
    /// False while commits fail or the queue is full: a failed write would discard the session from
    /// memory.
    pub(crate) may_note_use: bool,
    pub(super) sessions: &'a Sessions,
}

pub(crate) struct Decision<T> {
    /// Result of the command once the decision is durable.
    pub(crate) outcome: T,
    pub(crate) effect: Option<Effect>,
    /// Whether the command counts as a use of the session.
    pub(crate) is_use: bool,
    /// Whether the outcome is returned to a client and therefore must be durable.
    pub(crate) is_answer: bool,
}

/// Changes of a decision to write.
pub(crate) struct Effect {
    pub(crate) changes: Vec<Change>,
    /// Whether to unload the session's content afterwards.
    pub(crate) unloads: bool,
}

impl<T> Decision<T> {
    pub(crate) fn used(outcome: T, effect: Option<Effect>) -> Self {
        Self {
            outcome,
            effect,
            is_use: true,
            is_answer: true,
        }
    }

    pub(crate) fn unused(outcome: T, effect: Option<Effect>) -> Self {
        Self {
            is_use: false,
            ..Self::used(outcome, effect)
        }
    }

    pub(crate) fn map<U>(self, map: impl FnOnce(T) -> U) -> Decision<U> {
        Decision {
            outcome: map(self.outcome),
            effect: self.effect,
            is_use: self.is_use,
            is_answer: self.is_answer,
        }
    }

    /// A decision without changes whose outcome is not yet returned to a client.
    pub(crate) fn intermediate(outcome: T) -> Self {
        Self {
            is_answer: false,
            ..Self::unused(outcome, None)
        }
    }
}

impl Effect {
    /// `None` if there is nothing to write or unload.
    pub(crate) fn new(changes: Vec<Change>, unloads: bool) -> Option<Self> {
        (unloads || !changes.is_empty()).then_some(Self { changes, unloads })
    }

    pub(crate) fn change(change: Change) -> Self {
        Self {
            changes: vec![change],
            unloads: false,
        }
    }
}

impl Update<'_> {
    pub(crate) fn view(&self) -> SessionView {
        SessionView::new(self.key, self.session.head(), self.tenant, self.now)
    }

    /// Starts a new generation in place of this one. Returns the changes to write.
    pub(crate) fn restart(
        &mut self,
        run_hooks: bool,
        idempotency: Option<IdempotencyKey>,
    ) -> Vec<Change> {
        let (limits, now) = (&self.policy.limits, self.now);
        let last_seq = self.session.head().last_seq;
        let named = self.session.use_key(idempotency, last_seq, limits, now);
        self.sessions
            .restart(self.session, self.key, run_hooks, named, now)
    }
}

enum Attempt<T> {
    Decided(Decided<T>),
    /// The slot's generation has ended.
    HasEnded,
    NeedsLoad,
    NeedsKeys,
    /// The session is past its TTL and must be ended first.
    IsExpired,
}

/// A decision, and its durability condition.
pub(super) struct Decided<T> {
    pub(super) outcome: T,
    pub(super) wait: WaitFor,
}

/// Condition under which a decision is durable.
pub(super) enum WaitFor {
    Written(Submitted),
    /// The version with a change that may be lost is durable. A store accepts it only if it was
    /// built on the newest version.
    Noted {
        slot: Arc<Slot>,
        version: ObservedVersion,
    },
    /// The observed version is durable, and current in a cluster.
    Observed {
        slot: Arc<Slot>,
        version: ObservedVersion,
    },
    Nothing,
}

impl Sessions {
    /// Changes a session.
    ///
    /// `decide` runs under the session's lock. It is called again until the state that it is based
    /// on proves durable, and must leave the session unchanged when it fails.
    ///
    /// # Errors
    /// The error of `decide`, [`EngineError::SessionNotFound`], a full journal queue, an error of
    /// the journal, or [`EngineError::RetriesExhausted`].
    pub(crate) async fn update<T, E: From<EngineError>>(
        &self,
        session: &SessionRef,
        options: UpdateOptions,
        mut decide: impl FnMut(&mut Update<'_>) -> Result<Decision<T>, E>,
    ) -> Result<T, E> {
        self.check_capacity(session, options)?;
        for attempts in 0..ATTEMPTS_MAX {
            let slot = self.find(session).await?;
            let attempt = match &slot {
                Some(slot) => {
                    if attempts == 0 {
                        self.refresh(slot, options.key).await?;
                    }
                    let permit = self.permit(session, options).await?;
                    let epoch = slot.lock().epoch;
                    match self.decide_in(slot, options, permit, &mut decide) {
                        Ok(attempt) => attempt,
                        Err(refusal) if self.is_rejection_final(slot, epoch).await? => {
                            return Err(refusal);
                        }
                        Err(_) => continue,
                    }
                }
                None => Attempt::HasEnded,
            };
            let decided = match (attempt, slot) {
                (Attempt::Decided(decided), _) => decided,
                (Attempt::HasEnded, _) if options.starts => {
                    match self.start(session, options, &mut decide).await? {
                        Some(decided) => decided,
                        // A concurrent call has started it.
                        None => continue,
                    }
                }
                (obstacle, slot) => {
                    let slot = slot.ok_or_else(|| session.not_found())?;
                    self.remove_obstacle(session, &slot, &obstacle, options)
                        .await?;
                    continue;
                }
            };
            if self.is_durable(decided.wait).await? {
                return Ok(decided.outcome);
            }
        }
        Err(EngineError::RetriesExhausted.into())
    }

    /// Ends the live generation of a session.
    ///
    /// The session is loaded only if the command has an idempotency key.
    pub(crate) async fn end(
        &self,
        session: &SessionRef,
        command: EndCommand,
    ) -> Result<EndOutcome, EngineError> {
        for _ in 0..ATTEMPTS_MAX {
            let slot = self
                .find(session)
                .await?
                .ok_or_else(|| session.not_found())?;
            let permit = self.shared.journal.permit_of(&session.tenant, 0).await?;
            let epoch = slot.lock().epoch;
            match self.end_in(&slot, command, permit) {
                Ok(Attempt::Decided(decided)) => {
                    if self.is_durable(decided.wait).await? {
                        return Ok(decided.outcome);
                    }
                }
                Ok(obstacle) => {
                    let options = UpdateOptions {
                        key: command.idempotency.map(|named| named.key),
                        ..UpdateOptions::of_live(0)
                    };
                    self.remove_obstacle(session, &slot, &obstacle, options)
                        .await?;
                }
                Err(refusal) if self.is_rejection_final(&slot, epoch).await? => {
                    return Err(refusal.into());
                }
                Err(_) => {}
            }
        }
        Err(EngineError::RetriesExhausted)
    }

    fn end_in(
        &self,
        slot: &Arc<Slot>,
        command: EndCommand,
        permit: Permit,
    ) -> Result<Attempt<EndOutcome>, CoreError> {
        let mut inner = slot.lock();
        let Some(head) = inner.head() else {
            return Ok(if inner.has_ended() {
                Attempt::HasEnded
            } else {
                Attempt::NeedsLoad
            });
        };
        let now = self.now();
        if head.is_expired(now.steady, slot.tenant.ttl_ms(head)) {
            return Ok(Attempt::IsExpired);
        }
        if let Some(named) = command.idempotency {
            let Some(session) = inner.session() else {
                return Ok(Attempt::NeedsLoad);
            };
            if !session.covers_key(&named.key) {
                return Ok(Attempt::NeedsKeys);
            }
            let limits = &slot.tenant.policy().limits;
            if let Some(record) = session.known_record(command.idempotency, limits, now)? {
                let wait = ObservedVersion::new(&inner).map(|version| WaitFor::Observed {
                    slot: Arc::clone(slot),
                    version,
                });
                return Ok(Attempt::Decided(Decided {
                    outcome: EndOutcome::duplicate(&record, None),
                    wait: wait.unwrap_or(WaitFor::Nothing),
                }));
            }
        }
        head.check_generation(command.expected_generation)?;
        let outcome = EndOutcome {
            ended_generation: head.generation,
            session: Some(SessionView::new(&slot.key, head, &slot.tenant, now)),
            duplicate: false,
        };
        let request = EndRequest {
            idempotency: command.idempotency,
            ..EndRequest::now(EndReason::Ended)
        };
        Ok(match self.submit_end(slot, &mut inner, request, permit) {
            Some(ended) => Attempt::Decided(Decided {
                outcome,
                wait: WaitFor::Written(ended.submitted),
            }),
            None => Attempt::HasEnded,
        })
    }

    /// Returns the record of an earlier command with this idempotency key, if the session has one.
    ///
    /// The session need not be live.
    pub(crate) async fn used_key(
        &self,
        session: &SessionRef,
        idempotency: Option<IdempotencyKey>,
    ) -> Result<Option<KeyRecord>, EngineError> {
        let Some(named) = idempotency else {
            return Ok(None);
        };
        let options = UpdateOptions {
            key: Some(named.key),
            ..UpdateOptions::optional()
        };
        let found = self.update(session, options, |update| {
            let (limits, now) = (&update.policy.limits, update.now);
            let record = update.session.known_record(idempotency, limits, now)?;
            Ok(Decision::unused(record, None))
        });
        match found.await {
            Err(EngineError::SessionNotFound { .. }) => {
                let keys = self.keys_of(session).await?;
                let limits = &session.tenant.policy().limits;
                Ok(keys.find(named, limits, self.now().steady)?)
            }
            found => found,
        }
    }

    /// Changes in-memory annotations of a session, if it is loaded in this version.
    ///
    /// Nothing is written, and the call does not wait.
    pub(crate) fn annotate(
        &self,
        session: &SessionRef,
        version: SessionVersion,
        annotate: impl FnOnce(&mut Session),
    ) {
        let Some(slot) = self.shared.table.get(&session.key) else {
            return;
        };
        let mut inner = slot.lock();
        let current = inner
            .session()
            .map(|loaded| inner.version(loaded.head().generation));
        if let (true, Some(loaded)) = (current == Some(version), inner.session_mut()) {
            annotate(loaded);
        }
    }

    /// Resolves the reason why a command could not decide yet.
    async fn remove_obstacle<T>(
        &self,
        session: &SessionRef,
        slot: &Arc<Slot>,
        obstacle: &Attempt<T>,
        options: UpdateOptions,
    ) -> Result<(), EngineError> {
        match obstacle {
            Attempt::HasEnded if self.has_durably_ended(slot).await => {
                self.check_gone(session, slot)
            }
            Attempt::HasEnded | Attempt::NeedsLoad => self.load(slot, options.key).await,
            Attempt::NeedsKeys => self.load_keys(session, slot, options.key).await,
            Attempt::IsExpired if !options.starts => self.check_expiry(session, slot).await,
            Attempt::IsExpired => match self.end_if_expired(slot).await {
                Err(EngineError::SessionReloaded) => self.load(slot, options.key).await,
                ended => ended.map(drop),
            },
            Attempt::Decided(_) => Ok(()),
        }
    }

    /// Waits until a decision is durable.
    ///
    /// Returns false if its base was not written, and the command must decide again.
    async fn is_durable(&self, wait: WaitFor) -> Result<bool, EngineError> {
        match wait {
            WaitFor::Nothing => Ok(true),
            WaitFor::Observed { slot, version } => self.is_current(&slot, version).await,
            WaitFor::Noted { slot, version } => Ok(self.is_observed_durable(&slot, version).await),
            WaitFor::Written(submitted) => match submitted.written().await {
                Ok(()) => Ok(true),
                Err(EngineError::SessionReloaded) => Ok(false),
                Err(error) => Err(error),
            },
        }
    }

    /// Checks that there is room for a command's data.
    ///
    /// With a journal, that is room for turns there. Without one, it is room in memory, because
    /// nothing can be unloaded.
    fn check_capacity(
        &self,
        session: &SessionRef,
        options: UpdateOptions,
    ) -> Result<(), EngineError> {
        let bytes = options.bytes as u64;
        let have_journal = self.have_journal();
        // Commands that may start a session bring turns.
        if have_journal && options.starts {
            session.tenant.check_journal_room(bytes)
        } else if !have_journal && bytes > 0 {
            session.tenant.check_memory_room(bytes)
        } else {
            Ok(())
        }
    }

    async fn permit(
        &self,
        session: &SessionRef,
        options: UpdateOptions,
    ) -> Result<Option<Permit>, EngineError> {
        let (journal, tenant) = (&self.shared.journal, &session.tenant);
        if options.is_optional {
            Ok(journal
                .try_permit(options.bytes)
                .filter(|_| !journal.is_failing()))
        } else {
            journal.permit_of(tenant, options.bytes).await.map(Some)
        }
    }

    fn decide_in<T, E: From<EngineError>>(
        &self,
        slot: &Arc<Slot>,
        options: UpdateOptions,
        permit: Option<Permit>,
        decide: impl FnOnce(&mut Update<'_>) -> Result<Decision<T>, E>,
    ) -> Result<Attempt<T>, E> {
        let mut inner = slot.lock();
        let session = match inner.state() {
            SlotState::Loaded(session) => session,
            SlotState::OnDisk(_) | SlotState::Stale(_) => return Ok(Attempt::NeedsLoad),
            SlotState::Ended => return Ok(Attempt::HasEnded),
        };
        let now = self.now();
        let head = session.head();
        if head.is_expired(now.steady, slot.tenant.ttl_ms(head)) {
            return Ok(Attempt::IsExpired);
        }
        if options.key.is_some_and(|key| !session.covers_key(&key)) {
            return Ok(Attempt::NeedsKeys);
        }
        let totals_before = session.head().totals;
        let was_breaker_open = is_breaker_open(session.head());
        let version = inner.version(session.head().generation);
        let policy = slot.tenant.policy();
        let may_note_use = permit.is_some() && !self.shared.journal.is_failing();
        let Some(session) = inner.session_mut() else {
            return Ok(Attempt::NeedsLoad);
        };
        let decision = decide(&mut Update {
            session,
            key: &slot.key,
            tenant: &slot.tenant,
            policy: &policy,
            now,
            version,
            is_new: false,
            may_note_use,
            sessions: self,
        })?;
        let stats = &slot.tenant.stats;
        stats.count_live(totals_before, session.head().totals);
        stats
            .compaction
            .count_open(was_breaker_open, is_breaker_open(session.head()));
        inner.count_content(&slot.tenant);
        let submitted = decision
            .effect
            .zip(permit)
            .map(|(effect, permit)| self.apply(slot, &mut inner, effect, permit));
        let wait = match (submitted, ObservedVersion::new(&inner)) {
            (Some(submitted), _) if !options.is_optional => WaitFor::Written(submitted),
            (Some(_), Some(version)) => WaitFor::Noted {
                slot: Arc::clone(slot),
                version,
            },
            (None, Some(version)) if decision.is_answer => WaitFor::Observed {
                slot: Arc::clone(slot),
                version,
            },
            _ => WaitFor::Nothing,
        };
        inner.relist(slot, decision.is_use);
        drop(inner);
        Ok(Attempt::Decided(Decided {
            outcome: decision.outcome,
            wait,
        }))
    }

    /// Submits a decision. Must be called under the session's lock.
    fn apply(
        &self,
        slot: &Arc<Slot>,
        inner: &mut SlotInner,
        effect: Effect,
        permit: Permit,
    ) -> Submitted {
        let submitted = self.submit(slot, inner, permit, effect.changes, None);
        if effect.unloads
            && self.shared.journal.is_on()
            && let Some(head) = inner.head().cloned()
        {
            inner.set_state(&slot.tenant, SlotState::OnDisk(Box::new(head)));
        }
        submitted
    }
}
