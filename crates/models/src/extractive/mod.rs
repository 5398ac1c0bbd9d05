//! Summaries in this process, without a model: what was said, to the letter, and less of it.

mod fit;
mod material;
mod rank;

use std::collections::HashSet;
use std::sync::Arc;

use memoird_core::compaction::Body;
use memoird_core::compaction::identifiers::{Kind, identifiers};
use memoird_core::model::Provider;
use memoird_core::tokens::Estimate;
use memoird_engine::{Answer, Summaries, Summarizer, SummaryAsk};

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
/// share for sentences, of the newest turns before those of older ones, paths, ids, amounts,
/// dates and codes before names; those that stand in a sentence or another field are not
/// listed again. The last summary is material like the turns, only older, so what it
/// said is carried on as long as there is room.
///
/// # Tokens
/// Counted by the estimate for open models, which for such text is above what the known
/// tokenizers give.
#[derive(Clone, Debug)]
pub struct ExtractiveSummarizer {
    counter: Estimate,
}

/// Of the room for sentences and identifiers, what identifiers leave to sentences; in percent.
const SENTENCES_PERCENT_MIN: usize = 12;
/// Of what is left then, what names leave to sentences.
const NAMES_PERCENT_MAX: usize = 30;

impl Default for ExtractiveSummarizer {
    fn default() -> Self {
        Self { counter: Estimate::new(Provider::Open) }
    }
}

impl ExtractiveSummarizer {
    /// The summary. CPU-heavy: some milliseconds for 200 KB of turns. Written with the notes
    /// of the ask it has at most so many tokens as asked for, unless the notes alone have more.
    pub fn body(&self, ask: &SummaryAsk) -> Body {
        let material = Material::of(ask);
        let room = Room::new(&self.counter, ask);
        let mut body = room.fixed(&material);
        let free = room.free(&body);
        let known = identifiers_of(&body.text(0, &ask.notes));
        let is_open = |text: &str| !known.contains(text);
        let newest = |is_name: bool| -> Vec<&str> {
            let found = material.identifiers.iter().rev();
            let found = found.filter(|found| (found.kind == Kind::Name) == is_name);
            found.map(|found| &*found.text).filter(|text| is_open(text)).collect()
        };
        let (things, names) = (newest(false), newest(true));
        let for_things = free - free * SENTENCES_PERCENT_MIN / 100;
        let taken = room.fitting(&things, for_things);
        let left = free - room.tokens_of(&things[..taken]);
        let ranked = rank::ranked(&material.sentences);
        let for_names = room.tokens_of(&names).min(left * NAMES_PERCENT_MAX / 100);
        let mut lines = room.lines(&material.sentences, &ranked, left - for_names);
        loop {
            body.narrative = material::narrative(&material.sentences, &lines);
            body.identifiers.clear();
            let free = room.free(&body);
            let said = identifiers_of(&body.narrative);
            let order = things.iter().chain(&names).filter(|text| !said.contains(**text));
            let order: Vec<&str> = order.copied().collect();
            let taken = room.fitting(&order, free);
            body.identifiers = material.in_order(&order[..taken]);
            if room.holds(&body) || lines.pop().is_none() {
                break;
            }
        }
        while !room.holds(&body) && !body.identifiers.is_empty() {
            let few = body.identifiers.len().div_ceil(16);
            body.identifiers.drain(..few);
        }
        body
    }
}

/// What stands in a text, so that it need not be listed; of an amount with its currency also
/// the bare number.
fn identifiers_of(text: &str) -> HashSet<String> {
    let found = identifiers(text).into_iter().flat_map(|found| {
        let bare = found.text.trim_start_matches(['$', '€', '£', '#']);
        [found.text.to_owned(), bare.to_owned()]
    });
    found.collect()
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

    fn summarize(&self, ask: Arc<SummaryAsk>) -> Summaries<'_> {
        Box::pin(async move { Ok(Answer::Body(self.body(&ask))) })
    }
}
