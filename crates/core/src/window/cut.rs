//! A cut: where a window's tail begins, and how turns in it are shown. What is decided at
//! a cut is kept until the next one, so that in between a window only grows at its end.
//!
//! It is part of the session, one for each model profile and policy, and written with the next
//! change of the session or with a touch. A crash before that loses nothing: the same history makes
//! the same cut again. That a window does not show a summary yet is written with it, so that the
//! summary waits for the next cut after a restart, too.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Policy;

/// Stands for the place of a result where the whole turn is an excerpt.
pub(super) const WHOLE: usize = u32::MAX as usize;

impl Reduced {
    /// True when the whole turn is an excerpt.
    pub(super) fn is_excerpt(&self) -> bool {
        self.results.iter().any(|(place, _)| *place == WHOLE)
    }

    /// True when a later call has made one of its results old.
    pub(super) fn is_superseded(&self) -> bool {
        let mut results = self.results.iter();
        results.any(|(_, how)| matches!(how, How::Superseded { .. }))
    }
}

/// What a window was decided to be. The default is everything, as it was said.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cut {
    /// The tail begins here; an earlier turn is shown only if it stands apart.
    pub seq: u64,
    /// Turns of the tail that are shown all the same, ascending.
    pub kept: Vec<u64>,
    /// Turns after `seq` that are left out: first and last of each run, ascending.
    pub holes: Vec<(u64, u64)>,
    /// Turns whose results are shown in other words.
    pub reduced: BTreeMap<u64, Reduced>,
    /// Tokens the window could use when this was decided.
    pub budget: u64,
    /// The newest turn when this was decided; 0 as long as nothing was.
    pub made_at: u64,
    /// The number of the summary that stood before it; 0 for none.
    pub summary: u32,
    /// The last turn that it stands for.
    pub through_seq: u64,
    /// What was found out since it was decided. Forgotten by a restart.
    pub found: Found,
}

/// The next cut as far as it was planned, so that not every window has to plan it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// The window's tokens when the next cut was planned last; 0 before.
    pub(super) tried_at: u64,
    /// Where the tail would begin; `None` where trimming results is enough.
    pub(super) tail_seq: Option<u64>,
}

/// How the results of one turn are shown.
#[derive(Clone, Debug, PartialEq)]
pub struct Reduced {
    /// Which of its results, and how; the place `u32::MAX` is all that the turn
    /// says, as an excerpt.
    pub results: Vec<(usize, How)>,
    /// What that makes of the turn; made anew after a restart.
    pub shown: Option<Shown>,
}

/// How one result is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum How {
    /// As a line that points to a later call of the same tool with the same arguments.
    Superseded {
        /// The provider's id of that call.
        by: Box<str>,
    },
    /// In fewer bytes: see [`super::trim`].
    Trimmed {
        /// About this number.
        bytes: u32,
    },
}

/// A turn in other words.
#[derive(Clone, Debug, PartialEq)]
pub struct Shown {
    /// Encoded.
    pub content: Arc<[u8]>,
    /// Its tokens.
    pub tokens: u64,
}

/// Whose cut it is: each model profile and policy has its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CutKey {
    /// The profile's name.
    pub model: Box<str>,
    /// The policy.
    pub policy: Policy,
}

impl Cut {
    /// True for a turn that it leaves out of the tail.
    pub(super) fn leaves_out(&self, seq: u64) -> bool {
        let index = self.holes.partition_point(|&(_, last)| last < seq);
        let hole = self.holes.get(index);
        hole.is_some_and(|&(first, _)| first <= seq)
    }

    /// True for a turn that it shows wherever the tail begins.
    pub(super) fn keeps(&self, seq: u64) -> bool {
        self.kept.binary_search(&seq).is_ok()
    }

    /// A turn with results in other words.
    pub(super) fn reduced_turn(&self, seq: u64) -> Option<&Shown> {
        self.reduced.get(&seq)?.shown.as_ref()
    }

    /// True when no turn is in other words.
    pub(super) fn is_plain(&self) -> bool {
        self.reduced.is_empty()
    }

    /// True when all turns from `first` up to `end` are left out of the tail.
    pub(super) fn leaves_out_all(&self, first: u64, end: u64) -> bool {
        let mut next = first;
        for &(first, last) in &self.holes {
            if first <= next && next <= last {
                next = last + 1;
            }
        }
        next >= end
    }

    /// True where it shows everything as it was said, and no summary.
    pub(super) fn is_whole(&self) -> bool {
        self.made_at == 0 && self.summary == 0
    }

    /// Where the tail begins, or goes on after the last hole, where turns before that are left out
    /// that no summary holds.
    pub(super) fn left_out_until(&self) -> Option<u64> {
        let last_hole = self.holes.last().map(|&(_, last)| last + 1);
        self.leaves_out_any()
            .then(|| last_hole.unwrap_or(0).max(self.seq))
    }

    /// True where it leaves turns out for which its summary does not stand.
    pub(super) fn leaves_out_any(&self) -> bool {
        self.seq > self.through_seq + 1 || !self.holes.is_empty()
    }
}
