//! What the configurations of all components share: how values are written, where secrets
//! are, how problems are reported, and how several structs share one section of a file.
//!
//! Each component's configuration stands beside the component, with its serde derive and its
//! defaults. Nothing here reads a file or the environment.

mod flat;
mod problems;
mod secret;
mod units;

use serde::Deserialize;
use serde::de::value::{BorrowedStrDeserializer, Error};

pub use flat::{Flat, Nothing};
pub use problems::{Problem, Problems};
pub use secret::{Environment, SecretRef};
pub use units::{
    AsOptionalText, AsText, Auto, Days, Millis, Never, Off, Percent, Size, Span, Unit,
};

/// The value that has this name in files.
///
/// # Errors
/// When no value has.
pub fn by_name<T: Deserialize<'static>>(name: &'static str) -> Result<T, Error> {
    T::deserialize(BorrowedStrDeserializer::new(name))
}
