//! Identifiers: what must stay to the letter, because a paraphrase of it is wrong. Paths,
//! URLs, ids and numbers of things, amounts with their units, dates, error codes, names.
//!
//! Rules by shape and place, in two passes: the text is cut into words and marks, then each
//! word is looked at with a bounded number of neighbours. No pattern is ever tried again from
//! another place, so the time is linear in the text, whatever that is.

mod lex;
mod moment;
mod scan;
mod shape;
#[cfg(test)]
mod tests;
mod vocabulary;

use std::ops::Range;

/// What an identifier is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
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

/// A longer one is data, not an identifier; in bytes.
pub const IDENTIFIER_BYTES_MAX: usize = 256;

/// The identifiers of a text, in their order; one may come more than once. None is longer
/// than [`IDENTIFIER_BYTES_MAX`]. Linear in the text.
///
/// JSON inside the text is read as such: keys are none (but for keys that are ids), values
/// of keys such as `price` and `total` are amounts, values of keys such as `id` are ids.
pub fn identifiers(text: &str) -> Vec<Identifier<'_>> {
    scan::scan(text)
}

/// True when all of a text looks like the path of a file or folder; not for a URL.
pub fn is_path(text: &str) -> bool {
    text.len() <= IDENTIFIER_BYTES_MAX && !text.contains("://") && shape::is_path(text)
}

/// A piece of a text.
#[derive(Clone, Debug)]
struct Token {
    what: What,
    /// Where it stands, in bytes.
    place: Range<usize>,
}

/// What a piece of a text is. Blanks are none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    /// Letters, digits and what joins them: a number, a path, a date.
    Word,
    /// `{` or `[`.
    Open,
    /// `}` or `]`.
    Close,
    /// `"` and its like.
    Quote,
    /// A backquote.
    Backquote,
    /// `:` or `=`.
    Colon,
    Comma,
    /// The end of a sentence or line.
    Stop,
    /// Anything else.
    Mark,
}
