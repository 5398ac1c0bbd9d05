//! Embeddings of any provider with OpenAI's `/v1/embeddings`.
//!
//! For example OpenAI, Ollama, vLLM, text-embeddings-inference and many more.

mod response;

use std::sync::OnceLock;
use std::time::Duration;

use memoird_core::config::{AsText, SecretRef, Span};
use memoird_core::hex;
use memoird_core::sha256::Sha256;
use memoird_engine::{FaultKind, ModelFault};
use memoird_memories::{Embedder, Embeddings, Purpose};
use reqwest::Url;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::error::ModelError;
use crate::http::{self, ApiKey, Auth, BaseUrl, Provider, Request, RetryLimits, TimeLimit};
use response::DIMENSIONS_MAX;

/// Embeds texts by requests to a provider.
///
/// No API reports how many tokens a model reads, or how many texts a server accepts. So a rejected
/// batch is sent again in halves, and a text that is rejected alone is truncated to a quarter, down
/// to 256 bytes.
#[derive(Debug)]
pub struct OpenAiEmbedder {
    provider: Provider,
    config: OpenAiEmbedderConfig,
    model: String,
    /// Dimensions of the first vectors. If they change, the model must have been replaced.
    dimensions: OnceLock<usize>,
}

/// Texts for one request, each truncated to `text_bytes_max`.
struct Batch<'a> {
    texts: &'a [String],
    text_bytes_max: usize,
}

/// A text that no content filter rejects.
const PROBE_TEXT: &str = "memory";
/// Length of the digest that distinguishes prefixes.
const DIGEST_BYTES: usize = 4;

impl OpenAiEmbedder {
    /// Creates an embedder. Nothing is sent yet.
    ///
    /// `api_key` is the secret named by [`OpenAiEmbedderConfig::api_key`].
    ///
    /// # Errors
    /// [`ModelError::BaseUrlInvalid`], [`ModelError::SettingOutOfRange`],
    /// [`ModelError::TlsUnavailable`].
    pub fn new(config: &OpenAiEmbedderConfig, api_key: Option<ApiKey>) -> Result<Self, ModelError> {
        config.check()?;
        let base = http::base(&config.base_url)?;
        let auth = Auth::bearer(api_key);
        let retry_limits = RetryLimits {
            max: config.tries_max,
            limit: TimeLimit::Each(config.timeout),
        };
        let provider = Provider::new("embeddings", &base, "/embeddings", auth, retry_limits)?;
        let model = name(config, &base);
        Ok(Self {
            provider,
            config: config.clone(),
            model,
            dimensions: OnceLock::new(),
        })
    }

