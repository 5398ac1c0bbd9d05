//! A turn says something else, in its place.

use std::sync::Arc;

use super::{History, TurnRecord};
use crate::change::Totals;
use crate::mark::Mark;

impl History {
    /// The turn of this seq, where the history or windows still have it.
    pub fn turn(&self, seq: u64) -> Option<&TurnRecord> {
        let apart = self.anchor.iter().chain(self.preamble());
        let found = self.find(seq);
        found.or_else(|| apart.into_iter().find(|record| record.seq == seq))
    }

    /// Gives a turn another content; its role and what ties it to others stay. False where it has
    /// none of this seq.
    pub(crate) fn update(&mut self, seq: u64, content: Arc<[u8]>, mark: Mark) -> bool {
        let aside = self.aside.iter_mut();
        let aside = aside.flat_map(|aside| aside.pinned.iter_mut().chain(&mut aside.preamble));
        let mut all = self.anchor.iter_mut().chain(&mut self.tail).chain(aside);
        let Some(record) = all.find(|record| record.seq == seq) else {
            return false;
        };
        record.set_content(content);
        record.note_mark(mark);
        self.count_capped();
        self.reshaped += 1;
        true
    }

    /// Counts what the caps count.
    pub(super) fn count_capped(&mut self) {
        let records = self.capped_turns();
        self.capped = records.fold(Totals::default(), |sum, record| sum.plus(record.totals()));
    }
}
