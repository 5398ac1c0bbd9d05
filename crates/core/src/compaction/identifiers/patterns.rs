//! The tables of `patterns.txt`. Each is one automaton: of the rows that match, the first one
//! tells.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::LazyLock;

use regex_automata::meta::Regex;
use regex_automata::{Anchored, Input};
use serde::Deserialize;

use super::{Kind, Token};
use crate::config::by_name;

/// A longer label says nothing; in bytes.
const LABEL_BYTES_MAX: usize = 64;

/// What a piece of a text is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum TokenKind {
    /// Letters, digits and what joins them: a number, a path, a date.
    Word,
    /// The key of a JSON object, with its quotes and colon.
    Key,
    /// `{` or `[`.
    Open,
    /// `}` or `]`.
    Close,
    /// `"` and other quotation marks.
    Quote,
    /// A backquote.
    Backquote,
    /// `:` or `=`.
    Colon,
    Comma,
    /// The end of a sentence or line.
    Stop,
    /// White space, and the emphasis of Markdown, which stands around words.
    Blank,
    /// Anything else.
    Mark,
    /// An identifier, whatever stands around it.
    #[serde(untagged)]
    Identifier(Kind),
}

/// What a key or a label before a number says of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Label {
    /// `price`, `unit_cost`, `total`: a bare number is an amount.
    Money,
    /// `id`, `orderId`, `zip`, `last_four`: a bare number is an id.
    Id,
    /// Nothing.
    Other,
}

/// The tables, and the parts that their patterns consist of.
const PATTERNS: &str = include_str!("patterns.txt");

/// One automaton of a table's patterns.
struct Table<T> {
    regex: Regex,
    /// What each pattern stands for.
    kinds: Vec<T>,
}

static TOKENS: LazyLock<Table<TokenKind>> = LazyLock::new(|| Table::new("tokens", "", named));
static SHAPES: LazyLock<Table<Option<Kind>>> = LazyLock::new(|| {
    Table::new("shapes", r"\z", |name| {
        (name != "none").then(|| named(name))
    })
});
static LABELS: LazyLock<Table<Label>> = LazyLock::new(|| Table::new("labels", r"\z", named));
static MONTHS: LazyLock<HashSet<&str>> = LazyLock::new(|| words("MONTH").collect());
static COMMON: LazyLock<HashSet<&str>> = LazyLock::new(|| words("COMMON").collect());

impl<T: Copy> Table<T> {
    /// The table of a section, each of its patterns followed by `end`.
    fn new(title: &str, end: &str, kind: fn(&'static str) -> T) -> Self {
        let parts = parts();
        let patterns = section(title).map(|(_, pattern)| {
            // From the last part to the first, because parts have parts in them.
            let put =
                |pattern: String, (name, part): &(String, String)| pattern.replace(name, part);
            let whole = parts.iter().rev().fold(pattern.to_owned(), put);
            format!("(?:{whole}){end}")
        });
        let patterns: Vec<String> = patterns.collect();
        Self {
            regex: Regex::new_many(&patterns).unwrap_or_else(|error| panic!("{title}: {error:?}")),
            kinds: section(title).map(|(name, _)| kind(name)).collect(),
        }
    }

    /// What begins the input, and where that ends.
    fn find(&self, input: Input<'_>) -> Option<(T, usize)> {
        let found = self.regex.search_half(&input.anchored(Anchored::Yes))?;
        Some((self.kinds[found.pattern().as_usize()], found.offset()))
    }
}

/// The value that has this name in the tables.
fn named<T: Deserialize<'static>>(name: &'static str) -> T {
    by_name(name).unwrap_or_else(|error| panic!("patterns: {error}"))
}

/// The rows of a section: names and patterns.
fn section(title: &str) -> impl Iterator<Item = (&'static str, &'static str)> {
    let heading = format!("[{title}]");
    let rows = PATTERNS
        .lines()
        .skip_while(move |line| *line != heading)
        .skip(1);
    rows.take_while(|line| !line.starts_with('['))
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split_once(' '))
        .map(|(name, pattern)| (name, pattern.trim_start()))
}

