//! Words of a text for the indexes of memories and transcripts.
//!
//! Only this module splits text into words ([`tokens`]), determines the comparable forms of a word
//! ([`Token::forms`]) and ranks query terms ([`ranking`]), so that indexes, queries and comparisons
//! treat words the same.
//!
//! FTS5 gets preprocessed words (`tokenize = 'ascii'` splits at whitespace). The languages of a
//! subject's memories, or of a tenant's turns, are stored with them, and a query is stemmed in each
//! of them, because two words do not reveal their language.

mod fold;
mod languages;
pub mod ranking;
mod segments;
mod spellings;
mod stop_words;

use std::collections::HashSet;
use std::sync::LazyLock;

pub use fold::decimal;
pub use languages::{Languages, stem};
pub use segments::{Token, Tokens, beginning, tokens};
pub use stop_words::{is_stop_word, is_telling};

#[cfg(test)]
use fold::is_picture;
use segments::runs;
use spellings::spelled;

/// Version of splitting, folding and stemming. Indexes of another version are rebuilt.
pub const VERSION: i64 = 4;

/// Appends the index words of a text to `words`, each after a space, and returns its language.
///
/// Forms only contain letters, digits, marks and pictographs, which FTS5's ASCII tokenizer treats
/// as one word. Texts not shown to be English also get the [beginnings](ranking::Term::beginnings)
/// of their words: stemmers rarely remove all endings, and most languages have none.
pub fn add_index_words(text: &str, words: &mut String) -> Languages {
    let (language, is_english) = Languages::told_of(text);
    for token in spelled(text) {
        // Range of the last added beginning.
        let mut before = 0..0;
        token.forms(language, |form| {
            words.push(' ');
            words.push_str(form);
            let begins = (!is_english).then(|| beginning(form)).flatten();
            if let Some(begins) = begins.filter(|begins| *begins != &words[before.clone()]) {
                words.push(' ');
                words.push_str(BEGINS);
                before = words.len()..words.len() + begins.len();
                words.push_str(begins);
            }
        });
    }
    language
}

/// Whether the index contains beginnings of the text's words.
fn has_beginnings(text: &str) -> bool {
    !Languages::told_of(text).1
}

/// Prefix of word beginnings in the index. It does not occur in folded words.
pub const BEGINS: &str = "\u{200d}";

/// Joins the folded words with single spaces.
///
/// Texts that differ only in case, diacritics, punctuation or whitespace have the same form.
pub fn normalised(text: &str) -> String {
    let mut joined = String::with_capacity(text.len());
    for token in runs(text) {
        if !joined.is_empty() {
            joined.push(' ');
        }
        joined.push_str(&token.folded());
    }
    joined
}

/// Returns the numbers and negations of a text, in order.
///
/// Texts that differ in them have different meanings, however similar they are: "5 dollars" is not
/// "50 dollars", and "likes" is not "does not like". A number includes its sign and the characters
/// between its digits ("-1.5", "12:30"). Every "…n't" yields a "not".
pub fn numbers_and_negations(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    // End of the last number, which the next word may continue.
    let mut number_end = None;
    let mut before = None;
    for token in runs(text) {
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
        } else if !folded.is_ascii() {
            let times = |not: &&str| folded.matches(not).count();
            let count = NEGATIONS_WITHIN.iter().map(times).sum();
            found.extend(std::iter::repeat_n("not".to_owned(), count));
        }
        number_end = is_number.then(|| token.end());
        before = Some(token);
    }
    found
}

/// Whether two texts have the same negations. Numbers with digits are ignored.
pub fn deny_alike(one: &str, other: &str) -> bool {
    let denials = |text| {
        let mut found = numbers_and_negations(text);
        found.retain(|found| !found.contains(char::is_numeric));
        found
    };
    denials(one) == denials(other)
}

/// Returns the non-word signs of a text that change its meaning, in order.
///
/// "C" is not "C++", and "5 %" is not "5 €". Punctuation, quotes and pictographs are not included.
pub fn telling_signs(text: &str) -> String {
    let is_telling = |sign: &char| TELLING_SIGNS.contains(*sign);
    text.chars().filter(is_telling).collect()
}

/// Signs in names, amounts and comparisons.
const TELLING_SIGNS: &str = "+#%‰°<>=≠≤≥±×÷$¢£¤¥€₦₩₪₫₱₴₸₹₺₼₽₾₿";

