//! Validation: whether a summary may replace turns. One that fails here never does.

mod refusal;

use super::merge::Written;

pub use refusal::is_refusal;

/// The size of a summary, and what it is compared with, in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// The summary as windows show it.
    pub summary: u64,
    /// The turns that it is to stand for, and the summary before it.
    pub replaced: u64,
    /// The room that the rest of a window leaves it.
    pub room: u64,
}

/// Why an answer is rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rejection {
    /// It says nothing.
    Empty,
    /// It ends in the middle.
    CutOff,
    /// It is not the structure that was asked for.
    NotTheStructure {
        /// The problem, for an operator.
        problem: String,
    },
    /// A field without which it is of no use is empty.
    FieldMissing {
        /// Which one.
        field: &'static str,
    },
    /// It is longer than the turns that it replaces.
    LongerThanTheSpan,
    /// It does not fit beside the rest of the window.
    OverBudget,
    /// It is a refusal, an apology or an error text.
    Refusal,
}

impl Rejection {
    /// Its name in metrics and events.
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

/// A summary of more turns than these needs details.
const TURNS_FEW: u64 = 20;

/// Validates a model's answer about `turns` turns.
///
/// Changes and the user's requests are not checked: the merge takes them from the turns themselves
/// ([`super::merge::Merged::with_written`]).
///
/// # Errors
/// [`Rejection::Empty`], [`Rejection::Refusal`], [`Rejection::FieldMissing`].
pub fn check_written(written: &Written, turns: u64) -> Result<(), Rejection> {
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

/// Checks that a summary is worth having: shorter than what it replaces, and not too long for the
/// window.
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