/// A list of words.
fn words(name: &str) -> impl Iterator<Item = &'static str> {
    let rows = section("words").filter(move |(row, _)| *row == name);
    rows.flat_map(|(_, words)| words.split(' '))
}

/// The parts of patterns: names in braces, and what they stand for. Those behind may use
/// those before them.
fn parts() -> Vec<(String, String)> {
    let joined = |title, between| {
        let rows: Vec<_> = section(title).collect();
        let parts = rows
            .chunk_by(|(name, _), (next, _)| name == next)
            .map(|rows| {
                let patterns: Vec<&str> = rows.iter().map(|(_, pattern)| *pattern).collect();
                (format!("{{{}}}", rows[0].0), patterns.join(between))
            });
        parts.collect::<Vec<_>>()
    };
    let words = joined("words", " ").into_iter();
    words
        .map(|(name, words)| (name, format!("(?:{})", words.replace(' ', "|"))))
        .chain(joined("parts", ""))
        .collect()
}

/// True of the name of a month.
pub(super) fn is_month(word: &str) -> bool {
    MONTHS.contains(word)
}

/// True of a word that is capitalised without being a name.
pub(super) fn is_common(word: &str) -> bool {
    // "I'm" and "It's", with any apostrophe.
    let word = word.split_once(['\'', '’']).map_or(word, |(word, _)| word);
    COMMON.contains(word)
}

/// What a whole word is by its shape; `None` of a plain word or number.
pub(super) fn shape(word: &str) -> Option<Kind> {
    let is_plain = word.starts_with(|c: char| c.is_ascii_alphabetic())
        && word.bytes().skip(1).all(|b| b.is_ascii_lowercase());
    if is_plain {
        return None;
    }
    SHAPES.find(Input::new(word))?.0
}

/// What a key or a label says of the number behind it.
pub(super) fn label(label: &str) -> Label {
    if label.is_empty() || label.len() > LABEL_BYTES_MAX {
        return Label::Other;
    }
    LABELS
        .find(Input::new(label))
        .map_or(Label::Other, |(label, _)| label)
}

/// The tokens of a text, without white space. Linear in the text.
pub(super) fn tokens(text: &str) -> Vec<Token> {
    let bytes = text.as_bytes();
    let mut tokens: Vec<Token> = Vec::with_capacity(text.len() / 4);
    let mut start = 0;
    while start < text.len() {
        if bytes[start] == b' ' {
            start += 1;
            continue;
        }
        if let Some(end) = plain_word_end(bytes, start) {
            tokens.push(Token {
                kind: TokenKind::Word,
                range: start..end,
            });
            start = end;
            continue;
        }
        // The last row takes any character.
        let Some((kind, end)) = TOKENS.find(Input::new(text).range(start..)) else {
            break;
        };
        let mut range = start..end;
        start = end;
        if kind == TokenKind::Blank {
            continue;
        }
        if kind == TokenKind::Word {
            range.end = word_end(text, &range, tokens.last());
            start = range.end;
        }
        tokens.push(Token { kind, range });
    }
    tokens
}

/// Where a word of small letters before a blank ends. Most words are, and the table would
/// say the same; but in it `code`, `error`, `status` and the like begin more.
fn plain_word_end(bytes: &[u8], start: usize) -> Option<usize> {
    if matches!(bytes[start], b'c' | b'e' | b's') {
        return None;
    }
    let letters = bytes[start..].iter().take_while(|b| b.is_ascii_lowercase());
    let end = start + letters.count();
    (end > start && bytes.get(end) == Some(&b' ')).then_some(end)
}

/// Where a word ends: numbers in a list are no thousands, and a slash ends a folder's name.
fn word_end(text: &str, word: &Range<usize>, before: Option<&Token>) -> usize {
    let is_listed = before.is_some_and(|before| {
        before.range.end == word.start && matches!(before.kind, TokenKind::Comma | TokenKind::Open)
    });
    if is_listed && let Some(comma) = text[word.clone()].find(',') {
        return word.start + comma;
    }
    match &text.as_bytes()[word.end..] {
        [b'/'] | [b'/', b' ' | b'\n' | b'"' | b'`' | b')' | b',', ..] => word.end + 1,
        _ => word.end,
    }
}
