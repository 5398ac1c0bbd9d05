//! Summaries made in this process without a model: a ledger of what was wanted, done and found
//! out, and sentences of the turns.

mod choose;
mod fit;
mod material;
#[cfg(test)]
mod tests;
mod wants;

use std::collections::HashSet;
use std::sync::Arc;

use memoird_core::compaction::Body;
use memoird_engine::{Summarizer, SummarizerAnswer, SummarizerFuture, SummaryRequest};
use memoird_formats::tokens::Estimate;

use choose::Choice;
use fit::Room;
use material::Material;

/// Takes lines out of the turns. Deterministic, without a network.
///
/// # How
/// `core::compaction::ledger` reads the turns. What is left of it, most important first:
///
/// 1. What the user wants, in their last words that ask for something new.
/// 2. Calls that changed something and calls that failed, each in one line: the newest whole,
///    the older ones folded to the tool, its first arguments and the beginning of what came of it.
///    Where they are many, the oldest stand in one line for each tool, with the things that each
///    named and whether it failed; where that is too much, with the one thing that it was about.
/// 3. What other calls found out, as records of `label=value` behind their call: the newest, and
///    of each the values that name or count something and that no newer line says.
/// 4. Sentences. The one is taken next that says most for its tokens of what no line says yet:
///    identifiers, and words, which count more in what the assistant said right behind a call
///    and what the user said, and less the more often they were said. What the assistant begins
///    a turn with counts most, and what a long turn goes on with less and less. This is the greedy
///    maximum of a coverage (H. Lin and J. Bilmes, "A Class of Submodular Functions for
///    Document Summarization", ACL 2011); a sentence that says nothing new is never taken.
/// 5. A short list of the newest identifiers that stand in no line.
/// 6. Where there is still room, all of the records: first those about what somebody mentioned.
///
/// The last summary is material like the turns, only older, so what it said is carried on as long
/// as there is room.
///
/// # Tokens
/// Counted by the estimate for open models, which for such text is above what the known
/// tokenizers give.
#[derive(Clone, Debug, Default)]
pub struct ExtractiveSummarizer {
    counter: Estimate,
}

/// Of the room beside what is fixed, what calls that changed something may have, in percent; and
/// how many tokens at least, where that is not most of it. Folded they need little, and sentences
/// tell what came of them.
const ACTIONS_PERCENT_MAX: usize = 30;
const ACTIONS_TOKENS: usize = 200;
const ACTIONS_TOKENS_PERCENT_MAX: usize = 52;
/// Of more room than so many tokens calls may have more, in percent: a long conversation has many.
const LARGE_TOKENS: usize = 1_000;
const ACTIONS_LARGE_PERCENT_MAX: usize = 70;
/// The same where there are more than the newest, of which the others have a word or two each.
const MERGED_PERCENT_MAX: usize = 45;
/// Of the rest, what facts may have before there are sentences, in percent.
const FACTS_PERCENT_MAX: usize = 5;
/// Of all the room, what a list of identifiers may have that stand in no line; in percent.
const LISTED_PERCENT_MAX: usize = 10;
/// The narrative where there is no sentence.
const SILENT: &str = "Only tools were called.";

impl ExtractiveSummarizer {
    /// The summary. CPU-heavy: about a millisecond for 100 KB of turns. Written with the notes
    /// of the request it has at most `tokens_max` tokens, unless the notes alone have more.
    pub fn body(&self, request: &SummaryRequest) -> Body {
        let material = Material::of(request);
        let room = Room::new(&self.counter, request);
        let mut body = room.fixed(&material);
        let free = |body: &Body| room.free(body, &material);
        let all = free(&body);
        let most = actions_tokens_max(all);
        let merged = (all * MERGED_PERCENT_MAX / 100).max(most);
        body.actions = room.actions(&material.actions, most, merged);
        let for_list = all * LISTED_PERCENT_MAX / 100;
        let for_facts = free(&body) * FACTS_PERCENT_MAX / 100;
        let mut facts = room.facts(&material.facts, &body.actions, for_facts);
        body.facts = material::fact_lines(&material.facts, &facts);
        let mut choice = Choice::new(&self.counter, &material.sentences);
        choice.cover_lines(&body);
        choice.take(free(&body).saturating_sub(for_list));
        body.narrative = choice.narrative();
        body.identifiers = room.listed(&material.listed, &body, for_list.min(free(&body)));
        choice.take(free(&body));
        body.narrative = choice.narrative();
        // What these sentences name makes room in the list for older ones.
        body.identifiers.clear();
        body.identifiers = room.listed(&material.listed, &body, for_list.min(free(&body)));
        room.more_facts(&material.facts, &mut facts, free(&body));
        body.facts = material::fact_lines(&material.facts, &facts);
        let is_silent = material.sentences.is_empty() && !material.is_empty();
        if is_silent && all > SILENT.len() {
            body.narrative = SILENT.to_owned();
        }
        while !room.holds(&body) && (!facts.is_empty() || choice.drop_last()) {
            facts.truncate(facts.len() - facts.len().div_ceil(16));
            body.facts = material::fact_lines(&material.facts, &facts);
            body.narrative = choice.narrative();
        }
        if !room.holds(&body) {
            body.narrative.clear();
            body.identifiers.clear();
        }
        while !room.holds(&body) && !body.actions.is_empty() {
            body.actions.remove(0);
        }
        body
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

/// What calls that changed something may have of so many tokens.
fn actions_tokens_max(all: usize) -> usize {
    let small = all.min(LARGE_TOKENS);
    let least = ACTIONS_TOKENS.min(small * ACTIONS_TOKENS_PERCENT_MAX / 100);
    let more = (all - small) * ACTIONS_LARGE_PERCENT_MAX / 100;
    (small * ACTIONS_PERCENT_MAX / 100).max(least) + more
}

/// Each entry once, where it stands last.
fn newest_once(list: &mut Vec<String>) {
    let mut seen = HashSet::new();
    let mut newest: Vec<String> = std::mem::take(list).into_iter().rev().collect();
    newest.retain(|entry| !entry.trim().is_empty() && seen.insert(entry.clone()));
    newest.reverse();
    *list = newest;
}
