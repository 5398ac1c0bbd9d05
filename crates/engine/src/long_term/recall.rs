//! Finding memories: by words, by meaning, fused; and what a recall leaves behind.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hashlink::LruCache;
use memoird_core::CoreError;
use memoird_core::idempotency::{Fingerprint, fingerprint};
use memoird_core::ids::{MemoryId, Subject};
use memoird_core::memory::fuse::{Lists, Ranked, Standing};
use memoird_core::memory::secrets::{self, SecretPolicy};
use memoird_core::memory::{IMPORTANCE_DEFAULT, Memory, MemoryKind};
use memoird_core::time::Timestamp;
use memoird_store::StoreError;
use memoird_store::long_term::{
    self as stored, Embedding, Hit, MemoryReader, RecallEvent, RecallLists, Scored,
};
use tracing::warn;

use super::{RecallAsk, RecallHit, RecallMode, RecallOutcome};
use crate::embedder::Purpose;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::machine::Stopwatch;
use crate::tenant::Tenant;

/// Places of each list that are fused.
const DEPTH_MIN: usize = 50;
/// Vectors of queries that are kept: bots repeat a query while an exchange goes on.
const VECTORS_KEPT: usize = 256;

/// What is said of a recall for which no vector of use was made.
const BY_WORDS: &str = "the embedder gave no vector of use: searched by words only";

/// Vectors of the last queries, by model and text.
pub(super) struct QueryVectors(Mutex<LruCache<Fingerprint, Arc<Embedding>>>);

impl Default for QueryVectors {
    fn default() -> Self {
        Self(Mutex::new(LruCache::new(VECTORS_KEPT)))
    }
}

impl std::fmt::Debug for QueryVectors {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("QueryVectors")
    }
}

impl Engine {
    /// Finds memories.
    ///
    /// # Errors
    /// [`CoreError::MemoryInvalid`], [`EngineError::NoEmbedder`], an embedder that does not
    /// answer where only meaning was asked for, a store that cannot be read.
    pub async fn recall(
        &self,
        tenant: &Arc<Tenant>,
        ask: RecallAsk,
    ) -> Result<RecallOutcome, EngineError> {
        let ask = self.checked_recall(ask)?;
        self.recall_checked(tenant, ask, true).await
    }

    /// The same of a question that was checked; with `noted` unset nobody hears of it.
    pub(crate) async fn recall_checked(
        &self,
        tenant: &Arc<Tenant>,
        mut ask: RecallAsk,
        noted: bool,
    ) -> Result<RecallOutcome, EngineError> {
        let watch = Stopwatch::start();
        if let (true, Some(session)) = (ask.subjects.is_empty(), &ask.session) {
            ask.subjects.extend(self.subject_of(tenant, session).await?);
        }
        let (mut mode, vector, mut notes) = self.mode_of(&ask).await?;
        let now = self.shared.machine.now().wall;
        let question = question_of(&ask, mode, vector, now);
        let (lists, misfit) = self
            .read_memories(tenant, move |reader| look_up(reader, question))
            .await?;
        if let Some(detail) = misfit {
            if mode == RecallMode::Vector {
                return Err(EngineError::EmbedderFailed { detail });
            }
            warn!(detail, "a recall goes by words only");
            mode = RecallMode::Lexical;
            notes.push(BY_WORDS.to_owned());
        }
        let hits = self.fused(lists, ask.limit, now);
        if noted {
            self.note_recall(tenant, &ask, &hits, now);
        }
        tenant.stats.memories.count_recall(mode);
        self.shared.stats.recall_seconds.observe(watch.seconds());
        Ok(RecallOutcome { hits, mode, notes })
    }

