//! Fuzz tests of state patches and word splitting.

#![allow(clippy::unwrap_used, reason = "helpers of tests may panic")]

use memoird_core::error::CoreError;
use memoird_core::limits::Limits;
use memoird_core::state::{State, StatePatch};
use memoird_core::words::ranking::{Query, Scorer, Statistics, TERMS_MAX, Term};
use memoird_core::words::{Languages, normalised, numbers_and_negations, tokens};
use memoird_fuzz::Target;
use serde_json::{Map, Value};

const STATE_BYTES: usize = 4 << 10;

/// Each line is a patch of the result of the previous lines.
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
            match state.patched(&patch_of(patch, Some(state.version)), &limits) {
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

fn patch_of(json: &str, expected_version: Option<u64>) -> StatePatch {
    StatePatch {
        expected_version,
        ..json.into()
    }
}

fn check_patched(before: &State, patch: &str, after: &State, limits: &Limits) {
    assert!(after.json.len() <= STATE_BYTES && after.version == before.version + 1);
    let value = |text: &str| serde_json::from_str::<Value>(text).unwrap();
    let expected = merged(Some(value(&before.json)), &value(patch));
    assert_eq!(value(&after.json), expected, "{} + {patch}", before.json);
    let again = after.patched(&patch_of(patch, None), limits).unwrap();
    assert_eq!(
        again.json, after.json,
        "applying a patch twice changes nothing"
    );
    assert_eq!(
        after.patched(&patch_of("{}", None), limits).unwrap().json,
        after.json
    );
}

/// A second implementation of RFC 7396, derived from the result it specifies and not its steps.
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
        let mut start = 0;
        for token in tokens(text) {
            assert!(token.start >= start && text[token.start..].starts_with(token.word));
            assert!(!token.folded().is_empty(), "{token:?}");
            let all = Languages::from_bits(-1);
            token.forms(all, |form| assert!(!form.is_empty(), "{token:?}"));
            start = token.start;
        }
        let form = normalised(text);
        assert_eq!(normalised(&form), form, "normalizing twice changes nothing");
        numbers_and_negations(text);
        check_query(text);
    });
}

fn check_query(text: &str) {
    let query = Query::new(text, Languages::detect(text));
    let terms: Vec<&[String]> = query.terms().iter().map(Term::forms).collect();
    assert!(terms.len() <= TERMS_MAX);
    for (index, forms) in terms.iter().enumerate() {
        assert!(!terms[..index].contains(forms), "{forms:?} twice");
    }
    let statistics = Statistics {
        memories: 3,
        found_in: vec![1; terms.len()],
        ..Statistics::default()
    };
    let score = Scorer::new(&query, &statistics).score(text);
    assert!(score.is_finite() && score >= 0.0, "{score}");
    assert_eq!(score > 0.0, !terms.is_empty(), "a text matches itself");
}
