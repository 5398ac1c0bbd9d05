//! The one form in which words are compared: without case, width, diacritics and points.

use std::borrow::Cow;

use unicode_normalization::UnicodeNormalization;
use unicode_normalization::char::is_combining_mark;

/// True of what a word is made of: letters, digits, and the marks that stand with them. In many
/// scripts a vowel is a mark, and a word without it is another word.
pub(super) fn is_of_word(c: char) -> bool {
    match c.is_ascii() {
        true => c.is_ascii_alphanumeric(),
        false => c.is_alphanumeric() || is_combining_mark(c) || is_joiner(c),
    }
}

/// Says how the letters beside it are drawn, and nothing else.
fn is_joiner(c: char) -> bool {
    matches!(c, '\u{200c}' | '\u{200d}')
}

/// The word in Unicode's compatibility form (NFKC) and by full case folding, without what many
/// leave out when they write: diacritics of Latin, Greek and Cyrillic letters, Hebrew points,
/// Arabic vowel marks and the line that stretches a word. Arabic letters that are often written
/// for each other are one, as in Lucene's normalizer of Arabic.
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
        // A fraction or a letter in brackets would be several words.
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
        // Lower case alone has two forms of a sigma and keeps a sharp s, upper case alone keeps
        // a capital one.
        let lower = one_of_alike(c).to_lowercase();
        folded.extend(
            lower
                .flat_map(char::to_uppercase)
                .flat_map(char::to_lowercase)
                .nfd()
                .filter(|c| !is_left_out(*c)),
        );
    }
    // A sign of half width is a letter, and the mark that it stands for is none.
    let is_mark = |c: &char| !c.is_alphanumeric();
    Cow::Owned(folded.nfc().skip_while(is_mark).collect())
}

/// True of marks on letters of Latin, Greek and Cyrillic.
pub(super) fn is_diacritic(c: &char) -> bool {
    matches!(c, '\u{300}'..='\u{36f}' | '\u{1ab0}'..='\u{1aff}' | '\u{1dc0}'..='\u{1dff}'
        | '\u{20d0}'..='\u{20ff}' | '\u{fe20}'..='\u{fe2f}')
}

/// Marks that writers leave out. Vowel signs of other scripts are none of them.
fn is_left_out(c: char) -> bool {
    is_diacritic(&c)
        || matches!(c,
        // Hebrew points.
        '\u{591}'..='\u{5bd}' | '\u{5bf}' | '\u{5c1}' | '\u{5c2}' | '\u{5c4}' | '\u{5c5}'
        | '\u{5c7}'
        // Arabic vowel marks and the line that stretches a word.
        | '\u{610}'..='\u{61a}' | '\u{640}' | '\u{64b}'..='\u{65f}' | '\u{670}'
        | '\u{6d6}'..='\u{6dc}' | '\u{6df}'..='\u{6e4}' | '\u{6e7}' | '\u{6e8}'
        | '\u{6ea}'..='\u{6ed}'
        // How the character before it is drawn.
        | '\u{fe00}'..='\u{fe0f}')
}

/// Й is a letter of its own, and Russian endings have it.
fn is_letter_with_breve(base: char, mark: char) -> bool {
    mark == '\u{306}' && matches!(base, 'и' | 'И')
}

/// One of the Arabic letters that are written for each other.
fn one_of_alike(c: char) -> char {
    match c {
        '\u{671}' => '\u{627}',
        '\u{629}' => '\u{647}',
        '\u{649}' | '\u{6cc}' => '\u{64a}',
        '\u{6a9}' => '\u{643}',
        other => other,
    }
}
