//! The prompt for a summarizer model, and its reply.

mod answer;
#[cfg(test)]
mod tests;

use super::merge::ModelSections;
use super::summary::Summary;
use super::transcript::TranscriptTurn;
use crate::date::minute;
use crate::nonce::Nonce;
use crate::quote::within;

pub use answer::{as_json, parse_answer};

#[derive(Clone, Copy, Debug)]
pub struct SummaryPrompt<'a> {
    /// Previous summary, which the reply continues.
    pub previous: Option<&'a Summary>,
    /// Replies about pieces, if the span was too long for one call.
    pub pieces: &'a [ModelSections],
    /// The turns, oldest first. Empty when pieces are joined.
    pub turns: &'a [TranscriptTurn],
    /// Maximum size of the reply in tokens.
    pub tokens_max: u64,
    /// Nonce of the tags in the prompt.
    pub nonce: Nonce,
}

/// Tags around the pieces of a prompt. Text inside them cannot contain one.
const TAGS: &[&str] = &["earlier", "piece", "transcript"];

const SYSTEM: &str = include_str!("prompt/system.txt");

/// The system prompt. It is constant, so that providers can cache it.
pub fn system() -> &'static str {
    SYSTEM
}

/// Builds the prompt, a few thousand bytes longer than its parts.
///
/// The same arguments yield the same bytes.
pub fn prompt(request: &SummaryPrompt<'_>) -> String {
    let mut prompt = String::new();
    if let Some(previous) = request.previous {
        prompt.push_str("The summary so far:\n\n");
        push_block(&mut prompt, "earlier", &previous.text, request.nonce);
    }
    if !request.pieces.is_empty() {
        prompt.push_str("Summaries of the pieces of the conversation, oldest first:\n\n");
    }
    for piece in request.pieces {
        push_block(
            &mut prompt,
            "piece",
            &as_json(piece).to_string(),
            request.nonce,
        );
    }
    if !request.turns.is_empty() {
        prompt.push_str("The turns, with number, role and time, oldest first:\n\n");
        let nonce = request.nonce;
        prompt.push_str(&format!("<transcript {nonce}>\n"));
        for turn in request.turns.iter().filter(|turn| !turn.text.is_empty()) {
            let at = turn
                .said_at
                .map(minute)
                .map(|at| format!(" {at}"))
                .unwrap_or_default();
            prompt.push_str(&format!("[{} {}{at}] ", turn.seq, turn.role.name()));
            prompt.push_str(&within(&nonce.hidden_in(&turn.text), TAGS));
            prompt.push('\n');
        }
        prompt.push_str(&format!("</transcript {nonce}>\n\n"));
    }
    prompt.push_str(&format!(
        "Summarize all of this in one JSON object of at most {} tokens.\n",
        request.tokens_max
    ));
    prompt
}

fn push_block(prompt: &mut String, tag: &str, text: &str, nonce: Nonce) {
    let text = within(&nonce.hidden_in(text), TAGS);
    prompt.push_str(&format!("<{tag} {nonce}>\n{text}\n</{tag} {nonce}>\n\n"));
}
