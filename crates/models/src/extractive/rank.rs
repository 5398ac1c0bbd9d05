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

/// The content words of all sentences: each has a number, and is counted.
#[derive(Default)]
struct Vocabulary {
    /// The number of the stem; `None` for a word without content.
    by_word: HashMap<String, Option<usize>>,
    by_stem: HashMap<String, usize>,
    counts: Vec<f64>,
}

impl Vocabulary {
    /// Counts a word; its number, where it has content.
    fn count(&mut self, folded: &str) -> Option<usize> {
        let number = match self.by_word.get(folded) {
            Some(known) => *known,
            None => self.add(folded),
        };
        self.counts[number?] += 1.0;
        number
    }

    /// Stemming is most of the work: once for each word.
    fn add(&mut self, folded: &str) -> Option<usize> {
        let has_content = !is_stop_word(folded) && folded.len() >= 2;
        let number = has_content.then(|| {
            let next = self.counts.len();
            let number = *self
                .by_stem
                .entry(stem(folded).into_owned())
                .or_insert(next);
            if number == next {
                self.counts.push(0.0);
            }
            number
        });
        self.by_word.insert(folded.to_owned(), number);
        number
    }

    /// The probability of each word in all that was counted.
    fn probabilities(self) -> Vec<f64> {
        let all = self.counts.iter().sum::<f64>().max(1.0);
        self.counts.into_iter().map(|count| count / all).collect()
    }
}

fn candidates(sentences: &[Sentence]) -> (Vec<Candidate>, Vec<f64>) {
    let mut vocabulary = Vocabulary::default();
    let skipped = sentences.len().saturating_sub(SENTENCES_MAX);
    let newest = (sentences.len() - skipped).max(2) as f64 - 1.0;
    let mut candidates = Vec::new();
    let mut seen = HashSet::new();
    // Of equal sentences the newest is looked at.
    for (index, sentence) in sentences.iter().enumerate().skip(skipped).rev() {
        let tokens = tokens(&sentence.text).take(WORDS_MAX + 1);
        let words: Vec<usize> = tokens
            .filter_map(|token| vocabulary.count(&token.folded()))
            .collect();
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
    (candidates, vocabulary.probabilities())
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
