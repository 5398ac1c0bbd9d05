//! Recall: lexical and vector search, fusion, reranking, and the recall event.
//!
//! A single read transaction returns the hits of the lexical search (BM25 over the subject's own
//! memories) and of the vector search (cosine), and the neighbors in the conversation of the best
//! hits. Each of them gets both scores before they are fused.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use memoird_core::breaker::{Breaker, BreakerPolicy};
use memoird_core::idempotency::fingerprint;
use memoird_core::ids::Subject;
use memoird_core::time::Timestamp;
use memoird_engine::{Stopwatch, Tenant};
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use tracing::warn;

use super::storage::MemoryStorage;
use super::vectors::{TextVectors, without_secrets};
use crate::embedder::Purpose;
use crate::error::MemoryError;
use crate::lock;
use crate::requests::{RecallHit, RecallMode, RecallOutcome, RecallRequest};
use crate::reranker::Reranker;
use crate::rules::MemoryLimits;
use crate::rules::floor::Floor;
use crate::rules::fusion::{Candidates, Fused};
use crate::rules::manifest::{Caps, Manifest, manifest};
use crate::store::{Embedding, Hit, MemoryReader, RecallEvent};

/// Minimum depth of each list before fusion.
const DEPTH_MIN: usize = 50;
/// Note of a recall without a usable vector.
const BY_WORDS: &str = "the embedder gave no vector of use: searched by words only";

/// Note of a recall if the reranker returned no usable scores.
const NOT_RERANKED: &str =
    "the reranker gave no answer of use: ordered by words and meaning, as without one";

/// Circuit breaker of the reranker, because recalls wait for it.
const RERANKER_BREAKER: BreakerPolicy = BreakerPolicy {
    failures_max: 3,
    cool_down_ms: 30_000,
};

/// Recalls and manifests.
#[derive(Debug)]
pub struct Recall {
    pub(super) storage: Arc<MemoryStorage>,
    vectors: Arc<TextVectors>,
    reranker_breaker: Mutex<Breaker>,
    seconds: Histogram,
}

impl Recall {
    pub(super) fn new(storage: &Arc<MemoryStorage>, vectors: &Arc<TextVectors>) -> Self {
        Self {
            storage: Arc::clone(storage),
            vectors: Arc::clone(vectors),
            reranker_breaker: Mutex::default(),
            seconds: Histogram::new(exponential_buckets(0.000_25, 2.0, 14)),
        }
    }

    /// Duration of recalls, including the embedding of the query.
    pub(super) fn seconds(&self) -> Histogram {
        self.seconds.clone()
    }

    /// Finds memories.
    ///
    /// # Errors
    /// [`MemoryError::Invalid`], [`MemoryError::NoEmbedder`], a failed embedder if the request
    /// demands vector search, or memories that cannot be read.
    pub async fn find(
        &self,
        tenant: &Arc<Tenant>,
        request: RecallRequest,
    ) -> Result<RecallOutcome, MemoryError> {
        let has_vector = !request.vector.is_empty() && request.mode != RecallMode::Lexical;
        if request.query.trim().is_empty() && !has_vector {
            let problem = "is empty; ListMemories lists without one";
            return Err(MemoryError::invalid("query", problem));
        }
        let request = self.checked_recall(request)?;
        let is_recorded = !request.explain;
        self.recall_checked(tenant, request, is_recorded, Floor::Nothing)
            .await
    }

