//! The free-form JSON of a session.

use std::sync::Arc;

use memoird_core::ids::SessionId;
use memoird_core::state::{State, StatePatch};

use super::Commands;
use crate::error::EngineError;
use crate::sessions::{Decision, Effect, SessionRef, UpdateOptions, WhenAbsent};
use crate::tenants::Tenant;

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

    /// Changes the JSON of a session. Where none lives, one starts where it may be `created`.
    ///
    /// # Errors
    /// [`EngineError::SessionNotFound`], what the rules refuse, a journal that cannot be
    /// written.
    pub async fn patch_state(
        &self,
        tenant: &Arc<Tenant>,
        session: &SessionId,
        patch: &StatePatch,
        created: bool,
    ) -> Result<State, EngineError> {
        let session = SessionRef::new(tenant, session);
        // The queue holds the whole state, and not only the patch.
        let bytes = patch.json.len().max(tenant.policy().limits.state_bytes);
        let mut options = UpdateOptions::of_live(bytes);
        if created {
            options.when_absent = WhenAbsent::Start;
        }
        let patched = self.shared.sessions.update(&session, options, |update| {
            let limits = &update.policy.limits;
            let (state, change) = update.session.patch_state(patch, limits, update.now)?;
            let effect = Effect::change(change);
            Ok::<_, EngineError>(Decision::used(state, Some(effect)))
        });
        patched.await
    }
}
