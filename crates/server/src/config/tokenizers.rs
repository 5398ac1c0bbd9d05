//! What counts the tokens of a model: the word in the file, and the tokenizer behind it.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use memoird_core::model::{Provider, TokenizerKind};
use memoird_core::tokens::{Tokenizer, built_in};
use memoird_models::open_tokenizer;
use serde::{Deserialize, Serialize};

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

/// Tokenizers that were read from files, each of them once: one may have many megabytes.
#[derive(Default)]
pub(super) struct Tokenizers(HashMap<PathBuf, Arc<dyn Tokenizer>>);

impl Tokenizers {
    /// The tokenizer of this kind for a provider's models, or why there is none.
    pub(super) fn get(
        &mut self,
        kind: &TokenizerKind,
        provider: Provider,
    ) -> Result<Arc<dyn Tokenizer>, String> {
        let TokenizerKind::File(path) = kind else {
            return built_in(kind, provider).ok_or_else(|| "not built in".to_owned());
        };
        if let Some(known) = self.0.get(path) {
            return Ok(Arc::clone(known));
        }
        let tokenizer = open_tokenizer(path)
            .map_err(|error| format!("{} cannot be used: {error}", path.display()))?;
        self.0.insert(path.clone(), Arc::clone(&tokenizer));
        Ok(tokenizer)
    }
}
