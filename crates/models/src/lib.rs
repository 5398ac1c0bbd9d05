//! What memoird asks of models, and what it takes from their files.
//!
//! For now: tokenizers of models with open weights.

mod error;
mod tokenizer;

pub use error::ModelError;
pub use tokenizer::HfTokenizer;
