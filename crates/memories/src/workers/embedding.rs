//! Embeds memories in the background.
//!
//! The queue is on disk, so that a restart loses nothing. When the model changes, all memories are
//! embedded again.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use memoird_core::ids::TenantId;
use memoird_core::time::Timestamp;
use memoird_engine::{EngineError, FaultKind, ModelFault, WorkError, Worker};
use tracing::{info, warn};

use crate::embedder::{Embedder, Purpose};
use crate::error::MemoryError;
use crate::service::{MemoryStorage, TextVectors};
use crate::store::time::after;
use crate::store::{Due, Embedding, MemoryReader, MemoryWriter};

/// Memories per step that are checked for a missing vector.
const BACKFILL_MAX: usize = 1_000;
/// Timeout of an embedder call.
const EMBED_WAIT: Duration = Duration::from_secs(120);
/// Time for which a daemon reserves texts: enough for a few embedder calls.
const CLAIM: Duration = Duration::from_secs(300);
/// Failed attempts after which texts are embedded one by one, since a text may be the cause.
const TRIES_TOGETHER: u32 = 5;
/// Maximum delay before a text is retried.
const PAUSE_MAX: Duration = Duration::from_secs(600);
/// Maximum sleep of the worker.
const SLEEP_MAX: Duration = Duration::from_secs(60);

pub(super) struct EmbeddingWorker {
    storage: Arc<MemoryStorage>,
    vectors: Arc<TextVectors>,
    /// Tenants for which the model in use is set.
    prepared: HashSet<TenantId>,
    /// Tenants with texts that are due later.
    later: BTreeSet<(Timestamp, TenantId)>,
}

impl EmbeddingWorker {
    pub(super) fn new(vectors: Arc<TextVectors>) -> Self {
        Self {
            storage: Arc::clone(&vectors.storage),
            vectors,
            prepared: HashSet::new(),
            later: BTreeSet::new(),
        }
    }

    /// Embeds one batch of a tenant's texts.
    ///
    /// Returns when more texts are due, which may be now. `None` if there are no more.
    async fn embed(&mut self, tenant: &TenantId) -> Result<Option<Timestamp>, MemoryError> {
        let storage = Arc::clone(&self.storage);
        let embedder = storage.config().embedder.clone();
        if !self.prepared.contains(tenant) {
            let model = embedder
                .as_ref()
                .map(|embedder| embedder.model().to_owned());
            let set = storage.write(tenant, move |writer| {
                writer.set_embedding_model(model.as_deref())
            });
            let is_new = set.await?;
            self.prepared.insert(tenant.clone());
            if let (true, Some(embedder)) = (is_new, &embedder) {
                info!(%tenant, model = embedder.model(), "memories are embedded anew");
            }
            if let Some(embedder) = &embedder {
                let model = embedder.model().to_owned();
                let known = storage.read(tenant, move |reader| reader.any_embedded(&model));
                if let Some((text, vector)) = known.await? {
                    self.vectors.check.remember(text, vector);
                }
            }
        }
        let Some(embedder) = embedder else {
            return Ok(None);
        };
        let now = storage.now();
        if let Some(due) = self.vectors.check.next_check(now) {
            return Ok(Some(due));
        }
        let (model, count) = (embedder.model().to_owned(), embedder.batch_max().max(1));
        let wanted = model.clone();
        let (due, next) = if storage.are_shared() {
            // Claim the texts, so that no other daemon embeds them concurrently.
            let until = after(now, CLAIM);
            let claim = move |writer: &MemoryWriter<'_>| {
                let due = writer.claim_embeddings(&model, now, count, until)?;
                Ok((due, writer.embeddings_next_due(now)?))
            };
            storage.write(tenant, claim).await?
        } else {
            let read = move |reader: &MemoryReader<'_>| {
                let due = reader.embeddings_due(&model, now, count)?;
                Ok((due, reader.embeddings_next_due(now)?))
            };
            storage.read(tenant, read).await?
        };
        if !due.is_empty() {
            self.embed_batch(tenant, &embedder, due).await?;
            return Ok(Some(now));
        }
        let fill = storage.write(tenant, move |writer| {
            let left = writer.backfill(BACKFILL_MAX, now)?;
            // Queued memories that are being forgotten are not due.
            let is_due = !writer.embeddings_due(&wanted, now, 1)?.is_empty();
            Ok(left > 0 || is_due)
        });
        Ok(if fill.await? { Some(now) } else { next })
    }

    fn wake_what_is_due(&mut self) {
        let now = self.storage.now();
        while self.later.first().is_some_and(|(due, _)| *due <= now) {
            if let Some((_, tenant)) = self.later.pop_first() {
                self.storage.embedding.add(&tenant);
            }
        }
    }
}

impl Worker for EmbeddingWorker {
    fn name(&self) -> &'static str {
        "embedder"
    }

    async fn wait(&mut self) {
        loop {
            self.wake_what_is_due();
            let queued = self.storage.embedding.wait();
            let Some((due, _)) = self.later.first() else {
                return queued.await;
            };
            let ahead_ms = due.as_ms() - self.storage.now().as_ms();
            let pause = Duration::from_millis(u64::try_from(ahead_ms).unwrap_or(0).max(1));
            tokio::select! {
                () = queued => return,
                () = tokio::time::sleep(pause.min(SLEEP_MAX)) => {}
            }
        }
    }

    async fn step(&mut self) -> Result<(), WorkError> {
        let Some(tenant) = self.storage.embedding.take() else {
            return Ok(());
        };
        let left = self.embed(&tenant).await;
        match left {
            Ok(due) => self.later.extend(due.map(|due| (due, tenant))),
            Err(_) => self.storage.embedding.add(&tenant),
        }
        Ok(left.map(drop)?)
    }
}

