//! The `Rewind` command: removes the newest turns of a session.

use std::collections::HashMap;
use std::sync::Arc;

use memoird_core::CoreError;
use memoird_core::idempotency::{Fingerprint, KeyRecord};
use memoird_core::ids::SessionId;
use memoird_core::session::{RewindCommand, RewindDecision};
use memoird_store::{JournalRange, encoding};

use super::append::{decision, of_new, queue_bytes};
use super::handle::Commands;
use crate::compaction::CompactionRequest;
use crate::error::EngineError;
use crate::sessions::{Decision, SessionRef, SessionView, Update, UpdateOptions};
use crate::tenants::Tenant;

/// Maximum bytes of removed turns that are returned. The last one may exceed it.
const REMOVED_BYTES_MAX: usize = 2 << 20;
/// Maximum turns on each side of `after_seq`, and their bytes, searched for a split tool unit.
///
/// Only for units that the history has dropped.
const SPLIT_TURNS_MAX: usize = 1_000;
const SPLIT_BYTES_MAX: usize = 2 << 20;

#[derive(Clone, Debug)]
pub struct RewindOutcome {
    /// The session after the rewind. `None` for a duplicate if the session has since ended.
    pub session: Option<SessionView>,
    /// Record of this rewind, or of the original one for a duplicate.
    pub record: KeyRecord,
    /// Turns removed from the history, by this rewind or the original one.
    pub removed: RemovedTurns,
    /// Whether the idempotency key was already used, so that nothing was changed.
    pub duplicate: bool,
}

#[derive(Clone, Debug, Default)]
pub struct RemovedTurns {
    /// The newest removed turns, oldest first.
    pub newest: Vec<Arc<[u8]>>,
    /// Number of removed turns. For a duplicate, of those in the journal.
    pub count: u64,
    /// For a duplicate: some of the removed turns are no longer known.
    pub is_forgotten: bool,
}

impl Commands {
    /// Removes the newest turns of a session and appends others, atomically.
    ///
    /// If no session is live, a rewind to 0 with new turns starts one. Returns once the change is
    /// as durable as configured.
    ///
    /// # Errors
    /// [`EngineError::SessionNotFound`], an invalid command, a full journal queue, or an error of
    /// the journal.
    pub async fn rewind(
        &self,
        tenant: &Arc<Tenant>,
        session: &SessionId,
        command: RewindCommand,
    ) -> Result<RewindOutcome, EngineError> {
        let session = SessionRef::new(tenant, session);
        let mut is_checked = !self.shared.sessions.have_journal();
        let mut outcome = loop {
            if let Some(outcome) = self.try_rewind(&session, &command, is_checked).await? {
                break outcome;
            }
            self.check_dropped_units(&session, command.after_seq)
                .await?;
            is_checked = true;
        };
        if let (true, Some(named)) = (outcome.duplicate, command.append.idempotency) {
            outcome.removed = self
                .read_removed_turns(&session, named.key, outcome.record)
                .await?;
        }
        Ok(outcome)
    }

    /// Tries to rewind. Returns `None` if the journal must be checked first.
    async fn try_rewind(
        &self,
        session: &SessionRef,
        command: &RewindCommand,
        is_checked: bool,
    ) -> Result<Option<RewindOutcome>, EngineError> {
        let adds_turns = !command.append.turns.is_empty();
        let bytes = queue_bytes(&command.append, &session.tenant);
        let options = UpdateOptions {
            starts: command.after_seq == 0 && adds_turns,
            key: command.append.idempotency.map(|named| named.key),
            ..UpdateOptions::of_live(bytes)
        };
        let is_stored = self.shared.sessions.have_journal();
        if adds_turns && is_stored {
            session.tenant.check_journal_room(bytes as u64)?;
        }
        let (mut request, mut unloads) = (None, false);
        let rewound = self.shared.sessions.update(session, options, |update| {
            if !is_checked && needs_journal_check(update, command) {
                return Ok::<_, EngineError>(Decision::intermediate(None));
            }
            let decision = decide(update, command, is_stored)?;
            unloads = decision
                .effect
                .as_ref()
                .is_some_and(|effect| effect.unloads);
            let Update { now, policy, .. } = *update;
            let session = &mut *update.session;
            request = session.consider_append(now.steady, &policy.compaction, &policy.limits);
            Ok(decision)
        });
        let Some(mut outcome) = rewound.await? else {
            return Ok(None);
        };
        if unloads {
            // Only the journal knows the current summary. Load it, so that the reply contains it.
            let loaded = self.shared.sessions.view(session, |_, view| view).await;
            outcome.session = loaded.ok().or(outcome.session);
        }
        if let Some(trigger) = request {
            let request = CompactionRequest::new(session.clone(), trigger);
            self.shared.compaction_queue.request(request);
        }
        Ok(Some(outcome))
    }

