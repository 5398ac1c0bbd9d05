//! A single compaction, from the snapshot to the commit.
//!
//! Cancelling it at any point changes nothing. Only the commit changes the session, in one change
//! set under its lock.

use std::sync::Arc;

use memoird_core::breaker::BreakerState;
use memoird_core::compaction::{Failure, Summary, Trigger};
use memoird_core::ids::Generation;
use memoird_core::nonce::Nonce;
use memoird_core::session::{CompactionBlocked, Session, Snapshot};
use memoird_core::window::ScaleId;
use memoird_formats::tokens::Scale;
use tokio::sync::oneshot;
use tracing::{info, warn};

use super::queue::{CompactionRequest, RunningCompaction};
use super::{Compaction, CompactionOutcome};
use crate::error::EngineError;
use crate::events::EventKind;
use crate::models::count_turns;
use crate::sessions::{
    Decision, Effect, SessionRef, SessionVersion, SessionView, Sessions, UpdateOptions,
};
use crate::stats::CompactionResult;

/// Maximum rounds of counting turns for one compaction, as clients may append concurrently.
const COUNTING_ROUNDS_MAX: usize = 64;

/// Reason in metrics and events if a finished summary could not be written.
const NOT_WRITTEN: &str = "not_written";

/// Why a compaction produced no summary.
#[derive(Debug)]
pub(super) enum CompactionError {
    Nothing,
    /// The session has changed since the snapshot.
    Discarded,
    /// No summary was made. Counts as a failure for the session's breaker.
    Failed(Failure, CompactionResult),
    /// The provider's breaker is open, so it was not called.
    ProviderDown,
    NotWritten(EngineError),
    /// The call is invalid or was rejected.
    Refused(EngineError),
}

impl From<EngineError> for CompactionError {
    fn from(error: EngineError) -> Self {
        Self::Refused(error)
    }
}

/// A validated summary that is not yet durable.
pub(super) struct NewSummary {
    pub(super) summary: Arc<Summary>,
    pub(super) tokens_before: u64,
    pub(super) tokens_after: u64,
    /// Tokens of its turn on the snapshot's scale.
    pub(super) turn_tokens: Option<u64>,
}

/// Marks a session as being compacted, until dropped.
#[derive(Debug)]
struct CompactingGuard {
    sessions: Sessions,
    session: SessionRef,
    version: SessionVersion,
}

impl Drop for CompactingGuard {
    fn drop(&mut self) {
        let generation = self.version.generation;
        self.sessions
            .annotate(&self.session, self.version, |session| {
                session.compaction_over(generation);
            });
    }
}

enum BeginOutcome {
    Started(Box<Snapshot>, CompactingGuard),
    NothingToDo(Box<CompactionOutcome>),
    NeedsCounts(Box<UncountedTurns>),
}

/// Turns of one version of a session that lack token counts on a scale.
struct UncountedTurns {
    scale: (ScaleId, Scale),
    turns: Vec<(u64, Arc<[u8]>)>,
    version: SessionVersion,
    nonce: Nonce,
}

impl Compaction {
    /// Executes a request, records and publishes the result, and replies to the caller.
    pub(super) async fn run(self, request: CompactionRequest, _under_way: RunningCompaction) {
        // The caller was cancelled. Do not pay for its summary.
        if request
            .reply
            .as_ref()
            .is_some_and(oneshot::Sender::is_closed)
        {
            return;
        }
        let result = self.compact(&request).await;
        let stats = &request.session.tenant.stats.compaction;
        stats.count(request.trigger, result_label(&result));
        let Some(reply) = request.reply else { return };
        // The caller may have been cancelled.
        let _ = reply.send(result.map_err(engine_error));
    }

    async fn compact(
        &self,
        request: &CompactionRequest,
    ) -> Result<CompactionOutcome, CompactionError> {
        let session = &request.session;
        if let Some(near_limit) = &request.near_limit
            && !self.is_due(session, near_limit).await
        {
            return Err(CompactionError::Nothing);
        }
        // Do not pay for a summary that cannot be written.
        if self.sessions().journal().is_failing() && request.reply.is_none() {
            return Err(CompactionError::Nothing);
        }
        let (snapshot, running) = match self.begin(request).await? {
            BeginOutcome::Started(snapshot, running) => (snapshot, running),
            BeginOutcome::NothingToDo(outcome) => return Ok(*outcome),
            // It changed each time that its turns had been counted.
            BeginOutcome::NeedsCounts(..) => return Err(CompactionError::Discarded),
        };
        let version = running.version;
        let result = match self.summarize(session, &snapshot).await {
            Ok(made) => self.commit(request, &snapshot, version, made).await,
            Err(error) => Err(error),
        };
        match &result {
            Err(CompactionError::Nothing) => {
                drop(running);
                let unchanged = self.sessions().view(session, unchanged).await;
                return unchanged.map_err(|_| CompactionError::Discarded);
            }
            Err(CompactionError::Failed(failure, _)) => {
                self.note_failure(request, version, failure).await;
            }
            // Count a paid summary that cannot be written as a failure, so that it is not paid for
            // repeatedly.
            Err(CompactionError::NotWritten(error)) => {
                let failure = Failure {
                    reason: NOT_WRITTEN,
                    problem: error.to_string(),
                };
                self.note_failure(request, version, &failure).await;
            }
            _ => {}
        }
        result
    }

