//! What memoird asks of models, and what it takes from their files: tokenizers of models with
//! open weights, and embedders.

mod error;
mod openai;
mod tokenizer;
mod vector;

pub use error::ModelError;
pub use openai::{ApiKey, OpenAiEmbedder, OpenAiEmbedderConfig};
pub use tokenizer::HfTokenizer;
