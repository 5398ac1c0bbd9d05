//! Alternative spellings of words.
//!
//! Examples are "left-handed" and "lefthanded", `getUserByEmail` and `get_user_by_email`,
//! "1,000,000" and "1000000", "Mueller" and "Müller", and Serbian in either script.
//!
//! The index and scored texts have the joined spelling in addition to the parts. In a query, other
//! spellings are forms of the same term, so that none of them counts as missing.

use std::borrow::Cow;
use std::iter::Peekable;

use unicode_normalization::UnicodeNormalization as _;

use super::fold::fold;
use super::languages::{Languages, forms};
use super::segments::{Tokens, tokens};
use super::stop_words::{is_begun, is_ending};
use super::{Token, is_apostrophe};

/// Separates unjoined parts of a Persian word.
const NOT_JOINED: &str = "\u{200c}";
/// Maximum number of parts of a compound. Longer ones have no joined spelling.
const PARTS_MAX: usize = 8;
/// Number of digits of a telephone number.
const PHONE_DIGITS: std::ops::RangeInclusive<usize> = 7..=15;
/// Letters that only Serbian and Macedonian use among languages in Cyrillic.
const SERBIAN: [char; 12] = ['ђ', 'ј', 'љ', 'њ', 'ћ', 'џ', 'Ђ', 'Ј', 'Љ', 'Њ', 'Ћ', 'Џ'];

/// A word of a text, or the joined spelling of the words after it.
#[derive(Clone, Debug)]
pub(super) struct SpelledWord<'a> {
    pub(super) word: Cow<'a, str>,
    /// Byte offset of its start in the text.
    pub(super) start: usize,
    /// See [`Token::is_part`].
    pub(super) is_part: bool,
    /// Number of following words that this is a joined spelling of, or 0 for a word of the text.
    pub(super) stands_for: usize,
}

impl<'a> SpelledWord<'a> {
    fn from_token(token: Token<'a>) -> Self {
        Self {
            word: Cow::Borrowed(token.word),
            start: token.start,
            is_part: token.is_part,
            stands_for: 0,
        }
    }

    /// See [`Token::folded`].
    pub(super) fn folded(&self) -> Cow<'_, str> {
        fold(&self.word)
    }

    /// See [`Token::forms`].
    pub(super) fn forms(&self, languages: Languages, give: impl FnMut(&str)) {
        forms(&self.word, &self.folded(), languages, give);
    }
}

/// Returns the words of a text in order, each compound's joined spelling before its parts.
pub(super) fn spelled(text: &str) -> impl Iterator<Item = SpelledWord<'_>> {
    Spellings {
        text,
        tokens: tokens(text).peekable(),
        is_serbian: !text.is_ascii() && text.contains(SERBIAN),
        pieces: Vec::new().into_iter(),
    }
}

struct Spellings<'a> {
    text: &'a str,
    tokens: Peekable<Tokens<'a>>,
    is_serbian: bool,
    pieces: std::vec::IntoIter<SpelledWord<'a>>,
}

/// Relation between two adjacent words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    Compound,
    Digits,
}

impl<'a> Iterator for Spellings<'a> {
    type Item = SpelledWord<'a>;

    fn next(&mut self) -> Option<SpelledWord<'a>> {
        if let Some(piece) = self.pieces.next() {
            return Some(piece);
        }
        let first = self.tokens.next()?;
        let next = self.tokens.peek();
        let (parts, other_word) = match next.and_then(|next| link(self.text, first, *next)) {
            Some(link) => {
                let parts = self.chain(first, link);
                let is_one = link == Link::Compound || is_one_number(self.text, &parts);
                let other = is_one.then(|| joined(&parts)).flatten();
                (parts, other)
            }
            None if self.is_serbian => (vec![first], latin(first.word)),
            None => match camel_parts(first) {
                Some(parts) => (parts, Some(first.word.to_owned())),
                // Fast path for most words.
                None => return Some(SpelledWord::from_token(first)),
            },
        };
        let other = other_word.map(|word| SpelledWord {
            word: Cow::Owned(word),
            start: first.start,
            is_part: false,
            stands_for: parts.len(),
        });
        let spelled_parts = parts.into_iter().map(SpelledWord::from_token);
        self.pieces = other
            .into_iter()
            .chain(spelled_parts)
            .collect::<Vec<_>>()
            .into_iter();
        self.pieces.next()
    }
}

