//! What the configurations of all components share: how values are written, where secrets
//! are, how problems are reported, and how several structs share one section of a file.
//!
//! Each component's configuration stands beside the component, with its serde derive and its
//! defaults. Nothing here reads a file or the environment.

mod flat;
mod problems;
mod secret;
mod units;

pub use flat::{Flat, Nothing};
pub use problems::{Problem, Problems};
pub use secret::{Environment, SecretRef};
pub use units::{AsOptionalText, AsText, Auto, Days, Millis, Off, Percent, Size, Span, Unit};
