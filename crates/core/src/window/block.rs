//! The summary as a block of window turns before the tail.
//!
//! It is byte-identical until the next summary.

use std::sync::Arc;

use crate::compaction::{Summary, acknowledgement};
use crate::turn::Role;

use super::counts::ScaleId;
use super::cut::Cut;
use super::items::Composer;
use super::{Ask, WindowTurn};

/// An encoded and counted summary.
#[derive(Clone, Debug)]
pub(super) struct Block {
    pub(super) summary: Arc<Summary>,
    scale: ScaleId,
    said: WindowTurn,
    acknowledged: WindowTurn,
}

impl Block {
    /// Encodes a summary, and counts it if its tokens are not `known`.
    pub(super) fn new(summary: &Arc<Summary>, known: Option<u64>, ask: &Ask<'_>) -> Self {
        let window_turn = |turn, known: Option<u64>| {
            let tokens = known.unwrap_or_else(|| (ask.weigh)(&turn));
            WindowTurn {
                content: (ask.codec.seal)(turn, 0),
                tokens,
            }
        };
        let said = window_turn(summary.turn(ask.mark), known);
        let acknowledged = window_turn(acknowledgement(), None);
        Self {
            summary: Arc::clone(summary),
            scale: ask.scale,
            said,
            acknowledged,
        }
    }

    /// Whether this is the block of the summary on this scale.
    pub(super) fn is(&self, summary: &Summary, scale: ScaleId) -> bool {
        self.summary.number == summary.number && self.scale == scale
    }

    pub(super) fn is_on(&self, scale: ScaleId) -> bool {
        self.scale == scale
    }

    pub(super) fn through_seq(&self) -> u64 {
        self.summary.through_seq
    }

    /// Time of the last summarized turn in seconds since 1970, or 0 if unknown.
    pub(super) fn until(&self) -> i64 {
        self.summary.body.until
    }

    pub(super) fn tokens(&self) -> u64 {
        self.said.tokens + self.acknowledged.tokens
    }

    /// Its two turns: the summary and the assistant's acknowledgement, so that roles alternate.
    pub(super) fn turns(&self) -> [&WindowTurn; 2] {
        [&self.said, &self.acknowledged]
    }
}

/// The cut of a window right after its summary changed: everything after the summary, verbatim.
///
/// Turns that are never summarized are included.
pub(super) fn fresh(composer: &Composer<'_>) -> Cut {
    let Some(block) = composer.block else {
        return Cut::default();
    };
    let through = block.through_seq();
    let view = composer.view;
    let older = view.tail_from(0).take_while(|record| record.seq <= through);
    let mut kept: Vec<u64> = older
        .filter(|record| view.is_kept(record) || record.role == Role::System)
        .map(|record| record.seq)
        .collect();
    kept.sort_unstable();
    Cut {
        seq: through + 1,
        kept,
        summary: block.summary.number,
        through_seq: through,
        ..Cut::default()
    }
}
