//! Where words begin and end in a text: the same for the index, the query, and the text that is
//! looked at again.
//!
//! A word is a run of letters, digits and their marks. Chinese, Japanese and Korean are cut into
//! pairs of characters, each character that has a meaning by itself beside them (as Lucene's
//! `CJKBigramFilter` does); Thai, Lao, Khmer and Burmese by the dictionaries of ICU.

use std::borrow::Cow;
use std::sync::LazyLock;

use icu_segmenter::options::WordBreakInvariantOptions;
use icu_segmenter::{WordSegmenter, WordSegmenterBorrowed};
use unicode_normalization::char::is_combining_mark;

use super::fold::{fold, is_of_word};
use super::languages::{Languages, forms};

/// Knows the words of Thai, Lao, Khmer and Burmese.
static DICTIONARY: LazyLock<WordSegmenterBorrowed<'static>> =
    LazyLock::new(|| WordSegmenter::new_dictionary(WordBreakInvariantOptions::default()));

/// One word of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token<'a> {
    /// The word as it is written.
    pub word: &'a str,
    /// Where it begins in the text, in bytes.
    pub start: usize,
    /// True of a Chinese character beside another, which is part of a word: who looks for it finds
    /// it, and who looks for the word does not look for its parts.
    pub is_part: bool,
}

impl<'a> Token<'a> {
    /// The word without case, width and diacritics; letters, digits and marks only.
    pub fn folded(&self) -> Cow<'a, str> {
        fold(self.word)
    }

    /// What an index of texts in these languages has for the word: most often one form.
    pub fn forms(&self, languages: Languages, give: impl FnMut(&str)) {
        forms(&self.folded(), languages, give);
    }

    /// Where the text goes on behind it, in bytes.
    pub(super) fn end(&self) -> usize {
        self.start + self.word.len()
    }
}

/// How a script shows where words end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spacing {
    /// By spaces.
    Spaces,
    /// Not at all, and pairs of characters are near enough to words.
    Pairs,
    /// Not at all, and a dictionary knows.
    Dictionary,
}

/// The words of a text, in the order in which they begin. Those of Chinese, Japanese and Korean
/// overlap.
pub fn tokens(text: &str) -> impl Iterator<Item = Token<'_>> {
    Tokens {
        runs: Runs { text, rest: 0 },
        pieces: Vec::new().into_iter(),
    }
}

/// The runs of letters, digits and marks of a text, in order.
pub(super) fn runs(text: &str) -> impl Iterator<Item = Token<'_>> {
    Runs { text, rest: 0 }
}

/// The runs of a text from a place on.
struct Runs<'a> {
    text: &'a str,
    rest: usize,
}

impl<'a> Iterator for Runs<'a> {
    type Item = Token<'a>;

    fn next(&mut self) -> Option<Token<'a>> {
        loop {
            let start = skip(self.text, self.rest, |c| !c.is_alphanumeric());
            self.rest = skip(self.text, start, is_of_word);
            if start >= self.rest {
                return None;
            }
            let token = Token {
                word: &self.text[start..self.rest],
                start,
                is_part: false,
            };
            // Some marks count as letters; where nothing else stands, no word does.
            if token.word.is_ascii() || !token.folded().is_empty() {
                return Some(token);
            }
        }
    }
}

/// The words of a text from a place on.
struct Tokens<'a> {
    runs: Runs<'a>,
    /// Those that are left of a run of several words.
    pieces: std::vec::IntoIter<Token<'a>>,
}

impl<'a> Iterator for Tokens<'a> {
    type Item = Token<'a>;

    fn next(&mut self) -> Option<Token<'a>> {
        loop {
            if let Some(piece) = self.pieces.next() {
                return Some(piece);
            }
            match Pieces::of(self.runs.next()?) {
                Pieces::One(word) => return Some(word),
                Pieces::Many(words) => self.pieces = words.into_iter(),
            }
        }
    }
}

