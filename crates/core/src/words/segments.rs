//! Splits text into words, the same way for the index, queries and scored texts.
//!
//! A word is a run of letters, digits and their marks, which ends where Latin letters or digits
//! meet another script. A pictograph is a word of its own. Some scripts need more:
//!
//! - Chinese, Japanese and Korean are split into pairs of characters, plus each character that has
//!   a meaning of its own (like Lucene's `CJKBigramFilter`).
//! - Thai, Lao, Khmer and Burmese are split by the dictionaries of ICU.
//! - Persian is also split at zero-width non-joiners, which many writers type as a space.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::LazyLock;

use icu_provider::prelude::*;
use icu_segmenter::WordSegmenter;
use icu_segmenter::options::WordBreakInvariantOptions;
use icu_segmenter::provider::{Baked, SegmenterDictionaryAutoV2, SegmenterDictionaryExtendedV2};
use unicode_normalization::char::is_combining_mark;

use super::fold::{fold, is_decimal, is_of_word, is_picture};
use super::languages::{Languages, forms};

/// Segments Thai, Lao, Khmer and Burmese.
static DICTIONARY: LazyLock<WordSegmenter> = LazyLock::new(|| {
    let options = WordBreakInvariantOptions::default();
    let mut segmenter = WordSegmenter::new_for_non_complex_scripts(options).static_to_owned();
    let loaded = segmenter.load_dictionary_unstable(&SpacelessScripts);
    loaded.expect("these dictionaries are compiled in");
    segmenter
});

/// ICU's dictionaries without the one for Chinese and Japanese.
///
/// That one has 2 MB and is not needed, because these languages are split into pairs of characters.
struct SpacelessScripts;

impl DataProvider<SegmenterDictionaryExtendedV2> for SpacelessScripts {
    fn load(
        &self,
        request: DataRequest<'_>,
    ) -> Result<DataResponse<SegmenterDictionaryExtendedV2>, DataError> {
        Baked.load(request)
    }
}

impl DataProvider<SegmenterDictionaryAutoV2> for SpacelessScripts {
    fn load(
        &self,
        request: DataRequest<'_>,
    ) -> Result<DataResponse<SegmenterDictionaryAutoV2>, DataError> {
        let info = SegmenterDictionaryAutoV2::INFO;
        Err(DataErrorKind::IdentifierNotFound.with_req(info, request))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token<'a> {
    pub word: &'a str,
    /// Byte offset of its start in the text.
    pub start: usize,
    /// Whether this is a Chinese character that is part of a longer word.
    ///
    /// The index has it to find the word, but a query for the word does not search for its parts.
    pub is_part: bool,
}

impl<'a> Token<'a> {
    /// The word without case, width and diacritics. Only letters, digits and marks.
    pub fn folded(&self) -> Cow<'a, str> {
        fold(self.word)
    }

    /// Passes the index forms of the word for texts in these languages, mostly just one.
    pub fn forms(&self, languages: Languages, give: impl FnMut(&str)) {
        forms(self.word, &self.folded(), languages, give);
    }

    pub(super) fn end(&self) -> usize {
        self.start + self.word.len()
    }
}

/// Word separation in a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spacing {
    /// Spaces, for Latin letters and digits.
    Latin,
    Spaces,
    /// None. Pairs of characters approximate words.
    Pairs,
    /// None. Words are found with a dictionary.
    Dictionary,
}

/// Returns the words of a text in the order of their starts.
///
/// Those of Chinese, Japanese and Korean overlap.
pub fn tokens(text: &str) -> Tokens<'_> {
    Tokens {
        runs: Runs { text, rest: 0 },
        pieces: Vec::new().into_iter(),
        seen: 0,
    }
}

/// Returns the runs of letters, digits and marks of a text, in order.
pub(super) fn runs(text: &str) -> impl Iterator<Item = Token<'_>> {
    Runs { text, rest: 0 }
}

#[derive(Debug)]
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
            // Some marks count as letters. A run of them alone is no word.
            if token.word.is_ascii() || !token.folded().is_empty() {
                return Some(token);
            }
        }
    }
}

#[derive(Debug)]
pub struct Tokens<'a> {
    runs: Runs<'a>,
    /// Remaining words of the current run, and pictographs before it.
    pieces: std::vec::IntoIter<Token<'a>>,
    /// End of the part that was searched for pictographs.
    seen: usize,
}

impl<'a> Iterator for Tokens<'a> {
    type Item = Token<'a>;

    fn next(&mut self) -> Option<Token<'a>> {
        loop {
            if let Some(piece) = self.pieces.next() {
                return Some(piece);
            }
            let (text, seen) = (self.runs.text, self.seen);
            let run = self.runs.next();
            let before = seen..run.map_or(text.len(), |run| run.start);
            self.seen = run.map_or(text.len(), |run| run.end());
            let mut pieces = Vec::new();
            if !text[before.clone()].is_ascii() {
                pictures(text, before, &mut pieces);
            }
            match run.map(Pieces::new) {
                Some(Pieces::One(word)) if pieces.is_empty() => return Some(word),
                Some(Pieces::One(word)) => pieces.push(word),
                Some(Pieces::Many(words)) => pieces.extend(words),
                None if pieces.is_empty() => return None,
                None => {}
            }
            self.pieces = pieces.into_iter();
        }
    }
}

