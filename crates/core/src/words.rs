//! Words of a text as the full-text index sees them, so that what the index found can be
//! looked at again in here; and the forms in which two texts are held against each other.

pub mod ranking;
mod stop_words;

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::LazyLock;

use rust_stemmers::{Algorithm, Stemmer};
use unicode_normalization::UnicodeNormalization;

pub use stop_words::is_stop_word;

/// Shorter words have no ending to take off: FTS5's own stemmer leaves them as well.
const STEM_LETTERS_MIN: usize = 3;
/// Longer ones are no words: FTS5's own stemmer leaves them as well.
const STEM_LETTERS_MAX: usize = 63;

static ENGLISH: LazyLock<Stemmer> = LazyLock::new(|| Stemmer::create(Algorithm::English));

/// One word of a text: a run of letters and digits, as FTS5's `unicode61` cuts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token<'a> {
    /// The word as it is written. The index folds and stems it itself.
    pub word: &'a str,
    /// Where it begins in the text, in bytes.
    pub start: usize,
}

impl<'a> Token<'a> {
    /// The word in lower case and without diacritics.
    pub fn folded(&self) -> Cow<'a, str> {
        fold(self.word)
    }

    /// The word without its ending.
    pub fn stem(&self) -> Cow<'a, str> {
        match self.folded() {
            Cow::Borrowed(folded) => stem(folded),
            Cow::Owned(folded) => Cow::Owned(stem(&folded).into_owned()),
        }
    }

    /// Where the text goes on behind it, in bytes.
    fn end(&self) -> usize {
        self.start + self.word.len()
    }
}

/// The words of a text, in order.
pub fn tokens(text: &str) -> impl Iterator<Item = Token<'_>> {
    let mut rest = 0;
    let words = std::iter::from_fn(move || {
        let start = skip(text, rest, |c| !c.is_alphanumeric());
        rest = skip(text, start, is_inside_word);
        (start < rest).then(|| Token {
            word: &text[start..rest],
            start,
        })
    });
    // Some marks count as letters; where nothing else stands, no word does.
    words.filter(|token| token.word.is_ascii() || !token.folded().is_empty())
}

/// The word without its English ending, by the algorithm that is called English or Porter 2
/// (M. F. Porter, "Snowball: A language for stemming algorithms", 2001). FTS5 has its
/// predecessor; this one also finds "week" in "weekly". A word with other
/// characters than a to z stays as it is. The word has to be [folded](Token::folded).
pub fn stem(folded: &str) -> Cow<'_, str> {
    let has_stem = (STEM_LETTERS_MIN..=STEM_LETTERS_MAX).contains(&folded.len())
        && folded.bytes().all(|b| b.is_ascii_lowercase());
    if has_stem {
        ENGLISH.stem(folded)
    } else {
        Cow::Borrowed(folded)
    }
}

/// The folded words with one space between them: texts that differ only in case,
/// diacritics, punctuation or blanks are the same in this form.
pub fn normalised(text: &str) -> String {
    let mut joined = String::with_capacity(text.len());
    for token in tokens(text) {
        if !joined.is_empty() {
            joined.push(' ');
        }
        joined.push_str(&token.folded());
    }
    joined
}

/// The numbers and the negations of a text, in their order. Two texts in which they differ
/// do not say the same, however alike they are otherwise: "5 dollars" is not "50 dollars",
/// and who likes a thing is not who does not like it. A number keeps its sign and what
/// stands between its digits ("-1.5", "12:30"); every "…n't" is a "not".
pub fn numbers_and_negations(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    // Of a number, where it goes on if the next word belongs to it.
    let mut number_end = None;
    let mut before = None;
    for token in tokens(text) {
        let folded = token.folded();
        let is_number = folded.starts_with(|c: char| c.is_numeric());
        if is_number && number_end.is_some_and(|end| continues_number(&text[end..token.start])) {
            if let (Some(number), Some(end)) = (found.last_mut(), number_end) {
                let number: &mut String = number;
                number.push_str(&text[end..token.start]);
                number.push_str(&folded);
            }
        } else if folded.contains(char::is_numeric) {
            let is_negative = text[..token.start]
                .strip_suffix(['-', '−'])
                .is_some_and(|rest| {
                    !rest.ends_with(|c: char| c.is_alphanumeric() || c == '-' || c == '−')
                });
            found.push(format!("{}{folded}", if is_negative { "-" } else { "" }));
        } else if is_short_not(text, before, &token) || SAYS_NOT.contains(&*folded) {
            found.push("not".to_owned());
        } else if NEGATIONS.contains(&*folded) || NUMBERS.contains(&*folded) {
            found.push(folded.into_owned());
        }
        number_end = is_number.then(|| token.end());
        before = Some(token);
    }
    found
}

