//! Ranks memories for a query.
//!
//! The words found by the index select candidates, and the text of the candidates determines their
//! scores. BM25 is computed here, over the memories that the subject may find. FTS5's `bm25()` uses
//! the document frequencies of the whole tenant, so one subject's words would affect another's
//! scores.

use unicode_normalization::UnicodeNormalization as _;

use super::fold::fold;
use super::languages::forms;
use super::segments::beginning;
use super::spellings::{SpelledWord, alternates, spelled};
use super::stop_words::{is_begun, is_ending, is_stop_word, is_telling};
use super::{BEGINS, Languages, has_beginnings, is_apostrophe};

/// Maximum number of terms of a query. Further words are ignored.
pub const TERMS_MAX: usize = 32;
/// Maximum number of terms that are considered when selecting [`TERMS_MAX`] of them.
const TERMS_READ: usize = 4 * TERMS_MAX;
/// Maximum candidates whose text is read. More would cost time and not improve results.
pub const CANDIDATES_MAX: usize = 128;

/// Words per passage, about two English sentences.
const PASSAGE_WORDS: usize = 40;
/// Weight of the whole text relative to its best passage.
const WHOLE_SHARE: f64 = 0.1;
/// Term frequency saturation, the usual value of BM25.
const K1: f64 = 1.2;
/// Length normalization, the usual value of BM25.
const B: f64 = 0.75;

/// Degree of a match by stem only: a constant, plus a part that depends on the common prefix.
///
/// This prefers exact matches: "hermano" is not "hermana".
const STEM_SHARE: f64 = 0.9;
const STEM_LIKENESS: f64 = 0.1;
/// Weight of a term if the index has only words with the same beginning.
const ALIKE_SHARE: f64 = 0.5;
/// Minimum likeness of two words with the same beginning.
///
/// It is twice the length of their common prefix, divided by their total length.
const ALIKE_MIN: f64 = 0.6;

/// Letters from a to z.
const LETTERS: usize = 26;
const ALL_LETTERS: u32 = (1 << LETTERS) - 1;
/// Index of y among them.
const Y: usize = 24;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Term {
    /// The word as written in the query, of letters, digits and marks only.
    pub word: String,
    /// The folded word, with its ending.
    folded: String,
    /// Forms of the word itself, followed by those of its other spellings.
    forms: Vec<String>,
    own: usize,
    beginnings: Vec<String>,
}

/// The distinct words of a query.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query {
    terms: Vec<Term>,
    languages: Languages,
}

/// Index statistics of a query's terms.
///
/// They only cover the memories of the requested subjects, so that other subjects do not affect the
/// ranking.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Number of memories that may be found.
    pub memories: u64,
    /// Number of memories with each term according to the index, in the order of the terms.
    ///
    /// A missing entry means that the term was not found.
    pub found_in: Vec<u64>,
    /// Terms that were not found, so that words with the same beginning were searched.
    pub alike: Found,
}

/// The terms of a query that are in a memory, as a bit set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Found(u32);

