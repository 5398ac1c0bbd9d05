//! The newest turns of a session are taken back, and others may take their place.
//!
//! One change set has all of it: the summaries that stand for a turn that goes (which one stands
//! then only the store knows, so the session is loaded again), cuts that were made when the turn
//! was there, the turns, and the new ones. A compaction under way loses its number, so it changes
//! nothing.
//!
//! The rows of the turns stay in the journal until retention, and their bytes count. A head has two
//! ends: `last_seq`, the highest seq that was given, and `newest_seq`, the newest turn that is
//! there, which `expected_seq` is compared with. A history knows which seqs behind its front were
//! rewound, so that windows do not take them for turns that were dropped.

use std::sync::Arc;

use super::{AppendCommand, Seal, Session, check_expectations};
use crate::change::{Change, ChangeKind, Rewound, SummaryChange};
use crate::error::CoreError;
use crate::idempotency::{Fingerprint, IdempotencyKey, KeyRecord};
use crate::ids::SessionKey;
use crate::limits::Limits;
use crate::seq_ranges::SeqRanges;
use crate::time::Now;

/// Turns to be taken back.
#[derive(Clone, Debug, Default)]
pub struct RewindCommand {
    /// The newest turn that stays; 0: none.
    pub after_seq: u64,
    /// What is said instead; it may have no turns. Its expectations and its idempotency key are
    /// those of the rewind.
    pub append: AppendCommand,
}

/// What a rewind did.
#[derive(Clone, Debug)]
pub struct RewindDecision {
    /// What to answer, now and to a repetition: which turns were added.
    pub record: KeyRecord,
    /// The turns that windows and the history had and that are gone, ascending: seq and content.
    pub removed: Vec<(u64, Arc<[u8]>)>,
    /// What to write, all of it or nothing; none for a repetition.
    pub changes: Vec<Change>,
    /// True when a summary was taken back of which a store may have the one before: then the
    /// session must be loaded again.
    pub must_reload: bool,
}

impl Session {
    /// Takes the turns after one of them back, and adds others: all of it or nothing. Seqs are
    /// not given again. `is_stored`: a store has the summaries before the last.
    ///
    /// # Errors
    /// [`CoreError::RewindBeyondEnd`], [`CoreError::RewindSplitsUnit`], and what an append is
    /// refused for.
    pub fn rewind(
        &mut self,
        key: &SessionKey,
        command: &RewindCommand,
        limits: &Limits,
        now: Now,
        seal: Seal<'_>,
        is_stored: bool,
    ) -> Result<RewindDecision, CoreError> {
        if let Some(record) = self.known_record(command.append.idempotency, limits, now)? {
            self.head.last_access = now.steady;
            return Ok(RewindDecision {
                record,
                removed: Vec::new(),
                changes: Vec::new(),
                must_reload: false,
            });
        }
        check_expectations(&command.append, Some(&self.head))?;
        let append = &command.append;
        let last_seq = self.head.last_seq;
        let after_seq = match command.after_seq {
            after_seq if after_seq > last_seq => {
                return Err(CoreError::RewindBeyondEnd {
                    after_seq,
                    last_seq,
                });
            }
            // There is nothing behind it that was not taken back before.
            after_seq if after_seq >= self.head.newest_seq => last_seq,
            after_seq => after_seq,
        };
        // What is refused later leaves no trace.
        let mut next = self.clone();
        let removed = next.history.rewind(after_seq, last_seq)?;
        let taken = append.idempotency.filter(|_| !removed.is_empty());
        let taken = taken.map(|named| {
            let seqs = removed.iter().map(|turn| (turn.seq, turn.seq));
            (named.key, SeqRanges::restore(seqs))
        });
        if let Some(windows) = next.windows.as_mut().filter(|_| after_seq < last_seq) {
            // Before the cuts are written: those that show what is gone are not.
            windows.rewind(after_seq, last_seq);
        }
        let compacted = next.rewind_summaries(after_seq);
        let must_reload = is_stored && compacted.as_ref().is_some_and(takes_summary_back);
        let mut changes = Vec::from_iter(compacted);
        let mut record = next.rewind_keys(append, after_seq, limits, now);
        changes.push(next.rewind_turns(key, append, after_seq, taken, record, now));
        if !append.turns.is_empty() {
            let appended = next.add_turns(key, append, limits, now, seal)?;
            record = appended.record;
            changes.extend(appended.changes);
        }
        *self = next;
        Ok(RewindDecision {
            record,
            removed: removed
                .into_iter()
                .map(|turn| (turn.seq, turn.content))
                .collect(),
            changes,
            must_reload,
        })
    }

