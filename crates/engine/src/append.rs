//! The path of an append, whole.
//!
//! Permit, cell, lock, decide, hand over, unlock, wait for the disk, answer. A session
//! that is not there yet is started under a flight of its own, so that of many first
//! messages one starts it and the others add to it.

use std::sync::Arc;

use memoird_core::change::{Change, ChangeSet, EndReason};
use memoird_core::idempotency::KeyRecord;
use memoird_core::ids::{SessionId, SessionKey};
use memoird_core::session::{AppendCommand, Decision, Session, check_expectations};
use memoird_core::time::Now;
use memoird_store::encoding;

use crate::capacity::Place;
use crate::cell::{Inner, Residence, SessionCell};
use crate::compaction::Wish;
use crate::end::Leaving;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::journal::{Permit, Submitted};
use crate::read::SessionView;
use crate::tenant::Tenant;

/// What an append did.
#[derive(Clone, Debug)]
pub struct AppendOutcome {
    /// The session after it; `None` for a repetition whose session has ended since.
    pub session: Option<SessionView>,
    /// What was done, now or the first time.
    pub record: KeyRecord,
    /// True when it was done before.
    pub duplicate: bool,
}

/// One attempt at a command. A cell can turn out to be of no use, or to need something
/// from the journal, and then the command is tried anew.
pub(crate) enum Attempt<T> {
    /// It was decided and handed over.
    Done(T, Submitted),
    /// Nothing had to be handed over; it is true once this ticket is, unless the cell has
    /// another epoch by then.
    Seen { outcome: T, ticket: u64, epoch: u32 },
    /// The cell's session has ended.
    Gone,
    /// The journal has to be asked for the session.
    NeedsLoad,
    /// The journal has to be asked for the session's idempotency keys.
    NeedsKeys,
    /// The session is past its TTL, and that has to be written first.
    NeedsEnd,
}

/// A command gives up after so many attempts; each one lost means that somebody else's
/// succeeded.
pub(crate) const ATTEMPTS: usize = 64;

impl Engine {
    /// Adds turns to a session, all of them or none; starts the session, or a new
    /// generation of it, where there is none. Answers once the turns are as durable as
    /// the configuration asks.
    ///
    /// # Errors
    /// What the rules refuse, a queue without room, a journal that cannot be written.
    pub async fn append(
        &self,
        tenant: &Arc<Tenant>,
        session: &SessionId,
        command: AppendCommand,
    ) -> Result<AppendOutcome, EngineError> {
        let key = SessionKey {
            tenant: tenant.id.clone(),
            session: session.clone(),
        };
        let bytes = command.turns.iter().map(|turn| turn.body.len()).sum();
        let mut permit = Some(self.shared.journal.permit(bytes).await?);
        for _ in 0..ATTEMPTS {
            let attempt = match self.shared.table.get(&key) {
                Some(cell) => match self.append_to(&cell, &command, &mut permit)? {
                    Attempt::NeedsLoad => {
                        self.load(&cell).await?;
                        continue;
                    }
                    Attempt::NeedsKeys => {
                        self.load_keys(&cell).await?;
                        continue;
                    }
                    Attempt::NeedsEnd => {
                        // The end needs room in the queue as well.
                        drop(permit.take());
                        self.end_if_expired(&cell).await?;
                        permit = Some(self.shared.journal.permit(bytes).await?);
                        continue;
                    }
                    Attempt::Seen {
                        outcome,
                        ticket,
                        epoch,
                    } => {
                        self.shared.journal.visible(ticket).await;
                        if cell.lock().epoch == epoch {
                            return Ok(outcome);
                        }
                        continue;
                    }
                    Attempt::Gone => self.start(tenant, &key, &command, &mut permit).await?,
                    done => done,
                },
                None => self.start(tenant, &key, &command, &mut permit).await?,
            };
            if let Attempt::Done(outcome, submitted) = attempt {
                submitted.written().await?;
                return Ok(outcome);
            }
        }
        Err(EngineError::NoPlace)
    }

