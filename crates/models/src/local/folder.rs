//! Reads the directory of a sentence-transformers model, with a maximum size per file.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use candle_transformers::models::bert::Config;
use memoird_core::hex;
use memoird_core::sha256::Sha256;
use serde_json::Value;

use super::settings::{Pooling, Prompts, bert_config, pooling, pooling_folder};
use crate::error::ModelError;
use crate::tokenizer::{TOKENIZER_BYTES_MAX, read_file};

/// Twice the size of the largest BERT model. Opening takes that much memory twice.
const WEIGHTS_BYTES_MAX: u64 = 3 * 1024 * 1024 * 1024;
const JSON_BYTES_MAX: u64 = 1024 * 1024;
/// Length of the digest in the model's name.
const DIGEST_BYTES: usize = 8;
/// Minimum tokens per text. With fewer, all of them would be special tokens.
const TOKENS_MIN: usize = 8;

/// Configuration and files of a model.
pub(super) struct ModelFolder {
    pub(super) config: Config,
    pub(super) pooling: Pooling,
    pub(super) prompts: Prompts,
    /// Maximum tokens per text, including special ones.
    pub(super) tokens_max: usize,
    pub(super) weights: Vec<u8>,
    pub(super) tokenizer: Vec<u8>,
    /// Hash of all files that were read, in hexadecimal.
    pub(super) digest: String,
}

/// A JSON file, with its path for errors.
pub(super) struct JsonFile {
    path: PathBuf,
    pub(super) value: Value,
}

/// Reads files and hashes them.
struct HashingReader<'a> {
    dir: &'a Path,
    digest: Sha256,
}

impl ModelFolder {
    /// # Errors
    /// [`ModelError`] if the directory has no supported model.
    pub(super) fn read(dir: &Path) -> Result<Self, ModelError> {
        let mut reader = HashingReader {
            dir,
            digest: Sha256::new(),
        };
        let bytes = reader.require_file("config.json", JSON_BYTES_MAX)?;
        let config = bert_config(&reader.parsed("config.json", &bytes)?)?;
        let folder = match reader.json("modules.json")? {
            Some(modules) => pooling_folder(&modules)?,
            None => "1_Pooling".to_owned(),
        };
        let pooling = match reader.json(&format!("{folder}/config.json"))? {
            Some(config) => pooling(&config)?,
            None => Pooling::Mean,
        };
        let own = reader
            .json("sentence_bert_config.json")?
            .and_then(|own| own.value["max_seq_length"].as_u64())
            .and_then(|own| usize::try_from(own).ok())
            .filter(|own| *own >= TOKENS_MIN);
        let prompts = match reader.json("config_sentence_transformers.json")? {
            Some(config) => Prompts::read(&config)?,
            None => Prompts::default(),
        };
        let positions = config.max_position_embeddings;
        let weights = reader.require_file("model.safetensors", WEIGHTS_BYTES_MAX)?;
        let tokenizer = reader.require_file("tokenizer.json", TOKENIZER_BYTES_MAX)?;
        let tokens_max = own.unwrap_or(positions).min(positions);
        let digest = hex::encode(&reader.digest.finalize()[..DIGEST_BYTES]);
        Ok(Self {
            config,
            pooling,
            prompts,
            tokens_max,
            weights,
            tokenizer,
            digest,
        })
    }
}

impl JsonFile {
    pub(super) fn invalid(&self, problem: String) -> ModelError {
        ModelError::ModelInvalid {
            path: self.path.clone(),
            problem,
        }
    }

    pub(super) fn unsupported(&self, what: String) -> ModelError {
        ModelError::ModelUnsupported {
            path: self.path.clone(),
            what,
        }
    }
}

impl HashingReader<'_> {
    /// Reads a file. `None` if it does not exist.
    fn file(&mut self, name: &str, bytes_max: u64) -> Result<Option<Vec<u8>>, ModelError> {
        let content = match read_file(&self.dir.join(name), bytes_max) {
            Err(ModelError::FileUnreadable { error, .. })
                if error.kind() == ErrorKind::NotFound =>
            {
                return Ok(None);
            }
            content => content?,
        };
        self.digest.update(name);
        self.digest.update(content.len().to_le_bytes());
        self.digest.update(&content);
        Ok(Some(content))
    }

    fn require_file(&mut self, name: &str, bytes_max: u64) -> Result<Vec<u8>, ModelError> {
        let path = self.dir.join(name);
        self.file(name, bytes_max)?
            .ok_or(ModelError::ModelIncomplete { path })
    }

    fn json(&mut self, name: &str) -> Result<Option<JsonFile>, ModelError> {
        let content = self.file(name, JSON_BYTES_MAX)?;
        content
            .map(|content| self.parsed(name, &content))
            .transpose()
    }

    fn parsed(&self, name: &str, content: &[u8]) -> Result<JsonFile, ModelError> {
        let path = self.dir.join(name);
        match serde_json::from_slice(content) {
            Ok(value) => Ok(JsonFile { path, value }),
            Err(error) => Err(ModelError::ModelInvalid {
                path,
                problem: error.to_string(),
            }),
        }
    }
}
