//! Looks at each word of a text with its neighbours.

use super::lex::tokens;
use super::moment::{is_day, is_half, is_moment, is_month, is_year};
use super::shape::{self, is_number, is_unit};
use super::vocabulary::{CODES, CURRENCIES, is_common, is_money, is_number_of};
use super::{IDENTIFIER_BYTES_MAX, Identifier, Kind, Token, What};

/// Words of one name.
const NAME_WORDS_MAX: usize = 5;
/// Digits of a key that is an id: `credit_card_4421486`, not `address1`.
const KEY_DIGITS_MIN: usize = 3;
/// How deep JSON is followed.
const DEPTH_MAX: usize = 32;

pub(super) fn scan(text: &str) -> Vec<Identifier<'_>> {
    let tokens = tokens(text);
    let mut scan = Scan {
        text,
        tokens: &tokens,
        found: Vec::new(),
        label: "",
        is_money: Vec::new(),
        is_start: true,
    };
    let mut at = 0;
    while at < tokens.len() {
        at += scan.step(at).max(1);
    }
    scan.found
}

struct Scan<'a, 't> {
    text: &'a str,
    tokens: &'t [Token],
    found: Vec<Identifier<'a>>,
    /// The key or label of what comes next; empty without one.
    label: &'a str,
    /// For each JSON object or list around: whether its numbers are money.
    is_money: Vec<bool>,
    /// True where a sentence begins.
    is_start: bool,
}

