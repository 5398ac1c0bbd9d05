//! Parses a model's JSON files: its shape, pooling and prompts.
//!
//! An unknown setting is rejected: with slightly wrong vectors, recall would silently find less.

use std::ops::RangeInclusive;

use candle_transformers::models::bert::{Config, HiddenAct};
use serde_json::Value;

use super::folder::JsonFile;
use crate::error::ModelError;

/// Maximum bytes of a prompt.
const PROMPT_BYTES_MAX: usize = 4 * 1024;

/// How token vectors are combined into the vector of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pooling {
    Mean,
    /// The first one.
    Cls,
}

/// Prefixes of texts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Prompts {
    pub(super) query: String,
    pub(super) memory: String,
}

/// Parses the shape of the model from its `config.json`.
pub(super) fn bert_config(config: &JsonFile) -> Result<Config, ModelError> {
    let said = |name: &str| config.value[name].as_str();
    let family = said("model_type").unwrap_or("nothing");
    if family != "bert" {
        return Err(config.unsupported(format!("model_type is {family}")));
    }
    if let Some(kind) = said("position_embedding_type").filter(|kind| *kind != "absolute") {
        return Err(config.unsupported(format!("position_embedding_type is {kind}")));
    }
    let hidden_act = match said("hidden_act").unwrap_or("gelu") {
        "gelu" => HiddenAct::Gelu,
        "gelu_new" | "gelu_pytorch_tanh" => HiddenAct::GeluApproximate,
        "relu" => HiddenAct::Relu,
        other => return Err(config.unsupported(format!("hidden_act is {other}"))),
    };
    let number = |name: &str, range: RangeInclusive<usize>| {
        let number = config.value[name]
            .as_u64()
            .and_then(|number| usize::try_from(number).ok());
        let (least, most) = (range.start(), range.end());
        let outside = || config.invalid(format!("{name} must be a number from {least} to {most}"));
        number
            .filter(|number| range.contains(number))
            .ok_or_else(outside)
    };
    let bert = Config {
        vocab_size: number("vocab_size", 1..=10_000_000)?,
        hidden_size: number("hidden_size", 1..=8_192)?,
        num_hidden_layers: number("num_hidden_layers", 1..=64)?,
        num_attention_heads: number("num_attention_heads", 1..=256)?,
        intermediate_size: number("intermediate_size", 1..=65_536)?,
        hidden_act,
        max_position_embeddings: number("max_position_embeddings", 8..=8_192)?,
        type_vocab_size: number("type_vocab_size", 1..=16)?,
        layer_norm_eps: config.value["layer_norm_eps"].as_f64().unwrap_or(1e-12),
        // The rest is for training, and for weights with the prefix `bert`.
        ..Config::default()
    };
    if bert.hidden_size.is_multiple_of(bert.num_attention_heads) {
        Ok(bert)
    } else {
        Err(config.invalid("num_attention_heads does not divide hidden_size".to_owned()))
    }
}

/// Finds the directory of the pooling module in `modules.json`.
pub(super) fn pooling_folder(modules: &JsonFile) -> Result<String, ModelError> {
    let mut folder = None;
    for module in modules.value.as_array().into_iter().flatten() {
        let kind = module["type"].as_str().unwrap_or_default();
        match kind.rsplit('.').next().unwrap_or_default() {
            "Transformer" | "Normalize" => {}
            "Pooling" => folder = module["path"].as_str(),
            _ => return Err(modules.unsupported(format!("it has a module {kind:?}"))),
        }
    }
    folder
        .map(str::to_owned)
        .ok_or_else(|| modules.invalid("it has no pooling".to_owned()))
}

/// Parses the pooling from its `config.json`.
pub(super) fn pooling(config: &JsonFile) -> Result<Pooling, ModelError> {
    let mut modes: Vec<&str> = Vec::new();
    for (name, value) in config.value.as_object().into_iter().flatten() {
        match (name.as_str(), value) {
            ("include_prompt", Value::Bool(false)) => {
                return Err(config.unsupported("it pools without the prompt".to_owned()));
            }
            ("pooling_mode", Value::String(mode)) => modes.push(mode),
            (name, Value::Bool(true)) => modes.extend(name.strip_prefix("pooling_mode_")),
            _ => {}
        }
    }
    match modes[..] {
        ["mean_tokens" | "mean"] => Ok(Pooling::Mean),
        ["cls_token" | "cls"] => Ok(Pooling::Cls),
        _ => Err(config.unsupported(format!("it pools by {modes:?}"))),
    }
}

impl Prompts {
    /// Reads prompts from `config_sentence_transformers.json`.
    ///
    /// The names are those that sentence-transformers uses in `encode_query` and `encode_document`.
    pub(super) fn read(config: &JsonFile) -> Result<Self, ModelError> {
        let usual = config.value["default_prompt_name"].as_str();
        let prompt = |names: &[&str]| {
            let names = names.iter().copied().chain(usual);
            let found = names
                .filter_map(|name| config.value["prompts"][name].as_str())
                .next();
            found.unwrap_or_default().to_owned()
        };
        let prompts = Self {
            query: prompt(&["query"]),
            memory: prompt(&["document", "passage", "corpus"]),
        };
        match prompts.query.len().max(prompts.memory.len()) {
            0..=PROMPT_BYTES_MAX => Ok(prompts),
            _ => Err(config.invalid(format!("a prompt has more than {PROMPT_BYTES_MAX} bytes"))),
        }
    }
}