#[derive(Clone, Debug)]
pub struct Scorer<'a> {
    terms: &'a [Term],
    languages: Languages,
    weights: Vec<f64>,
    beginnings: WordStarts,
    alike: Found,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct TermHit {
    /// Position in words from the start of the text.
    place: usize,
    term: usize,
    /// Degree of the match, 1 for the exact word of the query.
    share: f64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Judgement {
    /// Relevance, see [`Scorer::score`].
    pub score: f64,
    /// Share of the query's weight that the content matches, from 0 to 1, without common words.
    ///
    /// Unlike the score it is comparable across queries and collections.
    pub coverage: f64,
    pub words: usize,
}

/// The first two letters of words that may have one of the forms. Saves stemming most words.
#[derive(Clone, Copy, Debug)]
struct WordStarts([u32; LETTERS]);

impl Term {
    /// Index forms, any of which matches the term. At least one, of letters, digits and marks only.
    pub fn forms(&self) -> &[String] {
        &self.forms
    }

    fn own_forms(&self) -> &[String] {
        &self.forms[..self.own]
    }

    /// Index entries to search if the index has none of the forms.
    ///
    /// Words with the same beginning may be the term with another ending. A prefix distinguishes
    /// these entries from words.
    pub fn beginnings(&self) -> &[String] {
        &self.beginnings
    }

    /// Degree of the match of a word that has one of the term's forms.
    fn share_of(&self, word: &str) -> f64 {
        if word.eq_ignore_ascii_case(&self.word) {
            return 1.0;
        }
        let small = |word: &str| -> String { word.to_lowercase().nfc().collect() };
        let own = small(&self.word);
        let word = small(word);
        if word == own {
            1.0
        } else {
            STEM_SHARE + STEM_LIKENESS * common(&word, &own)
        }
    }
}

/// Length of the common prefix as a share of both words, from 0 to 1.
fn common(one: &str, other: &str) -> f64 {
    let common = one.chars().zip(other.chars()).take_while(|(a, b)| a == b);
    let all = one.chars().count() + other.chars().count();
    (2 * common.count()) as f64 / all.max(1) as f64
}

/// Likeness of two forms from 0 to 1, based on their common prefix.
///
/// 0 if the prefix is too short for one stem with two endings.
fn likeness(one: &str, other: &str) -> f64 {
    if beginning(one).is_none_or(|begins| !other.starts_with(begins)) {
        return 0.0;
    }
    let share = common(one, other);
    if share >= ALIKE_MIN { share } else { 0.0 }
}

impl Query {
    /// Extracts the terms of a text: its words, without stop words unless there are no others.
    ///
    /// Of more than [`TERMS_MAX`], words only in hiragana are dropped first, because they seldom
    /// name a thing. `languages` are those of the texts that the query may find.
    pub fn new(text: &str, languages: Languages) -> Self {
        let none = Self {
            terms: Vec::new(),
            languages,
        };
        let (mut telling, mut all) = (none.clone(), none);
        let mut units = spelled(text).filter(|unit| !unit.is_part).peekable();
        let mut is_behind_apostrophe = false;
        // Joined spelling of the next words, and their number.
        let mut other = (String::new(), 0);
        while let Some(unit) = units.next() {
            if unit.stands_for > 0 {
                other = (unit.word.into_owned(), unit.stands_for);
                continue;
            }
            let spelling = (other.1 > 0).then_some(&*other.0);
            let end = unit.start + unit.word.len();
            let next = units.peek();
            let is_before_apostrophe =
                next.is_some_and(|next| text.get(end..next.start).is_some_and(is_apostrophe));
            let folded = unit.folded();
            let says_nothing = is_stop_word(&folded)
                || is_before_apostrophe && is_begun(&folded)
                || is_behind_apostrophe && is_ending(&folded);
            all.add(&unit, spelling);
            if !says_nothing {
                telling.add(&unit, spelling);
            }
            is_behind_apostrophe = is_before_apostrophe;
            other.1 = other.1.saturating_sub(1);
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

    /// The terms to search in the index, at most [`TERMS_MAX`].
    pub fn terms(&self) -> &[Term] {
        &self.terms
    }

    fn add(&mut self, unit: &SpelledWord<'_>, spelling: Option<&str>) {
        let folded = unit.folded();
        let mut forms = Vec::new();
        unit.forms(self.languages, |form| forms.push(form.to_owned()));
        if forms.is_empty() {
            return;
        }
        let known = self.terms.iter().position(|term| term.own_forms() == forms);
        let place = known.unwrap_or(self.terms.len());
        if known.is_none() {
            if self.terms.len() == TERMS_READ {
                return;
            }
            let begins = forms.iter().filter_map(|form| beginning(form));
            let mut beginnings: Vec<String> = begins.map(|it| format!("{BEGINS}{it}")).collect();
            beginnings.dedup();
            self.terms.push(Term {
                word: unit.word.clone().into_owned(),
                own: forms.len(),
                forms,
                beginnings,
                folded: folded.clone().into_owned(),
            });
            for other in alternates(&unit.word, &folded) {
                self.add_spelling(place, &other);
            }
        }
        if let Some(spelling) = spelling {
            self.add_spelling(place, spelling);
        }
    }

    fn add_spelling(&mut self, place: usize, spelling: &str) {
        let Some(term) = self.terms.get_mut(place) else {
            return;
        };
        forms(spelling, &fold(spelling), self.languages, |form| {
            if !term.forms.iter().any(|known| known == form) {
                term.forms.push(form.to_owned());
            }
        });
    }
}

fn is_hiragana(word: &str) -> bool {
    word.chars().all(|c| matches!(c, '\u{3041}'..='\u{309f}'))
}

impl Found {
    /// Adds a term by its index in [`Query::terms`].
    pub fn insert(&mut self, term: usize) {
        self.0 |= u32::try_from(term)
            .ok()
            .and_then(|term| 1_u32.checked_shl(term))
            .unwrap_or(0);
    }

    pub fn contains(self, term: usize) -> bool {
        u32::try_from(term).is_ok_and(|term| self.0.checked_shr(term).is_some_and(|b| b & 1 == 1))
    }
}

impl<'a> Scorer<'a> {
    /// Computes the weights of a query's terms.
    ///
    /// The fewer memories have a term, the higher is its weight. It is BM25's weight (S. Robertson
    /// and H. Zaragoza, "The Probabilistic Relevance Framework", 2009) in Lucene's form, which is
    /// never negative.
    pub fn new(query: &'a Query, statistics: &Statistics) -> Self {
        let weight = |term: usize| {
            let found_in = statistics.found_in.get(term).copied().unwrap_or(0);
            // The index may miss a form that is found in the text.
            let (with, all) = (found_in.max(1) as f64, statistics.memories.max(1) as f64);
            let weight = (((all - with).max(0.0) + 0.5) / (with + 0.5)).ln_1p();
            if statistics.alike.contains(term) {
                weight * ALIKE_SHARE
            } else {
                weight
            }
        };
        let weights = (0..query.terms.len()).map(weight).collect();
        Self {
            terms: &query.terms,
            languages: query.languages,
            weights,
            beginnings: WordStarts::from_query(query),
            alike: statistics.alike,
        }
    }

    /// Sum of the weights of the terms that the index found, each counted once.
    ///
    /// Selects candidates; the best [`CANDIDATES_MAX`] are enough.
    pub fn coverage(&self, found: Found) -> f64 {
        let weights = self.weights.iter().enumerate();
        let found = weights.filter(|(term, _)| found.contains(*term));
        found.map(|(_, weight)| weight).sum()
    }

    /// Scores how well a memory answers the query.
    ///
    /// The score is the [coverage](Self::coverage), plus BM25 of its best passage, plus a tenth of
    /// BM25 of the whole text. It is finite and never negative, and 0 without any match. The time
    /// is linear in the length of the content.
    ///
    /// - A long text is judged by its best passage, not by its length: "Passage-level evidence in
    ///   document retrieval" (J. Callan, 1994). Passages start at any word and have one length
    ///   ("Effective ranking with arbitrary passages", M. Kaszkiel and J. Zobel, 2001).
    /// - A text shorter than a passage gains as in BM25.
    /// - Of two texts with equally good best passages, the whole text ranks the one with less other
    ///   content first (combining both kinds of evidence: Callan, again).
    pub fn score(&self, content: &str) -> f64 {
        self.judge(content).score
    }

    /// Like [`Self::score`], with the coverage and the number of words.
    pub fn judge(&self, content: &str) -> Judgement {
        let (hits, words) = self.hits(content);
        if hits.is_empty() {
            return Judgement {
                words,
                ..Judgement::default()
            };
        }
        let mut shares = vec![0.0_f64; self.terms.len()];
        for hit in &hits {
            shares[hit.term] = shares[hit.term].max(hit.share);
        }
        let covered: f64 = self
            .weights
            .iter()
            .zip(&shares)
            .map(|(weight, share)| weight * share)
            .sum();
        let whole = WHOLE_SHARE * self.whole(&hits, words);
        Judgement {
            score: covered + self.best_passage(&hits, words) + whole,
            coverage: self.coverage_of(&shares),
            words,
        }
    }

    /// Byte offsets of the terms in a text, with the index of the term.
    pub fn places(&self, content: &str) -> Vec<(usize, usize)> {
        let mut places = Vec::new();
        self.each_hit(content, |unit, _, term, _| places.push((unit.start, term)));
        places
    }

    /// Share of the query's weight for the given `shares` of its terms, without common words.
    fn coverage_of(&self, shares: &[f64]) -> f64 {
        let (mut covered, mut all) = (0.0, 0.0);
        for ((term, weight), share) in self.terms.iter().zip(&self.weights).zip(shares) {
            if is_telling(&term.folded) {
                covered += weight * share;
                all += weight;
            }
        }
        covered / all.max(f64::MIN_POSITIVE)
    }

    fn hits(&self, content: &str) -> (Vec<TermHit>, usize) {
        let mut hits = Vec::new();
        let words = self.each_hit(content, |_, place, term, share| {
            hits.push(TermHit { place, term, share });
        });
        (hits, words)
    }

    /// Passes each term in a text to `give`, with its position in words and degree of match.
    ///
    /// Returns the number of words.
    fn each_hit(
        &self,
        content: &str,
        mut give: impl FnMut(&SpelledWord<'_>, usize, usize, f64),
    ) -> usize {
        let has_beginnings = self.looks_for_beginnings_in(content);
        let mut words = 0;
        for unit in spelled(content) {
            let found = self.found_in(&unit);
            for term in 0..self.terms.len() {
                if found.contains(term) {
                    give(&unit, words, term, self.terms[term].share_of(&unit.word));
                }
            }
            if unit.stands_for > 0 {
                continue;
            }
            if found == Found::default() && has_beginnings {
                let alike = self.alike(&unit);
                alike
                    .into_iter()
                    .for_each(|(term, share)| give(&unit, words, term, share));
            }
            words += 1;
        }
        words
    }

    /// The terms that a word of a text matches.
    fn found_in(&self, unit: &SpelledWord<'_>) -> Found {
        let mut found = Found::default();
        if !self.beginnings.include(&unit.word) || !self.may_have_form(&unit.word) {
            return found;
        }
        unit.forms(self.languages, |form| {
            for (place, term) in self.terms.iter().enumerate() {
                if term.forms.iter().any(|own| own == form) {
                    found.insert(place);
                }
            }
        });
        found
    }

    /// Whether beginnings are searched and the index has them for this text.
    fn looks_for_beginnings_in(&self, content: &str) -> bool {
        self.alike != Found::default() && has_beginnings(content)
    }

    /// Of the terms that were not found, the one whose beginning is most like the word's.
    fn alike(&self, unit: &SpelledWord<'_>) -> Option<(usize, f64)> {
        let mut best = None;
        let mut compare = |form: &str| {
            let terms = self.terms.iter().enumerate();
            for (place, term) in terms.filter(|(place, _)| self.alike.contains(*place)) {
                for own in term.forms.iter().chain(Some(&term.folded)) {
                    let share = likeness(own, form);
                    if share > best.map_or(0.0, |(_, share)| share) {
                        best = Some((place, share));
                    }
                }
            }
        };
        compare(&unit.folded());
        unit.forms(self.languages, compare);
        best
    }

    /// Quick check whether a word may have one of the forms.
    ///
    /// The English stemmer changes at most the last two letters of the stem it returns
    /// ("possibility" becomes "possibl").
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

    /// BM25 of the whole text. In a longer text each word weighs less.
    fn whole(&self, hits: &[TermHit], words: usize) -> f64 {
        let mut counts = vec![0.0; self.terms.len()];
        hits.iter().for_each(|hit| counts[hit.term] += hit.share);
        self.bm25(&counts, words as f64 / PASSAGE_WORDS as f64)
    }

    /// BM25 of these counts in a text of `length` passages.
    fn bm25(&self, counts: &[f64], length: f64) -> f64 {
        let damping = K1 * (1.0 - B + B * length);
        let gain = |count: f64| count * (K1 + 1.0) / (count + damping);
        let counts = counts.iter().zip(&self.weights);
        counts.map(|(count, weight)| weight * gain(*count)).sum()
    }

    fn best_passage(&self, hits: &[TermHit], words: usize) -> f64 {
        let length = words.min(PASSAGE_WORDS) as f64 / PASSAGE_WORDS as f64;
        let mut best = 0.0_f64;
        let mut counts = vec![0.0_f64; self.terms.len()];
        let mut end = 0;
        for (start, first) in hits.iter().enumerate() {
            let is_near = |hit: &&TermHit| hit.place < first.place + PASSAGE_WORDS;
            while let Some(hit) = hits.get(end).filter(is_near) {
                counts[hit.term] += hit.share;
                end += 1;
            }
            debug_assert!(start < end);
            best = best.max(self.bm25(&counts, length));
            // Rounding may leave a small negative number.
            counts[first.term] = (counts[first.term] - first.share).max(0.0);
        }
        best
    }
}

impl WordStarts {
    /// Computes the possible first two letters of matching words.
    ///
    /// Stemmers do not change the first two letters of words of a to z, with exceptions: English
    /// "dying", "lying" and "tying", Finnish double letters, and Turkish, which replaces the last
    /// letter of a stem that may have only one.
    fn from_query(query: &Query) -> Self {
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

    /// Whether the word may have one of the forms, so that its stem must be compared.
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

/// Index of a letter from a to z in the alphabet.
fn letter(byte: u8) -> Option<usize> {
    byte.is_ascii_lowercase().then(|| usize::from(byte - b'a'))
}

#[cfg(test)]
#[path = "ranking_tests.rs"]
mod tests;
