//! What can go wrong with models and their files.

use std::io;
use std::path::PathBuf;

/// What can go wrong with models and their files.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// This program cannot read a tokenizer's file.
    #[error(
        "this memoird was built without tokenizer-json and cannot read {}; \
         build it with --features tokenizer-json, or take another tokenizer",
        path.display()
    )]
    TokenizerNotBuilt {
        /// The file.
        path: PathBuf,
    },
    /// The file of a tokenizer or a model cannot be read.
    #[error("cannot read {}: {error}; check the path and its permissions", path.display())]
    FileUnreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// The file of a tokenizer or a model is larger than any that is known.
    #[error(
        "{} has {bytes} bytes and may have {bytes_max}; check the path, or take a smaller model",
        path.display()
    )]
    FileTooLarge {
        /// The file.
        path: PathBuf,
        /// How large it is.
        bytes: u64,
        /// How large it may be.
        bytes_max: u64,
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
    #[error("base_url {problem}")]
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
    /// The machine cannot verify certificates.
    #[error(transparent)]
    TlsUnavailable(#[from] memoird_http::TlsUnavailable),
    /// This program cannot compute vectors itself.
    #[error(
        "this memoird was built without local-embedder and cannot use {}; \
         build it with --features local-embedder, or configure a provider",
        dir.display()
    )]
    LocalNotBuilt {
        /// The folder of the model.
        dir: PathBuf,
    },
    /// A file of a model is not there.
    #[error(
        "{} is missing; a model is a folder with model.safetensors, tokenizer.json and \
         config.json, as its repository has them",
        path.display()
    )]
    ModelIncomplete {
        /// The file.
        path: PathBuf,
    },
    /// A file of a model says nothing that can be used.
    #[error("{} is none of a model: {problem}; take it from the model's repository again", path.display())]
    ModelInvalid {
        /// The file.
        path: PathBuf,
        /// Why.
        problem: String,
    },
    /// It is a model, but not one that this program computes.
    #[error(
        "{}: {what}; take a BERT model of sentence-transformers that pools by mean or cls, \
         such as all-MiniLM-L6-v2",
        path.display()
    )]
    ModelUnsupported {
        /// The file that says so.
        path: PathBuf,
        /// The unsupported feature.
        what: String,
    },
    /// The files of a model do not make one together.
    #[error("the model cannot be used: {problem}; take all files from one repository")]
    ModelUnusable {
        /// Why.
        problem: String,
    },
}
