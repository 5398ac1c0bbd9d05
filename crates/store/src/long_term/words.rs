//! Stands in for the rules of words until they are in core.

use sha2::{Digest, Sha256};

pub(super) const CANDIDATES_MAX: usize = 256;

#[derive(Clone, Debug)]
pub(super) struct Term {
    pub(super) word: String,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Query {
    terms: Vec<Term>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Statistics {
    pub(super) memories: u64,
    pub(super) found_in: Vec<u64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Found(u32);

pub(super) struct Scorer {
    weights: Vec<f64>,
}

impl Query {
    pub(super) fn new(text: &str) -> Self {
        let mut terms: Vec<Term> = Vec::new();
        for word in normalised(text).split(' ').filter(|word| !word.is_empty()).take(32) {
            if terms.iter().all(|term| term.word != word) {
                terms.push(Term { word: word.to_owned() });
            }
        }
        Self { terms }
    }

    pub(super) fn terms(&self) -> &[Term] {
        &self.terms
    }
}

impl Found {
    pub(super) fn insert(&mut self, term: usize) {
        self.0 |= 1 << term;
    }

    fn contains(self, term: usize) -> bool {
        self.0 >> term & 1 == 1
    }
}

impl Scorer {
    pub(super) fn new(_: &Query, statistics: &Statistics) -> Self {
        let weight = |found_in: &u64| {
            let (with, all) = ((*found_in).max(1) as f64, statistics.memories.max(1) as f64);
            (((all - with).max(0.0) + 0.5) / (with + 0.5)).ln_1p()
        };
        Self { weights: statistics.found_in.iter().map(weight).collect() }
    }

    pub(super) fn coverage(&self, found: Found) -> f64 {
        let weights = self.weights.iter().enumerate();
        weights.filter(|(term, _)| found.contains(*term)).map(|(_, weight)| weight).sum()
    }

    pub(super) fn score(&self, found: Found, _: &str) -> f64 {
        self.coverage(found)
    }
}

pub(super) fn normalised(text: &str) -> String {
    let words = text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
    words.map(str::to_lowercase).collect::<Vec<_>>().join(" ")
}

pub(super) fn numbers_and_negations(text: &str) -> Vec<String> {
    let normal = normalised(text);
    let words = normal
        .split(' ')
        .filter(|word| word.contains(char::is_numeric) || matches!(*word, "not" | "no" | "never"));
    words.map(str::to_owned).collect()
}

/// By what texts are found that may say the same: a digest of the normalised text.
pub(super) fn says(text: &str) -> i64 {
    let normal = normalised(text);
    // A text without any word is what it is.
    let words = if normal.is_empty() { text } else { &normal };
    let digest: [u8; 32] = Sha256::digest(words.as_bytes()).into();
    i64::from_le_bytes(std::array::from_fn(|place| digest[place]))
}
