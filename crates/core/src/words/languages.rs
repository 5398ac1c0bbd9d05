//! Language detection and stemming.
//!
//! If a script has one language with a stemmer, the script decides. Languages in Latin script are
//! detected by their most common words over a whole text, but never for a query. A query is stemmed
//! in the languages of the texts that it may find.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::LazyLock;

use rust_stemmers::{Algorithm, Stemmer};
use unicode_normalization::UnicodeNormalization as _;

use super::fold::fold;
use super::segments::runs;
use super::words_of;

/// Minimum letters of a word to stem. FTS5's own stemmer skips shorter ones too.
const STEM_LETTERS_MIN: usize = 3;
/// Maximum letters of a word to stem. FTS5's own stemmer skips longer ones too.
const STEM_LETTERS_MAX: usize = 63;
/// At least one in this many words of an English text must be among its most common ones.
const ENGLISH_WORDS_OF: u16 = 8;
/// Number of words at the start of a text that are used to detect its language.
const WORDS_LOOKED_AT: usize = 200;
/// Minimum letters of a Hebrew word without its prefixes, and maximum number of removed prefixes.
const HEBREW_LETTERS_MIN: usize = 3;
const HEBREW_PREFIXES_MAX: usize = 2;

/// Languages in Latin script that have a stemmer.
///
/// Each has the name of its list of common words, the letters that only it uses, and the stemmer.
/// English comes first, as the default. The order is stored as bits of [`Languages`], so only
/// append to it.
const LATIN: [(&str, &str, Algorithm); 14] = [
    ("english", "", Algorithm::English),
    ("german", "ß", Algorithm::German),
    ("french", "êœ", Algorithm::French),
    ("spanish", "ñ", Algorithm::Spanish),
    ("portuguese", "ãõ", Algorithm::Portuguese),
    ("italian", "ì", Algorithm::Italian),
    ("dutch", "", Algorithm::Dutch),
    ("swedish", "å", Algorithm::Swedish),
    ("norwegian", "ø", Algorithm::Norwegian),
    ("danish", "ø", Algorithm::Danish),
    ("finnish", "", Algorithm::Finnish),
    ("hungarian", "őű", Algorithm::Hungarian),
    ("romanian", "ășț", Algorithm::Romanian),
    ("turkish", "ğış", Algorithm::Turkish),
];

/// Indices of languages with special rules.
const FINNISH: usize = 10;
const TURKISH: usize = 13;

static STEMMERS: LazyLock<[Stemmer; LATIN.len()]> =
    LazyLock::new(|| LATIN.map(|(_, _, algorithm)| Stemmer::create(algorithm)));
static RUSSIAN: LazyLock<Stemmer> = LazyLock::new(|| Stemmer::create(Algorithm::Russian));
static GREEK: LazyLock<Stemmer> = LazyLock::new(|| Stemmer::create(Algorithm::Greek));
static TAMIL: LazyLock<Stemmer> = LazyLock::new(|| Stemmer::create(Algorithm::Tamil));

/// Bit set of the languages that have a word among their most common ones.
static COMMON: LazyLock<HashMap<&'static str, u16>> = LazyLock::new(|| {
    let mut common = HashMap::new();
    for (place, (name, ..)) in LATIN.iter().enumerate() {
        let name = if place == 0 { "stop" } else { name };
        for word in words_of(name) {
            *common.entry(word).or_default() |= 1 << place;
        }
    }
    common
});

/// A set of languages in Latin script. It always contains English.
///
/// Other languages are recognized by their script.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Languages(u16);

/// Whether the word is among the most common of some language.
pub(super) fn is_common(folded: &str) -> bool {
    COMMON.contains_key(folded)
}

impl Default for Languages {
    fn default() -> Self {
        Self(1)
    }
}

impl Languages {
    /// Detects the language of a text.
    ///
    /// It is the one with the most common words in the text, or English if none has more than
    /// English.
    pub fn detect(text: &str) -> Self {
        Self::told_of(text).0
    }

    /// Like [`Self::detect`], but also returns whether the text is shown to be English.
    ///
    /// A text in an unknown language is otherwise taken for a known one.
    pub(super) fn told_of(text: &str) -> (Self, bool) {
        let mut votes = [0_u16; LATIN.len()];
        let mut words = 0;
        let mut is_plain = true;
        for token in runs(text).take(WORDS_LOOKED_AT) {
            words += 1;
            is_plain &= token.word.is_ascii();
            let mut found = COMMON.get(&*token.folded()).copied().unwrap_or(0);
            if !token.word.is_ascii() {
                found |= has_letter_of(token.word);
            }
            while found != 0 {
                votes[found.trailing_zeros() as usize] += 1;
                found &= found - 1;
            }
        }
        let mut best = 0;
        for (place, count) in votes.iter().enumerate() {
            if *count > votes[best] {
                best = place;
            }
        }
        let is_english = votes[1..].iter().all(|count| *count < votes[0]);
        let is_shown = is_plain && is_english && votes[0] * ENGLISH_WORDS_OF >= words;
        (Self(1 << best), is_shown)
    }

