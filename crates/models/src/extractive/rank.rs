//! SumBasic: which sentences say most.

use std::collections::{HashMap, HashSet};

use memoird_core::memory::is_stop_word;
use memoird_core::memory::text::{stem, tokens};

use super::material::Sentence;

/// Sentences that are looked at: the newest.
pub(super) const SENTENCES_MAX: usize = 4_096;
/// Sentences that are taken.
const TAKEN_MAX: usize = 128;
/// Content words of a sentence: fewer say nothing, more are no sentence.
const WORDS_MIN: usize = 3;
const WORDS_MAX: usize = 60;

/// A sentence as its content words, each by its number.
struct Candidate {
    place: usize,
    words: Vec<usize>,
    /// 0.5 for the oldest to 1 for the newest.
    recency: f64,
}

/// The places of the sentences that say most, best first.
pub(super) fn ranked(sentences: &[Sentence]) -> Vec<usize> {
    let (mut left, mut probabilities) = candidates(sentences);
    let mut ranked = Vec::new();
    while ranked.len() < TAKEN_MAX
        && let Some(best) = best(&left, &probabilities)
    {
        let taken = left.swap_remove(best);
        for word in taken.words {
            probabilities[word] *= probabilities[word];
        }
        ranked.push(taken.place);
    }
    ranked
}

fn candidates(sentences: &[Sentence]) -> (Vec<Candidate>, Vec<f64>) {
    let mut numbers: HashMap<String, usize> = HashMap::new();
    let mut counts: Vec<f64> = Vec::new();
    let skipped = sentences.len().saturating_sub(SENTENCES_MAX);
    let newest = (sentences.len() - skipped).max(2) as f64 - 1.0;
    let mut candidates = Vec::new();
    let mut seen = HashSet::new();
    // Of equal sentences the newest is looked at.
    for (place, sentence) in sentences.iter().enumerate().skip(skipped).rev() {
        let mut words = Vec::new();
        for token in tokens(&sentence.text).take(WORDS_MAX + 1) {
            let folded = token.folded();
            if is_stop_word(&folded) || folded.len() < 2 {
                continue;
            }
            let next = counts.len();
            let number = *numbers.entry(stem(&folded).into_owned()).or_insert(next);
            if number == next {
                counts.push(0.0);
            }
            counts[number] += 1.0;
            words.push(number);
        }
        let is_sentence = (WORDS_MIN..=WORDS_MAX).contains(&words.len());
        if is_sentence && seen.insert(&*sentence.text) {
            let recency = 0.5 + 0.5 * (place - skipped) as f64 / newest;
            candidates.push(Candidate { place, words, recency });
        }
    }
    let all: f64 = counts.iter().sum();
    counts.iter_mut().for_each(|count| *count /= all.max(1.0));
    (candidates, counts)
}

/// Of the sentences with the most probable word the one that is worth most; of equal ones the
/// newest.
fn best(left: &[Candidate], probabilities: &[f64]) -> Option<usize> {
    let words = left.iter().flat_map(|candidate| &candidate.words);
    let word = words
        .copied()
        .max_by(|a, b| probabilities[*a].total_cmp(&probabilities[*b]).then(b.cmp(a)))?;
    let worth = |candidate: &Candidate| {
        let sum: f64 = candidate.words.iter().map(|word| probabilities[*word]).sum();
        sum / candidate.words.len() as f64 * candidate.recency
    };
    let having = left.iter().enumerate().filter(|(_, one)| one.words.contains(&word));
    let best =
        having.max_by(|(_, a), (_, b)| worth(a).total_cmp(&worth(b)).then(a.place.cmp(&b.place)));
    best.map(|(at, _)| at)
}
