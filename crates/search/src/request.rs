//! Requests and results of searches.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use memoird_core::ids::{Generation, SessionId, Subject};
use memoird_core::time::Timestamp;
use memoird_core::turn::Role;

/// What to search for among the turns of one tenant.
#[derive(Clone, Debug, Default)]
pub struct SearchRequest {
    /// Words to search for; long queries are truncated.
    ///
    /// If empty, turns are filtered only, newest first.
    pub query: String,
    /// Only this session, in all its generations.
    pub session: Option<SessionId>,
    pub subject: Option<Subject>,
    /// Earliest time, inclusive.
    pub after: Option<Timestamp>,
    /// Latest time, exclusive.
    pub before: Option<Timestamp>,
    /// Only these roles. All if empty.
    pub roles: Vec<Role>,
    /// Only turns that call this tool or have a result of it.
    pub tool: Option<String>,
    /// Number of turns to return before and after each hit.
    pub context_turns: usize,
    /// Hits per page.
    pub limit: usize,
    /// Where the previous page ended.
    pub page: Option<PageToken>,
}

/// A page of hits, best first.
#[derive(Clone, Debug, Default)]
pub struct SearchPage {
    /// May be empty although there is a next page.
    pub hits: Vec<Hit>,
    /// Start of the next page. `None` on the last one.
    pub next: Option<PageToken>,
    /// Whether the index lacked turns written before the call, so that hits may be missing.
    pub incomplete: bool,
}

/// A turn that was found.
#[derive(Clone, Debug)]
pub struct Hit {
    pub session: SessionId,
    pub generation: Generation,
    pub seq: u64,
    pub role: Role,
    pub at: Timestamp,
    /// Text around the match.
    pub snippet: String,
    /// Relevance. 0 for a search without words.
    pub score: f64,
    /// The turn and its context, encoded, ascending.
    pub turns: Vec<Arc<[u8]>>,
}

/// A position in a list of hits.
///
/// Later pages start after it, and ignore turns added since the first one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PageToken {
    /// Number of the tenant's turns in the index when the first page was built.
    pub(crate) turns: u64,
    /// Score of the last turn considered. Finite and not negative.
    pub(crate) score: f64,
    /// Its number within the tenant.
    pub(crate) number: u64,
}

impl PageToken {
    /// Whether a hit comes after this position: with a lower score, or older with the same score.
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

/// Text that is not a valid page token.
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
    fn page_token_round_trips_through_text() {
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
    fn page_token_orders_by_score_then_age() {
        let token = PageToken {
            turns: 9,
            score: 2.0,
            number: 5,
        };
        assert!(token.is_before(1.9, 8) && token.is_before(2.0, 4));
        assert!(!token.is_before(2.0, 5) && !token.is_before(2.1, 1));
    }
}
