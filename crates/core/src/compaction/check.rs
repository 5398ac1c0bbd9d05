//! Validation: whether a summarizer's answer may replace turns. An answer that fails here never
//! becomes a summary.

mod refusal;
#[cfg(test)]
mod tests;

use super::CompactionPolicy;
use super::identifiers::Kind;
use super::probe::Probe;
use super::summary::{Body, Summary};
use super::transcript::TranscriptTurn;

pub use refusal::is_refusal;

/// The facts that an answer is compared with.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// The turns that it is to stand for, beside what the last summary stands for.
    pub span: &'a [TranscriptTurn],
    /// The last summary.
    pub previous: Option<&'a Summary>,
    /// Tokens of the span and the last summary, on the same scale as `tokens`.
    pub span_tokens: u64,
    /// Tokens of the answer as windows will show it.
    pub tokens: u64,
    /// Tokens that the rest of the window leaves it.
    pub room: u64,
    /// True where a model wrote it. What was chosen from the conversation itself may begin with
    /// an apology, because somebody said it.
    pub is_written: bool,
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

/// The summary of more turns than these needs an intent and a narrative.
const TURNS_FEW: usize = 20;
/// Of the span, the turns whose identifiers must not be lost.
const LAST_TURNS: usize = 6;
/// Fewer lost ones say nothing: of three identifiers one is a third.
const LOST_MIN: u32 = 3;

/// Checks an answer; `text` is the body as windows will show it, with the notes.
///
/// Of what a model wrote the identifiers are looked for: paths, ids, amounts, dates, codes, and the
/// numbers of a tool's result that have a label; names may be lost. They count where
/// the span's last six turns use them, and are lost when they do not stand in `text` to the
/// letter. More than [`CompactionPolicy::lost_identifiers_percent_max`] of them are too many
/// where that is at least three, or all of two.
///
/// # Errors
/// The first of the [`Rejection`]s that it deserves.
pub fn check(
    body: &Body,
    text: &str,
    facts: &Facts<'_>,
    policy: &CompactionPolicy,
) -> Result<(), Rejection> {
    let fields = [
        ("session_intent", &body.session_intent),
        ("narrative", &body.narrative),
    ];
    if says_nothing(body) {
        return Err(Rejection::Empty);
    }
    // What refuses in a language that nobody thought of says it in both.
    let [intent, narrative] = fields.map(|(_, field)| field.trim());
    let is_same = !intent.is_empty() && intent == narrative;
    if facts.is_written && (is_same || is_refusal(intent) || is_refusal(narrative)) {
        return Err(Rejection::Refusal);
    }
    let summarized = facts.previous.map_or(0, |previous| previous.turns);
    let turns = summarized.saturating_add(facts.span.len() as u64);
    let missing = fields.iter().find(|(_, field)| field.trim().is_empty());
    if let Some((field, _)) = missing.filter(|_| turns > TURNS_FEW as u64) {
        return Err(Rejection::FieldMissing { field });
    }
    if facts.tokens >= facts.span_tokens {
        return Err(Rejection::LongerThanTheSpan);
    }
    if facts.tokens > facts.room {
        return Err(Rejection::OverBudget);
    }
    // What was chosen within its tokens lost what did not fit, and without it all is lost.
    if !facts.is_written {
        return Ok(());
    }
    let last = &facts.span[facts.span.len().saturating_sub(LAST_TURNS)..];
    let probe = Probe::of_kinds(last, &[text], |kind| kind != Kind::Name);
    let (of, lost) = (probe.identifiers, probe.identifiers - probe.found);
    let lost_max = u64::from(of) * u64::from(policy.lost_identifiers_percent_max);
    let says_something = lost >= LOST_MIN || (lost == of && of > 1);
    if says_something && u64::from(lost) * 100 > lost_max {
        return Err(Rejection::IdentifiersLost { lost, of });
    }
    Ok(())
}

/// True of a body without a word in it.
fn says_nothing(body: &Body) -> bool {
    let lists = [
        &body.actions,
        &body.facts,
        &body.files_touched,
        &body.decisions,
        &body.pending_questions,
        &body.next_steps,
        &body.identifiers,
    ];
    let lists = lists.into_iter().flatten();
    let mut texts = lists.chain([&body.session_intent, &body.narrative]);
    !texts.any(|text| text.contains(char::is_alphanumeric))
}