    /// Runs a validated recall. Without `is_recorded` it leaves no trace.
    pub(super) async fn recall_checked(
        &self,
        tenant: &Arc<Tenant>,
        mut request: RecallRequest,
        is_recorded: bool,
        floor: Floor,
    ) -> Result<RecallOutcome, MemoryError> {
        let watch = Stopwatch::start();
        let names_none = request.subjects.is_empty() && request.subject_prefix.is_empty();
        if let (true, Some(session)) = (names_none, &request.session) {
            let head = self.storage.live_head(tenant, session, None).await?;
            let subject = head.and_then(|head| head.subject);
            request.subjects.extend(subject);
        }
        let mut notes = Vec::new();
        let vector = self.query_vector(&request, &mut notes).await?;
        let unrelated = vector
            .as_ref()
            .map_or(0.0, |vector| self.vectors.check.unrelated(&vector.model));
        let mut mode = match (&vector, request.mode) {
            (None, _) => RecallMode::Lexical,
            (Some(_), RecallMode::Vector) => RecallMode::Vector,
            (Some(_), _) => RecallMode::Hybrid,
        };
        let now = self.storage.now();
        let mut search = request.clone();
        let reranker = if request.without_reranker {
            None
        } else {
            self.storage.config().reranker.clone()
        };
        let judged_max = reranker
            .as_ref()
            .map_or(0, |reranker| reranker.documents_max());
        search.limit = request.limit.max(DEPTH_MIN).max(judged_max);
        if mode == RecallMode::Vector {
            // An empty query disables the lexical search.
            search.query.clear();
        }
        let look = move |reader: &MemoryReader<'_>| look_up(reader, &search, vector.as_ref(), now);
        let (mut candidates, misfit) = self.storage.read(&tenant.id, look).await?;
        if let Some(detail) = misfit {
            if !request.vector.is_empty() {
                return Err(MemoryError::invalid("vector", detail));
            }
            if mode == RecallMode::Vector {
                return Err(MemoryError::EmbedderFailed { detail });
            }
            warn!(detail, "a recall goes by words only");
            mode = RecallMode::Lexical;
            notes.push(BY_WORDS.to_owned());
        }
        let half_lives = self.storage.config().half_lives;
        let mut fused = half_lives.fuse(&candidates, unrelated, now);
        let mut is_reranked = false;
        if let Some(reranker) = reranker.filter(|_| fused.len() > 1)
            && !request.query.trim().is_empty()
        {
            let judged = self.judge(&*reranker, &request.query, &mut candidates, &fused);
            match judged.await {
                Ok(()) => {
                    fused = half_lives.fuse(&candidates, unrelated, now);
                    is_reranked = true;
                }
                Err(problem) => {
                    warn!(problem, "a recall goes without the reranker");
                    notes.push(NOT_RERANKED.to_owned());
                }
            }
        }
        fused.retain(|one| {
            let least = request.min_relevance;
            least.map_or_else(
                || floor.admits(&one.parts, candidates.searched),
                |least| one.parts.relevance >= least,
            )
        });
        fused.truncate(request.limit);
        let hits = fused.into_iter().map(|one| {
            let memory = candidates.list[one.place].memory.clone();
            RecallHit {
                score: one.score,
                lexical_rank: one.lexical_rank.unwrap_or(0),
                vector_rank: one.vector_rank.unwrap_or(0),
                age: Duration::from_millis(memory.age_ms(now)),
                parts: one.parts,
                memory,
            }
        });
        let hits: Vec<RecallHit> = hits.collect();
        if is_recorded {
            self.record_recall(tenant, &request, &hits, now);
        }
        let state = self.storage.state(&tenant.id);
        *state.counters().recalls(mode) += 1;
        self.seconds.observe(watch.seconds());
        Ok(RecallOutcome {
            hits,
            mode,
            is_reranked,
            notes,
        })
    }

    /// Returns the manifest of a subject. 0 lines or bytes select the maximum.
    pub async fn manifest(
        &self,
        tenant: &Tenant,
        subject: Subject,
        lines_max: usize,
        bytes_max: usize,
    ) -> Result<Manifest, MemoryError> {
        let at_most =
            |asked: usize, limit: usize| if asked == 0 { limit } else { asked.min(limit) };
        let caps = Caps {
            lines: at_most(lines_max, MemoryLimits::MANIFEST_LINES),
            bytes: at_most(bytes_max, MemoryLimits::MANIFEST_BYTES),
        };
        let now = self.storage.now();
        let read = move |reader: &MemoryReader<'_>| reader.manifest(&subject, now, caps.lines);
        let (memories, total) = self.storage.read(&tenant.id, read).await?;
        Ok(manifest(&memories, total, caps))
    }

    /// Validates a request and applies defaults and limits. The query may be empty.
    pub(super) fn checked_recall(
        &self,
        mut request: RecallRequest,
    ) -> Result<RecallRequest, MemoryError> {
        let config = self.storage.config();
        let has_vector = !request.vector.is_empty();
        let needs_embedder = request.mode == RecallMode::Vector && !has_vector;
        if needs_embedder && config.embedder.is_none() {
            return Err(MemoryError::NoEmbedder);
        }
        let end = request.query.floor_char_boundary(MemoryLimits::QUERY_BYTES);
        request.query.truncate(end);
        request.subjects.sort_unstable();
        request.subjects.dedup();
        let too_many = |field, count: usize, limit: usize, verb| {
            if count > limit {
                Err(MemoryError::invalid(
                    field,
                    format!("{count} {verb} more than {limit}"),
                ))
            } else {
                Ok(())
            }
        };
        let subjects = request.subjects.len();
        too_many("subjects", subjects, MemoryLimits::SUBJECTS, "are")?;
        let is_share = |least: f64| (0.0..=1.0).contains(&least);
        if let Some(least) = request.min_relevance.filter(|least| !is_share(*least)) {
            let problem = format!("{least} is not from 0 to 1");
            return Err(MemoryError::invalid("min_relevance", problem));
        }
        too_many("limit", request.limit, MemoryLimits::HITS, "is")?;
        too_many("tags", request.tags.len(), MemoryLimits::TAGS, "are")?;
        if request.limit == 0 {
            request.limit = config.recall_limit.min(MemoryLimits::HITS);
        }
        Ok(request)
    }

