//! Replacing the content of a turn, so that the old content is gone everywhere.
//!
//! Invalidates everything derived from the old content: summaries that cover the turn, all cuts,
//! token counts and excerpts. The seq stays, so stores number such changes separately for readers
//! that follow the journal.

use std::sync::Arc;

use super::rewind::takes_summary_back;
use super::{Seal, Session};
use crate::change::{Change, ChangeKind, UpdatedTurn};
use crate::error::CoreError;
use crate::idempotency::IdempotencyKey;
use crate::limits::Limits;
use crate::time::Now;
use crate::turn::NewTurn;

#[derive(Clone, Debug)]
pub struct TurnUpdate {
    pub seq: u64,
    pub before: NewTurn,
    /// Size of the current content.
    pub bytes_before: usize,
    pub after: NewTurn,
    pub idempotency: Option<IdempotencyKey>,
}

#[derive(Clone, Debug)]
pub struct UpdateDecision {
    /// Encoded new content.
    pub content: Arc<[u8]>,
    pub changes: Vec<Change>,
    /// Whether the session must be loaded again.
    ///
    /// True if a summary was deleted and the store may have the one before it.
    pub must_reload: bool,
}

impl Session {
    /// Replaces the content of a turn.
    ///
    /// Deletes the summaries that cover the turn and all window cuts. `is_stored` means that a
    /// store has the earlier summaries.
    ///
    /// # Errors
    /// [`CoreError::TurnUpdateInvalid`], [`CoreError::HistoryFull`].
    pub fn update_turn(
        &mut self,
        update: &TurnUpdate,
        limits: &Limits,
        now: Now,
        seal: Seal<'_>,
        is_stored: bool,
    ) -> Result<UpdateDecision, CoreError> {
        check_links(update)?;
        let (seq, turn) = (update.seq, &update.after);
        let content = seal(turn, seq, turn.timestamp.unwrap_or(now.wall));
        if let Some(record) = self.history.turns_after(seq - 1).next()
            && record.seq == seq
        {
            let own = self.limits(limits);
            self.check_room(&own, limits, record.content.len(), content.len())?;
        }
        if let Some(windows) = &mut self.windows {
            windows.forget_turns();
        }
        let compacted = self.rewind_summaries(seq - 1);
        let must_reload = is_stored && compacted.as_ref().is_some_and(takes_summary_back);
        let (shared, client_bytes) = (Arc::clone(&content), turn.client_bytes);
        if self.history.update(seq, shared, client_bytes, self.nonce) {
            self.trim(limits);
        }
        let mut changes = Vec::from_iter(compacted);
        let idempotency = self.use_key(update.idempotency, seq, limits, now);
        let updated = ChangeKind::UpdateTurn(Box::new(UpdatedTurn {
            seq,
            content: Arc::clone(&content),
            bytes_before: update.bytes_before,
            kept: self.history.live_set(self.head.last_seq),
            totals: self.head.totals,
            idempotency,
            cuts: self.take_changed_cuts(),
        }));
        changes.push(self.head.change(updated));
        Ok(UpdateDecision {
            content,
            changes,
            must_reload,
        })
    }
}

fn check_links(update: &TurnUpdate) -> Result<(), CoreError> {
    let TurnUpdate {
        seq, before, after, ..
    } = update;
    let what = match (&before.links, &after.links) {
        _ if after.role != before.role => "role",
        _ if after.pinned != before.pinned => "pin",
        (was, is) if is.uses != was.uses => "list of calls",
        (was, is) if is.results != was.results => "list of results",
        _ => return Ok(()),
    };
    Err(CoreError::TurnUpdateInvalid { seq: *seq, what })
}
