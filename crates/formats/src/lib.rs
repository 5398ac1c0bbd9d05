//! What memoird knows of model providers: their message arrays, in and out; their models;
//! and how they count tokens.
//!
//! As in `memoird-core`, everything here is a function of its arguments: no clock, no file
//! and no lock. Budgets and token numbers belong to the rules of windows and stay there.

mod base64;
mod media_type;
pub mod messages;
pub mod model;
pub mod tokens;
mod tool_definition;

pub use tool_definition::{tool_definition, tool_name};
