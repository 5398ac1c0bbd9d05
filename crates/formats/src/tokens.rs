//! Token counting: of text by a tokenizer, of turns by their provider's rules.

mod calibrate;
mod corrected;
mod dialect;
mod media;
mod openai;
mod scale;
mod tools;

use std::fmt;
use std::sync::Arc;

pub use calibrate::{Calibration, Charge};
pub use corrected::CorrectedTokenizer;
pub use dialect::{ChatTemplate, Dialect, Unseen};
pub(crate) use media::image_side_px;
pub use openai::OpenAiTokenizer;
pub use scale::Scale;

use crate::model::{Provider, TokenizerKind};

/// Counts the tokens of a text.
pub trait Tokenizer: Send + Sync + fmt::Debug {
    /// Returns the number of tokens. Time and memory are linear in the length of any text.
    fn count(&self, text: &str) -> usize;

    /// Maximum relative error against the provider's own count. 0 for its own tokenizer.
    fn margin(&self) -> f64;
}

/// Returns a built-in tokenizer. `None` for one in a file.
pub fn built_in(kind: &TokenizerKind, provider: Provider) -> Option<Arc<dyn Tokenizer>> {
    match kind {
        TokenizerKind::O200k => Some(Arc::new(OpenAiTokenizer::O200k)),
        TokenizerKind::Cl100k => Some(Arc::new(OpenAiTokenizer::Cl100k)),
        TokenizerKind::Estimate => Some(Arc::new(CorrectedTokenizer::new(provider))),
        TokenizerKind::File(_) => None,
    }
}
