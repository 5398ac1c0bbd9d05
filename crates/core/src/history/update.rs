//! Replacing the content of a turn in place.

use std::sync::Arc;

use super::Totals;
use super::{History, TurnRecord};
use crate::nonce::Nonce;

impl History {
    /// The turn of this seq, if the history or its windows still have it.
    pub fn turn(&self, seq: u64) -> Option<&TurnRecord> {
        let apart = self.anchor.iter().chain(self.preamble());
        let found = self.find(seq);
        found.or_else(|| apart.into_iter().find(|record| record.seq == seq))
    }

    /// Replaces the content of a turn, of which `client_bytes` are only for the client. Its role
    /// and ties stay.
    ///
    /// Returns false if there is no turn of this seq.
    pub(crate) fn update(
        &mut self,
        seq: u64,
        content: Arc<[u8]>,
        client_bytes: usize,
        nonce: Nonce,
    ) -> bool {
        let aside = self
            .aside
            .iter_mut()
            .flat_map(|aside| aside.pinned.iter_mut().chain(&mut aside.preamble));
        let mut all = self.anchor.iter_mut().chain(&mut self.tail).chain(aside);
        let Some(record) = all.find(|record| record.seq == seq) else {
            return false;
        };
        record.set_content(content, client_bytes);
        record.note_mark(nonce);
        self.count_capped();
        self.reshaped += 1;
        true
    }

    /// Recomputes the totals that count toward the caps.
    pub(super) fn count_capped(&mut self) {
        let records = self.capped_turns();
        self.capped = records.fold(Totals::default(), |sum, record| sum.plus(record.totals()));
    }
}
