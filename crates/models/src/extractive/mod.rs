//! Summaries made in this process without a model, of sentences taken from the turns.

mod fit;
mod material;
mod rank;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use memoird_core::compaction::Body;
use memoird_engine::{Summarizer, SummarizerAnswer, SummarizerFuture, SummaryRequest};
use memoird_formats::tokens::Estimate;

use fit::Room;
use material::Material;

/// Takes sentences and identifiers out of the turns. Deterministic, without a network.
///
/// # How
/// Sentences of the user and the assistant are chosen by SumBasic (A. Nenkova and
/// L. Vanderwende, "The Impact of Frequency on Summarization", Microsoft Research,
/// MSR-TR-2005-101, 2005): a sentence is worth the mean probability of its content words in
/// all that is to be summarized; the best one with the most probable word is taken, the
/// probabilities of its words are squared, so that nothing is said twice, and so on. It is
/// chosen over the methods that rank by a graph of sentences (LexRank, TextRank), which have
/// to compare all pairs of them: this one is linear in the text for each sentence taken. Two
/// things are added. A sentence counts less the older it is, down to half, so that of equal
/// ones the newer stays. And at most [`SENTENCES_MAX`](rank::SENTENCES_MAX) are looked at,
/// the newest.
///
/// Identifiers (`core::compaction::identifiers`) come first: as many as fit beside a small
/// share for sentences, the newest before older ones; times of day count as six times as
/// old as they are, and names as ten times. Those that stand in a sentence are listed all the
/// same: the list is in the order of their last use, which the next summary needs to know
/// what is old. The last summary is material like the turns, only older, so what it
/// said is carried on as long as there is room.
///
/// # Tokens
/// Counted by the estimate for open models, which for such text is above what the known
/// tokenizers give.
#[derive(Clone, Debug, Default)]
pub struct ExtractiveSummarizer {
    counter: Estimate,
}

/// Of the room for sentences and identifiers, what identifiers leave to sentences; in percent.
const SENTENCES_PERCENT_MIN: usize = 12;

/// Sentences that are ranked, at least and at most: one for each eight tokens.
const TAKEN: (usize, usize) = (16, 256);
/// Sentences that are tried where the best ones do not fit.
const TRIED_MAX: usize = 64;
/// The narrative where there is no sentence.
const SILENT: &str = "Only tools were called.";

impl ExtractiveSummarizer {
    /// The summary. CPU-heavy: some milliseconds for 200 KB of turns. Written with the notes
    /// of the request it has at most `tokens_max` tokens, unless the notes alone have more.
    pub fn body(&self, request: &SummaryRequest) -> Body {
        let material = Material::of(request);
        let room = Room::new(&self.counter, request);
        let mut body = room.fixed(&material);
        let free = room.free(&body);
        let order = material.best_first();
        let for_identifiers = free - free * SENTENCES_PERCENT_MIN / 100;
        let taken = room.fitting(&order, for_identifiers);
        let left = free - room.tokens_of(&order[..taken]);
        body.narrative = narrative(&material, &room, left, free);
        let mut taken = room.fitting(&order, room.free(&body));
        loop {
            body.identifiers = material.in_order(&order[..taken]);
            if taken == 0 || room.holds(&body) {
                return body;
            }
            taken -= taken.div_ceil(64);
        }
    }
}

/// The sentences that fit, and one at least: without any a summary says nothing.
fn narrative(material: &Material, room: &Room<'_>, left: usize, free: usize) -> String {
    let ranked = rank::ranked(&material.sentences, (left / 8).clamp(TAKEN.0, TAKEN.1));
    let mut lines = room.lines(&material.sentences, &ranked, left);
    if lines.is_empty() {
        let newest = (0..material.sentences.len()).rev().take(TRIED_MAX);
        let tried: Vec<usize> = ranked.into_iter().take(TRIED_MAX).chain(newest).collect();
        lines = room.lines(&material.sentences, &tried, free / 2);
        lines.truncate(1);
    }
    match material::narrative(&material.sentences, &lines) {
        said if said.is_empty() && !material.identifiers.is_empty() && free > SILENT.len() => {
            SILENT.to_owned()
        }
        said => said,
    }
}

impl Summarizer for ExtractiveSummarizer {
    fn name(&self) -> &str {
        "extractive"
    }

    fn input_tokens_max(&self) -> u64 {
        u64::MAX
    }

    fn is_remote(&self) -> bool {
        false
    }

    fn summarize(&self, request: Arc<SummaryRequest>) -> SummarizerFuture<'_> {
        Box::pin(async move { Ok(SummarizerAnswer::Body(self.body(&request))) })
    }
}
