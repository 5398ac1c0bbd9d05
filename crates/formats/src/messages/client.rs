//! Fields of a message for the client: `memoird_client_id` and `memoird_client_json`.
//!
//! They are next to the provider's own fields, become fields of the turn, and are never rendered.

use memoird_core::error::CoreError;
use memoird_core::turn::Turn;
use serde_json::Value;

use super::fields::JsonPath;

const ID: &str = "memoird_client_id";
const JSON: &str = "memoird_client_json";

/// The client fields of one message, or of the items that become one turn.
#[derive(Default)]
pub(super) struct ForClient {
    id: Option<String>,
    json: Option<String>,
}

impl ForClient {
    /// Removes the client fields from a message.
    pub(super) fn take(path: JsonPath<'_>, message: &mut Value) -> Result<Self, CoreError> {
        let Value::Object(message) = message else {
            return Ok(Self::default());
        };
        let id = match message.shift_remove(ID) {
            None => None,
            Some(Value::String(id)) => Some(id),
            Some(other) => {
                return Err(JsonPath::Field(&path, ID).expected("a string", Some(&other)));
            }
        };
        let json = message.shift_remove(JSON).map(|json| json.to_string());
        Ok(Self { id, json })
    }

    /// Merges the fields of another item of the same turn.
    pub(super) fn join(&mut self, path: JsonPath<'_>, other: Self) -> Result<(), CoreError> {
        for (name, mine, others) in [
            (ID, &mut self.id, other.id),
            (JSON, &mut self.json, other.json),
        ] {
            if mine.is_some()
                && others
                    .as_ref()
                    .is_some_and(|other| mine.as_ref() != Some(other))
            {
                let problem = "another item of the same turn says something else; what the \
                               assistant did in a row is one turn: say it with its first item";
                return Err(JsonPath::Field(&path, name).refuse(problem));
            }
            *mine = mine.take().or(others);
        }
        Ok(())
    }

    pub(super) fn put_to(self, turn: &mut Turn) {
        turn.client_id = self.id.unwrap_or_default();
        turn.client_json = self.json.unwrap_or_default();
    }
}
