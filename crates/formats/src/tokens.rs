//! Counting tokens: of text by a tokenizer, of a turn by its provider's rules.

mod calibrate;
mod dialect;
mod estimate;
mod lean;
mod media;
mod openai;
mod scale;
mod tools;

use std::fmt;
use std::sync::Arc;

pub use calibrate::{Calibration, Charge};
pub use dialect::{ChatTemplate, Dialect, Unseen};
pub use estimate::Estimate;
pub use lean::LeaningTokenizer;
pub(crate) use media::image_side_px;
pub use openai::OpenAiTokenizer;
pub use scale::Scale;

use crate::model::{Provider, TokenizerKind};

/// Counts the tokens of text.
pub trait Tokenizer: Send + Sync + fmt::Debug {
    /// Tokens of this text. It takes time and memory linear in the text, whatever that is.
    fn count(&self, text: &str) -> usize;

    /// How far it may be off the provider's own count, as a share: 0 for the provider's
    /// own tokenizer.
    fn margin(&self) -> f64;
}

/// A tokenizer that is built in; `None` for one that is in a file.
pub fn built_in(kind: &TokenizerKind, provider: Provider) -> Option<Arc<dyn Tokenizer>> {
    match kind {
        TokenizerKind::O200k => Some(Arc::new(OpenAiTokenizer::O200k)),
        TokenizerKind::Cl100k => Some(Arc::new(OpenAiTokenizer::Cl100k)),
        TokenizerKind::Estimate => Some(Arc::new(LeaningTokenizer::new(provider))),
        TokenizerKind::File(_) => None,
    }
}
