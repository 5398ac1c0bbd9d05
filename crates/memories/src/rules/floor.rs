//! The floor of relevance: which hits of a recall enter a window.
//!
//! An unrelated message should bring no memory. Hits with a vector need a minimum relevance, and hits
//! by words alone a minimum number of shared content words. That number separates better than the
//! rarity of the words: in a store of 20 memories every word is rare, and a name that a relevant
//! question contains is in half of them. `tests/eval/floor.py` measures the floor.

use memoird_core::words::ranking::{Query, Scorer};
use memoird_core::words::{Languages, is_stop_word, is_telling, tokens};

use super::fusion::ScoreParts;

/// Minimum relevance of a hit with a vector.
const RELEVANCE_MIN: f64 = 0.44;
/// Added to it for each doubling of the number of memories, because the nearest of many unrelated
/// memories is nearer.
const RELEVANCE_PER_DOUBLING: f64 = 0.02;
/// The same minimum if the query's content words are unknown.
const RELEVANCE_MIN_UNKNOWN: f64 = 0.43;
/// Added to it for each doubling.
const RELEVANCE_PER_DOUBLING_UNKNOWN: f64 = 0.01;
/// Minimum number of shared content words, plus their share of the query's content words.
const WORDS_MIN: f64 = 2.0;
/// Added to it for each doubling of the number of memories.
const WORDS_PER_DOUBLING: f64 = 0.07;
/// Minimum share of the query's content words. A long message shares two with almost any text.
const WORDS_SHARE_MIN: f64 = 0.25;
/// Minimum relevance by words if the query's content words are unknown.
const COVERAGE_MIN: f64 = 0.25;
/// Number of memories above which doublings raise the minimums.
const DOUBLINGS_FROM: f64 = 20.0;

/// Default minimum relevance of hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Floor {
    Nothing,
    /// For memories in a window.
    Window,
}

/// Which terms of a query are content words.
#[derive(Clone, Debug)]
pub(crate) struct ContentWords(Vec<bool>);

/// The content words that a memory shares with the query.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct SharedWords {
    pub found: usize,
    /// All content words of the query.
    pub of: usize,
}

impl Floor {
    /// Whether a hit among `searched` memories is relevant enough.
    pub(crate) fn admits(self, parts: &ScoreParts, searched: u64) -> bool {
        if self == Self::Nothing {
            return true;
        }
        let doublings = (searched as f64 / DOUBLINGS_FROM).max(1.0).log2();
        match (parts.cosine, parts.shared) {
            (Some(_), Some(_)) => {
                parts.relevance >= RELEVANCE_MIN + RELEVANCE_PER_DOUBLING * doublings
            }
            (Some(_), None) => {
                let added = RELEVANCE_PER_DOUBLING_UNKNOWN * doublings;
                parts.relevance >= RELEVANCE_MIN_UNKNOWN + added
            }
            (None, Some(shared)) => shared.is_enough(WORDS_MIN + WORDS_PER_DOUBLING * doublings),
            (None, None) => parts.relevance >= COVERAGE_MIN,
        }
    }
}

impl ContentWords {
    /// Returns the content words of a query, or `None` if they are unknown.
    ///
    /// They are known for English only. In other languages the question words, which are on no list,
    /// would count as content.
    pub(crate) fn new(text: &str, query: &Query) -> Option<Self> {
        let is_english = Languages::detect(text) == Languages::default()
            && tokens(text).any(|token| token.word.is_ascii() && is_stop_word(&token.folded()));
        let is_content = |word: &str| {
            // A single letter is mostly a part of a contraction.
            let is_letter = word.len() == 1;
            !is_letter && tokens(word).any(|token| is_telling(&token.folded()))
        };
        is_english.then(|| {
            let terms = query.terms().iter();
            Self(terms.map(|term| is_content(&term.word)).collect())
        })
    }

    /// Counts the content words in a text.
    pub(crate) fn shared_with(&self, text: &str, scorer: &Scorer<'_>) -> SharedWords {
        let mut terms = self.0.clone();
        for (_, term) in scorer.places(text) {
            if let Some(is_missing) = terms.get_mut(term) {
                *is_missing = false;
            }
        }
        let count = |terms: &[bool]| terms.iter().filter(|term| **term).count();
        SharedWords {
            found: count(&self.0) - count(&terms),
            of: count(&self.0),
        }
    }
}

impl SharedWords {
    /// Weight of the shared words, from 0 to 1.
    ///
    /// It grows with their number and with their share: one of one is less than two of two, and two
    /// of eight are less than two of four.
    pub(crate) fn evidence(self) -> f64 {
        (self.found as f64 / (self.of as f64 / 2.0 + 1.0)).min(1.0)
    }