    fn append_to(
        &self,
        cell: &Arc<SessionCell>,
        command: &AppendCommand,
        permit: &mut Option<Permit>,
    ) -> Result<Attempt<AppendOutcome>, EngineError> {
        let mut inner = cell.lock();
        let session = match inner.residence() {
            Residence::Gone => return Ok(Attempt::Gone),
            Residence::Stored(_) | Residence::Unknown => return Ok(Attempt::NeedsLoad),
            Residence::Live(session) => session,
        };
        if command.idempotency.is_some() && session.keys().is_none() {
            return Ok(Attempt::NeedsKeys);
        }
        let now = self.shared.machine.now();
        if session.is_expired(now.steady, cell.tenant.ttl_ms()) {
            let outcome = self.append_to_successor(cell, &mut inner, command, permit, now);
            drop(inner);
            if matches!(outcome, Ok(Attempt::Done(..))) {
                cell.tenant.idle.touch(cell, now.steady);
            }
            return outcome;
        }
        let policy = cell.tenant.policy();
        let before = session.head().totals;
        // `inner` is a guard: asked for the session anew, to change it.
        let Some(session) = inner.session_mut() else {
            return Ok(Attempt::Gone);
        };
        let decision = session.append(&cell.key, command, &policy.limits, now, encoding::seal)?;
        let (record, change, duplicate) = match decision {
            Decision::Done { record, change } => (record, change, false),
            // Nobody's session is worth such a note.
            Decision::Repeated { record } if self.shared.journal.is_failing() => {
                let (ticket, epoch) = (inner.ticket, inner.epoch);
                let head = inner.head();
                let session = head.map(|head| SessionView::of(&cell.key, head, &cell.tenant, now));
                drop(inner);
                cell.tenant.idle.touch(cell, now.steady);
                let outcome = AppendOutcome {
                    session,
                    record,
                    duplicate: true,
                };
                return Ok(Attempt::Seen {
                    outcome,
                    ticket,
                    epoch,
                });
            }
            // Written behind whatever the first one still waits for.
            Decision::Repeated { record } => (record, session.touch(now), true),
        };
        if let (Some(usage), false) = (&command.usage, duplicate) {
            self.calibrate(&cell.tenant, session, usage);
        }
        let wanted = session.consider_append(now.steady, &policy.compaction, &policy.limits);
        let after = session.head().totals;
        cell.tenant.stats.count_live(before, after);
        let set = ChangeSet {
            changes: vec![change],
        };
        let outcome = self.hand_over(cell, &mut inner, set, permit, (record, duplicate), now);
        drop(inner);
        cell.tenant.idle.touch(cell, now.steady);
        if let Some(trigger) = wanted {
            self.shared.compactions.want(
                cell,
                Wish {
                    trigger,
                    near: None,
                },
            );
        }
        outcome
    }

    /// The session is past its TTL: it ends, and a new generation starts in its place.
    fn append_to_successor(
        &self,
        cell: &Arc<SessionCell>,
        inner: &mut Inner,
        command: &AppendCommand,
        permit: &mut Option<Permit>,
        now: Now,
    ) -> Result<Attempt<AppendOutcome>, EngineError> {
        let Some(old) = inner.session_mut() else {
            return Ok(Attempt::Gone);
        };
        let policy = cell.tenant.policy();
        let limits = &policy.limits;
        if let (Some(named), Some(keys)) = (command.idempotency, old.keys())
            && keys.find(named, limits, now.steady)?.is_some()
        {
            // The first one may not be written yet.
            return Ok(Attempt::NeedsEnd);
        }
        check_expectations(command, None)?;
        let (mut fresh, begin) = Session::begin(&cell.key, self.new_generation(now), now);
        if let Some(keys) = old.keys() {
            fresh.set_keys(keys.clone());
        }
        let decision = fresh.append(&cell.key, command, limits, now, encoding::seal)?;
        let Decision::Done { record, change } = decision else {
            return Ok(Attempt::Gone);
        };
        let end = self.end_of(&cell.key, Leaving::Whole(old), EndReason::Expired, now);
        inner.settle(&cell.tenant, Residence::Live(fresh));
        let set = ChangeSet {
            changes: vec![end, begin, change],
        };
        self.hand_over(cell, inner, set, permit, (record, false), now)
    }

    fn hand_over(
        &self,
        cell: &Arc<SessionCell>,
        inner: &mut Inner,
        set: ChangeSet,
        permit: &mut Option<Permit>,
        (record, duplicate): (KeyRecord, bool),
        now: Now,
    ) -> Result<Attempt<AppendOutcome>, EngineError> {
        let permit = permit.take().ok_or(EngineError::NoPlace)?;
        let dropped = if duplicate { 0 } else { record.dropped_turns };
        let cells = vec![Arc::clone(cell)];
        let submitted = self.shared.journal.submit(permit, set, cells, dropped);
        inner.ticket = submitted.ticket;
        let session = inner
            .head()
            .map(|head| SessionView::of(&cell.key, head, &cell.tenant, now));
        Ok(Attempt::Done(
            AppendOutcome {
                session,
                record,
                duplicate,
            },
            submitted,
        ))
    }

