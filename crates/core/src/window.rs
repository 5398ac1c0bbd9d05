//! Windows: the turns that the next model call sees, and the report that explains them.
//!
//! A window consists of the system prompt, pinned turns, the first user turn or a summary that
//! covers it, the request that is being answered, and a tail of the newest turns. While it stays
//! within the `watermark` share of its budget, it only grows at its end, so that the provider's
//! prompt cache stays valid. Beyond the watermark, a **cut** reduces it to the `floor`; see
//! [`choose`]. How turns are shown is only decided at a cut.
//!
//! Only cuts count text and decode turns. So does the plan of the next cut if summaries are
//! prepared, once per twentieth of the budget above the soft watermark. All other windows add up
//! cached counts.
//!
//! A system turn at the very start stays when the history drops it, because it may be the bot's
//! system prompt. Later system turns belong to their exchange. The error margin of token counts is
//! taken from `safety_headroom` first. The windows of a session with compaction are cut at
//! `hard_watermark`.

mod block;
mod choose;
mod content;
mod counts;
mod cut;
mod items;
mod kept;
mod memory;
mod plan;
mod reduce;
mod report;
mod salience;
mod tail_starts;
#[cfg(test)]
mod tests;
mod trim;
mod words;

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::budget::Budget;
use crate::compaction::SummaryTokens;
use crate::config::{AsText, Off, Percent, Problems};
use crate::limits::Limits;
use crate::mark::Mark;
use crate::turn::Turn;

pub use counts::ScaleId;
pub use cut::{Cut, CutKey, Found, How, Reduced, Shown};
pub use items::Overheads;
pub use kept::WindowTurns;
pub use memory::{SavedCut, Windows};
pub use plan::{NextCut, Window, WindowTurn, overheads};
pub use report::{Blocks, Omission, OmissionReason, Report};
pub use words::LABEL;
pub(crate) use words::labelled;

/// Input for building a window. Token numbers are as counted, without the factor.
pub struct Ask<'a> {
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
    pub mark: Mark,
    pub codec: Codec,
    /// Whether to store the decision for the next window.
    pub keep: bool,
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

impl Ask<'_> {
    /// Maximum tokens of a window before it is cut.
    fn watermark(&self) -> u64 {
        percent(self.budget, self.settings.watermark_percent)
    }

    /// Tokens that trigger the preparation of a summary.
    fn soft(&self) -> Option<u64> {
        Some(percent(self.budget, self.soft_percent?))
    }

    /// Upper bound of the tokens that the provider charges for counted tokens.
    ///
    /// It includes the margin, so that content that does not fit always exceeds the input budget.
    fn at_most(&self, tokens: u64) -> u64 {
        let most = u128::from(tokens) * u128::from(self.input_budget);
        u64::try_from(most.div_ceil(u128::from(self.budget.max(1)))).unwrap_or(u64::MAX)
    }

    /// Tokens that the provider charges for counted tokens.
    fn shown(&self, tokens: u64) -> u64 {
        kept::charged(tokens, self.factor)
    }
}

pub(crate) fn percent(whole: u64, percent: u8) -> u64 {
    u64::try_from(u128::from(whole) * u128::from(percent) / 100).unwrap_or(u64::MAX)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Policy {
    /// Only the last turns, without the anchor and without a stable prefix.
    SlidingWindow {
        /// Number of turns, at least 1.
        turns: u32,
    },
    /// System prompt, anchor and the last turns.
    HeadTail {
        /// Maximum turns of the tail. 0 means as many as fit the budget.
        turns: u32,
    },
    /// System prompt, anchor and as many of the last turns as fit the budget.
    TokenBudget,
    /// Like `TokenBudget`, but drops the least important units from the middle first.
    Salience,
}

impl Policy {
    /// Minimum number of tokens of turns that the policy reads for a window with this budget.
    #[must_use]
    pub fn looks_at(self, budget: u64) -> u64 {
        match self {
            Self::Salience => u64::MAX,
            _ => budget,
        }
    }
}

/// Name of a [`Policy`], without its number of turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PolicyName {
    SlidingWindow,
    HeadTail,
    TokenBudget,
    Salience,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct WindowSettings {
    /// Default policy of calls.
    pub policy: PolicyName,
    /// Number of turns, for the policies that have one.
    pub turns: u32,
    /// Budget share that triggers a cut, in percent: 1 to 100.
    #[serde(rename = "watermark", with = "AsText::<Percent>")]
    pub watermark_percent: u8,
    /// Share that a cut fills of the tokens left by system prompt and tools, in percent.
    ///
    /// Includes the summary. Must be less than the watermark.
    #[serde(rename = "floor", with = "AsText::<Percent>")]
    pub floor_percent: u8,
    /// Whether a line replaces a result once a later call repeats its tool and arguments.
    pub supersede: bool,
    /// Pause after which a user turn gets a time marker.
    #[serde(with = "AsText::<Off>")]
    pub time_marks: Option<Duration>,
}

impl Default for WindowSettings {
    fn default() -> Self {
        Self {
            policy: PolicyName::HeadTail,
            turns: 0,
            watermark_percent: 100,
            floor_percent: 50,
            supersede: true,
            time_marks: None,
        }
    }
}

impl WindowSettings {
    pub fn policy(&self) -> Policy {
        let turns = self.turns;
        match self.policy {
            PolicyName::SlidingWindow => Policy::SlidingWindow { turns },
            PolicyName::HeadTail => Policy::HeadTail { turns },
            PolicyName::TokenBudget => Policy::TokenBudget,
            PolicyName::Salience => Policy::Salience,
        }
    }

    pub fn check(&self, problems: &mut Problems) {
        problems.percent("watermark", self.watermark_percent, 1..=100);
        problems.percent("floor", self.floor_percent, 1..=100);
        let is_below = self.floor_percent < self.watermark_percent;
        problems.unless(is_below, "floor", "must be less than watermark");
        match self.policy {
            PolicyName::SlidingWindow => problems.unless(
                self.turns > 0,
                "turns",
                "must be at least 1 for the policy sliding_window",
            ),
            PolicyName::HeadTail => {}
            PolicyName::TokenBudget | PolicyName::Salience => problems.unless(
                self.turns == 0,
                "turns",
                "belongs to the policies sliding_window and head_tail; leave it out",
            ),
        }
    }
}

impl Policy {
    /// Name in the configuration and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::SlidingWindow { .. } => "sliding_window",
            Self::HeadTail { .. } => "head_tail",
            Self::TokenBudget => "token_budget",
            Self::Salience => "salience",
        }
    }
}
