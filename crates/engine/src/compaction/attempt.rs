//! One compaction, from the snapshot to the commit. Dropped at any moment it changes
//! nothing; only the commit does, under the session's lock and in one change set.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use memoird_core::change::ChangeSet;
use memoird_core::compaction::probe::Probe;
use memoird_core::compaction::{BreakerView, Failure, Summary, Trigger};
use memoird_core::ids::Generation;
use memoird_core::session::{CompactionBlocked, Head, Session, Snapshot};
use memoird_core::time::Now;
use tokio::sync::oneshot;
use tracing::{info, warn};

use super::queue::Wanted;
use super::stats::Outcome;
use super::{CompactionOutcome, ladder, near};
use crate::append::ATTEMPTS;
use crate::cell::{Inner, Residence, SessionCell};
use crate::engine::Engine;
use crate::error::EngineError;
use crate::events::EventKind;
use crate::read::SessionView;

/// Why a summary that was made did not become true.
const NOT_WRITTEN: &str = "not_written";

/// How an attempt ended without a summary.
pub(super) enum Ended {
    /// There was nothing to do.
    Nothing,
    /// The session is not any more what it was.
    Discarded,
    /// There is no summary, and the session's breaker counts that.
    Failed(Failure, Outcome),
    /// The provider is known to be down: nobody asked it.
    ProviderDown,
    /// There is a summary, and it could not be written.
    Unwritten(EngineError),
    /// The call cannot be done.
    Refused(EngineError),
}

/// A summary that was made and checked, and is not true yet.
pub(super) struct Made {
    pub(super) summary: Arc<Summary>,
    pub(super) tokens_before: u64,
    pub(super) tokens_after: u64,
    pub(super) probe: Probe,
    /// What its turn weighs on the scale of the snapshot.
    pub(super) turn_tokens: Option<u64>,
}

/// Of what a snapshot was taken. A session that was thrown away since, because something of
/// it was not written, may have other turns under the same numbers.
#[derive(Clone, Copy)]
pub(super) struct Life {
    generation: Generation,
    epoch: u32,
    /// What has to be settled before the snapshot is true.
    pub(super) ticket: u64,
}

impl Life {
    /// True as long as nothing of the session was thrown away.
    pub(super) fn is_of(&self, inner: &Inner) -> bool {
        inner.epoch == self.epoch
    }
}

/// Says of a session that it is not being compacted any more, whatever happened.
struct Running<'a> {
    cell: &'a SessionCell,
    life: Life,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let mut inner = self.cell.lock();
        if self.life.is_of(&inner)
            && let Some(session) = inner.session_mut()
        {
            session.compaction_over(self.life.generation);
        }
    }
}

/// Compacts a session, counts and tells what became of it, and answers who waits.
pub(super) async fn attempt(engine: Engine, wanted: Wanted) {
    // Nobody pays for what nobody waits for any more.
    if wanted
        .answer
        .as_ref()
        .is_some_and(oneshot::Sender::is_closed)
    {
        return;
    }
    let trigger = wanted.trigger;
    let outcome = engine.compact(&wanted).await;
    let stats = &wanted.cell.tenant.stats.compaction;
    stats.count(
        trigger,
        match &outcome {
            Ok(done) if done.is_new => Outcome::Made,
            Ok(_) | Err(Ended::Nothing | Ended::Refused(_)) => Outcome::Nothing,
            Err(Ended::Discarded) => Outcome::Discarded,
            Err(Ended::Failed(_, outcome)) => *outcome,
            Err(Ended::ProviderDown | Ended::Unwritten(_)) => Outcome::Failed,
        },
    );
    let Some(answer) = wanted.answer else { return };
    let failed = |reason, problem| EngineError::CompactionFailed { reason, problem };
    let outcome = outcome.map_err(|ended| match ended {
        Ended::Nothing | Ended::Discarded => failed(
            "discarded",
            "the session changed meanwhile; try again".to_owned(),
        ),
        Ended::Failed(failure, _) => failed(failure.reason, failure.problem),
        Ended::ProviderDown => failed(
            "provider_down",
            "the summarizer failed again and again; try later".to_owned(),
        ),
        Ended::Refused(error) | Ended::Unwritten(error) => error,
    });
    // Whoever asked may have hung up.
    let _ = answer.send(outcome);
}

