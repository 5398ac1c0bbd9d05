//! Model providers: their message arrays, in and out, their models, and their token counts.
//!
//! As in `memoird-core`, all functions are pure: no clock, no file and no lock. Budgets and token
//! numbers are part of the window rules in that crate.

mod base64;
mod media_type;
pub mod messages;
pub mod model;
pub mod tokens;
mod tool_definition;

pub use tool_definition::{tool_definition, tool_name};
