//! A cut: where a window's tail starts, and how turns are shown until the next cut.
//!
//! Cuts are part of the session, one for each model profile and policy. They are written with the
//! next change of the session or with a touch. A crash before that loses nothing, because the same
//! history yields the same cut. A cut also stores which summary the window shows, so that a newer
//! one waits for the next cut after a restart too.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::policy::Policy;

/// Position that denotes an excerpt of the whole turn instead of a result.
pub(super) const WHOLE: usize = u32::MAX as usize;

impl ReducedTurn {
    pub(super) fn is_excerpt(&self) -> bool {
        self.results.iter().any(|(place, _)| *place == WHOLE)
    }

    /// Whether a later call superseded one of its results.
    pub(super) fn is_superseded(&self) -> bool {
        let mut results = self.results.iter();
        results.any(|(_, how)| matches!(how, Shortening::Superseded { .. }))
    }
}

/// The decisions of a window. The default shows everything verbatim.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cut {
    /// First turn of the tail.
    ///
    /// Of earlier turns, only leading system turns, the anchor, pinned turns and `kept` are shown.
    pub seq: u64,
    /// Turns before `seq` or in `holes` that are shown anyway, ascending.
    pub kept: Vec<u64>,
    /// Turns after `seq` that are left out, as the first and last seq of each run, ascending.
    pub holes: Vec<(u64, u64)>,
    /// Turns that are shown shortened.
    pub reduced: BTreeMap<u64, ReducedTurn>,
    /// Tokens available to the window when the cut was made.
    pub budget: u64,
    /// Newest turn when the cut was made, or 0 if none was made.
    pub made_at: u64,
    /// Number of the summary before the tail, or 0 for none.
    pub summary: u32,
    /// Last turn that the summary covers.
    pub through_seq: u64,
    /// Results of planning the next cut. Not stored across a restart.
    pub found: CachedPlan,
}

/// The plan of the next cut, cached so that not every window has to make it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CachedPlan {
    /// Tokens of the window when the next cut was last planned, or 0.
    pub(super) tried_at: u64,
    /// Start of the tail in the planned cut, or `None` if trimming results is enough.
    pub(super) tail_seq: Option<u64>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct ReducedTurn {
    /// The shortened results by position. The position `u32::MAX` is an excerpt of the whole turn.
    pub results: Vec<(usize, Shortening)>,
    /// The resulting turn, recreated after a restart.
    pub shown: Option<ShownTurn>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shortening {
    /// As a line that refers to a later call of the same tool with the same arguments.
    Superseded {
        /// The provider's id of that call.
        by: Box<str>,
    },
    /// Shortened. See [`super::trim`].
    Trimmed {
        /// Approximate size.
        bytes: u32,
    },
}

#[derive(Clone, Debug, PartialEq)]
pub struct ShownTurn {
    pub content: Arc<[u8]>,
    pub tokens: u64,
}

/// Key of a cut: each model profile and policy has its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CutKey {
    pub model: Box<str>,
    pub policy: Policy,
}

impl Cut {
    /// Whether the turn is in a hole of the tail.
    pub(super) fn leaves_out(&self, seq: u64) -> bool {
        let index = self.holes.partition_point(|&(_, last)| last < seq);
        let hole = self.holes.get(index);
        hole.is_some_and(|&(first, _)| first <= seq)
    }

    /// Whether the turn is shown regardless of where the tail starts.
    pub(super) fn keeps(&self, seq: u64) -> bool {
        self.kept.binary_search(&seq).is_ok()
    }

    /// The shortened form of a turn, if it has one.
    pub(super) fn reduced_turn(&self, seq: u64) -> Option<&ShownTurn> {
        self.reduced.get(&seq)?.shown.as_ref()
    }

    /// Whether no turn is shortened.
    pub(super) fn is_plain(&self) -> bool {
        self.reduced.is_empty()
    }

    /// Whether all turns in `first..end` are in holes.
    pub(super) fn leaves_out_all(&self, first: u64, end: u64) -> bool {
        let mut next = first;
        for &(first, last) in &self.holes {
            if first <= next && next <= last {
                next = last + 1;
            }
        }
        next >= end
    }

    /// Whether it shows everything verbatim and no summary.
    pub(super) fn is_whole(&self) -> bool {
        self.made_at == 0 && self.summary == 0
    }

    /// End of the turns that are left out and that no summary covers, if there are any.
    ///
    /// That is the start of the tail, or the turn after the last hole.
    pub(super) fn left_out_until(&self) -> Option<u64> {
        let last_hole = self.holes.last().map(|&(_, last)| last + 1);
        self.leaves_out_any()
            .then(|| last_hole.unwrap_or(0).max(self.seq))
    }

    /// Whether it leaves out turns that its summary does not cover.
    pub(super) fn leaves_out_any(&self) -> bool {
        self.seq > self.through_seq + 1 || !self.holes.is_empty()
    }
}
