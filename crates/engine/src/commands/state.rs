//! The free-form JSON of a session, and what its bot decides about it.

use std::sync::Arc;

use memoird_core::ids::SessionId;
use memoird_core::options::OptionsPatch;
use memoird_core::state::{State, StatePatch};

use super::Commands;
use crate::error::EngineError;
use crate::sessions::{Decision, Effect, SessionRef, UpdateOptions, WhenAbsent};
use crate::tenants::Tenant;

/// What to change of a session beside its turns.
#[derive(Clone, Debug, Default)]
pub struct PatchCommand {
    /// A change of its JSON; `None`: it stays.
    pub state: Option<StatePatch>,
    /// A change of what its bot decided about it.
    pub options: OptionsPatch,
    /// True: start the session where none lives.
    pub create: bool,
}

impl Commands {
    /// Reads the JSON of a live session.
    ///
    /// # Errors
    /// [`EngineError::SessionNotFound`].
    pub async fn state(
        &self,
        tenant: &Arc<Tenant>,
        session: &SessionId,
    ) -> Result<State, EngineError> {
        let session = SessionRef::new(tenant, session);
        let sessions = &self.shared.sessions;
        sessions.view(&session, |session, _| session.state()).await
    }

    /// Changes a session beside its turns, all of it or nothing. Gives its JSON.
    ///
    /// # Errors
    /// [`EngineError::SessionNotFound`], what the rules refuse, a journal that cannot be
    /// written.
    pub async fn patch_state(
        &self,
        tenant: &Arc<Tenant>,
        session: &SessionId,
        command: &PatchCommand,
    ) -> Result<State, EngineError> {
        let session = SessionRef::new(tenant, session);
        // The queue holds the whole state, and not only the patch.
        let bytes = command.state.as_ref().map_or(0, |patch| {
            patch.json.len().max(tenant.policy().limits.state_bytes)
        });
        let mut options = UpdateOptions::of_live(bytes);
        if command.create {
            options.when_absent = WhenAbsent::Start;
        }
        let patched = self.shared.sessions.update(&session, options, |update| {
            let (limits, now) = (&update.policy.limits, update.now);
            let head = update.session.head();
            update.policy.check_class(&command.options, head)?;
            let decided = update.session.patched_options(&command.options, limits)?;
            let (state, change) = match &command.state {
                Some(patch) => update.session.patch_state(patch, limits, now)?,
                None => (update.session.state(), update.session.touch(now)),
            };
            let decided = decided.map(|decided| update.session.set_options(decided));
            let effect = Effect::Change {
                changes: [change].into_iter().chain(decided).collect(),
                dropped_turns: 0,
            };
            Ok::<_, EngineError>(Decision::used(state, Some(effect)))
        });
        patched.await
    }
}
