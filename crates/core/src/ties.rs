//! Ids in provider fields that tie a part to parts of other turns.
//!
//! Calls and results carry ids of their own. This module covers everything else: calls that the
//! provider executes itself, calls that a program makes, and types that a provider adds later. A
//! part is tied to the latest earlier part whose id it references, whatever its type.

use memchr::memmem;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::turn::{Part, PartKind};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartIds {
    /// Id that later parts use to reference it.
    pub name: Option<Box<str>>,
    /// Part that it answers or continues: `call_id`, `tool_use_id` or `approval_request_id`.
    pub answers: Option<Box<str>>,
    /// Program that makes the call: each string in `caller` whose key ends in `id`.
    pub callers: Vec<Box<str>>,
}

impl PartIds {
    /// Ids of earlier parts that it references.
    pub fn refs(self) -> impl Iterator<Item = Box<str>> {
        self.answers.into_iter().chain(self.callers)
    }
}

/// The fields with ids. Deserializing skips all others.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Fields {
    r#type: Option<Value>,
    id: Option<Value>,
    #[serde(deserialize_with = "present")]
    call_id: Option<Value>,
    tool_use_id: Option<Value>,
    approval_request_id: Option<Value>,
    caller: Option<Value>,
}

/// Distinguishes null from an absent field.
fn present<'de, D: serde::Deserializer<'de>>(field: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(field).map(Some)
}

impl Part {
    /// Reads the ids in the provider fields. Does not include the id of a call or result part.
    pub fn ids(&self) -> PartIds {
        let is_opaque = matches!(&self.kind, PartKind::Text(text) if text.is_empty());
        let wanted: &[u8] = if is_opaque { b"id\"" } else { b"\"caller\"" };
        if memmem::find(self.extra_json.as_bytes(), wanted).is_none() {
            return PartIds::default();
        }
        let fields = serde_json::from_str(&self.extra_json).unwrap_or_else(|_| Fields::default());
        let callers = fields
            .caller
            .as_ref()
            .and_then(Value::as_object)
            .map(callers_of)
            .unwrap_or_default();
        let kind = fields.r#type.as_ref().and_then(Value::as_str);
        let Some(kind) = kind.filter(|_| is_opaque) else {
            return PartIds {
                callers,
                ..PartIds::default()
            };
        };
        let by_order = || match kind.strip_suffix("_output") {
            Some(kind) => (None, Some(kind.into())),
            None => (kind.strip_suffix("_call").map(Box::from), None),
        };
        let answered =
            text(fields.tool_use_id.as_ref()).or_else(|| text(fields.approval_request_id.as_ref()));
        let (name, answers) = match (&fields.call_id, text(fields.call_id.as_ref())) {
            // Calls that the provider executes itself need no id and are paired by order.
            (Some(Value::Null), _) => by_order(),
            (_, Some(id)) if kind.ends_with("_call") => (Some(id), None),
            (_, Some(id)) => (Some(id.clone()), Some(id)),
            (_, None) => (text(fields.id.as_ref()), None),
        };
        PartIds {
            name,
            answers: answered.or(answers),
            callers,
        }
    }
}

fn callers_of(caller: &Map<String, Value>) -> Vec<Box<str>> {
    let ids = caller.iter().filter(|(key, _)| key.ends_with("id"));
    ids.filter_map(|(_, id)| text(Some(id))).collect()
}

/// The string if it is not empty.
fn text(value: Option<&Value>) -> Option<Box<str>> {
    let text = value?.as_str()?;
    (!text.is_empty()).then(|| text.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::turn::{Role, Turn};

    fn opaque(json: &str) -> Part {
        Part {
            kind: PartKind::Text(String::new()),
            extra_json: json.into(),
        }
    }

    fn ids(json: &str) -> (Option<Box<str>>, Vec<Box<str>>) {
        let mut ids = opaque(json).ids();
        (ids.name.take(), ids.refs().collect())
    }

    #[test]
    fn ids_are_parsed_from_known_and_unknown_types() {
        for (json, name, refs) in [
            (r#"{"type":"server_tool_use","id":"s"}"#, Some("s"), &[][..]),
            (
                r#"{"type":"x_tool_result","tool_use_id":"s"}"#,
                None,
                &["s"],
            ),
            (
                r#"{"type":"program","id":"p","call_id":"c"}"#,
                Some("c"),
                &["c"],
            ),
            (
                r#"{"type":"x_call","id":"p","call_id":"c"}"#,
                Some("c"),
                &[],
            ),
            (r#"{"type":"x_output","call_id":"c"}"#, Some("c"), &["c"]),
            (
                r#"{"type":"mcp_call","id":"m","approval_request_id":"r"}"#,
                Some("m"),
                &["r"],
            ),
            (
                r#"{"type":"tool_search_call","id":"t","call_id":null}"#,
                Some("tool_search"),
                &[],
            ),
            (
                r#"{"type":"tool_search_output","id":"o","call_id":null}"#,
                None,
                &["tool_search"],
            ),
            (
                r#"{"type":"x","id":"i","caller":{"type":"y","tool_id":"t"}}"#,
                Some("i"),
                &["t"],
            ),
            (
                r#"{"type":"x","id":7,"call_id":[],"tool_use_id":"","caller":"id"}"#,
                None,
                &[],
            ),
            (r#"{"id":"i"}"#, None, &[]),
            (r#"{"id":"#, None, &[]),
        ] {
            let refs: Vec<Box<str>> = refs.iter().map(|id| (*id).into()).collect();
            assert_eq!(ids(json), (name.map(Box::from), refs), "{json}");
        }
    }

    #[test]
    fn links_exclude_references_within_a_turn() {
        let call = opaque(r#"{"type":"server_tool_use","id":"s"}"#);
        let result = opaque(r#"{"type":"web_search_tool_result","tool_use_id":"s"}"#);
        let called = Part {
            extra_json: r#"{"caller":{"type":"code","tool_id":"s"}}"#.into(),
            ..PartKind::ToolUse {
                id: "t".into(),
                name: "f".into(),
                input_json: String::new(),
            }
            .into()
        };
        for (parts, uses, names, refs) in [
            (vec![call.clone(), result.clone()], 0, 0, 0),
            (vec![call.clone(), called.clone()], 1, 1, 0),
            (vec![call.clone(), called.clone(), result.clone()], 1, 0, 0),
            (vec![result.clone()], 0, 0, 1),
            (vec![called], 1, 0, 1),
        ] {
            let links = Turn::new(Role::Assistant, parts).links();
            let found = (links.uses.len(), links.names.len(), links.refs.len());
            assert_eq!(found, (uses, names, refs), "{links:?}");
        }
    }
}
