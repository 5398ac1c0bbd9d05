//! Detects replies that are a refusal, an apology or an error report.

/// Maximum bytes of a refusal. Longer texts have content, however they start.
const REFUSAL_BYTES_MAX: usize = 400;

/// Refusal prefixes, one quoted per line, in lower case with plain apostrophes.
const BEGINNINGS: &str = include_str!("refusals.txt");

/// Whether the whole text is a refusal, an apology or an error.
///
/// A conversation may be about errors, so only a short text that starts as one counts.
pub fn is_refusal(text: &str) -> bool {
    let trimmed = text
        .trim()
        .trim_start_matches(['"', '\'', '*', '#', '`', ' ']);
    if trimmed.is_empty() || trimmed.len() > REFUSAL_BYTES_MAX {
        return false;
    }
    let text = trimmed.replace('’', "'").to_lowercase();
    BEGINNINGS
        .lines()
        .any(|begin| text.starts_with(begin.trim_matches('"')))
        && !goes_on(&text)
}

/// Whether a text that starts with the name of an error continues like a summary.
///
/// It does if it mentions the user or the assistant.
fn goes_on(text: &str) -> bool {
    ["the user", "the assistant", "user:", "assistant:"]
        .iter()
        .any(|who| text.contains(who))
        && !text.starts_with("i ")
        && !text.starts_with("i'")
        && !text.starts_with("sorry")
}
