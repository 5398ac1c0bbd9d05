//! Comparison of the texts of facts.
//!
//! Two facts are merged by their text only if they differ in nothing but case, whitespace and final
//! punctuation. Any other sign may reverse a statement: "if ready" and "if !ready", "A → B" and "A
//! ← B", "schön" and "schon".

use memoird_core::words::stem;
use unicode_normalization::UnicodeNormalization as _;

/// Version of [`key`].
///
/// Increase it with every change: stored keys of another version are recomputed.
pub(crate) const VERSION: i64 = 1;

/// Final punctuation. Excludes question marks, because a question states nothing.
const ENDS: &str = ".!…,;。！．，；、।॥۔،؛։።";

/// ASCII punctuation after which [`ENDS`] ends a text.
///
/// After any other ASCII punctuation it is part of the text, as in "../".
const CLOSING: &str = ")]}\"'*%";

/// Words that near-duplicates may differ in.
const ARTICLES: [&str; 3] = ["a", "an", "the"];

/// Whether two texts differ only in case, whitespace and final punctuation.
///
/// Composed and decomposed forms of a character are equal.
pub(crate) fn same(one: &str, other: &str) -> bool {
    let (one, other) = (spelled(one), spelled(other));
    // "STRASSE" is "Straße" in capitals, but "Masse" differs from "Maße".
    small(&one) == small(&other) || one == other.to_uppercase() || one.to_uppercase() == other
}

/// Returns a key that is equal for all texts that are the [`same`], and for few others.
pub(crate) fn key(text: &str) -> String {
    small(&spelled(text)).to_uppercase().nfc().collect()
}

/// Returns the text in lower case, with single blanks and without final punctuation.
///
/// Texts with equal forms are the [`same`].
pub(crate) fn form(text: &str) -> String {
    small(&spelled(text))
}

/// Whether two texts are near-duplicates: the same words and signs in the same order.
///
/// English endings, articles and the punctuation after words may differ. Similar vectors alone
/// never make a near-duplicate.
pub(crate) fn is_near(one: &str, other: &str) -> bool {
    let stems = |text: &str| -> Vec<String> {
        let words = words(text).into_iter();
        words
            .filter(|word| !ARTICLES.contains(&&**word))
            .map(|word| stem(&word).into_owned())
            .collect()
    };
    let (one, other) = (stems(one), stems(other));
    !one.is_empty() && one == other
}

/// Whether the words of `piece` are consecutive words of `whole`, with the same signs.
pub(crate) fn is_piece(piece: &str, whole: &str) -> bool {
    let (piece, whole) = (words(piece), words(whole));
    let says_something = piece
        .iter()
        .any(|word| word.contains(char::is_alphanumeric));
    says_something && whole.windows(piece.len()).any(|run| run == piece)
}

/// Whether `whole` has the signs of `piece`. "x = 0" and "x != 0" do not agree.
///
/// False if a word of `piece` occurs in `whole` only with other signs, or if `whole` lacks a sign
/// of `piece`.
pub(crate) fn signs_agree(piece: &str, whole: &str) -> bool {
    let whole = words(whole);
    let bare = |word: &str| word.trim_matches(|c: char| !c.is_alphanumeric()).to_owned();
    words(piece).iter().all(|word| {
        whole.contains(word)
            || is_plain(word)
                && !whole
                    .iter()
                    .any(|other| !is_plain(other) && bare(other) == *word)
    })
}

/// Splits a text at whitespace into lower-case words without the punctuation after them.
fn words(text: &str) -> Vec<String> {
    let words = text.split_whitespace().map(form);
    words.filter(|word| !word.is_empty()).collect()
}

fn is_plain(word: &str) -> bool {
    word.chars()
        .all(|c| c.is_alphanumeric() || matches!(c, '\'' | '’'))
}

/// Returns the text in NFC, with single blanks and without final punctuation.
fn spelled(text: &str) -> String {
    let mut spelled = String::with_capacity(text.len());
    for word in text.split_whitespace() {
        if !spelled.is_empty() {
            spelled.push(' ');
        }
        spelled.extend(word.nfc());
    }
    spelled.truncate(without_end(&spelled).len());
    spelled
}

/// Removes final punctuation.
fn without_end(text: &str) -> &str {
    let body = text.trim_end_matches(|c| ENDS.contains(c));
    let end = &text[body.len()..];
    let is_loud = end.contains(['!', '！']);
    // French puts a blank before an exclamation mark. Any other sign after a blank is a word of its
    // own.
    let body = match body.strip_suffix(' ') {
        Some(before) if end.chars().all(|c| c == '!') => before,
        Some(_) => return text,
        None => body,
    };
    let is_end = |last: char| match last {
        // An exclamation mark after a number may be a factorial.
        _ if last.is_numeric() => !is_loud,
        _ => !last.is_ascii_punctuation() || CLOSING.contains(last),
    };
    if body.chars().next_back().is_some_and(is_end) {
        body
    } else {
        text
    }
}

