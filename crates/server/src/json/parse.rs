//! Parses JSON into an encoded message.

use std::borrow::Cow;
use std::fmt::{self, Display, Write};

use base64::Engine;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use memoird_proto::prost_reflect::{
    DynamicMessage, EnumDescriptor, FieldDescriptor, Kind, MessageDescriptor, OneofDescriptor,
};
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint};
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use crate::request_codec::MESSAGES_MAX;

use super::{has_json, is_well_known, write_compact};

/// Base64 with or without padding. The alphabet for URLs is translated first.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Up to this number, a float can represent every integer.
const EXACT_MAX: f64 = 9_007_199_254_740_992.0;

/// Maximum length in bytes of an invalid value in an error.
const SHOWN_BYTES_MAX: usize = 60;

/// Why a text is not a message in JSON.
#[derive(Debug, thiserror::Error)]
#[error("{problem}")]
pub(crate) struct JsonError {
    /// Path of the invalid value, by the names of the contract. Empty for the text as a whole.
    pub(crate) path: String,
    /// Ends with the position in the text.
    pub(crate) problem: String,
}

/// Parses a message, and appends its encoding.
///
/// # Errors
/// If the text is not JSON, or not a message of this type. Unknown fields are errors, because they
/// are usually misspelled.
pub(crate) fn parse(
    json: &[u8],
    message: &MessageDescriptor,
    encoded: &mut Vec<u8>,
) -> Result<(), JsonError> {
    encoded.reserve(json.len());
    let mut parser = Parser {
        encoded,
        path: Vec::new(),
        messages: 0,
    };
    let mut input = serde_json::Deserializer::from_slice(json);
    let seed = MessageSeed {
        parser: &mut parser,
        message,
    };
    let parsed = seed.deserialize(&mut input).and_then(|()| input.end());
    parsed.map_err(|error| JsonError {
        path: parser.path(),
        problem: error.to_string(),
    })
}

struct Parser<'a> {
    encoded: &'a mut Vec<u8>,
    /// Steps to the value that is being parsed. After an error, to the invalid one.
    path: Vec<JsonStep>,
    /// Embedded messages and map entries that have been parsed.
    messages: usize,
}

enum JsonStep {
    Field(FieldDescriptor),
    Index(usize),
    /// A key of a map, or a name that is no field.
    Name(String),
}

struct MessageSeed<'a, 'p> {
    parser: &'a mut Parser<'p>,
    message: &'a MessageDescriptor,
}

/// The name of a field of a message.
struct NameSeed<'a, 'p> {
    parser: &'a mut Parser<'p>,
    message: &'a MessageDescriptor,
}

/// A field of any cardinality. Returns whether it has a value, which `null` is not.
struct FieldSeed<'a, 'p> {
    parser: &'a mut Parser<'p>,
    field: &'a FieldDescriptor,
}

struct ListVisitor<'a, 'p>(FieldSeed<'a, 'p>);

struct MapVisitor<'a, 'p> {
    seed: FieldSeed<'a, 'p>,
    entry: MessageDescriptor,
}

/// One value: that of a singular field, an element of a list, or a value of a map.
struct ValueSeed<'a, 'p> {
    parser: &'a mut Parser<'p>,
    field: &'a FieldDescriptor,
    kind: &'a Kind,
}

/// Passes a string on without copying it.
struct TextVisitor<F>(F);

