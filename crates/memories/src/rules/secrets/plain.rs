//! Normalized copies of a text for pattern matching, with a mapping back to the original.

use std::ops::Range;

use memoird_core::quote::is_hidden;
use unicode_normalization::UnicodeNormalization;

/// The zeros of decimal digits (Unicode, category Nd) of scripts that have them on keyboards.
const ZEROS: &str = "٠۰߀०০੦૦୦௦౦೦൦๐໐༠၀០᠐";

/// A normalized text with the origin of each character.
#[derive(Debug, Default)]
pub(super) struct Plain {
    pub(super) text: String,
    /// For each retained character: its start in `text` and its range in the original.
    ///
    /// Sorted by the first.
    places: Vec<(usize, Range<usize>)>,
}

impl Plain {
    /// Normalizes letters and digits and removes hidden characters. `None` if that changes nothing.
    ///
    /// Applies Unicode NFKC to one character at a time.
    pub(super) fn normalized(text: &str) -> Option<Self> {
        if text.is_ascii() {
            return None;
        }
        let mut plain = Self::default();
        for (at, char) in text.char_indices() {
            let range = at..at + char.len_utf8();
            let is_joiner = matches!(
                char,
                '\u{ad}' | '\u{200c}' | '\u{200d}' | '\u{fe00}'..='\u{fe0f}'
            );
            if !is_joiner && !is_hidden(char) {
                plain.places.push((plain.text.len(), range));
                match char {
                    '\u{2010}'..='\u{2015}' | '\u{2212}' => plain.text.push('-'),
                    _ => match digit(char) {
                        Some(digit) => plain.text.push(digit),
                        None => plain.text.extend(std::iter::once(char).nfkc()),
                    },
                }
            }
        }
        (plain.text != text).then_some(plain)
    }

    /// Removes line breaks between two word characters, which may have split a token.
    ///
    /// Returns `None` if there are none.
    pub(super) fn joined(text: &str) -> Option<Self> {
        if !text.contains(['\n', '\r']) {
            return None;
        }
        let mut plain = Self::default();
        let mut chars = text.char_indices().peekable();
        let is_word = |char: char| char.is_ascii_alphanumeric() || "_-".contains(char);
        while let Some((at, char)) = chars.next() {
            let is_behind = plain.text.ends_with(is_word);
            if matches!(char, '\n' | '\r') && is_behind {
                let mut end = text[at..].chars().skip_while(|char| "\r\n".contains(*char));
                if end.next().is_some_and(is_word) {
                    while chars.next_if(|(_, next)| "\r\n".contains(*next)).is_some() {}
                    continue;
                }
            }
            plain
                .places
                .push((plain.text.len(), at..at + char.len_utf8()));
            plain.text.push(char);
        }
        (plain.text.len() < text.len()).then_some(plain)
    }

    /// Maps a non-empty range back to the original text.
    pub(super) fn place(&self, range: &Range<usize>) -> Range<usize> {
        let of = |at: usize| {
            let behind = self.places.partition_point(|(start, _)| *start <= at);
            let place = behind
                .checked_sub(1)
                .and_then(|index| self.places.get(index));
            place.map_or(0..0, |(_, place)| place.clone())
        };
        of(range.start).start..of(range.end.saturating_sub(1)).end
    }
}

/// Converts a decimal digit of any known script to ASCII.
fn digit(char: char) -> Option<char> {
    let zeros = ZEROS.chars().map(u32::from);
    let code = u32::from(char);
    let mut values = zeros.filter_map(|zero| code.checked_sub(zero));
    let value = values.find(|value| *value < 10)?;
    char::from_digit(value, 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_normalized_range_maps_back_to_the_text() {
        let text = "é ٤１\u{200b}２\u{a0}–\u{ad}x ﬁn";
        let plain = Plain::normalized(text).unwrap();
        assert_eq!(plain.text, "é 412 -x fin");
        let place = |of: &str| {
            let at = plain.text.find(of).unwrap();
            &text[plain.place(&(at..at + of.len()))]
        };
        assert_eq!(place("é"), "é");
        assert_eq!(place("412"), "٤１\u{200b}２");
        assert_eq!(place(" -x"), "\u{a0}–\u{ad}x");
        assert_eq!(place("f"), "ﬁ");
        assert_eq!(place("n"), "n");
        assert!(Plain::normalized("é 41").is_none());
    }

    #[test]
    fn broken_words_are_joined_across_lines() {
        let text = "a1\r\n2b, c\n- d\ne";
        let plain = Plain::joined(text).unwrap();
        assert_eq!(plain.text, "a12b, c- de");
        assert_eq!(&text[plain.place(&(0..4))], "a1\r\n2b");
        assert!(Plain::joined("a.\n b\n").is_none());
    }
}
