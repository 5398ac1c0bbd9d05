//! What counts the tokens of a model: the word in the file, and the tokenizer behind it.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use memoird_core::model::TokenizerKind;
use memoird_core::tokens::Tokenizer;
use serde::{Deserialize, Serialize};

use crate::stub::{Estimate, HfTokenizer};

/// A tokenizer as it stands in the file: a word, or `{ file: PATH }`.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum TokenizerShape {
    O200k,
    Cl100k,
    Estimate,
    File(PathBuf),
}

impl TokenizerShape {
    pub(super) fn kind(&self) -> TokenizerKind {
        match self {
            Self::O200k => TokenizerKind::O200k,
            Self::Cl100k => TokenizerKind::Cl100k,
            Self::Estimate => TokenizerKind::Estimate,
            Self::File(path) => TokenizerKind::File(path.clone()),
        }
    }
}

/// Tokenizers, each of them once: one that was read from a file may have many megabytes.
#[derive(Default)]
pub(super) struct Tokenizers(HashMap<TokenizerKind, Arc<dyn Tokenizer>>);

impl Tokenizers {
    /// The tokenizer of this kind, or why there is none.
    pub(super) fn get(&mut self, kind: &TokenizerKind) -> Result<Arc<dyn Tokenizer>, String> {
        if let Some(known) = self.0.get(kind) {
            return Ok(Arc::clone(known));
        }
        let tokenizer: Arc<dyn Tokenizer> = match kind {
            TokenizerKind::O200k | TokenizerKind::Cl100k | TokenizerKind::Estimate => {
                Arc::new(Estimate)
            }
            TokenizerKind::File(path) => {
                let read = HfTokenizer::from_file(path);
                let problem = |error| format!("{} cannot be used: {error}", path.display());
                Arc::new(read.map_err(problem)?)
            }
        };
        self.0.insert(kind.clone(), Arc::clone(&tokenizer));
        Ok(tokenizer)
    }
}