fn pictures<'a>(text: &'a str, part: Range<usize>, pieces: &mut Vec<Token<'a>>) {
    let found = text[part.clone()]
        .char_indices()
        .filter(|(_, c)| is_picture(*c));
    pieces.extend(found.map(|(at, c)| {
        let start = part.start + at;
        Token {
            word: &text[start..start + c.len_utf8()],
            start,
            is_part: false,
        }
    }));
}

enum Pieces<'a> {
    One(Token<'a>),
    Many(Vec<Token<'a>>),
}

impl<'a> Pieces<'a> {
    fn new(run: Token<'a>) -> Self {
        if run.word.is_ascii() {
            return Self::One(run);
        }
        let mut chars = run.word.chars();
        let first = chars.next().and_then(spacing);
        let is_by_spaces = matches!(first, Some(Spacing::Latin | Spacing::Spaces));
        let goes_on = |c: char| spacing(c).is_none_or(|s| Some(s) == first) && c != NOT_JOINED;
        if is_by_spaces && chars.all(goes_on) {
            return Self::One(run);
        }
        let mut pieces = Vec::new();
        let mut start = 0;
        let mut current = None;
        for (at, c) in run.word.char_indices() {
            let of_char = spacing(c);
            let is_arabic = || run.word[start..at].ends_with(is_arabic);
            let ends_word = c == NOT_JOINED && is_arabic();
            if ends_word || of_char.is_some() && of_char != current {
                cut(run, start, at, current, &mut pieces);
                (start, current) = (at, of_char);
            }
        }
        cut(run, start, run.word.len(), current, &mut pieces);
        pieces.retain(|piece| !piece.folded().is_empty());
        Self::Many(pieces)
    }
}

/// Adds the words of a part of a run with uniform spacing.
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
            let ends = DICTIONARY.as_borrowed().segment_str(part);
            for end in ends.filter(|end| *end > 0) {
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
                // Korean words end with particles, so the first syllable alone may be a noun.
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

/// The zero-width non-joiner between parts of one Persian word or between two words.
const NOT_JOINED: char = '\u{200c}';

fn is_arabic(c: char) -> bool {
    matches!(c, '\u{620}'..='\u{6ff}' | '\u{750}'..='\u{77f}')
}

/// Word separation in the script of a character. `None` for marks, which continue a word.
fn spacing(c: char) -> Option<Spacing> {
    match c {
        _ if c.is_ascii() || is_decimal(c) => Some(Spacing::Latin),
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
        // Thai and Lao, Burmese, Khmer, Burmese again.
        '\u{e00}'..='\u{eff}'
        | '\u{1000}'..='\u{109f}'
        | '\u{1780}'..='\u{17ff}'
        | '\u{a9e0}'..='\u{a9ff}'
        | '\u{aa60}'..='\u{aa7f}' => Some(Spacing::Dictionary),
        // Latin, also in full width.
        '\u{a1}'..='\u{2ff}'
        | '\u{1d00}'..='\u{1eff}'
        | '\u{2c60}'..='\u{2c7f}'
        | '\u{a720}'..='\u{a7ff}'
        | '\u{ab30}'..='\u{ab6f}'
        | '\u{fb00}'..='\u{fb06}'
        | '\u{ff10}'..='\u{ff5a}' => Some(Spacing::Latin),
        _ => Some(Spacing::Spaces),
    }
}

/// Whether the character is Chinese, with a meaning of its own.
fn is_ideograph(c: char) -> bool {
    matches!(c, '\u{3005}' | '\u{3007}' | '\u{3400}'..='\u{4dbf}' | '\u{4e00}'..='\u{9fff}'
        | '\u{f900}'..='\u{faff}' | '\u{20000}'..='\u{3ffff}')
}

/// Whether the character is a Korean syllable or a part of one.
fn is_korean(c: char) -> bool {
    matches!(c, '\u{1100}'..='\u{11ff}' | '\u{3130}'..='\u{318f}' | '\u{a960}'..='\u{a97f}'
        | '\u{ac00}'..='\u{d7ff}' | '\u{ffa0}'..='\u{ffdc}')
}

/// Whether a syllable starts here.
///
/// False for marks, and for vowels and finals of decomposed Korean syllables.
fn begins_syllable(c: char) -> bool {
    spacing(c).is_some() && !matches!(c, '\u{1160}'..='\u{11ff}' | '\u{d7b0}'..='\u{d7ff}')
}

/// Returns the minimum common prefix of words with the same stem.
///
/// It is shorter in Ethiopic, where a letter is a syllable. `None` for shorter words, numbers, and
/// scripts without endings.
pub fn beginning(form: &str) -> Option<&str> {
    let first = form.chars().next()?;
    if !matches!(spacing(first), Some(Spacing::Latin | Spacing::Spaces)) || is_picture(first) {
        return None;
    }
    let letters = match first {
        '\u{1200}'..='\u{139f}' => 2,
        _ => 3,
    };
    let mut chars = form.char_indices();
    let end = chars.nth(letters - 1).map(|(at, c)| at + c.len_utf8())?;
    let is_word = !form.contains(char::is_numeric);
    is_word.then(|| &form[..end])
}

/// First index from `from` on with a character that `is_of_sort` rejects.
fn skip(text: &str, from: usize, is_of_sort: impl Fn(char) -> bool) -> usize {
    let bytes = text.as_bytes();
    let mut index = from;
    // Fast path for ASCII, where a byte is a character.
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
