//! Rerankers behind HTTP.
//!
//! They have a `/rerank` in the format of Jina, Cohere, vLLM and llama.cpp, or of
//! text-embeddings-inference.

mod response;

use std::sync::Arc;
use std::time::Duration;

use memoird_core::config::{AsText, Environment, Problem, SecretRef, Span};
use memoird_engine::ModelFault;
use memoird_memories::{Reranker, Reranking};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::error::ModelError;
use crate::http::{self, ApiKey, Auth, BaseUrl, Provider, Request, RetryLimits, with_key};

/// Maximum bytes of a text: about what a model of 512 tokens reads along with a query.
const DOCUMENT_BYTES_MAX: usize = 1_500;
/// Maximum number of texts per request.
const DOCUMENTS_MAX: usize = 100;

/// Which reranker judges how well memories match a query.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RerankerSpec {
    /// None: recall uses words and vectors only.
    #[default]
    None,
    /// Any service with Jina's `/v1/rerank`: Jina, Cohere, vLLM, llama.cpp.
    Jina(JinaRerankerConfig),
    /// text-embeddings-inference, which has its own `/rerank` format.
    Tei(TeiRerankerConfig),
}

/// Configuration of a service with Jina's `/v1/rerank`. The defaults suit Jina.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct JinaRerankerConfig {
    /// For example `https://api.jina.ai/v1` or `https://api.cohere.com/v2`.
    ///
    /// Also a local server such as `http://127.0.0.1:8000/v1`. `/rerank` is appended. At
    /// most 1,024 bytes. A token in its query is never logged or displayed.
    #[serde(default = "BaseUrl::jina")]
    pub base_url: BaseUrl,
    /// The provider's name of the model, at most 256 bytes.
    pub model: String,
    /// Sent as a bearer token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_key: Option<SecretRef>,
    /// Number of memories of a recall to rerank, the best first, 1 to 100.
    #[serde(default = "documents")]
    pub documents: usize,
    /// How long a recall waits for it, 10 ms to 10 minutes.
    #[serde(default = "timeout", with = "AsText::<Span>")]
    pub timeout: Duration,
}

/// Configuration of text-embeddings-inference with a reranking model.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct TeiRerankerConfig {
    /// For example `http://127.0.0.1:8080`; `/rerank` is appended. At most 1,024 bytes.
    pub base_url: BaseUrl,
    /// Sent as a bearer token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_key: Option<SecretRef>,
    /// Number of memories of a recall to rerank, the best first, 1 to 100.
    ///
    /// The server accepts 32 texts per request, unless `--max-client-batch-size` is set.
    #[serde(default = "documents_of_tei")]
    pub documents: usize,
    /// How long a recall waits for it, 10 ms to 10 minutes.
    #[serde(default = "timeout", with = "AsText::<Span>")]
    pub timeout: Duration,
}

fn documents() -> usize {
    50
}

fn documents_of_tei() -> usize {
    32
}

fn timeout() -> Duration {
    Duration::from_secs(1)
}

/// Scores texts by requests to a service.
#[derive(Debug)]
pub struct RemoteReranker {
    provider: Provider,
    name: String,
    documents_max: usize,
    /// Model of a service with Jina's format. `None` for text-embeddings-inference.
    model: Option<String>,
}

impl RerankerSpec {
    /// Creates the reranker. `None` if none is configured. No request is sent yet.
    ///
    /// # Errors
    /// A [`Problem`] if the configuration is invalid.
    pub fn build(
        &self,
        environment: &dyn Environment,
    ) -> Result<Option<Arc<dyn Reranker>>, Problem> {
        Ok(match self {
            Self::None => None,
            Self::Jina(config) => {
                let new = |key| RemoteReranker::jina(config, key);
                Some(with_key("jina", &config.api_key, environment, new)?)
            }
            Self::Tei(config) => {
                let new = |key| RemoteReranker::tei(config, key);
                Some(with_key("tei", &config.api_key, environment, new)?)
            }
        })
    }
}

impl RemoteReranker {
    /// Uses a service with Jina's `/v1/rerank`. Nothing is sent yet.
    ///
    /// `api_key` is the secret named by [`JinaRerankerConfig::api_key`].
    ///
    /// # Errors
    /// [`ModelError::BaseUrlInvalid`], [`ModelError::SettingOutOfRange`],
    /// [`ModelError::TlsUnavailable`].
    pub fn jina(config: &JinaRerankerConfig, api_key: Option<ApiKey>) -> Result<Self, ModelError> {
        http::check([http::model(&config.model)])?;
        let model = Some(config.model.clone());
        Self::new(
            &config.base_url,
            api_key,
            config.documents,
            config.timeout,
            model,
        )
    }