    /// Checks in the journal that the rewind does not split a dropped tool unit.
    async fn check_dropped_units(
        &self,
        session: &SessionRef,
        after_seq: u64,
    ) -> Result<(), EngineError> {
        let range = JournalRange {
            turns_max: SPLIT_TURNS_MAX,
            bytes_max: SPLIT_BYTES_MAX,
            ..JournalRange::ALL
        };
        let before = JournalRange {
            before_seq: after_seq.saturating_add(1),
            last: true,
            ..range
        };
        let behind = JournalRange { after_seq, ..range };
        let splits = |first_seq, last_seq| {
            Err(EngineError::Core(CoreError::RewindSplitsUnit {
                after_seq,
                first_seq,
                last_seq,
            }))
        };
        let (mut open, mut named) = (HashMap::new(), HashMap::new());
        for (range, is_behind) in [(before, false), (behind, true)] {
            let page = self.shared.sessions.read_journal(session, None, range);
            for (seq, content) in page.await?.unwrap_or_default().turns {
                let Some(turn) = encoding::open(&content) else {
                    continue;
                };
                let links = turn.links();
                for result in links.results {
                    if let (Some(first_seq), true) = (open.remove(&result), is_behind) {
                        return splits(first_seq, seq);
                    }
                }
                for id in links.refs {
                    if let (Some(first_seq), true) = (named.get(&id).copied(), is_behind) {
                        return splits(first_seq, seq);
                    }
                }
                for name in links.names.into_iter().chain(links.uses.clone()) {
                    if is_behind {
                        named.remove(&name);
                    } else {
                        named.insert(name, seq);
                    }
                }
                for call in links.uses {
                    if is_behind {
                        open.remove(&call);
                    } else {
                        open.insert(call, seq);
                    }
                }
            }
        }
        Ok(())
    }

    /// The turns that the rewind with this key removed, as far as the journal has them.
    async fn read_removed_turns(
        &self,
        session: &SessionRef,
        key: Fingerprint,
        record: KeyRecord,
    ) -> Result<RemovedTurns, EngineError> {
        let mut removed = RemovedTurns {
            is_forgotten: !self.shared.sessions.have_journal(),
            ..RemovedTurns::default()
        };
        if removed.is_forgotten {
            return Ok(removed);
        }
        let sessions = &self.shared.sessions;
        let generation = record.generation;
        let taken = sessions.rewound_by(session, generation, key).await?;
        removed.count = taken.count();
        let mut bytes_left = REMOVED_BYTES_MAX;
        for (first, last) in taken.iter().rev() {
            let range = JournalRange {
                after_seq: first - 1,
                before_seq: last.saturating_add(1),
                last: true,
                with_rewound: true,
                turns_max: usize::MAX,
                bytes_max: bytes_left,
            };
            let page = sessions.read_journal(session, Some(generation), range);
            let Some(page) = page.await? else {
                removed.is_forgotten = true;
                break;
            };
            let contents = page.turns.into_iter().rev().map(|(_, content)| content);
            for content in contents {
                bytes_left = bytes_left.saturating_sub(content.len());
                removed.newest.push(content);
            }
            if bytes_left == 0 {
                break;
            }
        }
        removed.newest.reverse();
        Ok(removed)
    }
}

/// Whether the history has already dropped turns that the rewind removes.
fn needs_journal_check(update: &Update<'_>, command: &RewindCommand) -> bool {
    let Update { session, now, .. } = update;
    let history = session.history();
    history.has_dropped_after(command.after_seq, session.head().last_seq)
        && !session.knows(command.append.idempotency, &update.policy.limits, *now)
}

fn decide(
    update: &mut Update<'_>,
    command: &RewindCommand,
    is_stored: bool,
) -> Result<Decision<Option<RewindOutcome>>, EngineError> {
    let (key, limits, now) = (update.key, &update.policy.limits, update.now);
    let RewindDecision {
        record,
        removed,
        changes,
        must_reload,
    } = update
        .session
        .rewind(key, command, limits, now, &encoding::seal, is_stored)
        .map_err(|refusal| of_new(update.is_new, refusal))?;
    let decision = decision(update, record, changes, must_reload);
    Ok(decision.map(|appended| {
        Some(RewindOutcome {
            session: appended.session,
            record,
            removed: limit_removed(removed),
            duplicate: appended.duplicate,
        })
    }))
}

/// Limits the removed turns to those that are returned.
fn limit_removed(removed: Vec<(u64, Arc<[u8]>)>) -> RemovedTurns {
    let (count, mut bytes) = (removed.len() as u64, 0);
    let contents = removed.into_iter().rev().map(|(_, content)| content);
    let mut newest: Vec<_> = contents
        .take_while(|content| {
            let has_room = bytes < REMOVED_BYTES_MAX;
            bytes += content.len();
            has_room
        })
        .collect();
    newest.reverse();
    RemovedTurns {
        newest,
        count,
        is_forgotten: false,
    }
}
