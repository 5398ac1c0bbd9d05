//! Folding words to one form for comparison: without case, width, diacritics and points.

use std::borrow::Cow;
use std::sync::LazyLock;

use unicode_normalization::UnicodeNormalization;
use unicode_normalization::char::is_combining_mark;

/// Whether the character is a pictograph, which is a word of its own.
///
/// Skin tones and joiners are not.
pub(super) fn is_picture(c: char) -> bool {
    matches!(c, '\u{2600}'..='\u{27bf}' | '\u{2b50}' | '\u{2b55}' | '\u{1f1e6}'..='\u{1f1ff}'
        | '\u{1f300}'..='\u{1f3fa}' | '\u{1f400}'..='\u{1faff}')
}

/// Whether the character is part of words: letters, digits and their combining marks.
///
/// In many scripts a vowel is a mark, and a word without it is a different word.
pub(super) fn is_of_word(c: char) -> bool {
    if c.is_ascii() {
        c.is_ascii_alphanumeric()
    } else {
        c.is_alphanumeric() || is_combining_mark(c) || is_joiner(c)
    }
}

/// Whether the character only affects how its neighbors are drawn.
fn is_joiner(c: char) -> bool {
    matches!(c, '\u{200c}' | '\u{200d}')
}

/// Folds a word to its comparison form.
///
/// Applies Unicode's compatibility form (NFKC) and full case folding, and removes what writers
/// often omit: diacritics of Latin, Greek and Cyrillic letters, Hebrew points, Arabic vowel marks
/// and elongation. Arabic letters that are often interchanged become one, like in Lucene's Arabic
/// normalizer. Latin letters without a decomposition ("ł", "œ") become the letters typed for them.
/// Digits of all scripts become equal, and so do hiragana and katakana, and traditional and
/// simplified Chinese.
pub(super) fn fold(word: &str) -> Cow<'_, str> {
    if word
        .bytes()
        .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
    {
        return Cow::Borrowed(word);
    }
    if word.is_ascii() {
        return Cow::Owned(word.to_ascii_lowercase());
    }
    let mut parts = String::with_capacity(word.len() + 8);
    for c in word.chars() {
        let start = parts.len();
        parts.extend(std::iter::once(c).nfkd());
        // Do not decompose a fraction or a bracketed letter into several words.
        if !parts[start..].chars().all(is_of_word) {
            parts.truncate(start);
            parts.extend(std::iter::once(c).nfd());
        }
    }
    let mut folded = String::with_capacity(parts.len());
    let mut before = '\0';
    for c in parts.nfd() {
        if is_letter_with_breve(before, c) {
            folded.push(c);
        }
        if is_left_out(c) || is_joiner(c) {
            continue;
        }
        before = c;
        // Lower case alone has two sigmas and keeps the sharp s. Upper case alone keeps a capital
        // sharp s.
        let lower = one_of_alike(decimal(c))
            .to_lowercase()
            .flat_map(char::to_uppercase)
            .flat_map(char::to_lowercase)
            .nfd()
            .filter(|c| !is_left_out(*c));
        for c in lower {
            match typed_for(c) {
                Some(typed) => folded.push_str(typed),
                None => folded.push(c),
            }
        }
    }
    // A half-width sign counts as a letter, but the mark that it decomposes to does not.
    let is_mark = |c: &char| !c.is_alphanumeric() && !is_picture(*c);
    let letters = folded.nfc().skip_while(is_mark);
    Cow::Owned(with_anusvara(letters.map(one_script).collect()))
}

/// Pairs of traditional and simplified characters, sorted.
static SIMPLIFIED: LazyLock<Vec<(char, char)>> = LazyLock::new(|| {
    let rows = include_str!("simplified.txt")
        .lines()
        .filter(|row| !row.starts_with('#'));
    let chars: Vec<char> = rows.flat_map(str::chars).collect();
    chars
        .as_chunks()
        .0
        .iter()
        .map(|[from, to]| (*from, *to))
        .collect()
});

/// Maps the spellings of a letter to one of them.
///
/// Katakana become hiragana, traditional Chinese becomes simplified, long Devanagari vowels become
/// short.
fn one_script(c: char) -> char {
    match c {
        '\u{30a1}'..='\u{30f6}' | '\u{30fd}' | '\u{30fe}' => {
            char::from_u32(u32::from(c) - 0x60).unwrap_or(c)
        }
        // Like Lucene's Hindi normalizer: L. Larkey, M. Connell and N. Abduljaleel, "Hindi CLIR in
        // thirty days", 2003.
        'ई' => 'इ',
        'ऊ' => 'उ',
        'ऐ' => 'ए',
        'औ' => 'ओ',
        '\u{940}' => '\u{93f}',
        '\u{942}' => '\u{941}',
        '\u{948}' => '\u{947}',
        '\u{94c}' => '\u{94b}',
        '\u{4e00}'..='\u{9fff}' => {
            let found = SIMPLIFIED.binary_search_by_key(&c, |(traditional, _)| *traditional);
            found.map_or(c, |place| SIMPLIFIED[place].1)
        }
        _ => c,
    }
}

