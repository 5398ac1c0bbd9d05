//! The `EndSession` and `ResetSession` commands.

use std::sync::Arc;

use memoird_core::ids::SessionId;

use super::handle::Commands;
use crate::error::EngineError;
use crate::sessions::{
    Decision, Effect, EndCommand, EndOutcome, SessionRef, Update, UpdateOptions,
};
use crate::tenants::Tenant;

impl Commands {
    /// Ends the live generation of a session.
    ///
    /// # Errors
    /// [`EngineError::SessionNotFound`], a stale generation, a reused idempotency key, or an error
    /// of the journal.
    pub async fn end_session(
        &self,
        tenant: &Arc<Tenant>,
        session: &SessionId,
        command: EndCommand,
    ) -> Result<EndOutcome, EngineError> {
        let session = SessionRef::new(tenant, session);
        let ended = self.shared.sessions.end(&session, command).await;
        self.or_duplicate(&session, command, ended).await
    }

    /// Clears the history and state of a live session by starting a new generation.
    ///
    /// Hooks run only if `run_hooks` is set.
    ///
    /// # Errors
    /// As [`Commands::end_session`].
    pub async fn reset_session(
        &self,
        tenant: &Arc<Tenant>,
        session: &SessionId,
        run_hooks: bool,
        command: EndCommand,
    ) -> Result<EndOutcome, EngineError> {
        let session = SessionRef::new(tenant, session);
        let options = UpdateOptions {
            key: command.idempotency.map(|named| named.key),
            ..UpdateOptions::of_live(0)
        };
        let reset = self.shared.sessions.update(&session, options, |update| {
            reset(update, run_hooks, command)
        });
        self.or_duplicate(&session, command, reset.await).await
    }

    /// Replaces [`EngineError::SessionNotFound`] by the outcome of a duplicate, if it is one.
    async fn or_duplicate(
        &self,
        session: &SessionRef,
        command: EndCommand,
        outcome: Result<EndOutcome, EngineError>,
    ) -> Result<EndOutcome, EngineError> {
        let Err(EngineError::SessionNotFound { .. }) = outcome else {
            return outcome;
        };
        let sessions = &self.shared.sessions;
        match sessions.used_key(session, command.idempotency).await? {
            Some(record) => Ok(EndOutcome::duplicate(&record, None)),
            None => outcome,
        }
    }
}

fn reset(
    update: &mut Update<'_>,
    run_hooks: bool,
    command: EndCommand,
) -> Result<Decision<EndOutcome>, EngineError> {
    let (limits, now) = (&update.policy.limits, update.now);
    let known = update
        .session
        .known_record(command.idempotency, limits, now)?;
    if let Some(record) = known {
        let outcome = EndOutcome::duplicate(&record, Some(update.view()));
        return Ok(Decision::unused(outcome, None));
    }
    let head = update.session.head();
    head.check_generation(command.expected_generation)?;
    let ended_generation = head.generation;
    let effect = Effect::new(update.restart(run_hooks, command.idempotency), false);
    let outcome = EndOutcome {
        session: Some(update.view()),
        ended_generation,
        duplicate: false,
    };
    Ok(Decision::used(outcome, effect))
}
