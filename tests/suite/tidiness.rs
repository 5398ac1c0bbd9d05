//! A tidy tree: files that say what they are, in the places that are meant for them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

const TOP_LEVEL: [&str; 19] = [
    ".ci",
    ".gitignore",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "Cargo.lock",
    "Cargo.toml",
    "LICENSE-APACHE",
    "LICENSE-MIT",
    "README.md",
    "clients",
    "clippy.toml",
    "config",
    "crates",
    "deny.toml",
    "deploy",
    "docs",
    "justfile",
    "proto",
    "rustfmt.toml",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The tracked files, with their text where they have one.
fn tracked() -> Vec<(String, String)> {
    let listed = Command::new("git")
        .args(["ls-files", "-z"])
        .current_dir(root())
        .output();
    let listed = listed.expect("git runs");
    assert!(listed.status.success(), "{listed:?}");
    let names = String::from_utf8(listed.stdout).expect("names are UTF-8");
    let files = names.split_terminator('\0').filter_map(|name| {
        // One that was just deleted is tracked still.
        let bytes = std::fs::read(root().join(name)).ok()?;
        Some((
            name.to_owned(),
            String::from_utf8(bytes).unwrap_or_default(),
        ))
    });
    files.collect()
}

/// Says all that is wrong at once.
#[track_caller]
fn none(mistakes: impl IntoIterator<Item = String>) {
    let mistakes: Vec<String> = mistakes.into_iter().collect();
    assert!(
        mistakes.is_empty(),
        "{} mistakes:\n{}",
        mistakes.len(),
        mistakes.join("\n")
    );
}

#[test]
fn every_source_file_says_first_what_it_is() {
    let files = tracked()
        .into_iter()
        .filter(|(name, _)| name.ends_with(".rs"));
    let silent = files.filter(|(_, text)| !text.starts_with("//! "));
    none(silent.map(|(name, _)| format!("{name} does not begin with //!")));
}

#[test]
fn nothing_is_left_for_later_and_no_path_is_of_one_machine() {
    // In pieces, so that this file has none of them.
    let unfinished = [
        ["to", "do!"],
        ["unimple", "mented!"],
        ["FIX", "ME"],
        ["X", "XX:"],
    ];
    let machines = [
        ["/ho", "me/"],
        ["/Use", "rs/"],
        ["/ro", "ot/"],
        ["/wo", "rk/"],
    ];
    let words = unfinished
        .iter()
        .chain(&machines)
        .map(|pieces| pieces.concat());
    let words: Vec<String> = words.collect();
    let mut mistakes = Vec::new();
    for (name, text) in tracked() {
        for (number, line) in (1..).zip(text.lines()) {
            let found = words.iter().find(|word| line.contains(word.as_str()));
            mistakes.extend(found.map(|word| format!("{name}:{number}: {word}")));
        }
    }
    none(mistakes);
}

#[test]
fn every_skip_that_is_allowed_is_of_a_test_that_exists() {
    let files = tracked();
    let of_file = |wanted: &str| files.iter().find(|(name, _)| name == wanted);
    let (_, skips) = of_file(".ci/allowed-skips").expect("a tracked file");
    let is_test = |line: &&str| {
        let path = line.split_once(' ').map_or(*line, |(_, test)| test);
        let name = path.rsplit("::").next().unwrap_or(path);
        let function = format!("fn {name}()");
        files.iter().any(|(_, text)| text.contains(&function))
    };
    let unknown = skips.lines().filter(|line| !is_test(line));
    none(unknown.map(|line| format!("{line}: there is no such test")));
}

#[test]
fn the_top_of_the_house_holds_only_what_belongs_there() {
    let files = tracked();
    let tops = files
        .iter()
        .map(|(name, _)| name.split('/').next().unwrap_or(name));
    let tops: BTreeSet<&str> = tops.filter(|top| *top != "tests").collect();
    let strange = tops.iter().filter(|top| !TOP_LEVEL.contains(top));
    none(strange.map(|top| format!("{top} does not belong at the top")));
}

#[test]
fn text_files_end_with_one_newline_and_no_line_ends_with_blanks() {
    let mut mistakes = Vec::new();
    for (name, text) in tracked() {
        let is_ours = [".rs", ".toml", ".proto", ".yaml", ".md"]
            .iter()
            .any(|e| name.ends_with(e));
        if !is_ours || text.is_empty() {
            continue;
        }
        if !text.ends_with('\n') || text.ends_with("\n\n") {
            mistakes.push(format!("{name} does not end with one newline"));
        }
        for (number, line) in (1..).zip(text.lines()) {
            if line.ends_with([' ', '\t', '\r']) {
                mistakes.push(format!("{name}:{number} ends with blanks"));
            }
        }
    }
    none(mistakes);
}
