//! Rewinding the newest turns of a session, optionally replacing them with others.
//!
//! One change set deletes the summaries that cover a rewound turn and the cuts made while the turns
//! existed, rewinds the turns, and appends the new ones. Only the store knows which summary becomes
//! current, so the session must be loaded again. A running compaction loses its number and has no
//! effect.
//!
//! The rows of the turns remain in the journal until retention, and their bytes count. The head has
//! two ends: `last_seq` is the highest assigned seq, and `newest_seq` is the newest remaining turn,
//! which `expected_seq` is compared with. The history stores which seqs were rewound, so that
//! windows do not report them as dropped.

use std::sync::Arc;

use super::{AppendCommand, Seal, Session, check_expectations};
use crate::change::{Change, ChangeKind, Rewound, SummaryChange};
use crate::error::CoreError;
use crate::idempotency::{Fingerprint, IdempotencyKey, KeyRecord};
use crate::ids::SessionKey;
use crate::limits::Limits;
use crate::seq_ranges::SeqRanges;
use crate::time::Now;

#[derive(Clone, Debug, Default)]
pub struct RewindCommand {
    /// Newest turn that remains, 0 for none.
    pub after_seq: u64,
    /// Replacement turns, possibly none. Its expectations and idempotency key apply to the rewind.
    pub append: AppendCommand,
}

/// Result of a rewind.
#[derive(Clone, Debug)]
pub struct RewindDecision {
    /// Response to this command and to its repetitions, with the appended turns.
    pub record: KeyRecord,
    /// Seq and content of the rewound turns that were in the history or in windows, ascending.
    pub removed: Vec<(u64, Arc<[u8]>)>,
    /// Changes to write atomically. Empty for a repetition.
    pub changes: Vec<Change>,
    /// Whether the session must be loaded again.
    ///
    /// True if a summary was deleted and the store may have the one before it.
    pub must_reload: bool,
}

impl Session {
    /// Rewinds the turns after `command.after_seq` and appends others, atomically.
    ///
    /// Seqs are not reused. `is_stored` means that a store has the earlier summaries.
    ///
    /// # Errors
    /// [`CoreError::RewindBeyondEnd`], [`CoreError::RewindSplitsUnit`], and the errors of an
    /// append.
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
            // All later turns were already rewound.
            after_seq if after_seq >= self.head.newest_seq => last_seq,
            after_seq => after_seq,
        };
        // Work on a copy, so that a later rejection leaves no trace.
        let mut next = self.clone();
        let removed = next.history.rewind(after_seq, last_seq)?;
        let taken = append
            .idempotency
            .filter(|_| !removed.is_empty())
            .map(|named| {
                let seqs = removed.iter().map(|turn| (turn.seq, turn.seq));
                (named.key, SeqRanges::restore(seqs))
            });
        if let Some(windows) = next.windows.as_mut().filter(|_| after_seq < last_seq) {
            // Before the cuts are written, remove those that show rewound turns.
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

    /// Marks the idempotency keys of rewound turns, and records a rewind that appends no turns.
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
        if let Some((_, record)) = self.use_key(named, last_seq, limits, now) {
            return record;
        }
        let nameless = IdempotencyKey {
            key: [0; 16],
            content: [0; 16],
        };
        self.record_of(nameless, last_seq, now)
    }

    /// Creates the change for the rewound turns and updates the head.
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

    /// Deletes summaries that cover turns after `after_seq` and invalidates a running compaction.
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
            // The running compaction must not get this number.
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