/// Whether `between` may separate the digits of one number.
fn continues_number(between: &str) -> bool {
    matches!(between, "." | "," | ":" | "/" | "-" | "'" | "’")
}

/// Whether the token is the `t` of "don't".
fn is_short_not(text: &str, before: Option<Token<'_>>, token: &Token<'_>) -> bool {
    let Some(before) = before else { return false };
    let between = &text[before.end()..token.start];
    token.word.eq_ignore_ascii_case("t")
        && before.word.ends_with(['n', 'N'])
        && is_apostrophe(between)
}

/// Whether this is one of the signs typed as the apostrophe of "don't".
fn is_apostrophe(between: &str) -> bool {
    matches!(between, "'" | "’" | "‘" | "ʼ" | "`" | "´")
}

type Words = LazyLock<HashSet<&'static str>>;

/// Loads the list of this name from `lists.txt`.
fn words_of(name: &str) -> HashSet<&'static str> {
    let rows = include_str!("words/lists.txt")
        .lines()
        .filter_map(|row| row.split_once(' '));
    rows.filter(|(list, _)| *list == name)
        .flat_map(|(_, words)| words.split(' '))
        .collect()
}

/// Words that mean "not".
static SAYS_NOT: Words = LazyLock::new(|| words_of("not"));

/// Words that negate a sentence, in several languages.
static NEGATIONS: Words = LazyLock::new(|| words_of("negation"));

/// Negations that occur inside words.
static NEGATIONS_WITHIN: Words = LazyLock::new(|| words_of("negation_within"));

