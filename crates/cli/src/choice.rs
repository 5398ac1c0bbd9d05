//! Values of the API as words on the command line, and requests from arguments.

use std::ffi::OsStr;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Arg, Command};
use memoird_proto::prost_reflect::EnumDescriptor;
use memoird_proto::{DESCRIPTOR_POOL, PACKAGE};
use prost::Name;
use prost_types::Timestamp;
use serde::{Serialize, Serializer};

use super::json::{self, short_name, value_name};
use crate::exit::CliError;

/// A parser for the values of an API enum, as words such as `openai-responses`.
pub(crate) fn one_of(name: &'static str) -> EnumWords {
    EnumWords { name }
}

/// Words of an API enum, read from its descriptor when they are needed.
///
/// All commands are built at each start, also at that of a daemon.
#[derive(Clone, Copy)]
pub(crate) struct EnumWords {
    name: &'static str,
}

impl EnumWords {
    fn words(self) -> Vec<(String, i32)> {
        let values = DESCRIPTOR_POOL.get_enum_by_name(&format!("{PACKAGE}.{}", self.name));
        let words = |values: EnumDescriptor| {
            let numbers = values.values().map(|value| value.number());
            let words = numbers.filter(|number| *number != 0).map(|number| {
                let word = value_name(&values, number).replace('_', "-");
                (word, number)
            });
            words.collect()
        };
        values.map(words).unwrap_or_default()
    }
}

impl TypedValueParser for EnumWords {
    type Value = i32;

    fn parse_ref(
        &self,
        command: &Command,
        argument: Option<&Arg>,
        typed: &OsStr,
    ) -> Result<i32, clap::Error> {
        let words = self.words();
        let known = PossibleValuesParser::new(words.iter().map(|(word, _)| word.clone()));
        let typed = known.parse_ref(command, argument, typed)?;
        let chosen = words.iter().find(|(word, _)| *word == typed);
        Ok(chosen.map_or(0, |(_, number)| *number))
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let words = self.words().into_iter();
        Some(Box::new(words.map(|(word, _)| PossibleValue::new(word))))
    }
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
