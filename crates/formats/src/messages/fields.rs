//! An object of a provider's message during parsing.
//!
//! Parsed fields are removed, so that the rest is the extra. The object has its path, which every
//! error includes.

use std::fmt;
use std::mem;

use memoird_core::error::CoreError;
use memoird_core::turn::{MessageFormat, Part, PartKind, Role, Turn};
use serde_json::{Map, Value, json};

use super::calls::CallKind;
use super::content::{Content, ReadPart, read_items};

/// Key of memoird's own members in an extra.
pub(super) const OURS: &str = "memoird";

/// Maximum characters of a role or a type that an error quotes.
const ECHO_CHARS_MAX: usize = 64;

/// Key with which serde_json represents an exact number as an object.
///
/// An extra that begins with it would be deserialized as a number.
const NUMBER_KEY: &str = "$serde_json::private::Number";

/// Path of a value in the array. Formatted only for errors.
#[derive(Clone, Copy)]
pub(super) enum JsonPath<'a> {
    /// The array itself.
    Messages,
    Item(&'a JsonPath<'a>, usize),
    Field(&'a JsonPath<'a>, &'static str),
}

pub(super) struct Fields<'a> {
    path: JsonPath<'a>,
    object: &'a mut Map<String, Value>,
}

impl fmt::Display for JsonPath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Messages => Ok(()),
            Self::Item(list, index) => write!(f, "{list}[{index}]"),
            Self::Field(object, name) => write!(f, "{object}.{name}"),
        }
    }
}

impl JsonPath<'_> {
    pub(super) fn refuse(&self, problem: impl Into<String>) -> CoreError {
        CoreError::MessagesInvalid {
            path: self.to_string(),
            problem: problem.into(),
        }
    }

    pub(super) fn expected(&self, what: &str, found: Option<&Value>) -> CoreError {
        let found = match found {
            None => "missing",
            Some(Value::Null) => "null",
            Some(Value::Bool(_)) => "a boolean",
            Some(Value::Number(_)) => "a number",
            Some(Value::String(_)) => "a string",
            Some(Value::Array(_)) => "a list",
            Some(Value::Object(_)) => "an object",
        };
        self.refuse(format!("{found}; expected {what}"))
    }

    /// Error for an unknown role or type. Errors may quote no other content.
    pub(super) fn unknown(&self, word: &str, known: &str) -> CoreError {
        let word: String = word.chars().take(ECHO_CHARS_MAX).collect();
        self.refuse(format!("unknown: {word:?}; expected {known}"))
    }
}

impl<'a> Fields<'a> {
    /// Wraps a message or a part, which has an extra of its own.
    pub(super) fn of_item(path: JsonPath<'a>, item: &'a mut Value) -> Result<Self, CoreError> {
        let fields = Self::new(path, item)?;
        if let Some(theirs) = fields.object.get_mut(OURS) {
            *theirs = json!({ OURS: theirs.take() });
        }
        Ok(fields)
    }

    fn new(path: JsonPath<'a>, value: &'a mut Value) -> Result<Self, CoreError> {
        let Value::Object(object) = value else {
            return Err(path.expected("an object", Some(value)));
        };
        if object.contains_key(NUMBER_KEY) {
            return Err(path.refuse(format!("the field name {NUMBER_KEY:?} is reserved")));
        }
        Ok(Self { path, object })
    }

