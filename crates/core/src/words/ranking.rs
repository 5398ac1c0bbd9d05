//! How well the words of a memory answer those of a query, in two steps: which words the
//! index found is enough to choose candidates; then their text decides.

use super::stop_words::{is_begun, is_ending, is_stop_word};
use super::{Languages, Token, is_apostrophe, tokens};

/// Terms of one query; further words of it are not looked for.
pub const TERMS_MAX: usize = 32;
/// Candidates whose text is read: more would cost time and improve nothing.
pub const CANDIDATES_MAX: usize = 256;

/// Words in which an answer is looked for: about two English sentences.
const PASSAGE_WORDS: usize = 40;
/// What the whole text counts beside its best passage.
const WHOLE_SHARE: f64 = 0.1;
/// How soon a word said again says nothing new. The usual value of BM25.
const K1: f64 = 1.2;
/// How much a text that is shorter than a passage gains. The usual value of BM25.
const B: f64 = 0.75;

/// One word that is looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Term {
    /// The word as the query writes it, of letters, digits and marks only.
    pub word: String,
    forms: Vec<String>,
}

/// The words of a query, each once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query {
    terms: Vec<Term>,
    languages: Languages,
}

/// What the index knows of the terms of a query among the memories that may be found: those
/// of the subjects that are asked, not of the whole tenant, so that what others say changes
/// nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// All memories that may be found.
    pub memories: u64,
    /// In how many of them the index found each term, in the terms' order. A term that is
    /// missing here was found nowhere.
    pub found_in: Vec<u64>,
}

/// Which terms of a query are in a memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Found(u32);

/// A query and what its terms weigh.
#[derive(Clone, Debug)]
pub struct Scorer<'a> {
    terms: &'a [Term],
    languages: Languages,
    weights: Vec<f64>,
    /// The first bytes of all forms, a bit for each of ASCII.
    firsts: u128,
}

impl Term {
    /// What the index is asked for: any of these is the word. One at least, of letters, digits
    /// and marks only.
    pub fn forms(&self) -> &[String] {
        &self.forms
    }
}

impl Query {
    /// The terms of a text: its words without stop words, or all of its words if there are
    /// no others; the first [`TERMS_MAX`]. `languages` are those of the texts that it may find.
    pub fn new(text: &str, languages: Languages) -> Self {
        let none = Self {
            terms: Vec::new(),
            languages,
        };
        let (mut telling, mut all) = (none.clone(), none);
        let mut words = tokens(text).filter(|token| !token.is_part).peekable();
        let mut is_behind_apostrophe = false;
        while let Some(token) = words.next() {
            let end = token.start + token.word.len();
            let next = words.peek();
            let is_before_apostrophe =
                next.is_some_and(|next| text.get(end..next.start).is_some_and(is_apostrophe));
            let folded = token.folded();
            let says_nothing = is_stop_word(&folded)
                || is_before_apostrophe && is_begun(&folded)
                || is_behind_apostrophe && is_ending(&folded);
            all.add(&token);
            if !says_nothing {
                telling.add(&token);
            }
            is_behind_apostrophe = is_before_apostrophe;
            if telling.terms.len() == TERMS_MAX {
                break;
            }
        }
        if telling.terms.is_empty() {
            all
        } else {
            telling
        }
    }

    /// What to ask the index for; at most [`TERMS_MAX`].
    pub fn terms(&self) -> &[Term] {
        &self.terms
    }

    fn add(&mut self, token: &Token<'_>) {
        let mut forms = Vec::new();
        token.forms(self.languages, |form| forms.push(form.to_owned()));
        let is_known = self.terms.iter().any(|term| term.forms == forms);
        if !is_known && !forms.is_empty() && self.terms.len() < TERMS_MAX {
            self.terms.push(Term {
                word: token.word.to_owned(),
                forms,
            });
        }
    }
}

impl Found {
    /// Also this term, by its place in [`Query::terms`].
    pub fn insert(&mut self, term: usize) {
        self.0 |= u32::try_from(term)
            .ok()
            .and_then(|term| 1_u32.checked_shl(term))
            .unwrap_or(0);
    }

    /// True when the term of this place is in the memory.
    pub fn contains(self, term: usize) -> bool {
        u32::try_from(term).is_ok_and(|term| self.0.checked_shr(term).is_some_and(|b| b & 1 == 1))
    }
}

impl<'a> Scorer<'a> {
    /// Weighs the terms of a query: the fewer memories have a term, the more it says. The
    /// weight is BM25's (S. Robertson and H. Zaragoza, "The Probabilistic Relevance
    /// Framework", 2009) in the form that never falls below zero, as in Lucene.
    pub fn new(query: &'a Query, statistics: &Statistics) -> Self {
        let weight = |term: usize| {
            let found_in = statistics.found_in.get(term).copied().unwrap_or(0);
            // The index misses a form now and then that the text is seen to have.
            let (with, all) = (found_in.max(1) as f64, statistics.memories.max(1) as f64);
            (((all - with).max(0.0) + 0.5) / (with + 0.5)).ln_1p()
        };
        let weights = (0..query.terms.len()).map(weight).collect();
        let forms = query.terms.iter().flat_map(|term| &term.forms);
        let firsts = forms.fold(0, |firsts, form| {
            firsts | form.bytes().next().map_or(0, bit)
        });
        Self {
            terms: &query.terms,
            languages: query.languages,
            weights,
            firsts,
        }
    }

