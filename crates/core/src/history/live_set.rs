//! Which turns a history retains, and their totals.

use super::TurnRecord;
use crate::ids::Generation;
use crate::seq_ranges::SeqRanges;

/// The turns of a generation that its history retains.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LiveSet {
    /// First user turn, retained separately.
    pub anchor: Option<u64>,
    /// All turns from this seq on are retained, except `holes`.
    pub floor: u64,
    /// Pinned turns before the floor, ascending.
    pub pinned: Vec<u64>,
    /// System turns before the anchor that were dropped, ascending.
    pub preamble: Vec<u64>,
    /// Turns after the floor that were dropped with their unit, ascending.
    pub holes: Vec<u64>,
    /// Calls that were dropped without a result, oldest first.
    pub departed: Vec<Box<str>>,
    /// Whether `departed` exceeded its limit and lost entries.
    pub departed_overflow: bool,
}

/// Turns of an outdated session. A load reuses those that the store has unchanged.
#[derive(Clone, Debug)]
pub struct KnownTurns {
    pub generation: Generation,
    /// Ascending.
    pub records: Vec<TurnRecord>,
}

impl LiveSet {
    /// The turns that are older than its floor.
    pub fn seqs_below_floor(&self) -> impl Iterator<Item = u64> {
        let pinned = self.pinned.iter().chain(&self.anchor);
        let apart = pinned.chain(&self.preamble).copied();
        apart.filter(|seq| *seq < self.floor)
    }

    /// Whether it contains a turn. `rewound` are the rewound turns of its generation.
    pub fn contains(&self, seq: u64, rewound: &SeqRanges) -> bool {
        if seq < self.floor {
            self.seqs_below_floor().any(|below| below == seq)
        } else {
            !self.holes.contains(&seq) && !rewound.contains(seq)
        }
    }
}

impl KnownTurns {
    /// Their size in memory.
    pub fn bytes(&self) -> u64 {
        let content = self.records.iter().map(|record| record.content.len());
        (content.sum::<usize>() + self.records.len() * size_of::<TurnRecord>()) as u64
    }
}

/// Number and size of the turns of a history, including the anchor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    pub turns: u64,
    pub bytes: u64,
    /// Estimated tokens.
    pub tokens: u64,
}

impl Totals {
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            turns: self.turns + other.turns,
            bytes: self.bytes + other.bytes,
            tokens: self.tokens + other.tokens,
        }
    }

    /// Subtracts `other`, which must be part of these totals.
    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        Self {
            turns: self.turns - other.turns,
            bytes: self.bytes - other.bytes,
            tokens: self.tokens - other.tokens,
        }
    }
}
