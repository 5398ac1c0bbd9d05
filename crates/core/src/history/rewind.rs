//! Rewinding the newest turns, in whole units.

use super::{History, TurnRecord};
use crate::error::CoreError;
use crate::seq_ranges::SeqRanges;

/// Maximum runs of rewound turns before the tail's front that a history stores.
///
/// Older ones count as dropped, so windows report too many turns as not shown.
pub const REWOUND_BEFORE_MAX: usize = 256;

impl History {
    /// Removes all turns after `after_seq`, including the separately stored ones.
    ///
    /// `last_seq` is the newest turn of the generation. Returns the removed turns in ascending
    /// order, without those that were dropped before.
    ///
    /// # Errors
    /// [`CoreError::RewindSplitsUnit`]. Nothing is removed then.
    pub fn rewind(&mut self, after_seq: u64, last_seq: u64) -> Result<Vec<TurnRecord>, CoreError> {
        if after_seq >= last_seq {
            return Ok(Vec::new());
        }
        let preamble = self
            .preamble()
            .iter()
            .filter(|record| record.seq > after_seq);
        let mut removed: Vec<TurnRecord> = preamble
            .chain(self.turns_after(after_seq))
            .cloned()
            .collect();
        removed.sort_by_key(TurnRecord::seq);
        for record in &removed {
            if let Some(mate) = record.mates().filter(|mate| *mate <= after_seq).min() {
                return Err(CoreError::RewindSplitsUnit {
                    after_seq,
                    first_seq: mate,
                    last_seq: record.seq,
                });
            }
        }
        self.anchor.take_if(|anchor| anchor.seq > after_seq);
        let stays = |record: &TurnRecord| record.seq <= after_seq;
        let aside = self.aside.get_or_insert_default();
        aside.pinned.retain(stays);
        aside.preamble.retain(stays);
        aside.holes.retain(|hole| *hole <= after_seq);
        aside.open.retain(|_, calls| {
            calls.retain(|call| *call <= after_seq);
            !calls.is_empty()
        });
        if after_seq == 0 {
            // The dropped calls are rewound too, so their results are no longer accepted.
            aside.departed.clear();
            aside.departed_overflow = false;
        }
        aside.rewound.add_last(after_seq + 1, last_seq);
        let end = self.tail.partition_point(stays);
        self.tail.truncate(end);
        self.count_capped();
        self.reshaped += 1;
        self.forget_holes_before_tail();
        Ok(removed)
    }

    /// Whether FIFO has dropped a turn after `after_seq` along with its unit.
    ///
    /// `last_seq` is the last assigned seq of the generation. If so, only the journal can tell
    /// whether a rewind would split that unit. A rewind to 0 splits no unit.
    pub fn has_dropped_after(&self, after_seq: u64, last_seq: u64) -> bool {
        if after_seq == 0 || after_seq >= last_seq {
            return false;
        }
        let front = self.tail.front().map_or(last_seq + 1, |front| front.seq);
        let apart = self
            .anchor
            .iter()
            .chain(self.pinned())
            .chain(self.preamble())
            .filter(|record| (after_seq + 1..front).contains(&record.seq));
        let aside = self.aside.as_ref();
        let holes = aside.map_or(0, |aside| aside.holes.range(after_seq + 1..).count());
        let said = self.turns_before(front) - self.turns_before(front.min(after_seq + 1));
        said > apart.count() as u64 || holes > 0
    }

    /// Whether the generation had turns between these two that the history lacks there.
    pub fn has_gap(&self, first_seq: u64, last_seq: u64) -> bool {
        match self.rewound() {
            Some(rewound) => rewound.rest(first_seq + 1, last_seq).next().is_some(),
            None => first_seq + 1 < last_seq,
        }
    }

    /// The newest turn that was not rewound. `last_seq` is the last assigned seq of the generation.
    pub(crate) fn newest_seq(&self, last_seq: u64) -> u64 {
        let run = self.rewound().and_then(|rewound| rewound.run_of(last_seq));
        run.map_or(last_seq, |(first, _)| first - 1)
    }

    /// Seqs of rewound turns: all after the tail's front, and the newest before it.
    pub fn rewound(&self) -> Option<&SeqRanges> {
        self.aside.as_ref().map(|aside| &aside.rewound)
    }

    /// Removes the oldest runs of rewound turns.
    pub(super) fn bound_rewound(&mut self) {
        let front = self.tail.front().map_or(u64::MAX, |front| front.seq);
        if let Some(aside) = &mut self.aside {
            aside.rewound.bound_before(front, REWOUND_BEFORE_MAX);
        }
    }

    /// Number of turns of the generation before `seq`, without rewound ones.
    pub(super) fn turns_before(&self, seq: u64) -> u64 {
        match self.rewound() {
            Some(rewound) => rewound.rest(1, seq).map(|(first, end)| end - first).sum(),
            None => seq.saturating_sub(1),
        }
    }
}
