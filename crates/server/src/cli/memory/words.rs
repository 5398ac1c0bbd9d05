//! The words in which people say what a memory is, on the command line and in tables.

use clap::ValueEnum;
use memoird_proto::v1;
use prost_types::Timestamp;

use crate::cli::json::short_name;

/// What a memory is about.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum Kind {
    /// Who the subject is
    User,
    /// How the subject wants things done
    Feedback,
    /// What goes on
    Project,
    /// Where to find something
    Reference,
}

/// Who may recall it.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum Visibility {
    /// Its subject only
    Private,
    /// Any subject of the tenant
    Team,
}

/// Which way feedback points.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum Polarity {
    /// Not like that
    Correction,
    /// Yes, like that
    Confirmation,
}

/// What is done when a memory says it already, in other letters.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum NearDuplicate {
    /// The memory takes it in
    Merge,
    /// It is refused
    Refuse,
    /// It becomes a memory of its own
    Keep,
}

/// How to search.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum Mode {
    /// By words and by meaning
    Hybrid,
    /// By words
    Lexical,
    /// By meaning
    Vector,
}

impl From<Kind> for v1::MemoryKind {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::User => Self::User,
            Kind::Feedback => Self::Feedback,
            Kind::Project => Self::Project,
            Kind::Reference => Self::Reference,
        }
    }
}

impl From<Visibility> for v1::Visibility {
    fn from(visibility: Visibility) -> Self {
        match visibility {
            Visibility::Private => Self::Private,
            Visibility::Team => Self::Team,
        }
    }
}

impl From<Polarity> for v1::Polarity {
    fn from(polarity: Polarity) -> Self {
        match polarity {
            Polarity::Correction => Self::Correction,
            Polarity::Confirmation => Self::Confirmation,
        }
    }
}

impl From<NearDuplicate> for v1::NearDuplicate {
    fn from(near: NearDuplicate) -> Self {
        match near {
            NearDuplicate::Merge => Self::Merge,
            NearDuplicate::Refuse => Self::Refuse,
            NearDuplicate::Keep => Self::Keep,
        }
    }
}

impl From<Mode> for v1::RecallMode {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Hybrid => Self::Hybrid,
            Mode::Lexical => Self::Lexical,
            Mode::Vector => Self::Vector,
        }
    }
}

/// The numbers of kinds, as a request has them.
pub(super) fn kinds(kinds: Vec<Kind>) -> Vec<i32> {
    kinds
        .into_iter()
        .map(|kind| v1::MemoryKind::from(kind).into())
        .collect()
}

/// A moment as people write it: a day, or RFC 3339.
pub(super) fn moment(text: &str) -> Result<Timestamp, String> {
    text.parse()
        .map_err(|_| "takes a day or a time such as 2026-01-31T12:00:00Z".to_owned())
}

/// The short name of a kind.
pub(super) fn kind_name(number: i32) -> String {
    let name = v1::MemoryKind::try_from(number).map(|kind| kind.as_str_name());
    name.map_or_else(
        |_| number.to_string(),
        |name| short_name(name, "MEMORY_KIND_"),
    )
}

/// The short name of what became of a fact.
pub(super) fn outcome_name(number: i32) -> String {
    let name = v1::RememberOutcome::try_from(number).map(|outcome| outcome.as_str_name());
    name.map_or_else(
        |_| number.to_string(),
        |name| short_name(name, "REMEMBER_OUTCOME_"),
    )
}
