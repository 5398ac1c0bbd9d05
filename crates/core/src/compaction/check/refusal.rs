//! Whether a text is a refusal, an apology or the report of an error instead of what was asked
//! for.

/// A longer text says something, however it begins; in bytes.
const REFUSAL_BYTES_MAX: usize = 400;

/// How they begin, in small letters and with a plain apostrophe.
const BEGINNINGS: &[&str] = &[
    "i'm sorry",
    "i am sorry",
    "sorry,",
    "sorry but",
    "i apologize",
    "i apologise",
    "apologies",
    "my apologies",
    "i can't",
    "i cannot",
    "i can not",
    "i'm unable",
    "i am unable",
    "i'm not able",
    "i am not able",
    "i won't",
    "i will not",
    "i must decline",
    "i must refuse",
    "i don't feel comfortable",
    "i'm afraid",
    "as an ai",
    "as a language model",
    "unfortunately, i can",
    "unfortunately, i'm",
    "unfortunately, i am",
    "unable to summarize",
    "unable to comply",
    "cannot summarize",
    "error:",
    "error ",
    "[error",
    "an error occurred",
    "internal server error",
    "service unavailable",
    "bad gateway",
    "too many requests",
    "rate limit",
    "request timed out",
    "timeout:",
    "upstream ",
    "traceback (most recent call last)",
    "exception:",
    "http 4",
    "http 5",
    "<html",
    "<!doctype",
    "context_length_exceeded",
    "this model's maximum context length",
];

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
        .iter()
        .any(|beginning| text.starts_with(beginning))
        && !goes_on(&text)
}

/// True where a summary begins with an error's name and then says what was done about it.
fn goes_on(text: &str) -> bool {
    ["the user", "the assistant", "user:", "assistant:"]
        .iter()
        .any(|who| text.contains(who))
        && !text.starts_with("i ")
        && !text.starts_with("i'")
        && !text.starts_with("sorry")
}
