//! The files that a call names.

use serde_json::Value;

use super::NOTE_BYTES_MAX;
use crate::compaction::identifiers::is_path;

/// Values of a call that are searched.
const VALUES_MAX: usize = 256;
/// Longer arguments are not searched; in bytes.
const ARGUMENTS_BYTES_MAX: usize = 1024 * 1024;

/// Keys whose value is a file or a folder.
const KEYS: &str = "path file filename filepath dir directory folder paths files target source \
    destination notebook";

/// The files in a call's arguments, in their order: values that look like paths, and values
/// of keys such as `path` and `file_name` that may be one.
pub(super) fn of(arguments: &str) -> impl Iterator<Item = String> {
    let mut found = Vec::new();
    if arguments.len() <= ARGUMENTS_BYTES_MAX
        && let Ok(arguments) = serde_json::from_str::<Value>(arguments)
    {
        let mut left = VALUES_MAX;
        look(&arguments, "", &mut left, &mut found);
    }
    found.into_iter()
}

/// The recursion is bounded: the parser refuses more than 128 levels.
fn look(value: &Value, key: &str, left: &mut usize, found: &mut Vec<String>) {
    if *left == 0 {
        return;
    }
    *left -= 1;
    match value {
        Value::String(text) if is_file(text.trim(), key) => found.push(text.trim().to_owned()),
        Value::Array(values) => values
            .iter()
            .for_each(|value| look(value, key, left, found)),
        Value::Object(entries) => {
            entries
                .iter()
                .for_each(|(key, value)| look(value, key, left, found));
        }
        _ => {}
    }
}

fn is_file(text: &str, key: &str) -> bool {
    if text.len() > NOTE_BYTES_MAX || text.is_empty() || text.contains("://") {
        return false;
    }
    // A path may have blanks in it where a key says that it is one.
    is_path(text) || names_file(key) && !text.contains('\n') && text.contains(['/', '.', '\\'])
}

fn names_file(key: &str) -> bool {
    let key = key.to_ascii_lowercase();
    let words = key.split(['_', '-']);
    KEYS.split(' ').any(|known| known == key)
        || words
            .clone()
            .any(|word| matches!(word, "path" | "file" | "filename" | "filepath"))
        || key.ends_with("path")
}
