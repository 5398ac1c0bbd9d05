//! Messages of the contract as JSON, for `--json`, and read back from it: proto3's JSON with the
//! contract's own field names and with whole numbers as numbers. A field that is not there is
//! null or its default; of the messages in [`SPARSE`] it is left out.

use memoird_proto::prost_reflect::{
    DeserializeOptions, DynamicMessage, FieldDescriptor, Kind, MessageDescriptor, SerializeOptions,
};
use memoird_proto::{DESCRIPTOR_POOL, PACKAGE};
use prost::Name;
use serde::de::Error;
use serde_json::value::Serializer;
use serde_json::{Map, Number, Value};

/// Messages with many fields that are seldom set, and the fields that are always shown.
const SPARSE: [(&str, &str); 6] = [
    ("Turn", "seq role timestamp parts"),
    ("Part", ""),
    ("WatchEventsResponse", ""),
    ("Event", "event_id time kind tenant session_id generation"),
    ("Memory", "id subject kind visibility content importance"),
    ("MemorySource", ""),
];

/// A message, whole.
pub(super) fn of<M: Name>(message: &M) -> Value {
    let options = SerializeOptions::new()
        .use_proto_field_name(true)
        .stringify_64_bit_integers(false);
    let descriptor = descriptor::<M>();
    let encoded = &*message.encode_to_vec();
    let value = DynamicMessage::decode(descriptor.clone(), encoded)
        .map_err(serde_json::Error::custom)
        .and_then(|message| message.serialize_with_options(Serializer, &options));
    // Both are made of one contract, so neither can fail.
    value.map_or(Value::Null, |value| whole(&descriptor, value))
}

/// Messages, one by one.
pub(super) fn all<'a, M: Name + 'a>(messages: impl IntoIterator<Item = &'a M>) -> Value {
    messages.into_iter().map(of).collect()
}

/// Reads a message. Fields that the contract does not have are refused: they would be lost.
pub(super) fn read<M: Name + Default>(text: &[u8], required: &[&str]) -> serde_json::Result<M> {
    let mut value: Value = serde_json::from_slice(text)?;
    if let Some(missing) = required.iter().find(|field| value.get(field).is_none()) {
        return Err(Error::custom(format!("missing field `{missing}`")));
    }
    plain_numbers(&mut value);
    let options = DeserializeOptions::new().deny_unknown_fields(true);
    let message = DynamicMessage::deserialize_with_options(descriptor::<M>(), value, &options)?;
    message.transcode_to().map_err(Error::custom)
}

/// The name of an enum's value without the enum's own name: `user` of `ROLE_USER`; the number
/// where this memoird knows no name.
pub(super) fn short_name(of: &str, number: i32) -> String {
    let values = DESCRIPTOR_POOL.get_enum_by_name(&format!("{PACKAGE}.{of}"));
    let name = |number| Some(values.as_ref()?.get_value(number)?.name().to_owned());
    let unspecified = name(0).unwrap_or_default();
    let prefix = unspecified.trim_end_matches("UNSPECIFIED");
    match name(number) {
        Some(name) => name.trim_start_matches(prefix).to_lowercase(),
        None => number.to_string(),
    }
}

fn descriptor<M: Name>() -> MessageDescriptor {
    let name = M::full_name();
    let descriptor = DESCRIPTOR_POOL.get_message_by_name(&name);
    descriptor.expect("a message of the contract has a descriptor")
}

/// Adds what the serializer left out, and puts the fields in the contract's order.
fn whole(message: &MessageDescriptor, value: Value) -> Value {
    let Value::Object(mut set) = value else {
        // A time or a duration, which is text.
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

/// What stands for a field that is not there.
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

/// Writes numbers in their usual form. serde_json keeps them as they are written, and a number
/// in another form, such as 0.50, reaches other deserializers as something that is no number.
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
