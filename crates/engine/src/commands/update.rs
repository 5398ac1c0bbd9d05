//! The `UpdateTurn` command: replaces the content of a turn. The old content is not retained.

use std::sync::Arc;

use memoird_core::CoreError;
use memoird_core::idempotency::{IdempotencyKey, KeyRecord};
use memoird_core::ids::{Generation, SessionId};
use memoird_core::limits::Limits;
use memoird_core::session::TurnUpdate;
use memoird_core::turn::{NewTurn, Turn};
use memoird_store::{JournalRange, encoding};

use super::handle::Commands;
use super::history::{HistoryQuery, HistoryScope};
use crate::error::EngineError;
use crate::sessions::{Decision, Effect, SessionRef, SessionView, UpdateOptions};
use crate::tenants::Tenant;

/// Attempts to update a turn from the journal. A new generation may start in between.
const ATTEMPTS_MAX: usize = 3;

/// Turns and bytes read at once when searching for a client-assigned id.
const SEARCH_PAGE_TURNS: usize = 512;
const SEARCH_PAGE_BYTES: usize = 1 << 20;

#[derive(Clone, Debug)]
pub enum TurnRef {
    Seq(u64),
    /// Client-assigned id.
    ClientId(String),
}

#[derive(Clone, Debug)]
pub struct TurnUpdateCommand {
    pub turn_name: TurnRef,
    /// The new turn. The pin is unchanged, and so are time and format unless the turn sets them.
    pub turn: Turn,
    /// Fail unless this is the live generation.
    pub expected_generation: Option<Generation>,
    pub idempotency: Option<IdempotencyKey>,
}

#[derive(Clone, Debug)]
pub struct TurnUpdateOutcome {
    /// The session after the update. `None` for a duplicate if the session has since ended.
    pub session: Option<SessionView>,
    /// The turn as it is now. `None` for a duplicate if the turn is no longer stored.
    pub content: Option<Arc<[u8]>>,
    /// Whether the turn was rewound, so that only the journal has it.
    pub is_removed: bool,
    /// Whether the idempotency key was already used, so that nothing was changed.
    pub duplicate: bool,
}

/// Result of an update under the session's lock.
enum LiveUpdate {
    Updated(TurnUpdateOutcome),
    Duplicate(KeyRecord),
}

/// A turn that is only in the journal.
struct JournaledTurn {
    generation: Option<Generation>,
    content: Arc<[u8]>,
    is_removed: bool,
}

impl Commands {
    /// Replaces the content of a turn in a live session. Does not count as a use.
    ///
    /// The role, calls and results must stay the same, so that tool units remain intact. Summaries
    /// that cover the turn, and cached window state, are removed with the old content. Returns once
    /// the change is as durable as configured.
    ///
    /// # Errors
    /// [`EngineError::SessionNotFound`], [`EngineError::TurnNotFound`],
    /// [`EngineError::ClientIdNotFound`], [`EngineError::ClientIdNotUnique`], an invalid command, a
    /// full journal queue, or an error of the journal.
    pub async fn update_turn(
        &self,
        tenant: &Arc<Tenant>,
        session: &SessionId,
        command: TurnUpdateCommand,
    ) -> Result<TurnUpdateOutcome, EngineError> {
        let idempotency = command.idempotency;
        let record = match self.update_live(tenant, session, command).await {
            Ok(LiveUpdate::Updated(outcome)) => return Ok(outcome),
            Ok(LiveUpdate::Duplicate(record)) => record,
            // Since the first call, the session may have ended, or the turn lost its client id.
            Err(error) if is_not_found(&error) => {
                let session = SessionRef::new(tenant, session);
                let used = self.shared.sessions.used_key(&session, idempotency);
                used.await?.ok_or(error)?
            }
            Err(error) => return Err(error),
        };
        self.read_updated(tenant, session, record).await
    }