impl<'a> Scan<'a, '_> {
    /// Looks at a token; gives how many it took.
    fn step(&mut self, at: usize) -> usize {
        match self.tokens[at].what {
            What::Word => return self.word(at),
            What::Quote | What::Backquote => {
                let taken = self.quoted(at);
                self.is_start = taken == 0;
                return taken;
            }
            What::Open => {
                if self.is_money.len() < DEPTH_MAX {
                    let is_money = self.is_money.last().is_some_and(|is_money| *is_money);
                    self.is_money.push(is_money || is_money_label(self.label));
                }
                (self.label, self.is_start) = ("", true);
            }
            What::Close => {
                self.is_money.pop();
                self.label = "";
            }
            What::Colon => self.label = self.label_before(at),
            What::Comma => self.label = "",
            What::Stop => (self.label, self.is_start) = ("", true),
            What::Mark => {}
        }
        1
    }

    fn what(&self, at: usize) -> Option<What> {
        self.tokens.get(at).map(|token| token.what)
    }

    /// The word at this place, where one is.
    fn at(&self, at: usize) -> Option<&'a str> {
        let token = self
            .tokens
            .get(at)
            .filter(|token| token.what == What::Word)?;
        Some(&self.text[token.place.clone()])
    }

    /// The word behind this one with one blank between them.
    fn next(&self, at: usize) -> Option<&'a str> {
        let gap = self.tokens.get(at)?.place.end..self.tokens.get(at + 1)?.place.start;
        let word = self.at(at + 1)?;
        matches!(&self.text[gap], " " | "\u{a0}" | "\u{202f}").then_some(word)
    }

    fn label_before(&self, at: usize) -> &'a str {
        let before = at.checked_sub(1);
        let quoted = at.checked_sub(2);
        match before.and_then(|at| self.what(at)) {
            Some(What::Word) => before.and_then(|at| self.at(at)),
            Some(What::Quote) => quoted.and_then(|at| self.at(at)),
            _ => None,
        }
        .unwrap_or("")
    }

    fn push(&mut self, first: usize, last: usize, kind: Kind) {
        let text = &self.text[self.tokens[first].place.start..self.tokens[last].place.end];
        if text.len() <= IDENTIFIER_BYTES_MAX {
            self.found.push(Identifier { text, kind });
        }
    }

    /// True of the key of a JSON object.
    fn is_key(&self, at: usize) -> bool {
        self.what(at + 1) == Some(What::Quote) && self.what(at + 2) == Some(What::Colon)
    }

    fn word(&mut self, at: usize) -> usize {
        let word = &self.text[self.tokens[at].place.clone()];
        let was_start = std::mem::take(&mut self.is_start);
        if word.len() > IDENTIFIER_BYTES_MAX {
            return 1;
        }
        if self.is_key(at) {
            // A key with a long number is the id of what it stands for.
            let digits = word.bytes().filter(u8::is_ascii_digit).count();
            if digits >= KEY_DIGITS_MIN && shape::kind(word) == Some(Kind::Id) {
                self.push(at, at, Kind::Id);
            }
            return 1;
        }
        let (kind, taken) = match self.several(at, word) {
            Some(found) => found,
            None => match self.single(word) {
                Some(kind) => (kind, 1),
                None => return self.name(at, was_start),
            },
        };
        self.push(at, at + taken - 1, kind);
        taken
    }

    /// An identifier of several words.
    fn several(&self, at: usize, word: &str) -> Option<(Kind, usize)> {
        // Most words begin nothing of several words, as their first letter tells.
        if !matches!(word.as_bytes()[0], b'0'..=b'9' | b'A'..=b'Z' | b'c' | b'e' | b's') {
            return None;
        }
        let next = self.next(at);
        if let Some(taken) = self.date(at, word) {
            return Some((Kind::Date, taken));
        }
        let next = next?;
        if is_number(word) && is_unit(next) || CURRENCIES.contains(&word) && is_number(next) {
            return Some((Kind::Amount, 2));
        }
        if is_moment(word) && word.contains(':') && is_half(next.as_bytes()) {
            return Some((Kind::Date, 2));
        }
        if CODES.contains(&word) && is_number(next) && next.len() <= 6 {
            return Some((Kind::Code, 2));
        }
        let is_worded = matches!(
            word,
            "exit" | "status" | "error" | "Exit" | "Status" | "Error"
        );
        let third = self.next(at + 1)?;
        (is_worded && next == "code" && is_number(third)).then_some((Kind::Code, 3))
    }

    /// `May 15`, `May 15th, 2024`, `May 2024`, `15 May 2024`, `15th of May`, `3 pm`.
    fn date(&self, at: usize, word: &str) -> Option<usize> {
        let next = self.next(at)?;
        let third = self.next(at + 1);
        if is_month(word) && is_year(next) {
            return Some(2);
        }
        if is_month(word) && is_day(next) {
            let has_comma = self.what(at + 2) == Some(What::Comma);
            return Some(match third.filter(|year| is_year(year)) {
                Some(_) => 3,
                None if has_comma && self.at(at + 3).is_some_and(is_year) => 4,
                None => 2,
            });
        }
        if !is_day(word) {
            return None;
        }
        if is_month(next) {
            return Some(if third.is_some_and(is_year) { 3 } else { 2 });
        }
        if next == "of" && third.is_some_and(is_month) {
            return Some(3);
        }
        is_half(next.as_bytes()).then_some(2)
    }

    fn single(&self, word: &str) -> Option<Kind> {
        if is_number(word) {
            let is_money = self.is_money.last().is_some_and(|is_money| *is_money);
            if is_money_label(self.label) || is_money && !is_number_of(self.label) {
                return Some(Kind::Amount);
            }
            if is_number_of(self.label) {
                return Some(Kind::Id);
            }
        }
        shape::kind(word)
    }

    /// Something in quotes: the value of a JSON key that is a name, or a symbol. Gives how
    /// many tokens it took; 0 where it is neither.
    fn quoted(&mut self, at: usize) -> usize {
        let quote = self.tokens[at].what;
        let words = self.tokens[at + 1..].iter().take(NAME_WORDS_MAX + 1);
        let words = words.take_while(|token| token.what == What::Word).count();
        let (first, last, end) = (at + 1, at + words, at + words + 1);
        let is_closed = words > 0 && self.what(end) == Some(quote);
        if !is_closed || self.is_key(last) {
            return 0;
        }
        let value = &self.text[self.tokens[first].place.start..self.tokens[last].place.end];
        let is_value = at == 0
            || matches!(
                self.tokens[at - 1].what,
                What::Colon | What::Comma | What::Open
            );
        let is_capital = (first..=last).all(|at| self.at(at).is_some_and(is_capitalised));
        let kind = match words {
            1 if shape::kind(value).is_some() || is_number(value) => return 0,
            1 if is_value && is_code_word(value) => Kind::Id,
            1 if quote == What::Backquote && value.len() > 1 => Kind::Name,
            _ if is_value && is_capital && !is_common(value) => Kind::Name,
            _ => return 0,
        };
        self.push(first, last, kind);
        words + 2
    }

    /// A name: capitalised words inside a sentence, or several at its start.
    fn name(&mut self, at: usize, is_start: bool) -> usize {
        let is_part = |at: usize| self.at(at).filter(|word| is_capitalised(word));
        let Some(word) = is_part(at).filter(|word| !is_common(word)) else {
            return 1;
        };
        let mut last = at;
        while last + 1 < at + NAME_WORDS_MAX {
            let Some(next) = self.next(last).filter(|word| is_capitalised(word)) else {
                break;
            };
            // What follows may be a key's name, a date or an identifier by itself.
            if is_common(next) || shape::kind(next).is_some() || is_month(next) {
                break;
            }
            last += 1;
        }
        let is_shouted = word.len() >= 2 && word.chars().all(char::is_uppercase);
        if last > at || !is_start || is_shouted {
            self.push(at, last, Kind::Name);
        }
        last - at + 1
    }
}

fn is_money_label(label: &str) -> bool {
    !label.is_empty() && label.len() <= 64 && is_money(label)
}

/// True of a word that begins with a capital and is of letters.
fn is_capitalised(word: &str) -> bool {
    word.chars().next().is_some_and(char::is_uppercase)
        && word
            .chars()
            .all(|c| c.is_alphabetic() || matches!(c, '\'' | '’' | '-'))
}

/// True of capitals that stand alone as a value and are too many for a word: `IFOYYZ`.
fn is_code_word(word: &str) -> bool {
    (5..=12).contains(&word.len()) && word.bytes().all(|b| b.is_ascii_uppercase())
}
