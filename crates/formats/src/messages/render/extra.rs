//! An extra while it is rendered: the provider's fields, and memoird's own marks.

use serde_json::{Map, Value, json};

use crate::messages::fields::OURS;

/// An extra, taken apart. One that is no object is empty.
#[derive(Default)]
pub(super) struct Extra {
    /// The provider's fields.
    pub(super) rest: Map<String, Value>,
    /// What can be said in no other way.
    pub(super) ours: Map<String, Value>,
}

impl Extra {
    pub(super) fn read(json: &str) -> Self {
        if json.is_empty() {
            return Self::default();
        }
        serde_json::from_str(json).map(Self::of).unwrap_or_default()
    }

    pub(super) fn of(mut rest: Map<String, Value>) -> Self {
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

    /// The type of the provider's object: it is hollow, or memoird has no word for it.
    pub(super) fn kind(&self) -> Option<&str> {
        self.rest.get("type").and_then(Value::as_str)
    }

    /// True for a part that the message did not have.
    pub(super) fn is_placeholder(&self) -> bool {
        self.ours.get("placeholder") == Some(&Value::Bool(true))
    }

    /// True when this field, usually there, was not.
    pub(super) fn lacks(&self, name: &str) -> bool {
        let names = self.ours.get("absent").and_then(Value::as_array);
        names.is_some_and(|names| names.iter().any(|absent| absent == name))
    }

    /// True when the field at this path is a string.
    pub(super) fn has_text(&self, path: &[&str]) -> bool {
        let Some((first, below)) = path.split_first() else {
            return false;
        };
        let field = self.rest.get(*first);
        let field = below.iter().fold(field, |field, name| field?.get(name));
        field.is_some_and(Value::is_string)
    }

    /// Fills the hole at this path. `None` when there is none.
    pub(super) fn fill(&mut self, path: &[&str], content: &str) -> Option<()> {
        let (last, above) = path.split_last()?;
        let mut object = &mut self.rest;
        for name in above {
            object = object.get_mut(*name)?.as_object_mut()?;
        }
        fill(object.get_mut(*last)?, content)
    }
}

/// Fills a hole. `None` when it is none.
pub(super) fn fill(hole: &mut Value, content: &str) -> Option<()> {
    if hole.as_str() != Some("") {
        return None;
    }
    *hole = content.into();
    Some(())
}

/// Adds the fields that are not there yet.
pub(super) fn add(object: &mut Map<String, Value>, more: Map<String, Value>) {
    for (name, value) in more {
        object.entry(name).or_insert(value);
    }
}

/// An object with these fields too, where they are not there yet.
pub(super) fn with(mut object: Value, more: Map<String, Value>) -> Value {
    if let Value::Object(object) = &mut object {
        add(object, more);
    }
    object
}

/// An object of one of the provider's types, with its text in this field. The text is moved.
pub(super) fn typed(kind: &str, field: &str, text: String) -> Value {
    let mut object = json!({ "type": kind });
    object[field] = text.into();
    object
}
