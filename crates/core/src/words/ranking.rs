//! How well the words of a memory answer those of a query, in two steps: which words the
//! index found is enough to choose candidates; then their text decides.
//!
//! BM25 is computed here, over what the subject may find: FTS5's `bm25()` reads the document
//! frequencies of the whole tenant, and lets one subject's words weigh another's.

use super::stop_words::{is_begun, is_ending, is_stop_word};
use super::{Languages, Token, is_apostrophe, tokens};

/// Terms of one query; further words of it are not looked for.
pub const TERMS_MAX: usize = 32;
/// Terms that are looked at where there are more.
const TERMS_READ: usize = 4 * TERMS_MAX;
/// Candidates whose text is read: more would cost time and improve nothing.
pub const CANDIDATES_MAX: usize = 128;

/// Words in which an answer is looked for: about two English sentences.
const PASSAGE_WORDS: usize = 40;
/// What the whole text counts beside its best passage.
const WHOLE_SHARE: f64 = 0.1;
/// How soon a word said again says nothing new. The usual value of BM25.
const K1: f64 = 1.2;
/// How much a text that is shorter than a passage gains. The usual value of BM25.
const B: f64 = 0.75;

/// From a to z.
const LETTERS: usize = 26;
const ALL_LETTERS: u32 = (1 << LETTERS) - 1;
/// The place of y among them.
const Y: usize = 24;

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
    beginnings: Beginnings,
}

/// What a content is to a query.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Judgement {
    /// How well it answers it: [`Scorer::score`].
    pub score: f64,
    /// How many words it has.
    pub words: usize,
}

/// With which two letters a word may begin that has one of the forms: most words of a text need
/// no stemming.
#[derive(Clone, Copy, Debug)]
struct Beginnings([u32; LETTERS]);

impl Term {
    /// What the index is asked for: any of these is the word. One at least, of letters, digits
    /// and marks only.
    pub fn forms(&self) -> &[String] {
        &self.forms
    }
}

impl Query {
    /// The terms of a text: its words without stop words, or all of its words if there are
    /// no others; the first [`TERMS_MAX`], of more those first that are not of hiragana alone, which
    /// seldom name a thing. `languages` are those of the texts that it may find.
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
            if telling.terms.len() == TERMS_READ {
                break;
            }
        }
        let mut query = if telling.terms.is_empty() {
            all
        } else {
            telling
        };
        if query.terms.len() > TERMS_MAX {
            query.terms.sort_by_key(|term| is_hiragana(&term.word));
            query.terms.truncate(TERMS_MAX);
        }
        query
    }

    /// What to ask the index for; at most [`TERMS_MAX`].
    pub fn terms(&self) -> &[Term] {
        &self.terms
    }

    fn add(&mut self, token: &Token<'_>) {
        let mut forms = Vec::new();
        token.forms(self.languages, |form| forms.push(form.to_owned()));
        let is_known = self.terms.iter().any(|term| term.forms == forms);
        if !is_known && !forms.is_empty() && self.terms.len() < TERMS_READ {
            self.terms.push(Term {
                word: token.word.to_owned(),
                forms,
            });
        }
    }
}

fn is_hiragana(word: &str) -> bool {
    word.chars().all(|c| matches!(c, '\u{3041}'..='\u{309f}'))
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
        Self {
            terms: &query.terms,
            languages: query.languages,
            weights,
            beginnings: Beginnings::of(query),
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
        self.judge(content).score
    }

    /// The same, and how many words the content has.
    pub fn judge(&self, content: &str) -> Judgement {
        let (hits, words) = self.hits(content);
        Judgement {
            score: self.score_of(&hits, words),
            words,
        }
    }

    fn score_of(&self, hits: &[(usize, usize)], words: usize) -> f64 {
        if hits.is_empty() {
            return 0.0;
        }
        let mut seen = Found::default();
        for (_, term) in hits {
            seen.insert(*term);
        }
        let whole = WHOLE_SHARE * self.whole(hits, words);
        self.coverage(seen) + self.best_passage(hits, words) + whole
    }

    /// Where terms stand, in words from the beginning; and how many words there are.
    fn hits(&self, content: &str) -> (Vec<(usize, usize)>, usize) {
        let mut hits = Vec::new();
        let mut words = 0;
        for token in tokens(content) {
            if self.beginnings.include(token.word) && self.may_have_form(token.word) {
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

    /// False where the word has none of the forms: the English stemmer changes no more than the
    /// last two letters of what it leaves of a word ("possibility" is "possibl").
    fn may_have_form(&self, word: &str) -> bool {
        if !self.languages.is_english() || !word.is_ascii() {
            return true;
        }
        let word = word.as_bytes();
        let mut forms = self.terms.iter().flat_map(|term| &term.forms);
        forms.any(|form| {
            let kept = form.len().saturating_sub(2);
            let begin = word.get(..kept);
            begin.is_some_and(|begin| begin.eq_ignore_ascii_case(&form.as_bytes()[..kept]))
        })
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

impl Beginnings {
    /// No stemmer changes the first two letters of a word of a to z, but for these: English has
    /// "dying", "lying" and "tying", Finnish makes one of two equal letters, and Turkish puts a
    /// letter in the place of the last one of a stem, which may be as short as one.
    fn of(query: &Query) -> Self {
        let mut beginnings = Self([0; LETTERS]);
        for form in query.terms.iter().flat_map(|term| &term.forms) {
            let mut letters = form.bytes().map(letter);
            let (first, second) = (letters.next().flatten(), letters.next());
            if query.languages.has_turkish() && (form.len() <= 2 || second == Some(None)) {
                return Self([ALL_LETTERS; LETTERS]);
            }
            let Some(first) = first else { continue };
            beginnings.0[first] |= match second {
                None => ALL_LETTERS,
                Some(None) => 0,
                Some(Some(second)) => 1 << second | 1 << Y,
            };
            if query.languages.has_finnish() {
                beginnings.0[first] |= 1 << first;
            }
        }
        beginnings
    }

    /// False where the word has none of the forms; true where its stem has to be looked at.
    fn include(&self, word: &str) -> bool {
        let mut letters = word.bytes().map(|byte| letter(byte.to_ascii_lowercase()));
        match (letters.next().flatten(), letters.next()) {
            (Some(first), Some(Some(second))) if word.is_ascii() => {
                self.0[first] >> second & 1 == 1
            }
            (Some(first), None) => self.0[first] != 0,
            _ => true,
        }
    }
}

/// The place of a letter of a to z in the alphabet.
fn letter(byte: u8) -> Option<usize> {
    byte.is_ascii_lowercase().then(|| usize::from(byte - b'a'))
}

#[cfg(test)]
#[path = "ranking_tests.rs"]
mod tests;
