//! Errors of models and their files.

use std::io;
use std::path::PathBuf;

/// Errors of models and their files.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// This binary cannot read tokenizer files.
    #[error(
        "this memoird was built without tokenizer-json and cannot read {}; build it with \
         --features tokenizer-json, or use another tokenizer",
        path.display()
    )]
    TokenizerNotBuilt {
        /// Path of the file.
        path: PathBuf,
    },
    /// A tokenizer or model file cannot be read.
    #[error("cannot read {}: {error}; check the path and its permissions", path.display())]
    FileUnreadable {
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// A tokenizer or model file exceeds its maximum size.
    #[error(
        "{} has {bytes} bytes, the maximum is {bytes_max}; check the path, or use a smaller model",
        path.display()
    )]
    FileTooLarge {
        path: PathBuf,
        /// Actual size.
        bytes: u64,
        /// Maximum size.
        bytes_max: u64,
    },
    /// A tokenizer file is invalid.
    #[error(
        "{origin} is not a tokenizer: {problem}; use the tokenizer.json of the model's repository"
    )]
    TokenizerInvalid {
        /// The file, or a description of other input.
        origin: String,
        /// What is invalid.
        problem: String,
    },
    /// The base URL of a provider is invalid.
    #[error("base_url {problem}")]
    BaseUrlInvalid {
        /// What is invalid.
        problem: String,
    },
    /// A setting is out of range.
    #[error("{setting} takes {range}")]
    SettingOutOfRange {
        /// Name of the setting.
        setting: &'static str,
        /// The valid range.
        range: &'static str,
    },
    /// The text is not a valid key.
    #[error("the api_key is empty, or has characters that are invalid in a header")]
    ApiKeyInvalid,
    /// Certificates cannot be verified on this machine.
    #[error(transparent)]
    TlsUnavailable(#[from] memoird_http::TlsUnavailable),
    /// This binary has no local embedder.
    #[error(
        "this memoird was built without local-embedder and cannot use {}; \
         build it with --features local-embedder, or configure a provider",
        dir.display()
    )]
    LocalNotBuilt {
        /// Directory of the model.
        dir: PathBuf,
    },
    /// A model file is missing.
    #[error(
        "{} is missing; a model is a directory with model.safetensors, tokenizer.json and \
         config.json from its repository",
        path.display()
    )]
    ModelIncomplete {
        /// Path of the file.
        path: PathBuf,
    },
    /// A model file is invalid.
    #[error("{} is not a file of a model: {problem}; download it from the model's repository \
        again", path.display())]
    ModelInvalid {
        path: PathBuf,
        /// What is invalid.
        problem: String,
    },
    /// The model is valid but not supported.
    #[error(
        "{}: {what}; use a BERT model of sentence-transformers that pools by mean or cls, such as \
         all-MiniLM-L6-v2",
        path.display()
    )]
    ModelUnsupported {
        /// The file with the unsupported setting.
        path: PathBuf,
        /// The unsupported feature.
        what: String,
    },
    /// The files of a model are inconsistent.
    #[error("the model cannot be used: {problem}; take all files from one repository")]
    ModelUnusable {
        /// The inconsistency.
        problem: String,
    },
}