    /// Takes the snapshot and marks the session as being compacted, after counting its turns.
    async fn begin(&self, request: &CompactionRequest) -> Result<BeginOutcome, EngineError> {
        let session = &request.session;
        let mut begun = self.try_begin(request).await?;
        for _ in 0..COUNTING_ROUNDS_MAX {
            let uncounted = match begun {
                BeginOutcome::NeedsCounts(uncounted) => *uncounted,
                begun => return Ok(begun),
            };
            let (scale_id, scale) = uncounted.scale;
            let count = move || count_turns(&scale, uncounted.turns, uncounted.nonce);
            let counted = self.shared.threads.run(Some(&session.tenant.id), count);
            let counts = counted.await?;
            self.sessions()
                .annotate(session, uncounted.version, |session| {
                    if let Some(windows) = session.windows_mut() {
                        windows.note_counts(scale_id, counts);
                    }
                });
            begun = self.try_begin(request).await?;
        }
        Ok(begun)
    }

    /// Takes the snapshot, or returns the turns that must be counted first.
    async fn try_begin(&self, request: &CompactionRequest) -> Result<BeginOutcome, EngineError> {
        let session = &request.session;
        let models = self.shared.models.current();
        let begun = self
            .sessions()
            .update(session, UpdateOptions::optional(), |update| {
                let scale_id = update.session.summary_scale();
                let known = scale_id.and_then(|id| Some((id, models.scale(id)?)));
                let turns = known.as_ref().map_or_else(Vec::new, |(scale_id, _)| {
                    update.session.uncounted(*scale_id, u64::MAX)
                });
                if let Some(scale) = known.filter(|_| !turns.is_empty()) {
                    let uncounted = UncountedTurns {
                        scale,
                        turns,
                        version: update.version,
                        nonce: update.session.nonce(),
                    };
                    let uncounted = BeginOutcome::NeedsCounts(Box::new(uncounted));
                    return Ok(Decision::intermediate(uncounted));
                }
                let outcome = update.session.begin_compaction(
                    request.trigger,
                    request.keep_exchanges,
                    update.now.steady,
                    &update.policy.compaction,
                    &update.policy.limits,
                );
                let begun = match outcome {
                    Ok(snapshot) => {
                        let running = CompactingGuard {
                            sessions: self.sessions().clone(),
                            session: session.clone(),
                            version: update.version,
                        };
                        BeginOutcome::Started(Box::new(snapshot), running)
                    }
                    Err(CompactionBlocked::Nothing) => {
                        let view = update.view();
                        BeginOutcome::NothingToDo(Box::new(unchanged(update.session, view)))
                    }
                    Err(CompactionBlocked::Running) => {
                        return Err(EngineError::CompactionRunning);
                    }
                    Err(CompactionBlocked::Waiting) => return Err(EngineError::CallPending),
                };
                Ok(Decision::unused(begun, None))
            });
        begun.await
    }

    /// Writes a summary if the session has not changed since the snapshot.
    async fn commit(
        &self,
        request: &CompactionRequest,
        snapshot: &Snapshot,
        version: SessionVersion,
        made: NewSummary,
    ) -> Result<CompactionOutcome, CompactionError> {
        let remembers = !self.sessions().have_journal();
        // A summary requested by command is shown in the next window.
        let is_due = request.trigger == Trigger::Command;
        let options = UpdateOptions::of_live(2 * made.summary.text.len());
        let committed = self.sessions().update(&request.session, options, |update| {
            if update.version != version {
                return Err(CompactionError::Discarded);
            }
            let session = &mut *update.session;
            let change = session
                .compact(
                    snapshot.generation,
                    snapshot.last_seq,
                    &made.summary,
                    remembers,
                    is_due,
                )
                .ok_or(CompactionError::Discarded)?;
            if let Some((scale, tokens)) = snapshot.scale.zip(made.turn_tokens) {
                session.note_summary_tokens(scale, tokens);
            }
            let effect = Effect::change(change);
            Ok(Decision::unused(update.view(), Some(effect)))
        });
        let session = committed.await.map_err(|error| match error {
            CompactionError::Refused(EngineError::SessionNotFound { .. }) => {
                CompactionError::Discarded
            }
            CompactionError::Refused(error) => CompactionError::NotWritten(error),
            other => other,
        })?;
        self.publish_summary(request, snapshot.generation, &made);
        Ok(CompactionOutcome {
            session,
            summary: Some(made.summary),
            is_new: true,
            tokens_before: made.tokens_before,
            tokens_after: made.tokens_after,
        })
    }