    /// Starts a session with its first turns. `Attempt::Gone` when somebody else has
    /// started it meanwhile.
    async fn start(
        &self,
        tenant: &Arc<Tenant>,
        key: &SessionKey,
        command: &AppendCommand,
        permit: &mut Option<Permit>,
    ) -> Result<Attempt<AppendOutcome>, EngineError> {
        let _flight = self.shared.flights.enter(key).await;
        let is_there = || {
            self.shared
                .table
                .get(key)
                .is_some_and(|there| !there.lock().is_gone())
        };
        if is_there() {
            return Ok(Attempt::Gone);
        }
        let keys = match command.idempotency.is_some() {
            true => Some(self.keys_of(key, tenant).await?),
            false => None,
        };
        // An end that was waited for may turn out not to be true.
        if is_there() {
            return Ok(Attempt::Gone);
        }
        let (now, policy) = (self.shared.machine.now(), tenant.policy());
        if let (Some(named), Some(keys)) = (command.idempotency, &keys)
            && let Some(record) = keys.find(named, &policy.limits, now.steady)?
        {
            return Ok(repeated(record));
        }
        check_expectations(command, None)?;
        let (mut session, begin) = Session::begin(key, self.new_generation(now), now);
        if let Some(keys) = keys {
            session.set_keys(keys);
        }
        let decision = session.append(key, command, &policy.limits, now, encoding::seal)?;
        let Decision::Done { record, change } = decision else {
            return Ok(Attempt::Gone);
        };

        let view = SessionView::of(key, session.head(), tenant, now);
        let cell = SessionCell::new(key.clone(), Arc::clone(tenant), Residence::Live(session));
        let cell = Arc::new(cell);
        let changes = vec![begin, change];
        let submitted = self
            .take_place(&cell, changes, record.dropped_turns, permit)
            .await?;
        // From the hand-over to here nothing waits: a caller who hangs up does so before or
        // after.
        let mut inner = cell.lock();
        (inner.ticket, inner.is_listed) = (submitted.ticket, true);
        tenant.idle.push(&cell, now.steady);
        self.shared.table.insert(&cell);
        drop(inner);
        let outcome = AppendOutcome {
            session: Some(view),
            record,
            duplicate: false,
        };
        Ok(Attempt::Done(outcome, submitted))
    }

    /// Hands the start of a session over, together with the end of another one where
    /// that has to make room.
    async fn take_place(
        &self,
        cell: &Arc<SessionCell>,
        mut changes: Vec<Change>,
        dropped: u64,
        permit: &mut Option<Permit>,
    ) -> Result<Submitted, EngineError> {
        for _ in 0..ATTEMPTS {
            let from = match self.shared.capacity.take(&cell.tenant) {
                Place::Taken => {
                    let permit = permit.take().ok_or(EngineError::NoPlace)?;
                    let (set, cells) = (ChangeSet { changes }, vec![Arc::clone(cell)]);
                    return Ok(self.shared.journal.submit(permit, set, cells, dropped));
                }
                Place::From(tenant) => self.tenant_or_common(&tenant),
            };
            match self.evict_oldest(&from, cell, (&mut changes, dropped), permit)? {
                Eviction::Done(submitted) => return Ok(submitted),
                Eviction::Again => {}
                Eviction::NeedsLoad(victim) => self.reload(&victim).await?,
                // Every place is being taken by somebody who is about to have it.
                Eviction::Nobody => tokio::task::yield_now().await,
            }
        }
        Err(EngineError::NoPlace)
    }

    /// Ends the longest idle session of `from` in one change set with the start of
    /// `cell`. The list is let go before the victim is locked, so the victim is looked
    /// at again; `cell` is not in the table yet, and its lock is not taken.
    fn evict_oldest(
        &self,
        from: &Tenant,
        cell: &Arc<SessionCell>,
        (changes, dropped): (&mut Vec<Change>, u64),
        permit: &mut Option<Permit>,
    ) -> Result<Eviction, EngineError> {
        let Some(oldest) = from.idle.oldest() else {
            return Ok(Eviction::Nobody);
        };
        let victim = oldest.cell;
        let mut inner = victim.lock();
        if !inner.is_listed {
            return Ok(Eviction::Again);
        }
        let Some(head) = inner.head() else {
            drop(inner);
            return Ok(Eviction::NeedsLoad(victim));
        };
        if head.last_access > oldest.last_access {
            let last_access = head.last_access;
            drop(inner);
            from.idle.touch(&victim, last_access);
            return Ok(Eviction::Again);
        }
        let permit = permit.take().ok_or(EngineError::NoPlace)?;
        let now = self.shared.machine.now();
        let reason = match head.is_expired(now.steady, from.ttl_ms()) {
            true => EndReason::Expired,
            false => EndReason::Evicted,
        };
        let Some(leaving) = Leaving::of(&inner) else {
            return Ok(Eviction::Again);
        };
        let mut all = vec![self.end_of(&victim.key, leaving, reason, now)];
        all.append(changes);
        let cells = vec![Arc::clone(cell), Arc::clone(&victim)];
        let set = ChangeSet { changes: all };
        let submitted = self.shared.journal.submit(permit, set, cells, dropped);
        inner.ticket = submitted.ticket;
        self.retire(&victim, &mut inner, Some(&cell.tenant.id));
        Ok(Eviction::Done(submitted))
    }
}

/// How the search for a victim went.
enum Eviction {
    /// It ended, and its place is taken.
    Done(Submitted),
    /// It was used, or ended, a moment ago: look for another one.
    Again,
    /// The journal has to be asked for it first.
    NeedsLoad(Arc<SessionCell>),
    /// There is none.
    Nobody,
}

fn repeated(record: KeyRecord) -> Attempt<AppendOutcome> {
    let outcome = AppendOutcome {
        session: None,
        record,
        duplicate: true,
    };
    Attempt::Done(outcome, Submitted::nothing())
}
