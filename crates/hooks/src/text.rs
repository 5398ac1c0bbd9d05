//! Formats output of programs and services as one short line without control characters.

use memoird_core::quote::is_hidden;

/// Replaces omitted text.
const GAP: &str = " … ";

/// Formats bytes as one line of at most `chars_max` characters. A longer text is truncated.
pub(crate) fn line(bytes: &[u8], chars_max: usize) -> String {
    let text = escaped(bytes);
    match text.char_indices().nth(chars_max) {
        None => text,
        Some(_) => {
            let kept = text.chars().take(chars_max.saturating_sub(1));
            kept.chain(['…']).collect()
        }
    }
}

/// Formats the beginning and the end of an output as one line of at most `chars_max` characters.
///
/// A third of it is for the beginning.
pub(crate) fn line_of_ends(first: &[u8], last: &[u8], chars_max: usize) -> String {
    let (first, last) = (escaped(first), escaped(last));
    let head_max = chars_max / 3;
    let tail_max = chars_max.saturating_sub(head_max + GAP.chars().count());
    let skipped = last.chars().count().saturating_sub(tail_max);
    let head = first.chars().take(head_max);
    head.chain(GAP.chars())
        .chain(last.chars().skip(skipped))
        .collect()
}

/// Trims text and escapes control characters, line ends and bidirectional formatting characters.
///
/// See Unicode Technical Report 36, section 3.1.
pub(crate) fn escaped(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let mut line = String::with_capacity(text.len());
    for char in text.trim().chars() {
        let is_joiner = matches!(char, '\u{200c}' | '\u{200d}');
        if char.is_control() || is_joiner || is_hidden(char) {
            line.extend(char.escape_default());
        } else {
            line.push(char);
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped_in_line() {
        let said = b"  \x1b[2Jgone\r\nline 2\x07\t\xff \xe2\x80\xae \n";
        assert_eq!(line(said, 400), r"\u{1b}[2Jgone\r\nline 2\u{7}\t� \u{202e}");
        assert_eq!(
            line("a\u{e0041}\u{61c}".as_bytes(), 40),
            r"a\u{e0041}\u{61c}"
        );
        assert_eq!(line("grün".as_bytes(), 4), "grün");
        assert_eq!(line("grüner".as_bytes(), 4), "grü…");
        assert_eq!(line(b"", 4), "");
    }

    #[test]
    fn long_text_shows_both_ends() {
        let shown = line_of_ends(b"first words", b"and the last words", 30);
        assert_eq!(shown, "first word … nd the last words");
        assert_eq!(line_of_ends(&[1; 999], &[2; 999], 400).chars().count(), 400);
    }
}
