//! The tokenizer of an open-weight model, from its `tokenizer.json` on Hugging Face.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use memoird_formats::model::Provider;
use memoird_formats::tokens::{CorrectedTokenizer, Tokenizer};
use tokenizers::TruncationParams;

use crate::error::ModelError;

/// Maximum bytes of a `tokenizer.json`. The largest published ones have a third of it.
pub(crate) const TOKENIZER_BYTES_MAX: u64 = 128 * 1024 * 1024;

/// Maximum bytes to tokenize at once. Longer text is split.
///
/// The library needs some hundred bytes per token, and more than linear time for text without
/// spaces.
const PIECE_BYTES_MAX: usize = 16 * 1024;

/// Part of a provider's count that is missing here: the chat template around messages.
const MARGIN: f64 = 0.02;

/// A text that every tokenizer can encode.
pub(crate) const PROBE: &str = "The quick brown fox jumps over 13 lazy dogs.";

/// Counts tokens with a `tokenizer.json`.
pub struct HfTokenizer {
    inner: tokenizers::Tokenizer,
}

impl HfTokenizer {
    /// Parses the content of a tokenizer file.
    ///
    /// # Errors
    /// [`ModelError::TokenizerInvalid`].
    pub fn from_json(bytes: &[u8]) -> Result<Self, ModelError> {
        Self::read(bytes, "the given text")
    }

    /// Reads a tokenizer file. Blocks for up to several seconds.
    ///
    /// # Errors
    /// [`ModelError::FileUnreadable`], [`ModelError::FileTooLarge`],
    /// [`ModelError::TokenizerInvalid`].
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, ModelError> {
        let path = path.as_ref();
        let content = read_file(path, TOKENIZER_BYTES_MAX)?;
        Self::read(&content, &path.display().to_string())
    }

    fn read(bytes: &[u8], origin: &str) -> Result<Self, ModelError> {
        let invalid = |problem: String| {
            let origin = origin.to_owned();
            ModelError::TokenizerInvalid { origin, problem }
        };
        let inner = parse(bytes, None).map_err(|error| invalid(error.to_string()))?;
        match inner.encode_fast(PROBE, false) {
            Ok(encoding) if !encoding.is_empty() => {}
            Ok(_) => return Err(invalid("it returns no tokens for words".to_owned())),
            Err(error) => return Err(invalid(format!("it cannot encode words: {error}"))),
        }
        Ok(Self { inner })
    }

    fn count_piece(&self, piece: &str) -> usize {
        match self.inner.encode_fast(piece, false) {
            Ok(encoding) => encoding.len(),
            // The tokenizer rejects this text.
            Err(_) => CorrectedTokenizer::new(Provider::Open).count(piece),
        }
    }
}

impl Tokenizer for HfTokenizer {
    fn count(&self, text: &str) -> usize {
        pieces(text).map(|piece| self.count_piece(piece)).sum()
    }

    fn margin(&self) -> f64 {
        MARGIN
    }
}

impl fmt::Debug for HfTokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let vocabulary = self.inner.get_vocab_size(true);
        f.debug_struct("HfTokenizer")
            .field("vocabulary", &vocabulary)
            .finish_non_exhaustive()
    }
}

/// Parses a tokenizer file with this truncation and without padding.
///
/// A file often has the truncation and the padding that were used in training.
pub(crate) fn parse(
    content: &[u8],
    truncation: Option<TruncationParams>,
) -> tokenizers::Result<tokenizers::Tokenizer> {
    let mut tokenizer = tokenizers::Tokenizer::from_bytes(content)?;
    tokenizer.with_truncation(truncation)?;
    tokenizer.with_padding(None);
    // User text that looks like a special token is still text.
    tokenizer.set_encode_special_tokens(true);
    Ok(tokenizer)
}

/// Reads a file of at most `bytes_max` bytes.
///
/// # Errors
/// [`ModelError::FileUnreadable`], [`ModelError::FileTooLarge`].
pub(crate) fn read_file(path: &Path, bytes_max: u64) -> Result<Vec<u8>, ModelError> {
    let unreadable = |error| ModelError::FileUnreadable {
        path: path.to_owned(),
        error,
    };
    let file = File::open(path).map_err(unreadable)?;
    let bytes = file.metadata().map_err(unreadable)?.len();
    if bytes > bytes_max {
        return Err(ModelError::FileTooLarge {
            path: path.to_owned(),
            bytes,
            bytes_max,
        });
    }
    let mut content = Vec::with_capacity(usize::try_from(bytes).unwrap_or(0));
    let read = file.take(bytes_max).read_to_end(&mut content);
    read.map_err(unreadable)?;
    Ok(content)
}

/// Splits text before a space, if there is one in the second half of a piece.
fn pieces(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let mut end = rest.floor_char_boundary(PIECE_BYTES_MAX);
        if end < rest.len() {
            let half = rest.floor_char_boundary(end / 2);
            let blank = rest[half..end].rfind([' ', '\n']);
            end = blank.map_or(end, |at| half + at.max(1));
        }
        let (piece, after) = rest.split_at(rest.floor_char_boundary(end));
        rest = after;
        Some(piece)
    })
}

#[cfg(test)]
#[path = "tokenizer_tests.rs"]
mod tests;
