//! Turns as a summarizer reads them: text, with markers where there is something else.

use crate::turn::{Role, Turn};

/// A turn as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spoken {
    /// Its number.
    pub seq: u64,
    /// Who said it.
    pub role: Role,
    /// What was said: text, calls as `name(arguments)`, results, `[image]` and `[document]`
    /// for media. No thinking, no recalled memories, no summary.
    pub text: String,
    /// Calls of tools in it: name and arguments, as they were written.
    pub calls: Vec<(String, String)>,
    /// Texts of results that failed.
    pub errors: Vec<String>,
    /// What the bot marked as decided, by the metadata label [`DECISION`].
    pub decisions: Vec<String>,
    /// Encoded bytes of the turn, for what it may be weighed by.
    pub bytes: usize,
}

/// The metadata label by which a bot marks what a turn decided.
pub const DECISION: &str = "memoird.decision";

/// A turn as a summarizer reads it.
pub fn spoken(_seq: u64, _turn: &Turn, _bytes: usize) -> Spoken {
    Spoken {
        seq: _seq,
        role: _turn.role,
        text: String::new(),
        calls: Vec::new(),
        errors: Vec::new(),
        decisions: Vec::new(),
        bytes: _bytes,
    }
}
