//! Identifiers: what must stay to the letter, because a paraphrase of it is wrong. Paths,
//! URLs, ids and numbers of things, amounts with their units, dates, error codes, names.
//!
//! [`patterns`] holds what they look like: one table cuts a text into tokens, another one
//! tells what a word is by its shape. This file adds what depends on the neighbours: keys
//! and labels before a number, quotes around a word, and capitalised words in a row. No
//! pattern is tried again from another start, so the time is linear in the text.

mod patterns;
#[cfg(test)]
mod tests;

use std::ops::Range;

use serde::Deserialize;

use patterns::{Label, TokenKind, is_common, is_month, label, shape, tokens};

/// What an identifier is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A path of a file, or a URL.
    Path,
    /// An id: letters and digits mixed, hexadecimal, UUID, a flight number, a commit.
    Id,
    /// An amount with its unit or currency.
    Amount,
    /// A date or a time of day.
    Date,
    /// An error code or a constant: `ECONNREFUSED`, `E0308`, `HTTP 503`.
    Code,
    /// A name: of a person, a place, a product; quoted or capitalised inside a sentence.
    Name,
}

/// An identifier in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Identifier<'a> {
    /// To the letter.
    pub text: &'a str,
    /// What it is.
    pub kind: Kind,
}

impl Identifier<'_> {
    /// Where it stands in the text that it was found in, in bytes.
    pub fn range_in(&self, text: &str) -> Range<usize> {
        let start = self.text.as_ptr().addr() - text.as_ptr().addr();
        start..start + self.text.len()
    }
}

/// A longer one is data, not an identifier; in bytes.
pub const IDENTIFIER_BYTES_MAX: usize = 256;

/// Words of one name.
const NAME_WORDS_MAX: usize = 5;
/// Digits of a key that is an id: `credit_card_4421486`, not `address1`.
const KEY_DIGITS_MIN: usize = 3;
/// Characters of a code of capitals and digits.
const CODE_BYTES_MIN: usize = 5;
/// How deep JSON is followed.
const DEPTH_MAX: usize = 32;

/// The identifiers of a text, in their order; one may come more than once. None is longer
/// than [`IDENTIFIER_BYTES_MAX`]. Linear in the text.
///
/// JSON inside the text is read as such: keys are none (but for keys that are ids), values
/// of keys such as `price` and `total` are amounts, values of keys such as `id` are ids.
pub fn identifiers(text: &str) -> Vec<Identifier<'_>> {
    let mut scan = Scan {
        text,
        tokens: tokens(text),
        found: Vec::new(),
        label: "",
        is_money: Vec::new(),
        is_start: true,
    };
    let mut index = 0;
    while index < scan.tokens.len() {
        index += scan.step(index);
    }
    scan.found
}

/// True when all of a text looks like the path of a file or folder; not for a URL.
pub fn is_path(text: &str) -> bool {
    text.len() <= IDENTIFIER_BYTES_MAX && !text.contains("://") && shape(text) == Some(Kind::Path)
}

/// True of a word of capitals and digits, of both, that has five characters at least: `4XK90Q`,
/// `QXDRTE7`.
pub fn is_code(word: &str) -> bool {
    let is_inside = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit();
    word.len() >= CODE_BYTES_MIN
        && word.bytes().all(is_inside)
        && word.bytes().any(|byte| byte.is_ascii_digit())
        && word.bytes().any(|byte| byte.is_ascii_uppercase())
}

/// A piece of a text.
#[derive(Clone, Debug)]
struct Token {
    kind: TokenKind,
    /// Where it stands, in bytes.
    range: Range<usize>,
}

struct Scan<'a> {
    text: &'a str,
    tokens: Vec<Token>,
    found: Vec<Identifier<'a>>,
    /// The key or label of what comes next; empty without one.
    label: &'a str,
    /// For each JSON object or list around: whether its numbers are money.
    is_money: Vec<bool>,
    /// True where a sentence begins.
    is_start: bool,
}

impl<'a> Scan<'a> {
    /// Looks at a token; returns how many it took.
    fn step(&mut self, index: usize) -> usize {
        match self.tokens[index].kind {
            TokenKind::Word => return self.word(index),
            TokenKind::Identifier(kind) => {
                self.push(index, index, kind);
                self.is_start = false;
            }
            TokenKind::Key => self.key(index),
            TokenKind::Quote | TokenKind::Backquote => self.is_start = true,
            TokenKind::Open => {
                if self.is_money.len() < DEPTH_MAX {
                    let is_money = self.is_in_money() || label(self.label) == Label::Money;
                    self.is_money.push(is_money);
                }
                self.label = "";
                self.is_start = true;
            }
            TokenKind::Close => {
                self.is_money.pop();
                self.label = "";
            }
            TokenKind::Colon => {
                let before = index.checked_sub(1).and_then(|before| self.word_at(before));
                self.label = before.unwrap_or("");
            }
            TokenKind::Comma => self.label = "",
            TokenKind::Stop => {
                self.label = "";
                self.is_start = true;
            }
            TokenKind::Blank | TokenKind::Mark => {}
        }
        1
    }