/// Whether a single one of the texts may have caused the failure.
fn may_be_of_one(fault: &ModelFault, due: &[Due]) -> bool {
    let is_again = || due.iter().any(|text| text.tries >= TRIES_TOGETHER);
    fault.is_refusal() || fault.kind == FaultKind::Later && is_again()
}

impl EmbeddingWorker {
    /// Embeds texts and stores their vectors.
    ///
    /// If the embedder rejects a batch, or fails repeatedly, embeds each text separately.
    async fn embed_batch(
        &self,
        tenant: &TenantId,
        embedder: &Arc<dyn Embedder>,
        due: Vec<Due>,
    ) -> Result<(), MemoryError> {
        match self.embed_due(embedder, &due).await {
            Ok(vectors) => {
                self.store_vectors(tenant, embedder.model(), due, vectors)
                    .await
            }
            // The texts are not the cause and stay queued. The collapse was logged when it was
            // detected.
            Err(_) if self.vectors.check.is_collapsed() => Ok(()),
            Err(fault) if due.len() > 1 && may_be_of_one(&fault, &due) => {
                for text in due {
                    let alone = vec![text];
                    // An error with another cause ends the loop: the next text would fail too.
                    Box::pin(self.embed_batch(tenant, embedder, alone)).await?;
                }
                Ok(())
            }
            // The texts stay queued for the next start of the daemon.
            Err(_) if self.storage.engine.stopping().is_cancelled() => {
                Err(EngineError::Stopping.into())
            }
            Err(fault) => {
                self.put_off(tenant, due, &fault).await?;
                // Other texts would fail as well, so an error makes the worker pause.
                if fault.is_refusal() {
                    Ok(())
                } else {
                    Err(MemoryError::EmbedderFailed {
                        detail: fault.problem,
                    })
                }
            }
        }
    }

    async fn embed_due(
        &self,
        embedder: &Arc<dyn Embedder>,
        due: &[Due],
    ) -> Result<Vec<Vec<f32>>, ModelFault> {
        let texts = due.iter().map(|due| due.content.clone()).collect();
        let later = |problem: String| ModelFault::new(FaultKind::Later, problem);
        let embedding = self.vectors.embed(&**embedder, Purpose::Memory, texts);
        let stopping = self.storage.engine.stopping();
        let vectors = tokio::select! {
            biased;
            () = stopping.cancelled() => return Err(later("the daemon stops".to_owned())),
            answer = tokio::time::timeout(EMBED_WAIT, embedding) => {
                answer.map_err(|_| later(format!("no answer in {EMBED_WAIT:?}")))??
            }
        };
        match (vectors.len(), due.len()) {
            (given, wanted) if given == wanted => Ok(vectors),
            (given, wanted) => Err(later(format!("{given} vectors for {wanted} texts"))),
        }
    }

    async fn store_vectors(
        &self,
        tenant: &TenantId,
        model: &str,
        due: Vec<Due>,
        vectors: Vec<Vec<f32>>,
    ) -> Result<(), MemoryError> {
        let (model, now): (Arc<str>, _) = (model.into(), self.storage.now());
        let config = self.storage.config();
        let (merged, given_up) = self
            .storage
            .write(tenant, move |writer| {
                let (mut merged, mut given_up) = (0_u64, 0_u64);
                for (text, values) in due.into_iter().zip(vectors) {
                    let embedding = Embedding {
                        model: Arc::clone(&model),
                        values,
                    };
                    match writer.embedded(text.id, text.revision, &embedding) {
                        Ok(true) => {}
                        Ok(false) => continue,
                        // The vector is invalid, and would be invalid next time.
                        Err(refusal @ MemoryError::Invalid { .. }) => {
                            let problem = refusal.to_string();
                            writer.embed_failed(text.id, text.revision, &problem, now, true)?;
                            given_up += 1;
                            continue;
                        }
                        Err(error) => return Err(error),
                    }
                    // Of two near-duplicates, the newer one stays current.
                    let near = writer.near_by_cosine(text.id, config.near_duplicate_cosine, now)?;
                    if let Some(other) = near {
                        let (older, newer) = (text.id.min(other), text.id.max(other));
                        merged += u64::from(writer.merge(older, newer, now)?);
                    }
                }
                Ok((merged, given_up))
            })
            .await?;
        let state = self.storage.state(tenant);
        let mut counts = state.counters();
        counts.merged += merged;
        counts.embedding_failed += given_up;
        Ok(())
    }

    /// Schedules a retry of texts that could not be embedded, or gives them up.
    async fn put_off(
        &self,
        tenant: &TenantId,
        due: Vec<Due>,
        fault: &ModelFault,
    ) -> Result<(), MemoryError> {
        if fault.kind == FaultKind::Misconfigured {
            // The texts are not the cause.
            return Ok(());
        }
        let asked = fault.after.unwrap_or_default();
        let give_up = fault.is_refusal();
        if give_up {
            warn!(%tenant, error = %fault, "a memory is found by words only");
            let state = self.storage.state(tenant);
            state.counters().embedding_failed += due.len() as u64;
        }
        let (problem, now) = (fault.problem.clone(), self.storage.now());
        self.storage
            .write(tenant, move |writer| {
                for text in due {
                    let grown = Duration::from_secs(1 << text.tries.min(10));
                    let again = after(now, grown.max(asked).min(PAUSE_MAX));
                    writer.embed_failed(text.id, text.revision, &problem, again, give_up)?;
                }
                Ok(())
            })
            .await
    }
}
