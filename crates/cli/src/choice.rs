//! Values of the API as words on the command line, and requests from arguments.

use std::collections::BTreeMap;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use memoird_proto::prost_reflect::EnumDescriptor;
use memoird_proto::{DESCRIPTOR_POOL, PACKAGE};
use prost::Name;
use prost_types::Timestamp;
use serde::{Serialize, Serializer};

use super::json::{self, short_name, value_name};
use crate::exit::CliError;

/// A parser for the values of an API enum, as words such as `openai-responses`.
pub(crate) fn one_of(name: &str) -> impl TypedValueParser<Value = i32> + use<> {
    let descriptor = DESCRIPTOR_POOL.get_enum_by_name(&format!("{PACKAGE}.{name}"));
    let word = |values: &EnumDescriptor, number| value_name(values, number).replace('_', "-");
    let words = |values: &EnumDescriptor| -> BTreeMap<i32, String> {
        let numbers = values.values().map(|value| value.number());
        let numbers = numbers.filter(|number| *number != 0);
        numbers
            .map(|number| (number, word(values, number)))
            .collect()
    };
    let words = descriptor.as_ref().map(words).unwrap_or_default();
    PossibleValuesParser::new(words.values().cloned()).try_map(move |typed| {
        let chosen = words.iter().find(|(_, word)| **word == typed);
        chosen.map(|(number, _)| *number).ok_or("no such word")
    })
}

/// Parses a date, or a time in RFC 3339.
pub(crate) fn moment(text: &str) -> Result<String, String> {
    let moment: Result<Timestamp, _> = text.parse();
    moment
        .map(|moment| moment.to_string())
        .map_err(|_| "expected a day or a time such as 2026-01-31T12:00:00Z".to_owned())
}

/// Builds a request of the arguments with the names of its fields.
pub(crate) fn request<R: Name + Default>(arguments: &impl Serialize) -> Result<R, CliError> {
    let text = serde_json::to_vec(arguments);
    let request = text.and_then(|text| json::read(&text, &[]));
    request.map_err(|error| CliError::usage(error.to_string()))
}

/// Serializes pairs as a map.
pub(crate) fn as_map<S: Serializer>(
    pairs: &[(String, String)],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(pairs.iter().map(|(name, value)| (name, value)))
}

pub(crate) fn kind_name(number: i32) -> String {
    short_name("MemoryKind", number)
}
