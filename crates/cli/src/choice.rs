//! Values of API enums as words on the command line.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use memoird_proto::v1::{
    MemoryKind, MessageFormat, NearDuplicate, Polarity, RecallMode, Visibility,
};
use prost_types::Timestamp;

use super::json::short_name;

/// Allowed words, each with its value and its help text.
pub(crate) type Choices<T> = &'static [(&'static str, T, &'static str)];

/// Message formats of the model providers.
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

/// A parser that accepts only these words.
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

/// The enum value for a request; 0 if none was chosen.
pub(crate) fn number<T: Into<i32>>(chosen: Option<T>) -> i32 {
    chosen.map_or(0, Into::into)
}

pub(crate) const KINDS: Choices<MemoryKind> = &[
    ("user", MemoryKind::User, "Who the subject is"),
    (
        "feedback",
        MemoryKind::Feedback,
        "How the subject wants things done",
    ),
    ("project", MemoryKind::Project, "What goes on"),
    (
        "reference",
        MemoryKind::Reference,
        "Where to find something",
    ),
];

/// Subjects that may recall a memory.
pub(crate) const VISIBILITIES: Choices<Visibility> = &[
    ("private", Visibility::Private, "Its subject only"),
    ("team", Visibility::Team, "Any subject of the tenant"),
];

/// Whether feedback corrects or confirms.
pub(crate) const POLARITIES: Choices<Polarity> = &[
    ("correction", Polarity::Correction, "Not like that"),
    ("confirmation", Polarity::Confirmation, "Yes, like that"),
];

/// Treatment of a memory that repeats an existing one in slightly different text.
pub(crate) const NEAR_DUPLICATES: Choices<NearDuplicate> = &[
    ("merge", NearDuplicate::Merge, "The memory takes it in"),
    ("refuse", NearDuplicate::Refuse, "It is refused"),
    (
        "keep",
        NearDuplicate::Keep,
        "It becomes a memory of its own",
    ),
];

pub(crate) const MODES: Choices<RecallMode> = &[
    ("hybrid", RecallMode::Hybrid, "By words and by meaning"),
    ("lexical", RecallMode::Lexical, "By words"),
    ("vector", RecallMode::Vector, "By meaning"),
];

/// Enum values of kinds for a request.
pub(crate) fn kinds(kinds: Vec<MemoryKind>) -> Vec<i32> {
    kinds.into_iter().map(Into::into).collect()
}

/// Parses a date, or a time in RFC 3339.
pub(crate) fn moment(text: &str) -> Result<Timestamp, String> {
    text.parse()
        .map_err(|_| "expected a day or a time such as 2026-01-31T12:00:00Z".to_owned())
}

pub(crate) fn kind_name(number: i32) -> String {
    short_name("MemoryKind", number)
}