    /// Returns the object in a field. Values taken from it are removed from this object too.
    pub(super) fn inside(&mut self, name: &'static str) -> Result<Fields<'_>, CoreError> {
        let path = JsonPath::Field(&self.path, name);
        match self.object.get_mut(name) {
            Some(value) => Fields::new(path, value),
            None => Err(path.expected("an object", None)),
        }
    }

    pub(super) fn path(&self, name: &'static str) -> JsonPath<'_> {
        JsonPath::Field(&self.path, name)
    }

    /// Returns a field and leaves it in place.
    pub(super) fn get(&self, name: &str) -> Option<&Value> {
        self.object.get(name)
    }

    /// Returns a required string and leaves it in place.
    pub(super) fn text(&self, name: &'static str) -> Result<&str, CoreError> {
        match self.get(name) {
            Some(Value::String(text)) => Ok(text),
            other => Err(self.path(name).expected("a string", other)),
        }
    }

    /// Removes and returns a required string.
    pub(super) fn take_text(&mut self, name: &'static str) -> Result<String, CoreError> {
        let text = self.hollow_text(name)?;
        self.remove(name);
        Ok(text)
    }

    /// Takes a required string and leaves an empty one in its place.
    pub(super) fn hollow_text(&mut self, name: &'static str) -> Result<String, CoreError> {
        match self.object.get_mut(name) {
            Some(Value::String(text)) => Ok(mem::take(text)),
            other => Err(JsonPath::Field(&self.path, name).expected("a string", other.as_deref())),
        }
    }

    /// Takes the id from the first of these fields that is a string. `None` if it is empty.
    pub(super) fn hollow_id(&mut self, names: &[&str]) -> Option<String> {
        let is_text = |name: &&&str| self.get(name).is_some_and(Value::is_string);
        let name = names.iter().find(is_text)?;
        match self.object.get_mut(*name) {
            Some(Value::String(id)) if !id.is_empty() => Some(mem::take(id)),
            _ => None,
        }
    }

    /// Whether the bot answers this call, or wrote this output.
    pub(super) fn is_for_client(&self, call: &CallKind) -> bool {
        call.is_for_client(self.object)
    }

    /// Removes a list and returns its items. An empty list or null stays in place.
    pub(super) fn take_list(&mut self, name: &'static str) -> Result<Vec<Value>, CoreError> {
        let items = match self.object.get_mut(name) {
            None | Some(Value::Null) => return Ok(Vec::new()),
            Some(Value::Array(items)) => mem::take(items),
            Some(other) => {
                return Err(JsonPath::Field(&self.path, name).expected("a list", Some(other)));
            }
        };
        if !items.is_empty() {
            self.remove(name);
        }
        Ok(items)
    }

    /// Removes a field that is a string or a list of parts.
    pub(super) fn take_content(
        &mut self,
        name: &'static str,
        read: ReadPart,
    ) -> Result<Content, CoreError> {
        let path = JsonPath::Field(&self.path, name);
        match self.object.get_mut(name) {
            None => Ok(Content::Absent),
            Some(Value::Null) => Ok(Content::Null),
            Some(Value::Array(items)) => {
                read_items(path, mem::take(items), read).map(Content::List)
            }
            Some(Value::String(text)) => {
                let text = mem::take(text);
                self.remove(name);
                Ok(Content::Text(text))
            }
            other => Err(path.expected("a string or a list", other.as_deref())),
        }
    }

    /// As [`Self::take_content`], for a required field.
    pub(super) fn take_content_required(
        &mut self,
        name: &'static str,
        read: ReadPart,
    ) -> Result<Content, CoreError> {
        match self.take_content(name, read)? {
            Content::Absent | Content::Null => {
                let path = self.path(name);
                Err(path.expected("a string or a list", self.get(name)))
            }
            content => Ok(content),
        }
    }

    pub(super) fn remove(&mut self, name: &str) {
        self.object.shift_remove(name);
    }

    /// Sets a field for rendering.
    pub(super) fn leave(&mut self, name: &str, value: impl Into<Value>) {
        self.object.insert(name.to_owned(), value.into());
    }

    /// Replaces a field if it is present, and returns its value.
    pub(super) fn replace(&mut self, name: &str, value: impl Into<Value>) -> Option<Value> {
        self.object
            .get_mut(name)
            .map(|field| mem::replace(field, value.into()))
    }

    /// Records that a usually present field is absent.
    pub(super) fn leave_absent(&mut self, name: &str) {
        self.leave_ours("absent", json!([name]));
    }

    /// Sets a member of the key `memoird`.
    pub(super) fn leave_ours(&mut self, member: &str, value: Value) {
        let ours = self.object.entry(OURS).or_insert_with(|| json!({}));
        if let Value::Object(ours) = ours {
            ours.insert(member.to_owned(), value);
        }
    }

    /// Returns the objects of a list, to be hollowed in place. Empty if the field is not a list.
    pub(super) fn objects_mut(
        &mut self,
        name: &str,
    ) -> impl Iterator<Item = &mut Map<String, Value>> {
        let items = self.object.get_mut(name).and_then(Value::as_array_mut);
        items.into_iter().flatten().filter_map(Value::as_object_mut)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.object.is_empty()
    }

    pub(super) fn extra(&self) -> String {
        extra(self.object)
    }

    pub(super) fn into_rest(self) -> Map<String, Value> {
        mem::take(self.object)
    }

    /// Creates a part with the remaining fields as its extra.
    pub(super) fn into_part(self, kind: PartKind) -> Part {
        Part {
            kind,
            extra_json: self.extra(),
        }
    }

    /// Creates a turn with the remaining fields as its extra.
    pub(super) fn into_turn(self, format: MessageFormat, role: Role, parts: Vec<Part>) -> Turn {
        Turn {
            extra_json: self.extra(),
            format: Some(format),
            ..Turn::new(role, parts)
        }
    }

    /// Creates an opaque part, for an object that memoird does not interpret.
    pub(super) fn into_opaque_part(self) -> Part {
        self.into_part(PartKind::Text(String::new()))
    }
}

/// Serializes the fields of an object. Empty if there are none.
pub(super) fn extra(object: &Map<String, Value>) -> String {
    if object.is_empty() {
        return String::new();
    }
    // Cannot fail, since all keys are strings.
    serde_json::to_string(object).unwrap_or_default()
}