/// Normalizes Devanagari nasals to anusvara.
///
/// That applies to a nasal before a consonant of its own group, and to the chandrabindu of a nasal
/// vowel.
fn with_anusvara(word: String) -> String {
    const VIRAMA: char = '\u{94d}';
    const ANUSVARA: char = '\u{902}';
    if !word.contains(['\u{901}', VIRAMA]) {
        return word;
    }
    let chars: Vec<char> = word.chars().collect();
    let mut spelled = String::with_capacity(word.len());
    let mut rest = chars.as_slice();
    while let Some((&first, after)) = rest.split_first() {
        let is_nasal = |next: char| match first {
            '\u{919}' => matches!(next, '\u{915}'..='\u{918}'),
            '\u{91e}' => matches!(next, '\u{91a}'..='\u{91d}'),
            '\u{923}' => matches!(next, '\u{91f}'..='\u{922}'),
            '\u{928}' => matches!(next, '\u{924}'..='\u{927}'),
            '\u{92e}' => matches!(next, '\u{92a}'..='\u{92d}'),
            _ => false,
        };
        (rest, _) = match after {
            [VIRAMA, next, ..] if is_nasal(*next) => (&after[1..], spelled.push(ANUSVARA)),
            _ if first == '\u{901}' => (after, spelled.push(ANUSVARA)),
            _ => (after, spelled.push(first)),
        };
    }
    spelled
}

/// Zeros of the scripts with their own digits. The other digits follow each zero.
const ZEROS: [char; 34] = [
    '\u{660}', '\u{6f0}', '\u{7c0}', '\u{966}', '\u{9e6}', '\u{a66}', '\u{ae6}', '\u{b66}',
    '\u{be6}', '\u{c66}', '\u{ce6}', '\u{d66}', '\u{de6}', '\u{e50}', '\u{ed0}', '\u{f20}',
    '\u{1040}', '\u{1090}', '\u{17e0}', '\u{1810}', '\u{1946}', '\u{19d0}', '\u{1a80}', '\u{1a90}',
    '\u{1b50}', '\u{1bb0}', '\u{1c40}', '\u{1c50}', '\u{a620}', '\u{a8d0}', '\u{a900}', '\u{a9d0}',
    '\u{aa50}', '\u{abf0}',
];

pub(super) fn is_decimal(c: char) -> bool {
    decimal(c).is_ascii_digit()
}

/// Converts a digit of any script to ASCII. Returns other characters unchanged.
pub fn decimal(c: char) -> char {
    if c < ZEROS[0] {
        return c;
    }
    let place = ZEROS.partition_point(|zero| *zero <= c);
    let digit = place
        .checked_sub(1)
        .and_then(|place| ZEROS.get(place))
        .map(|zero| u32::from(c) - u32::from(*zero));
    digit
        .and_then(|digit| char::from_digit(digit, 10))
        .unwrap_or(c)
}

/// The letters typed for a lower-case Latin letter that does not decompose, or `None`.
fn typed_for(c: char) -> Option<&'static str> {
    Some(match c {
        'æ' => "ae",
        'œ' => "oe",
        'ø' => "o",
        'ł' => "l",
        'đ' | 'ð' => "d",
        'þ' => "th",
        'ħ' => "h",
        'ı' => "i",
        _ => return None,
    })
}

/// Whether the character is a mark on Latin, Greek and Cyrillic letters.
fn is_diacritic(c: &char) -> bool {
    matches!(c, '\u{300}'..='\u{36f}' | '\u{1ab0}'..='\u{1aff}' | '\u{1dc0}'..='\u{1dff}'
        | '\u{20d0}'..='\u{20ff}' | '\u{fe20}'..='\u{fe2f}')
}

/// Whether writers may omit the mark. False for vowel signs of other scripts.
fn is_left_out(c: char) -> bool {
    is_diacritic(&c)
        || matches!(c,
        // Hebrew points.
        '\u{591}'..='\u{5bd}' | '\u{5bf}' | '\u{5c1}' | '\u{5c2}' | '\u{5c4}' | '\u{5c5}'
        | '\u{5c7}'
        // Arabic vowel marks and the elongation stroke.
        | '\u{610}'..='\u{61a}' | '\u{640}' | '\u{64b}'..='\u{65f}' | '\u{670}'
        | '\u{6d6}'..='\u{6dc}' | '\u{6df}'..='\u{6e4}' | '\u{6e7}' | '\u{6e8}'
        | '\u{6ea}'..='\u{6ed}'
        // The nukta of Devanagari letters for foreign sounds.
        | '\u{93c}'
        // Apostrophes that are letters.
        | '\u{2bb}' | '\u{2bc}'
        // Variation selectors.
        | '\u{fe00}'..='\u{fe0f}')
}

/// Whether the mark is the breve of Й, which is a separate letter and part of Russian endings.
fn is_letter_with_breve(base: char, mark: char) -> bool {
    mark == '\u{306}' && matches!(base, 'и' | 'И')
}

/// Maps interchangeable Arabic letters to one of them.
fn one_of_alike(c: char) -> char {
    match c {
        '\u{671}' => '\u{627}',
        // The forms of heh in Persian and Urdu.
        '\u{629}' | '\u{6be}' | '\u{6c1}' | '\u{6c3}' | '\u{6d5}' => '\u{647}',
        '\u{649}' | '\u{6cc}' => '\u{64a}',
        '\u{6a9}' => '\u{643}',
        other => other,
    }
}
