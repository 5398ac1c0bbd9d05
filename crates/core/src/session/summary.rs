//! Setting, failing and undoing summaries of a session.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::Session;
use crate::change::{Change, ChangeKind, SummaryChange};
use crate::compaction::{CompactionPolicy, CompactionStatus, Failure, Summary, is_apart};
use crate::ids::Generation;
use crate::time::Now;
use crate::window::ScaleId;

/// Maximum number of earlier summaries in memory if no store has them.
const EARLIER_MAX: usize = 4;

impl Session {
    /// Sets a summary that was made when `at_seq` was the newest turn.
    ///
    /// Returns `None` if the session has changed so that the summary is invalid. `remembers` keeps
    /// the replaced summary in memory, because no store has it. `is_due` lets windows show the
    /// summary at once instead of from the next cut on.
    pub fn compact(
        &mut self,
        generation: Generation,
        at_seq: u64,
        summary: &Arc<Summary>,
        remembers: bool,
        is_due: bool,
    ) -> Option<Change> {
        let mut status = self.compaction();
        status.running = false;
        let is_same = self.head.generation == generation
            && summary.number == status.summaries + 1
            && summary.first_seq == status.through_seq + 1
            && summary.through_seq <= self.head.last_seq;
        if !is_same {
            self.head.compaction = Some(Arc::new(status));
            return None;
        }
        status.succeeded();
        status.summaries = summary.number;
        status.through_seq = summary.through_seq;
        status.at_seq = at_seq;
        self.windows
            .get_or_insert_default()
            .note_summary_made(summary.number, is_due);
        let compacting = self.compacting.get_or_insert_default();
        let before = compacting.summary.replace(Arc::clone(summary));
        compacting.earlier.extend(before.filter(|_| remembers));
        if compacting.earlier.len() > EARLIER_MAX {
            compacting.earlier.remove(0);
        }
        Some(self.compaction_change(status, SummaryChange::Made(Arc::clone(summary))))
    }

    /// Records the token count of the summary on a scale, so that windows need not count it.
    pub fn note_summary_tokens(&mut self, scale: ScaleId, tokens: u64) {
        let number = self.summary().map_or(0, |summary| summary.number);
        self.windows
            .get_or_insert_default()
            .note_summary(number, scale, tokens);
    }

    pub fn compaction_failed(
        &mut self,
        generation: Generation,
        failure: &Failure,
        now: Now,
        policy: &CompactionPolicy,
    ) -> Option<Change> {
        if self.head.generation != generation {
            return None;
        }
        let mut status = self.compaction();
        status.running = false;
        status.failed(failure, now.steady, self.head.last_seq, policy);
        Some(self.compaction_change(status, SummaryChange::Stays))
    }

    /// Records that a compaction ended without a result.
    pub fn compaction_over(&mut self, generation: Generation) {
        if self.head.generation == generation && self.compaction().running {
            // Do not retry at once, because its obstacle is still there.
            let status = CompactionStatus {
                running: false,
                at_seq: self.head.last_seq,
                ..self.compaction()
            };
            self.head.compaction = Some(Arc::new(status));
        }
    }

    /// Undoes the last summary. Returns the change and the number of turns that windows show again.
    ///
    /// `None` if there is no summary, or the one before it is lost. If the store has that one, the
    /// session must be loaded again.
    pub fn undo_compaction(&mut self, is_stored: bool) -> Option<(Change, u64)> {
        let summary = Arc::clone(self.summary()?);
        let compacting = self.compacting.as_mut()?;
        let has_earlier = summary.first_seq > 1;
        let earlier = compacting.earlier.pop();
        if has_earlier && earlier.is_none() && !is_stored {
            return None;
        }
        compacting.summary = earlier;
        if let Some(windows) = &mut self.windows {
            let newest = compacting.summary.as_ref();
            windows.note_summary_undone(newest.map_or(0, |summary| summary.number));
        }
        let mut status = self.compaction();
        status.through_seq = summary.first_seq - 1;
        status.at_seq = self.head.last_seq;
        let view = self.history.view(self.head.last_seq);
        let span = summary.first_seq..=summary.through_seq;
        // The first user turn is summarized like any other, but stored separately.
        let apart = view.apart.iter().copied();
        let back = view
            .tail_from(summary.first_seq)
            .chain(apart)
            .filter(|record| span.contains(&record.seq) && !is_apart(&view, record));
        let restored = back.map(|record| record.seq).collect::<BTreeSet<_>>().len() as u64;
        let change = self.compaction_change(status, SummaryChange::Undone(summary.number));
        Some((change, restored))
    }

    /// Creates the change with the new status and summary.
    ///
    /// The last access stays, because a compaction is no use of the session. The cuts are included,
    /// so that windows continue with their prefix after a restart.
    pub(super) fn compaction_change(
        &mut self,
        status: CompactionStatus,
        summary: SummaryChange,
    ) -> Change {
        let status = Arc::new(status);
        self.head.compaction = Some(Arc::clone(&status));
        let cuts = self.take_changed_cuts();
        self.head.change(ChangeKind::Compact {
            status,
            summary,
            cuts,
        })
    }
}
