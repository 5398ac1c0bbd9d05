//! The `Append` command.

use std::sync::Arc;

use memoird_core::CoreError;
use memoird_core::change::Change;
use memoird_core::idempotency::KeyRecord;
use memoird_core::ids::SessionId;
use memoird_core::session::{AppendCommand, AppendDecision, ModelUsage, Session};
use memoird_formats::tokens::Charge;
use memoird_store::encoding;

use super::handle::Commands;
use crate::compaction::CompactionRequest;
use crate::error::EngineError;
use crate::sessions::{Decision, Effect, SessionRef, SessionView, Update, UpdateOptions};
use crate::tenants::Tenant;

/// Result of an append or a copy.
#[derive(Clone, Debug)]
pub struct AppendOutcome {
    /// The session with the turns. `None` for a duplicate if the session has since ended.
    pub session: Option<SessionView>,
    /// Record of this command, or of the original one for a duplicate.
    pub record: KeyRecord,
    /// Whether the idempotency key was already used, so that nothing was appended.
    pub duplicate: bool,
}

impl Commands {
    /// Appends turns to a session atomically.
    ///
    /// Starts the session, or a new generation of it, if none is live. Returns once the turns are
    /// as durable as configured.
    ///
    /// # Errors
    /// If the command is invalid, the journal queue is full, or the journal cannot be written.
    pub async fn append(
        &self,
        tenant: &Arc<Tenant>,
        session: &SessionId,
        command: AppendCommand,
    ) -> Result<AppendOutcome, EngineError> {
        let session = SessionRef::new(tenant, session);
        let options = UpdateOptions {
            starts: true,
            bytes: queue_bytes(&command, tenant),
            key: command.idempotency.map(|named| named.key),
            is_optional: false,
        };
        let mut request = None;
        let appended = self.shared.sessions.update(&session, options, |update| {
            let decision = self.decide_append(update, &command)?;
            let Update { now, policy, .. } = *update;
            let session = &mut *update.session;
            request = session.consider_append(now.steady, &policy.compaction, &policy.limits);
            Ok::<_, EngineError>(decision)
        });
        let outcome = appended.await?;
        if let Some(trigger) = request {
            let request = CompactionRequest::new(session, trigger);
            self.shared.compaction_queue.request(request);
        }
        Ok(outcome)
    }

    fn decide_append(
        &self,
        update: &mut Update<'_>,
        command: &AppendCommand,
    ) -> Result<Decision<AppendOutcome>, EngineError> {
        let (key, limits, now) = (update.key, &update.policy.limits, update.now);
        let head = update.session.head();
        update.policy.check_class(&command.options, head)?;
        let appended = update
            .session
            .append(key, command, limits, now, &encoding::seal)
            .map_err(|refusal| of_new(update.is_new, refusal))?;
        if let (Some(usage), false) = (&command.usage, appended.changes.is_empty()) {
            self.calibrate(update.tenant, &key.session, update.session, usage);
        }
        let AppendDecision { record, changes } = appended;
        Ok(decision(update, record, changes, false))
    }

    /// Calibrates token counts by the reported usage for the session's last window.
    fn calibrate(
        &self,
        tenant: &Tenant,
        id: &SessionId,
        session: &mut Session,
        usage: &ModelUsage,
    ) {
        let models = self.shared.models.current();
        let Some(windows) = session.windows_mut() else {
            return;
        };
        let charged = windows.charged(|profile| models.may_mean(&usage.model, profile));
        if let Some((model, counted)) = charged {
            let before = windows
                .last_charge(&model)
                .map(|(counted, charged)| Charge { counted, charged });
            let charged = usage.request_tokens();
            let charge = Charge { counted, charged };
            if charge.is_plausible() {
                tenant.calibrations.observe(&model, id, before, charge);
                windows.note_charge(&model, counted, charged);
            }
        }
    }
}

/// The decision of a command that appends turns. Without changes, it is a duplicate.
pub(super) fn decision(
    update: &mut Update<'_>,
    record: KeyRecord,
    mut changes: Vec<Change>,
    unloads: bool,
) -> Decision<AppendOutcome> {
    let duplicate = changes.is_empty();
    let outcome = |session| AppendOutcome {
        session,
        record,
        duplicate,
    };
    if duplicate && update.is_new {
        // The original's generation has ended. Do not start a new one for a duplicate.
        return Decision::unused(outcome(None), None);
    }
    // A duplicate still counts as a use. The touch is journaled after the original append.
    if duplicate && update.may_note_use {
        changes.push(update.session.touch(update.now));
    }
    let outcome = outcome(Some(update.view()));
    Decision::used(outcome, Effect::new(changes, unloads))
}

/// Hides the live generation in an error if this command would have started it.
pub(super) fn of_new(is_new: bool, refusal: CoreError) -> CoreError {
    match refusal {
        CoreError::StaleGeneration { expected, .. } if is_new => {
            let actual = None;
            CoreError::StaleGeneration { expected, actual }
        }
        other => other,
    }
}

/// Bytes to reserve in the journal queue, with a state patch counted as a full state.
pub(super) fn queue_bytes(command: &AppendCommand, tenant: &Tenant) -> usize {
    let turns: usize = command.turns.iter().map(|turn| turn.body.len()).sum();
    let state_bytes = command.state.as_ref().map_or(0, |patch| {
        patch.json.len().max(tenant.policy().limits.state_bytes)
    });
    turns + state_bytes
}
