//! The summary as a block of window turns before the tail.
//!
//! It is byte-identical until the next summary.

use std::sync::Arc;

use crate::compaction::{Summary, acknowledgement};

use super::counts::ScaleId;
use super::input::{WindowInput, WindowTurn};

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
    pub(super) fn new(summary: &Arc<Summary>, known: Option<u64>, input: &WindowInput<'_>) -> Self {
        let window_turn = |turn, known: Option<u64>| {
            let tokens = known.unwrap_or_else(|| (input.weigh)(&turn));
            WindowTurn {
                content: (input.codec.seal)(turn, 0),
                tokens,
            }
        };
        let said = window_turn(summary.turn(input.nonce), known);
        let acknowledged = window_turn(acknowledgement(), None);
        Self {
            summary: Arc::clone(summary),
            scale: input.scale,
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
