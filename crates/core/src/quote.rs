//! Text of clients inside a prompt: it keeps its meaning, and cannot be taken for the structure
//! around it.

/// The text in one line of at most `chars_max` characters. Blanks and control characters become
/// single spaces. A longer text is cut after a word; its ellipsis counts.
pub fn one_line(text: &str, chars_max: usize) -> String {
    let is_gap = |c: char| c.is_whitespace() || c.is_control();
    let mut line = String::new();
    let (mut chars, mut word_end) = (0, 0);
    for word in text.split(is_gap).filter(|word| !word.is_empty()) {
        let gap = usize::from(!line.is_empty());
        // Of a word that is longer than any line only its beginning is looked at.
        let length = word.chars().take(chars_max + 1).count();
        if chars + gap + length > chars_max {
            return cut(line, word_end, word, chars_max);
        }
        if gap == 1 {
            line.push(' ');
        }
        line.push_str(word);
        chars += gap + length;
        if chars < chars_max {
            // Here an ellipsis still fits.
            word_end = line.len();
        }
    }
    line
}

/// The line when `word` does not fit: the words before it, or its beginning where there are
/// none.
fn cut(mut line: String, word_end: usize, word: &str, chars_max: usize) -> String {
    if word_end == 0 {
        let begun = if line.is_empty() {
            word.to_owned()
        } else {
            line
        };
        line = begun.chars().take(chars_max.saturating_sub(1)).collect();
    } else {
        line.truncate(word_end);
    }
    if chars_max > 0 {
        line.push('…');
    }
    line
}

/// The text with the tags of these names made harmless, opening and closing ones, in any
/// case and however spaced; and with every line but the first indented, so that none looks
/// like a line of the list that it stands in.
pub fn within(text: &str, tags: &[&str]) -> String {
    let mut quoted = String::with_capacity(text.len());
    let text = text.trim();
    for (offset, c) in text.char_indices() {
        match c {
            '<' if names_tag(&text[offset + 1..], tags) => quoted.push_str("&lt;"),
            '\n' | '\u{b}' | '\u{c}' | '\u{85}' | '\u{2028}' | '\u{2029}' => {
                quoted.push_str("\n  ");
            }
            '\t' => quoted.push(c),
            c if c.is_control() => {}
            c => quoted.push(c),
        }
    }
    quoted
}

/// Looks at a bounded piece only, because clients choose the text.
fn names_tag(after: &str, tags: &[&str]) -> bool {
    const GAP_BYTES_MAX: usize = 32;
    let is_gap = |byte: &u8| !byte.is_ascii_graphic() || matches!(byte, b'/' | b'\\');
    let bytes = after.as_bytes();
    let gap = bytes.iter().take(GAP_BYTES_MAX);
    let gap = gap.take_while(|byte| is_gap(byte)).count();
    let name = &bytes[gap..];
    tags.iter().any(|tag| {
        name.get(..tag.len())
            .is_some_and(|name| name.eq_ignore_ascii_case(tag.as_bytes()))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_line_is_cut_after_a_word() {
        for (text, chars, line) in [
            ("", 5, ""),
            (" a\n\tb\u{0}c ", 5, "a b c"),
            ("one two three", 13, "one two three"),
            ("one two three", 12, "one two…"),
            ("one two three", 8, "one two…"),
            ("one two three", 7, "one…"),
            ("one two", 4, "one…"),
            ("one two", 3, "on…"),
            ("unbreakable", 5, "unbr…"),
            ("äöü€ß", 3, "äö…"),
            ("ab", 1, "…"),
            ("ab", 0, ""),
        ] {
            assert_eq!(one_line(text, chars), line, "{text:?} in {chars}");
        }
    }

    #[test]
    fn tags_of_the_frame_are_harmless_in_it_and_others_stay() {
        let tags = ["known", "recalled"];
        for (text, quoted) in [
            ("a </recalled_memories> b", "a &lt;/recalled_memories> b"),
            ("< / RECALLED>", "&lt; / RECALLED>"),
            ("<<known>", "<&lt;known>"),
            ("Vec<String> <unknown> <", "Vec<String> <unknown> <"),
            ("a\r\n- b\u{2028}c\u{0}", "a\n  - b\n  c"),
        ] {
            assert_eq!(within(text, &tags), quoted, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn no_line_is_longer_than_asked(text in "(?s).{0,60}", chars in 0..40_usize) {
            let line = one_line(&text, chars);
            prop_assert!(line.chars().count() <= chars, "{line:?}");
            prop_assert!(!line.contains(|c: char| c.is_control()), "{line:?}");
            prop_assert_eq!(one_line(&line, chars), line.clone());
        }
    }
}
