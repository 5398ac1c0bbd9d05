//! SumBasic: which sentences say most.

use std::collections::{HashMap, HashSet};

use memoird_core::words::is_stop_word;
use memoird_core::words::{stem, tokens};

use super::material::Sentence;

/// Sentences that are looked at: the newest.
pub(super) const SENTENCES_MAX: usize = 4_096;
/// Content words of a sentence: fewer say nothing, more are no sentence.
const WORDS_MIN: usize = 3;
const WORDS_MAX: usize = 60;

/// A sentence as its content words, each by its number.
struct Candidate {
    index: usize,
    words: Vec<usize>,
    /// 0.5 for the oldest to 1 for the newest.
    recency: f64,
}

/// The indices of the sentences with the most content, best first: at most `taken_max`.
pub(super) fn ranked(sentences: &[Sentence], taken_max: usize) -> Vec<usize> {
    let (mut left, mut probabilities) = candidates(sentences);
    // How often each word occurs in the sentences that are left.
    let mut uses = vec![0_u32; probabilities.len()];
    left.iter()
        .flat_map(|one| &one.words)
        .for_each(|word| uses[*word] += 1);
    let mut ranked = Vec::new();
    while ranked.len() < taken_max
        && let Some(word) = most_probable(&probabilities, &uses)
        && let Some(best) = best(&left, word, &probabilities)
    {
        let taken = left.swap_remove(best);
        for word in taken.words {
            probabilities[word] *= probabilities[word];
            uses[word] -= 1;
        }
        ranked.push(taken.index);
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
    for (index, sentence) in sentences.iter().enumerate().skip(skipped).rev() {
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
            let recency = 0.5 + 0.5 * (index - skipped) as f64 / newest;
            candidates.push(Candidate {
                index,
                words,
                recency,
            });
        }
    }
    let all: f64 = counts.iter().sum();
    counts.iter_mut().for_each(|count| *count /= all.max(1.0));
    (candidates, counts)
}

/// The most probable word that is left; of equal ones the one that was said last.
fn most_probable(probabilities: &[f64], uses: &[u32]) -> Option<usize> {
    let left = (0..probabilities.len()).filter(|word| uses[*word] > 0);
    let by_probability = |a: &usize, b: &usize| probabilities[*a].total_cmp(&probabilities[*b]);
    left.max_by(|a, b| by_probability(a, b).then(b.cmp(a)))
}

/// Of the sentences with a word the one that is worth most; of equal ones the newest.
fn best(left: &[Candidate], word: usize, probabilities: &[f64]) -> Option<usize> {
    let worth = |candidate: &Candidate| {
        let words = candidate.words.iter();
        let sum: f64 = words.map(|word| probabilities[*word]).sum();
        sum / candidate.words.len() as f64 * candidate.recency
    };
    let left = left.iter().enumerate();
    let having = left.filter(|(_, one)| one.words.contains(&word));
    let best =
        having.max_by(|(_, a), (_, b)| worth(a).total_cmp(&worth(b)).then(a.index.cmp(&b.index)));
    best.map(|(at, _)| at)
}
