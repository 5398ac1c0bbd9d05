//! Any bytes as patches of a state, and as words.

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on may panic in its helpers, too"
)]

use memoird_core::error::CoreError;
use memoird_core::limits::Limits;
use memoird_core::state::State;
use memoird_core::words::ranking::{Found, Query, Scorer, Statistics, TERMS_MAX, Term};
use memoird_core::words::{normalised, numbers_and_negations, tokens};
use memoird_fuzz::Target;
use serde_json::{Map, Value};

const STATE_BYTES: usize = 4 << 10;

/// Each line is a patch of what the lines before it made.
#[test]
fn fuzz_patches() {
    let target = Target {
        name: "patches",
        crate_dir: env!("CARGO_MANIFEST_DIR"),
        words: &[
            "\"a\":",
            "\"$serde_json::private::Number\":",
            "{\"a\":null}",
            ",",
            "\n",
        ],
    };
    let limits = Limits {
        state_bytes: STATE_BYTES,
        ..Limits::default()
    };
    target.check(|input| {
        let mut state = State::default();
        for patch in String::from_utf8_lossy(input).lines() {
            match state.patched(patch, Some(state.version), &limits) {
                Ok(patched) => {
                    check_patched(&state, patch, &patched, &limits);
                    state = patched;
                }
                Err(error) => assert!(
                    matches!(
                        error,
                        CoreError::StateInvalid { .. } | CoreError::StateTooLarge { .. }
                    ),
                    "{error:?}"
                ),
            }
        }
    });
}

fn check_patched(before: &State, patch: &str, after: &State, limits: &Limits) {
    assert!(after.json.len() <= STATE_BYTES && after.version == before.version + 1);
    let value = |text: &str| serde_json::from_str::<Value>(text).unwrap();
    let expected = merged(Some(value(&before.json)), &value(patch));
    assert_eq!(value(&after.json), expected, "{} + {patch}", before.json);
    let again = after.patched(patch, None, limits).unwrap();
    assert_eq!(again.json, after.json, "twice is once");
    assert_eq!(after.patched("{}", None, limits).unwrap().json, after.json);
}

/// RFC 7396 once more, by what it says of the result and not of the way there.
fn merged(target: Option<Value>, patch: &Value) -> Value {
    let Value::Object(changes) = patch else {
        return patch.clone();
    };
    let target = match target {
        Some(Value::Object(members)) => members,
        _ => Map::new(),
    };
    let mut result = Map::new();
    for (name, value) in &target {
        if !changes.contains_key(name) {
            result.insert(name.clone(), value.clone());
        }
    }
    for (name, change) in changes.iter().filter(|(_, change)| !change.is_null()) {
        let value = merged(target.get(name).cloned(), change);
        result.insert(name.clone(), value);
    }
    Value::Object(result)
}

#[test]
fn fuzz_words() {
    let target = Target {
        name: "words",
        crate_dir: env!("CARGO_MANIFEST_DIR"),
        words: &[
            "'", "’", "n't", "\u{301}", "\u{345}", "İ", "ß", "ǆ", "１", "Ⅷ", "ﬁ", "-", ".",
        ],
    };
    target.check(|input| {
        let text = &*String::from_utf8_lossy(input);
        let mut end = 0;
        for token in tokens(text) {
            assert!(token.start >= end && text[token.start..].starts_with(token.word));
            assert!(
                !token.folded().is_empty() && !token.stem().is_empty(),
                "{token:?}"
            );
            end = token.start + token.word.len();
        }
        let form = normalised(text);
        assert_eq!(normalised(&form), form, "the form is one of its own");
        numbers_and_negations(text);
        check_query(text);
    });
}

fn check_query(text: &str) {
    let query = Query::new(text);
    let stems: Vec<&str> = query.terms().iter().map(Term::stem).collect();
    assert!(stems.len() <= TERMS_MAX);
    for (place, stem) in stems.iter().enumerate() {
        assert!(!stems[..place].contains(stem), "{stem} twice");
    }
    let statistics = Statistics {
        memories: 3,
        found_in: vec![1; stems.len()],
    };
    let mut found = Found::default();
    (0..stems.len()).for_each(|term| found.insert(term));
    let scorer = Scorer::new(&query, &statistics);
    let score = scorer.score(found, text);
    assert!(score.is_finite() && score >= 0.0, "{score}");
    assert_eq!(score > 0.0, !stems.is_empty(), "a text answers itself");
}
