//! Embeddings of any provider that speaks OpenAI's `/v1/embeddings`: OpenAI itself, Ollama,
//! vLLM, text-embeddings-inference and many more.

mod answer;
mod client;
mod config;
mod problem;
mod tries;

use std::fmt;
use std::sync::OnceLock;
use std::time::Duration;

use memoird_engine::{EmbedError, Embedder, Embeddings, Purpose};
use reqwest::{Client, Response, Url};
use serde_json::json;
use sha2::{Digest, Sha256};
use tokio::time::timeout;

use crate::error::ModelError;
use config::TEXT_BYTES_LEAST;
pub use config::{ApiKey, OpenAiEmbedderConfig};
use tries::with_tries;

/// Asks a provider for vectors.
///
/// A batch that the provider refuses is asked for again in halves, and a text that it
/// refuses alone is cut to a quarter until 256 bytes are left: how many tokens a model
/// reads, and how many texts a server takes, is nowhere to be asked.
pub struct OpenAiEmbedder {
    endpoint: Url,
    client: Client,
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

/// A text that nobody refuses for what it says.
const HARMLESS: &str = "memory";
/// Bytes read of a refusal, and how long to wait for them.
const REFUSAL_BYTES_MAX: usize = 8 * 1024;
const REFUSAL_PAUSE: Duration = Duration::from_secs(1);
/// Bytes of the digest that tells prefixes apart.
const DIGEST_BYTES: usize = 4;

impl OpenAiEmbedder {
    /// Nothing is sent yet.
    ///
    /// # Errors
    /// [`ModelError::BaseUrlInvalid`], [`ModelError::SettingOutOfRange`],
    /// [`ModelError::TlsUnavailable`].
    pub fn new(config: &OpenAiEmbedderConfig) -> Result<Self, ModelError> {
        config.check()?;
        let endpoint = client::endpoint(&config.base_url)?;
        let client = client::build(&endpoint, config.api_key.as_ref())?;
        let model = name(config, &endpoint);
        let dimensions = OnceLock::new();
        Ok(Self { endpoint, client, config: config.clone(), model, dimensions })
    }

    async fn vectors(
        &self,
        purpose: Purpose,
        texts: Vec<String>,
    ) -> Result<Vec<Vec<f32>>, EmbedError> {
        let prefix = match purpose {
            Purpose::Memory => &self.config.memory_prefix,
            Purpose::Query => &self.config.query_prefix,
        };
        let texts: Vec<String> = texts.into_iter().map(|text| format!("{prefix}{text}")).collect();
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
        texts.iter().take(self.config.batch).take_while(fits).count().max(1)
    }