impl Engine {
    async fn compact(&self, wanted: &Wanted) -> Result<CompactionOutcome, Ended> {
        let cell = &wanted.cell;
        if let Some(near) = &wanted.near
            && !near::is_due(self, cell, near).await
        {
            return Err(Ended::Nothing);
        }
        // What cannot be written is not worth its price.
        if self.shared.journal.is_failing() && wanted.answer.is_none() {
            return Err(Ended::Nothing);
        }
        let (snapshot, life) = match self.begin(wanted).await? {
            Begun::Started(snapshot, life) => (snapshot, life),
            Begun::NothingToDo(outcome) => return Ok(*outcome),
        };
        let running = Running { cell, life };
        let made = ladder::climb(self, cell, &snapshot, life).await;
        let done = match made {
            Ok(made) => self.commit_summary(wanted, &snapshot, life, made).await,
            Err(Ended::Nothing) => self.as_it_is(cell, life.generation).ok_or(Ended::Discarded),
            Err(ended) => Err(ended),
        };
        match &done {
            Err(Ended::Failed(failure, _)) => self.note_failure(wanted, life, failure).await,
            // What was paid for and cannot be written is not paid for again and again.
            Err(Ended::Unwritten(error)) if self.load(cell).await.is_ok() => {
                let failure = Failure {
                    reason: NOT_WRITTEN,
                    problem: error.to_string(),
                };
                self.note_failure(wanted, life, &failure).await;
            }
            _ => {}
        }
        drop(running);
        done
    }

    /// Takes the snapshot, of a session that is loaded first where it has to be.
    async fn begin(&self, wanted: &Wanted) -> Result<Begun, Ended> {
        let cell = &wanted.cell;
        for _ in 0..ATTEMPTS {
            let needs_load = {
                let mut inner = cell.lock();
                let now = self.shared.machine.now();
                let (ticket, epoch) = (inner.ticket, inner.epoch);
                let policy = cell.tenant.policy();
                let is_dead = |head: &Head| head.is_expired(now.steady, cell.tenant.ttl_ms());
                if inner.head().is_some_and(is_dead) {
                    break;
                }
                match inner.session_mut() {
                    Some(session) => {
                        let begun = session.begin_compaction(
                            wanted.trigger,
                            wanted.exchanges,
                            now.steady,
                            &policy.compaction,
                            &policy.limits,
                        );
                        return match begun {
                            Ok(snapshot) => {
                                let generation = snapshot.generation;
                                let life = Life {
                                    generation,
                                    epoch,
                                    ticket,
                                };
                                Ok(Begun::Started(snapshot, life))
                            }
                            Err(CompactionBlocked::Running) => {
                                Err(Ended::Refused(EngineError::CompactionRunning))
                            }
                            Err(CompactionBlocked::Waiting) => {
                                Err(Ended::Refused(EngineError::CallPending))
                            }
                            Err(CompactionBlocked::Nothing) => {
                                let outcome = as_it_is(cell, session, now);
                                Ok(Begun::NothingToDo(Box::new(outcome)))
                            }
                        };
                    }
                    None => matches!(inner.residence(), Residence::Stored(_) | Residence::Unknown),
                }
            };
            if !needs_load || self.load(cell).await.is_err() {
                break;
            }
        }
        let session = cell.key.session.clone();
        Err(Ended::Refused(EngineError::SessionNotFound { session }))
    }

    /// The outcome where nothing was to be done; `None` where there is no session any more.
    fn as_it_is(&self, cell: &SessionCell, generation: Generation) -> Option<CompactionOutcome> {
        let (mut inner, now) = (cell.lock(), self.shared.machine.now());
        let session = inner.session_mut()?;
        session.compaction_over(generation);
        Some(as_it_is(cell, session, now))
    }

    /// Makes a summary true, where the session still is what it was.
    async fn commit_summary(
        &self,
        wanted: &Wanted,
        snapshot: &Snapshot,
        life: Life,
        made: Made,
    ) -> Result<CompactionOutcome, Ended> {
        let cell = &wanted.cell;
        let permit = self
            .shared
            .journal
            .permit(2 * made.summary.text.len())
            .await;
        let permit = permit.map_err(Ended::Unwritten)?;
        let (view, submitted) = {
            let mut inner = cell.lock();
            let now = self.shared.machine.now();
            if !life.is_of(&inner) {
                return Err(Ended::Discarded);
            }
            let session = inner.session_mut().ok_or(Ended::Discarded)?;
            let was_open = session.compaction().opened.is_some();
            let remembers = !self.shared.journal.is_on();
            let change = session.compact(snapshot.generation, &made.summary, remembers);
            let change = change.ok_or(Ended::Discarded)?;
            if let Some((scale, tokens)) = snapshot.scale.zip(made.turn_tokens) {
                session.note_summary_tokens(scale, tokens);
            }
            cell.tenant.stats.compaction.shift_open(was_open, false);
            let view = SessionView::of(&cell.key, session.head(), &cell.tenant, now);
            let set = ChangeSet {
                changes: vec![change],
            };
            let submitted = self
                .shared
                .journal
                .submit(permit, set, vec![Arc::clone(cell)], 0);
            inner.ticket = submitted.ticket;
            (view, submitted)
        };
        submitted.written().await.map_err(Ended::Unwritten)?;
        self.tell_made(wanted, snapshot.generation, &made);
        let Made {
            summary,
            tokens_before,
            tokens_after,
            probe,
            ..
        } = made;
        let summary = Some(summary);
        Ok(CompactionOutcome {
            session: view,
            summary,
            is_new: true,
            tokens_before,
            tokens_after,
            probe,
        })
    }

