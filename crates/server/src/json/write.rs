//! Writes an encoded message as JSON.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Buf;
use memoird_proto::prost_reflect::{DynamicMessage, FieldDescriptor, Kind, MessageDescriptor};
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};
use prost::{DecodeError, Message};
use serde::Serialize;
use serde_json::value::RawValue;

use super::{has_json, is_well_known, write_compact};

/// The default of every kind of value: a number, or a length, of zero.
const DEFAULT: &[u8] = &[0; 8];

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct JsonOptions {
    /// Whether a string that contains JSON is written as that JSON.
    ///
    /// Not if the JSON is itself a string or null, which mean something else in a request.
    pub(crate) inlines_json: bool,
}

/// Why bytes could not be written as JSON.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WriteError {
    #[error("the bytes are not an encoded message")]
    Malformed,
    #[error("the bytes are not an encoded message: {0}")]
    Decode(#[from] DecodeError),
    #[error("a value has no JSON form: {0}")]
    Json(#[from] serde_json::Error),
}

/// Appends a message as JSON.
///
/// # Errors
/// If the bytes are not an encoding of the message.
pub(crate) fn write(
    encoded: &[u8],
    message: &MessageDescriptor,
    options: JsonOptions,
    out: &mut Vec<u8>,
) -> Result<(), WriteError> {
    if is_well_known(message) {
        let value = DynamicMessage::decode(message.clone(), encoded)?;
        return put(&value, out);
    }
    let start = out.len();
    if Writer::new(options, out).message(encoded, message)? {
        return Ok(());
    }
    // A field is in several places. No encoder of memoird does that, but the format allows it.
    out.truncate(start);
    let ordered = DynamicMessage::decode(message.clone(), encoded)?.encode_to_vec();
    Writer::new(options, out).message(&ordered, message)?;
    Ok(())
}

struct Writer<'a> {
    options: JsonOptions,
    out: &'a mut Vec<u8>,
    /// Numbers of the fields that have been written.
    known: Vec<u32>,
}

impl<'a> Writer<'a> {
    fn new(options: JsonOptions, out: &'a mut Vec<u8>) -> Self {
        Self {
            options,
            out,
            known: Vec::new(),
        }
    }

    /// Writes a message. Returns false if one of its fields is in several places.
    fn message(
        &mut self,
        mut rest: &[u8],
        message: &MessageDescriptor,
    ) -> Result<bool, WriteError> {
        self.out.push(b'{');
        // The repeated field that is being written.
        let mut open: Option<FieldDescriptor> = None;
        while !rest.is_empty() {
            let (number, wire_type) = decode_key(&mut rest)?;
            let Some(field) = message.get_field(number) else {
                skip_field(wire_type, number, &mut rest, DecodeContext::default())?;
                continue;
            };
            if open.as_ref().is_some_and(|open| open.number() == number) {
                self.out.push(b',');
            } else {
                if self.known.contains(&number) {
                    return Ok(false);
                }
                self.close(open.take());
                self.begin(&field)?;
                open = (field.is_list() || field.is_map()).then(|| field.clone());
            }
            self.field(&field, wire_type, &mut rest)?;
        }
        self.close(open);
        self.out.push(b'}');
        Ok(true)
    }

    /// Writes the name of a field, and the start of its array or object.
    fn begin(&mut self, field: &FieldDescriptor) -> Result<(), WriteError> {
        if !self.known.is_empty() {
            self.out.push(b',');
        }
        self.known.push(field.number());
        put(field.json_name(), self.out)?;
        self.out.push(b':');
        if field.is_map() {
            self.out.push(b'{');
        } else if field.is_list() {
            self.out.push(b'[');
        }
        Ok(())
    }

    fn close(&mut self, open: Option<FieldDescriptor>) {
        if let Some(open) = open {
            self.out.push(if open.is_map() { b'}' } else { b']' });
        }
    }

    /// Writes a value, an element of a list, or an entry of a map.
    fn field(
        &mut self,
        field: &FieldDescriptor,
        wire_type: WireType,
        rest: &mut &[u8],
    ) -> Result<(), WriteError> {
        let kind = field.kind();
        let expected = wire_type_of(&kind);
        let is_packed = field.is_list() && wire_type == WireType::LengthDelimited;
        if is_packed && expected != wire_type {
            let mut packed = take(rest)?;
            while !packed.is_empty() {
                self.value(field, &kind, &mut packed)?;
                if !packed.is_empty() {
                    self.out.push(b',');
                }
            }
            return Ok(());
        }
        if expected != wire_type {
            return Err(WriteError::Malformed);
        }
        match &kind {
            Kind::Message(entry) if field.is_map() => self.entry(entry, take(rest)?),
            kind => self.value(field, kind, rest),
        }
    }

