//! Embedding what is remembered, off everybody's path: from a queue on disk, so that a
//! restart loses nothing, and again when the model changes.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use memoird_core::ids::TenantId;
use memoird_core::time::Timestamp;
use memoird_store::StoreError;
use memoird_store::long_term::{Due, Embedding, MemoryReader};
use tracing::{info, warn};

use super::lane::Touch;
use crate::embedder::{EmbedError, Embedder, Purpose};
use crate::engine::Engine;
use crate::error::EngineError;
use crate::tenant::Tenant;
use crate::worker::{WorkError, Worker};

/// Memories that are looked at in one step for whether they have a vector.
const BACKFILL_MAX: usize = 1_000;
/// How long one call of an embedder may take, whatever it thinks itself.
const EMBED_WAIT: Duration = Duration::from_secs(120);
/// The longest pause before a text is tried again.
const PAUSE_SECONDS_MAX: i64 = 600;
/// The longest sleep when something is due later.
const SLEEP_MAX: Duration = Duration::from_secs(60);

/// The worker that does it.
pub(crate) struct EmbeddingWorker {
    engine: Engine,
    /// Tenants whose files were told which model is in use.
    told: HashSet<TenantId>,
    /// Tenants with texts that are due again later.
    later: BTreeSet<(Timestamp, TenantId)>,
}

/// How far a tenant is.
enum Left {
    /// Nothing waits.
    Nothing,
    /// More is to be done now.
    More,
    /// More is due then.
    Later(Timestamp),
}

impl EmbeddingWorker {
    pub(crate) fn new(engine: Engine) -> Self {
        Self {
            engine,
            told: HashSet::new(),
            later: BTreeSet::new(),
        }
    }

    /// One batch of a tenant's texts.
    async fn embed(&mut self, id: &TenantId) -> Result<Left, EngineError> {
        let tenant = self.engine.tenant_or_common(id);
        let config = self.engine.shared.config.load_full();
        let embedder = config.long_term.embedder.clone();
        if !self.told.contains(id) {
            let model = embedder
                .as_ref()
                .map(|embedder| embedder.model().to_owned());
            let is_new = self.engine.set_embedding_model(&tenant, model).await?;
            self.told.insert(id.clone());
            if let (true, Some(embedder)) = (is_new, &embedder) {
                info!(tenant = %id, model = embedder.model(), "memories are embedded anew");
            }
        }
        let Some(embedder) = embedder else {
            return Ok(Left::Nothing);
        };
        let now = self.engine.shared.machine.now().wall;
        let (model, count) = (embedder.model().to_owned(), embedder.batch_max().max(1));
        let wanted = model.clone();
        let read = move |reader: &MemoryReader<'_>| {
            Ok((
                reader.embeddings_due(&model, now, count)?,
                reader.embeddings_next_due(now)?,
            ))
        };
        let (due, next) = self.engine.read_memories(&tenant, read).await?;
        if due.is_empty() {
            let left = self
                .engine
                .write_memories(&tenant, move |writer| {
                    let left = writer.backfill(BACKFILL_MAX, now)?;
                    // What is queued, but is being forgotten, is not due.
                    let is_due = !writer.embeddings_due(&wanted, now, 1)?.is_empty();
                    Ok((left > 0 || is_due, Touch::Nothing))
                })
                .await?;
            return Ok(match (left, next) {
                (true, _) => Left::More,
                (false, Some(due)) => Left::Later(due),
                (false, None) => Left::Nothing,
            });
        }
        self.engine.embed_batch(&tenant, &embedder, due).await?;
        Ok(Left::More)
    }

    fn wake_what_is_due(&mut self) {
        let now = self.engine.shared.machine.now().wall;
        while self.later.first().is_some_and(|(due, _)| *due <= now) {
            if let Some((_, id)) = self.later.pop_first() {
                self.engine.shared.long_term.wake_embedder(&id);
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
            let chores = self.engine.shared.long_term.embedder.wait();
            let Some((due, _)) = self.later.first() else {
                return chores.await;
            };
            let ahead = due.as_ms() - self.engine.shared.machine.now().wall.as_ms();
            let pause = Duration::from_millis(u64::try_from(ahead).unwrap_or(0).max(1));
            tokio::select! {
                () = chores => return,
                () = tokio::time::sleep(pause.min(SLEEP_MAX)) => {}
            }
        }
    }

    async fn step(&mut self) -> Result<(), WorkError> {
        let long_term = Arc::clone(&self.engine.shared);
        let long_term = &long_term.long_term;
        let Some(id) = long_term.embedder.take() else {
            return Ok(());
        };
        match self.embed(&id).await {
            Ok(Left::Nothing) => Ok(()),
            Ok(Left::More) => {
                long_term.wake_embedder(&id);
                Ok(())
            }
            Ok(Left::Later(due)) => {
                self.later.insert((due, id));
                Ok(())
            }
            Err(error) => {
                long_term.wake_embedder(&id);
                Err(WorkError(format!("{error:?}")))
            }
        }
    }
}

impl Engine {
    async fn set_embedding_model(
        &self,
        tenant: &Tenant,
        model: Option<String>,
    ) -> Result<bool, EngineError> {
        self.write_memories(tenant, move |writer| {
            Ok((
                writer.set_embedding_model(model.as_deref())?,
                Touch::Nothing,
            ))
        })
        .await
    }

