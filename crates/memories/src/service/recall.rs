//! Recall: searches by words and by meaning, fuses both lists, and records the event.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hashlink::LruCache;
use memoird_core::idempotency::{Fingerprint, fingerprint};
use memoird_core::ids::MemoryId;
use memoird_core::time::Timestamp;
use memoird_core::words::tokens;
use memoird_engine::{Stopwatch, Tenant};
use tracing::warn;

use super::Memories;
use crate::embedder::Purpose;
use crate::error::MemoryError;
use crate::files::{Embedding, Hit, MemoryReader, RecallEvent, RecallLists};
use crate::locked;
use crate::requests::{RecallHit, RecallMode, RecallOutcome, RecallRequest};
use crate::rules::fusion::{Candidate, Candidates, Ranked, Standing};
use crate::rules::secrets::{self, SecretPolicy};
use crate::rules::{IMPORTANCE_DEFAULT, Memory, MemoryKind, MemoryLimits};

/// Places of each list that are fused.
const DEPTH_MIN: usize = 50;
/// What a question ends with.
const QUESTION_MARKS: [char; 5] = ['?', '？', '؟', '\u{37e}', '՞'];
/// Vectors of queries that are kept: bots repeat a query while an exchange goes on.
const VECTORS_KEPT: usize = 256;

/// The note of a recall for which no vector of use was made.
const BY_WORDS: &str = "the embedder gave no vector of use: searched by words only";

/// Vectors of the last queries, by model and text.
#[derive(Debug)]
pub(super) struct QueryVectors(Mutex<LruCache<Fingerprint, Embedding>>);

impl Default for QueryVectors {
    fn default() -> Self {
        Self(Mutex::new(LruCache::new(VECTORS_KEPT)))
    }
}

impl Memories {
    /// Finds memories.
    ///
    /// # Errors
    /// [`MemoryError::Invalid`], [`MemoryError::NoEmbedder`], an embedder that does not
    /// answer where only meaning was asked for, a file that cannot be read.
    pub async fn recall(
        &self,
        tenant: &Arc<Tenant>,
        request: RecallRequest,
    ) -> Result<RecallOutcome, MemoryError> {
        let request = self.checked_recall(request)?;
        self.recall_checked(tenant, request, true).await
    }

    /// The same of a request that was checked; without `is_recorded` it leaves no trace.
    pub(super) async fn recall_checked(
        &self,
        tenant: &Arc<Tenant>,
        mut request: RecallRequest,
        is_recorded: bool,
    ) -> Result<RecallOutcome, MemoryError> {
        let watch = Stopwatch::start();
        if let (true, Some(session)) = (request.subjects.is_empty(), &request.session) {
            let head = self.live_head(tenant, session, None).await?;
            let subject = head.and_then(|head| head.subject);
            request.subjects.extend(subject);
        }
        let mut notes = Vec::new();
        let vector = self.query_vector(&request, &mut notes).await?;
        let mut mode = match (&vector, request.mode) {
            (None, _) => RecallMode::Lexical,
            (Some(_), RecallMode::Vector) => RecallMode::Vector,
            (Some(_), _) => RecallMode::Hybrid,
        };
        let now = self.now();
        let mut search = request.clone();
        search.limit = request.limit.max(DEPTH_MIN);
        if mode == RecallMode::Vector {
            // Without words there is no list by words.
            search.query.clear();
        }
        let look = move |reader: &MemoryReader<'_>| look_up(reader, &search, vector.as_ref(), now);
        let (lists, misfit) = self.read(&tenant.id, look).await?;
        if let Some(detail) = misfit {
            if mode == RecallMode::Vector {
                return Err(MemoryError::EmbedderFailed { detail });
            }
            warn!(detail, "a recall goes by words only");
            mode = RecallMode::Lexical;
            notes.push(BY_WORDS.to_owned());
        }
        let hits = self.fused(lists, request.limit, now);
        if is_recorded {
            self.record_recall(tenant, &request, &hits, now);
        }
        let state = self.state(&tenant.id);
        *state.counters.raise().recalls(mode) += 1;
        self.shared.recall_seconds.observe(watch.seconds());
        Ok(RecallOutcome { hits, mode, notes })
    }

