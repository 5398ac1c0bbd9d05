//! Whether a text is a refusal, an apology or the report of an error instead of an answer.

/// A longer text says something, however it begins; in bytes.
const REFUSAL_BYTES_MAX: usize = 400;

/// How they begin, each in a line and in quotes, in small letters and with a plain apostrophe.
const BEGINNINGS: &str = include_str!("refusals.txt");

/// True when all of a text is a refusal, an apology or an error. A conversation may be about
/// errors, so only a short text that begins as such is one: a summary begins with what the
/// user wants or did, in the third person.
pub fn is_refusal(text: &str) -> bool {
    let text = text
        .trim()
        .trim_start_matches(['"', '\'', '*', '#', '`', ' ']);
    if text.is_empty() || text.len() > REFUSAL_BYTES_MAX {
        return false;
    }
    let text = text.replace('’', "'").to_lowercase();
    BEGINNINGS
        .lines()
        .any(|begin| text.starts_with(begin.trim_matches('"')))
        && !goes_on(&text)
}

/// True of a summary that begins with the name of an error and goes on with what the user or
/// the assistant did.
fn goes_on(text: &str) -> bool {
    ["the user", "the assistant", "user:", "assistant:"]
        .iter()
        .any(|who| text.contains(who))
        && !text.starts_with("i ")
        && !text.starts_with("i'")
        && !text.starts_with("sorry")
}
