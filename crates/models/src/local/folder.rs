//! The folder of a model as sentence-transformers writes it: the files that count, each
//! within its size.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use candle_transformers::models::bert::Config;
use memoird_core::hex;
use memoird_core::sha256::Sha256;
use serde_json::Value;

use super::settings::{Pooling, Prompts, bert_config, pooling, pooling_folder};
use crate::error::ModelError;
use crate::tokenizer::{TOKENIZER_BYTES_MAX, read_file};

/// Twice the largest of the family. Opening takes that memory twice.
const WEIGHTS_BYTES_MAX: u64 = 3 * 1024 * 1024 * 1024;
const JSON_BYTES_MAX: u64 = 1024 * 1024;
/// Bytes of the digest in the model's name.
const DIGEST_BYTES: usize = 8;
/// Fewer tokens of a text would be special ones only.
const TOKENS_LEAST: usize = 8;

/// All that is known of a model before it computes.
pub(super) struct Folder {
    pub(super) config: Config,
    pub(super) pooling: Pooling,
    pub(super) prompts: Prompts,
    /// Tokens of a text, the special ones included.
    pub(super) tokens_max: usize,
    pub(super) weights: Vec<u8>,
    pub(super) tokenizer: Vec<u8>,
    /// Of every file that was read, in hexadecimal digits.
    pub(super) digest: String,
}

/// A JSON file, which knows its path for errors.
pub(super) struct Json {
    path: PathBuf,
    pub(super) value: Value,
}

/// Reads files, and remembers what they were.
struct Reader<'a> {
    dir: &'a Path,
    digest: Sha256,
}

impl Folder {
    /// # Errors
    /// [`ModelError`] for a folder that is none of a model, or not of this family.
    pub(super) fn read(dir: &Path) -> Result<Self, ModelError> {
        let mut reader = Reader {
            dir,
            digest: Sha256::new(),
        };
        let config = reader.needed("config.json", JSON_BYTES_MAX)?;
        let config = bert_config(&reader.parsed("config.json", &config)?)?;
        let folder = match reader.json("modules.json")? {
            Some(modules) => pooling_folder(&modules)?,
            None => "1_Pooling".to_owned(),
        };
        let pooling = match reader.json(&format!("{folder}/config.json"))? {
            Some(config) => pooling(&config)?,
            None => Pooling::Mean,
        };
        let own = reader.json("sentence_bert_config.json")?;
        let own = own.and_then(|own| own.value["max_seq_length"].as_u64());
        let own = own
            .and_then(|own| usize::try_from(own).ok())
            .filter(|own| *own >= TOKENS_LEAST);
        let prompts = match reader.json("config_sentence_transformers.json")? {
            Some(config) => Prompts::read(&config)?,
            None => Prompts::default(),
        };
        let positions = config.max_position_embeddings;
        let weights = reader.needed("model.safetensors", WEIGHTS_BYTES_MAX)?;
        let tokenizer = reader.needed("tokenizer.json", TOKENIZER_BYTES_MAX)?;
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

impl Json {
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

impl Reader<'_> {
    /// A file; nothing where there is none.
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

    fn needed(&mut self, name: &str, bytes_max: u64) -> Result<Vec<u8>, ModelError> {
        let path = self.dir.join(name);
        self.file(name, bytes_max)?
            .ok_or(ModelError::ModelIncomplete { path })
    }

    fn json(&mut self, name: &str) -> Result<Option<Json>, ModelError> {
        let content = self.file(name, JSON_BYTES_MAX)?;
        content
            .map(|content| self.parsed(name, &content))
            .transpose()
    }

    fn parsed(&self, name: &str, content: &[u8]) -> Result<Json, ModelError> {
        let path = self.dir.join(name);
        match serde_json::from_slice(content) {
            Ok(value) => Ok(Json { path, value }),
            Err(error) => Err(ModelError::ModelInvalid {
                path,
                problem: error.to_string(),
            }),
        }
    }
}
