//! Changes a session: a command decides under a session's lock, and everything around that is done
//! here. The session is found, loaded or started; its end is written first where it is
//! expired; the change is submitted in order, and answered once it is durable. What the store
//! refuses, because an earlier change of the session was not written, is decided again.
//!
//! A change carries the revision of its generation and not only its seq, so that patches and ends
//! are refused by the same rule as appends.

use std::sync::Arc;

use memoird_core::change::{Change, EndReason};
use memoird_core::ids::SessionKey;
use memoird_core::session::Session;
use memoird_core::time::Now;

use super::end::EndRequest;
use super::freshness::SeenVersion;
use super::slot::{Slot, SlotInner, SlotState, is_breaker_open};
use super::view::SessionView;
use super::{ATTEMPTS_MAX, SessionRef, SessionVersion, Sessions, Submission};
use crate::error::EngineError;
use crate::journal::{Permit, Submitted};
use crate::tenants::{Policy, Tenant};

/// What a command needs before it can decide.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UpdateOptions {
    pub(crate) when_absent: WhenAbsent,
    /// Bytes that its change takes in the journal's queue, about.
    pub(crate) bytes: usize,
    /// True: the idempotency keys of the session id have to be known.
    pub(crate) needs_keys: bool,
    /// True: without room in the queue, or while commits fail, the command goes on and
    /// changes nothing that has to be written.
    pub(crate) is_optional: bool,
}

impl UpdateOptions {
    /// Of a command on a live session, whose change takes `bytes` in the queue.
    pub(crate) fn of_live(bytes: usize) -> Self {
        Self {
            when_absent: WhenAbsent::Fail,
            bytes,
            needs_keys: false,
            is_optional: false,
        }
    }

    /// Of a command on a live session that has nothing to write, or nothing that has to be.
    pub(crate) fn optional() -> Self {
        Self {
            is_optional: true,
            ..Self::of_live(0)
        }
    }
}

/// What a command does where no session lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WhenAbsent {
    /// It starts one.
    Start,
    /// It fails.
    Fail,
}

/// A session under its lock, to be decided about.
pub(crate) struct Update<'a> {
    pub(crate) session: &'a mut Session,
    pub(crate) key: &'a SessionKey,
    pub(crate) tenant: &'a Arc<Tenant>,
    pub(crate) policy: &'a Policy,
    pub(crate) now: Now,
    /// Which state of the session this is.
    pub(crate) version: SessionVersion,
    /// True when the session starts with this command.
    pub(crate) is_new: bool,
    /// False: a change that only notes a use is not worth the risk that its loss discards the
    /// session from memory, because commits fail, or there is no room for it.
    pub(crate) may_note_use: bool,
    pub(super) sessions: &'a Sessions,
}

/// What a command decided.
pub(crate) struct Decision<T> {
    /// What the command answers once the decision is durable.
    pub(crate) outcome: T,
    /// What the command writes; `None`: nothing.
    pub(crate) effect: Option<Effect>,
    /// True when this counts as a use of the session.
    pub(crate) is_use: bool,
    /// False: the outcome is not answered to anybody, and need not be durable.
    pub(crate) is_answer: bool,
}

/// What a command writes.
pub(crate) enum Effect {
    /// These changes, with which `dropped_turns` turns left the history.
    Change {
        changes: Vec<Change>,
        dropped_turns: u64,
    },
    /// The same; after it only the store knows the whole session.
    ChangeAndUnload {
        changes: Vec<Change>,
        dropped_turns: u64,
    },
}

impl<T> Decision<T> {
    /// The session is used, and this is to be written.
    pub(crate) fn used(outcome: T, effect: Option<Effect>) -> Self {
        Self {
            outcome,
            effect,
            is_use: true,
            is_answer: true,
        }
    }

    /// This is to be written, and the session was not used.
    pub(crate) fn unused(outcome: T, effect: Option<Effect>) -> Self {
        Self {
            is_use: false,
            ..Self::used(outcome, effect)
        }
    }

    /// Nothing is to be written, and the outcome is not an answer yet.
    pub(crate) fn intermediate(outcome: T) -> Self {
        Self {
            is_answer: false,
            ..Self::unused(outcome, None)
        }
    }
}

impl Effect {
    /// One change that drops no turns.
    pub(crate) fn change(change: Change) -> Self {
        Self::Change {
            changes: vec![change],
            dropped_turns: 0,
        }
    }
}

impl Update<'_> {
    /// The session as it is now, without its turns.
    pub(crate) fn view(&self) -> SessionView {
        SessionView::of(self.key, self.session.head(), self.tenant, self.now)
    }

    /// Starts a new generation in place of this one; gives the changes that say so.
    pub(crate) fn restart(&mut self, run_hooks: bool) -> Vec<Change> {
        self.sessions
            .restart(self.session, self.key, run_hooks, self.now)
    }
}

