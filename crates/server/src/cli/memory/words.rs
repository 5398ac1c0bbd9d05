//! The words in which people say what a memory is, on the command line and in tables.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use memoird_proto::v1::{MemoryKind, NearDuplicate, Polarity, RecallMode, Visibility};
use prost_types::Timestamp;

use crate::cli::json::short_name;

/// Words that may be typed, each with what it stands for and what the help says of it.
type Choices<T> = &'static [(&'static str, T, &'static str)];

const KINDS: Choices<MemoryKind> = &[
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

const VISIBILITIES: Choices<Visibility> = &[
    ("private", Visibility::Private, "Its subject only"),
    ("team", Visibility::Team, "Any subject of the tenant"),
];

const POLARITIES: Choices<Polarity> = &[
    ("correction", Polarity::Correction, "Not like that"),
    ("confirmation", Polarity::Confirmation, "Yes, like that"),
];

const NEAR_DUPLICATES: Choices<NearDuplicate> = &[
    ("merge", NearDuplicate::Merge, "The memory takes it in"),
    ("refuse", NearDuplicate::Refuse, "It is refused"),
    (
        "keep",
        NearDuplicate::Keep,
        "It becomes a memory of its own",
    ),
];

const MODES: Choices<RecallMode> = &[
    ("hybrid", RecallMode::Hybrid, "By words and by meaning"),
    ("lexical", RecallMode::Lexical, "By words"),
    ("vector", RecallMode::Vector, "By meaning"),
];

/// What a memory is about.
pub(super) fn kind() -> impl TypedValueParser<Value = MemoryKind> {
    choice(KINDS)
}

/// Who may recall it.
pub(super) fn visibility() -> impl TypedValueParser<Value = Visibility> {
    choice(VISIBILITIES)
}

/// Which way feedback points.
pub(super) fn polarity() -> impl TypedValueParser<Value = Polarity> {
    choice(POLARITIES)
}

/// What is done when a memory says it already, in other letters.
pub(super) fn near_duplicate() -> impl TypedValueParser<Value = NearDuplicate> {
    choice(NEAR_DUPLICATES)
}

/// How to search.
pub(super) fn mode() -> impl TypedValueParser<Value = RecallMode> {
    choice(MODES)
}

/// The number of a choice, as a request has it; 0 where nothing was said.
pub(super) fn number<T: Into<i32>>(chosen: Option<T>) -> i32 {
    chosen.map_or(0, Into::into)
}

/// The numbers of kinds, as a request has them.
pub(super) fn kinds(kinds: Vec<MemoryKind>) -> Vec<i32> {
    kinds.into_iter().map(Into::into).collect()
}

/// A moment as people write it: a day, or RFC 3339.
pub(super) fn moment(text: &str) -> Result<Timestamp, String> {
    text.parse()
        .map_err(|_| "takes a day or a time such as 2026-01-31T12:00:00Z".to_owned())
}

/// The short name of a kind.
pub(super) fn kind_name(number: i32) -> String {
    short_name("MemoryKind", number)
}

fn choice<T: Copy + Send + Sync>(choices: Choices<T>) -> impl TypedValueParser<Value = T> {
    let values = choices
        .iter()
        .map(|(word, _, help)| PossibleValue::new(*word).help(*help));
    PossibleValuesParser::new(values).try_map(move |typed| {
        let chosen = choices.iter().find(|(word, ..)| *word == typed);
        chosen.map(|(_, value, _)| *value).ok_or("no such word")
    })
}