    #[must_use]
    pub fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub fn bits(self) -> u16 {
        self.0
    }

    /// Restores the stored form, adds English and ignores unknown languages.
    pub fn from_bits(bits: i64) -> Self {
        let known = (1 << LATIN.len()) - 1;
        Self(u16::try_from(bits & known).unwrap_or(0) | 1)
    }

    /// Whether only the rules of English apply.
    pub(super) fn is_english(self) -> bool {
        self == Self::default()
    }

    pub(super) fn has_finnish(self) -> bool {
        self.0 & 1 << FINNISH != 0
    }

    pub(super) fn has_turkish(self) -> bool {
        self.0 & 1 << TURKISH != 0
    }
}

/// The languages that exclusively use a letter of the word.
fn has_letter_of(word: &str) -> u16 {
    let mut found = 0;
    for (place, (_, letters, _)) in LATIN.iter().enumerate() {
        let is_its = |c: char| c.to_lowercase().any(|c| letters.contains(c));
        found |= u16::from(word.chars().any(is_its)) << place;
    }
    found
}

/// Removes the English ending of a word, which must be [folded](super::Token::folded).
///
/// The algorithm is Snowball's English, also called Porter 2 (M. F. Porter, "Snowball: A language
/// for stemming algorithms", 2001). Words with characters other than a to z stay unchanged.
pub fn stem(folded: &str) -> Cow<'_, str> {
    let has_stem = (STEM_LETTERS_MIN..=STEM_LETTERS_MAX).contains(&folded.len())
        && folded.bytes().all(|b| b.is_ascii_lowercase());
    if has_stem {
        STEMMERS[0].stem(folded)
    } else {
        Cow::Borrowed(folded)
    }
}

/// Passes the index forms of a word to `give`.
///
/// These are its stems in each of the `languages` if they share its script, otherwise the word and
/// the stem of its script's language. A Hebrew word is passed with and without its prefixes.
///
/// A word with diacritics is stemmed with and without them, because endings have diacritics that
/// folding removes and some writers omit.
pub(super) fn forms(word: &str, folded: &str, languages: Languages, mut give: impl FnMut(&str)) {
    let first = folded.chars().next().unwrap_or('0');
    if first.is_ascii() && languages.is_english() {
        return give(&stem(folded));
    }
    let is_all = |is_of: fn(char) -> bool| {
        folded.chars().count() <= STEM_LETTERS_MAX && folded.chars().all(is_of)
    };
    let by_script = match first {
        '\u{370}'..='\u{3ff}' if is_all(|c| matches!(c, '\u{370}'..='\u{3ff}')) => Some(&GREEK),
        '\u{400}'..='\u{4ff}' if is_all(|c| matches!(c, '\u{400}'..='\u{4ff}')) => Some(&RUSSIAN),
        '\u{b80}'..='\u{bff}' if is_all(|c| matches!(c, '\u{b80}'..='\u{bff}')) => Some(&TAMIL),
        _ => None,
    };
    if let Some(stemmer) = by_script {
        give(folded);
        let stemmed = stemmer.stem(folded);
        let stem = fold(&stemmed);
        if !stem.is_empty() && stem != folded {
            give(&stem);
        }
        return;
    }
    match first {
        '\u{5d0}'..='\u{5ea}' => return hebrew(folded, give),
        '\u{620}'..='\u{6ff}' => return arabic(folded, give),
        _ => {}
    }
    if !is_all(|c| c.is_ascii_lowercase() || matches!(c, '\u{df}'..='\u{24f}')) {
        return give(folded);
    }
    if word.is_ascii() {
        return stems(folded, languages, &mut Vec::new(), &mut give);
    }
    let mut given = Vec::new();
    let written: String = word.to_lowercase().nfc().collect();
    stems(folded, languages, &mut given, &mut give);
    stems(&written, languages, &mut given, &mut give);
}

/// Passes the folded stems of a word in each of the languages that were not passed yet.
fn stems(word: &str, languages: Languages, given: &mut Vec<String>, give: &mut impl FnMut(&str)) {
    for (place, stemmer) in STEMMERS.iter().enumerate() {
        if languages.0 >> place & 1 == 0 {
            continue;
        }
        let stemmed = match place {
            0 => stem(word),
            _ if word.len() < STEM_LETTERS_MIN => Cow::Borrowed(word),
            _ => stemmer.stem(word),
        };
        let stem = fold(if stemmed.is_empty() { word } else { &stemmed });
        if !stem.is_empty() && !given.iter().any(|known| *known == *stem) {
            give(&stem);
            given.push(stem.into_owned());
        }
    }
}