/// One attempt at a command.
enum Attempt<T> {
    Decided(Decided<T>),
    /// The slot's session has ended.
    HasEnded,
    /// The journal has to be asked for the session.
    NeedsLoad,
    /// The journal has to be asked for the idempotency keys.
    NeedsKeys,
    /// The session is past its TTL: its end comes first.
    IsExpired,
}

/// A decision, and what it waits for.
pub(super) struct Decided<T> {
    pub(super) outcome: T,
    pub(super) wait: WaitFor,
}

/// What has to be durable before a decision is answered.
pub(super) enum WaitFor {
    /// What was submitted.
    Written(Submitted),
    /// What was seen, unless the session was discarded since.
    Seen {
        slot: Arc<Slot>,
        version: SeenVersion,
    },
    /// Nothing.
    Nothing,
}

impl Sessions {
    /// Changes a session. `decide` is called under its lock, as often as it takes until what
    /// it was built on turns out durable; it must leave the session as it is when it fails.
    ///
    /// # Errors
    /// What `decide` refuses, [`EngineError::SessionNotFound`], a queue without room, a
    /// journal that cannot be written, [`EngineError::RetriesExhausted`].
    pub(crate) async fn update<T, E: From<EngineError>>(
        &self,
        session: &SessionRef,
        options: UpdateOptions,
        mut decide: impl FnMut(&mut Update<'_>) -> Result<Decision<T>, E>,
    ) -> Result<T, E> {
        self.check_capacity(session, options)?;
        for _ in 0..ATTEMPTS_MAX {
            let slot = self.find(session).await?;
            let attempt = match &slot {
                Some(slot) => {
                    let permit = self.permit(session, options).await?;
                    let epoch = slot.lock().epoch;
                    match self.decide_in(slot, options, permit, &mut decide) {
                        Ok(attempt) => attempt,
                        Err(refusal) if self.is_refusal_final(slot, epoch).await? => {
                            return Err(refusal);
                        }
                        Err(_) => continue,
                    }
                }
                None => Attempt::HasEnded,
            };
            let may_start = options.when_absent == WhenAbsent::Start;
            let decided = match (attempt, slot) {
                (Attempt::Decided(decided), _) => decided,
                (Attempt::HasEnded, _) if may_start => {
                    match self.start(session, options, &mut decide).await? {
                        Some(decided) => decided,
                        // Another call has started it meanwhile.
                        None => continue,
                    }
                }
                (obstacle, slot) => {
                    let slot = slot.ok_or_else(|| session.not_found())?;
                    self.remove_obstacle(session, &slot, &obstacle, options.when_absent)
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

    /// Ends the live generation of a session, loaded or not. Gives the session as it was.
    ///
    /// # Errors
    /// [`EngineError::SessionNotFound`], or a journal that cannot be written.
    pub(crate) async fn end(
        &self,
        session: &SessionRef,
        reason: EndReason,
    ) -> Result<SessionView, EngineError> {
        for _ in 0..ATTEMPTS_MAX {
            let slot = self.find(session).await?;
            let slot = slot.ok_or_else(|| session.not_found())?;
            let permit = self.shared.journal.permit_of(&session.tenant, 0).await?;
            match self.end_in(&slot, reason, permit) {
                Attempt::Decided(decided) => {
                    if self.is_durable(decided.wait).await? {
                        return Ok(decided.outcome);
                    }
                }
                obstacle => {
                    self.remove_obstacle(session, &slot, &obstacle, WhenAbsent::Fail)
                        .await?;
                }
            }
        }
        Err(EngineError::RetriesExhausted)
    }

    fn end_in(&self, slot: &Arc<Slot>, reason: EndReason, permit: Permit) -> Attempt<SessionView> {
        let mut inner = slot.lock();
        let Some(head) = inner.head() else {
            return match inner.has_ended() {
                true => Attempt::HasEnded,
                false => Attempt::NeedsLoad,
            };
        };
        let now = self.now();
        if head.is_expired(now.steady, slot.tenant.ttl_ms(head)) {
            return Attempt::IsExpired;
        }
        let outcome = SessionView::of(&slot.key, head, &slot.tenant, now);
        match self.submit_end(slot, &mut inner, EndRequest::now(reason), permit) {
            Some(ended) => Attempt::Decided(Decided {
                outcome,
                wait: WaitFor::Written(ended.submitted),
            }),
            None => Attempt::HasEnded,
        }
    }

    /// Changes what only memory keeps of a session, if it is loaded in this version. Nothing
    /// is written, and nothing waits.
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

    /// Does what has to be done before a command can decide.
    async fn remove_obstacle<T>(
        &self,
        session: &SessionRef,
        slot: &Arc<Slot>,
        obstacle: &Attempt<T>,
        when_absent: WhenAbsent,
    ) -> Result<(), EngineError> {
        match obstacle {
            Attempt::HasEnded if self.has_durably_ended(slot).await => {
                self.check_gone(session, slot)
            }
            Attempt::HasEnded | Attempt::NeedsLoad => self.load(slot).await,
            Attempt::NeedsKeys => self.load_keys(session, slot).await,
            Attempt::IsExpired => match self.end_if_expired(slot).await {
                Err(error) if when_absent == WhenAbsent::Fail => {
                    self.check_expired(session, error)?;
                    self.load(slot).await
                }
                Err(EngineError::SessionReloaded) => self.load(slot).await,
                ended => ended.map(drop),
            },
            Attempt::Decided(_) => Ok(()),
        }
    }

    /// Waits until a decision is durable. False when it was built on something that was not
    /// written, and has to be made again.
    async fn is_durable(&self, wait: WaitFor) -> Result<bool, EngineError> {
        match wait {
            WaitFor::Nothing => Ok(true),
            WaitFor::Seen { slot, version } => self.is_current(&slot, version).await,
            WaitFor::Written(submitted) => match submitted.written().await {
                Ok(()) => Ok(true),
                Err(EngineError::SessionReloaded) => Ok(false),
                Err(error) => Err(error),
            },
        }
    }

    /// Whether there is room for what a command writes: in the journal for turns, and where
    /// there is no journal in memory, which nothing can leave then.
    fn check_capacity(
        &self,
        session: &SessionRef,
        options: UpdateOptions,
    ) -> Result<(), EngineError> {
        let bytes = options.bytes as u64;
        let brings_turns = options.when_absent == WhenAbsent::Start;
        match self.have_journal() {
            true if brings_turns => session.tenant.check_journal_room(bytes),
            false if bytes > 0 => session.tenant.check_memory_room(bytes),
            _ => Ok(()),
        }
    }

    async fn permit(
        &self,
        session: &SessionRef,
        options: UpdateOptions,
    ) -> Result<Option<Permit>, EngineError> {
        let (journal, tenant) = (&self.shared.journal, &session.tenant);
        match options.is_optional {
            true => Ok(journal
                .try_permit(options.bytes)
                .filter(|_| !journal.is_failing())),
            false => journal.permit_of(tenant, options.bytes).await.map(Some),
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
            SlotState::OnDisk(_) | SlotState::Stale => return Ok(Attempt::NeedsLoad),
            SlotState::Ended => return Ok(Attempt::HasEnded),
        };
        let now = self.now();
        let head = session.head();
        if head.is_expired(now.steady, slot.tenant.ttl_ms(head)) {
            return Ok(Attempt::IsExpired);
        }
        if options.needs_keys && session.keys().is_none() {
            return Ok(Attempt::NeedsKeys);
        }
        let totals_before = session.head().totals;
        let was_breaker_open = is_breaker_open(session.head());
        let version = inner.version(session.head().generation);
        let policy = slot.tenant.policy();
        let may_note_use = permit.is_some() && !self.shared.journal.is_failing();
        // Borrowed again, to be changed.
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
        inner.reindex(slot);
        let submitted = decision
            .effect
            .zip(permit)
            .map(|(effect, permit)| self.apply(slot, &mut inner, effect, permit));
        let wait = match (submitted, SeenVersion::of(&inner)) {
            (Some(submitted), _) if !options.is_optional => WaitFor::Written(submitted),
            (_, Some(version)) if decision.is_answer => WaitFor::Seen {
                slot: Arc::clone(slot),
                version,
            },
            _ => WaitFor::Nothing,
        };
        if let (true, Some(head)) = (decision.is_use, inner.head()) {
            slot.idle.touch(slot, head.last_access);
        }
        drop(inner);
        Ok(Attempt::Decided(Decided {
            outcome: decision.outcome,
            wait,
        }))
    }

    /// Submits what a command decided, under the session's lock.
    fn apply(
        &self,
        slot: &Arc<Slot>,
        inner: &mut SlotInner,
        effect: Effect,
        permit: Permit,
    ) -> Submitted {
        match effect {
            Effect::Change {
                changes,
                dropped_turns,
            } => {
                let mut submission = Submission::new(changes);
                submission.dropped_turns = dropped_turns;
                self.submit(slot, inner, permit, submission)
            }
            Effect::ChangeAndUnload {
                changes,
                dropped_turns,
            } => {
                let mut submission = Submission::new(changes);
                submission.dropped_turns = dropped_turns;
                let submitted = self.submit(slot, inner, permit, submission);
                if let (true, Some(head)) = (self.shared.journal.is_on(), inner.head().cloned()) {
                    inner.set_state(&slot.tenant, SlotState::OnDisk(Box::new(head)));
                }
                submitted
            }
        }
    }
}
