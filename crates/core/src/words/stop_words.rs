//! The English words that a query has because it is a sentence: they say nothing about
//! what is asked for.

use std::sync::LazyLock;

use super::{Words, words_of};

/// The English stop words of Snowball (M. F. Porter and R. Boulton,
/// snowballstem.org/algorithms/english/stop.txt), the contractions without their second half,
/// which is [`is_ending`]. Words that can name a thing ("will", "can", "us") are not in it.
static STOP_WORDS: Words = LazyLock::new(|| {
    words_of(
        "a about above after again against all am an and any are as at be because been before \
         being below between both but by cannot could did do does doing down during each few \
         for from further had has have having he her here hers herself him himself his how i \
         if in into is it its itself me more most my myself no nor not of off on once only or \
         other ought our ours ourselves out over own same she should so some such than that \
         the their theirs them themselves then there these they this those through to too \
         under until up very was we were what when where which while who whom why with would \
         you your yours yourself yourselves",
    )
});

/// What stands before the apostrophe of "won't" and "let's"; alone these are words.
const BEFORE_APOSTROPHE: &[&str] = &[
    "aren", "can", "couldn", "didn", "doesn", "don", "hadn", "hasn", "haven", "isn", "let",
    "mustn", "shan", "shouldn", "wasn", "weren", "won", "wouldn",
];

/// True of a word that says nothing about what is asked for. It has to be folded.
pub fn is_stop_word(folded: &str) -> bool {
    STOP_WORDS.contains(folded)
}

/// True of what stands before an apostrophe and is nothing without it.
pub(super) fn is_begun(folded: &str) -> bool {
    BEFORE_APOSTROPHE.contains(&folded)
}

/// True of what stands behind an apostrophe: the possessive, a shortened verb or "not".
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
