//! Vectors of texts: from the embedder, or computed by clients.

use std::sync::{Arc, Mutex};

use hashlink::LruCache;
use memoird_core::idempotency::{Fingerprint, fingerprint};

use super::embedder_check::EmbedderCheck;
use super::storage::MemoryStorage;
use crate::embedder::Purpose;
use crate::error::MemoryError;
use crate::lock;
use crate::rules::MemoryLimits;
use crate::rules::secrets::{self, SecretPolicy};
use crate::store::{CLIENTS, Embedding};

/// Maximum cached query vectors. Bots repeat a query while an exchange continues.
const VECTORS_KEPT: usize = 256;

/// The embedder, its cached vectors, and the check of its quality.
#[derive(Debug)]
pub(crate) struct TextVectors {
    pub(crate) storage: Arc<MemoryStorage>,
    /// Vectors of recent queries, by model and text.
    pub(super) cache: Mutex<LruCache<Fingerprint, Embedding>>,
    /// Measures whether the embedder distinguishes texts.
    pub(crate) check: EmbedderCheck,
}

impl TextVectors {
    pub(super) fn new(storage: &Arc<MemoryStorage>) -> Self {
        Self {
            storage: Arc::clone(storage),
            cache: Mutex::new(LruCache::new(VECTORS_KEPT)),
            check: EmbedderCheck::default(),
        }
    }

    /// Validates a vector computed by a client and assigns it to the model in use.
    ///
    /// `None` if it is empty.
    pub(super) fn given_vector(&self, values: Vec<f32>) -> Result<Option<Embedding>, MemoryError> {
        if values.is_empty() {
            return Ok(None);
        }
        let limit = MemoryLimits::DIMENSIONS;
        if values.len() > limit {
            let problem = format!("has {} dimensions, the limit is {limit}", values.len());
            return Err(MemoryError::invalid("vector", problem));
        }
        if !Embedding::is_measurable(&values) {
            let problem = "is zero, not finite, or too short or long to be compared: divide it by \
                           its length";
            return Err(MemoryError::invalid("vector", problem));
        }
        if !self.storage.store()?.has_vectors() {
            return Err(MemoryError::NoVectors);
        }
        let config = self.storage.config();
        let model = config.embedder.as_ref().map_or(CLIENTS, |it| it.model());
        Ok(Some(Embedding {
            model: model.into(),
            values,
        }))
    }

    /// Embeds a text within `query_wait`. `None` without an embedder.
    pub(super) async fn vector_of(
        &self,
        purpose: Purpose,
        text: &str,
    ) -> Result<Option<Embedding>, MemoryError> {
        let config = self.storage.config();
        let Some(embedder) = &config.embedder else {
            return Ok(None);
        };
        let key = fingerprint([embedder.model(), &format!("{purpose:?}"), text].map(str::as_bytes));
        let is_collapsed = self.check.is_collapsed();
        if !is_collapsed && let Some(vector) = lock(&self.cache).get(&key) {
            return Ok(Some(vector.clone()));
        }
        let failed = |detail: String| MemoryError::EmbedderFailed { detail };
        let text = without_secrets(text, config.secrets);
        let embedding = self.embed(&**embedder, purpose, vec![text]);
        let values = tokio::time::timeout(config.query_wait, embedding)
            .await
            .map_err(|_| failed(format!("no answer in {:?}", config.query_wait)))?
            .map_err(|error| failed(error.to_string()))?;
        let [values] = <[Vec<f32>; 1]>::try_from(values)
            .map_err(|given| failed(format!("{} vectors for one text", given.len())))?;
        if !Embedding::is_measurable(&values) {
            let problem = "the vector is empty, zero, not finite, or too short or long";
            return Err(failed(problem.to_owned()));
        }
        let vector = Embedding {
            model: embedder.model().into(),
            values,
        };
        lock(&self.cache).insert(key, vector.clone());
        Ok(Some(vector))
    }
}

/// Redacts a query before it is sent to a provider.
///
/// Memories were checked for secrets when they were stored; queries were not.
pub(super) fn without_secrets(query: &str, policy: SecretPolicy) -> String {
    match policy {
        SecretPolicy::Allow => query.to_owned(),
        _ => secrets::redacted(query, &secrets::find(query)),
    }
}
