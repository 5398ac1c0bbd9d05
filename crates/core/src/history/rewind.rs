//! Taking the newest turns back, in whole units.

use super::{History, TurnRecord};
use crate::error::CoreError;
use crate::seq_ranges::SeqRanges;

/// Runs of rewound turns before the tail's front that a history knows. What is older counts as
/// dropped: windows then say of more turns than there were that they are not shown.
pub const REWOUND_BEFORE_MAX: usize = 256;

impl History {
    /// Removes all turns after `after_seq`, those that stand apart included, of a generation whose
    /// newest turn is `last_seq`. Gives them, ascending; without those that had left already.
    ///
    /// # Errors
    /// [`CoreError::RewindSplitsUnit`]; then nothing is removed.
    pub fn rewind(&mut self, after_seq: u64, last_seq: u64) -> Result<Vec<TurnRecord>, CoreError> {
        if after_seq >= last_seq {
            return Ok(Vec::new());
        }
        let preamble = self.preamble().iter();
        let preamble = preamble.filter(|record| record.seq > after_seq);
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
            // Nobody waits for the calls that left any more.
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

    /// True where first in, first out has dropped a turn after `after_seq` with its unit, of a
    /// generation that gave seqs up to `last_seq`: whether a rewind would tear that unit apart,
    /// only a journal knows. No unit reaches behind 0.
    pub fn has_dropped_after(&self, after_seq: u64, last_seq: u64) -> bool {
        if after_seq == 0 || after_seq >= last_seq {
            return false;
        }
        let front = self.tail.front().map_or(last_seq + 1, |front| front.seq);
        let apart = self
            .anchor
            .iter()
            .chain(self.pinned())
            .chain(self.preamble());
        let apart = apart.filter(|record| (after_seq + 1..front).contains(&record.seq));
        let aside = self.aside.as_ref();
        let holes = aside.map_or(0, |aside| aside.holes.range(after_seq + 1..).count());
        let said = self.turns_before(front) - self.turns_before(front.min(after_seq + 1));
        said > apart.count() as u64 || holes > 0
    }

    /// True where turns were said between these two that the history does not have there.
    pub fn has_gap(&self, first_seq: u64, last_seq: u64) -> bool {
        match self.rewound() {
            Some(rewound) => rewound.rest(first_seq + 1, last_seq).next().is_some(),
            None => first_seq + 1 < last_seq,
        }
    }

    /// The newest turn that was not rewound, of a generation that gave seqs up to `last_seq`.
    pub(crate) fn newest_seq(&self, last_seq: u64) -> u64 {
        let run = self.rewound().and_then(|rewound| rewound.run_of(last_seq));
        run.map_or(last_seq, |(first, _)| first - 1)
    }

    /// The seqs of rewound turns: all after the tail's front, and the newest before.
    pub fn rewound(&self) -> Option<&SeqRanges> {
        self.aside.as_ref().map(|aside| &aside.rewound)
    }

    /// Forgets the oldest runs of rewound turns.
    pub(super) fn bound_rewound(&mut self) {
        let front = self.tail.front().map_or(u64::MAX, |front| front.seq);
        if let Some(aside) = &mut self.aside {
            aside.rewound.bound_before(front, REWOUND_BEFORE_MAX);
        }
    }

    /// How many turns of the generation are before this one, without rewound ones.
    pub(super) fn turns_before(&self, seq: u64) -> u64 {
        match self.rewound() {
            Some(rewound) => rewound.rest(1, seq).map(|(first, end)| end - first).sum(),
            None => seq.saturating_sub(1),
        }
    }
}
