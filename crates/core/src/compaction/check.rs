//! Validation of summaries before they replace turns.

mod refusal;

use super::merge::ModelSections;

pub use refusal::is_refusal;

/// Token counts that decide whether a summary is worthwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// The summary as windows show it.
    pub summary: u64,
    /// The turns that it replaces, and the previous summary.
    pub replaced: u64,
    /// Tokens that the rest of a window leaves for it.
    pub room: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rejection {
    Empty,
    /// The reply is truncated.
    CutOff,
    NotTheStructure {
        /// The problem, for an operator.
        problem: String,
    },
    FieldMissing {
        field: &'static str,
    },
    LongerThanTheSpan,
    /// It does not fit in the rest of the window.
    OverBudget,
    /// A refusal, an apology or an error text.
    Refusal,
}

impl Rejection {
    /// Name in metrics and events.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Empty => "empty",
            Self::CutOff => "cut_off",
            Self::NotTheStructure { .. } => "not_the_structure",
            Self::FieldMissing { .. } => "field_missing",
            Self::LongerThanTheSpan => "longer_than_the_span",
            Self::OverBudget => "over_budget",
            Self::Refusal => "refusal",
        }
    }
}

/// Maximum number of turns that need no details in their summary.
const TURNS_FEW: u64 = 20;

/// Validates a model's reply about `turns` turns.
///
/// Mutating calls and the user's requests are not checked, because the merge takes them from the
/// turns themselves ([`super::merge::SummaryCandidates::with_written`]).
///
/// # Errors
/// [`Rejection::Empty`], [`Rejection::Refusal`], [`Rejection::FieldMissing`].
pub fn check_written(written: &ModelSections, turns: u64) -> Result<(), Rejection> {
    let lists = written.standing.iter().chain(&written.open_questions);
    let mut texts = lists.chain([&written.details]);
    if !texts.any(|text| text.contains(char::is_alphanumeric)) {
        return Err(Rejection::Empty);
    }
    if is_refusal(&written.details) {
        return Err(Rejection::Refusal);
    }
    if turns > TURNS_FEW && written.details.trim().is_empty() {
        return Err(Rejection::FieldMissing { field: "details" });
    }
    Ok(())
}

/// Checks that a summary is shorter than the replaced turns and fits in the window.
///
/// # Errors
/// [`Rejection::LongerThanTheSpan`], [`Rejection::OverBudget`].
pub fn check_sizes(sizes: Sizes) -> Result<(), Rejection> {
    if sizes.summary >= sizes.replaced {
        return Err(Rejection::LongerThanTheSpan);
    }
    if sizes.summary > sizes.room {
        return Err(Rejection::OverBudget);
    }
    Ok(())
}
