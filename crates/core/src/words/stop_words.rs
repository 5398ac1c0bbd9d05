//! English words that a query has because it is a sentence. They say nothing about its
//! subject.

use std::sync::LazyLock;

use super::languages::is_common;
use super::{Words, words_of};

/// English stop words; contractions are in it without their second half, which is [`is_ending`].
static STOP_WORDS: Words = LazyLock::new(|| words_of("stop"));

/// What stands before the apostrophe of "won't" and "let's"; alone these are words.
static BEFORE_APOSTROPHE: Words = LazyLock::new(|| words_of("before_apostrophe"));

/// True of a stop word. The word must be folded.
pub fn is_stop_word(folded: &str) -> bool {
    STOP_WORDS.contains(folded)
}

/// Words of requests, replies and courtesies, in several languages.
static COURTESIES: Words = LazyLock::new(|| words_of("courtesy"));

/// False of a word that a message has whatever it is about. The word must be folded.
pub fn is_telling(folded: &str) -> bool {
    !is_stop_word(folded) && !is_common(folded) && !COURTESIES.contains(folded)
}

/// True of a beginning that only has a meaning before an apostrophe, such as `don`.
pub(super) fn is_begun(folded: &str) -> bool {
    BEFORE_APOSTROPHE.contains(folded)
}

/// True of an ending behind an apostrophe: the possessive, a shortened verb or "not".
pub(super) fn is_ending(folded: &str) -> bool {
    matches!(folded, "d" | "ll" | "m" | "re" | "s" | "t" | "ve")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stop_words_are_found_and_words_that_name_things_are_not() {
        assert_eq!(STOP_WORDS.len(), 124);
        assert!(is_stop_word("a") && is_stop_word("yourselves") && is_begun("don"));
        for word in ["will", "can", "may", "us", "name", "like", "many", "won"] {
            assert!(!is_stop_word(word), "{word}");
        }
    }
}