    fn publish_summary(
        &self,
        request: &CompactionRequest,
        generation: Generation,
        made: &NewSummary,
    ) {
        let session = &request.session;
        let summary = &made.summary;
        let trigger = request.trigger.name();
        let mut stats = session.tenant.stats.compaction.lock();
        stats.tokens_before += made.tokens_before;
        stats.tokens_after += made.tokens_after;
        drop(stats);
        let kind = EventKind::Compacted {
            number: summary.number,
            trigger: request.trigger,
            by: summary.by.clone(),
            first_seq: summary.first_seq,
            through_seq: summary.through_seq,
            turns: summary.turns,
            tokens_before: made.tokens_before,
            tokens_after: made.tokens_after,
        };
        self.sessions().publish(session, generation, kind);
        info!(
            tenant = %session.tenant.id, trigger, by = %summary.by,
            tokens_before = made.tokens_before, tokens_after = made.tokens_after,
            "session compacted"
        );
    }

    /// Records a failure in the session's breaker, which survives a restart.
    ///
    /// If the record cannot be written, the session continues without it.
    async fn note_failure(
        &self,
        request: &CompactionRequest,
        version: SessionVersion,
        failure: &Failure,
    ) {
        let session = &request.session;
        let generation = version.generation;
        warn!(
            tenant = %session.tenant.id, reason = failure.reason, problem = failure.problem,
            "a session was not compacted"
        );
        // A failure record may fit even if the summary did not.
        if self.sessions().journal().is_failing() && failure.reason != NOT_WRITTEN {
            return;
        }
        let mut breaker = None;
        let noted = self
            .sessions()
            .update(session, UpdateOptions::of_live(0), |update| {
                let policy = &update.policy.compaction;
                let session = &mut *update.session;
                if update.version != version && session.compaction().running {
                    // Another attempt is running, and will report its own end.
                    return Ok(Decision::intermediate(()));
                }
                let was_open = session.compaction().opened.is_some();
                let change = session.compaction_failed(generation, failure, update.now, policy);
                let status = session.compaction();
                let now = update.now.steady;
                let is = status.breaker(now, session.head().last_seq, policy);
                if change.is_some() {
                    let opens = !was_open && is != BreakerState::Closed;
                    breaker = Some((is, opens));
                }
                let effect = change.map(Effect::change);
                Ok::<_, EngineError>(Decision::unused((), effect))
            });
        // A write error was already logged.
        let _ = noted.await;
        let Some((breaker, opens)) = breaker else {
            return;
        };
        if opens {
            session.tenant.stats.compaction.lock().breakers_opened += 1;
        }
        let kind = EventKind::CompactionFailed {
            trigger: request.trigger,
            reason: failure.reason.into(),
            problem: failure.problem.clone(),
            breaker,
        };
        self.sessions().publish(session, generation, kind);
    }
}

fn result_label(result: &Result<CompactionOutcome, CompactionError>) -> CompactionResult {
    match result {
        Ok(done) if done.is_new => CompactionResult::Made,
        Ok(_) | Err(CompactionError::Nothing | CompactionError::Refused(_)) => {
            CompactionResult::Nothing
        }
        Err(CompactionError::Discarded) => CompactionResult::Discarded,
        Err(CompactionError::Failed(_, label)) => *label,
        Err(CompactionError::ProviderDown | CompactionError::NotWritten(_)) => {
            CompactionResult::Failed
        }
    }
}

fn engine_error(error: CompactionError) -> EngineError {
    let failed = |reason, problem: &str| EngineError::CompactionFailed {
        reason,
        problem: problem.to_owned(),
    };
    match error {
        CompactionError::Nothing | CompactionError::Discarded => {
            failed("discarded", "the session changed in the meantime; retry")
        }
        CompactionError::Failed(failure, _) => failed(failure.reason, &failure.problem),
        CompactionError::ProviderDown => failed(
            "provider_down",
            "the summarizer failed repeatedly; retry later",
        ),
        CompactionError::Refused(error) | CompactionError::NotWritten(error) => error,
    }
}

fn unchanged(session: &Session, view: SessionView) -> CompactionOutcome {
    CompactionOutcome {
        session: view,
        summary: session.summary().cloned(),
        is_new: false,
        tokens_before: 0,
        tokens_after: 0,
    }
}