    async fn update_live(
        &self,
        tenant: &Arc<Tenant>,
        session: &SessionId,
        mut command: TurnUpdateCommand,
    ) -> Result<LiveUpdate, EngineError> {
        let seq = match &command.turn_name {
            TurnRef::Seq(seq) => *seq,
            TurnRef::ClientId(id) => {
                let (generation, seq) = self.find_client_id(tenant, session, id).await?;
                command.expected_generation.get_or_insert(generation);
                seq
            }
        };
        let session = SessionRef::new(tenant, session);
        let mut journaled = None;
        for _ in 0..ATTEMPTS_MAX {
            let updated = self.try_update(&session, seq, &command, journaled.as_ref());
            if let Some(updated) = updated.await? {
                return Ok(updated);
            }
            journaled = self.read_journaled_turn(&session, seq).await?;
            if journaled.is_none() {
                break;
            }
        }
        Err(EngineError::TurnNotFound {
            session: session.key.session.clone(),
            seq,
        })
    }

    /// Reads the turn that an earlier call updated, and the session if it is live.
    async fn read_updated(
        &self,
        tenant: &Arc<Tenant>,
        session: &SessionId,
        record: KeyRecord,
    ) -> Result<TurnUpdateOutcome, EngineError> {
        let mut outcome = TurnUpdateOutcome {
            session: None,
            content: None,
            is_removed: false,
            duplicate: true,
        };
        let query = HistoryQuery {
            scope: HistoryScope::Longest,
            generation: Some(record.generation),
            range: JournalRange {
                after_seq: record.last_seq.saturating_sub(1),
                before_seq: record.last_seq.saturating_add(1),
                with_rewound: true,
                ..JournalRange::ALL
            },
        };
        match self.history(tenant, session, query).await {
            Ok(mut page) => {
                outcome.is_removed = page.rewound.contains(&record.last_seq);
                outcome.content = page.turns.pop();
            }
            Err(error) if is_not_found(&error) => {}
            Err(error) => return Err(error),
        }
        match self.session(tenant, session).await {
            Ok(view) => outcome.session = Some(view),
            Err(error) if is_not_found(&error) => {}
            Err(error) => return Err(error),
        }
        Ok(outcome)
    }

    /// Searches the turns of the live generation, page by page, for a client-assigned id.
    async fn find_client_id(
        &self,
        tenant: &Arc<Tenant>,
        session: &SessionId,
        client_id: &str,
    ) -> Result<(Generation, u64), EngineError> {
        let live = SessionRef::new(tenant, session);
        let head = self.shared.sessions.head(&live).await?.head;
        let mut range = JournalRange {
            with_rewound: true,
            turns_max: SEARCH_PAGE_TURNS,
            bytes_max: SEARCH_PAGE_BYTES,
            ..JournalRange::ALL
        };
        let (mut kept, mut rewound) = (Vec::new(), Vec::new());
        loop {
            let query = HistoryQuery {
                scope: HistoryScope::Longest,
                generation: Some(head.generation),
                range,
            };
            let page = self.history(tenant, session, query).await?;
            for turn in &page.turns {
                let Some(seq) = encoding::seq_of_client_id(turn, client_id) else {
                    continue;
                };
                match page.rewound.binary_search(&seq) {
                    Ok(_) => rewound.push(seq),
                    Err(_) => kept.push(seq),
                }
            }
            range.after_seq = page.next_after_seq();
            if range.after_seq == 0 {
                break;
            }
        }
        let seqs = if kept.is_empty() { rewound } else { kept };
        let (session, client_id) = (session.clone(), client_id.to_owned());
        match *seqs {
            [] => Err(EngineError::ClientIdNotFound { session, client_id }),
            [seq] => Ok((head.generation, seq)),
            [first, second, ..] => Err(EngineError::ClientIdNotUnique {
                session,
                client_id,
                first,
                second,
            }),
        }
    }

