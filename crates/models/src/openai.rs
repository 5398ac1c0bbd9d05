//! Embeddings of any provider that speaks OpenAI's `/v1/embeddings`: OpenAI itself, Ollama,
//! vLLM, text-embeddings-inference and many more.

mod answer;
mod config;

use std::sync::OnceLock;

use memoird_memories::{EmbedError, Embedder, Embeddings, Purpose};
use reqwest::Url;
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::error::ModelError;
use crate::http::{self, ApiKey, Auth, Fault, FaultKind, Provider, Request, TimeLimit, Tries};
use crate::vector::hex_digits;
pub use config::OpenAiEmbedderConfig;
use config::TEXT_BYTES_LEAST;

/// Requests vectors from a provider.
///
/// A batch that the provider refuses is sent again in halves, and a text that it refuses
/// alone is cut to a quarter until 256 bytes are left: no API tells how many tokens a model
/// reads, or how many texts a server takes.
#[derive(Debug)]
pub struct OpenAiEmbedder {
    provider: Provider,
    config: OpenAiEmbedderConfig,
    model: String,
    /// Of the vectors so far. A model that changes it is another one.
    dimensions: OnceLock<usize>,
}

/// Texts that are sent together, each cut to so many bytes.
struct Batch<'a> {
    texts: &'a [String],
    text_bytes_max: usize,
}

/// A text that no content filter refuses.
const HARMLESS: &str = "memory";
/// Bytes of the digest that tells prefixes apart.
const DIGEST_BYTES: usize = 4;

impl OpenAiEmbedder {
    /// Nothing is sent yet. The key is what [`OpenAiEmbedderConfig::api_key`] names.
    ///
    /// # Errors
    /// [`ModelError::BaseUrlInvalid`], [`ModelError::SettingOutOfRange`],
    /// [`ModelError::TlsUnavailable`].
    pub fn new(config: &OpenAiEmbedderConfig, api_key: Option<ApiKey>) -> Result<Self, ModelError> {
        config.check()?;
        let base = http::base(&config.base_url)?;
        let auth = Auth::bearer(api_key);
        let tries = Tries {
            max: config.tries_max,
            limit: TimeLimit::Each(config.timeout),
        };
        let provider = Provider::new("embeddings", &base, "/embeddings", auth, tries)?;
        let model = name(config, &base);
        Ok(Self {
            provider,
            config: config.clone(),
            model,
            dimensions: OnceLock::new(),
        })
    }

    async fn vectors(&self, purpose: Purpose, texts: Vec<String>) -> Result<Vec<Vec<f32>>, Fault> {
        let prefix = match purpose {
            Purpose::Memory => &self.config.memory_prefix,
            Purpose::Query => &self.config.query_prefix,
        };
        let texts: Vec<String> = texts
            .into_iter()
            .map(|text| format!("{prefix}{text}"))
            .collect();
        let mut vectors = Vec::with_capacity(texts.len());
        let mut rest = &texts[..];
        while !rest.is_empty() {
            let (texts, after) = rest.split_at(self.fitting(rest));
            self.batch(texts, &mut vectors).await?;
            rest = after;
        }
        Ok(vectors)
    }

    /// How many of these texts a request takes; at least one.
    fn fitting(&self, texts: &[String]) -> usize {
        let mut bytes = 0;
        let fits = |text: &&String| {
            bytes += text.len().min(self.config.text_bytes_max);
            bytes <= self.config.batch_bytes
        };
        texts
            .iter()
            .take(self.config.batch)
            .take_while(fits)
            .count()
            .max(1)
    }

    /// Halves and quarters come to an end, so requests do: fewer than two for each text,
    /// and six more for each that is cut.
    async fn batch(&self, texts: &[String], done: &mut Vec<Vec<f32>>) -> Result<(), Fault> {
        let mut waiting = vec![Batch {
            texts,
            text_bytes_max: self.config.text_bytes_max,
        }];
        while let Some(batch) = waiting.pop() {
            match self.request(&batch).await {
                Ok(vectors) => done.extend(vectors),
                Err(fault) if !fault.is_refusal() => return Err(fault),
                Err(fault) => match batch.smaller() {
                    Some(smaller) => waiting.extend(smaller),
                    None => return Err(self.blame(fault.problem).await),
                },
            }
        }
        Ok(())
    }

