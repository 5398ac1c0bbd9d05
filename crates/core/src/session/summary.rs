//! A session gets a summary, goes without one, or gives it back.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::Session;
use crate::change::{Change, ChangeKind, SummaryChange};
use crate::compaction::{CompactionPolicy, CompactionStatus, Failure, Summary, is_apart};
use crate::ids::Generation;
use crate::time::Now;
use crate::window::ScaleId;

/// Summaries before the last one that are remembered where no store keeps them.
const EARLIER_MAX: usize = 4;

impl Session {
    /// Sets the summary that was made when `at_seq` was the newest turn. `None`, and no change, where
    /// the session is no longer in the state that the summary was made of. `remembers`: keep the
    /// summary before it in memory, because no store does. `is_due`: windows show it at once, not
    /// when they would be cut.
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

    /// Notes what the turn of its summary weighs on a scale, so that no window has to.
    pub fn note_summary_tokens(&mut self, scale: ScaleId, tokens: u64) {
        let number = self.summary().map_or(0, |summary| summary.number);
        self.windows
            .get_or_insert_default()
            .note_summary(number, scale, tokens);
    }

    /// Notes that a compaction failed.
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

    /// Notes that a compaction is not under way any more, and did nothing.
    pub fn compaction_over(&mut self, generation: Generation) {
        if self.head.generation == generation && self.compaction().running {
            // Not tried again at once: what stood in its way is still there.
            let status = CompactionStatus {
                running: false,
                at_seq: self.head.last_seq,
                ..self.compaction()
            };
            self.head.compaction = Some(Arc::new(status));
        }
    }

    /// Takes the last summary back. Gives the change, and how many turns windows show again;
    /// `None` where there is no summary, or the one before it is lost. Where a store has that
    /// one, the session must be loaded again.
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
        // The first user turn is summarized like any other, and stored apart from the others.
        let apart = view.apart.iter().copied();
        let back = view.tail_from(summary.first_seq).chain(apart);
        let back = back.filter(|record| span.contains(&record.seq) && !is_apart(&view, record));
        let restored = back.map(|record| record.seq).collect::<BTreeSet<_>>().len() as u64;
        let change = self.compaction_change(status, SummaryChange::Undone(summary.number));
        Some((change, restored))
    }

    /// Its last access stays: a compaction is no use of the session. Its cuts are written with it,
    /// so that a restart knows which windows go on with what they showed before.
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
