//! The input of a window: its budget, its policy, and how turns are counted and encoded.

use std::sync::Arc;

use crate::budget::Budget;
use crate::compaction::SummaryTokens;
use crate::limits::Limits;
use crate::nonce::Nonce;
use crate::turn::Turn;

use super::counts::ScaleId;
use super::policy::{Policy, WindowSettings};

/// Input for building a window. Token numbers are as counted, without the factor.
pub struct WindowInput<'a> {
    pub model: &'a str,
    /// Budget of the model, for the report.
    pub model_budget: Budget,
    pub policy: Policy,
    /// Tokens available to the window, on the provider's scale.
    pub input_budget: u64,
    /// The same on the local scale, minus the margin.
    pub budget: u64,
    /// Tokens of everything but the turns: system prompt, tools, the bot's additions, memories.
    pub fixed: u64,
    /// The part of `fixed` that is reserved for the block of memories after the turns.
    pub memories: u64,
    /// The part of `fixed` learned from the provider's charges instead of counted. May be negative.
    pub learnt: i64,
    /// Digest that distinguishes system prompts and tools.
    pub fixed_digest: u64,
    /// Factor from counted to charged tokens.
    pub factor: f64,
    /// Relative error bound of the factor.
    pub margin: f64,
    pub settings: &'a WindowSettings,
    pub limits: &'a Limits,
    pub scale: ScaleId,
    /// Tokens of memoird's own text.
    pub overheads: Overheads,
    /// Counts the tokens of a turn.
    pub weigh: &'a dyn Fn(&Turn) -> u64,
    /// Nonce of memoird's own text.
    pub nonce: Nonce,
    pub codec: Codec,
    /// Whether to store the decision for the next window.
    pub keep: bool,
    /// Whether other processes continue from this window, so that it must be stored.
    pub is_shared: bool,
    /// Budget share, in percent, that triggers the request of a summary for the next cut.
    ///
    /// `None` if summaries are made at the cut, or never.
    pub soft_percent: Option<u8>,
    /// Maximum size of a summary. `None` if nothing is summarized.
    pub summary_tokens: Option<SummaryTokens>,
}

/// Decodes and encodes turns, because this crate does not know their encoding.
#[derive(Clone, Copy, Debug)]
pub struct Codec {
    /// Decodes a turn. `None` if it is damaged.
    pub open: fn(&[u8]) -> Option<Turn>,
    /// Encodes a turn with its seq.
    pub seal: fn(Turn, u64) -> Arc<[u8]>,
}

impl WindowInput<'_> {
    /// Maximum tokens of a window before it is cut.
    pub(super) fn watermark(&self) -> u64 {
        percent(self.budget, self.settings.watermark_percent)
    }

    /// Tokens that trigger the preparation of a summary.
    pub(super) fn soft(&self) -> Option<u64> {
        Some(percent(self.budget, self.soft_percent?))
    }

    /// Upper bound of the tokens that the provider charges for counted tokens.
    ///
    /// It includes the margin, so that content that does not fit always exceeds the input budget.
    pub(super) fn at_most(&self, tokens: u64) -> u64 {
        let most = u128::from(tokens) * u128::from(self.input_budget);
        u64::try_from(most.div_ceil(u128::from(self.budget.max(1)))).unwrap_or(u64::MAX)
    }

    /// Tokens that the provider charges for counted tokens.
    pub(super) fn shown(&self, tokens: u64) -> u64 {
        charged(tokens, self.factor)
    }
}

pub(crate) fn percent(whole: u64, percent: u8) -> u64 {
    u64::try_from(u128::from(whole) * u128::from(percent) / 100).unwrap_or(u64::MAX)
}

/// Converts counted to charged tokens.
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

/// Maximum tokens of memoird's own text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overheads {
    /// Marker in place of missing turns.
    pub elision: u64,
    /// Time marker.
    pub pause: u64,
    /// Error result of one call, without the call's id.
    pub abandoned: u64,
}

#[derive(Clone, Debug)]
pub struct WindowTurn {
    /// Encoded content: the stored bytes, unless a rule changes how the turn is shown.
    pub content: Arc<[u8]>,
    /// Counted tokens.
    pub tokens: u64,
}
