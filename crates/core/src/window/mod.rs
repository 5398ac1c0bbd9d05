//! Windows: which turns the next model call sees, and why.

mod report;

pub use report::{Blocks, Omission, OmissionReason, Report};

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
        /// At most so many turns of the tail; 0: as many as the budget holds.
        turns: u32,
    },
    /// System prompt, anchor and as many of the last turns as the budget holds.
    TokenBudget,
    /// The same, but the least important units of the middle leave first.
    Salience,
}

/// What an operator decides of windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowSettings {
    /// How a window chooses its turns where the call does not say.
    pub policy: Policy,
    /// A cut is made when a window would use more of its budget, in percent: 1 to 100.
    pub watermark_percent: u8,
    /// A cut leaves at most so much of the budget in use, in percent: less than the
    /// watermark.
    pub floor_percent: u8,
    /// Results that a later call of the same tool with the same arguments made old are
    /// replaced by a line.
    pub supersede: bool,
    /// A result of more tokens is trimmed at a cut; 0: none is.
    pub trim_over_tokens: u32,
    /// What is left of it at its head.
    pub trim_head_tokens: u32,
    /// What is left of it at its tail.
    pub trim_tail_tokens: u32,
}

impl Default for WindowSettings {
    fn default() -> Self {
        Self {
            policy: Policy::HeadTail { turns: 0 },
            watermark_percent: 100,
            floor_percent: 50,
            supersede: true,
            trim_over_tokens: 2_000,
            trim_head_tokens: 500,
            trim_tail_tokens: 250,
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
