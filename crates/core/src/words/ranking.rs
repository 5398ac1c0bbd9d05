//! How well the words of a memory answer those of a query, in two steps: which words the
//! index found is enough to choose candidates; then their text decides.
//!
//! BM25 is computed here, over what the subject may find: FTS5's `bm25()` reads the document
//! frequencies of the whole tenant, and lets one subject's words weigh another's.

use unicode_normalization::UnicodeNormalization as _;

use super::fold::fold;
use super::languages::forms;
use super::segments::beginning;
use super::spellings::{Spelled, alternates, spelled};
use super::stop_words::{is_begun, is_ending, is_stop_word, is_telling};
use super::{BEGINS, Languages, has_beginnings, is_apostrophe};

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

/// What a word counts that has the stem of another one, and what comes on top by how much of both
/// is alike: "hermano" is not "hermana".
const STEM_SHARE: f64 = 0.9;
const STEM_LIKENESS: f64 = 0.1;
/// What a term counts of which the index has only words that begin alike.
const ALIKE_SHARE: f64 = 0.5;
/// How much of two words is alike at least, where one begins as the other: twice the letters that
/// they begin with, of all that they have.
const ALIKE_MIN: f64 = 0.6;

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
    /// The same as it is compared, with its ending.
    folded: String,
    /// Its own ones first, then those of its other spellings.
    forms: Vec<String>,
    own: usize,
    beginnings: Vec<String>,
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
    /// The terms that were found nowhere, and words that begin like them were looked for.
    pub alike: Found,
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
    alike: Found,
}

/// A term in a text.
#[derive(Clone, Copy, Debug, PartialEq)]
struct TermHit {
    /// Where it stands, in words from the beginning.
    place: usize,
    term: usize,
    /// How much of it is there: 1 where it is written as in the query.
    share: f64,
}

/// What a content is to a query.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Judgement {
    /// How well it answers it: [`Scorer::score`].
    pub score: f64,
    /// Share of the query's weight that the content has, from 0 to 1, without words that any
    /// message has. Unlike the score it can be compared across queries and collections.
    pub coverage: f64,
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

    fn own_forms(&self) -> &[String] {
        &self.forms[..self.own]
    }

    /// What the index is asked for where it has none of the forms: words that begin so may be the
    /// word with another ending. What stands before each keeps it apart from words.
    pub fn beginnings(&self) -> &[String] {
        &self.beginnings
    }

    /// How much of the term a word is that has one of its forms.
    fn share_of(&self, word: &str) -> f64 {
        if word.eq_ignore_ascii_case(&self.word) {
            return 1.0;
        }
        let small = |word: &str| -> String { word.to_lowercase().nfc().collect() };
        let own = small(&self.word);
        let word = small(word);
        match word == own {
            true => 1.0,
            false => STEM_SHARE + STEM_LIKENESS * common(&word, &own),
        }
    }
}

/// What two words begin with, as a share of both, from 0 to 1.
fn common(one: &str, other: &str) -> f64 {
    let common = one.chars().zip(other.chars()).take_while(|(a, b)| a == b);
    let all = one.chars().count() + other.chars().count();
    (2 * common.count()) as f64 / all.max(1) as f64
}

/// How much of two forms is alike, from 0 to 1: what they begin with, where that is enough for one
/// stem with two endings; else 0.
fn likeness(one: &str, other: &str) -> f64 {
    if beginning(one).is_none_or(|begins| !other.starts_with(begins)) {
        return 0.0;
    }
    let share = common(one, other);
    if share >= ALIKE_MIN { share } else { 0.0 }
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
        let mut units = spelled(text).filter(|unit| !unit.is_part).peekable();
        let mut is_behind_apostrophe = false;
        // Another spelling of the next words, with their number.
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

    /// What to ask the index for; at most [`TERMS_MAX`].
    pub fn terms(&self) -> &[Term] {
        &self.terms
    }

    fn add(&mut self, unit: &Spelled<'_>, spelling: Option<&str>) {
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
            let weight = (((all - with).max(0.0) + 0.5) / (with + 0.5)).ln_1p();
            match statistics.alike.contains(term) {
                true => weight * ALIKE_SHARE,
                false => weight,
            }
        };
        let weights = (0..query.terms.len()).map(weight).collect();
        Self {
            terms: &query.terms,
            languages: query.languages,
            weights,
            beginnings: Beginnings::of(query),
            alike: statistics.alike,
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
        let covered = self.weights.iter().zip(&shares);
        let covered: f64 = covered.map(|(weight, share)| weight * share).sum();
        let whole = WHOLE_SHARE * self.whole(&hits, words);
        Judgement {
            score: covered + self.best_passage(&hits, words) + whole,
            coverage: self.coverage_of(&shares),
            words,
        }
    }

    /// Where terms stand in a text, in bytes, and which.
    pub fn places(&self, content: &str) -> Vec<(usize, usize)> {
        let mut places = Vec::new();
        self.each_hit(content, |unit, _, term, _| places.push((unit.start, term)));
        places
    }

    /// Share of the query's weight in a text that has `shares` of each term, without common words.
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

    /// The terms in a text, and how many words it has.
    fn hits(&self, content: &str) -> (Vec<TermHit>, usize) {
        let mut hits = Vec::new();
        let words = self.each_hit(content, |_, place, term, share| {
            hits.push(TermHit { place, term, share });
        });
        (hits, words)
    }

    /// Calls `give` with each term in a text, its place in words, and how much of it is there.
    /// Returns the number of words.
    fn each_hit(
        &self,
        content: &str,
        mut give: impl FnMut(&Spelled<'_>, usize, usize, f64),
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

    /// The terms that a word of a text is.
    fn found_in(&self, unit: &Spelled<'_>) -> Found {
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

    /// False for a text of which the index has no beginnings.
    fn looks_for_beginnings_in(&self, content: &str) -> bool {
        self.alike != Found::default() && has_beginnings(content)
    }

    /// The term that a word begins like, of those that were found nowhere.
    fn alike(&self, unit: &Spelled<'_>) -> Option<(usize, f64)> {
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
    fn whole(&self, hits: &[TermHit], words: usize) -> f64 {
        let mut counts = vec![0.0; self.terms.len()];
        hits.iter().for_each(|hit| counts[hit.term] += hit.share);
        self.bm25(&counts, words as f64 / PASSAGE_WORDS as f64)
    }

    /// BM25 of these counts in a text of this length, in passages.
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
            // What is left of a sum of shares may be a little less than nothing.
            counts[first.term] = (counts[first.term] - first.share).max(0.0);
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
