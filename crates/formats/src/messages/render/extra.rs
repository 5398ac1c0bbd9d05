//! A parsed `extra_json` during rendering: the provider's fields and those of memoird.

use serde_json::{Map, Value, json};

use crate::messages::fields::OURS;

/// A parsed extra. Empty if the JSON is not an object.
#[derive(Default)]
pub(super) struct Extra {
    /// Fields of the provider.
    pub(super) rest: Map<String, Value>,
    /// Members of the key `memoird`.
    pub(super) ours: Map<String, Value>,
}

impl Extra {
    pub(super) fn read(json: &str) -> Self {
        if json.is_empty() {
            return Self::default();
        }
        serde_json::from_str(json)
            .map(Self::new)
            .unwrap_or_default()
    }

    pub(super) fn new(mut rest: Map<String, Value>) -> Self {
        let mut ours = Map::new();
        if let Some(value) = rest.get_mut(OURS) {
            if let Value::Object(object) = value.take() {
                ours = object;
            }
            match ours.shift_remove(OURS) {
                Some(theirs) => *value = theirs,
                None => drop(rest.shift_remove(OURS)),
            }
        }
        Self { rest, ours }
    }

    /// Type of the provider's object, if the part is a hollow or an opaque one.
    pub(super) fn kind(&self) -> Option<&str> {
        self.rest.get("type").and_then(Value::as_str)
    }

    /// Whether the part was added because the message had none.
    pub(super) fn is_placeholder(&self) -> bool {
        self.ours.get("placeholder") == Some(&Value::Bool(true))
    }

    /// Whether this usually present field was absent.
    pub(super) fn lacks(&self, name: &str) -> bool {
        let names = self.ours.get("absent").and_then(Value::as_array);
        names.is_some_and(|names| names.iter().any(|absent| absent == name))
    }

    pub(super) fn has_text(&self, path: &[&str]) -> bool {
        let Some((first, below)) = path.split_first() else {
            return false;
        };
        let first_field = self.rest.get(*first);
        let field = below
            .iter()
            .fold(first_field, |field, name| field?.get(name));
        field.is_some_and(Value::is_string)
    }

    /// Fills the empty string at this path. `None` if there is none.
    pub(super) fn fill(&mut self, path: &[&str], content: &str) -> Option<()> {
        let (last, above) = path.split_last()?;
        let mut object = &mut self.rest;
        for name in above {
            object = object.get_mut(*name)?.as_object_mut()?;
        }
        fill(object.get_mut(*last)?, content)
    }
}

/// Fills an empty string. `None` if the value is anything else.
pub(super) fn fill(hole: &mut Value, content: &str) -> Option<()> {
    if hole.as_str() != Some("") {
        return None;
    }
    *hole = content.into();
    Some(())
}

/// Adds fields that are not present yet.
pub(super) fn add(object: &mut Map<String, Value>, more: Map<String, Value>) {
    for (name, value) in more {
        object.entry(name).or_insert(value);
    }
}

/// Returns the object with these fields added, unless present.
pub(super) fn with(mut object: Value, more: Map<String, Value>) -> Value {
    if let Value::Object(object) = &mut object {
        add(object, more);
    }
    object
}

/// Builds an object of one of the provider's types. Moves the text into its field without copying.
pub(super) fn typed(kind: &str, field: &str, text: String) -> Value {
    let mut object = json!({ "type": kind });
    object[field] = text.into();
    object
}