    /// Writes an entry of a map. An absent key or value is the default.
    fn entry(&mut self, entry: &MessageDescriptor, mut rest: &[u8]) -> Result<(), WriteError> {
        let (key_field, value_field) = (entry.map_entry_key_field(), entry.map_entry_value_field());
        let (mut key, mut value) = (DEFAULT, DEFAULT);
        while !rest.is_empty() {
            let (number, wire_type) = decode_key(&mut rest)?;
            if number == key_field.number() {
                key = rest;
            } else if number == value_field.number() {
                value = rest;
            }
            skip_field(wire_type, number, &mut rest, DecodeContext::default())?;
        }
        let start = self.out.len();
        self.value(&key_field, &key_field.kind(), &mut key)?;
        if self.out[start] != b'"' {
            self.out.insert(start, b'"');
            self.out.push(b'"');
        }
        self.out.push(b':');
        self.value(&value_field, &value_field.kind(), &mut value)
    }

    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_possible_wrap,
        reason = "the wire form of numbers"
    )]
    fn value(
        &mut self,
        field: &FieldDescriptor,
        kind: &Kind,
        rest: &mut &[u8],
    ) -> Result<(), WriteError> {
        let out = &mut *self.out;
        match kind {
            Kind::Message(message) => write(take(rest)?, message, self.options, out),
            Kind::String => {
                let text = std::str::from_utf8(take(rest)?).map_err(|_| WriteError::Malformed)?;
                if self.options.inlines_json && has_json(field) && is_inlined(text) {
                    write_compact(text, out);
                    return Ok(());
                }
                put(text, out)
            }
            Kind::Bytes => put(&BASE64_STANDARD.encode(take(rest)?), out),
            Kind::Bool => put(&(decode_varint(rest)? != 0), out),
            Kind::Enum(of) => {
                let number = decode_varint(rest)? as i32;
                match of.get_value(number) {
                    Some(value) => put(value.name(), out),
                    None => put(&number, out),
                }
            }
            Kind::Int32 => put(&(decode_varint(rest)? as i32), out),
            Kind::Uint32 => put(&(decode_varint(rest)? as u32), out),
            Kind::Sint32 => put(&(unzigzag(decode_varint(rest)?) as i32), out),
            // Numbers of 64 bits are strings: JSON in a browser has 53 bits.
            Kind::Int64 => put(&(decode_varint(rest)? as i64).to_string(), out),
            Kind::Uint64 => put(&decode_varint(rest)?.to_string(), out),
            Kind::Sint64 => put(&unzigzag(decode_varint(rest)?).to_string(), out),
            Kind::Fixed32 => put(&u32::from_le_bytes(array(rest)?), out),
            Kind::Sfixed32 => put(&i32::from_le_bytes(array(rest)?), out),
            Kind::Fixed64 => put(&u64::from_le_bytes(array(rest)?).to_string(), out),
            Kind::Sfixed64 => put(&i64::from_le_bytes(array(rest)?).to_string(), out),
            Kind::Float => {
                let value = f32::from_le_bytes(array(rest)?);
                match special(value.into()) {
                    Some(name) => put(name, out),
                    None => put(&value, out),
                }
            }
            Kind::Double => {
                let value = f64::from_le_bytes(array(rest)?);
                match special(value) {
                    Some(name) => put(name, out),
                    None => put(&value, out),
                }
            }
        }
    }
}

fn put(value: &(impl Serialize + ?Sized), out: &mut Vec<u8>) -> Result<(), WriteError> {
    Ok(serde_json::to_writer(out, value)?)
}

/// Whether a text is JSON that means the same when a request contains it inline.
fn is_inlined(text: &str) -> bool {
    let is_other = text.trim_start().starts_with(['"', 'n']);
    !is_other && serde_json::from_str::<&RawValue>(text).is_ok()
}

/// The name of a float that is no number in JSON.
fn special(value: f64) -> Option<&'static str> {
    if value.is_nan() {
        Some("NaN")
    } else if value.is_infinite() {
        Some(if value > 0.0 { "Infinity" } else { "-Infinity" })
    } else {
        None
    }
}

#[allow(
    clippy::cast_possible_wrap,
    reason = "the wire form of negative numbers"
)]
fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

fn wire_type_of(kind: &Kind) -> WireType {
    match kind {
        Kind::Message(_) | Kind::String | Kind::Bytes => WireType::LengthDelimited,
        Kind::Float | Kind::Fixed32 | Kind::Sfixed32 => WireType::ThirtyTwoBit,
        Kind::Double | Kind::Fixed64 | Kind::Sfixed64 => WireType::SixtyFourBit,
        _ => WireType::Varint,
    }
}

/// Takes the bytes of a value with a length.
fn take<'a>(rest: &mut &'a [u8]) -> Result<&'a [u8], WriteError> {
    let length = usize::try_from(decode_varint(rest)?).map_err(|_| WriteError::Malformed)?;
    let (taken, after) = rest.split_at_checked(length).ok_or(WriteError::Malformed)?;
    *rest = after;
    Ok(taken)
}

fn array<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], WriteError> {
    let array = *rest.first_chunk().ok_or(WriteError::Malformed)?;
    rest.advance(N);
    Ok(array)
}
