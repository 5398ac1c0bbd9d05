//! Which turns a window keeps, and the settings for windows.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::config::{AsText, Off, Percent, Problems};

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