    /// Uses text-embeddings-inference. Nothing is sent yet.
    ///
    /// `api_key` is the secret named by [`TeiRerankerConfig::api_key`].
    ///
    /// # Errors
    /// The same as [`RemoteReranker::jina`].
    pub fn tei(config: &TeiRerankerConfig, api_key: Option<ApiKey>) -> Result<Self, ModelError> {
        Self::new(
            &config.base_url,
            api_key,
            config.documents,
            config.timeout,
            None,
        )
    }

    fn new(
        base_url: &str,
        api_key: Option<ApiKey>,
        documents_max: usize,
        timeout: Duration,
        model: Option<String>,
    ) -> Result<Self, ModelError> {
        let is_in_range = (1..=DOCUMENTS_MAX).contains(&documents_max);
        http::check([
            (is_in_range, "documents", "1 to 100"),
            http::timeout_limit(timeout),
        ])?;
        let base = http::base(base_url)?;
        // A second attempt would come too late for the recall.
        let retry_limits = RetryLimits::within(1, timeout);
        let name = match &model {
            Some(model) => format!("{}:{model}", http::shown(&base)),
            None => http::shown(&base),
        };
        let auth = Auth::bearer(api_key);
        Ok(Self {
            provider: Provider::new("reranking", &base, "/rerank", auth, retry_limits)?,
            name,
            documents_max,
            model,
        })
    }

    async fn scores(&self, query: &str, documents: &[String]) -> Result<Vec<f64>, ModelFault> {
        let documents: Vec<&str> = documents.iter().map(|text| cut(text)).collect();
        let private: Vec<&str> = documents.iter().copied().chain([query]).collect();
        let request = Request {
            body: self.body(query, &documents).to_string(),
            private: &private,
            bytes_max: response::bytes_max(&documents),
            optional_field: None,
        };
        let read = |body: &[u8]| response::scores(body, documents.len());
        self.provider.send(&request, read).await
    }

    fn body(&self, query: &str, documents: &[&str]) -> Value {
        match &self.model {
            // Cohere's API v2 has no `return_documents`, and returns none.
            Some(model) => json!({
                "model": model,
                "query": query,
                "documents": documents,
                "top_n": documents.len(),
            }),
            None => json!({
                "query": query,
                "texts": documents,
                "truncate": true,
            }),
        }
    }
}

impl Reranker for RemoteReranker {
    fn name(&self) -> &str {
        &self.name
    }

    fn documents_max(&self) -> usize {
        self.documents_max
    }

    fn rerank(&self, query: String, documents: Vec<String>) -> Reranking<'_> {
        Box::pin(async move { self.scores(&query, &documents).await })
    }
}

fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(DOCUMENT_BYTES_MAX)]
}

#[cfg(test)]
mod tests {
    use serde_json::from_value;

    use super::*;
    use crate::http::Hunter2;

    fn spec(config: Value) -> RerankerSpec {
        from_value(config).expect("a reranker")
    }

    #[test]
    fn keys_and_tokens_are_hidden_in_debug() {
        let url = "https://a.example/v1?token=hunter2";
        for config in [
            json!({"jina": {"model": "m", "base_url": url, "api_key": {"env": "KEY"}}}),
            json!({"tei": {"base_url": url, "api_key": {"env": "KEY"}}}),
        ] {
            let spec = spec(config);
            let reranker = spec.build(&Hunter2).expect("a good configuration");
            let name = reranker.as_ref().map(|made| made.name().to_owned());
            let shown = format!("{spec:?} {reranker:?} {name:?}");
            assert!(
                shown.contains("a.example/v1") && !shown.contains("hunter2"),
                "{shown}"
            );
        }
    }

    #[test]
    fn settings_out_of_range_are_rejected() {
        for (config, setting) in [
            (json!({"jina": {"model": ""}}), "model"),
            (json!({"jina": {"model": "m", "documents": 0}}), "documents"),
            (
                json!({"jina": {"model": "m", "documents": 101}}),
                "documents",
            ),
            (json!({"jina": {"model": "m", "timeout": "1ms"}}), "timeout"),
            (json!({"tei": {"base_url": "ftp://a"}}), "base_url"),
        ] {
            let problem = spec(config.clone()).build(&Hunter2).expect_err("a bad one");
            assert!(
                format!("{problem:?}").contains(setting),
                "{config}: {problem:?}"
            );
        }
        assert!(spec(json!("none")).build(&Hunter2).expect("none").is_none());
    }
}
