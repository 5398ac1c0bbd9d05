//! Checks of the repository: file headers, locations, and documentation of error reasons.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

const TOP_LEVEL: [&str; 20] = [
    ".cargo",
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

/// All tracked files with their text, which is empty for binary files.
fn tracked() -> Vec<(String, String)> {
    let listed = Command::new("git")
        .args(["ls-files", "-z"])
        .current_dir(root())
        .output();
    let listed = listed.expect("git runs");
    assert!(listed.status.success(), "{listed:?}");
    let names = String::from_utf8(listed.stdout).expect("names are UTF-8");
    let files = names.split_terminator('\0').filter_map(|name| {
        // A deleted file is still tracked until it is committed.
        let bytes = std::fs::read(root().join(name)).ok()?;
        Some((
            name.to_owned(),
            String::from_utf8(bytes).unwrap_or_default(),
        ))
    });
    files.collect()
}

/// Panics with all mistakes, if there are any.
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
fn every_source_file_starts_with_module_doc() {
    let files = tracked()
        .into_iter()
        .filter(|(name, _)| name.ends_with(".rs"));
    let silent = files.filter(|(_, text)| !text.starts_with("//! "));
    none(silent.map(|(name, _)| format!("{name} does not begin with //!")));
}

#[test]
fn no_todo_markers_or_machine_specific_paths() {
    // Split, so that this file does not match.
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
fn every_allowed_skip_names_an_existing_test() {
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
fn repository_root_contains_only_listed_entries() {
    let files = tracked();
    let tops = files
        .iter()
        .map(|(name, _)| name.split('/').next().unwrap_or(name));
    let tops: BTreeSet<&str> = tops.filter(|top| *top != "tests").collect();
    let strange = tops.iter().filter(|top| !TOP_LEVEL.contains(top));
    none(strange.map(|top| format!("{top} does not belong at the top")));
}

#[test]
fn text_files_end_with_one_newline_and_have_no_trailing_blanks() {
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

/// Converts `InvalidArgument` to `INVALID_ARGUMENT`.
fn as_grpc_writes(code: &str) -> String {
    let mut written = String::new();
    for letter in code.chars() {
        if letter.is_ascii_uppercase() && !written.is_empty() {
            written.push('_');
        }
        written.push(letter.to_ascii_uppercase());
    }
    written
}

/// Clients depend on the reasons, so none may be renamed silently.
#[test]
fn every_error_reason_is_documented_with_its_code() {
    let read = |path: &str| std::fs::read_to_string(root().join(path)).expect(path);
    let documented = read("docs/errors.md");
    let documented: BTreeMap<&str, &str> = documented
        .lines()
        .filter_map(|line| {
            let mut cells = line.split('|').map(|cell| cell.trim().trim_matches('`'));
            let (reason, code) = (cells.nth(1)?, cells.next()?);
            is_reason(reason).then_some((reason, code))
        })
        .collect();
    let builders = ["status::new(", "status::with_facts(", "status::invalid("];
    let wire = tracked().into_iter().filter(|(name, source)| {
        let is_test = name.contains("tests") || name.ends_with("fuzz.rs");
        let builds_errors = builders.iter().any(|builder| source.contains(builder));
        let is_in_wire = name.starts_with("crates/server/src/wire");
        let is_in_server = name.starts_with("crates/server/src");
        (is_in_wire || is_in_server && builds_errors) && !is_test
    });
    let mut known = BTreeSet::new();
    let mut mistakes = Vec::new();
    for (_, source) in wire {
        let pieces: Vec<&str> = source.split('"').collect();
        for pair in pieces.windows(2).filter(|pair| is_reason(pair[1])) {
            let (before, reason) = (pair[0].trim_end().trim_end_matches(','), pair[1]);
            known.insert(reason.to_owned());
            let code = before.rsplit(|c: char| !c.is_ascii_alphabetic()).next();
            let code = if before.ends_with("invalid(") {
                "InvalidArgument"
            } else {
                code.unwrap_or_default()
            };
            let is_code = code.starts_with(|c: char| c.is_ascii_uppercase());
            match documented.get(reason) {
                None => mistakes.push(format!("docs/errors.md lacks {reason}")),
                Some(is) if is_code && *is != as_grpc_writes(code) => {
                    mistakes.push(format!("docs/errors.md: {reason} is {code}, not {is}"));
                }
                Some(_) => {}
            }
        }
    }
    let gone = documented.keys().filter(|reason| !known.contains(**reason));
    mistakes.extend(gone.map(|reason| format!("docs/errors.md: no refusal is {reason}")));
    none(mistakes);
    assert!(known.len() > 100, "{}", known.len());
}

/// Whether a word is in capitals like a reason.
fn is_reason(word: &str) -> bool {
    word.len() > 5
        && word
            .bytes()
            .all(|byte| byte.is_ascii_uppercase() || byte == b'_')
}