/// Converts to lower case. A Turkish capital İ becomes a plain i, without the combining dot.
fn small(text: &str) -> String {
    text.to_lowercase().replace("i\u{307}", "i")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Pairs that differ only in case, whitespace and final punctuation.
    const SAME: [(&str, &str); 16] = [
        ("ships on friday", "Ships on  FRIDAY!"),
        ("ships on friday", " ships on\tfriday.\n"),
        ("ships on friday", "ships on friday !"),
        ("ships on friday...", "ships on friday…"),
        ("it costs 5 dollars", "It costs 5 dollars."),
        ("it costs 5", "it costs 5."),
        ("(likes tea)", "(Likes tea)."),
        ("meets José in a café", "meets Jose\u{301} in a cafe\u{301}"),
        ("Straße 5", "STRASSE 5"),
        ("große Straße", "GROẞE STRAẞE"),
        ("KÖYDE ÇAY İÇER", "köyde çay içer"),
        ("IŞIK", "ışık"),
        ("Анна любит чай", "АННА ЛЮБИТ ЧАЙ!"),
        ("ΟΔΟΣ", "οδος"),
        ("私はお茶が好きです", "私はお茶が好きです。"),
        ("चाय पसंद है", "चाय पसंद है।"),
    ];

    /// Pairs that differ in more than that.
    const APART: [(&str, &str); 51] = [
        ("deploy if !ready", "deploy if ready"),
        ("user_id != 0", "user_id = 0"),
        ("x ∉ S", "x ∈ S"),
        ("A → B", "A ← B"),
        ("A ⇒ B", "A ⇐ B"),
        ("T is –5", "T is 5"),
        ("T is −5", "T is 5"),
        ("T is -5", "T is 5"),
        ("loss (10)", "loss 10"),
        ("10² m", "102 m"),
        ("H₂O", "H2O"),
        ("5' tall", "5\" tall"),
        ("5′ tall", "5″ tall"),
        ("schön", "schon"),
        ("Maßen", "Massen"),
        ("sık", "sik"),
        ("ano", "año"),
        ("bò", "bơ"),
        ("di ung bo", "dị ứng bò"),
        ("é", "è"),
        ("его", "ёго"),
        ("a < b", "a > b"),
        ("a && b", "a || b"),
        ("~done", "done"),
        ("¬done", "done"),
        ("not_done", "not done"),
        ("1.5 l", "15 l"),
        ("1,5 l", "1.5 l"),
        ("12:30", "12.30"),
        ("3–5", "3 5"),
        ("3-5", "35"),
        ("½", "1/2"),
        ("№5", "no5"),
        ("likes 🍎", "likes 🍌"),
        ("likes tea 🍵", "likes tea"),
        ("👍", "👎"),
        ("C++", "C"),
        ("C#", "C"),
        ("5 %", "5 €"),
        ("5 %", "5 ‰"),
        ("5°", "5"),
        ("5!", "5"),
        ("likes tea?", "likes tea"),
        ("~~likes~~ tea", "likes tea"),
        ("\"likes\" tea", "likes tea"),
        ("the nowhere", "the now here"),
        ("rm -r", "rm r"),
        ("cd ..", "cd ."),
        ("git add .", "git add"),
        ("x̄ is 5", "x is 5"),
        ("ｔｅａ", "tea"),
    ];

    #[test]
    fn case_whitespace_and_final_punctuation_are_ignored() {
        for (one, other) in SAME {
            assert!(same(one, other) && same(other, one), "{one} / {other}");
            assert_eq!(key(one), key(other), "{one} / {other}");
        }
    }

    #[test]
    fn every_other_sign_distinguishes_texts() {
        for (one, other) in APART {
            assert!(!same(one, other) && !same(other, one), "{one} / {other}");
            assert_ne!(form(one), form(other), "{one} / {other}");
            assert!(
                !is_piece(one, other) || !is_piece(other, one),
                "{one} / {other}"
            );
        }
    }

    #[test]
    fn near_duplicates_have_same_words_in_same_order() {
        for (one, other) in [
            ("Ann likes the tea", "ann likes tea."),
            ("The meeting is on Fridays!", "meetings is on Friday"),
            ("In May, she moves", "in May she moves"),
        ] {
            assert!(is_near(one, other), "{one} / {other}");
        }
        for (one, other) in [
            ("Ann likes tea", "Ann enjoys infusion"),
            ("Ann lives in Riga", "Ann lives in Oslo"),
            ("Ann likes tea", "Ann's sister likes tea"),
            ("Ann likes tea", "Ann likes no tea"),
            ("from Rome to Riga", "to Rome from Riga"),
            ("Ann pays Bob", "Bob pays Ann"),
            ("deploy if ready", "deploy unless ready"),
            ("ships on friday", "ships on friday 13"),
            ("…", "!"),
            ("", ""),
        ] {
            assert!(
                !is_near(one, other) && !is_near(other, one),
                "{one} / {other}"
            );
        }
        for (one, other) in APART {
            assert!(!is_near(one, other), "{one} / {other}");
        }
    }

    #[test]
    fn piece_must_have_the_same_signs() {
        let whole = "deploy if !ready, at 12:30 or x != 0";
        for piece in ["deploy", "if !ready", "12:30 or", "x != 0."] {
            assert!(
                is_piece(piece, whole) && signs_agree(piece, whole),
                "{piece}"
            );
        }
        for piece in ["if ready", "at 12", "x = 0", "ready"] {
            assert!(!is_piece(piece, whole), "{piece}");
        }
        for piece in ["deploy if ready", "x = 0"] {
            assert!(!signs_agree(piece, whole), "{piece}");
        }
        assert!(
            signs_agree("deploys at 12:30", whole),
            "endings are compared elsewhere"
        );
        assert!(!is_piece("…", "…"));
    }

    proptest! {
        #[test]
        fn same_texts_have_equal_keys(text in ".{0,80}", ends in "[.!…。 ]{0,3}") {
            for other in [
                text.to_uppercase(),
                text.to_lowercase(),
                format!(" {}", text.replace(' ', "  ")),
                format!("{text}{ends}"),
            ] {
                if same(&text, &other) {
                    prop_assert_eq!(key(&text), key(&other), "{:?} / {:?}", text, other);
                }
            }
            prop_assert!(same(&text, &text));
            let form = form(&text);
            prop_assert_eq!(super::form(&form), form);
        }
    }
}
