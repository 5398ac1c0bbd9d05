//! Counting tokens: of text by a tokenizer, of a turn by its provider's rules.

mod estimate;
mod openai;

use std::fmt;

pub use estimate::Estimate;
pub use openai::{Cl100k, O200k};

/// Counts the tokens of text.
pub trait Tokenizer: Send + Sync + fmt::Debug {
    /// Tokens of this text.
    fn count(&self, text: &str) -> usize;

    /// How far it may be off the provider's own count, as a share: 0 for the provider's
    /// own tokenizer.
    fn margin(&self) -> f64;
}
