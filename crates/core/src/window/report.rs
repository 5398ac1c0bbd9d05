//! The report that explains a window.

use std::sync::Arc;

use crate::budget::Budget;
use crate::compaction::Summary;

use super::cut::Cut;
use super::cut::ReducedTurn;
use super::policy::Policy;

/// Explains a window. Sizes are in tokens unless noted otherwise.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    pub model: String,
    pub budget: Budget,
    /// Tokens available to the window.
    pub input_budget: u64,
    /// Tokens of each block. They add up to the total of the window.
    pub blocks: Blocks,
    pub turns_included: u32,
    /// Turns of the history that are not in the window.
    pub turns_omitted: u32,
    /// Trimmed or superseded tool results, and turns shown as an excerpt.
    pub results_trimmed: u32,
    /// Size of the front that was sent before, unchanged.
    pub stable_prefix_tokens: u64,
    /// Factor from counted to charged tokens.
    pub token_factor: f64,
    /// Relative error bound of the factor.
    pub token_margin: f64,
    pub policy: Policy,
    /// Whether something did not work as configured. `notes` has the details.
    pub degraded: bool,
    pub notes: Vec<String>,
    /// Turns that are left out or shortened, in order.
    pub omissions: Vec<Omission>,
    /// Summary of the oldest turns.
    pub summary: Option<Arc<Summary>>,
}

/// Tokens of a window by block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Blocks {
    /// System prompt, tool schemas, and the bot's own additions.
    pub system: u64,
    /// Summary of the oldest exchanges.
    pub summary: u64,
    pub memories: u64,
    pub anchor: u64,
    /// All other turns.
    pub tail: u64,
}

impl Omission {
    pub(super) fn new(seq: u64, reason: OmissionReason) -> Self {
        Self {
            first_seq: seq,
            last_seq: seq,
            reason,
        }
    }
}

/// A run of turns that a window leaves out or shortens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Omission {
    pub first_seq: u64,
    pub last_seq: u64,
    pub reason: OmissionReason,
}

impl Omission {
    /// Whether nothing in the window replaces the turns.
    pub fn is_left_out(&self) -> bool {
        use OmissionReason::{Cut, Dropped, Salience};
        matches!(self.reason, Dropped | Cut | Salience)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OmissionReason {
    /// Dropped from the history by FIFO.
    Dropped,
    /// Before the start of the tail.
    Cut,
    /// Least important turns of the middle.
    Salience,
    /// A later call of the same tool with the same arguments has a newer result.
    Superseded,
    /// A long result was trimmed to its head and tail.
    Trimmed,
    /// The whole turn did not fit: the first user turn, or one of the exchange in progress.
    Excerpt,
    /// Covered by the summary.
    Summarized,
}

impl Blocks {
    pub fn total(&self) -> u64 {
        self.system + self.summary + self.memories + self.anchor + self.tail
    }
}

impl Report {
    /// Adds notes about important turns that the cut shortens.
    pub(super) fn note_excerpts(
        &mut self,
        cut: &Cut,
        mut requests: impl Iterator<Item = u64>,
        newest_results: &[u64],
    ) {
        let is_excerpt = |seq: u64| cut.reduced.get(&seq).is_some_and(ReducedTurn::is_excerpt);
        if requests.any(is_excerpt) {
            self.degraded = true;
            let note = "the first user turn, or the request that is being answered, does not fit and \
                        is an excerpt; a larger budget shows it whole";
            self.notes.push(note.to_owned());
        }
        let is_trimmed = |seq: &u64| {
            let reduced = cut.reduced.get(seq);
            reduced.is_some_and(|reduced| !reduced.is_superseded())
        };
        if newest_results.iter().any(is_trimmed) {
            self.degraded = true;
            let note = "the newest tool results do not fit and are excerpts; a larger budget shows \
                        them whole";
            self.notes.push(note.to_owned());
        }
    }

    /// Adds notes about a window with at most `tokens_max` tokens.
    pub(super) fn explain(&mut self, tokens_max: u64) {
        let is_by_choice = matches!(self.policy, Policy::SlidingWindow { .. });
        self.degraded |= !is_by_choice && self.omissions.iter().any(Omission::is_left_out);
        // A smaller loss is not worth a note in every response.
        if tokens_max < self.input_budget / 20 * 19 {
            let percent = self.token_margin * 100.0;
            self.notes.push(format!(
                "counts may be off by {percent:.0} %, so at most {tokens_max} of the {} tokens are \
                 used",
                self.input_budget
            ));
        }
    }
}