impl Parser<'_> {
    fn path(&self) -> String {
        let mut path = String::new();
        for step in &self.path {
            let dot = if path.is_empty() { "" } else { "." };
            // Writing to a string cannot fail.
            let _ = match step {
                JsonStep::Field(field) => write!(path, "{dot}{}", field.name()),
                JsonStep::Name(name) => write!(path, "{dot}{}", shown(name)),
                JsonStep::Index(index) => write!(path, "[{index}]"),
            };
        }
        path
    }

    fn key(&mut self, field: &FieldDescriptor, wire_type: WireType) {
        encode_key(field.number(), wire_type, self.encoded);
    }

    fn put(&mut self, field: &FieldDescriptor, bytes: &[u8]) {
        self.key(field, WireType::LengthDelimited);
        encode_varint(bytes.len() as u64, self.encoded);
        self.encoded.extend_from_slice(bytes);
    }

    fn put_varint(&mut self, field: &FieldDescriptor, value: u64) {
        self.key(field, WireType::Varint);
        encode_varint(value, self.encoded);
    }

    /// Begins an embedded message, unless there are too many.
    fn begin_message(&mut self, field: &FieldDescriptor) -> Result<usize, String> {
        self.messages += 1;
        if self.messages > MESSAGES_MAX {
            return Err(format!("the request has more than {MESSAGES_MAX} objects"));
        }
        Ok(self.begin(field))
    }

    /// Begins a value with a length, which [`Self::end`] inserts.
    fn begin(&mut self, field: &FieldDescriptor) -> usize {
        self.key(field, WireType::LengthDelimited);
        self.encoded.len()
    }

    /// Inserts the length of the value that begins at `start`.
    fn end(&mut self, start: usize) {
        let mut length = Vec::with_capacity(5);
        encode_varint((self.encoded.len() - start) as u64, &mut length);
        self.encoded.splice(start..start, length);
    }

    /// Adds the JSON of a string that contains JSON.
    fn put_json(&mut self, field: &FieldDescriptor, json: &str) {
        let start = self.begin(field);
        write_compact(json, self.encoded);
        self.end(start);
    }

    /// Adds a number of any kind, from the text of a JSON number or string.
    fn put_number(
        &mut self,
        field: &FieldDescriptor,
        kind: &Kind,
        text: &str,
    ) -> Result<(), String> {
        let wrong = |what: &str| format!("expected {what}, not {}", shown(text));
        match kind {
            Kind::Double => {
                let value = float(text).ok_or_else(|| wrong("a number"))?;
                self.key(field, WireType::SixtyFourBit);
                self.encoded.extend_from_slice(&value.to_le_bytes());
            }
            Kind::Float => {
                let value = float(text).and_then(single);
                let value = value.ok_or_else(|| wrong("a number of 32 bits"))?;
                self.key(field, WireType::ThirtyTwoBit);
                self.encoded.extend_from_slice(&value.to_le_bytes());
            }
            _ => {
                let value = integer(text).ok_or_else(|| wrong("an integer"))?;
                self.put_integer(field, kind, value)
                    .ok_or_else(|| wrong(range(kind)))?;
            }
        }
        Ok(())
    }

    /// Adds an integer, or returns `None` if it is out of range.
    #[allow(clippy::cast_sign_loss, reason = "the wire form of negative numbers")]
    fn put_integer(&mut self, field: &FieldDescriptor, kind: &Kind, value: i128) -> Option<()> {
        match kind {
            Kind::Int32 => self.put_varint(field, i64::from(i32::try_from(value).ok()?) as u64),
            Kind::Int64 => self.put_varint(field, i64::try_from(value).ok()? as u64),
            Kind::Uint32 => self.put_varint(field, u32::try_from(value).ok()?.into()),
            Kind::Uint64 => self.put_varint(field, u64::try_from(value).ok()?),
            Kind::Sint32 => self.put_varint(field, zigzag(i32::try_from(value).ok()?.into())),
            Kind::Sint64 => self.put_varint(field, zigzag(i64::try_from(value).ok()?)),
            Kind::Fixed32 => self.put_32(field, u32::try_from(value).ok()?),
            Kind::Sfixed32 => self.put_32(field, i32::try_from(value).ok()? as u32),
            Kind::Fixed64 => self.put_64(field, u64::try_from(value).ok()?),
            Kind::Sfixed64 => self.put_64(field, i64::try_from(value).ok()? as u64),
            _ => return None,
        }
        Some(())
    }

    fn put_32(&mut self, field: &FieldDescriptor, value: u32) {
        self.key(field, WireType::ThirtyTwoBit);
        self.encoded.extend_from_slice(&value.to_le_bytes());
    }

    fn put_64(&mut self, field: &FieldDescriptor, value: u64) {
        self.key(field, WireType::SixtyFourBit);
        self.encoded.extend_from_slice(&value.to_le_bytes());
    }

    /// Adds the key of a map entry, from its text.
    fn put_map_key(&mut self, field: &FieldDescriptor, text: &str) -> Result<(), String> {
        match field.kind() {
            Kind::String => self.put(field, text.as_bytes()),
            Kind::Bool => {
                let value = text.parse::<bool>();
                let value = value.map_err(|_| format!("expected true or false, not {text:?}"))?;
                self.put_varint(field, value.into());
            }
            kind => self.put_number(field, &kind, text)?,
        }
        Ok(())
    }
}

/// A value in an error: shortened, in quotes.
fn shown(text: &str) -> Cow<'_, str> {
    if text.len() <= SHOWN_BYTES_MAX {
        return Cow::Borrowed(text);
    }
    let end = text.floor_char_boundary(SHOWN_BYTES_MAX);
    Cow::Owned(format!("{}…", &text[..end]))
}

