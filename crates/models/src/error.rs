//! What can go wrong with models and their files.

use std::io;
use std::path::PathBuf;

use crate::tokenizer::FILE_BYTES_MAX;

/// What can go wrong with models and their files.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// A tokenizer's file cannot be read.
    #[error("cannot read the tokenizer {}: {error}; check the path and its permissions", path.display())]
    TokenizerUnreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// A tokenizer's file is larger than any tokenizer's.
    #[error(
        "the tokenizer {} has {bytes} bytes and may have {FILE_BYTES_MAX}; is it the model's tokenizer.json?",
        path.display()
    )]
    TokenizerTooLarge {
        /// The file.
        path: PathBuf,
        /// How large it is.
        bytes: u64,
    },
    /// A tokenizer's file says nothing that can be used.
    #[error(
        "{origin} is not a tokenizer: {problem}; take the tokenizer.json of the model's repository"
    )]
    TokenizerInvalid {
        /// The file, or what was given in its place.
        origin: String,
        /// Why.
        problem: String,
    },
    /// The address of a provider cannot be one.
    #[error("base_url is no address of a provider: {problem}")]
    BaseUrlInvalid {
        /// Why.
        problem: String,
    },
    /// A setting is not within its range.
    #[error("{setting} takes {range}")]
    SettingOutOfRange {
        /// Its name.
        setting: &'static str,
        /// What it takes.
        range: &'static str,
    },
    /// A key cannot be one.
    #[error("the api_key is empty, or has characters that no header can have")]
    ApiKeyInvalid,
    /// The machine lacks something.
    #[error("TLS cannot start: {problem}; are the system's certificates (ca-certificates) there?")]
    TlsUnavailable {
        /// What the library says.
        problem: String,
    },
}
