//! What fits into a summary's tokens.

use memoird_core::compaction::Body;
use memoird_engine::SummaryRequest;
use memoird_formats::tokens::{Estimate, Tokenizer};

use super::material::{LATELY, Material, Sentence};

/// Stands for the number of turns, which is not known here: as long as any.
const TURNS: u64 = 9_999_999;
/// Titles of the sections of sentences and identifiers, in tokens; and what a piece may count
/// less alone than beside others.
const TITLES_TOKENS: usize = 16;
/// Of all tokens, what intent, decisions, files and steps may have; in percent.
const FIXED_PERCENT_MAX: usize = 40;

/// The tokens of a summary.
pub(super) struct Room<'a> {
    counter: &'a Estimate,
    request: &'a SummaryRequest,
    tokens_max: usize,
}

impl<'a> Room<'a> {
    pub(super) fn new(counter: &'a Estimate, request: &'a SummaryRequest) -> Self {
        let tokens_max = usize::try_from(request.tokens_max).unwrap_or(usize::MAX / 256);
        Self {
            counter,
            request,
            tokens_max: tokens_max.min(usize::MAX / 256),
        }
    }

    /// Tokens of a body as windows show it.
    fn tokens(&self, body: &Body) -> usize {
        self.counter.count(&body.text(TURNS, &self.request.notes))
    }

    /// True when it fits.
    pub(super) fn holds(&self, body: &Body) -> bool {
        self.tokens(body) <= self.tokens_max
    }

    /// The fields that come before sentences and identifiers, the oldest entries left out
    /// where they are too many.
    pub(super) fn fixed(&self, material: &Material) -> Body {
        let mut body = Body {
            session_intent: material.intent.clone(),
            files_touched: material.files.clone(),
            decisions: material.decisions.clone(),
            pending_questions: self.request.notes.pending_questions.clone(),
            next_steps: material.next_steps.clone(),
            ..Body::default()
        };
        let bare = self.tokens(&Body::default());
        let most = bare + self.tokens_max.saturating_sub(bare) * FIXED_PERCENT_MAX / 100;
        while self.tokens(&body) > most {
            let lists = [
                &mut body.next_steps,
                &mut body.files_touched,
                &mut body.decisions,
            ];
            let longest = lists.into_iter().max_by_key(|list| list.len());
            match longest.filter(|list| !list.is_empty()) {
                Some(longest) => drop(longest.drain(..longest.len().div_ceil(4))),
                None if body.session_intent.is_empty() => break,
                None => body.session_intent = shorter(&body.session_intent),
            }
        }
        body
    }

    /// Tokens that are left beside a body.
    pub(super) fn free(&self, body: &Body) -> usize {
        self.tokens_max
            .saturating_sub(self.tokens(body) + TITLES_TOKENS)
    }

    /// Tokens of a list of identifiers.
    pub(super) fn tokens_of(&self, listed: &[&str]) -> usize {
        self.counter.count(&joined(listed).0)
    }

    /// How many of the first ones fit into `tokens_max`.
    pub(super) fn fitting(&self, listed: &[&str], tokens_max: usize) -> usize {
        let (text, ends) = joined(listed);
        ends.partition_point(|end| self.counter.count(&text[..*end]) <= tokens_max)
    }

    /// The sentences that fit into `tokens_max`, best first.
    pub(super) fn lines(
        &self,
        sentences: &[Sentence],
        ranked: &[usize],
        tokens_max: usize,
    ) -> Vec<usize> {
        let mut left = tokens_max;
        let mut lines = Vec::new();
        for index in ranked {
            let line = &sentences[*index];
            let text = format!("\n  {}{}", line.who, line.text);
            let tokens = self.counter.count(&text);
            if tokens <= left {
                left -= tokens;
                lines.push(*index);
            }
        }
        lines
    }
}

/// Without what the user wanted lately, or half of it.
fn shorter(intent: &str) -> String {
    match intent.split_once(LATELY) {
        Some((first, _)) => first.trim_end().to_owned(),
        None => intent[..intent.floor_char_boundary(intent.len() / 2)].to_owned(),
    }
}

/// Identifiers as a list has them at most, and where each ends.
fn joined(listed: &[&str]) -> (String, Vec<usize>) {
    let mut text = String::new();
    let mut ends = Vec::with_capacity(listed.len());
    for identifier in listed {
        let is_word = !identifier.contains(char::is_whitespace);
        text.push_str(if is_word { " " } else { "; " });
        text.push_str(identifier);
        text.push_str(if is_word { "" } else { ";" });
        ends.push(text.len());
    }
    (text, ends)
}
