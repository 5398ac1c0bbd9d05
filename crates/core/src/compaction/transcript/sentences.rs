//! Splitting text into sentences.

/// Maximum bytes of a sentence. A longer one is cut at a space.
const SENTENCE_BYTES_MAX: usize = 600;

/// Returns the trimmed sentences of a text in order.
///
/// Each line is split after every `.`, `!` or `?` (or the equivalents of other scripts) that
/// precedes whitespace. Takes time linear in the text.
pub fn sentences(text: &str) -> impl Iterator<Item = &str> {
    text.lines().flat_map(|line| {
        let mut rest = line.trim();
        std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let (sentence, after) = rest.split_at(end(rest));
            rest = after.trim_start();
            Some(sentence.trim_end())
        })
    })
}

/// End of the first sentence of a line, always above 0.
fn end(line: &str) -> usize {
    let mut blank = 0;
    let mut behind = 0;
    while let Some(&byte) = line.as_bytes().get(behind) {
        let offset = behind;
        if offset >= SENTENCE_BYTES_MAX {
            return if blank > 0 { blank } else { offset };
        }
        behind += 1;
        // Fast path for most characters.
        if byte.is_ascii_alphanumeric() {
            continue;
        }
        let c = line[offset..].chars().next().unwrap_or_default();
        behind = offset + c.len_utf8();
        if c.is_whitespace() {
            blank = offset;
        }
        let is_end = match c {
            '。' | '！' | '？' | '؟' | '۔' | '।' | '॥' | '።' | '။' | '។' => true,
            '.' | '!' | '?' | '…' => !line[behind..].starts_with(|c: char| !c.is_whitespace()),
            _ => false,
        };
        // "1." starts a list item; "e.g." and "Dr." do not end a sentence.
        if is_end && !(c == '.' && is_short(&line[..offset])) {
            return behind;
        }
    }
    line.len()
}

/// Whether the word before a full stop is an abbreviation, or a list number at the line start.
fn is_short(before: &str) -> bool {
    let word = before.rsplit(char::is_whitespace).next().unwrap_or(before);
    let is_first = word.len() == before.len();
    let is_number = is_first && word.len() <= 3 && word.bytes().all(|b| b.is_ascii_digit());
    is_number || word.contains('.') && word.len() <= 4 || ABBREVIATIONS.contains(&word)
}

const ABBREVIATIONS: &[&str] = &[
    "Dr", "Mr", "Mrs", "Ms", "No", "Nr", "St", "approx", "etc", "vs", "bzw", "ca",
];
