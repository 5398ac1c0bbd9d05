//! The free-form JSON state of a session, changed by merge patches (RFC 7396).

use std::sync::Arc;

use serde_json::{Map, Value};

use crate::error::CoreError;
use crate::limits::Limits;

/// A session's state with its version. A session starts with `{}` at version 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// A compact JSON object.
    pub json: Arc<str>,
    /// Number of changes.
    pub version: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StatePatch {
    /// A merge patch (RFC 7396), or the complete new object.
    pub json: String,
    /// Whether `json` is the complete new object. Its nulls are stored.
    pub replaces: bool,
    /// Reject the patch unless the state has this version.
    pub expected_version: Option<u64>,
}

impl From<&str> for StatePatch {
    /// Creates a merge patch for any version.
    fn from(json: &str) -> Self {
        Self {
            json: json.to_owned(),
            ..Self::default()
        }
    }
}

impl Default for State {
    fn default() -> Self {
        Self {
            json: "{}".into(),
            version: 0,
        }
    }
}

impl State {
    /// Returns the patched state.
    ///
    /// # Errors
    /// [`CoreError::StaleStateVersion`], [`CoreError::StateInvalid`] or
    /// [`CoreError::StateTooLarge`].
    pub fn patched(&self, patch: &StatePatch, limits: &Limits) -> Result<Self, CoreError> {
        let stale = |expected: &u64| *expected != self.version;
        if let Some(expected) = patch.expected_version.filter(stale) {
            return Err(CoreError::StaleStateVersion {
                expected,
                actual: self.version,
            });
        }
        let patch_bytes_max = patch_bytes_max(limits.state_bytes);
        if patch.json.len() > patch_bytes_max {
            return Err(CoreError::StateTooLarge {
                actual: patch.json.len(),
                limit: patch_bytes_max,
            });
        }
        let mut state = Value::Object(parse_object(&patch.json)?);
        if !patch.replaces {
            let patch = std::mem::replace(&mut state, Value::Object(parse_object(&self.json)?));
            merge(&mut state, patch);
        }
        let json = state.to_string();
        if json.len() > limits.state_bytes {
            return Err(CoreError::StateTooLarge {
                actual: json.len(),
                limit: limits.state_bytes,
            });
        }
        Ok(Self {
            json: json.into(),
            version: self.version + 1,
        })
    }
}

/// Maximum bytes of a patch: it may remove all members of a full state and add as many.
pub fn patch_bytes_max(state_bytes: usize) -> usize {
    state_bytes.saturating_mul(2)
}

/// The parser rejects JSON nested more than 128 levels deep.
fn parse_object(text: &str) -> Result<Map<String, Value>, CoreError> {
    let invalid = |problem: String| CoreError::StateInvalid { problem };
    match serde_json::from_str(text) {
        Ok(Value::Object(object)) => Ok(object),
        Err(_) if text.trim().is_empty() => Err(invalid(
            "is empty; send an object of what changes, such as {\"step\": 2}".into(),
        )),
        Ok(_) => Err(invalid(
            "not a JSON object; the state of a session is one".into(),
        )),
        Err(error) if error.to_string().starts_with("recursion limit") => {
            Err(invalid("nested deeper than 128 levels".into()))
        }
        Err(error) => Err(invalid(format!("not JSON: {error}"))),
    }
}

