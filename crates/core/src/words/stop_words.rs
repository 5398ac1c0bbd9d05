//! English stop words, and other words without information about a subject.

use std::sync::LazyLock;

use super::languages::is_common;
use super::{Words, words_of};

/// English stop words. Contractions are listed without their second half, see [`is_ending`].
static STOP_WORDS: Words = LazyLock::new(|| words_of("stop"));

/// First halves of contractions such as "won't" and "let's", which have another meaning alone.
static BEFORE_APOSTROPHE: Words = LazyLock::new(|| words_of("before_apostrophe"));

/// Whether the word is a stop word. It must be folded.
pub fn is_stop_word(folded: &str) -> bool {
    STOP_WORDS.contains(folded)
}

/// Words of requests, replies and courtesies, in several languages.
static COURTESIES: Words = LazyLock::new(|| words_of("courtesy"));

/// Whether the word carries information about the subject of a message. It must be folded.
pub fn is_telling(folded: &str) -> bool {
    !is_stop_word(folded) && !is_common(folded) && !COURTESIES.contains(folded)
}

/// Whether the word, such as `don`, only has a meaning before an apostrophe.
pub(super) fn is_begun(folded: &str) -> bool {
    BEFORE_APOSTROPHE.contains(folded)
}

/// Whether the word is an ending after an apostrophe: the possessive, a short verb or "not".
pub(super) fn is_ending(folded: &str) -> bool {
    matches!(folded, "d" | "ll" | "m" | "re" | "s" | "t" | "ve")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stop_words_exclude_words_with_other_meanings() {
        assert_eq!(STOP_WORDS.len(), 124);
        assert!(is_stop_word("a") && is_stop_word("yourselves") && is_begun("don"));
        for word in ["will", "can", "may", "us", "name", "like", "many", "won"] {
            assert!(!is_stop_word(word), "{word}");
        }
    }
}