    fn tell_made(&self, wanted: &Wanted, generation: Generation, made: &Made) {
        let (cell, summary) = (&wanted.cell, &made.summary);
        let stats = &cell.tenant.stats.compaction;
        stats
            .tokens_before
            .fetch_add(made.tokens_before, Ordering::Relaxed);
        stats
            .tokens_after
            .fetch_add(made.tokens_after, Ordering::Relaxed);
        stats
            .identifiers
            .fetch_add(made.probe.identifiers.into(), Ordering::Relaxed);
        stats
            .identifiers_found
            .fetch_add(made.probe.found.into(), Ordering::Relaxed);
        let kind = EventKind::Compacted {
            number: summary.number,
            trigger: wanted.trigger.name(),
            by: summary.by.clone(),
            first_seq: summary.first_seq,
            through_seq: summary.through_seq,
            tokens_before: made.tokens_before,
            tokens_after: made.tokens_after,
            probe: made.probe,
        };
        self.tell_compaction(cell, generation, kind);
        info!(
            tenant = %cell.tenant.id, trigger = wanted.trigger.name(), by = %summary.by,
            tokens_before = made.tokens_before, tokens_after = made.tokens_after,
            probe = made.probe.score(), "a session was compacted"
        );
    }

    pub(super) fn tell_compaction(
        &self,
        cell: &SessionCell,
        generation: Generation,
        kind: EventKind,
    ) {
        let at = self.shared.machine.now().wall;
        cell.tenant
            .events
            .put(at, &cell.key.session, generation, kind);
        self.shared.bell.ring();
    }

    /// Notes a failure, so that its breaker survives a restart. Where that cannot be written
    /// the session goes on without.
    async fn note_failure(&self, wanted: &Wanted, life: Life, failure: &Failure) {
        let (cell, generation) = (&wanted.cell, life.generation);
        let policy = &cell.tenant.policy().compaction;
        let (tenant, reason, problem) = (&cell.tenant.id, failure.reason, &failure.problem);
        warn!(%tenant, reason, problem, "a session was not compacted");
        // Of a summary that could not be written the note may be small enough.
        if self.shared.journal.is_failing() && reason != NOT_WRITTEN {
            return;
        }
        let Ok(permit) = self.shared.journal.permit(0).await else {
            return;
        };
        let (submitted, breaker) = {
            let mut inner = cell.lock();
            let (now, is_same) = (self.shared.machine.now(), life.is_of(&inner));
            let Some(session) = inner.session_mut() else {
                return;
            };
            if !is_same && session.compaction().running {
                // Somebody else's try, which ends by itself.
                return;
            }
            let was_open = session.compaction().opened.is_some();
            let change = session.compaction_failed(generation, failure, now, policy);
            let Some(change) = change else { return };
            let status = session.compaction();
            let breaker = status.breaker(now.steady, session.head().last_seq, policy);
            cell.tenant
                .stats
                .compaction
                .shift_open(was_open, breaker != BreakerView::Closed);
            let set = ChangeSet {
                changes: vec![change],
            };
            let submitted = self
                .shared
                .journal
                .submit(permit, set, vec![Arc::clone(cell)], 0);
            inner.ticket = submitted.ticket;
            (submitted, breaker)
        };
        // A disk that is full has been told of already.
        let _ = submitted.written().await;
        let kind = EventKind::CompactionFailed {
            trigger: wanted.trigger.name(),
            reason: failure.reason,
            problem: failure.problem.clone(),
            breaker: breaker.name(),
        };
        self.tell_compaction(cell, generation, kind);
    }
}

fn as_it_is(cell: &SessionCell, session: &Session, now: Now) -> CompactionOutcome {
    CompactionOutcome {
        session: SessionView::of(&cell.key, session.head(), &cell.tenant, now),
        summary: session.summary().cloned(),
        is_new: false,
        tokens_before: 0,
        tokens_after: 0,
        probe: Probe::default(),
    }
}

enum Begun {
    Started(Snapshot, Life),
    NothingToDo(Box<CompactionOutcome>),
}

impl Wanted {
    /// What a call asks for.
    pub(super) fn by_command(
        cell: Arc<SessionCell>,
        exchanges: Option<u32>,
        answer: super::queue::Answer,
    ) -> Self {
        let (trigger, near, answer) = (Trigger::Command, None, Some(answer));
        Self {
            cell,
            trigger,
            exchanges,
            near,
            answer,
        }
    }
}
