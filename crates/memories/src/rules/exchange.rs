//! What a window asks its memories for, where the bot does not say: the exchange under way, not the
//! last sentence alone.

use memoird_core::words::{is_telling, tokens};

use super::MemoryLimits;
use super::fusion::is_question;

/// What was said by whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Said {
    /// True of a request of the user, false of an answer.
    pub(crate) is_request: bool,
    /// The text; empty of what only calls or results are in.
    pub(crate) text: String,
}

/// What has fewer telling words than these, and asks nothing, means something only beside what it
/// answers.
const WORDS_MIN: usize = 3;
/// Bytes of the query that the request may take; the rest is for what follows it.
const REQUEST_BYTES_MAX: usize = MemoryLimits::QUERY_BYTES / 2;

/// The query: the last request, what was said since, the newest first, and what a reply of
/// few words answers. Empty where nobody asked anything.
pub(crate) fn query(said: &[Said]) -> String {
    let is_asked = |said: &Said| said.is_request && !said.text.trim().is_empty();
    let Some(asked) = said.iter().rposition(is_asked) else {
        return String::new();
    };
    let request = &said[asked].text;
    let is_reply = telling_words(request) < WORDS_MIN && !is_question(request);
    let before = said[..asked]
        .iter()
        .rfind(|said| !said.text.trim().is_empty())
        .filter(|before| is_reply && !before.is_request);
    let since = said[asked + 1..].iter().rev();
    let mut query = String::new();
    add(&mut query, request, REQUEST_BYTES_MAX);
    for said in since.chain(before) {
        add(&mut query, &said.text, MemoryLimits::QUERY_BYTES);
    }
    query
}

/// Number of words that are not common ones, nor those of requests and courtesies.
pub(crate) fn telling_words(text: &str) -> usize {
    let words = tokens(text).filter(|token| !token.is_part);
    words.filter(|token| is_telling(&token.folded())).count()
}

/// Adds a text as far as there is room.
fn add(query: &mut String, text: &str, bytes_max: usize) {
    let text = text.trim();
    if text.is_empty() {
        return;
    }
    if !query.is_empty() {
        query.push('\n');
    }
    let room = bytes_max.saturating_sub(query.len());
    query.push_str(&text[..text.floor_char_boundary(room)]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(text: &str) -> Said {
        Said {
            is_request: true,
            text: text.to_owned(),
        }
    }

    fn other(text: &str) -> Said {
        Said {
            is_request: false,
            ..user(text)
        }
    }

    #[test]
    fn the_exchange_under_way_is_asked_for() {
        let said = [
            user("an older matter"),
            other("an older answer"),
            user("Which trains go to Riga tomorrow morning?"),
            other("I look for trains."),
            other(""),
            user(""),
            other("There are two."),
        ];
        assert_eq!(
            query(&said),
            "Which trains go to Riga tomorrow morning?\nThere are two.\nI look for trains."
        );
        assert_eq!(query(&said[..2]), "an older matter\nan older answer");
        assert_eq!(query(&[other("hello")]), "");
        assert_eq!(query(&[]), "");
    }

    #[test]
    fn a_short_reply_is_asked_with_what_it_answers() {
        let said = [
            user("Book it."),
            other("The 10:30 train to Riga?"),
            other(""),
            user("yes please"),
        ];
        assert_eq!(query(&said), "yes please\nThe 10:30 train to Riga?");
    }

    #[test]
    fn a_query_is_bounded_and_what_follows_has_room() {
        let said = [user(&"ä".repeat(9_000)), other(&"b".repeat(9_000))];
        let query = query(&said);
        assert!(query.len() <= MemoryLimits::QUERY_BYTES, "{}", query.len());
        assert!(query.ends_with("bbb") && query.starts_with("äää"));
    }
}
