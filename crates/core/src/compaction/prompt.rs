//! The prompt for a model that summarizes, and its answer.

mod answer;
#[cfg(test)]
mod tests;

use super::ledger::Ledger;
use super::notes::Notes;
use super::summary::{Body, Summary};
use super::transcript::TranscriptTurn;
use crate::mark::Mark;
use crate::quote::within;

pub use answer::parse_answer;

/// What a summarizer is given.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    /// The last summary, which the answer must hold as well.
    pub previous: Option<&'a Summary>,
    /// Summaries of pieces, where the span was too long for one.
    pub pieces: &'a [Body],
    /// The turns, oldest first; none where only pieces are to become one.
    pub turns: &'a [TranscriptTurn],
    /// Notes of these turns.
    pub notes: &'a Notes,
    /// Tokens that the answer may have.
    pub tokens_max: u64,
    /// What the tags around all of this bear.
    pub mark: Mark,
}

/// What stands around the pieces; no text inside may look like it.
const TAGS: &[&str] = &["earlier", "piece", "noted", "ledger", "transcript"];
/// Bytes of the ledger.
const LEDGER_BYTES_MAX: usize = 8 * 1024;

const SYSTEM: &str = include_str!("prompt/system.txt");

/// The system prompt: the same for all, so that a provider may cache it.
pub fn system() -> &'static str {
    SYSTEM
}

/// The prompt. It is a few thousand bytes longer than its parts; the same arguments give the
/// same bytes.
pub fn prompt(ask: &Ask<'_>) -> String {
    let mut prompt = String::new();
    if let Some(previous) = ask.previous {
        prompt.push_str("What the summary so far says; it stands for all that came before:\n\n");
        push_block(&mut prompt, "earlier", &previous.text, ask.mark);
    }
    if !ask.pieces.is_empty() {
        prompt.push_str("Summaries of the pieces of the conversation, oldest first:\n\n");
    }
    for piece in ask.pieces {
        let text = piece.text(0, &Notes::default());
        push_block(&mut prompt, "piece", &text, ask.mark);
    }
    if !ask.notes.is_empty() {
        let mut noted = String::new();
        ask.notes.write(&mut noted);
        prompt.push_str("What was noted of it:\n\n");
        push_block(&mut prompt, "noted", &noted, ask.mark);
    }
    let ledger = ledger(ask.turns);
    if !ledger.is_empty() {
        prompt.push_str("The calls that changed something or failed, with what came of each:\n\n");
        push_block(&mut prompt, "ledger", &ledger, ask.mark);
    }
    if !ask.turns.is_empty() {
        prompt.push_str("The turns, with the number and role of each, oldest first:\n\n");
        let mark = ask.mark;
        prompt.push_str(&format!("<transcript {mark}>\n"));
        for turn in ask.turns.iter().filter(|turn| !turn.text.is_empty()) {
            prompt.push_str(&format!("[{} {}] ", turn.seq, turn.role.name()));
            prompt.push_str(&within(&mark.hidden_in(&turn.text), TAGS));
            prompt.push('\n');
        }
        prompt.push_str(&format!("</transcript {mark}>\n\n"));
    }
    prompt.push_str(&format!(
        "Summarize all of this in one JSON object of at most {} tokens.\n",
        ask.tokens_max
    ));
    prompt
}

/// The newest lines of the ledger, oldest first.
fn ledger(turns: &[TranscriptTurn]) -> String {
    let lines: Vec<String> = Ledger::of(turns).lines().collect();
    let mut left = LEDGER_BYTES_MAX;
    let newest = lines.iter().rev().take_while(|line| {
        let fits = line.len() < left;
        left = left.saturating_sub(line.len() + 1);
        fits
    });
    let first = lines.len() - newest.count();
    lines[first..].join("\n")
}

fn push_block(prompt: &mut String, tag: &str, text: &str, mark: Mark) {
    let text = within(&mark.hidden_in(text), TAGS);
    prompt.push_str(&format!("<{tag} {mark}>\n{text}\n</{tag} {mark}>\n\n"));
}