    /// The question with its limits kept.
    ///
    /// # Errors
    /// [`CoreError::MemoryInvalid`], [`EngineError::NoEmbedder`].
    pub(crate) fn checked_recall(&self, mut ask: RecallAsk) -> Result<RecallAsk, EngineError> {
        let config = self.shared.config.load();
        if ask.mode == RecallMode::Vector && config.long_term.embedder.is_none() {
            return Err(EngineError::NoEmbedder);
        }
        let limits = &config.long_term.limits;
        let invalid = |field, problem: String| CoreError::MemoryInvalid { field, problem };
        if ask.query.trim().is_empty() {
            let problem = "is empty; ListMemories lists without one".to_owned();
            return Err(invalid("query", problem).into());
        }
        if ask.query.len() > limits.query_bytes {
            let mut end = limits.query_bytes;
            while !ask.query.is_char_boundary(end) {
                end -= 1;
            }
            ask.query.truncate(end);
        }
        ask.subjects.sort_unstable();
        ask.subjects.dedup();
        if ask.subjects.len() > limits.subjects {
            let problem = format!("{} are more than {}", ask.subjects.len(), limits.subjects);
            return Err(invalid("subjects", problem).into());
        }
        if ask.limit > limits.hits {
            let problem = format!("{} is more than {}", ask.limit, limits.hits);
            return Err(invalid("limit", problem).into());
        }
        if ask.tags.len() > limits.tags {
            let problem = format!("{} are more than {}", ask.tags.len(), limits.tags);
            return Err(invalid("tags", problem).into());
        }
        if ask.limit == 0 {
            ask.limit = config.long_term.recall_limit.min(limits.hits);
        }
        Ok(ask)
    }