impl<'a> Spellings<'a> {
    /// Collects this word and the following ones that are linked in the same way.
    fn chain(&mut self, first: Token<'a>, by: Link) -> Vec<Token<'a>> {
        let mut parts = vec![first];
        let mut last = first;
        let text = self.text;
        while let Some(next) = self
            .tokens
            .next_if(|next| link(text, last, *next) == Some(by))
        {
            parts.push(next);
            last = next;
        }
        parts
    }
}

/// The link between two adjacent words that may be one, or `None`.
fn link(text: &str, one: Token<'_>, other: Token<'_>) -> Option<Link> {
    let between = text.get(one.end()..other.start)?;
    let is_digit = |c: Option<char>| c.is_some_and(char::is_numeric);
    let are_digits = is_digit(one.word.chars().next_back()) && is_digit(other.word.chars().next());
    match between {
        "_" | NOT_JOINED => Some(Link::Compound),
        "-" | "‐" | "‑" if !are_digits => Some(Link::Compound),
        _ if are_digits => {
            let is_separator = |c: char| {
                matches!(
                    c,
                    ' ' | '\u{a0}' | '\u{202f}' | ',' | '.' | '\'' | '’' | '-' | '(' | ')' | '/'
                )
            };
            let is_short = between.chars().count() <= 2;
            (is_short && between.chars().all(is_separator)).then_some(Link::Digits)
        }
        // "п'ять" and "D'Angelo", but not "don't" and "it's".
        _ if is_apostrophe(between) => {
            let is_short = is_begun(&one.folded()) || is_ending(&other.folded());
            (!is_short).then_some(Link::Compound)
        }
        _ => None,
    }
}

fn joined(parts: &[Token<'_>]) -> Option<String> {
    (2..=PARTS_MAX)
        .contains(&parts.len())
        .then(|| parts.iter().map(|part| part.word).collect())
}

/// Whether the parts form a number with thousands separators, or may be a phone number.
fn is_one_number(text: &str, parts: &[Token<'_>]) -> bool {
    let digits = |part: &Token<'_>| part.word.chars().count();
    let are_whole = parts
        .iter()
        .all(|part| part.word.chars().all(char::is_numeric));
    let mut gaps = parts
        .windows(2)
        .map(|pair| &text[pair[0].end()..pair[1].start]);
    let first = gaps.next();
    let are_thousands = gaps.all(|gap| Some(gap) == first)
        && first != Some("-")
        && parts.first().is_some_and(|part| digits(part) <= 3)
        && parts[1..].iter().all(|part| digits(part) == 3);
    are_whole && (are_thousands || PHONE_DIGITS.contains(&parts.iter().map(digits).sum()))
}

/// Splits a name such as `getUserByEmail`. `None` for other words.
///
/// A capitalized name of two parts stays whole, so that "tube" does not match "YouTube".
fn camel_parts(token: Token<'_>) -> Option<Vec<Token<'_>>> {
    let word = token.word;
    if !word.is_ascii() || !word.bytes().skip(1).any(|byte| byte.is_ascii_uppercase()) {
        return None;
    }
    let bytes = word.as_bytes();
    let mut starts = vec![0];
    for at in 1..bytes.len() {
        let is_hump = bytes[at].is_ascii_uppercase()
            && (bytes[at - 1].is_ascii_lowercase()
                || bytes.get(at + 1).is_some_and(u8::is_ascii_lowercase));
        if is_hump {
            starts.push(at);
        }
    }
    let least = if bytes[0].is_ascii_lowercase() { 2 } else { 3 };
    let ends = starts.iter().skip(1).copied().chain([bytes.len()]);
    let bounds: Vec<(usize, usize)> = starts.iter().copied().zip(ends).collect();
    if !(least..=PARTS_MAX).contains(&bounds.len()) || bounds.iter().any(|(from, to)| to - from < 2)
    {
        return None;
    }
    let part = |(from, to): (usize, usize)| Token {
        word: &word[from..to],
        start: token.start + from,
        is_part: false,
    };
    Some(bounds.into_iter().map(part).collect())
}

/// Spells a Serbian word in Latin letters. `None` if the word is not Cyrillic.
fn latin(word: &str) -> Option<String> {
    let mut spelled = String::with_capacity(word.len());
    for c in word.to_lowercase().chars() {
        spelled.push_str(match c {
            'а' => "a",
            'б' => "b",
            'в' => "v",
            'г' => "g",
            'д' => "d",
            'ђ' => "đ",
            'е' => "e",
            'ж' => "ž",
            'з' => "z",
            'и' => "i",
            'ј' => "j",
            'к' => "k",
            'л' => "l",
            'љ' => "lj",
            'м' => "m",
            'н' => "n",
            'њ' => "nj",
            'о' => "o",
            'п' => "p",
            'р' => "r",
            'с' => "s",
            'т' => "t",
            'ћ' => "ć",
            'у' => "u",
            'ф' => "f",
            'х' => "h",
            'ц' => "c",
            'ч' => "č",
            'џ' => "dž",
            'ш' => "š",
            _ => return None,
        });
    }
    Some(spelled)
}

/// Returns other spellings of a query word.
///
/// They replace digraphs by letters with marks and vice versa, and Cyrillic by Latin letters.
pub(super) fn alternates(word: &str, folded: &str) -> Vec<String> {
    const DIGRAPHS: [(&str, &str); 5] = [
        ("å", "aa"),
        ("ä", "ae"),
        ("ö", "oe"),
        ("ø", "oe"),
        ("ü", "ue"),
    ];
    let written: String = word.to_lowercase().nfc().collect();
    let spell = |text: &str, pairs: &mut dyn Iterator<Item = (&str, &str)>| {
        pairs.fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
    };
    let typed = spell(&written, &mut DIGRAPHS.into_iter());
    let plain = [("aa", "a"), ("ae", "a"), ("oe", "o"), ("ue", "u")];
    let marked = spell(folded, &mut plain.into_iter());
    let mut found: Vec<String> = latin(word).into_iter().collect();
    found.extend((typed != written).then_some(typed));
    found.extend((marked != folded).then_some(marked));
    found
}

#[cfg(test)]
mod tests {
    use super::super::add_index_words;
    use super::super::ranking::{Query, Scorer, Statistics};
    use super::*;

    /// Whether a query finds a text in the index, and the text covers all of the query.
    fn finds(query: &str, text: &str) -> bool {
        let mut index_words = String::new();
        let language = add_index_words(text, &mut index_words);
        let words: Vec<&str> = index_words.split(' ').collect();
        let query = Query::new(query, language.with(Languages::default()));
        let is_in_index = |form: &String| words.contains(&form.as_str());
        let are_found = query
            .terms()
            .iter()
            .all(|term| term.forms().iter().any(is_in_index));
        let scorer = Scorer::new(&query, &Statistics::default());
        are_found && scorer.judge(text).coverage > 0.89
    }

    #[test]
    fn spelling_variants_find_each_other() {
        for (one, other) in [
            ("getUserByEmail", "get_user_by_email"),
            ("HttpRequestParser", "http-request-parser"),
            ("UserService", "user_service"),
            ("lefthanded", "left-handed"),
            ("O'Brien", "OBrien"),
            ("п'ять", "пʼять"),
            ("п’ять", "пять"),
            ("1,000,000", "1000000"),
            ("1 000 000", "1.000.000"),
            ("+1 (555) 123-4567", "1-555-123-4567"),
            ("5551234567", "555 123 4567"),
            ("Århus", "Aarhus"),
            ("Müller", "Mueller"),
            ("Malmø", "Malmoe"),
            ("Београд је град", "Beograd je grad"),
            ("Живим у Њујорку, ђак", "Živim u Njujorku, đak"),
            ("می‌خواهم", "میخواهم"),
            ("हिंदी", "हिन्दी"),
            ("ज़रूर", "जरूर"),
            ("हँसना", "हंसना"),
            ("ہندوستان", "ھندوستان"),
            ("スシ", "すし"),
            ("臺灣電腦", "台湾电脑"),
        ] {
            assert!(finds(one, other), "{one} in {other}");
            assert!(finds(other, one), "{other} in {one}");
        }
    }

    #[test]
    fn compound_is_found_by_its_parts() {
        for (query, text) in [
            ("user email", "calls getUserByEmail twice"),
            ("handed", "is left-handed"),
            ("خواهم", "می‌خواهم"),
        ] {
            assert!(finds(query, text), "{query} in {text}");
        }
    }

    #[test]
    fn different_words_do_not_find_each_other() {
        for (query, text) in [
            ("dont", "don't"),
            ("tube", "watches YouTube"),
            ("315", "3.15"),
            ("12", "1, 2"),
            ("lefthanded", "left handed"),
        ] {
            assert!(!finds(query, text), "{query} in {text}");
        }
    }
}
