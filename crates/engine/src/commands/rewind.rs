//! Taking the newest turns of a session back.

use std::sync::Arc;

use memoird_core::idempotency::KeyRecord;
use memoird_core::ids::SessionId;
use memoird_core::session::{RewindCommand, RewindDecision};
use memoird_store::encoding;

use super::Commands;
use super::append::queue_bytes;
use crate::compaction::CompactionRequest;
use crate::error::EngineError;
use crate::sessions::{
    Decision, Effect, SessionRef, SessionView, Update, UpdateOptions, WhenAbsent,
};
use crate::tenants::Tenant;

/// What a rewind did.
#[derive(Clone, Debug)]
pub struct RewindOutcome {
    /// The session after it.
    pub session: SessionView,
    /// Which turns were added, now or the first time.
    pub record: KeyRecord,
    /// The turns that the history had and that are gone, oldest first; none for a repetition.
    pub removed: Vec<Arc<[u8]>>,
    /// True when it was done before.
    pub duplicate: bool,
}

impl Commands {
    /// Takes the newest turns of a live session back and adds others, all of it or nothing.
    /// Answers once that is as durable as configured.
    ///
    /// # Errors
    /// [`EngineError::SessionNotFound`], what the rules refuse, a queue without room, a journal
    /// that cannot be written.
    pub async fn rewind(
        &self,
        tenant: &Arc<Tenant>,
        session: &SessionId,
        command: RewindCommand,
    ) -> Result<RewindOutcome, EngineError> {
        let session = SessionRef::new(tenant, session);
        let options = UpdateOptions {
            when_absent: WhenAbsent::Fail,
            bytes: queue_bytes(&command.append, tenant),
            needs_keys: command.append.idempotency.is_some(),
            is_optional: false,
        };
        let is_stored = self.shared.sessions.have_journal();
        let (mut request, mut unloads) = (None, false);
        let rewound = self.shared.sessions.update(&session, options, |update| {
            let decision = decide(update, &command, is_stored)?;
            unloads = matches!(decision.effect, Some(Effect::ChangeAndUnload { .. }));
            let Update { now, policy, .. } = *update;
            let session = &mut *update.session;
            request = session.consider_append(now.steady, &policy.compaction, &policy.limits);
            Ok::<_, EngineError>(decision)
        });
        let mut outcome = rewound.await?;
        if unloads {
            // Only the journal knows which summary stands now; who asks next should know as well.
            let loaded = self.shared.sessions.view(&session, |_, view| view).await;
            outcome.session = loaded.unwrap_or(outcome.session);
        }
        if let Some(trigger) = request {
            let request = CompactionRequest::new(session, trigger);
            self.shared.compaction_queue.request(request);
        }
        Ok(outcome)
    }
}

fn decide(
    update: &mut Update<'_>,
    command: &RewindCommand,
    is_stored: bool,
) -> Result<Decision<RewindOutcome>, EngineError> {
    let (key, limits, now) = (update.key, &update.policy.limits, update.now);
    let RewindDecision {
        record,
        removed,
        mut changes,
        must_reload,
    } = update
        .session
        .rewind(key, command, limits, now, encoding::seal, is_stored)?;
    let duplicate = changes.is_empty();
    if duplicate && update.may_note_use {
        changes.push(update.session.touch(now));
    }
    let dropped_turns = if duplicate { 0 } else { record.dropped_turns };
    let outcome = RewindOutcome {
        session: update.view(),
        record,
        removed: removed.into_iter().map(|(_, content)| content).collect(),
        duplicate,
    };
    let effect = match must_reload {
        true => Some(Effect::ChangeAndUnload {
            changes,
            dropped_turns,
        }),
        false => (!changes.is_empty()).then_some(Effect::Change {
            changes,
            dropped_turns,
        }),
    };
    Ok(Decision::used(outcome, effect))
}
