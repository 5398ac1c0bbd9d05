//! The free-form JSON of a session, and what its bot decides about it.

use std::sync::Arc;

use memoird_core::idempotency::IdempotencyKey;
use memoird_core::ids::SessionId;
use memoird_core::options::OptionsPatch;
use memoird_core::state::{State, StatePatch};

use super::Commands;
use crate::error::EngineError;
use crate::sessions::{Decision, Effect, SessionRef, Update, UpdateOptions, WhenAbsent};
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
    /// Its name, by which it is done once.
    pub idempotency: Option<IdempotencyKey>,
}

/// What a patch did.
#[derive(Clone, Debug)]
pub struct PatchOutcome {
    /// The JSON after it; of a repetition, as it is now, and empty where the session has ended since.
    pub state: State,
    /// True when it was done before.
    pub duplicate: bool,
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

    /// Changes a session beside its turns, all of it or nothing.
    ///
    /// # Errors
    /// [`EngineError::SessionNotFound`], what the rules refuse, a journal that cannot be
    /// written.
    pub async fn patch_state(
        &self,
        tenant: &Arc<Tenant>,
        session: &SessionId,
        command: &PatchCommand,
    ) -> Result<PatchOutcome, EngineError> {
        let session = SessionRef::new(tenant, session);
        // The queue holds the whole state, and not only the patch.
        let bytes = command.state.as_ref().map_or(0, |patch| {
            patch.json.len().max(tenant.policy().limits.state_bytes)
        });
        let mut options = UpdateOptions::of_live(bytes);
        if command.create {
            options.when_absent = WhenAbsent::Start;
        }
        options.needs_keys = command.idempotency.is_some();
        let patched = self.shared.sessions.update(&session, options, |update| {
            let (limits, now, named) = (&update.policy.limits, update.now, command.idempotency);
            if update.session.known_record(named, limits, now)?.is_some() {
                return Ok(again(update));
            }
            let head = update.session.head();
            update.policy.check_class(&command.options, head)?;
            let decided = update.session.patched_options(&command.options, limits)?;
            let (state, change) = match (&command.state, named) {
                (None, None) => (update.session.state(), update.session.touch(now)),
                (patch, named) => {
                    let (key, patch) = (update.key, patch.as_ref());
                    update.session.patch_state(key, patch, named, limits, now)?
                }
            };
            let decided = decided.map(|decided| update.session.set_options(decided));
            let effect = Effect::Change {
                changes: [change].into_iter().chain(decided).collect(),
                dropped_turns: 0,
            };
            let outcome = PatchOutcome {
                state,
                duplicate: false,
            };
            Ok::<_, EngineError>(Decision::used(outcome, Some(effect)))
        });
        patched.await
    }
}

/// The answer to a patch that was done before.
fn again(update: &mut Update<'_>) -> Decision<PatchOutcome> {
    let outcome = PatchOutcome {
        state: update.session.state(),
        duplicate: true,
    };
    if update.is_new {
        // Its generation has ended.
        return Decision::unused(outcome, None);
    }
    let note = update.may_note_use.then(|| Effect::Change {
        changes: vec![update.session.touch(update.now)],
        dropped_turns: 0,
    });
    Decision::used(outcome, note)
}