    /// Halves and quarters come to an end, so requests do: fewer than two for each text,
    /// and six more for each that is cut.
    async fn batch(&self, texts: &[String], done: &mut Vec<Vec<f32>>) -> Result<(), EmbedError> {
        let mut waiting = vec![Batch { texts, text_bytes_max: self.config.text_bytes_max }];
        while let Some(batch) = waiting.pop() {
            match with_tries(self.config.tries_max, || self.ask(&batch)).await {
                Ok(vectors) => done.extend(vectors),
                Err(EmbedError::Refused { problem }) => match batch.smaller() {
                    Some(smaller) => waiting.extend(smaller),
                    None => return Err(self.blame(problem).await),
                },
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Whether a text or the configuration is to blame: there are providers that answer
    /// 400 for a wrong key or model, and then no memory is at fault.
    async fn blame(&self, problem: String) -> EmbedError {
        let texts = [HARMLESS.to_owned()];
        let batch = Batch { texts: &texts, text_bytes_max: TEXT_BYTES_LEAST };
        match with_tries(self.config.tries_max, || self.ask(&batch)).await {
            Ok(_) => EmbedError::Refused { problem },
            Err(EmbedError::Refused { .. }) => EmbedError::Misconfigured {
                problem: format!(
                    "{problem}, also for a harmless word; check model, dimensions and api_key"
                ),
            },
            Err(error) => error,
        }
    }

    /// One request, within its time.
    async fn ask(&self, batch: &Batch<'_>) -> Result<Vec<Vec<f32>>, EmbedError> {
        let limit = self.config.timeout;
        let asked = timeout(limit, self.exchange(batch)).await;
        let asked = asked.unwrap_or_else(|_| {
            Err(EmbedError::Later { problem: format!("no answer within {limit:?}"), after: None })
        });
        asked.map_err(|error| self.named(error))
    }

    async fn exchange(&self, batch: &Batch<'_>) -> Result<Vec<Vec<f32>>, EmbedError> {
        let request = self.client.post(self.endpoint.clone()).body(self.body(batch));
        let answer = request.send().await.map_err(broken)?;
        let status = answer.status();
        if !status.is_success() {
            let headers = answer.headers().clone();
            let said = said(answer).await;
            let key = self.config.api_key.iter().map(ApiKey::as_str);
            let private = key.chain(batch.texts.iter().map(String::as_str));
            return Err(problem::problem(status, &headers, &problem::codes(&said, &private)));
        }
        let body = body(answer, answer::bytes_max(batch.texts.len())).await?;
        let vectors = answer::vectors(&body, batch.texts.len())?;
        self.check_dimensions(vectors.first().map_or(0, Vec::len))?;
        Ok(vectors)
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

    fn check_dimensions(&self, found: usize) -> Result<(), EmbedError> {
        let asked = self.config.dimensions.and_then(|asked| usize::try_from(asked).ok());
        let problem = match asked {
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
        Err(EmbedError::Misconfigured { problem })
    }

    /// The same, and who said it.
    fn named(&self, error: EmbedError) -> EmbedError {
        let named = |problem| format!("embeddings of {}: {problem}", client::shown(&self.endpoint));
        match error {
            EmbedError::Later { problem, after } => {
                EmbedError::Later { problem: named(problem), after }
            }
            EmbedError::Misconfigured { problem } => {
                EmbedError::Misconfigured { problem: named(problem) }
            }
            EmbedError::Refused { problem } => EmbedError::Refused { problem: named(problem) },
        }
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

impl fmt::Debug for OpenAiEmbedder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenAiEmbedder").field("model", &self.model).finish_non_exhaustive()
    }
}

impl<'a> Batch<'a> {
    /// The same in smaller pieces, the last first; nothing if it is small enough.
    fn smaller(&self) -> Option<Vec<Batch<'a>>> {
        let text_bytes_max = self.text_bytes_max;
        let piece = |texts| Batch { texts, text_bytes_max };
        match self.texts {
            [text] if text.len() > TEXT_BYTES_LEAST && text_bytes_max > TEXT_BYTES_LEAST => {
                let text_bytes_max = text.len().min(text_bytes_max) / 4;
                let text_bytes_max = text_bytes_max.max(TEXT_BYTES_LEAST);
                Some(vec![Batch { texts: self.texts, text_bytes_max }])
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
fn name(config: &OpenAiEmbedderConfig, endpoint: &Url) -> String {
    let dimensions = config.dimensions.map_or_else(|| "-".to_owned(), |n| n.to_string());
    let name = format!("openai:{}:{}:{dimensions}", client::shown(endpoint), config.model);
    if config.query_prefix.is_empty() && config.memory_prefix.is_empty() {
        return name;
    }
    let digest = Sha256::new().chain_update(config.query_prefix.len().to_le_bytes());
    let digest = digest.chain_update(&config.query_prefix).chain_update(&config.memory_prefix);
    let digest = digest.finalize();
    let hex = digest.iter().take(DIGEST_BYTES).map(|byte| format!("{byte:02x}"));
    format!("{name}:{}", hex.collect::<String>())
}

/// The beginning of what a refusal says.
async fn said(mut answer: Response) -> Vec<u8> {
    let mut bytes = Vec::new();
    let read = async {
        while bytes.len() < REFUSAL_BYTES_MAX {
            let Ok(Some(chunk)) = answer.chunk().await else { break };
            let room = REFUSAL_BYTES_MAX - bytes.len();
            bytes.extend_from_slice(&chunk[..chunk.len().min(room)]);
        }
    };
    let _ = timeout(REFUSAL_PAUSE, read).await;
    bytes
}

async fn body(mut answer: Response, bytes_max: usize) -> Result<Vec<u8>, EmbedError> {
    let mut bytes = Vec::new();
    while let Some(chunk) = answer.chunk().await.map_err(broken)? {
        if bytes.len() + chunk.len() > bytes_max {
            let problem = format!("the answer has more than {bytes_max} bytes");
            return Err(EmbedError::Later { problem, after: None });
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}

/// The network's own words, which know nothing of what was sent.
fn broken(error: reqwest::Error) -> EmbedError {
    let error = error.without_url();
    let mut cause: &dyn std::error::Error = &error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    EmbedError::Later { problem: format!("no answer: {cause}"), after: None }
}