/// Implements RFC 7396, section 2.
fn merge(target: &mut Value, patch: Value) {
    let Value::Object(patch) = patch else {
        *target = patch;
        return;
    };
    let mut members = match target.take() {
        Value::Object(members) => members,
        _ => Map::new(),
    };
    // One pass: removing members one by one would shift the rest for each.
    members.retain(|name, _| patch.get(name).is_none_or(|value| !value.is_null()));
    for (name, value) in patch {
        if !value.is_null() {
            merge(members.entry(name).or_insert(Value::Null), value);
        }
    }
    *target = Value::Object(members);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The examples of RFC 7396, appendix A, that start and end with an object.
    #[test]
    fn patch_follows_rfc_7396_examples() {
        let cases = [
            (r#"{"a":"b"}"#, r#"{"a":"c"}"#, r#"{"a":"c"}"#),
            (r#"{"a":"b"}"#, r#"{"b":"c"}"#, r#"{"a":"b","b":"c"}"#),
            (r#"{"a":"b"}"#, r#"{"a":null}"#, r"{}"),
            (r#"{"a":"b","b":"c"}"#, r#"{"a":null}"#, r#"{"b":"c"}"#),
            (r#"{"a":["b"]}"#, r#"{"a":"c"}"#, r#"{"a":"c"}"#),
            (r#"{"a":"c"}"#, r#"{"a":["b"]}"#, r#"{"a":["b"]}"#),
            (
                r#"{"a":{"b":"c"}}"#,
                r#"{"a":{"b":"d","c":null}}"#,
                r#"{"a":{"b":"d"}}"#,
            ),
            (r#"{"a":[{"b":"c"}]}"#, r#"{"a":[1]}"#, r#"{"a":[1]}"#),
            (r#"{"e":null}"#, r#"{"a":1}"#, r#"{"e":null,"a":1}"#),
            (r"{}", r#"{"a":{"bb":{"ccc":null}}}"#, r#"{"a":{"bb":{}}}"#),
            (
                r#"{"n":1}"#,
                r#"{"n":12345678901234567890.10}"#,
                r#"{"n":12345678901234567890.10}"#,
            ),
        ];
        for (before, patch, after) in cases {
            let state = State {
                json: before.into(),
                version: 7,
            };
            let patch_of_7 = StatePatch {
                expected_version: Some(7),
                ..patch.into()
            };
            let patched = state.patched(&patch_of_7, &Limits::default()).unwrap();
            assert_eq!(
                (&*patched.json, patched.version),
                (after, 8),
                "{before} + {patch}"
            );
        }
    }

    #[test]
    fn replacing_patch_keeps_nulls_and_increments_version() {
        let state = State {
            json: r#"{"a":"b","c":1}"#.into(),
            version: 7,
        };
        let whole = StatePatch {
            replaces: true,
            ..StatePatch::from(r#"{"a":null}"#)
        };
        let replaced = state.patched(&whole, &Limits::default()).unwrap();
        assert_eq!((&*replaced.json, replaced.version), (r#"{"a":null}"#, 8));
    }

    #[test]
    fn invalid_deep_large_or_stale_patch_is_refused() {
        let limits = Limits {
            state_bytes: 10,
            ..Limits::default()
        };
        let patched = |patch: &str| State::default().patched(&patch.into(), &limits);
        let deep = format!("{}1{}", r#"{"a":"#.repeat(1_000), "}".repeat(1_000));
        let roomy = Limits::default();
        for (bad, limits) in [
            ("", &limits),
            ("[]", &limits),
            ("null", &limits),
            ("{", &limits),
            (&deep, &roomy),
        ] {
            let refused = State::default().patched(&bad.into(), limits);
            assert!(
                matches!(refused, Err(CoreError::StateInvalid { .. })),
                "{bad:.20}"
            );
        }
        let large = format!(r#"{{"{}":null}}"#, "x".repeat(20));
        assert!(matches!(
            patched(&large),
            Err(CoreError::StateTooLarge { limit: 20, .. })
        ));
        assert!(matches!(
            patched(r#"{"a":"0123456789"}"#),
            Err(CoreError::StateTooLarge { limit: 10, .. })
        ));
        let stale = StatePatch {
            expected_version: Some(1),
            ..StatePatch::from("{}")
        };
        assert_eq!(
            State::default().patched(&stale, &limits),
            Err(CoreError::StaleStateVersion {
                expected: 1,
                actual: 0
            })
        );
    }
}
