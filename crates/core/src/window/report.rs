//! Why a window is what it is.

use std::sync::Arc;

use crate::budget::Budget;
use crate::compaction::Summary;

use super::cut::Reduced;
use super::{Cut, Policy};

/// Why a window is what it is. All figures in tokens unless named otherwise.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// The profile that applied.
    pub model: String,
    /// The budget that applied.
    pub budget: Budget,
    /// What the window may use.
    pub input_budget: u64,
    /// What each block uses; together what the window uses.
    pub blocks: Blocks,
    /// Turns in the window.
    pub turns_included: u32,
    /// Turns of the history that are not in it.
    pub turns_omitted: u32,
    /// Tool results that are not as they were said: trimmed or superseded; and turns of which an
    /// excerpt is shown.
    pub results_trimmed: u32,
    /// The part at the front that was sent before, unchanged.
    pub stable_prefix_tokens: u64,
    /// By what the counts were multiplied, as the provider's charges ask for.
    pub token_factor: f64,
    /// How far the counts may be off, as a share.
    pub token_margin: f64,
    /// The policy that chose.
    pub policy: Policy,
    /// True when something did not work as configured; `notes` say what.
    pub degraded: bool,
    /// For people.
    pub notes: Vec<String>,
    /// Turns that are left out or shown in other words, in their order.
    pub omissions: Vec<Omission>,
    /// What stands for the oldest turns.
    pub summary: Option<Arc<Summary>>,
}

/// Tokens of a window by block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Blocks {
    /// The system prompt, the tool schemas, and what the bot adds by itself.
    pub system: u64,
    /// The summary of the oldest exchanges.
    pub summary: u64,
    /// Recalled memories.
    pub memories: u64,
    /// The first user turn.
    pub anchor: u64,
    /// All other turns.
    pub tail: u64,
}

impl Omission {
    /// One turn.
    pub(super) fn of(seq: u64, reason: OmissionReason) -> Self {
        Self {
            first_seq: seq,
            last_seq: seq,
            reason,
        }
    }
}

/// Turns that a window leaves out, or shows in other words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Omission {
    /// The first of them.
    pub first_seq: u64,
    /// The last of them.
    pub last_seq: u64,
    /// Why.
    pub reason: OmissionReason,
}

impl Omission {
    /// True where nothing in the window stands for the turns.
    pub fn is_left_out(&self) -> bool {
        use OmissionReason::{Cut, Dropped, Salience};
        matches!(self.reason, Dropped | Cut | Salience)
    }
}

/// Why a window leaves turns out, or shows them in other words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OmissionReason {
    /// They left the history, first in first out.
    Dropped,
    /// They are before the cut.
    Cut,
    /// They were the least important of the middle.
    Salience,
    /// A later call of the same tool with the same arguments has a newer result.
    Superseded,
    /// A long result was trimmed to its head and tail.
    Trimmed,
    /// It did not fit, and is an excerpt: the first user turn, or one of the exchange under way.
    Excerpt,
    /// The summary stands for them.
    Summarized,
}

impl Blocks {
    /// What the window uses.
    pub fn total(&self) -> u64 {
        self.system + self.summary + self.memories + self.anchor + self.tail
    }
}

impl Report {
    /// Notes for people about a cut, and about a window that may use at most `tokens_max` tokens.
    pub(super) fn explain(
        &mut self,
        cut: &Cut,
        requests: &[u64],
        newest_results: &[u64],
        tokens_max: u64,
    ) {
        let is_excerpt = |seq: &u64| cut.reduced.get(seq).is_some_and(Reduced::is_excerpt);
        if requests.iter().any(is_excerpt) {
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
        let is_by_choice = matches!(self.policy, Policy::SlidingWindow { .. });
        self.degraded |= !is_by_choice && self.omissions.iter().any(Omission::is_left_out);
        // Less than a twentieth is not worth a line in every answer.
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
