//! One object of a provider's message while it is read: what memoird reads is taken
//! out of it, so that what remains is the extra, and because it knows its path, every
//! refusal can name it.

use std::fmt;
use std::mem;

use memoird_core::error::CoreError;
use memoird_core::turn::{MessageFormat, Part, PartKind, Role, Turn};
use serde_json::{Map, Value, json};

use super::calls::CallKind;
use super::content::{Content, ReadPart, read_items};

/// The extra's key for what can be said in no other way.
pub(super) const OURS: &str = "memoird";

/// Characters of a role or a type that a refusal quotes.
const ECHO_CHARS_MAX: usize = 64;

/// By this key serde_json knows an exact number from an object. An extra that happened
/// to begin with it would be read back as a number.
const NUMBER_KEY: &str = "$serde_json::private::Number";

/// The path of a value in the array. It becomes text only in a refusal.
#[derive(Clone, Copy)]
pub(super) enum JsonPath<'a> {
    /// The array itself.
    Messages,
    /// An item of a list.
    Item(&'a JsonPath<'a>, usize),
    /// A field of an object.
    Field(&'a JsonPath<'a>, &'static str),
}

/// An object and its path.
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

    /// Refuses a role or a type; of nothing else may a refusal say what it is.
    pub(super) fn unknown(&self, word: &str, known: &str) -> CoreError {
        let word: String = word.chars().take(ECHO_CHARS_MAX).collect();
        self.refuse(format!("unknown: {word:?}; expected {known}"))
    }
}

impl<'a> Fields<'a> {
    /// A message or a part: an object that will have an extra of its own.
    pub(super) fn of_item(path: JsonPath<'a>, item: &'a mut Value) -> Result<Self, CoreError> {
        let fields = Self::of(path, item)?;
        if let Some(theirs) = fields.object.get_mut(OURS) {
            *theirs = json!({ OURS: theirs.take() });
        }
        Ok(fields)
    }

    fn of(path: JsonPath<'a>, value: &'a mut Value) -> Result<Self, CoreError> {
        let Value::Object(object) = value else {
            return Err(path.expected("an object", Some(value)));
        };
        if object.contains_key(NUMBER_KEY) {
            return Err(path.refuse(format!("the field name {NUMBER_KEY:?} is reserved")));
        }
        Ok(Self { path, object })
    }

    /// The object in a field; values taken from it are gone from this one too.
    pub(super) fn inside(&mut self, name: &'static str) -> Result<Fields<'_>, CoreError> {
        let path = JsonPath::Field(&self.path, name);
        match self.object.get_mut(name) {
            Some(value) => Fields::of(path, value),
            None => Err(path.expected("an object", None)),
        }
    }

    /// The path of a field.
    pub(super) fn path(&self, name: &'static str) -> JsonPath<'_> {
        JsonPath::Field(&self.path, name)
    }

    /// A field, untouched.
    pub(super) fn get(&self, name: &str) -> Option<&Value> {
        self.object.get(name)
    }

    /// A string that must be there, untouched.
    pub(super) fn text(&self, name: &'static str) -> Result<&str, CoreError> {
        match self.get(name) {
            Some(Value::String(text)) => Ok(text),
            other => Err(self.path(name).expected("a string", other)),
        }
    }

    /// A string that must be there, taken out.
    pub(super) fn take_text(&mut self, name: &'static str) -> Result<String, CoreError> {
        let text = self.hollow_text(name)?;
        self.remove(name);
        Ok(text)
    }

    /// A string that must be there, taken out of its place: an empty one stays.
    pub(super) fn hollow_text(&mut self, name: &'static str) -> Result<String, CoreError> {
        match self.object.get_mut(name) {
            Some(Value::String(text)) => Ok(mem::take(text)),
            other => Err(JsonPath::Field(&self.path, name).expected("a string", other.as_deref())),
        }
    }

    /// The id in the first of these fields that is a string, taken out of its place. `None` where
    /// it is empty.
    pub(super) fn hollow_id(&mut self, names: &[&str]) -> Option<String> {
        let is_text = |name: &&&str| self.get(name).is_some_and(Value::is_string);
        let name = names.iter().find(is_text)?;
        match self.object.get_mut(*name) {
            Some(Value::String(id)) if !id.is_empty() => Some(mem::take(id)),
            _ => None,
        }
    }

    /// True where the bot answers this call, or has written this output.
    pub(super) fn is_for_client(&self, call: &CallKind) -> bool {
        call.is_for_client(self.object)
    }

    /// The items of a list, taken out with their field; a list without items, or null in
    /// its stead, stays.
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

    /// A field that is a text or a list of parts, taken out.
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

    /// The same, where the provider wants it to be there.
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

    /// Takes a field out and forgets it.
    pub(super) fn remove(&mut self, name: &str) {
        self.object.shift_remove(name);
    }

    /// Leaves a field for rendering.
    pub(super) fn leave(&mut self, name: &str, value: impl Into<Value>) {
        self.object.insert(name.to_owned(), value.into());
    }

    /// The same for one that is there; gives what it was.
    pub(super) fn replace(&mut self, name: &str, value: impl Into<Value>) -> Option<Value> {
        self.object
            .get_mut(name)
            .map(|field| mem::replace(field, value.into()))
    }

    /// Says that a field which a rendered object usually has is not there.
    pub(super) fn leave_absent(&mut self, name: &str) {
        self.leave_ours("absent", json!([name]));
    }

    /// Says what can be said in no other way.
    pub(super) fn leave_ours(&mut self, member: &str, value: Value) {
        let ours = self.object.entry(OURS).or_insert_with(|| json!({}));
        if let Value::Object(ours) = ours {
            ours.insert(member.to_owned(), value);
        }
    }

    /// The objects of a list, each to be hollowed in its place; none where there is no
    /// such list.
    pub(super) fn objects_mut(
        &mut self,
        name: &str,
    ) -> impl Iterator<Item = &mut Map<String, Value>> {
        let items = self.object.get_mut(name).and_then(Value::as_array_mut);
        items.into_iter().flatten().filter_map(Value::as_object_mut)
    }

    /// True when nothing is left.
    pub(super) fn is_empty(&self) -> bool {
        self.object.is_empty()
    }

    /// The remaining fields, as JSON: the extra.
    pub(super) fn extra(&self) -> String {
        extra(self.object)
    }

    /// The remaining fields.
    pub(super) fn into_rest(self) -> Map<String, Value> {
        mem::take(self.object)
    }

    /// A part with the remaining fields as its extra.
    pub(super) fn into_part(self, kind: PartKind) -> Part {
        Part {
            kind,
            extra_json: self.extra(),
        }
    }

    /// A turn with the remaining fields as its extra.
    pub(super) fn into_turn(self, format: MessageFormat, role: Role, parts: Vec<Part>) -> Turn {
        Turn {
            extra_json: self.extra(),
            format: Some(format),
            ..Turn::new(role, parts)
        }
    }

    /// A part that memoird has no word for.
    pub(super) fn into_opaque_part(self) -> Part {
        self.into_part(PartKind::Text(String::new()))
    }
}

/// The fields of an object as JSON; empty without any.
pub(super) fn extra(object: &Map<String, Value>) -> String {
    if object.is_empty() {
        return String::new();
    }
    // Writing values to a string has no way to fail: all keys are strings.
    serde_json::to_string(object).unwrap_or_default()
}
