//! JSON of clients before it is read. As a tree each of its values takes some hundred bytes, so a
//! request of a few megabytes could take most of a gigabyte.

/// JSON with more values than these is not read as a tree.
pub const VALUES_MAX: usize = 1 << 18;

/// True for JSON with more than [`VALUES_MAX`] values, names included. Its text is looked at once,
/// whether it is JSON or not.
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
    fn values_are_counted_and_text_is_not() {
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
            let begin = &json[..json.len().min(20)];
            assert_eq!(has_too_many_values(&json), is_too_much, "{begin}");
        }
    }
}