/// Removes one-letter Hebrew prefixes: "and", "the", "in", "as", "to", "from" and "that".
fn hebrew(folded: &str, mut give: impl FnMut(&str)) {
    let mut rest = folded;
    give(rest);
    for _ in 0..HEBREW_PREFIXES_MAX {
        let is_prefix = rest.starts_with(['ה', 'ו', 'ב', 'כ', 'ל', 'מ', 'ש']);
        if !is_prefix || rest.chars().count() <= HEBREW_LETTERS_MIN {
            return;
        }
        let first = rest.chars().next().map_or(0, char::len_utf8);
        rest = &rest[first..];
        give(rest);
    }
}

/// Passes an Arabic word with and without its article, prefixes and endings.
///
/// This is the stemmer "light10" (L. Larkey, L. Ballesteros and M. Connell, "Light stemming for
/// Arabic information retrieval", 2007) for folded words, in which two letters of the endings are
/// one. Endings that start with the folded form of ة are additions.
fn arabic(folded: &str, mut give: impl FnMut(&str)) {
    let letters = |text: &str| text.chars().count();
    give(folded);
    let before = ["ال", "وال", "بال", "كال", "فال", "لل", "و"].iter();
    let mut stems = before.filter_map(|prefix| {
        let least = if *prefix == "و" { 3 } else { 2 };
        folded
            .strip_prefix(prefix)
            .filter(|rest| letters(rest) >= least)
    });
    let mut stem = stems.next().unwrap_or(folded);
    for ending in [
        "تها", "تي", "ته", "ها", "ان", "ات", "ون", "ين", "يه", "ه", "ي",
    ] {
        let least = if ending.starts_with('ت') { 3 } else { 2 };
        stem = match stem.strip_suffix(ending) {
            Some(rest) if letters(rest) >= least => rest,
            _ => stem,
        };
    }
    if stem != folded {
        give(stem);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn forms_of(word: &str, languages: Languages) -> Vec<String> {
        let mut found = Vec::new();
        let token = super::super::tokens(word).next().unwrap();
        token.forms(languages, |form| found.push(form.to_owned()));
        found
    }

    #[test]
    fn detect_returns_language_of_common_words() {
        for (text, name) in [
            ("", "english"),
            ("4711", "english"),
            ("prefers oat milk", "english"),
            ("Lives in Berlin with two cats", "english"),
            ("Der Kunde wohnt in München und hat zwei Katzen", "german"),
            ("Mi perro se llama Toby y vive con nosotros", "spanish"),
            ("Je préfère le café sans sucre", "french"),
            ("Meu gato mora em casa com a minha irmã", "portuguese"),
            ("Ha due figli che vivono a Roma con la nonna", "italian"),
            ("De klant woont in Utrecht met zijn vrouw", "dutch"),
            ("Jag bor i Stockholm och har två katter", "swedish"),
            ("Köpeğimin adı Karabaş", "turkish"),
            ("A kutyám neve Bodri és nagyon szereti a sétát", "hungarian"),
            ("Minun koirani nimi on Musti ja se asuu kotona", "finnish"),
        ] {
            let found = Languages::detect(text);
            let position = LATIN.iter().position(|(known, ..)| *known == name).unwrap();
            assert_eq!(found, Languages(1 << position), "{text}");
        }
    }

    #[test]
    fn finnish_and_turkish_constants_match_table() {
        assert_eq!(LATIN[FINNISH].0, "finnish");
        assert_eq!(LATIN[TURKISH].0, "turkish");
    }

    #[test]
    fn each_language_has_three_common_words_of_its_own() {
        for (position, (name, ..)) in LATIN.iter().enumerate() {
            let own = COMMON.values().filter(|found| **found == 1 << position);
            assert!(own.count() >= 3, "{name}");
        }
    }

    #[test]
    fn forms_cover_each_language_without_duplicates() {
        let both =
            Languages::detect("Der Hund und die Katze sind im Haus").with(Languages::default());
        assert_eq!(forms_of("hunde", both), ["hund"]);
        assert_eq!(forms_of("weekly", Languages::default()), ["week"]);
        assert_eq!(forms_of("москве", both), ["москве", "москв"]);
        assert_eq!(forms_of("москва", both), ["москва", "москв"]);
        assert_eq!(forms_of("والسيارات", both), ["والسيارات", "سيار"]);
        assert_eq!(forms_of("سيارة", both), ["سياره", "سيار"]);
        assert_eq!(forms_of("أختي", both), ["اختي", "اخت"]);
        assert!(forms_of("בירושלים", both).contains(&"ירושלים".to_owned()));
        assert_eq!(forms_of("बिल्ली", both), ["बिल्लि"]);
        assert_eq!(Languages::from_bits(i64::from(both.bits())), both);
        assert_eq!(Languages::from_bits(-1).bits(), (1 << LATIN.len()) - 1);
    }
}