    /// Embeds texts and stores their vectors; of texts that the embedder refuses all
    /// together, each alone.
    async fn embed_batch(
        &self,
        tenant: &Tenant,
        embedder: &Arc<dyn Embedder>,
        due: Vec<Due>,
    ) -> Result<(), EngineError> {
        match self.vectors(embedder, &due).await {
            Ok(vectors) => {
                self.store_vectors(tenant, embedder.model(), due, vectors)
                    .await
            }
            Err(EmbedError::Refused { .. }) if due.len() > 1 => {
                for text in due {
                    let alone = vec![text];
                    // What is not the text's fault befalls the next one as well.
                    Box::pin(self.embed_batch(tenant, embedder, alone)).await?;
                }
                Ok(())
            }
            // The next life of the daemon finds them in the queue as they were.
            Err(_) if self.shared.supervisor.stopping().is_cancelled() => {
                Err(EngineError::Stopping)
            }
            Err(error) => {
                let detail = error.to_string();
                let is_refused = matches!(error, EmbedError::Refused { .. });
                self.put_off(tenant, due, &error).await?;
                // Whatever else is due would fail as well: the worker takes a pause.
                if is_refused {
                    Ok(())
                } else {
                    Err(EngineError::EmbedderFailed { detail })
                }
            }
        }
    }

    async fn vectors(
        &self,
        embedder: &Arc<dyn Embedder>,
        due: &[Due],
    ) -> Result<Vec<Vec<f32>>, EmbedError> {
        let texts = due.iter().map(|due| due.content.clone()).collect();
        let later = |problem: String| EmbedError::Later {
            problem,
            after: None,
        };
        let embedding = embedder.embed(Purpose::Memory, texts);
        let stopping = self.shared.supervisor.stopping();
        let vectors = tokio::select! {
            biased;
            () = stopping.cancelled() => return Err(later("the daemon stops".to_owned())),
            answer = tokio::time::timeout(EMBED_WAIT, embedding) => {
                answer.map_err(|_| later(format!("no answer in {EMBED_WAIT:?}")))??
            }
        };
        match vectors.len() == due.len() {
            true => Ok(vectors),
            false => Err(later(format!(
                "{} vectors for {} texts",
                vectors.len(),
                due.len()
            ))),
        }
    }

    async fn store_vectors(
        &self,
        tenant: &Tenant,
        model: &str,
        due: Vec<Due>,
        vectors: Vec<Vec<f32>>,
    ) -> Result<(), EngineError> {
        let (model, now): (Arc<str>, _) = (model.into(), self.shared.machine.now().wall);
        let config = self.shared.config.load_full();
        let (merged, given_up) = self
            .write_memories(tenant, move |writer| {
                let (mut merged, mut given_up) = (0_u64, 0_u64);
                for (text, values) in due.into_iter().zip(vectors) {
                    let embedding = Embedding {
                        model: Arc::clone(&model),
                        values,
                    };
                    match writer.embedded(text.id, text.revision, &embedding) {
                        Ok(true) => {}
                        Ok(false) => continue,
                        // No vector at all: it would be none the next time either.
                        Err(StoreError::Refused(refusal)) => {
                            let problem = refusal.to_string();
                            writer.embed_failed(text.id, text.revision, &problem, now, true)?;
                            given_up += 1;
                            continue;
                        }
                        Err(error) => return Err(error),
                    }
                    // Says another one the same, the newer of the two goes on.
                    if let Some(other) =
                        writer.near_by_cosine(text.id, config.long_term.near_cosine, now)?
                    {
                        let (older, newer) = (text.id.min(other), text.id.max(other));
                        merged += u64::from(writer.merge(older, newer, now)?);
                    }
                }
                let touch = if merged > 0 {
                    Touch::All
                } else {
                    Touch::Nothing
                };
                Ok(((merged, given_up), touch))
            })
            .await?;
        tenant.stats.memories.count_merged(merged);
        tenant.stats.memories.count_embedding_failed(given_up);
        Ok(())
    }

    /// Texts that could not be embedded are due again later, or given up.
    async fn put_off(
        &self,
        tenant: &Tenant,
        due: Vec<Due>,
        error: &EmbedError,
    ) -> Result<(), EngineError> {
        let asked = match error {
            EmbedError::Later { after, .. } => after.map_or(0, |after| after.as_secs()),
            // Nothing of it is the texts' fault.
            EmbedError::Misconfigured { .. } => return Ok(()),
            EmbedError::Refused { .. } => 0,
        };
        let give_up = matches!(error, EmbedError::Refused { .. });
        if give_up {
            warn!(tenant = %tenant.id, %error, "a memory is found by words only");
            tenant
                .stats
                .memories
                .count_embedding_failed(due.len() as u64);
        }
        let (problem, now_ms) = (error.to_string(), self.shared.machine.now().wall.as_ms());
        self.write_memories(tenant, move |writer| {
            for text in due {
                let grown = 1_i64 << text.tries.min(10);
                let pause = grown
                    .max(i64::try_from(asked).unwrap_or(0))
                    .min(PAUSE_SECONDS_MAX);
                let again = Timestamp::from_ms(now_ms + pause * 1_000);
                writer.embed_failed(text.id, text.revision, &problem, again, give_up)?;
            }
            Ok(((), Touch::Nothing))
        })
        .await
    }
}
