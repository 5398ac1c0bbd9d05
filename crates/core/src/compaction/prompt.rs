//! The prompt for a model that summarizes, and what it answers.

use super::check::Rejection;
use super::notes::Notes;
use super::spoken::Spoken;
use super::summary::{Body, Summary};

/// What a summarizer is given.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    /// The last summary, which the answer must hold as well.
    pub previous: Option<&'a Summary>,
    /// Summaries of pieces, where the span was too long for one.
    pub pieces: &'a [Body],
    /// The turns, oldest first; none where only pieces are to become one.
    pub turns: &'a [Spoken],
    /// What was noted of them.
    pub notes: &'a Notes,
    /// Tokens that the answer may have.
    pub tokens_max: u64,
}

/// The system prompt: the same for all, so that a provider may cache it.
pub fn system() -> &'static str {
    ""
}

/// The prompt. Its length is that of what it is given and a few thousand bytes.
pub fn prompt(_ask: &Ask<'_>) -> String {
    String::new()
}

/// Reads a model's answer: the JSON object that was asked for, bare or in a code fence.
///
/// # Errors
/// [`Rejection::Empty`], [`Rejection::Refusal`], [`Rejection::CutOff`] or
/// [`Rejection::NotTheStructure`].
pub fn parse_answer(_answer: &str) -> Result<Body, Rejection> {
    Err(Rejection::Empty)
}