    /// Tries to update. Returns `None` if the turn must be read from the journal first.
    async fn try_update(
        &self,
        session: &SessionRef,
        seq: u64,
        command: &TurnUpdateCommand,
        journaled: Option<&JournaledTurn>,
    ) -> Result<Option<LiveUpdate>, EngineError> {
        let is_stored = self.shared.sessions.have_journal();
        let bytes = encoding::encode(command.turn.clone()).body.len();
        if is_stored {
            session.tenant.check_journal_room(bytes as u64)?;
        }
        let mut unloads = false;
        let options = UpdateOptions {
            key: command.idempotency.map(|named| named.key),
            ..UpdateOptions::of_live(bytes)
        };
        let updated = self.shared.sessions.update(session, options, |update| {
            let (limits, now) = (&update.policy.limits, update.now);
            let known = update
                .session
                .known_record(command.idempotency, limits, now)?;
            if let Some(record) = known {
                return Ok(Decision::unused(Some(LiveUpdate::Duplicate(record)), None));
            }
            let head = update.session.head();
            head.check_generation(command.expected_generation)?;
            let record = update.session.history().turn(seq);
            let known = match (record, journaled) {
                (Some(record), _) => Some((&record.content, false)),
                (None, Some(known)) if known.generation == Some(head.generation) => {
                    Some((&known.content, known.is_removed))
                }
                _ => None,
            };
            let Some((before, is_removed)) = known else {
                return Ok::<_, EngineError>(Decision::intermediate(None));
            };
            let Some(change) = turn_update(seq, command, before, limits)? else {
                return Ok(Decision::intermediate(None));
            };
            let updated =
                update
                    .session
                    .update_turn(&change, limits, now, &encoding::seal, is_stored);
            let decided = updated?;
            unloads = decided.must_reload;
            let outcome = TurnUpdateOutcome {
                session: Some(update.view()),
                content: Some(decided.content),
                is_removed,
                duplicate: false,
            };
            // With `must_reload`, only the journal knows the summary afterwards.
            let effect = Effect::new(decided.changes, decided.must_reload);
            Ok(Decision::unused(Some(LiveUpdate::Updated(outcome)), effect))
        });
        let mut updated = updated.await?;
        if let (true, Some(LiveUpdate::Updated(outcome))) = (unloads, &mut updated) {
            // Only the journal knows the current summary.
            let loaded = self.shared.sessions.view(session, |_, view| view).await;
            outcome.session = loaded.ok().or(outcome.session.take());
        }
        Ok(updated)
    }

    /// Reads the turn from the journal.
    async fn read_journaled_turn(
        &self,
        session: &SessionRef,
        seq: u64,
    ) -> Result<Option<JournaledTurn>, EngineError> {
        if seq == 0 || !self.shared.sessions.have_journal() {
            return Ok(None);
        }
        let range = JournalRange {
            after_seq: seq - 1,
            before_seq: seq.saturating_add(1),
            with_rewound: true,
            ..JournalRange::ALL
        };
        let page = self.shared.sessions.read_journal(session, None, range);
        let Some(mut page) = page.await? else {
            return Ok(None);
        };
        Ok(page.turns.pop().map(|(_, content)| JournaledTurn {
            generation: page.generation,
            content,
            is_removed: !page.rewound.is_empty(),
        }))
    }
}

fn is_not_found(error: &EngineError) -> bool {
    matches!(
        error,
        EngineError::SessionNotFound { .. }
            | EngineError::GenerationNotFound { .. }
            | EngineError::TurnNotFound { .. }
            | EngineError::ClientIdNotFound { .. }
            | EngineError::ClientIdNotUnique { .. }
    )
}

/// Validates the update. Returns `None` if the stored turn is damaged.
fn turn_update(
    seq: u64,
    command: &TurnUpdateCommand,
    content: &[u8],
    limits: &Limits,
) -> Result<Option<TurnUpdate>, CoreError> {
    let Some(before) = encoding::open(content) else {
        return Ok(None);
    };
    let mut turn = command.turn.clone();
    turn.pinned = before.pinned;
    turn.timestamp = turn.timestamp.or(before.timestamp);
    turn.format = turn.format.or(before.format);
    turn.check(0, limits)?;
    let after: NewTurn = encoding::encode(turn);
    limits.check_turn_bytes(0, after.body.len())?;
    Ok(Some(TurnUpdate {
        seq,
        before: encoding::encode(before),
        bytes_before: content.len(),
        after,
        idempotency: command.idempotency,
    }))
}