    /// The subject of a session, where it is live and has one.
    pub(super) async fn subject_of(
        &self,
        tenant: &Arc<Tenant>,
        session: &memoird_core::ids::SessionId,
    ) -> Result<Option<Subject>, EngineError> {
        match self.session(tenant, session).await {
            Ok(view) => Ok(view.head.subject),
            Err(EngineError::SessionNotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// How a recall is done, with the query's vector where one is needed.
    async fn mode_of(
        &self,
        ask: &RecallAsk,
    ) -> Result<(RecallMode, Option<Embedding>, Vec<String>), EngineError> {
        let has_embedder = self.shared.config.load().long_term.embedder.is_some();
        let by_words = |note: &str| Ok((RecallMode::Lexical, None, vec![note.to_owned()]));
        match (ask.mode, has_embedder) {
            (RecallMode::Lexical, _) | (RecallMode::Auto | RecallMode::Vector, false) => {
                return Ok((RecallMode::Lexical, None, Vec::new()));
            }
            (RecallMode::Hybrid, false) => {
                return by_words("no embedder is configured: searched by words only");
            }
            (RecallMode::Auto | RecallMode::Hybrid | RecallMode::Vector, true) => {}
        }
        match (self.vector_of(Purpose::Query, &ask.query).await, ask.mode) {
            (Ok(vector), RecallMode::Vector) => Ok((RecallMode::Vector, vector, Vec::new())),
            (Ok(vector), _) => Ok((RecallMode::Hybrid, vector, Vec::new())),
            (Err(error), RecallMode::Vector) => Err(error),
            (Err(error), _) => {
                warn!(%error, "a recall goes by words only");
                by_words(BY_WORDS)
            }
        }
    }

    /// The vector of a text, within the time that a call waits for it; `None` without an
    /// embedder.
    pub(super) async fn vector_of(
        &self,
        purpose: Purpose,
        text: &str,
    ) -> Result<Option<Embedding>, EngineError> {
        let config = self.shared.config.load_full();
        let Some(embedder) = &config.long_term.embedder else {
            return Ok(None);
        };
        let key = fingerprint([embedder.model(), &format!("{purpose:?}"), text].map(str::as_bytes));
        let vectors = &self.shared.long_term.query_vectors;
        if let Some(known) = vectors.lock().get(&key) {
            return Ok(Some(Embedding::clone(known)));
        }
        let failed = |detail: String| EngineError::EmbedderFailed { detail };
        // What is remembered was looked through already; a query is not.
        let text = match config.long_term.secrets {
            SecretPolicy::Allow => text.to_owned(),
            _ => secrets::redacted(text, &secrets::find(text)),
        };
        let embedding = embedder.embed(purpose, vec![text]);
        let values = tokio::time::timeout(config.long_term.query_wait, embedding)
            .await
            .map_err(|_| failed(format!("no answer in {:?}", config.long_term.query_wait)))?
            .map_err(|error| failed(error.to_string()))?;
        let [values] = <[Vec<f32>; 1]>::try_from(values)
            .map_err(|given| failed(format!("{} vectors for one text", given.len())))?;
        if values.iter().all(|value| *value == 0.0) || !values.iter().all(|v| v.is_finite()) {
            return Err(failed("the vector is empty, zero or not finite".to_owned()));
        }
        let embedding = Embedding {
            model: embedder.model().into(),
            values,
        };
        vectors.lock().insert(key, Arc::new(embedding.clone()));
        Ok(Some(embedding))
    }

    /// The lists as one, best first.
    fn fused(&self, mut lists: RecallLists, limit: usize, now: Timestamp) -> Vec<RecallHit> {
        let fusion = self.shared.config.load().long_term.fusion;
        let known = &lists.memories;
        let age_ms = |memory: &Memory| now.as_ms().saturating_sub(memory.observed_at.as_ms());
        let ranked = |list: &[Scored]| -> Vec<Ranked<MemoryId>> {
            let found = list
                .iter()
                .filter_map(|one| Some((one, known.get(&one.id)?)));
            let ranked = found.map(|(one, memory)| Ranked {
                id: one.id,
                score: one.score,
                observed_at: memory.observed_at,
            });
            ranked.collect()
        };
        let standing = |id: &MemoryId| {
            let memory = known.get(id);
            Standing {
                kind: memory.map_or(MemoryKind::User, |memory| memory.kind),
                importance: memory.map_or(IMPORTANCE_DEFAULT, |memory| memory.importance),
                age_ms: memory.map_or(0, age_ms),
                has_vector: lists.embedded.contains(id),
            }
        };
        let both = Lists {
            lexical: ranked(&lists.lexical),
            vector: ranked(&lists.vector),
        };
        let fused = fusion.fuse(both, standing);
        let place = |rank: Option<u32>| rank.map_or(0, |rank| rank as usize);
        let hits = fused.into_iter().take(limit).filter_map(|one| {
            let memory = lists.memories.remove(&one.id)?;
            Some(RecallHit {
                score: one.score,
                lexical_rank: place(one.lexical_rank),
                vector_rank: place(one.vector_rank),
                age: Duration::from_millis(u64::try_from(age_ms(&memory)).unwrap_or(0)),
                memory,
            })
        });
        hits.collect()
    }

    /// Leaves a note of what was recalled, off the caller's path.
    fn note_recall(
        &self,
        tenant: &Arc<Tenant>,
        ask: &RecallAsk,
        hits: &[RecallHit],
        at: Timestamp,
    ) {
        if hits.is_empty() {
            return;
        }
        let rank = |place: usize| u32::try_from(place + 1).unwrap_or(u32::MAX);
        #[allow(clippy::cast_possible_truncation)]
        let noted = hits.iter().enumerate().map(|(place, hit)| Hit {
            id: hit.memory.id,
            rank: rank(place),
            score: hit.score as f32,
        });
        let event = RecallEvent {
            at,
            session: ask.session.clone(),
            query: fingerprint([ask.query.trim().to_lowercase().as_bytes()]),
            hits: noted.collect(),
        };
        let limits = self.shared.config.load().long_term.limits.clone();
        let lane = self.shared.long_term.lane(&tenant.id);
        if lane.leave(move |writer| writer.record_recall(&event, &limits)) {
            self.shared.long_term.wake_keeper(&tenant.id);
        } else {
            tenant.stats.memories.count_lost_recall();
        }
    }
}

impl QueryVectors {
    fn lock(&self) -> std::sync::MutexGuard<'_, LruCache<Fingerprint, Arc<Embedding>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Asks the store; of a vector that does not fit those of the memories, only by words. Says
/// why.
fn look_up(
    reader: &MemoryReader<'_>,
    mut question: stored::RecallAsk,
) -> Result<(RecallLists, Option<String>), StoreError> {
    match reader.recall(&question) {
        Err(misfit @ StoreError::DimensionMismatch { .. }) => {
            question.vector = None;
            Ok((reader.recall(&question)?, Some(misfit.to_string())))
        }
        found => Ok((found?, None)),
    }
}

fn question_of(
    ask: &RecallAsk,
    mode: RecallMode,
    vector: Option<Embedding>,
    now: Timestamp,
) -> stored::RecallAsk {
    stored::RecallAsk {
        // Without words there is no list by words.
        query: if mode == RecallMode::Vector {
            String::new()
        } else {
            ask.query.clone()
        },
        vector,
        subjects: ask.subjects.clone(),
        kinds: ask.kinds.clone(),
        tags: ask.tags.clone(),
        observed_after: ask.after,
        observed_before: ask.before,
        depth: ask.limit.max(DEPTH_MIN),
        now,
    }
}