/// True where this stands between the digits of one number.
fn continues_number(between: &str) -> bool {
    matches!(between, "." | "," | ":" | "/" | "-" | "'" | "’")
}

/// True of the `t` of "don't".
fn is_short_not(text: &str, before: Option<Token<'_>>, token: &Token<'_>) -> bool {
    let Some(before) = before else { return false };
    let between = &text[before.end()..token.start];
    token.word.eq_ignore_ascii_case("t")
        && before.word.ends_with(['n', 'N'])
        && is_apostrophe(between)
}

/// True of the signs that people type in "don't".
fn is_apostrophe(between: &str) -> bool {
    matches!(between, "'" | "’" | "‘" | "ʼ" | "`" | "´")
}

/// A list of words.
type Words = LazyLock<HashSet<&'static str>>;

/// The list of this name in `lists.txt`.
fn words_of(name: &str) -> HashSet<&'static str> {
    let rows = include_str!("words/lists.txt").lines();
    let rows = rows.filter_map(|row| row.split_once(' '));
    rows.filter(|(list, _)| *list == name)
        .flat_map(|(_, words)| words.split(' '))
        .collect()
}

/// "Not" in one word.
static SAYS_NOT: Words = LazyLock::new(|| words_of("not"));

/// Words that negate a sentence, in several languages.
static NEGATIONS: Words = LazyLock::new(|| words_of("negation"));

/// Numbers in words.
static NUMBERS: Words = LazyLock::new(|| words_of("number"));

/// The first index, from this one on, with a character of another sort.
fn skip(text: &str, from: usize, is_of_sort: impl Fn(char) -> bool) -> usize {
    let bytes = text.as_bytes();
    let mut index = from;
    // Nearly all of most texts is ASCII, where a byte is a character.
    while bytes
        .get(index)
        .is_some_and(|b| b.is_ascii() && is_of_sort(char::from(*b)))
    {
        index += 1;
    }
    match bytes.get(index) {
        Some(b) if !b.is_ascii() => {
            let length = text[index..].find(|c| !is_of_sort(c));
            length.map_or(text.len(), |length| index + length)
        }
        _ => index,
    }
}

/// A mark that stands over or under a letter belongs to its word.
fn is_inside_word(c: char) -> bool {
    c.is_alphanumeric() || is_diacritic(c)
}

/// The blocks of combining diacritical marks. Vowel signs of other scripts are none of
/// them: without those a word is another word.
fn is_diacritic(c: char) -> bool {
    matches!(c, '\u{300}'..='\u{36f}' | '\u{1ab0}'..='\u{1aff}' | '\u{1dc0}'..='\u{1dff}'
        | '\u{20d0}'..='\u{20ff}' | '\u{fe20}'..='\u{fe2f}')
}