    /// Notes that the keys of the turns after this one stand for nothing any more, and what a rewind
    /// that adds no turns did.
    fn rewind_keys(
        &mut self,
        append: &AppendCommand,
        after_seq: u64,
        limits: &Limits,
        now: Now,
    ) -> KeyRecord {
        let last_seq = self.head.last_seq;
        let keys = self.keys.as_mut().filter(|_| after_seq < last_seq);
        if let Some(keys) = keys {
            keys.rewind(self.head.generation, after_seq);
        }
        let named = append.idempotency.filter(|_| append.turns.is_empty());
        let nameless = IdempotencyKey {
            key: [0; 16],
            content: [0; 16],
        };
        let record = self.record_of(named.unwrap_or(nameless), now);
        if let Some(named) = named {
            let keys = self.keys.get_or_insert_default();
            keys.remember(named.key, record, limits);
        }
        record
    }

    /// Notes that the history has no turns after this one any more.
    fn rewind_turns(
        &mut self,
        key: &SessionKey,
        append: &AppendCommand,
        after_seq: u64,
        taken: Option<(Fingerprint, SeqRanges)>,
        record: KeyRecord,
        now: Now,
    ) -> Change {
        let through_seq = self.head.last_seq;
        self.head.last_access = now.steady;
        self.head.newest_seq = self.history.newest_seq(through_seq);
        self.head.totals = self.history.totals();
        self.head.partial &= after_seq == through_seq;
        let named = append.idempotency.filter(|_| append.turns.is_empty());
        let rewound = ChangeKind::Rewind(Box::new(Rewound {
            key: key.clone(),
            after_seq,
            through_seq,
            newest_seq: self.head.newest_seq,
            taken,
            kept: self.history.live_set(through_seq),
            totals: self.head.totals,
            partial: self.head.partial,
            last_access: self.written_access(now.steady),
            idempotency: named.map(|named| (named.key, record)),
            cuts: self.take_changed_cuts(),
        }));
        self.head.change(rewound)
    }

    /// Takes back the summaries that stand for a turn after this one, and sees to it that none is
    /// made of what was there.
    pub(super) fn rewind_summaries(&mut self, after_seq: u64) -> Option<Change> {
        let last_seq = self.head.last_seq;
        if after_seq >= last_seq {
            return None;
        }
        let mut status = self.compaction();
        if self.compacting.is_none() && !status.running {
            return None;
        }
        let compacting = self.compacting.get_or_insert_default();
        compacting.forget_after(after_seq);
        let is_gone = |through_seq: u64| through_seq > after_seq;
        let mut standing = compacting.summary.clone();
        let has_covered = standing.as_ref().is_some_and(|it| is_gone(it.through_seq));
        while standing.as_ref().is_some_and(|it| is_gone(it.through_seq)) {
            standing = compacting.earlier.pop();
        }
        compacting.summary = standing.clone();
        if !has_covered && !status.running {
            return None;
        }
        if status.running {
            // The one that is being made does not get this number.
            status.summaries += 1;
        }
        if !has_covered {
            return Some(self.compaction_change(status, SummaryChange::Stays));
        }
        status.through_seq = standing.as_ref().map_or(0, |it| it.through_seq);
        status.at_seq = last_seq;
        if let Some(windows) = &mut self.windows {
            windows.note_summary_undone(standing.map_or(0, |it| it.number));
        }
        Some(self.compaction_change(status, SummaryChange::Rewound { after_seq }))
    }
}

pub(super) fn takes_summary_back(change: &Change) -> bool {
    matches!(
        &change.kind,
        ChangeKind::Compact {
            summary: SummaryChange::Rewound { .. },
            ..
        }
    )
}
