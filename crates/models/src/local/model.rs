//! Tokenizes texts and computes vectors. All of it blocks.

use candle_core::{DType, Device, Result as CandleResult, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::bert::BertModel;
use memoird_engine::{FaultKind, ModelFault};
use memoird_memories::Purpose;
use tokenizers::{Tokenizer, TruncationParams};

use super::folder::ModelFolder;
use super::settings::{Pooling, Prompts};
use crate::error::ModelError;
use crate::tokenizer::{PROBE, parse};
use crate::vector::unit;

/// Bytes of a text to tokenize per token of the model's maximum input.
///
/// Words have fewer bytes, and a book need not be tokenized to use its first page.
const TOKEN_BYTES_MAX: usize = 64;
/// Maximum tokens per pass including padding, unless it has a single text.
///
/// A query may wait for such a pass of memories.
const PASS_TOKENS_MAX: usize = 1_024;
pub(super) struct Model {
    tokenizer: Tokenizer,
    bert: BertModel,
    pooling: Pooling,
    prompts: Prompts,
    tokens_max: usize,
}

/// Index of a text in the caller's order, and its tokens.
type IndexedTokens = (usize, Vec<u32>);

/// Texts of similar length, computed together.
pub(super) struct ForwardPass {
    texts: Vec<IndexedTokens>,
}

impl Model {
    /// # Errors
    /// [`ModelError`] if the files are inconsistent, or produce no vector.
    pub(super) fn new(folder: ModelFolder) -> Result<Self, ModelError> {
        let tokenizer = tokenizer(&folder)?;
        let weights = VarBuilder::from_slice_safetensors(&folder.weights, DType::F32, &Device::Cpu);
        let bert = weights
            .and_then(|weights| BertModel::load(weights, &folder.config))
            .map_err(|error| unusable(format!("its weights: {error}")))?;
        let model = Self {
            tokenizer,
            bert,
            pooling: folder.pooling,
            prompts: folder.prompts,
            tokens_max: folder.tokens_max,
        };
        let probe = model
            .passes(Purpose::Query, &[PROBE.to_owned()])
            .and_then(|passes| {
                passes
                    .iter()
                    .map(|pass| model.compute(pass))
                    .collect::<Result<Vec<_>, _>>()
            });
        probe.map_err(|error| unusable(error.to_string()))?;
        Ok(model)
    }

    /// Splits texts into passes, sorted by length to minimize padding.
    pub(super) fn passes(
        &self,
        purpose: Purpose,
        texts: &[String],
    ) -> Result<Vec<ForwardPass>, ModelFault> {
        let mut indexed: Vec<IndexedTokens> = texts
            .iter()
            .enumerate()
            .map(|(index, text)| {
                let tokens = self.tokens(purpose, text)?;
                Ok((index, tokens))
            })
            .collect::<Result<_, ModelFault>>()?;
        indexed.sort_by_key(|(_, tokens)| tokens.len());
        let mut passes: Vec<ForwardPass> = Vec::new();
        for text in indexed {
            let length = text.1.len();
            match passes.last_mut() {
                Some(pass) if (pass.texts.len() + 1) * length <= PASS_TOKENS_MAX => {
                    pass.texts.push(text);
                }
                _ => passes.push(ForwardPass { texts: vec![text] }),
            }
        }
        Ok(passes)
    }

    fn tokens(&self, purpose: Purpose, text: &str) -> Result<Vec<u32>, ModelFault> {
        let prompt = match purpose {
            Purpose::Memory => &self.prompts.memory,
            Purpose::Query => &self.prompts.query,
        };
        let text = text.trim_start();
        let cut = text.floor_char_boundary(self.tokens_max * TOKEN_BYTES_MAX);
        // The library's message may repeat the text.
        let encoding = self
            .tokenizer
            .encode_fast(format!("{prompt}{}", &text[..cut]), true)
            .map_err(|_| refused("its tokenizer fails on a text"))?;
        match encoding.get_ids() {
            [] => Err(refused("its tokenizer returns no tokens for a text")),
            ids => Ok(ids.to_vec()),
        }
    }

    /// The vectors of a pass, each with its index.
    pub(super) fn compute(&self, pass: &ForwardPass) -> Result<Vec<(usize, Vec<f32>)>, ModelFault> {
        let pooled = self
            .pooled(pass)
            .map_err(|error| refused(&error.to_string()))?;
        let vectors = pass.texts.iter().zip(pooled).map(|((index, _), vector)| {
            let vector = unit(vector).ok_or_else(|| refused("it returns no usable vector"))?;
            Ok((*index, vector))
        });
        vectors.collect()
    }

    fn pooled(&self, pass: &ForwardPass) -> CandleResult<Vec<Vec<f32>>> {
        let texts = pass.texts.len();
        let lengths = pass.texts.iter().map(|(_, tokens)| tokens.len());
        let longest = lengths.max().unwrap_or(0);
        let mut flat_ids = Vec::with_capacity(texts * longest);
        let mut flat_seen: Vec<f32> = Vec::with_capacity(texts * longest);
        for (_, tokens) in &pass.texts {
            flat_ids.extend(tokens);
            flat_seen.resize(flat_ids.len(), 1.0);
            // Any token will do: padding is masked.
            flat_ids.resize(flat_ids.len() + longest - tokens.len(), 0);
            flat_seen.resize(flat_ids.len(), 0.0);
        }
        let ids = Tensor::from_vec(flat_ids, (texts, longest), &Device::Cpu)?;
        // All tokens belong to the first sentence.
        let kinds = ids.zeros_like()?;
        let seen = Tensor::from_vec(flat_seen, (texts, longest), &Device::Cpu)?;
        let hidden = self.bert.forward(&ids, &kinds, Some(&seen))?;
        match self.pooling {
            Pooling::Cls => hidden.narrow(1, 0, 1)?.squeeze(1)?.to_vec2(),
            // The sum has the same direction as the mean, and is normalized anyway.
            Pooling::Mean => {
                let seen = seen.unsqueeze(2)?;
                hidden.broadcast_mul(&seen)?.sum(1)?.to_vec2()
            }
        }
    }
}

/// The tokenizer, which truncates to the model's maximum input.
fn tokenizer(folder: &ModelFolder) -> Result<Tokenizer, ModelError> {
    let cut = TruncationParams {
        max_length: folder.tokens_max,
        ..TruncationParams::default()
    };
    let tokenizer = parse(&folder.tokenizer, Some(cut))
        .map_err(|error| unusable(format!("its tokenizer: {error}")))?;
    let last = tokenizer.get_vocab(true).into_values().max().unwrap_or(0);
    let known = folder.config.vocab_size;
    if usize::try_from(last).is_ok_and(|last| last >= known) {
        Err(unusable(format!(
            "its tokenizer has token ids up to {last}, the model has {known} tokens"
        )))
    } else {
        Ok(tokenizer)
    }
}

fn unusable(problem: String) -> ModelError {
    ModelError::ModelUnusable { problem }
}

fn refused(problem: &str) -> ModelFault {
    ModelFault::new(FaultKind::Refused, format!("the local model: {problem}"))
}
