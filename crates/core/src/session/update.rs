//! A turn says something else: what it said before is nowhere any more.
//!
//! What has the old words is taken back: summaries that stand for the turn, all cuts of the
//! session, counts and notes. The turn keeps its number, so stores number such changes apart, for
//! whoever follows the journal.

use std::sync::Arc;

use super::rewind::takes_summary_back;
use super::{Seal, Session};
use crate::change::{Change, ChangeKind, UpdatedTurn};
use crate::error::CoreError;
use crate::limits::Limits;
use crate::time::Now;
use crate::turn::NewTurn;

/// What a turn is to say.
#[derive(Clone, Debug)]
pub struct TurnUpdate {
    /// Which turn.
    pub seq: u64,
    /// As it is.
    pub before: NewTurn,
    /// Bytes of its content, as it is.
    pub bytes_before: usize,
    /// As it will be.
    pub after: NewTurn,
}

/// What the update of a turn did.
#[derive(Clone, Debug)]
pub struct UpdateDecision {
    /// The turn as it is now.
    pub content: Arc<[u8]>,
    /// Turns that left the history, because this one takes more room.
    pub dropped_turns: u64,
    /// What to write, all of it or nothing.
    pub changes: Vec<Change>,
    /// True when a summary was taken back of which a store may have the one before: then the
    /// session must be loaded again.
    pub must_reload: bool,
}

impl Session {
    /// Gives a turn another content. Summaries that stand for it and the cuts of its windows go, as
    /// they have what it said. `is_stored`: a store has the summaries before the last.
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
        let mut dropped_turns = 0;
        if self.history.update(seq, Arc::clone(&content), self.mark) {
            dropped_turns = self.trim(limits);
        }
        let mut changes = Vec::from_iter(compacted);
        let updated = ChangeKind::UpdateTurn(Box::new(UpdatedTurn {
            seq,
            content: Arc::clone(&content),
            bytes_before: update.bytes_before,
            kept: self.history.live_set(self.head.last_seq),
            totals: self.head.totals,
            cuts: self.take_changed_cuts(),
        }));
        changes.push(self.head.change(updated));
        Ok(UpdateDecision {
            content,
            dropped_turns,
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
