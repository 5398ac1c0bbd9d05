//! Models: how many tokens each takes, who provides it, and how its tokens are counted.

mod catalogue;
mod name;

use std::path::PathBuf;

use memoird_core::budget::Budget;
use serde::{Deserialize, Serialize};

pub use catalogue::{DEFAULT_MODEL, catalogue};

/// What is known of a model, under the name by which calls ask for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelProfile {
    /// The name.
    pub name: String,
    /// Whose rules for messages and media apply.
    pub provider: Provider,
    /// How text is counted.
    pub tokenizer: TokenizerKind,
    /// Its tokens.
    pub budget: Budget,
}

/// Whose rules for messages and media apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Provider {
    /// OpenAI.
    OpenAi,
    /// Anthropic.
    Anthropic,
    /// Google.
    Google,
    /// A model that somebody serves with open weights.
    Open,
}

/// How text is counted.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum TokenizerKind {
    /// OpenAI's `o200k_base`: GPT-4o and later.
    O200k,
    /// OpenAI's `cl100k_base`: GPT-4 and GPT-3.5.
    Cl100k,
    /// An estimate, for providers whose tokenizer is not public.
    Estimate,
    /// A HuggingFace `tokenizer.json`.
    File(PathBuf),
}