    async fn vectors(
        &self,
        purpose: Purpose,
        texts: Vec<String>,
    ) -> Result<Vec<Vec<f32>>, ModelFault> {
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

    /// Number of these texts that fit in a request. At least one.
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

    /// Embeds texts with a bounded number of requests.
    ///
    /// Splitting and truncating needs fewer than two requests per text, and six more per truncated
    /// text.
    async fn batch(&self, texts: &[String], done: &mut Vec<Vec<f32>>) -> Result<(), ModelFault> {
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
                    None => return Err(self.find_cause(fault.problem).await),
                },
            }
        }
        Ok(())
    }

    /// Determines whether the text or the configuration was rejected.
    ///
    /// Some providers reply 400 to a wrong key or model.
    async fn find_cause(&self, problem: String) -> ModelFault {
        let texts = [PROBE_TEXT.to_owned()];
        let batch = Batch {
            texts: &texts,
            text_bytes_max: TEXT_BYTES_MIN,
        };
        match self.request(&batch).await {
            Ok(_) => ModelFault::new(FaultKind::Refused, problem),
            Err(fault) if fault.is_refusal() => {
                let hint = "even for a test word; check model, dimensions and api_key";
                ModelFault::new(FaultKind::Misconfigured, format!("{problem}, {hint}"))
            }
            Err(fault) => fault,
        }
    }

    async fn request(&self, batch: &Batch<'_>) -> Result<Vec<Vec<f32>>, ModelFault> {
        let private: Vec<&str> = batch.texts.iter().map(String::as_str).collect();
        let bytes_max = response::bytes_max(batch.texts.len());
        let request = Request {
            body: self.body(batch),
            private: &private,
            bytes_max,
            optional_field: None,
        };
        let read = |body: &[u8]| {
            let vectors = response::vectors(body, batch.texts.len())?;
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

    fn check_dimensions(&self, found: usize) -> Result<(), ModelFault> {
        let problem = match self.config.dimensions.map(|asked| asked as usize) {
            Some(asked) if asked != found => format!(
                "the model returns {found} dimensions instead of the requested {asked}; remove \
                 dimensions"
            ),
            _ => match *self.dimensions.get_or_init(|| found) {
                first if first == found => return Ok(()),
                first => format!(
                    "the model returns {found} dimensions, and returned {first} before; restart \
                     with the name of the current model"
                ),
            },
        };
        Err(ModelFault::new(FaultKind::Misconfigured, problem))
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
        Box::pin(self.vectors(purpose, texts))
    }
}

impl<'a> Batch<'a> {
    /// Splits the batch into smaller ones, the last first. `None` if it cannot be split further.
    fn smaller(&self) -> Option<Vec<Batch<'a>>> {
        let text_bytes_max = self.text_bytes_max;
        let piece = |texts| Batch {
            texts,
            text_bytes_max,
        };
        match self.texts {
            [text] if text.len().min(text_bytes_max) > TEXT_BYTES_MIN => {
                let quarter = text.len().min(text_bytes_max) / 4;
                Some(vec![Batch {
                    texts: self.texts,
                    text_bytes_max: quarter.max(TEXT_BYTES_MIN),
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

/// A name for everything that affects vectors: host, model, dimensions and prefixes.
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
    format!("{name}:{}", hex::encode(&digest.finalize()[..DIGEST_BYTES]))
}

/// Configuration of an OpenAI-compatible provider of embeddings.
///
/// The defaults suit OpenAI, whose models read 8,000 tokens per text and 300,000 tokens per
/// request.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct OpenAiEmbedderConfig {
    /// For example `https://api.openai.com/v1` or `http://127.0.0.1:11434/v1`.
    ///
    /// `/embeddings` is appended. At most 1,024 bytes. A token in its query is never logged or
    /// displayed.
    #[serde(default = "BaseUrl::openai")]
    pub base_url: BaseUrl,
    /// The provider's name of the model, at most 256 bytes.
    pub model: String,
    /// Sent as a bearer token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_key: Option<SecretRef>,
    /// Requests shorter vectors, 1 to 8,192 dimensions. Not every model supports it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dimensions: Option<u32>,
    /// Maximum number of texts per request, 1 to 2,048.
    #[serde(default = "batch")]
    pub batch: usize,
    /// Maximum bytes of texts per request, up to 16 MiB. A single text may exceed it.
    #[serde(skip, default = "batch_bytes")]
    pub batch_bytes: usize,
    /// Maximum bytes of a text including its prefix, 256 to 1 MiB.
    ///
    /// A text that the provider still rejects is truncated further.
    #[serde(skip, default = "text_bytes_max")]
    pub text_bytes_max: usize,
    /// Total timeout of one request, 10 ms to 10 minutes.
    #[serde(default = "timeout", with = "AsText::<Span>")]
    pub timeout: Duration,
    /// Maximum attempts per request, 1 to 10.
    #[serde(skip, default = "tries")]
    pub tries_max: u32,
    /// Prefix of queries, such as `query: ` for e5. At most 4 KiB.
    #[serde(default)]
    pub query_prefix: String,
    /// Prefix of memories, such as `passage: ` for e5. At most 4 KiB.
    #[serde(default)]
    pub memory_prefix: String,
}

/// Minimum bytes of a truncated text.
const TEXT_BYTES_MIN: usize = 256;
const PREFIX_BYTES_MAX: usize = 4 * 1024;
const BATCH_MAX: usize = 2_048;
const BATCH_BYTES_MAX: usize = 16 * 1024 * 1024;
const TEXT_BYTES_MAX: usize = 1024 * 1024;

fn batch() -> usize {
    64
}

fn batch_bytes() -> usize {
    512 * 1024
}

fn text_bytes_max() -> usize {
    24_000
}

fn timeout() -> Duration {
    Duration::from_secs(10)
}

fn tries() -> u32 {
    3
}

impl OpenAiEmbedderConfig {
    /// # Errors
    /// [`ModelError::SettingOutOfRange`] for the first invalid setting.
    fn check(&self) -> Result<(), ModelError> {
        let prefix = self.query_prefix.len().max(self.memory_prefix.len());
        let dimensions = self
            .dimensions
            .is_none_or(|n| usize::try_from(n).is_ok_and(|n| (1..=DIMENSIONS_MAX).contains(&n)));
        let text = (TEXT_BYTES_MIN..=TEXT_BYTES_MAX).contains(&self.text_bytes_max);
        http::check([
            http::model(&self.model),
            (dimensions, "dimensions", "1 to 8192"),
            ((1..=BATCH_MAX).contains(&self.batch), "batch", "1 to 2048"),
            (
                (1..=BATCH_BYTES_MAX).contains(&self.batch_bytes),
                "batch_bytes",
                "1 to 16 MiB",
            ),
            (text, "text_bytes_max", "256 bytes to 1 MiB"),
            http::timeout_limit(self.timeout),
            http::tries_limit(self.tries_max),
            (
                prefix <= PREFIX_BYTES_MAX,
                "query_prefix, memory_prefix",
                "at most 4 KiB",
            ),
        ])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_out_of_range_are_rejected() {
        type Change = fn(&mut OpenAiEmbedderConfig);
        let changes: [(&str, Change); 15] = [
            ("model", |c| c.model.clear()),
            ("model", |c| c.model = "x".repeat(257)),
            ("dimensions", |c| c.dimensions = Some(0)),
            ("dimensions", |c| c.dimensions = Some(8_193)),
            ("batch", |c| c.batch = 0),
            ("batch", |c| c.batch = 2_049),
            ("batch_bytes", |c| c.batch_bytes = 0),
            ("batch_bytes", |c| c.batch_bytes = BATCH_BYTES_MAX + 1),
            ("text_bytes_max", |c| c.text_bytes_max = 255),
            ("text_bytes_max", |c| c.text_bytes_max = TEXT_BYTES_MAX + 1),
            ("timeout", |c| c.timeout = Duration::from_millis(9)),
            ("timeout", |c| c.timeout = Duration::from_secs(601)),
            ("tries_max", |c| c.tries_max = 0),
            ("tries_max", |c| c.tries_max = 11),
            ("query_prefix, memory_prefix", |c| {
                c.memory_prefix = "x".repeat(4_097);
            }),
        ];
        let config = serde_json::json!({"base_url": "http://a.example", "model": "m"});
        let good: OpenAiEmbedderConfig = serde_json::from_value(config).expect("a good one");
        assert!(good.check().is_ok());
        for (name, change) in changes {
            let mut config = good.clone();
            change(&mut config);
            let error = config.check().expect_err(name);
            let is_it =
                matches!(error, ModelError::SettingOutOfRange { setting, .. } if setting == name);
            assert!(is_it, "{name}: {error}");
        }
    }
}
