//! Compact JSON for summarizers: the same tokens, without whitespace in between.

use std::borrow::Cow;

use serde_json::value::RawValue;

/// Removes whitespace between tokens if the text is a JSON object or list. Otherwise only trims it.
///
/// Takes time linear in the text.
pub fn compact(text: &str) -> Cow<'_, str> {
    let trimmed = text.trim();
    let is_json =
        trimmed.starts_with(['{', '[']) && serde_json::from_str::<&RawValue>(trimmed).is_ok();
    if is_json {
        Cow::Owned(without_blanks(trimmed))
    } else {
        Cow::Borrowed(trimmed)
    }
}

fn without_blanks(json: &str) -> String {
    let (mut is_inside, mut is_escaped) = (false, false);
    let is_kept = |c: &char| {
        let is_kept = is_inside || !c.is_ascii_whitespace();
        if is_escaped {
            is_escaped = false;
        } else if *c == '"' {
            is_inside = !is_inside;
        } else {
            is_escaped = is_inside && *c == '\\';
        }
        is_kept
    };
    json.chars().filter(is_kept).collect()
}
