//! The `EndSession` and `ResetSession` commands.

use std::sync::Arc;

use memoird_core::change::EndReason;
use memoird_core::ids::{Generation, SessionId};

use super::handle::Commands;
use crate::error::EngineError;
use crate::sessions::{Decision, Effect, SessionRef, SessionView, UpdateOptions};
use crate::tenants::Tenant;

impl Commands {
    /// Ends the live generation of a session. Returns the session before its end.
    ///
    /// # Errors
    /// [`EngineError::SessionNotFound`], or an error of the journal.
    pub async fn end_session(
        &self,
        tenant: &Arc<Tenant>,
        session: &SessionId,
    ) -> Result<SessionView, EngineError> {
        let session = SessionRef::new(tenant, session);
        self.shared.sessions.end(&session, EndReason::Ended).await
    }

    /// Clears the history and state of a live session by starting a new generation.
    ///
    /// Hooks run only if `run_hooks` is set. Returns the session, and the generation that ended.
    ///
    /// # Errors
    /// [`EngineError::SessionNotFound`], or an error of the journal.
    pub async fn reset_session(
        &self,
        tenant: &Arc<Tenant>,
        session: &SessionId,
        run_hooks: bool,
    ) -> Result<(SessionView, Generation), EngineError> {
        let session = SessionRef::new(tenant, session);
        let reset = self
            .shared
            .sessions
            .update(&session, UpdateOptions::of_live(0), |update| {
                let ended = update.session.head().generation;
                let effect = Effect::new(update.restart(run_hooks), false);
                let outcome = (update.view(), ended);
                Ok::<_, EngineError>(Decision::used(outcome, effect))
            });
        reset.await
    }
}