fn float(text: &str) -> Option<f64> {
    match text {
        "NaN" => Some(f64::NAN),
        "Infinity" => Some(f64::INFINITY),
        "-Infinity" => Some(f64::NEG_INFINITY),
        _ => text.parse().ok().filter(|value: &f64| value.is_finite()),
    }
}

/// The nearest float of 32 bits, unless the number is out of range.
#[allow(clippy::cast_possible_truncation, reason = "rounds")]
fn single(value: f64) -> Option<f32> {
    let single = value as f32;
    (single.is_finite() || !value.is_finite()).then_some(single)
}

/// An integer, which JSON may also write like `1e3` or `5.0`.
#[allow(clippy::cast_possible_truncation, reason = "it is an integer")]
fn integer(text: &str) -> Option<i128> {
    text.parse().ok().or_else(|| {
        let value = float(text)?;
        (value.fract() == 0.0 && value.abs() <= EXACT_MAX).then_some(value as i128)
    })
}

#[allow(clippy::cast_sign_loss, reason = "the wire form of negative numbers")]
fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

fn range(kind: &Kind) -> &'static str {
    match kind {
        Kind::Uint32 | Kind::Fixed32 => "an integer from 0 to 4294967295",
        Kind::Uint64 | Kind::Fixed64 => "an integer from 0 to 18446744073709551615",
        Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => "an integer of 32 bits",
        _ => "an integer of 64 bits",
    }
}

/// The text of a JSON number, or the content of a JSON string.
fn number_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Cow<'de, str>, D::Error> {
    let raw = <&RawValue>::deserialize(deserializer)?.get();
    if raw.starts_with('"') {
        let text: String = serde_json::from_str(raw).map_err(Error::custom)?;
        return Ok(Cow::Owned(text));
    }
    Ok(Cow::Borrowed(raw))
}

/// The number of an enum value, from its name or number.
fn enum_number(of: &EnumDescriptor, text: &str) -> Result<i32, String> {
    if let Some(value) = of.get_value_by_name(text) {
        return Ok(value.number());
    }
    let number = integer(text).and_then(|number| i32::try_from(number).ok());
    number.ok_or_else(|| {
        let names: Vec<_> = of.values().map(|value| value.name().to_owned()).collect();
        format!("expected one of {}, not {}", names.join(", "), shown(text))
    })
}

fn bytes(text: &str) -> Result<Vec<u8>, String> {
    let standard = text.replace('-', "+").replace('_', "/");
    let decoded = BASE64.decode(standard);
    decoded.map_err(|problem| format!("expected base64: {problem}"))
}

impl<'de> DeserializeSeed<'de> for MessageSeed<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        if !is_well_known(self.message) {
            return deserializer.deserialize_map(self);
        }
        let raw = <&RawValue>::deserialize(deserializer)?;
        let mut input = serde_json::Deserializer::from_str(raw.get());
        let value = DynamicMessage::deserialize(self.message.clone(), &mut input);
        let value = value.map_err(|problem| {
            let (name, shown) = (self.message.name(), shown(raw.get()));
            Error::custom(format!("{shown} is no {name}: {problem}"))
        })?;
        let encoded = value.encode(self.parser.encoded);
        encoded.map_err(Error::custom)
    }
}

impl<'de> Visitor<'de> for MessageSeed<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a JSON object ({})", self.message.name())
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<(), M::Error> {
        let Self { parser, message } = self;
        let mut known: Vec<FieldDescriptor> = Vec::new();
        let mut chosen: Vec<OneofDescriptor> = Vec::new();
        while let Some(field) = map.next_key_seed(NameSeed { parser, message })? {
            parser.path.push(JsonStep::Field(field.clone()));
            if known.contains(&field) {
                return Err(Error::custom("this field is given twice"));
            }
            let seed = FieldSeed {
                parser,
                field: &field,
            };
            let is_set = map.next_value_seed(seed)?;
            if let Some(oneof) = field.containing_oneof().filter(|_| is_set) {
                if chosen.contains(&oneof) {
                    let names: Vec<_> = oneof.fields().map(|f| f.name().to_owned()).collect();
                    let names = names.join(", ");
                    return Err(Error::custom(format!("give only one of {names}")));
                }
                chosen.push(oneof);
            }
            known.push(field);
            parser.path.pop();
        }
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for NameSeed<'_, '_> {
    type Value = FieldDescriptor;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        let Self { parser, message } = self;
        deserializer.deserialize_str(TextVisitor(|name: &str| {
            let field = message.get_field_by_json_name(name);
            field
                .or_else(|| message.get_field_by_name(name))
                .ok_or_else(|| {
                    parser.path.push(JsonStep::Name(name.to_owned()));
                    format!("{} has no field of this name", message.name())
                })
        }))
    }
}

