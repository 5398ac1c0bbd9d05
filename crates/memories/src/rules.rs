//! Rules of memories: validation, duplicates, ranking, and the text shown to models.
//!
//! Pure functions: no clock, no file, no concurrency.

pub(crate) mod block;
pub mod conflicts;
pub mod consolidation;
pub mod dates;
pub mod documents;
pub(crate) mod exchange;
pub mod extraction;
pub(crate) mod floor;
pub mod fusion;
mod input;
pub mod manifest;
mod memory;
pub mod prompt;
pub mod secrets;
pub(crate) mod wording;

pub use input::{IMPORTANCE_DEFAULT, NearDuplicate, Patch};
pub(crate) use input::{checked_seqs, external_key};
pub use memory::{
    Memory, MemoryKind, MemoryLimits, Origin, Outcome, Pin, Polarity, Source, Visibility,
};

/// Compiles a constant pattern. One that does not compile is a bug, which the tests find.
fn regex(pattern: &str) -> regex::Regex {
    regex::Regex::new(pattern).unwrap_or_else(|error| panic!("{pattern}: {error}"))
}