    /// How much of the query a memory has anything of, by what the index found: each term
    /// counts once. Good for choosing candidates; the best [`CANDIDATES_MAX`] are enough.
    pub fn coverage(&self, found: Found) -> f64 {
        let weights = self.weights.iter().enumerate();
        let found = weights.filter(|(term, _)| found.contains(*term));
        found.map(|(_, weight)| weight).sum()
    }

    /// How well a memory answers the query: what it [covers](Self::coverage) of it, plus
    /// BM25 of its best passage. A long text is judged by the place that says most, not by
    /// its length: "Passage-level evidence in document retrieval" (J. Callan, 1994), with
    /// passages that begin at any word and are of one length ("Effective ranking with
    /// arbitrary passages", M. Kaszkiel and J. Zobel, 2001). A text shorter than a passage
    /// gains as BM25 has it. A tenth of BM25 of the whole text comes on top (both kinds of
    /// evidence together: Callan, again): of two whose best passages say the same, the one
    /// with less beside it stands first.
    ///
    /// 0 when nothing of the query is there; never negative, and finite. It takes time by the
    /// length of the content.
    pub fn score(&self, content: &str) -> f64 {
        let (hits, words) = self.hits(content);
        let mut seen = Found::default();
        for (_, term) in &hits {
            seen.insert(*term);
        }
        let whole = WHOLE_SHARE * self.whole(&hits, words);
        self.coverage(seen) + self.best_passage(&hits, words) + whole
    }

    /// Where terms stand, in words from the beginning; and how many words there are.
    fn hits(&self, content: &str) -> (Vec<(usize, usize)>, usize) {
        let mut hits = Vec::new();
        let mut words = 0;
        for token in tokens(content) {
            if self.may_match(token.word) {
                let mut found = None;
                token.forms(self.languages, |form| {
                    let has_form = |term: &Term| term.forms.iter().any(|own| own == form);
                    found = found.or_else(|| self.terms.iter().position(has_form));
                });
                hits.extend(found.map(|term| (words, term)));
            }
            words += 1;
        }
        (hits, words)
    }

    /// True unless the beginning of a word rules out every term: most words need no
    /// stemming. At most the last two letters of an English stem are not those of its word, and
    /// that beyond the first two, but for "dying", "lying" and "tying".
    fn may_match(&self, word: &str) -> bool {
        let word_bytes = word.as_bytes();
        let first = word_bytes.first().map_or(0, u8::to_ascii_lowercase);
        if self.firsts & bit(first) == 0 {
            return !word.is_ascii();
        }
        if !self.languages.is_english() {
            return true;
        }
        let has_y = matches!(word_bytes.get(1), Some(b'y' | b'Y'));
        let begins = |form: &String| {
            let stem = form.as_bytes();
            let begin = &stem[..stem.len().saturating_sub(2).max(2).min(stem.len())];
            let same = word_bytes.get(..begin.len());
            same.is_some_and(|same| same.eq_ignore_ascii_case(begin))
        };
        let mut forms = self.terms.iter().flat_map(|term| &term.forms);
        has_y || forms.any(begins) || !word.is_ascii()
    }

    /// BM25 of the whole text, which the longer it is says the less of any one word.
    fn whole(&self, hits: &[(usize, usize)], words: usize) -> f64 {
        let mut counts = vec![0_u32; self.terms.len()];
        hits.iter().for_each(|(_, term)| counts[*term] += 1);
        self.bm25(&counts, words as f64 / PASSAGE_WORDS as f64)
    }

    /// BM25 of these counts in a text of this length, in passages.
    fn bm25(&self, counts: &[u32], length: f64) -> f64 {
        let damping = K1 * (1.0 - B + B * length);
        let gain = |count: u32| f64::from(count) * (K1 + 1.0) / (f64::from(count) + damping);
        let counts = counts.iter().zip(&self.weights);
        counts.map(|(count, weight)| weight * gain(*count)).sum()
    }

    fn best_passage(&self, hits: &[(usize, usize)], words: usize) -> f64 {
        let length = words.min(PASSAGE_WORDS) as f64 / PASSAGE_WORDS as f64;
        let mut best = 0.0_f64;
        let mut counts = vec![0_u32; self.terms.len()];
        let mut end = 0;
        for (start, (position, first)) in hits.iter().enumerate() {
            while let Some((_, term)) = hits.get(end).filter(|hit| hit.0 < position + PASSAGE_WORDS)
            {
                counts[*term] += 1;
                end += 1;
            }
            debug_assert!(start < end);
            best = best.max(self.bm25(&counts, length));
            counts[*first] -= 1;
        }
        best
    }
}

/// The bit of an ASCII character; no bit of any other byte.
fn bit(byte: u8) -> u128 {
    1_u128.checked_shl(byte.into()).unwrap_or(0)
}

#[cfg(test)]
#[path = "ranking_tests.rs"]
mod tests;