static NUMBERS: Words = LazyLock::new(|| words_of("number"));

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use proptest::prelude::*;

    use super::*;

    fn folded(text: &str) -> Vec<Cow<'_, str>> {
        tokens(text).map(|token| token.folded()).collect()
    }

    #[test]
    fn telling_signs_exclude_punctuation_and_pictographs() {
        for (text, signs) in [
            ("likes C++ and C#, not C.", "++#"),
            ("\"5 %\" — not 5\u{a0}€!", "%€"),
            ("a < b >= c", "<>="),
            ("- **tea**; _cake_ (now) 🍵…", ""),
        ] {
            assert_eq!(telling_signs(text), signs, "{text}");
        }
    }

    #[test]
    fn tokens_are_folded_runs_of_letters_and_digits() {
        for (text, words) in [
            ("", vec![]),
            (" … — !", vec![]),
            ("It's 9.99", vec!["it", "s", "9", "99"]),
            ("snake_case", vec!["snake", "case"]),
            ("Crème BRÛLÉE, Öl", vec!["creme", "brulee", "ol"]),
            ("cre\u{300}me", vec!["creme"]),
            ("İstanbul Straße", vec!["istanbul", "strasse"]),
            ("Łódź cœur Ærø ışık", vec!["lodz", "coeur", "aero", "isik"]),
            ("२०१८ ٢٠١٨ ۱۳۹۷ ๒๕๖๑", vec!["2018", "2018", "1397", "2561"]),
            ("૨૦૧૯માં GitHubમાં", vec!["2019", "માં", "github", "માં"]),
            ("میخواهم می\u{200c}روم", vec!["ميخواهم", "مي", "روم"]),
            ("tea🍵 ☕️, 👍🏽!", vec!["tea", "🍵", "☕", "👍"]),
            ("Ёлка ΟΔΟΣ мой", vec!["елка", "οδοσ", "мой"]),
            ("ｆｕｌｌ ﬁt 2½", vec!["full", "fit", "2½"]),
            ("東京は雨", vec!["东", "东京", "京", "京は", "は雨", "雨"]),
            ("我用Python写", vec!["我", "我用", "用", "python", "写"]),
            ("서울에 물", vec!["서", "서울", "울에", "물"]),
            ("ฉันชอบขนม", vec!["ฉัน", "ชอบ", "ขนม"]),
            ("बिल्ली", vec!["बिल्लि"]),
            ("كِتَاب", vec!["كتاب"]),
            ("שָׁלוֹם", vec!["שלום"]),
        ] {
            assert_eq!(folded(text), words, "{text}");
        }
    }

    #[test]
    fn token_start_is_offset_of_its_word() {
        let text = "Ça va, «Zoë»?";
        for token in tokens(text) {
            assert!(text[token.start..].starts_with(token.word));
        }
        let words: Vec<_> = tokens(text).map(|token| token.word).collect();
        assert_eq!(words, ["Ça", "va", "Zoë"]);
    }

    #[test]
    fn decomposed_letters_fold_like_composed_ones() {
        for (one, other) in [
            ("\u{1109}\u{1165}\u{110b}\u{116e}\u{11af}", "서울"),
            ("か\u{3099}くせい", "がくせい"),
            ("ｶﾞｸｾｲ", "ガクセイ"),
            ("Gro\u{308}ße", "GRÖSSE"),
        ] {
            assert_eq!(folded(one), folded(other), "{one}");
        }
    }

    #[test]
    fn stem_changes_only_words_of_ascii_letters() {
        for (word, stemmed) in [
            ("weekly", "week"),
            ("weeks", "week"),
            ("flies", "fli"),
            ("dying", "die"),
            ("is", "is"),
            ("35", "35"),
            ("a1cs", "a1cs"),
            ("łodzi", "łodzi"),
        ] {
            assert_eq!(stem(word), stemmed, "{word}");
        }
        let long = "s".repeat(64);
        assert_eq!(stem(&long), long);
    }

    #[test]
    fn normal_form_ignores_case_diacritics_and_punctuation() {
        assert_eq!(
            normalised("  Prefers CRÈME, not   milk! "),
            "prefers creme not milk"
        );
        assert_eq!(normalised("GROẞE Straße"), "grosse strasse");
        assert_eq!(normalised("…"), "");
        assert_ne!(normalised("not, milk"), normalised("note milk"));
    }

    #[test]
    fn numbers_and_negations_distinguish_texts() {
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
    fn texts_with_equal_numbers_and_negations_match() {
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
    fn combining_mark_without_base_is_no_word() {
        assert_eq!(folded("\u{1dd3} a \u{1dd3}b"), ["a", "b"]);
        assert_eq!(folded("\u{ff9e} \u{ff9e}b"), ["b"]);
    }

    proptest! {
        #[test]
        fn any_text_has_valid_tokens_and_stable_normal_form(text in ".{0,200}") {
            let normal = normalised(&text);
            prop_assert_eq!(&normalised(&normal), &normal);
            for token in tokens(&text) {
                prop_assert!(!token.word.is_empty() && !token.folded().is_empty());
                prop_assert_eq!(&text[token.start..token.end()], token.word);
                token.forms(Languages::from_bits(-1), |form| assert!(!form.is_empty()));
            }
            let mut words = String::new();
            add_index_words(&text, &mut words);
            let is_of_word = |c| c == ' ' || fold::is_of_word(c) || is_picture(c);
            prop_assert!(words.chars().all(is_of_word), "{words:?}");
            numbers_and_negations(&text);
        }
    }

    #[test]
    fn word_lists_are_folded() {
        for name in ["not", "negation", "negation_within", "number", "stop"] {
            for word in words_of(name) {
                assert_eq!(fold::fold(word), word, "{name}");
            }
        }
    }

    #[test]
    fn negations_of_many_languages_distinguish_texts() {
        for (one, other) in [
            ("Ann gillar te", "Ann gillar inte te"),
            ("Ann liker te", "Ann liker ikke te"),
            ("Ann juo teetä", "Ann ei juo teetä"),
            ("Ann szereti a teát", "Ann nem szereti a teát"),
            ("Ann bea ceai", "Ann nu bea ceai"),
            ("çay seviyor", "çay seviyor değil"),
            ("喜欢茶", "不喜欢茶"),
            ("有猫", "没有猫"),
            ("お茶が好きだ", "お茶が好きではない"),
            ("肉を食べます", "肉を食べません"),
            ("차를 좋아해요", "차를 안 좋아해요"),
            ("차를 좋아한다", "차를 좋아하지 않는다"),
            ("चाय पसंद है", "चाय पसंद नहीं है"),
            ("يحب الشاي", "لا يحب الشاي"),
            ("هو هنا", "ليس هنا"),
            ("אוהב תה", "לא אוהב תה"),
            ("ชอบชา", "ไม่ชอบชา"),
            ("του αρέσει", "δεν του αρέσει"),
            ("thích trà", "không thích trà"),
            ("আমি চা খাই", "আমি চা খাই না"),
            ("suka teh", "tidak suka teh"),
            ("టీ ఇష్టం", "టీ ఇష్టం లేదు"),
            ("ມັກຊາ", "ບໍ່ມັກຊາ"),
            ("லட்டு பிடிக்கும்", "லட்டு இல்லை"),
        ] {
            assert_ne!(
                numbers_and_negations(one),
                numbers_and_negations(other),
                "{one}; {other}"
            );
        }
    }
}