    /// The request with its limits kept.
    pub(super) fn checked_recall(
        &self,
        mut request: RecallRequest,
    ) -> Result<RecallRequest, MemoryError> {
        let config = self.config();
        if request.mode == RecallMode::Vector && config.embedder.is_none() {
            return Err(MemoryError::NoEmbedder);
        }
        if request.query.trim().is_empty() {
            let problem = "is empty; ListMemories lists without one";
            return Err(MemoryError::invalid("query", problem));
        }
        let end = request.query.floor_char_boundary(MemoryLimits::QUERY_BYTES);
        request.query.truncate(end);
        request.subjects.sort_unstable();
        request.subjects.dedup();
        let too_many = |field, count: usize, limit: usize, verb| match count > limit {
            true => Err(MemoryError::invalid(
                field,
                format!("{count} {verb} more than {limit}"),
            )),
            false => Ok(()),
        };
        let subjects = request.subjects.len();
        too_many("subjects", subjects, MemoryLimits::SUBJECTS, "are")?;
        too_many("limit", request.limit, MemoryLimits::HITS, "is")?;
        too_many("tags", request.tags.len(), MemoryLimits::TAGS, "are")?;
        if request.limit == 0 {
            request.limit = config.recall_limit.min(MemoryLimits::HITS);
        }
        Ok(request)
    }

    /// The vector of a recall's query; `None` where the recall goes by words only. A note says
    /// so where that is not what was asked for.
    async fn query_vector(
        &self,
        request: &RecallRequest,
        notes: &mut Vec<String>,
    ) -> Result<Option<Embedding>, MemoryError> {
        if request.mode == RecallMode::Lexical {
            return Ok(None);
        }
        match self.vector_of(Purpose::Query, &request.query).await {
            Ok(None) if request.mode == RecallMode::Hybrid => {
                notes.push("no embedder is configured: searched by words only".to_owned());
                Ok(None)
            }
            Err(error) if request.mode != RecallMode::Vector => {
                warn!(%error, "a recall goes by words only");
                notes.push(BY_WORDS.to_owned());
                Ok(None)
            }
            vector => vector,
        }
    }

    /// The vector of a text, within the time that a call waits for it; `None` without an
    /// embedder.
    pub(super) async fn vector_of(
        &self,
        purpose: Purpose,
        text: &str,
    ) -> Result<Option<Embedding>, MemoryError> {
        let config = self.config();
        let Some(embedder) = &config.embedder else {
            return Ok(None);
        };
        let key = fingerprint([embedder.model(), &format!("{purpose:?}"), text].map(str::as_bytes));
        let known = &self.shared.query_vectors.0;
        if let Some(vector) = locked(known).get(&key) {
            return Ok(Some(vector.clone()));
        }
        let failed = |detail: String| MemoryError::EmbedderFailed { detail };
        // Memories were searched for secrets when they were stored; a query was not.
        let text = match config.secrets {
            SecretPolicy::Allow => text.to_owned(),
            _ => secrets::redacted(text, &secrets::find(text)),
        };
        let embedding = embedder.embed(purpose, vec![text]);
        let values = tokio::time::timeout(config.query_wait, embedding)
            .await
            .map_err(|_| failed(format!("no answer in {:?}", config.query_wait)))?
            .map_err(|error| failed(error.to_string()))?;
        let [values] = <[Vec<f32>; 1]>::try_from(values)
            .map_err(|given| failed(format!("{} vectors for one text", given.len())))?;
        if values.iter().all(|value| *value == 0.0) || !values.iter().all(|v| v.is_finite()) {
            return Err(failed("the vector is empty, zero or not finite".to_owned()));
        }
        let vector = Embedding {
            model: embedder.model().into(),
            values,
        };
        locked(known).insert(key, vector.clone());
        Ok(Some(vector))
    }

