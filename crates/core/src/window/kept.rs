//! The front of a window, kept for the next one. Between two cuts a window only grows at its end,
//! so what turns that come later cannot change is not put together again.
//!
//! The front is of one cut, one summary, and counts of one scale, and ends before a call whose
//! results have not all come. It is forgotten when older turns change: a pin, a late result, a turn
//! that leaves from elsewhere than before the cut. It counts as content of the session, and leaves
//! memory with it.

use std::ops::Deref;
use std::sync::Arc;

use crate::compaction::Summary;
use crate::history::View;

use super::counts::ScaleId;
use super::cut::Cut;
use super::items::{Composer, Overheads};
use super::plan::WindowTurn;

/// The turns of a window, in their order. Cheap to clone: all clones share them.
#[derive(Clone, Debug, Default)]
pub struct WindowTurns {
    pub(super) turns: Arc<Vec<WindowTurn>>,
    /// Tokens before the first of them, as counted.
    pub(super) before: u64,
    /// By what counts are multiplied to get what the provider charges.
    pub(super) factor: f64,
}

impl WindowTurns {
    /// What each of them is charged: together what the report says of all of them.
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
    /// Turns that are charged as they were counted.
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

/// Counted tokens as the provider charges them.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "tokens"
)]
pub(super) fn charged(counted: u64, factor: f64) -> u64 {
    if factor == 1.0 {
        counted
    } else {
        (counted as f64 * factor) as u64
    }
}

/// How far a window is put together where nothing that comes later can change it any more.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Front {
    /// Its items that this composition put together.
    pub(super) items: usize,
    /// The runs of turns in it that are not shown.
    pub(super) gaps: usize,
    /// The last turn of it, shown or not.
    pub(super) last: u64,
    /// Tokens of its items and of the summary.
    pub(super) tokens: u64,
    /// Stored turns that it shows, and of these those of the tail that are not kept apart.
    pub(super) turns: u64,
    pub(super) tail_turns: u64,
    /// Time of the last of them in seconds since 1970; 0 if unknown.
    pub(super) said_at: i64,
    /// True if it includes the summary, or there is none.
    pub(super) has_block: bool,
}

/// The turns of a window up to some place, and what they amount to.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sums {
    /// How many.
    pub(super) turns: usize,
    /// Their tokens, as counted.
    pub(super) counted: u64,
    /// How many of these stand before the summary, and up to its end.
    pub(super) summary: (u64, u64),
    /// The same of the anchor.
    pub(super) anchor: (u64, u64),
    /// Turns at the front that outlive a cut.
    pub(super) head_turns: usize,
}

/// The front of the last window of a cut.
#[derive(Clone, Debug)]
pub(super) struct Kept {
    pub(super) front: Front,
    /// The runs of turns in it that are not shown: first and last.
    pub(super) gaps: Vec<(u64, u64)>,
    /// All turns of that window; the first of them, which `sums` describes, are its front.
    pub(super) turns: Arc<Vec<WindowTurn>>,
    pub(super) sums: Sums,
    pub(super) basis: Basis,
}

/// What a window was put together from, beside its cut and turns that are added at the end.
#[derive(Clone, Debug)]
pub(super) struct Basis {
    scale: ScaleId,
    overheads: Overheads,
    summary: Option<Arc<Summary>>,
    /// How often counts of older turns have changed.
    recounts: u64,
    /// See [`Composer::pause_s`].
    pause_s: i64,
    /// How often older turns have changed.
    reshaped: u64,
    /// The first turn of the history's tail.
    front_seq: u64,
}

impl Basis {
    pub(super) fn of(composer: &Composer<'_>) -> Self {
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

    /// True for one with this scale.
    pub(super) fn is_on(&self, scale: ScaleId) -> bool {
        self.scale == scale
    }

    /// True where a window of this cut still begins as it did.
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

    /// True where the turns that a window of this cut shows are still there, and as they were.
    pub(super) fn has_all(&self, view: &View<'_>, cut: &Cut) -> bool {
        let first = cut.kept.first().map_or(cut.seq, |&kept| kept.min(cut.seq));
        let front_seq = view.front_seq();
        self.reshaped == view.reshaped() && (front_seq == self.front_seq || front_seq <= first)
    }
}

impl Kept {
    /// Bytes of memory beside those of the turns themselves.
    pub(super) fn bytes(&self) -> usize {
        self.turns.capacity() * size_of::<WindowTurn>()
            + self.gaps.capacity() * size_of::<(u64, u64)>()
            + size_of::<Self>()
    }
}