    fn share(self) -> f64 {
        self.found as f64 / self.of.max(1) as f64
    }

    /// Whether the memory has all content words of the query, or enough of them.
    fn is_enough(self, least: f64) -> bool {
        let is_all = self.found > 0 && self.found == self.of;
        is_all || self.share() >= WORDS_SHARE_MIN && self.found as f64 + self.share() >= least
    }
}

#[cfg(test)]
mod tests {
    use memoird_core::words::ranking::Statistics;

    use super::*;

    fn shared(query: &str, memory: &str) -> Option<SharedWords> {
        let terms = Query::new(query, Languages::default());
        let statistics = Statistics::default();
        let words = ContentWords::new(query, &terms)?;
        Some(words.shared_with(memory, &Scorer::new(&terms, &statistics)))
    }

    fn admits(query: &str, memory: &str, searched: u64) -> bool {
        let parts = ScoreParts {
            shared: shared(query, memory),
            ..ScoreParts::default()
        };
        Floor::Window.admits(&parts, searched)
    }

    #[test]
    fn one_of_several_content_words_is_not_enough() {
        let capital = "Ann's brother lives in the capital of France";
        assert!(!admits("What is the capital of Peru?", capital, 1));
        assert!(admits("What is the capital of France?", capital, 20));
        assert!(admits("Where does her brother live?", capital, 20));
    }

    #[test]
    fn only_content_word_is_enough() {
        for searched in [1, 2_000] {
            assert!(admits(
                "How old am I?",
                "He is 35 years old and shy",
                searched
            ));
        }
        assert!(!admits("How old am I?", "He lives in Seattle", 1));
    }

    #[test]
    fn message_without_content_words_has_no_relevant_memory() {
        for message in ["no, that's all", "ok, thanks a lot", "what was it?"] {
            assert!(
                !admits(message, "Ann's thanks were all that's needed", 1),
                "{message}"
            );
        }
    }

    #[test]
    fn two_words_of_a_long_message_are_not_enough() {
        let message = "Please book the morning flight from Boston to Denver with two checked bags, \
                       an aisle seat, travel insurance and a rental car, and pay by gift card";
        let memory = "Ann sold her car and has a travel blog";
        let found = shared(message, memory).unwrap();
        assert!(found.found == 2 && found.of > 10, "{found:?}");
        assert!(!admits(message, memory, 20));
    }

    #[test]
    fn larger_store_needs_more_shared_words() {
        let question = "Which green tea does Ann drink in the morning at home?";
        let memory = "Ann keeps tea in a tin";
        assert!(admits(question, memory, 20));
        assert!(!admits(question, memory, 2_000));
        assert!(admits(question, "Ann drinks green tea", 2_000));
    }

    #[test]
    fn content_words_of_other_languages_are_unknown() {
        for question in [
            "Wo wohnt Anna?",
            "Mikä koiran nimi on?",
            "Gdzie mieszka Anna?",
            "Где живёт Анна?",
            "安娜住在哪里?",
        ] {
            assert_eq!(shared(question, ""), None, "{question}");
        }
        assert!(shared("Where does Anna live?", "").is_some());
        let covered = ScoreParts {
            relevance: COVERAGE_MIN,
            ..ScoreParts::default()
        };
        assert!(Floor::Window.admits(&covered, 1));
    }

    #[test]
    fn hits_with_a_vector_are_judged_by_relevance() {
        let near = ScoreParts {
            relevance: RELEVANCE_MIN,
            cosine: Some(0.5),
            shared: Some(SharedWords::default()),
            ..ScoreParts::default()
        };
        assert!(Floor::Window.admits(&near, 20));
        assert!(!Floor::Window.admits(&near, 40));
        let unknown = ScoreParts {
            relevance: RELEVANCE_MIN_UNKNOWN,
            shared: None,
            ..near
        };
        assert!(Floor::Window.admits(&unknown, 20));
        assert!(Floor::Nothing.admits(&ScoreParts::default(), 40));
    }

    #[test]
    fn evidence_grows_with_number_and_share_of_shared_words() {
        let evidence = |found, of| SharedWords { found, of }.evidence();
        assert!(evidence(0, 3) < evidence(1, 1));
        assert!(evidence(1, 1) < evidence(2, 2));
        assert!(evidence(2, 8) < evidence(2, 4));
        assert!((evidence(4, 4) - 1.0).abs() < 1e-9);
    }
}