/// The words of a run.
enum Pieces<'a> {
    One(Token<'a>),
    Many(Vec<Token<'a>>),
}

impl<'a> Pieces<'a> {
    fn of(run: Token<'a>) -> Self {
        let is_one = run.word.is_ascii()
            || run
                .word
                .chars()
                .all(|c| spacing(c).is_none_or(|s| s == Spacing::Spaces));
        if is_one {
            return Self::One(run);
        }
        let mut pieces = Vec::new();
        let mut start = 0;
        let mut current = None;
        for (at, c) in run.word.char_indices() {
            let of_char = spacing(c);
            if of_char.is_some() && of_char != current {
                cut(run, start, at, current, &mut pieces);
                (start, current) = (at, of_char);
            }
        }
        cut(run, start, run.word.len(), current, &mut pieces);
        pieces.retain(|piece| !piece.folded().is_empty());
        Self::Many(pieces)
    }
}

/// Adds the words of a part of a run, which is of one kind.
fn cut<'a>(
    run: Token<'a>,
    from: usize,
    to: usize,
    spacing: Option<Spacing>,
    pieces: &mut Vec<Token<'a>>,
) {
    let mut add = |from: usize, to: usize, is_part: bool| {
        pieces.push(Token {
            word: &run.word[from..to],
            start: run.start + from,
            is_part,
        });
    };
    let part = &run.word[from..to];
    match spacing {
        _ if part.is_empty() => {}
        Some(Spacing::Dictionary) => {
            let mut start = 0;
            for end in DICTIONARY.segment_str(part).filter(|end| *end > 0) {
                add(from + start, from + end, false);
                start = end;
            }
        }
        Some(Spacing::Pairs) => {
            let starts: Vec<(usize, char)> = part
                .char_indices()
                .filter(|(at, c)| *at == 0 || begins_syllable(*c))
                .collect();
            let end_of = |index: usize| starts.get(index).map_or(part.len(), |(at, _)| *at);
            for (index, (start, c)) in starts.iter().enumerate() {
                // A Korean word ends with particles: what it begins with is a noun's.
                let stands_alone =
                    is_ideograph(*c) || index == 0 && (is_korean(*c) || starts.len() == 1);
                if stands_alone {
                    let is_ideograph_at = |index: Option<usize>| {
                        index
                            .and_then(|at| starts.get(at))
                            .is_some_and(|(_, c)| is_ideograph(*c))
                    };
                    let is_part = is_ideograph(*c)
                        && (is_ideograph_at(index.checked_sub(1))
                            || is_ideograph_at(index.checked_add(1)));
                    add(from + start, from + end_of(index + 1), is_part);
                }
                if index + 1 < starts.len() {
                    add(from + start, from + end_of(index + 2), false);
                }
            }
        }
        _ => add(from, to, false),
    }
}

/// How words are told apart in the script of a character; `None` of marks, which belong to what
/// stands before them.
fn spacing(c: char) -> Option<Spacing> {
    match c {
        _ if c.is_ascii() => Some(Spacing::Spaces),
        _ if is_combining_mark(c) || matches!(c, '\u{200c}' | '\u{200d}') => None,
        // Half-width sound marks.
        '\u{ff9e}' | '\u{ff9f}' => None,
        _ if is_ideograph(c) || is_korean(c) => Some(Spacing::Pairs),
        // Hiragana, katakana, Bopomofo.
        '\u{3040}'..='\u{312f}'
        | '\u{31a0}'..='\u{31bf}'
        | '\u{31f0}'..='\u{31ff}'
        | '\u{ff66}'..='\u{ff9d}'
        | '\u{1b000}'..='\u{1b16f}' => Some(Spacing::Pairs),
        // Thai and Lao; Burmese; Khmer; Burmese again.
        '\u{e00}'..='\u{eff}'
        | '\u{1000}'..='\u{109f}'
        | '\u{1780}'..='\u{17ff}'
        | '\u{a9e0}'..='\u{a9ff}'
        | '\u{aa60}'..='\u{aa7f}' => Some(Spacing::Dictionary),
        _ => Some(Spacing::Spaces),
    }
}

/// True of a Chinese character, which has a meaning by itself.
fn is_ideograph(c: char) -> bool {
    matches!(c, '\u{3005}' | '\u{3007}' | '\u{3400}'..='\u{4dbf}' | '\u{4e00}'..='\u{9fff}'
        | '\u{f900}'..='\u{faff}' | '\u{20000}'..='\u{3ffff}')
}

/// True of a syllable of Korean, or of a part of one.
fn is_korean(c: char) -> bool {
    matches!(c, '\u{1100}'..='\u{11ff}' | '\u{3130}'..='\u{318f}' | '\u{a960}'..='\u{a97f}'
        | '\u{ac00}'..='\u{d7ff}' | '\u{ffa0}'..='\u{ffdc}')
}

/// False of marks, and of the vowels and finals of a Korean syllable that is written in parts.
fn begins_syllable(c: char) -> bool {
    spacing(c).is_some() && !matches!(c, '\u{1160}'..='\u{11ff}' | '\u{d7b0}'..='\u{d7ff}')
}

/// The first index, from this one on, with a character of another sort.
fn skip(text: &str, from: usize, is_of_sort: impl Fn(char) -> bool) -> usize {
    let bytes = text.as_bytes();
    let mut index = from;
    // Nearly all of most texts is ASCII, where a byte is a character.
    while bytes
        .get(index)
        .is_some_and(|b| b.is_ascii() && is_of_sort(char::from(*b)))
    {
        index += 1;
    }
    match bytes.get(index) {
        Some(b) if !b.is_ascii() => {
            let length = text[index..].find(|c| !is_of_sort(c));
            length.map_or(text.len(), |length| index + length)
        }
        _ => index,
    }
}
