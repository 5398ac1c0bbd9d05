//! What is asked of a search, and what it gives.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use memoird_core::ids::{Generation, SessionId, Subject};
use memoird_core::time::Timestamp;
use memoird_core::turn::Role;

/// What is looked for, among the turns of one tenant.
#[derive(Clone, Debug, Default)]
pub struct SearchRequest {
    /// In words; of a long one the first words. Empty: by the filters alone, newest first.
    pub query: String,
    /// Only in this session, in all of its lives.
    pub session: Option<SessionId>,
    /// Only in sessions of this subject.
    pub subject: Option<Subject>,
    /// Only what was said at or after this moment.
    pub after: Option<Timestamp>,
    /// Only what was said before this moment.
    pub before: Option<Timestamp>,
    /// Only by these roles; empty: by all.
    pub roles: Vec<Role>,
    /// Only turns that call this tool, or have a result of it.
    pub tool: Option<String>,
    /// How many turns to give before and after each hit.
    pub context_turns: usize,
    /// Hits of one page.
    pub limit: usize,
    /// Where the page before ended.
    pub page: Option<PageToken>,
}

/// A page of hits, best first.
#[derive(Clone, Debug, Default)]
pub struct SearchPage {
    /// The hits; there may be none although there is a next page.
    pub hits: Vec<Hit>,
    /// Where the next page goes on; `None` on the last one.
    pub next: Option<PageToken>,
    /// True when the index did not have all that was said before the call: hits may be
    /// missing.
    pub incomplete: bool,
}

/// A turn that was found.
#[derive(Clone, Debug)]
pub struct Hit {
    /// Its session.
    pub session: SessionId,
    /// The life of that session.
    pub generation: Generation,
    /// Its place there.
    pub seq: u64,
    /// Who said it.
    pub role: Role,
    /// When.
    pub at: Timestamp,
    /// The words around what was found.
    pub snippet: String,
    /// How well it fits; 0 where no words were looked for.
    pub score: f64,
    /// Its turn, with those around it, ascending; encoded.
    pub turns: Vec<Arc<[u8]>>,
}

/// A place in a list of hits: pages go on behind it, and see nothing that came since the first
/// one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PageToken {
    /// The tenant's turns that the index had when the first page was made.
    pub(crate) turns: u64,
    /// The score of the last turn that was looked at, finite and not negative.
    pub(crate) score: f64,
    /// Its number among the tenant's turns.
    pub(crate) number: u64,
}

impl PageToken {
    /// True for a hit that stands behind this place: with a lower score, or of those with the
    /// same one, older.
    pub(crate) fn is_before(&self, score: f64, number: u64) -> bool {
        score < self.score || score == self.score && number < self.number
    }
}

impl fmt::Display for PageToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let score = self.score.to_bits();
        write!(f, "{:x}-{score:x}-{:x}", self.turns, self.number)
    }
}

/// A text that is no page token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAPageToken;

impl FromStr for PageToken {
    type Err = NotAPageToken;

    fn from_str(text: &str) -> Result<Self, NotAPageToken> {
        let mut numbers = text.split('-').map(|part| u64::from_str_radix(part, 16));
        let mut next = || numbers.next().and_then(Result::ok).ok_or(NotAPageToken);
        let token = Self {
            turns: next()?,
            score: f64::from_bits(next()?),
            number: next()?,
        };
        let is_good = token.score.is_finite() && token.score >= 0.0 && numbers.next().is_none();
        is_good.then_some(token).ok_or(NotAPageToken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_reads_back_as_it_was_written() {
        for score in [0.0, 1.0 / 3.0, 17.25] {
            let token = PageToken {
                turns: 4_000,
                score,
                number: 17,
            };
            assert_eq!(token.to_string().parse(), Ok(token));
        }
        for bad in [
            "",
            "1-2",
            "1-2-3-4",
            "x-0-1",
            "1-fff0000000000000-1",
            "1--1",
        ] {
            assert_eq!(bad.parse::<PageToken>(), Err(NotAPageToken), "{bad}");
        }
    }

    #[test]
    fn pages_go_on_with_lower_scores_and_older_turns() {
        let token = PageToken {
            turns: 9,
            score: 2.0,
            number: 5,
        };
        assert!(token.is_before(1.9, 8) && token.is_before(2.0, 4));
        assert!(!token.is_before(2.0, 5) && !token.is_before(2.1, 1));
    }
}
