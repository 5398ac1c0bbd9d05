//! Shared parts of all components' configurations: units, secrets, problems and flat sections.
//!
//! Each component defines its own configuration, with its serde derive and defaults. This module
//! reads neither files nor the environment.

mod flat;
mod problems;
mod secret;
mod units;

use serde::Deserialize;
use serde::de::value::{BorrowedStrDeserializer, Error};

pub use flat::{Flat, NoKeys};
pub use problems::{Problem, Problems};
pub use secret::{Environment, SecretRef};
pub use units::{
    AsOptionalText, AsText, Auto, Days, Millis, Never, Off, Percent, Size, Span, Unit,
};

/// Deserializes a value from its name in configuration files.
///
/// # Errors
/// If no value has this name.
pub fn by_name<T: Deserialize<'static>>(name: &'static str) -> Result<T, Error> {
    T::deserialize(BorrowedStrDeserializer::new(name))
}