    fn kind_at(&self, index: usize) -> Option<TokenKind> {
        self.tokens.get(index).map(|token| token.kind)
    }

    /// The word at this index, where one is.
    fn word_at(&self, index: usize) -> Option<&'a str> {
        let token = self.tokens.get(index)?;
        (token.kind == TokenKind::Word).then(|| &self.text[token.range.clone()])
    }

    /// The word behind this one with one blank between them.
    fn next_word(&self, index: usize) -> Option<&'a str> {
        let word = self.word_at(index + 1)?;
        let gap = self.tokens[index].range.end..self.tokens[index + 1].range.start;
        (&self.text[gap] == " ").then_some(word)
    }

    fn push(&mut self, first: usize, last: usize, kind: Kind) {
        let text = &self.text[self.tokens[first].range.start..self.tokens[last].range.end];
        if text.len() <= IDENTIFIER_BYTES_MAX {
            self.found.push(Identifier { text, kind });
        }
    }

    fn is_in_money(&self) -> bool {
        self.is_money.last() == Some(&true)
    }

    /// The key of a JSON object, which labels its value. A key with a long number is itself an
    /// id, and a key of capitalised words is a name.
    fn key(&mut self, index: usize) {
        let range = &self.tokens[index].range;
        let key = self.text[range.clone()].trim_matches(['\\', '"', '\'', ' ', ':', '=']);
        self.label = key.rsplit(' ').next().unwrap_or(key);
        if key.len() > IDENTIFIER_BYTES_MAX {
            return;
        }
        let digits = key.bytes().filter(u8::is_ascii_digit).count();
        let kind = match shape(key) {
            Some(Kind::Id) if digits >= KEY_DIGITS_MIN => Kind::Id,
            _ if key.contains(' ') && key.split(' ').all(is_capitalised) => Kind::Name,
            _ => return,
        };
        self.found.push(Identifier { text: key, kind });
    }

    fn word(&mut self, index: usize) -> usize {
        let word = &self.text[self.tokens[index].range.clone()];
        let was_start = std::mem::take(&mut self.is_start);
        if word.len() > IDENTIFIER_BYTES_MAX {
            return 1;
        }
        match self.labelled(word).or_else(|| shape(word)) {
            Some(kind) => {
                self.push(index, index, kind);
                1
            }
            None => self.name(index, word, was_start),
        }
    }

    /// What a bare number is by its label, or by the JSON object around it.
    fn labelled(&self, word: &str) -> Option<Kind> {
        if !is_number(word) {
            return None;
        }
        match label(self.label) {
            Label::Money => Some(Kind::Amount),
            Label::Id => Some(Kind::Id),
            Label::Other => self.is_in_money().then_some(Kind::Amount),
        }
    }

    /// A name: capitalised words inside a sentence, or several at its start; the value of a
    /// JSON key; a symbol in backquotes. Returns how many tokens it looked at.
    fn name(&mut self, index: usize, word: &str, is_start: bool) -> usize {
        let before = index.checked_sub(1).and_then(|before| self.kind_at(before));
        let is_quoted =
            |quote, last: usize| before == Some(quote) && self.kind_at(last + 1) == Some(quote);
        if word.len() > 1 && !is_number(word) && is_quoted(TokenKind::Backquote, index) {
            self.push(index, index, Kind::Name);
            return 2;
        }
        if !is_capitalised(word) || is_common(word) {
            return 1;
        }
        let mut last = index;
        while last + 1 < index + NAME_WORDS_MAX
            && self.next_word(last).is_some_and(|next| {
                is_capitalised(next)
                    && !is_common(next)
                    && !is_month(next)
                    && shape(next).is_none_or(|kind| kind == Kind::Name)
            })
        {
            last += 1;
        }
        let is_value = is_quoted(TokenKind::Quote, last) && self.begins_value(index - 1);
        let is_single = last == index;
        let is_shouted = word.len() >= 2 && word.chars().all(char::is_uppercase);
        if is_value && is_single && is_code_word(word) {
            self.push(index, index, Kind::Id);
        } else if is_value || is_shouted || !is_single || !is_start {
            self.push(index, last, Kind::Name);
        }
        last - index + 1
    }

    /// True where a JSON value may begin.
    fn begins_value(&self, index: usize) -> bool {
        index == 0
            || matches!(
                self.tokens[index - 1].kind,
                TokenKind::Key | TokenKind::Colon | TokenKind::Comma | TokenKind::Open
            )
    }
}

/// True of a number, with or without separators, and nothing else.
fn is_number(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_digit())
        && word
            .bytes()
            .all(|b| b.is_ascii_digit() || matches!(b, b'.' | b','))
        && word.matches('.').count() <= 1
}

/// True of a word that begins with a capital and is of letters.
fn is_capitalised(word: &str) -> bool {
    word.starts_with(char::is_uppercase)
        && word
            .chars()
            .all(|c| c.is_alphabetic() || matches!(c, '\'' | '’' | '-'))
}

/// True of capitals that stand alone as a value and are too many for a word: `IFOYYZ`.
fn is_code_word(word: &str) -> bool {
    (5..=12).contains(&word.len()) && word.bytes().all(|b| b.is_ascii_uppercase())
}
