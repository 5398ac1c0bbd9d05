//! Words that stand for values of the contract on the command line.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use memoird_proto::v1::MessageFormat;

/// Words that may be typed, each with what it stands for and what the help says of it.
pub(crate) type Choices<T> = &'static [(&'static str, T, &'static str)];

/// The providers' message formats.
pub(crate) const FORMATS: Choices<MessageFormat> = &[
    (
        "openai",
        MessageFormat::Openai,
        "Chat completions: the `messages` array",
    ),
    (
        "anthropic",
        MessageFormat::Anthropic,
        "Messages: the `messages` array",
    ),
    (
        "openai-responses",
        MessageFormat::OpenaiResponses,
        "Responses: the `input` array",
    ),
];

/// Takes one of these words, and nothing else.
pub(crate) fn one_of<T>(choices: Choices<T>) -> impl TypedValueParser<Value = T>
where
    T: Copy + Send + Sync,
{
    let values = choices
        .iter()
        .map(|(word, _, help)| PossibleValue::new(*word).help(*help));
    PossibleValuesParser::new(values).try_map(move |typed| {
        let chosen = choices.iter().find(|(word, ..)| *word == typed);
        chosen.map(|(_, value, _)| *value).ok_or("no such word")
    })
}

/// The number of a choice, as a request has it; 0 where nothing was said.
pub(crate) fn number<T: Into<i32>>(chosen: Option<T>) -> i32 {
    chosen.map_or(0, Into::into)
}
