//! The words in which people say what a memory is, on the command line and in tables.

use memoird_proto::v1::{MemoryKind, NearDuplicate, Polarity, RecallMode, Visibility};
use prost_types::Timestamp;

use crate::cli::choice::Choices;
use crate::cli::json::short_name;

/// What a memory is about.
pub(super) const KINDS: Choices<MemoryKind> = &[
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

/// Who may recall it.
pub(super) const VISIBILITIES: Choices<Visibility> = &[
    ("private", Visibility::Private, "Its subject only"),
    ("team", Visibility::Team, "Any subject of the tenant"),
];

/// Which way it points.
pub(super) const POLARITIES: Choices<Polarity> = &[
    ("correction", Polarity::Correction, "Not like that"),
    ("confirmation", Polarity::Confirmation, "Yes, like that"),
];

/// What is done when a memory says it already, in other letters.
pub(super) const NEAR_DUPLICATES: Choices<NearDuplicate> = &[
    ("merge", NearDuplicate::Merge, "The memory takes it in"),
    ("refuse", NearDuplicate::Refuse, "It is refused"),
    (
        "keep",
        NearDuplicate::Keep,
        "It becomes a memory of its own",
    ),
];

/// How to search.
pub(super) const MODES: Choices<RecallMode> = &[
    ("hybrid", RecallMode::Hybrid, "By words and by meaning"),
    ("lexical", RecallMode::Lexical, "By words"),
    ("vector", RecallMode::Vector, "By meaning"),
];

/// The numbers of kinds, as a request has them.
pub(super) fn kinds(kinds: Vec<MemoryKind>) -> Vec<i32> {
    kinds.into_iter().map(Into::into).collect()
}

/// A moment as people write it: a day, or RFC 3339.
pub(crate) fn moment(text: &str) -> Result<Timestamp, String> {
    text.parse()
        .map_err(|_| "takes a day or a time such as 2026-01-31T12:00:00Z".to_owned())
}

/// The short name of a kind.
pub(super) fn kind_name(number: i32) -> String {
    short_name("MemoryKind", number)
}