impl<'de> DeserializeSeed<'de> for FieldSeed<'_, '_> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        deserializer.deserialize_option(self)
    }
}

impl<'de> Visitor<'de> for FieldSeed<'_, '_> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_none<E: Error>(self) -> Result<bool, E> {
        Ok(false)
    }

    fn visit_unit<E: Error>(self) -> Result<bool, E> {
        Ok(false)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        let kind = self.field.kind();
        match &kind {
            Kind::Message(entry) if self.field.is_map() => {
                let entry = entry.clone();
                deserializer.deserialize_map(MapVisitor { seed: self, entry })?;
            }
            _ if self.field.is_list() => deserializer.deserialize_seq(ListVisitor(self))?,
            kind => {
                let Self { parser, field } = self;
                ValueSeed {
                    parser,
                    field,
                    kind,
                }
                .deserialize(deserializer)?;
            }
        }
        Ok(true)
    }
}

impl<'de> Visitor<'de> for ListVisitor<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON array")
    }

    fn visit_seq<S: SeqAccess<'de>>(self, mut list: S) -> Result<(), S::Error> {
        let FieldSeed { parser, field } = self.0;
        let kind = &field.kind();
        for index in 0.. {
            parser.path.push(JsonStep::Index(index));
            let seed = ValueSeed {
                parser,
                field,
                kind,
            };
            let element = list.next_element_seed(seed)?;
            parser.path.pop();
            if element.is_none() {
                break;
            }
        }
        Ok(())
    }
}

impl<'de> Visitor<'de> for MapVisitor<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<(), M::Error> {
        let FieldSeed { parser, field } = self.seed;
        let key_field = self.entry.map_entry_key_field();
        let value_field = self.entry.map_entry_value_field();
        while let Some(name) = map.next_key::<String>()? {
            parser.path.push(JsonStep::Name(name.clone()));
            let start = parser.begin_message(field).map_err(Error::custom)?;
            parser
                .put_map_key(&key_field, &name)
                .map_err(Error::custom)?;
            map.next_value_seed(ValueSeed {
                parser,
                field: &value_field,
                kind: &value_field.kind(),
            })?;
            parser.end(start);
            parser.path.pop();
        }
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for ValueSeed<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        let Self {
            parser,
            field,
            kind,
        } = self;
        match kind {
            Kind::Message(message) => {
                let start = parser.begin_message(field).map_err(Error::custom)?;
                MessageSeed { parser, message }.deserialize(deserializer)?;
                parser.end(start);
            }
            Kind::String if has_json(field) => {
                let raw = <&RawValue>::deserialize(deserializer)?.get();
                if raw.starts_with('"') {
                    let text: String = serde_json::from_str(raw).map_err(Error::custom)?;
                    parser.put(field, text.as_bytes());
                } else {
                    parser.put_json(field, raw);
                }
            }
            Kind::String => {
                let put = |text: &str| {
                    parser.put(field, text.as_bytes());
                    Ok::<_, String>(())
                };
                deserializer.deserialize_str(TextVisitor(put))?;
            }
            Kind::Bytes => {
                let put = |text: &str| {
                    parser.put(field, &bytes(text)?);
                    Ok::<_, String>(())
                };
                deserializer.deserialize_str(TextVisitor(put))?;
            }
            Kind::Bool => {
                let value = bool::deserialize(deserializer)?;
                parser.put_varint(field, value.into());
            }
            Kind::Enum(of) => {
                let text = number_text(deserializer)?;
                let number = enum_number(of, &text).map_err(Error::custom)?;
                let put = parser.put_integer(field, &Kind::Int32, number.into());
                put.ok_or_else(|| Error::custom("expected a value of the enum"))?;
            }
            kind => {
                let text = number_text(deserializer)?;
                let put = parser.put_number(field, kind, &text);
                put.map_err(Error::custom)?;
            }
        }
        Ok(())
    }
}

impl<'de, T, P: Display, F: FnOnce(&str) -> Result<T, P>> Visitor<'de> for TextVisitor<F> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        (self.0)(text).map_err(E::custom)
    }
}