    /// Whether the text or the configuration is the cause: some providers answer 400 for a
    /// wrong key or model.
    async fn blame(&self, problem: String) -> Fault {
        let texts = [HARMLESS.to_owned()];
        let batch = Batch {
            texts: &texts,
            text_bytes_max: TEXT_BYTES_LEAST,
        };
        match self.request(&batch).await {
            Ok(_) => Fault::new(FaultKind::Refused, problem),
            Err(fault) if fault.is_refusal() => {
                let hint = "also for a harmless word; check model, dimensions and api_key";
                Fault::new(FaultKind::Misconfigured, format!("{problem}, {hint}"))
            }
            Err(fault) => fault,
        }
    }

    async fn request(&self, batch: &Batch<'_>) -> Result<Vec<Vec<f32>>, Fault> {
        let private: Vec<&str> = batch.texts.iter().map(String::as_str).collect();
        let bytes_max = answer::bytes_max(batch.texts.len());
        let request = Request {
            body: self.body(batch),
            private: &private,
            bytes_max,
        };
        let read = |body: &[u8]| {
            let vectors = answer::vectors(body, batch.texts.len())?;
            self.check_dimensions(vectors.first().map_or(0, Vec::len))?;
            Ok(vectors)
        };
        self.provider.send(&request, read).await
    }

    fn body(&self, batch: &Batch) -> String {
        let cut = |text: &String| text[..text.floor_char_boundary(batch.text_bytes_max)].to_owned();
        let mut body = json!({
            "model": self.config.model,
            "input": batch.texts.iter().map(cut).collect::<Vec<_>>(),
            "encoding_format": "float",
        });
        if let Some(dimensions) = self.config.dimensions {
            body["dimensions"] = dimensions.into();
        }
        body.to_string()
    }

    fn check_dimensions(&self, found: usize) -> Result<(), Fault> {
        let problem = match self.config.dimensions.map(|asked| asked as usize) {
            Some(asked) if asked != found => format!(
                "the model makes {found} dimensions where {asked} are asked for; leave dimensions out"
            ),
            _ => match *self.dimensions.get_or_init(|| found) {
                first if first == found => return Ok(()),
                first => format!(
                    "the model makes {found} dimensions and made {first} before; \
                     restart with the name of the model that it is now"
                ),
            },
        };
        Err(Fault::new(FaultKind::Misconfigured, problem))
    }
}

impl Embedder for OpenAiEmbedder {
    fn model(&self) -> &str {
        &self.model
    }

    fn batch_max(&self) -> usize {
        self.config.batch
    }

    fn embed(&self, purpose: Purpose, texts: Vec<String>) -> Embeddings<'_> {
        Box::pin(async move { Ok(self.vectors(purpose, texts).await?) })
    }
}

impl<'a> Batch<'a> {
    /// The same in smaller pieces, the last first; nothing if it is small enough.
    fn smaller(&self) -> Option<Vec<Batch<'a>>> {
        let text_bytes_max = self.text_bytes_max;
        let piece = |texts| Batch {
            texts,
            text_bytes_max,
        };
        match self.texts {
            [text] if text.len().min(text_bytes_max) > TEXT_BYTES_LEAST => {
                let quarter = text.len().min(text_bytes_max) / 4;
                Some(vec![Batch {
                    texts: self.texts,
                    text_bytes_max: quarter.max(TEXT_BYTES_LEAST),
                }])
            }
            [] | [_] => None,
            texts => {
                let (first, last) = texts.split_at(texts.len() / 2);
                Some(vec![piece(last), piece(first)])
            }
        }
    }
}

/// The name of all that changes vectors: where, which, how long, and behind which words.
fn name(config: &OpenAiEmbedderConfig, base: &Url) -> String {
    let dimensions = config
        .dimensions
        .map_or_else(|| "-".to_owned(), |n| n.to_string());
    let name = format!("openai:{}:{}:{dimensions}", http::shown(base), config.model);
    if config.query_prefix.is_empty() && config.memory_prefix.is_empty() {
        return name;
    }
    let digest = Sha256::new()
        .chain_update(config.query_prefix.len().to_le_bytes())
        .chain_update(&config.query_prefix)
        .chain_update(&config.memory_prefix);
    format!("{name}:{}", hex_digits(digest, DIGEST_BYTES))
}

impl From<Fault> for EmbedError {
    fn from(fault: Fault) -> Self {
        let Fault {
            kind,
            problem,
            after,
        } = fault;
        match kind {
            FaultKind::Later | FaultKind::Strange => Self::Later { problem, after },
            FaultKind::Misconfigured => Self::Misconfigured { problem },
            FaultKind::TooLong | FaultKind::Refused => Self::Refused { problem },
        }
    }
}