fn fold(word: &str) -> Cow<'_, str> {
    if word
        .bytes()
        .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
    {
        return Cow::Borrowed(word);
    }
    if word.is_ascii() {
        return Cow::Owned(word.to_ascii_lowercase());
    }
    let lower = || word.chars().flat_map(char::to_lowercase);
    let folded: String = lower().nfd().filter(|c| !is_diacritic(*c)).nfc().collect();
    match folded.chars().all(is_inside_word) {
        true => Cow::Owned(folded),
        // Some letters exist in one piece only outside of this form, and in it would be two
        // words: the nuktas of Devanagari, for one.
        false => Cow::Owned(lower().filter(|c| !is_diacritic(*c)).collect()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn folded(text: &str) -> Vec<Cow<'_, str>> {
        tokens(text).map(|token| token.folded()).collect()
    }

    #[test]
    fn words_are_runs_of_letters_and_digits_without_case_and_diacritics() {
        for (text, words) in [
            ("", vec![]),
            (" … — !", vec![]),
            ("It's 9.99", vec!["it", "s", "9", "99"]),
            ("snake_case", vec!["snake", "case"]),
            ("Crème BRÛLÉE, Öl", vec!["creme", "brulee", "ol"]),
            ("cre\u{300}me", vec!["creme"]),
            ("İstanbul Straße", vec!["istanbul", "straße"]),
            ("Ёлка 東京", vec!["елка", "東京"]),
            ("한국어 2½", vec!["한국어", "2½"]),
        ] {
            assert_eq!(folded(text), words, "{text}");
        }
    }

    #[test]
    fn a_word_stands_where_its_token_says() {
        let text = "Ça va, «Zoë»?";
        for token in tokens(text) {
            assert!(text[token.start..].starts_with(token.word));
        }
        let words: Vec<_> = tokens(text).map(|token| token.word).collect();
        assert_eq!(words, ["Ça", "va", "Zoë"]);
    }

    #[test]
    fn only_english_letters_lose_their_ending() {
        for (word, stemmed) in [
            ("weekly", "week"),
            ("weeks", "week"),
            ("flies", "fli"),
            ("dying", "die"),
            ("is", "is"),
            ("35", "35"),
            ("a1cs", "a1cs"),
            ("häuser", "häuser"),
        ] {
            assert_eq!(stem(word), stemmed, "{word}");
        }
        let long = "s".repeat(STEM_LETTERS_MAX + 1);
        assert_eq!(stem(&long), long);
    }

    #[test]
    fn texts_that_say_the_same_in_other_letters_have_one_normal_form() {
        assert_eq!(
            normalised("  Prefers CRÈME, not   milk! "),
            "prefers creme not milk"
        );
        assert_eq!(normalised("…"), "");
        assert_ne!(normalised("not, milk"), normalised("note milk"));
    }

    #[test]
    fn a_number_or_a_not_keeps_texts_apart() {
        for (one, other) in [
            ("costs 5 dollars", "costs 50 dollars"),
            ("costs 1.5 dollars", "costs 5.1 dollars"),
            ("costs 1.5 dollars", "costs 1,5 dollars"),
            ("costs five dollars", "costs fifty dollars"),
            ("likes tea", "does not like tea"),
            ("likes tea", "doesn’t like tea"),
            ("likes tea", "never likes tea"),
            ("mag Tee", "mag keinen Tee"),
            ("from 5 to 10", "from 10 to 5"),
            ("at 12:30", "at 12:45"),
            ("at -5 degrees", "at 5 degrees"),
            ("order A17", "order A18"),
        ] {
            assert_ne!(
                numbers_and_negations(one),
                numbers_and_negations(other),
                "{one}; {other}"
            );
        }
    }

    #[test]
    fn what_neither_counts_nor_denies_keeps_nothing_apart() {
        for (one, other) in [
            ("does not like tea", "doesn't like tea at all"),
            ("can't come", "cannot come"),
            ("DON’T call", "dont call"),
            ("5 dollars", "5 Dollars."),
            ("2024-05-15", "on 2024-05-15,"),
            ("version-5", "version 5"),
            ("likes tea", "she likes tea, too"),
        ] {
            assert_eq!(
                numbers_and_negations(one),
                numbers_and_negations(other),
                "{one}; {other}"
            );
        }
        assert_eq!(
            numbers_and_negations("No: 1.5, -2 and won't"),
            ["no", "1.5", "-2", "not"]
        );
    }

    #[test]
    fn a_mark_on_nothing_is_no_word() {
        assert_eq!(folded("\u{1dd3} a \u{1dd3}b"), ["a", "b"]);
    }

    proptest! {
        #[test]
        fn any_text_has_words(text in ".{0,200}") {
            let normal = normalised(&text);
            prop_assert_eq!(&normalised(&normal), &normal);
            prop_assert!(normal.split(' ').count() >= tokens(&text).count());
            for token in tokens(&text) {
                prop_assert!(!token.word.is_empty() && !token.stem().is_empty());
            }
            numbers_and_negations(&text);
        }

        #[test]
        fn a_stem_begins_like_its_word(word in "[a-z]{1,12}") {
            let stem = stem(&word);
            prop_assert_eq!(&stem[..1], &word[..1]);
            let keeps_second = word.len() < 2 || word.as_bytes()[1] == b'y';
            prop_assert!(keeps_second || stem.as_bytes().get(1) == word.as_bytes().get(1));
        }
    }
}
