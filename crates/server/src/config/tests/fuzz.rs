//! Fuzz test of the configuration file with arbitrary bytes.
//!
//! A file is either rejected without quoting its secrets, or unchanged after serialization and
//! parsing.

use memoird_fuzz::Target;

use super::super::file::File;
use super::*;

/// A key written directly into a file of the corpus.
const PLAIN_KEY: &str = "plainkey-0123456789abcdef";
/// Maximum length of an error message in bytes.
const REFUSAL_BYTES_MAX: usize = 64 << 10;

#[test]
fn fuzz_configuration() {
    let target = Target {
        name: "configuration",
        crate_dir: env!("CARGO_MANIFEST_DIR"),
        words: &[
            ": ",
            "- ",
            "&a ",
            "*a",
            "<<: ",
            "!!str ",
            "|\n",
            "---\n",
            "keys:",
            "api_key:",
            "~",
            "{ env: X }",
            "90s",
            "4MiB",
            "50%",
            "auto",
            "never",
            "\t",
            "  ",
            "#",
            "0x1F",
            ".inf",
        ],
    };
    target.check(|input| {
        let Ok(text) = std::str::from_utf8(input) else {
            return;
        };
        match File::parse(text) {
            Ok(file) => check_read(&file, text),
            Err(refusal) => check_refusal(&refusal, text),
        }
    });
}

fn check_read(file: &File, text: &str) {
    let written = serde_json::to_string(file).unwrap();
    let read = File::parse(&written).unwrap_or_else(|error| panic!("{written}: {error}"));
    assert_eq!(format!("{read:?}"), format!("{file:?}"));
    // Secret files are read, so skip inputs that may name arbitrary files.
    if !text.contains("file")
        && let Err(refusal) = parse(text)
    {
        check_refusal(&refusal, text);
    }
}

fn check_refusal(refusal: &str, text: &str) {
    assert!(
        !refusal.is_empty() && refusal.len() <= REFUSAL_BYTES_MAX,
        "{refusal}"
    );
    let is_key_at = |place: usize| {
        let before = text[..place].trim_end().strip_suffix("keys: [");
        before.is_some_and(|before| before.ends_with([' ', '\n', '{', ',']))
    };
    let mut places = text.match_indices(PLAIN_KEY);
    let is_key = places.all(|(place, _)| is_key_at(place));
    if is_key {
        assert!(!refusal.contains(PLAIN_KEY), "{refusal}");
    }
}
