//! An error of a call, with the typed path of the invalid field. Becomes a gRPC status once.
//!
//! `tests/suite/server/refused_fields.rs` checks each path against the descriptor of its request.

use std::fmt;
use std::time::Duration;

use memoird_core::error::Field;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

const DOMAIN: &str = "memoird";
/// Key of the field path in the error's metadata, which every INVALID_ARGUMENT has.
pub(crate) const FIELD: &str = "field";

/// Maximum length of an error message in bytes.
///
/// Headers contain it twice, once with up to three times the length. Some clients reject headers
/// above 8 KiB.
const MESSAGE_BYTES_MAX: usize = 1_700;

#[derive(Clone, Debug)]
pub(crate) struct Refusal {
    pub(super) code: Code,
    /// Stable name of the error, for programs.
    pub(crate) reason: &'static str,
    pub(super) message: String,
    /// Empty if no single field is invalid.
    pub(super) path: FieldPath,
    /// Whether the message does not name the field, so that the path must precede it.
    ///
    /// A path of several steps always precedes it.
    pub(super) needs_path: bool,
    pub(super) facts: Vec<(&'static str, String)>,
    /// When a retry may succeed.
    pub(crate) retry: Option<Duration>,
}

/// Path of a field in a request, such as `append.turns[1]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FieldPath(
    /// Innermost first.
    Vec<Step>,
);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Field(&'static str),
    Index(usize),
    /// A path inside a JSON text, such as `[3].content`.
    Inside(String),
}

/// Field names in errors, which depend on the request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Names {
    /// The names that most requests have.
    Common,
    Append {
        has_messages: bool,
    },
    /// The append of a `BuildContext`.
    ContextAppend {
        has_messages: bool,
    },
    UpdateTurn {
        has_messages: bool,
    },
    /// An update with `state_json`.
    ReplaceState,
}

impl Names {
    pub(super) fn path(self, field: Field<'_>) -> FieldPath {
        match (self, field) {
            (Self::ContextAppend { has_messages }, field) if !matches!(field, Field::Window(_)) => {
                Self::Append { has_messages }.path(field).under("append")
            }
            // A message may produce several turns, so the path cannot contain its index.
            (
                Self::Append { has_messages: true } | Self::UpdateTurn { has_messages: true },
                Field::Turn(_) | Field::Turns,
            ) => "messages_json".into(),
            (Self::UpdateTurn { .. }, Field::Turn(_) | Field::Turns) => "turn".into(),
            (_, Field::Turn(index)) => FieldPath::from("turns").at(index),
            (_, Field::Turns) => "turns".into(),
            (_, Field::Messages(inside)) => FieldPath::from("messages_json").inside(inside),
            (Self::ReplaceState, Field::StatePatch) => "state_json".into(),
            (_, Field::StatePatch) => "state_patch_json".into(),
            (_, Field::StateVersion) => "expected_state_version".into(),
            (_, Field::Window(name) | Field::Other(name)) => name.into(),
        }
    }

    /// The message of an error about a field. `text` does not contain the field's position.
    pub(super) fn message(self, field: Field<'_>, text: String) -> String {
        match (self, field) {
            (
                Self::Append { has_messages: true } | Self::ContextAppend { has_messages: true },
                Field::Turn(index),
            ) => format!("turns[{index}]: {text}"),
            _ => text,
        }
    }
}

impl FieldPath {
    /// A path that was found by the descriptors of the request.
    pub(crate) fn of_text(path: String) -> Self {
        Self(vec![Step::Inside(path)])
    }

    /// Appends the index of an element.
    pub(crate) fn at(mut self, index: usize) -> Self {
        self.0.insert(0, Step::Index(index));
        self
    }

    /// Puts the path into the message or list that contains it.
    pub(super) fn under(mut self, outer: impl Into<Self>) -> Self {
        self.0.extend(outer.into().0);
        self
    }

    fn inside(mut self, path: &str) -> Self {
        if !path.is_empty() {
            self.0.insert(0, Step::Inside(path.to_owned()));
        }
        self
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl From<&'static str> for FieldPath {
    fn from(field: &'static str) -> Self {
        Self(vec![Step::Field(field)])
    }
}

impl fmt::Display for FieldPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, step) in self.0.iter().rev().enumerate() {
            match step {
                Step::Field(name) if index == 0 => f.write_str(name)?,
                Step::Field(name) => write!(f, ".{name}")?,
                Step::Index(index) => write!(f, "[{index}]")?,
                Step::Inside(path) => f.write_str(path)?,
            }
        }
        Ok(())
    }
}

impl Refusal {
    /// Puts the field, if any, into the message or list that contains it.
    pub(crate) fn under(mut self, outer: impl Into<FieldPath>) -> Self {
        if !self.path.is_empty() {
            self.path = self.path.under(outer);
        }
        self
    }

    /// Sets the invalid field.
    pub(crate) fn about(self, path: impl Into<FieldPath>) -> Self {
        let path = path.into();
        Self { path, ..self }
    }

    /// Renames the outermost field of the path.
    pub(crate) fn renamed(mut self, from: &str, to: &'static str) -> Self {
        if let Some(Step::Field(name)) = self.path.0.last_mut()
            && *name == from
        {
            *name = to;
        }
        self
    }

    pub(crate) fn with_facts(self, facts: Vec<(&'static str, String)>) -> Self {
        Self { facts, ..self }
    }

    /// Puts the path before the message.
    pub(crate) fn with_path(self) -> Self {
        Self {
            needs_path: true,
            ..self
        }
    }
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Self {
        let mut message = refusal.message;
        let mut facts = refusal.facts;
        if !refusal.path.is_empty() {
            let path = refusal.path.to_string();
            if refusal.needs_path || refusal.path.0.len() > 1 {
                message = format!("{path}: {message}");
            }
            facts.push((FIELD, path));
        }
        let facts = facts
            .into_iter()
            .map(|(name, fact)| (name.to_owned(), fact));
        let facts = facts.collect::<std::collections::HashMap<_, _>>();
        let mut details = ErrorDetails::with_error_info(refusal.reason, DOMAIN, facts);
        if refusal.retry.is_some() {
            details.set_retry_info(refusal.retry);
        }
        Self::with_error_details(refusal.code, shortened(message), details)
    }
}

/// Truncates a message to the length that all clients accept.
fn shortened(mut message: String) -> String {
    if message.len() > MESSAGE_BYTES_MAX {
        message.truncate(message.floor_char_boundary(MESSAGE_BYTES_MAX));
        message.push_str(" […]");
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::status;

    #[test]
    fn path_is_nested_outside_in() {
        let refusal = status::invalid("DOCUMENT_INVALID", "ttl", "too long")
            .under("put")
            .under(FieldPath::from("operations").at(3));
        let status = Status::from(refusal);
        assert_eq!(status.message(), "operations[3].put.ttl: too long");
        let info = status.get_details_error_info().unwrap();
        assert_eq!(info.metadata[FIELD], "operations[3].put.ttl");
        let path = Names::Common.path(Field::Messages("[2].role"));
        assert_eq!(path.to_string(), "messages_json[2].role");
    }

    #[test]
    fn error_without_field_stays_without() {
        let refusal = status::stopping().under("append");
        let status = Status::from(refusal.clone());
        assert_eq!(status.message(), refusal.message);
        let info = status.get_details_error_info().unwrap();
        assert!(!info.metadata.contains_key(FIELD));
    }
}