    /// The lists as one, best first.
    fn fused(&self, mut lists: RecallLists, limit: usize, now: Timestamp) -> Vec<RecallHit> {
        let half_lives = self.config().half_lives;
        let age_ms = |memory: &Memory| now.as_ms().saturating_sub(memory.observed_at.as_ms());
        let ids = |list: &[Ranked<MemoryId>]| -> HashSet<MemoryId> {
            list.iter().map(|one| one.id).collect()
        };
        let (lexical, near) = (ids(&lists.lexical), ids(&lists.vector));
        let candidate = |(id, memory): (&MemoryId, &Memory)| {
            let (words, cosine) = lists.scores.get(id).copied().unwrap_or_default();
            Candidate {
                id: *id,
                observed_at: memory.observed_at,
                words,
                cosine,
                is_lexical: lexical.contains(id),
                is_near: near.contains(id),
            }
        };
        let candidates = Candidates {
            list: lists.memories.iter().map(candidate).collect(),
            said_after: std::mem::take(&mut lists.said_after),
        };
        let standing = |id: &MemoryId| {
            let memory = lists.memories.get(id);
            let content = memory.map_or("", |memory| &memory.content);
            Standing {
                kind: memory.map_or(MemoryKind::User, |memory| memory.kind),
                importance: memory.map_or(IMPORTANCE_DEFAULT, |memory| memory.importance),
                age_ms: memory.map_or(0, age_ms),
                words: tokens(content).count(),
                is_question: content.trim_end().ends_with(QUESTION_MARKS),
            }
        };
        let fused = half_lives.fuse(candidates, standing);
        let hits = fused.into_iter().take(limit).filter_map(|one| {
            let memory = lists.memories.remove(&one.ranked.id)?;
            Some(RecallHit {
                score: one.ranked.score,
                lexical_rank: one.lexical_rank.unwrap_or(0),
                vector_rank: one.vector_rank.unwrap_or(0),
                age: Duration::from_millis(u64::try_from(age_ms(&memory)).unwrap_or(0)),
                memory,
            })
        });
        hits.collect()
    }

    /// Queues the event of a recall, off the caller's path.
    fn record_recall(
        &self,
        tenant: &Tenant,
        request: &RecallRequest,
        hits: &[RecallHit],
        at: Timestamp,
    ) {
        if hits.is_empty() {
            return;
        }
        #[allow(clippy::cast_possible_truncation)]
        let hits = (1..).zip(hits).map(|(rank, hit)| Hit {
            id: hit.memory.id,
            rank,
            score: hit.score as f32,
        });
        let event = RecallEvent {
            at,
            session: request.session.clone(),
            query: fingerprint([request.query.trim().to_lowercase().as_bytes()]),
            hits: hits.collect(),
        };
        let config = self.config();
        let state = self.state(&tenant.id);
        if state.leave(move |writer| writer.record_recall(&event, &config.limits)) {
            self.shared.maintenance.add(&tenant.id);
        } else {
            state.counters.raise().recalls_lost += 1;
        }
    }
}

/// Searches. Where the vector does not fit those of the memories, it searches by words only, and
/// says why.
fn look_up(
    reader: &MemoryReader<'_>,
    request: &RecallRequest,
    vector: Option<&Embedding>,
    now: Timestamp,
) -> Result<(RecallLists, Option<String>), MemoryError> {
    match reader.recall(request, vector, now) {
        Err(misfit @ MemoryError::DimensionMismatch { .. }) => {
            let lists = reader.recall(request, None, now)?;
            Ok((lists, Some(misfit.to_string())))
        }
        found => Ok((found?, None)),
    }
}