    /// Returns the vector of the query, or `None` for a lexical recall.
    ///
    /// Adds a note if the recall is lexical although the request asked for more.
    async fn query_vector(
        &self,
        request: &RecallRequest,
        notes: &mut Vec<String>,
    ) -> Result<Option<Embedding>, MemoryError> {
        if request.mode == RecallMode::Lexical {
            return Ok(None);
        }
        let asks_for_one = !request.vector.is_empty() || self.storage.config().embedder.is_some();
        if asks_for_one && !self.storage.store()?.has_vectors() {
            notes.push("the database has no pgvector: searched by words only".to_owned());
            return match request.mode {
                RecallMode::Vector => Err(MemoryError::NoVectors),
                _ => Ok(None),
            };
        }
        if let Some(given) = self.vectors.given_vector(request.vector.clone())? {
            return Ok(Some(given));
        }
        match self.vectors.vector_of(Purpose::Query, &request.query).await {
            Ok(None) if request.mode == RecallMode::Hybrid => {
                notes.push("no embedder is configured: searched by words only".to_owned());
                Ok(None)
            }
            Err(error) if request.mode != RecallMode::Vector => {
                // The failed check has already logged the collapse.
                if !self.vectors.check.is_collapsed() {
                    warn!(%error, "a recall goes by words only");
                }
                notes.push(BY_WORDS.to_owned());
                Ok(None)
            }
            vector => vector,
        }
    }

    /// Reranks the best candidates.
    ///
    /// # Errors
    /// Why the reranker failed. The candidates are unchanged then.
    async fn judge(
        &self,
        reranker: &dyn Reranker,
        query: &str,
        candidates: &mut Candidates,
        fused: &[Fused],
    ) -> Result<(), String> {
        let breaker = &self.reranker_breaker;
        let now = || self.storage.engine.machine.now().steady;
        if !lock(breaker).admits(now(), &RERANKER_BREAKER) {
            return Err(format!(
                "{} failed again and again, and has a pause",
                reranker.name()
            ));
        }
        let best = fused.iter().take(reranker.documents_max());
        let best: Vec<usize> = best.map(|one| one.place).collect();
        let content = |place: &usize| candidates.list[*place].memory.content.clone();
        let documents = best.iter().map(content).collect();
        let query = without_secrets(query, self.storage.config().secrets);
        let scores = reranker.rerank(query, documents).await;
        let is_good = |scores: &Vec<f64>| {
            scores.len() == best.len() && scores.iter().all(|score| (0.0..=1.0).contains(score))
        };
        let scores = match scores {
            Ok(scores) if is_good(&scores) => {
                lock(breaker).succeeded();
                scores
            }
            // A rejection of one tenant's texts must not open the breaker for the others.
            Err(fault) if fault.is_refusal() => return Err(fault.to_string()),
            failed => {
                lock(breaker).failed(now(), &RERANKER_BREAKER);
                let problem = failed.map(|_| "not a score for each text".to_owned());
                return Err(problem.unwrap_or_else(|fault| fault.to_string()));
            }
        };
        for (place, score) in best.into_iter().zip(scores) {
            candidates.list[place].judged = Some(score);
        }
        Ok(())
    }

    /// Queues the event of a recall without delaying the caller.
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
        let config = self.storage.config();
        let state = self.storage.state(&tenant.id);
        if state.leave(move |writer| writer.record_recall(&event, &config.limits)) {
            self.storage.maintenance.add(&tenant.id);
        } else {
            state.counters().recalls_lost += 1;
        }
    }
}

/// Searches by words and by vector.
///
/// If the vector's dimension does not match that of the memories, searches by words only and
/// returns the reason.
fn look_up(
    reader: &MemoryReader<'_>,
    request: &RecallRequest,
    vector: Option<&Embedding>,
    now: Timestamp,
) -> Result<(Candidates, Option<String>), MemoryError> {
    match reader.recall(request, vector, now) {
        Err(misfit @ MemoryError::DimensionMismatch { .. }) => {
            let candidates = reader.recall(request, None, now)?;
            Ok((candidates, Some(misfit.to_string())))
        }
        found => Ok((found?, None)),
    }
}
