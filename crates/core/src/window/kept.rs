//! Caches the front of a window for the next one.
//!
//! Between two cuts a window only grows at its end, so the part that later turns cannot change is
//! not composed again. It belongs to one cut, one summary and the counts of one scale, and ends
//! before a call with missing results.
//!
//! It is discarded when older turns change: on a pin, on a late result, or when a turn leaves from
//! elsewhere than before the cut. It counts as content of the session and is evicted with it.

use std::ops::Deref;
use std::sync::Arc;

use crate::compaction::Summary;
use crate::history::View;

use super::counts::ScaleId;
use super::cut::Cut;
use super::input::{Overheads, WindowTurn, charged};
use super::items::Composer;

/// The turns of a window in order. Clones share them, so cloning is cheap.
#[derive(Clone, Debug, Default)]
pub struct WindowTurns {
    pub(super) turns: Arc<Vec<WindowTurn>>,
    /// Counted tokens before the first turn.
    pub(super) before: u64,
    /// Factor from counted to charged tokens.
    pub(super) factor: f64,
}

impl WindowTurns {
    /// Charged tokens of each turn. They add up to the total in the report.
    pub fn charged(&self) -> impl Iterator<Item = u64> {
        let mut counted = self.before;
        self.turns.iter().map(move |turn| {
            let before = charged(counted, self.factor);
            counted += turn.tokens;
            charged(counted, self.factor) - before
        })
    }
}

impl From<Vec<WindowTurn>> for WindowTurns {
    /// Turns whose charged tokens equal the counted ones.
    fn from(turns: Vec<WindowTurn>) -> Self {
        Self {
            turns: Arc::new(turns),
            before: 0,
            factor: 1.0,
        }
    }
}

impl Deref for WindowTurns {
    type Target = [WindowTurn];

    fn deref(&self) -> &[WindowTurn] {
        &self.turns
    }
}

/// State of a composed window before anything that later turns can change.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FrontState {
    /// Number of its items in this composition.
    pub(super) items: usize,
    /// Number of runs of turns in it that are not shown.
    pub(super) gaps: usize,
    /// Its last turn, shown or not.
    pub(super) last: u64,
    /// Tokens of its items and of the summary.
    pub(super) tokens: u64,
    /// Number of stored turns it shows, and how many of them belong to the tail.
    pub(super) turns: u64,
    pub(super) tail_turns: u64,
    /// Time of the last shown turn in seconds since 1970, or 0 if unknown.
    pub(super) said_at: i64,
    /// Whether it includes the summary or there is none.
    pub(super) has_block: bool,
}

/// Totals of the first turns of a window.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PrefixTotals {
    pub(super) turns: usize,
    /// Counted tokens.
    pub(super) counted: u64,
    /// Counted tokens before the summary, and up to its end.
    pub(super) summary: (u64, u64),
    /// Counted tokens before the anchor, and up to its end.
    pub(super) anchor: (u64, u64),
    /// Number of turns at the front that a cut does not change.
    pub(super) head_turns: usize,
}

/// The front of the last window of a cut.
#[derive(Clone, Debug)]
pub(super) struct CachedFront {
    pub(super) front: FrontState,
    /// First and last seq of the runs of turns in it that are not shown.
    pub(super) gaps: Vec<(u64, u64)>,
    /// All turns of that window. The first of them, with the totals `sums`, are its front.
    pub(super) turns: Arc<Vec<WindowTurn>>,
    pub(super) sums: PrefixTotals,
    pub(super) basis: FrontInputs,
}

/// Inputs of a window in addition to its cut and turns appended at the end.
#[derive(Clone, Debug)]
pub(super) struct FrontInputs {
    scale: ScaleId,
    overheads: Overheads,
    summary: Option<Arc<Summary>>,
    /// Number of changed counts of older turns.
    recounts: u64,
    /// See [`Composer::pause_s`].
    pause_s: i64,
    /// Number of changes of older turns.
    reshaped: u64,
    /// First turn of the history's tail.
    front_seq: u64,
}

impl FrontInputs {
    pub(super) fn new(composer: &Composer<'_>) -> Self {
        Self {
            scale: composer.counts.scale,
            overheads: composer.overheads,
            summary: composer.block.map(|block| Arc::clone(&block.summary)),
            recounts: composer.counts.recounts,
            pause_s: composer.pause_s,
            reshaped: composer.view.reshaped(),
            front_seq: composer.view.front_seq(),
        }
    }

    pub(super) fn is_on(&self, scale: ScaleId) -> bool {
        self.scale == scale
    }

    /// Whether a window of this cut still starts with the same content.
    pub(super) fn holds(&self, composer: &Composer<'_>, cut: &Cut) -> bool {
        let is_same_summary = match (&self.summary, composer.block) {
            (None, None) => true,
            (Some(then), Some(now)) => Arc::ptr_eq(then, &now.summary),
            _ => false,
        };
        is_same_summary
            && self.scale == composer.counts.scale
            && self.overheads == composer.overheads
            && self.recounts == composer.counts.recounts
            && self.pause_s == composer.pause_s
            && self.has_all(composer.view, cut)
    }

    /// Whether the history still has all turns that a window of this cut shows, unchanged.
    pub(super) fn has_all(&self, view: &View<'_>, cut: &Cut) -> bool {
        let first = cut.kept.first().map_or(cut.seq, |&kept| kept.min(cut.seq));
        let front_seq = view.front_seq();
        self.reshaped == view.reshaped() && (front_seq == self.front_seq || front_seq <= first)
    }
}

impl CachedFront {
    /// Memory usage in bytes, without the turns themselves.
    pub(super) fn bytes(&self) -> usize {
        self.turns.capacity() * size_of::<WindowTurn>()
            + self.gaps.capacity() * size_of::<(u64, u64)>()
            + size_of::<Self>()
    }
}
