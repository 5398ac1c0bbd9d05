//! The forward pass of BERT (Devlin et al., 2018, <https://arxiv.org/abs/1810.04805>), with
//! the names of weights that HuggingFace's `BertModel` has. candle-transformers has one,
//! too, together with a hundred other models, and takes longer to build than all the rest.

use candle_core::{D, DType, Device, Module, Result, Tensor};
use candle_nn::ops::softmax_last_dim;
use candle_nn::{Embedding, LayerNorm, Linear, VarBuilder, embedding, layer_norm, linear};

/// How large a model is, and what its neurons do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Shape {
    pub(super) activation: Activation,
    /// Tokens that it knows.
    pub(super) vocabulary: usize,
    /// Dimensions of a token's vector.
    pub(super) hidden: usize,
    pub(super) layers: usize,
    /// They divide `hidden`.
    pub(super) heads: usize,
    pub(super) intermediate: usize,
    /// Tokens of a text.
    pub(super) positions: usize,
    pub(super) types: usize,
    pub(super) norm_epsilon: f64,
}

/// What a neuron does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Activation {
    Gelu,
    /// By the formula with the hyperbolic tangent.
    GeluOfTanh,
    Relu,
}

/// A model with its weights.
pub(super) struct Bert {
    words: Embedding,
    positions: Embedding,
    types: Embedding,
    norm: LayerNorm,
    layers: Vec<Layer>,
}

struct Layer {
    query: Linear,
    key: Linear,
    value: Linear,
    attended: Linear,
    attended_norm: LayerNorm,
    wide: Linear,
    narrow: Linear,
    norm: LayerNorm,
    heads: usize,
    activation: Activation,
}

impl Bert {
    /// Takes the weights out of the content of a `model.safetensors`.
    ///
    /// # Errors
    /// When it is none, or has not the weights of this shape.
    pub(super) fn load(weights: &[u8], shape: &Shape) -> Result<Self> {
        let all = VarBuilder::from_slice_safetensors(weights, DType::F32, &Device::Cpu)?;
        // Models that were trained for another task have theirs one level deeper.
        let all = match all.contains_tensor("bert.embeddings.word_embeddings.weight") {
            true => all.pp("bert"),
            false => all,
        };
        let first = all.pp("embeddings");
        let of = |name, count| embedding(count, shape.hidden, first.pp(name));
        let encoder = all.pp("encoder.layer");
        let layers = (0..shape.layers).map(|index| Layer::load(&encoder.pp(index), shape));
        Ok(Self {
            words: of("word_embeddings", shape.vocabulary)?,
            positions: of("position_embeddings", shape.positions)?,
            types: of("token_type_embeddings", shape.types)?,
            norm: layer_norm(shape.hidden, shape.norm_epsilon, first.pp("LayerNorm"))?,
            layers: layers.collect::<Result<_>>()?,
        })
    }

    /// The vectors of all tokens, `[texts, tokens, hidden]`. `ids` are `[texts, tokens]`;
    /// `bias`, `[texts, 1, 1, tokens]`, is added to what looks at a token.
    pub(super) fn forward(&self, ids: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
        let (_, tokens) = ids.dims2()?;
        let last = u32::try_from(tokens).map_err(candle_core::Error::wrap)?;
        let positions = self
            .positions
            .forward(&Tensor::arange(0, last, &Device::Cpu)?)?;
        // Every token is of the first sentence.
        let kind = self
            .types
            .forward(&Tensor::zeros(1, DType::U32, &Device::Cpu)?)?;
        let places = positions.broadcast_add(&kind)?;
        let mut hidden = self
            .norm
            .forward(&self.words.forward(ids)?.broadcast_add(&places)?)?;
        for layer in &self.layers {
            hidden = layer.forward(&hidden, bias)?;
        }
        Ok(hidden)
    }
}

impl Layer {
    fn load(all: &VarBuilder, shape: &Shape) -> Result<Self> {
        let (hidden, intermediate) = (shape.hidden, shape.intermediate);
        let square = |name: &str| linear(hidden, hidden, all.pp(name));
        let norm = |name: &str| layer_norm(hidden, shape.norm_epsilon, all.pp(name));
        Ok(Self {
            query: square("attention.self.query")?,
            key: square("attention.self.key")?,
            value: square("attention.self.value")?,
            attended: square("attention.output.dense")?,
            attended_norm: norm("attention.output.LayerNorm")?,
            wide: linear(hidden, intermediate, all.pp("intermediate.dense"))?,
            narrow: linear(intermediate, hidden, all.pp("output.dense"))?,
            norm: norm("output.LayerNorm")?,
            heads: shape.heads,
            activation: shape.activation,
        })
    }

    fn forward(&self, hidden: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
        let attended = self.attended.forward(&self.attend(hidden, bias)?)?;
        let attended = self.attended_norm.forward(&(attended + hidden)?)?;
        let wide = self.wide.forward(&attended)?;
        let wide = match self.activation {
            Activation::Gelu => wide.gelu_erf()?,
            Activation::GeluOfTanh => wide.gelu()?,
            Activation::Relu => wide.relu()?,
        };
        self.norm
            .forward(&(self.narrow.forward(&wide)? + attended)?)
    }

    fn attend(&self, hidden: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
        let (texts, tokens, width) = hidden.dims3()?;
        let part = width / self.heads;
        let by_head = |linear: &Linear| {
            let all = linear
                .forward(hidden)?
                .reshape((texts, tokens, self.heads, part))?;
            all.transpose(1, 2)?.contiguous()
        };
        // Small once is cheaper than every score divided.
        #[allow(clippy::cast_precision_loss)]
        let scale = 1.0 / (part as f64).sqrt();
        let query = (by_head(&self.query)? * scale)?;
        let scores = query.matmul(&by_head(&self.key)?.t()?)?;
        let scores = match bias {
            Some(bias) => scores.broadcast_add(bias)?,
            None => scores,
        };
        let seen = softmax_last_dim(&scores)?.matmul(&by_head(&self.value)?)?;
        seen.transpose(1, 2)?.flatten_from(D::Minus2)
    }
}
