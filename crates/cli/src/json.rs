//! API messages as JSON, for `--json` and exports, and parsed back from it.
//!
//! This is proto3 JSON with the original field names, and 64-bit integers as numbers. Unset fields
//! are null or have default values. Messages of [`SPARSE`] omit them.

use memoird_proto::prost_reflect::{
    DeserializeOptions, DynamicMessage, EnumDescriptor, FieldDescriptor, Kind, MessageDescriptor,
    ReflectMessage, SerializeOptions,
};
use memoird_proto::{DESCRIPTOR_POOL, PACKAGE};
use prost::Name;
use serde::de::Error;
use serde_json::value::Serializer;
use serde_json::{Map, Number, Value};

/// Messages with many rarely set fields, and the fields that are always shown.
const SPARSE: [(&str, &str); 6] = [
    ("Turn", "seq role timestamp parts"),
    ("Part", ""),
    ("WatchEventsResponse", ""),
    ("Event", "event_id time tenant session_id generation"),
    ("Memory", "id subject kind visibility content importance"),
    ("MemorySource", ""),
];

/// Converts a message with all its fields.
pub fn of<M: Name>(message: &M) -> Value {
    value(&dynamic(message))
}

pub(crate) fn value(message: &DynamicMessage) -> Value {
    let options = SerializeOptions::new()
        .use_proto_field_name(true)
        .stringify_64_bit_integers(false);
    let value = message.serialize_with_options(Serializer, &options);
    // Cannot fail: the message comes from its descriptor.
    value.map_or(Value::Null, |value| whole(&message.descriptor(), value))
}

pub(crate) fn values(messages: &[DynamicMessage]) -> Value {
    messages.iter().map(value).collect()
}

/// Converts a message to one with access to its fields by name.
pub(crate) fn dynamic<M: Name>(message: &M) -> DynamicMessage {
    let dynamic = DynamicMessage::decode(descriptor::<M>(), &*message.encode_to_vec());
    dynamic.expect("both sides use the same descriptor")
}

pub fn all<'a, M: Name + 'a>(messages: impl IntoIterator<Item = &'a M>) -> Value {
    messages.into_iter().map(of).collect()
}

/// Parses a message. Unknown fields are rejected, because they would be lost.
pub fn read<M: Name + Default>(text: &[u8], required: &[&str]) -> serde_json::Result<M> {
    let message = parse(descriptor::<M>(), text, required)?;
    message.transcode_to().map_err(Error::custom)
}

pub(crate) fn parse(
    descriptor: MessageDescriptor,
    text: &[u8],
    required: &[&str],
) -> serde_json::Result<DynamicMessage> {
    let mut value: Value = serde_json::from_slice(text)?;
    if let Some(missing) = required.iter().find(|field| value.get(field).is_none()) {
        return Err(Error::custom(format!("missing field `{missing}`")));
    }
    plain_numbers(&mut value);
    let options = DeserializeOptions::new().deny_unknown_fields(true);
    DynamicMessage::deserialize_with_options(descriptor, value, &options)
}

/// The name of an enum value without its prefix, such as `user` for `ROLE_USER`.
///
/// Unknown values are returned as numbers.
pub fn short_name(of: &str, number: i32) -> String {
    let values = DESCRIPTOR_POOL.get_enum_by_name(&format!("{PACKAGE}.{of}"));
    values.map_or(number.to_string(), |values| value_name(&values, number))
}

pub(crate) fn value_name(values: &EnumDescriptor, number: i32) -> String {
    let unspecified = values.default_value();
    let prefix = unspecified.name().trim_end_matches("UNSPECIFIED");
    match values.get_value(number) {
        Some(value) => value.name().trim_start_matches(prefix).to_lowercase(),
        None => number.to_string(),
    }
}

pub(crate) fn descriptor<M: Name>() -> MessageDescriptor {
    let name = M::full_name();
    let descriptor = DESCRIPTOR_POOL.get_message_by_name(&name);
    descriptor.expect("a message of the contract has a descriptor")
}

/// Adds the fields that the serializer omitted, in the order of the definition.
fn whole(message: &MessageDescriptor, value: Value) -> Value {
    let Value::Object(mut set) = value else {
        // A timestamp or a duration, which is a string.
        return value;
    };
    let sparse = SPARSE.iter().find(|(name, _)| *name == message.name());
    let mut object = Map::new();
    for field in message.fields() {
        let is_shown =
            sparse.is_none_or(|(_, shown)| shown.split(' ').any(|name| name == field.name()));
        let is_choice = field
            .containing_oneof()
            .is_some_and(|oneof| !oneof.is_synthetic());
        let value = match set.remove(field.name()) {
            Some(value) => whole_field(&field, value),
            None if is_shown && !is_choice => absent(&field),
            None => continue,
        };
        object.insert(field.name().to_owned(), value);
    }
    Value::Object(object)
}

fn whole_field(field: &FieldDescriptor, value: Value) -> Value {
    match (field.kind(), value) {
        (Kind::Message(message), Value::Array(items)) => {
            let items = items.into_iter().map(|item| whole(&message, item));
            items.collect()
        }
        (Kind::Message(message), value) if !field.is_map() => whole(&message, value),
        (_, value) => value,
    }
}

/// The value of an unset field.
fn absent(field: &FieldDescriptor) -> Value {
    if field.is_list() {
        return Value::Array(Vec::new());
    }
    if field.is_map() {
        return Value::Object(Map::new());
    }
    match field.kind() {
        _ if field.supports_presence() => Value::Null,
        Kind::Bool => false.into(),
        Kind::Float | Kind::Double => 0.0.into(),
        Kind::String | Kind::Bytes => "".into(),
        Kind::Enum(values) => values.default_value().name().into(),
        _ => 0.into(),
    }
}

/// Converts numbers to their canonical form.
///
/// serde_json preserves their notation, and other deserializers reject one such as 0.50.
fn plain_numbers(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(plain_numbers),
        Value::Object(fields) => fields.values_mut().for_each(plain_numbers),
        Value::Number(number) if !number.is_u64() && !number.is_i64() => {
            if let Some(plain) = number.as_f64().and_then(Number::from_f64) {
                *number = plain;
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests;
