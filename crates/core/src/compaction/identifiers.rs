//! Identifiers: what must stay to the letter, because a paraphrase of it is wrong. Paths,
//! URLs, ids and numbers of things, amounts with their units, dates, error codes, names.

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

/// The identifiers of a text, in their order; one may come more than once. Linear in the
/// text.
pub fn identifiers(_text: &str) -> Vec<Identifier<'_>> {
    Vec::new()
}
