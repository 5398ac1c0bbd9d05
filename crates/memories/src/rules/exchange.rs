//! The default recall query of a window: the current exchange, not only its last message.

use memoird_core::words::{is_telling, tokens};

use super::MemoryLimits;
use super::fusion::is_question;

/// A message of the exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ExchangeMessage {
    /// Whether the user sent it. False for replies.
    pub(crate) is_request: bool,
    /// Empty for a turn that contains only calls or results.
    pub(crate) text: String,
}

/// A message with fewer content words that is not a question is a short reply.
///
/// Its meaning depends on the message it answers.
const WORDS_MIN: usize = 3;
/// Maximum bytes of the request in the query. The rest is reserved for the messages after it.
const REQUEST_BYTES_MAX: usize = MemoryLimits::QUERY_BYTES / 2;

/// Builds the query of a window.
///
/// It contains the last request, then the messages since, newest first, then the message before the
/// request if the request is a short reply. Returns an empty query if there is no request.
pub(crate) fn query(said: &[ExchangeMessage]) -> String {
    let is_asked = |said: &ExchangeMessage| said.is_request && !said.text.trim().is_empty();
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

/// Number of words, without stop words and the words of requests and courtesies.
pub(crate) fn telling_words(text: &str) -> usize {
    let words = tokens(text).filter(|token| !token.is_part);
    words.filter(|token| is_telling(&token.folded())).count()
}

/// Appends a text on a new line, truncated to the room left.
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

    fn user(text: &str) -> ExchangeMessage {
        ExchangeMessage {
            is_request: true,
            text: text.to_owned(),
        }
    }

    fn other(text: &str) -> ExchangeMessage {
        ExchangeMessage {
            is_request: false,
            ..user(text)
        }
    }

    #[test]
    fn query_contains_current_exchange() {
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
    fn short_reply_is_queried_with_the_message_before() {
        let said = [
            user("Book it."),
            other("The 10:30 train to Riga?"),
            other(""),
            user("yes please"),
        ];
        assert_eq!(query(&said), "yes please\nThe 10:30 train to Riga?");
    }

    #[test]
    fn long_request_leaves_room_for_later_messages() {
        let said = [user(&"ä".repeat(9_000)), other(&"b".repeat(9_000))];
        let query = query(&said);
        assert!(query.len() <= MemoryLimits::QUERY_BYTES, "{}", query.len());
        assert!(query.ends_with("bbb") && query.starts_with("äää"));
    }
}
