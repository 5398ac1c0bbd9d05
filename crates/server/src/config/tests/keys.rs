//! Tests that the default file names every key of the configuration and contains every setting.

use std::collections::BTreeSet;

use super::super::file::File;
use super::*;

/// Not a key of any struct, nor a variant of any enum.
const UNKNOWN: &str = "no_such_key";

/// Inserts a value at the tested position of a file.
type Nesting<'a> = &'a dyn Fn(&str) -> String;

/// Returns the keys or variants that are valid here, if any, from the error for an unknown one.
fn known_at(nest: Nesting) -> Option<Vec<String>> {
    let error = File::parse(&nest(&format!("{{ {UNKNOWN}: 1 }}"))).err()?;
    let (_, list) = error.split_once(&format!("`{UNKNOWN}`, expected one of "))?;
    let known = list.lines().next()?;
    Some(known.split(", ").map(str::to_owned).collect())
}

/// Collects all words that are valid here and below.
fn collect(nest: Nesting, words: &mut BTreeSet<String>) {
    for word in known_at(nest).unwrap_or_default() {
        collect(&|value| nest(&format!("{{ {word}: {value} }}")), words);
        collect(&|value| nest(&format!("{{ {word}: [ {value} ] }}")), words);
        let entry = |value: &str| nest(&format!("{{ {word}: {{ any: {value} }} }}"));
        collect(&entry, words);
        words.insert(word);
    }
}

/// Returns the section of a top-level key in the default file, with its comments.
fn section(key: &str) -> String {
    let start = format!("{key}:");
    let mut section = String::new();
    let mut is_found = false;
    for line in DEFAULT_YAML.lines() {
        let is_top = !line.is_empty() && !line.starts_with(' ');
        if is_top && section.ends_with("\n\n") {
            if is_found {
                break;
            }
            section.clear();
        }
        is_found |= line.starts_with(&start);
        section.push_str(line);
        section.push('\n');
    }
    section
}

#[test]
fn default_file_documents_every_key_and_word() {
    let top = known_at(&str::to_owned).expect("keys");
    assert!(top.len() > 10, "{top:?}");
    let mut missing = Vec::new();
    let mut count = 0;
    for key in top {
        let mut words = BTreeSet::new();
        collect(&|value| format!("{key}: {value}"), &mut words);
        collect(&|value| format!("{key}: [ {value} ]"), &mut words);
        let section = section(&key);
        let is_word = |character: char| character.is_alphanumeric() || character == '_';
        let named: BTreeSet<&str> = section.split(|c| !is_word(c)).collect();
        count += words.len();
        let unnamed = words.iter().filter(|word| !named.contains(word.as_str()));
        missing.extend(unnamed.map(|word| format!("{key}: {word}")));
    }
    assert!(
        missing.is_empty(),
        "not in config/memoird.yaml: {missing:#?}"
    );
    assert!(count > 120, "only {count} words were found");
}

/// Returns the paths of the settings in a file, in block style or in one line.
fn paths(text: &str) -> BTreeSet<String> {
    let mut paths = BTreeSet::new();
    let mut above: Vec<(usize, String)> = Vec::new();
    let lines = text.lines();
    for line in lines.filter(|line| !line.trim_start().starts_with('#')) {
        let Some((key, value)) = line.split_once(':') else {
            continue;
        };
        let indent = key.len() - key.trim_start().len();
        above.retain(|(other, _)| *other < indent);
        above.push((indent, key.trim().to_owned()));
        let keys: Vec<&str> = above.iter().map(|(_, key)| key.as_str()).collect();
        let path = keys.join(".");
        let entries = value.trim().trim_matches(['{', '}']).split(',');
        let inline = entries.filter_map(|entry| entry.split_once(':'));
        paths.extend(inline.map(|(key, _)| format!("{path}.{}", key.trim())));
        paths.insert(path);
    }
    paths
}

#[test]
fn default_file_has_every_setting() {
    let said = paths(DEFAULT_YAML);
    for path in Settings::of(&File::default()).paths() {
        assert!(
            said.contains(path),
            "{path} is missing in config/memoird.yaml"
        );
    }
}
