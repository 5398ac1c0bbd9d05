//! Commands on a session's state (free-form JSON) and options.

use std::sync::Arc;

use memoird_core::idempotency::IdempotencyKey;
use memoird_core::ids::SessionId;
use memoird_core::options::OptionsPatch;
use memoird_core::state::{State, StatePatch};

use super::handle::Commands;
use crate::error::EngineError;
use crate::sessions::{Decision, Effect, SessionRef, SessionView, Update, UpdateOptions};
use crate::tenants::Tenant;

#[derive(Clone, Debug, Default)]
pub struct PatchCommand {
    /// Patch of the state, or `None` to leave it unchanged.
    pub state: Option<StatePatch>,
    pub options: OptionsPatch,
    /// Start the session if none is live.
    pub create: bool,
    pub idempotency: Option<IdempotencyKey>,
}

#[derive(Clone, Debug)]
pub struct PatchOutcome {
    /// The session after the patch with its state. For a duplicate, the current one.
    ///
    /// `None` for a duplicate if the session has since ended.
    pub session: Option<(SessionView, State)>,
    /// Whether the idempotency key was already used, so that nothing was changed.
    pub duplicate: bool,
}

impl Commands {
    /// Reads the state of a live session.
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

    /// Patches the state and options of a session atomically.
    ///
    /// # Errors
    /// [`EngineError::SessionNotFound`], an invalid command, or an error of the journal.
    pub async fn patch_state(
        &self,
        tenant: &Arc<Tenant>,
        session: &SessionId,
        command: &PatchCommand,
    ) -> Result<PatchOutcome, EngineError> {
        let session = SessionRef::new(tenant, session);
        // Reserve the full state: the journal queue does not hold only the patch.
        let bytes = command.state.as_ref().map_or(0, |patch| {
            patch.json.len().max(tenant.policy().limits.state_bytes)
        });
        let options = UpdateOptions {
            starts: command.create,
            key: command.idempotency.map(|named| named.key),
            ..UpdateOptions::of_live(bytes)
        };
        let patched = self.shared.sessions.update(&session, options, |update| {
            let (limits, now, named) = (&update.policy.limits, update.now, command.idempotency);
            if update.session.known_record(named, limits, now)?.is_some() {
                return Ok(duplicate_reply(update));
            }
            let head = update.session.head();
            update.policy.check_class(&command.options, head)?;
            let patched = update.session.patched_options(&command.options, limits)?;
            let (state, change) = match (&command.state, named) {
                (None, None) => (update.session.state(), update.session.touch(now)),
                (patch, named) => {
                    let (key, patch) = (update.key, patch.as_ref());
                    update.session.patch_state(key, patch, named, limits, now)?
                }
            };
            let decided = patched.map(|decided| update.session.set_options(decided));
            let effect = Effect::new([change].into_iter().chain(decided).collect(), false);
            let outcome = PatchOutcome {
                session: Some((update.view(), state)),
                duplicate: false,
            };
            Ok::<_, EngineError>(Decision::used(outcome, effect))
        });
        patched.await
    }
}

/// Reply to a duplicate patch.
fn duplicate_reply(update: &mut Update<'_>) -> Decision<PatchOutcome> {
    if update.is_new {
        // The original's generation has ended. Do not start a new one for a duplicate.
        let outcome = PatchOutcome {
            session: None,
            duplicate: true,
        };
        return Decision::unused(outcome, None);
    }
    let note = update
        .may_note_use
        .then(|| Effect::change(update.session.touch(update.now)));
    let outcome = PatchOutcome {
        session: Some((update.view(), update.session.state())),
        duplicate: true,
    };
    Decision::used(outcome, note)
}
