//! Size check for client JSON before parsing.
//!
//! A parsed value takes some hundred bytes, so a few megabytes of JSON could use almost a gigabyte.

/// Maximum number of values in JSON that is parsed into a tree.
pub const VALUES_MAX: usize = 1 << 18;

/// Whether the JSON has more than [`VALUES_MAX`] values, counting member names.
///
/// Scans the text once and accepts text that is not JSON.
pub fn has_too_many_values(json: &str) -> bool {
    if json.len() <= VALUES_MAX {
        return false;
    }
    let (mut is_text, mut is_escaped) = (false, false);
    let mut begins_value = |byte: &u8| {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = is_text,
            b'"' => is_text = !is_text,
            b',' | b':' | b'[' | b'{' => return !is_text,
            _ => {}
        }
        false
    };
    let values = json.as_bytes().iter().filter(|byte| begins_value(byte));
    values.take(VALUES_MAX + 1).count() > VALUES_MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_limit_ignores_separators_in_strings() {
        let many = VALUES_MAX;
        for (json, is_too_much) in [
            (String::new(), false),
            (format!("[{}0]", "0,".repeat(many - 2)), false),
            (format!("[{}0]", "0,".repeat(many + 1)), true),
            (format!("{{{}}}", "\"\":0,".repeat(many)), true),
            ("[".repeat(many + 1), true),
            (format!("[\"{}\"]", ",:[{".repeat(many)), false),
            (format!("[\"{}\"]", "\\\",".repeat(many)), false),
            (format!("[\"\\\\\"{}]", ",0".repeat(many)), true),
        ] {
            let start = &json[..json.len().min(20)];
            assert_eq!(has_too_many_values(&json), is_too_much, "{start}");
        }
    }
}
