//! Windows: which turns the next model call sees, and why.
//!
//! A window is the system prompt, pinned turns, the first user turn or a summary that holds it, the
//! request that is being answered, and a tail. Until it would use more than the `watermark` of its
//! budget it only grows at its end, so that the prefix stays byte-identical and a provider's cache
//! holds. Then a **cut** is made, which goes down to the `floor`; see [`choose`]. How turns are
//! shown is decided at a cut and kept until the next one.
//!
//! Only a cut counts text or decodes turns, and, where summaries are prepared, the plan of the next
//! one, once for each twentieth of the budget above the soft watermark. Everything else adds counts
//! that were made once.
//!
//! A system turn at the very start stays when the history drops it: bots that send their provider's
//! array have their system prompt there. A later system turn belongs to its exchange. The margin of
//! a count is taken from `safety_headroom` first. The window of a session that is compacted is cut
//! at its `hard_watermark`.

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

/// Asks for a window. Tokens are as they are counted: without the factor.
pub struct Ask<'a> {
    /// The model profile's name.
    pub model: &'a str,
    /// The budget it has, for the report.
    pub model_budget: Budget,
    /// How to choose turns.
    pub policy: Policy,
    /// What the window may use, as the provider counts.
    pub input_budget: u64,
    /// The same as counted here, less the margin.
    pub budget: u64,
    /// What it uses beside the turns: system prompt, tools, what the bot adds, memories.
    pub fixed: u64,
    /// What of that is kept free for the block of memories behind the turns.
    pub memories: u64,
    /// What of that was not counted but learnt from what a provider charged; it may be below 0.
    pub learnt: i64,
    /// Tells that from another system prompt and other tools.
    pub fixed_digest: u64,
    /// By what counts are multiplied to get what the provider charges.
    pub factor: f64,
    /// How far that may be off, as a share.
    pub margin: f64,
    /// What an operator decided.
    pub settings: &'a WindowSettings,
    /// The limits of the history.
    pub limits: &'a Limits,
    /// What turns are counted on.
    pub scale: ScaleId,
    /// Tokens of what memoird itself says.
    pub overheads: Overheads,
    /// Counts a turn.
    pub weigh: &'a dyn Fn(&Turn) -> u64,
    /// What memoird's own words in it bear.
    pub mark: Mark,
    /// Reads and writes content.
    pub codec: Codec,
    /// True when the decision applies to the next window as well.
    pub keep: bool,
    /// Fill in percent of the budget at which the summary for the next cut is requested; `None` if
    /// summaries are made at the cut, or never.
    pub soft_percent: Option<u8>,
    /// The maximum size of a summary; `None` where nothing is summarized.
    pub summary_tokens: Option<SummaryTokens>,
}

/// Reads and writes the content of turns, whose encoding the rules do not know.
#[derive(Clone, Copy, Debug)]
pub struct Codec {
    /// Decodes a turn; `None` when it is damaged.
    pub open: fn(&[u8]) -> Option<Turn>,
    /// Encodes a turn with its seq.
    pub seal: fn(Turn, u64) -> Arc<[u8]>,
}

impl Ask<'_> {
    /// A cut is made when a window has more than this many tokens.
    fn watermark(&self) -> u64 {
        percent(self.budget, self.settings.watermark_percent)
    }

    /// The tokens from which on a summary is prepared.
    fn soft(&self) -> Option<u64> {
        Some(percent(self.budget, self.soft_percent?))
    }

    /// Counted tokens as the provider may charge them at most: with the margin, so that what
    /// does not fit is more than the input budget.
    fn at_most(&self, tokens: u64) -> u64 {
        let most = u128::from(tokens) * u128::from(self.input_budget);
        u64::try_from(most.div_ceil(u128::from(self.budget.max(1)))).unwrap_or(u64::MAX)
    }

    /// Counted tokens as the provider charges them.
    fn shown(&self, tokens: u64) -> u64 {
        kept::charged(tokens, self.factor)
    }
}

pub(crate) fn percent(whole: u64, percent: u8) -> u64 {
    u64::try_from(u128::from(whole) * u128::from(percent) / 100).unwrap_or(u64::MAX)
}

/// How a window chooses its turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Policy {
    /// The last turns and nothing else: gives up the anchor and the stable prefix.
    SlidingWindow {
        /// How many, at least 1.
        turns: u32,
    },
    /// System prompt, anchor and the last turns.
    HeadTail {
        /// At most this many turns of the tail; 0: all that the budget holds.
        turns: u32,
    },
    /// System prompt, anchor and as many of the last turns as the budget holds.
    TokenBudget,
    /// The same, but the least important units of the middle leave first.
    Salience,
}

impl Policy {
    /// For a window of so many tokens: of how many it looks at the turns, at least.
    #[must_use]
    pub fn looks_at(self, budget: u64) -> u64 {
        match self {
            Self::Salience => u64::MAX,
            _ => budget,
        }
    }
}

/// The name of a [`Policy`], without its number of turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PolicyName {
    /// See [`Policy::SlidingWindow`].
    SlidingWindow,
    /// See [`Policy::HeadTail`].
    HeadTail,
    /// See [`Policy::TokenBudget`].
    TokenBudget,
    /// See [`Policy::Salience`].
    Salience,
}

/// What an operator decides of windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct WindowSettings {
    /// How a window chooses its turns where the call does not say.
    pub policy: PolicyName,
    /// The number of turns, for the policies that have one.
    pub turns: u32,
    /// A cut is made when a window would use more of its budget, in percent: 1 to 100.
    #[serde(rename = "watermark", with = "AsText::<Percent>")]
    pub watermark_percent: u8,
    /// The part that a cut fills of what system prompt and tools leave, summary included, in
    /// percent: less than the watermark.
    #[serde(rename = "floor", with = "AsText::<Percent>")]
    pub floor_percent: u8,
    /// Results that a later call of the same tool with the same arguments made old are
    /// replaced by a line.
    pub supersede: bool,
    /// The pause after which a user turn gets a time marker.
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
    /// The policy of a call that names none.
    pub fn policy(&self) -> Policy {
        let turns = self.turns;
        match self.policy {
            PolicyName::SlidingWindow => Policy::SlidingWindow { turns },
            PolicyName::HeadTail => Policy::HeadTail { turns },
            PolicyName::TokenBudget => Policy::TokenBudget,
            PolicyName::Salience => Policy::Salience,
        }
    }

    /// Adds their problems.
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
    /// Its name in the configuration and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::SlidingWindow { .. } => "sliding_window",
            Self::HeadTail { .. } => "head_tail",
            Self::TokenBudget => "token_budget",
            Self::Salience => "salience",
        }
    }
}
