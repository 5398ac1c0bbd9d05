//! The search call. Candidates come from the index, and hits are read from the journal.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use memoird_core::ids::{Generation, SessionId, TenantId};
use memoird_core::time::Timestamp;
use memoird_core::turn::Role;
use memoird_core::words::Languages;
use memoird_core::words::ranking::{Query, Scorer};
use memoird_engine::{
    Engine, EngineError, HistoryQuery, HistoryScope, JournalRange, Stopwatch, Tenant,
};
use memoird_store::{
    SearchCandidate, SearchFilter, SearchIndex, SearchMatches, SearchedTurn, WrittenTurn, encoding,
};
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use tokio::sync::{Notify, Semaphore, watch};
use tracing::warn;

use crate::config::SearchConfig;
use crate::counters::SearchSnapshot;
use crate::error::SearchError;
use crate::indexer::Indexer;
use crate::lock;
use crate::request::{Hit, PageToken, SearchPage, SearchRequest};
use crate::words::snippet;

/// Maximum bytes of a query. The rest is ignored.
const QUERY_BYTES_MAX: usize = 4 << 10;
/// Maximum number of candidates per query with words. Limits paging, because each text is checked.
const CANDIDATES_MAX: usize = 512;
/// Turns per read from the journal.
const READ_TURNS: usize = 16;
/// Maximum concurrent searches, of all tenants and of one tenant. Further ones wait.
///
/// The second limit keeps a tenant from delaying others for long.
const SEARCHES_MAX: usize = 4;
const TENANT_SEARCHES_MAX: usize = 2;
/// How long a search waits for the index to catch up with the journal.
const CATCH_UP_WAIT: Duration = Duration::from_secs(1);
/// Maximum pause between two checks whether it has.
const STEP_WAIT: Duration = Duration::from_millis(100);
/// Maximum bytes of turns in a page, and in the context of one hit.
///
/// A hit with a larger context is returned without it.
///
/// gRPC clients accept messages of 4 MiB by default.
const PAGE_BYTES_MAX: usize = 2 << 20;
const AROUND_BYTES_MAX: usize = 512 << 10;

/// Full-text search over the turns of all tenants. Clones share the same state.
#[derive(Clone, Debug)]
pub struct Search {
    pub(crate) shared: Arc<SearchInner>,
}

/// State shared by calls and the worker.
#[derive(Debug)]
pub(crate) struct SearchInner {
    pub(crate) engine: Engine,
    pub(crate) config: SearchConfig,
    /// Number of indexing steps, to wait for the next one.
    pub(crate) steps: watch::Sender<u64>,
    /// Wakes the worker.
    pub(crate) wanted: Notify,
    pub(crate) counters: Mutex<SearchSnapshot>,
    places: Semaphore,
    tenant_places: Mutex<HashMap<TenantId, Arc<Semaphore>>>,
    seconds: Histogram,
}

/// A matching turn, before it is read for the response.
#[derive(Clone, Copy, Debug)]
struct Scored {
    score: f64,
    /// Number of the turn within the tenant.
    turn: u64,
    generation: Generation,
    seq: u64,
}

/// What scoring needs, on any thread.
#[derive(Clone, Debug)]
struct ScoringInput {
    matches: Arc<SearchMatches>,
    after: Option<Timestamp>,
    before: Option<Timestamp>,
}

impl Search {
    /// Starts search over the journal of `engine`.
    ///
    /// A worker updates the index until the engine is closed. If search is disabled, the index is
    /// removed. Without a journal, every search fails.
    pub async fn open(engine: Engine, config: SearchConfig) -> Self {
        let parts = SearchInner {
            config,
            steps: watch::Sender::new(0),
            wanted: Notify::new(),
            counters: Mutex::default(),
            places: Semaphore::new(SEARCHES_MAX),
            tenant_places: Mutex::default(),
            seconds: Histogram::new(exponential_buckets(0.000_25, 2.0, 14)),
            engine,
        };
        let search = Self {
            shared: Arc::new(parts),
        };
        let shared = &search.shared;
        let transcripts = &shared.engine.transcripts;
        if search.is_enabled() {
            let indexer = Indexer::new(Arc::clone(shared));
            shared.engine.run_worker_on_leader(indexer);
        } else if transcripts.have_journal() {
            // Without updates, the index would retain what the journal has deleted.
            let removed = transcripts
                .on_index(None, |index| index.remove_index())
                .await;
            if let Ok(Err(error)) = removed {
                warn!(%error, "the transcript index could not be removed");
            }
        }
        search
    }

    /// Returns the current metrics of the index.
    pub fn counts(&self) -> SearchSnapshot {
        *lock(&self.shared.counters)
    }

    /// Returns the histogram of search durations, for a metrics registry.
    pub fn seconds(&self) -> Histogram {
        self.shared.seconds.clone()
    }

    /// Whether transcripts can be searched.
    pub fn is_enabled(&self) -> bool {
        self.shared.config.enabled && self.shared.engine.transcripts.have_journal()
    }

    /// Searches turns of a tenant.
    ///
    /// # Errors
    /// [`SearchError`].
    pub async fn search(
        &self,
        tenant: &Arc<Tenant>,
        request: SearchRequest,
    ) -> Result<SearchPage, SearchError> {
        let watch = Stopwatch::start();
        let shared = &self.shared;
        if !shared.engine.transcripts.have_journal() {
            return Err(EngineError::JournalOff.into());
        }
        if !shared.config.enabled {
            return Err(SearchError::Off);
        }
        let is_by_words = check(&request)?;
        let incomplete = !self.catch_up(tenant).await;
        let closed = |_| SearchError::Engine(EngineError::Stopping);
        let of_tenant = self.places_of(&tenant.id);
        let _first = of_tenant.acquire().await.map_err(closed)?;
        let _then = shared.places.acquire().await.map_err(closed)?;
        let page = self.page(tenant, request, is_by_words).await?;
        shared.seconds.observe(watch.seconds());
        Ok(SearchPage { incomplete, ..page })
    }

    fn places_of(&self, tenant: &TenantId) -> Arc<Semaphore> {
        let mut places = lock(&self.shared.tenant_places);
        let new = || Arc::new(Semaphore::new(TENANT_SEARCHES_MAX));
        Arc::clone(places.entry(tenant.clone()).or_insert_with(new))
    }

    /// Waits until the index has all turns written so far by this tenant.
    ///
    /// Returns false on timeout.
    async fn catch_up(&self, tenant: &Tenant) -> bool {
        let has_all = async {
            let transcripts = &self.shared.engine.transcripts;
            transcripts.settled(tenant).await?;
            let last = transcripts.written_after(u64::MAX >> 1, 1, 1).await?;
            let mut steps = self.shared.steps.subscribe();
            loop {
                steps.mark_unchanged();
                let (id, number) = (tenant.id.clone(), last.last_number);
                let has_indexed = move |index: &dyn SearchIndex| index.has_indexed(&id, number);
                let outcome = transcripts.on_index(Some(&tenant.id), has_indexed).await?;
                if outcome.unwrap_or(false) {
                    return Ok::<_, EngineError>(());
                }
                self.shared.wanted.notify_one();
                // In a cluster, the leader may run the steps in another daemon.
                let _ = tokio::time::timeout(STEP_WAIT, steps.changed()).await;
            }
        };
        let waited = tokio::time::timeout(CATCH_UP_WAIT, has_all).await;
        matches!(waited, Ok(Ok(())))
    }

    async fn page(
        &self,
        tenant: &Arc<Tenant>,
        request: SearchRequest,
        is_by_words: bool,
    ) -> Result<SearchPage, SearchError> {
        let matches = self.find(tenant, &request, is_by_words).await?;
        let scoring = ScoringInput {
            matches: Arc::new(matches),
            after: request.after,
            before: request.before,
        };
        // Without words, the order is known before any turn is read.
        let enough = if is_by_words {
            usize::MAX
        } else {
            request.limit + 1
        };
        let mut scored = self.scoring(tenant, &scoring, enough).await?;
        scored.sort_by(|one, other| {
            other
                .score
                .total_cmp(&one.score)
                .then(other.turn.cmp(&one.turn))
        });
        if let Some(page) = request.page {
            scored.retain(|hit| page.is_before(hit.score, hit.turn));
        }
        let turns = request
            .page
            .map_or(scoring.matches.turns, |page| page.turns);
        self.read_page(tenant, &request, &scoring, &scored, turns)
            .await
    }

    /// Parses the query for the languages of the tenant, and looks up candidates.
    async fn find(
        &self,
        tenant: &Tenant,
        request: &SearchRequest,
        is_by_words: bool,
    ) -> Result<SearchMatches, SearchError> {
        let query = query(request).to_owned();
        let page = request.page;
        let filter = SearchFilter {
            tenant: tenant.id.clone(),
            session: request.session.clone(),
            subject: request.subject.clone(),
            after: request.after,
            before: request.before,
            roles: request.roles.clone(),
            tool: request.tool.clone(),
            // Without words, the next page consists of older turns.
            turns: page.map(|page| {
                if is_by_words {
                    page.turns
                } else {
                    page.number.saturating_sub(1)
                }
            }),
        };
        let find = move |index: &dyn SearchIndex| index.find(&filter, &query, CANDIDATES_MAX);
        let transcripts = &self.shared.engine.transcripts;
        let found = transcripts.on_index(Some(&tenant.id), find).await?;
        found?.ok_or(SearchError::NotReady)
    }

    /// Reads and scores candidates, best first, until `enough` of them match.
    async fn scoring(
        &self,
        tenant: &Tenant,
        scoring: &ScoringInput,
        enough: usize,
    ) -> Result<Vec<Scored>, SearchError> {
        let engine = &self.shared.engine;
        let mut scored = Vec::new();
        let candidates = &scoring.matches.candidates;
        for chunk in candidates.chunks(READ_TURNS) {
            let numbers = chunk.iter().map(|candidate| candidate.number);
            let turns = engine.transcripts.written_at(numbers.collect()).await?;
            let (scoring, chunk) = (scoring.clone(), chunk.to_vec());
            let look = move || scoring.look(&chunk, &turns);
            scored.extend(engine.readers.run(Some(&tenant.id), look).await?);
            if scored.len() >= enough {
                break;
            }
        }
        Ok(scored)
    }

    /// Reads the hits of a page with their context, from the tenant's own sessions.
    async fn read_page(
        &self,
        tenant: &Arc<Tenant>,
        request: &SearchRequest,
        scoring: &ScoringInput,
        scored: &[Scored],
        turns: u64,
    ) -> Result<SearchPage, SearchError> {
        let wanted = &scored[..scored.len().min(request.limit)];
        let generations = wanted.iter().map(|hit| hit.generation).collect();
        let owners = self.shared.engine.transcripts.owners(generations).await?;
        let own = owners
            .into_iter()
            .filter(|owner| owner.key.tenant == tenant.id);
        let sessions: HashMap<Generation, SessionId> = own
            .map(|owner| (owner.generation, owner.key.session))
            .collect();
        let (mut hits, mut bytes, mut seen) = (Vec::new(), 0, 0);
        for found in wanted {
            let hit = match sessions.get(&found.generation) {
                Some(session) => {
                    let around = self.around(tenant, session, found, request.context_turns);
                    let turns = around.await?;
                    scoring.hit(session, found, turns)
                }
                // Deleted in the meantime, or of another tenant.
                None => None,
            };
            if let Some(hit) = hit {
                bytes += hit.turns.iter().map(|turn| turn.len()).sum::<usize>();
                if bytes > PAGE_BYTES_MAX && !hits.is_empty() {
                    break;
                }
                hits.push(hit);
            }
            seen += 1;
        }
        let scored_last = wanted[..seen]
            .last()
            .filter(|_| seen < scored.len())
            .map(|last| (last.score, last.turn));
        // All candidates may have been deleted, while older turns still exist.
        let last = scored_last.or(scoring.matches.more_before.map(|turn| (0.0, turn)));
        let next = last.map(|(score, number)| PageToken {
            turns,
            score,
            number,
        });
        Ok(SearchPage {
            hits,
            next,
            incomplete: false,
        })
    }

    /// Reads a turn and its context from the tenant's own session. Empty if the turn was deleted.
    ///
    /// If they are too large together, returns the turn alone.
    async fn around(
        &self,
        tenant: &Arc<Tenant>,
        session: &SessionId,
        hit: &Scored,
        context_turns: usize,
    ) -> Result<Vec<Arc<[u8]>>, SearchError> {
        let before = (context_turns as u64).min(hit.seq.saturating_sub(1));
        for (before, behind) in [(before, context_turns), (0, 0)] {
            let query = HistoryQuery {
                scope: HistoryScope::Journal,
                generation: Some(hit.generation),
                range: JournalRange {
                    after_seq: hit.seq.saturating_sub(1 + before),
                    turns_max: usize::try_from(before).unwrap_or(0) + 1 + behind,
                    bytes_max: AROUND_BYTES_MAX,
                    ..JournalRange::ALL
                },
            };
            let commands = &self.shared.engine.commands;
            let page = match commands.history(tenant, session, query).await {
                Ok(page) => page,
                Err(
                    EngineError::SessionNotFound { .. } | EngineError::GenerationNotFound { .. },
                ) => return Ok(Vec::new()),
                Err(error) => return Err(error.into()),
            };
            if page.turns.len() as u64 > before {
                return Ok(page.turns);
            }
        }
        Ok(Vec::new())
    }
}

impl ScoringInput {
    /// Returns the candidates that match, with their score by text.
    fn look(&self, candidates: &[SearchCandidate], turns: &[WrittenTurn]) -> Vec<Scored> {
        let by_number: HashMap<u64, &WrittenTurn> =
            turns.iter().map(|turn| (turn.number, turn)).collect();
        let SearchMatches {
            query, statistics, ..
        } = &*self.matches;
        let scorer = Scorer::new(query, statistics);
        let has_words = !query.terms().is_empty();
        let mut scored = Vec::new();
        for candidate in candidates {
            let Some(written) = by_number.get(&candidate.number) else {
                continue;
            };
            let Some(turn) = SearchedTurn::open(written.seq, &written.content) else {
                continue;
            };
            let score = if has_words {
                scorer.score(&turn.text)
            } else {
                0.0
            };
            let is_late = self.after.is_none_or(|after| turn.at >= after);
            let is_early = self.before.is_none_or(|before| turn.at < before);
            let is_hit = !has_words || score > 0.0;
            if is_late && is_early && is_hit {
                scored.push(Scored {
                    score,
                    turn: candidate.turn,
                    generation: written.generation,
                    seq: written.seq,
                });
            }
        }
        scored
    }

    /// Builds a hit. `None` if its turn is not among `turns`.
    fn hit(&self, session: &SessionId, found: &Scored, turns: Vec<Arc<[u8]>>) -> Option<Hit> {
        let is_hit = |turn: &&Arc<[u8]>| {
            encoding::open_with_seq(turn).is_some_and(|(seq, _)| seq == found.seq)
        };
        let content = turns.iter().find(is_hit)?;
        let turn = SearchedTurn::open(found.seq, content)?;
        let (role, at): (Role, Timestamp) = (turn.role, turn.at);
        Some(Hit {
            session: session.clone(),
            generation: found.generation,
            seq: found.seq,
            role,
            at,
            snippet: snippet(&self.matches.query, &turn.text, &self.matches.statistics),
            score: found.score,
            turns,
        })
    }
}

/// Returns the part of the query that is used.
fn query(request: &SearchRequest) -> &str {
    let query = &request.query;
    &query[..query.floor_char_boundary(QUERY_BYTES_MAX)]
}

/// Returns whether the query has words. One without words needs a filter.
fn check(request: &SearchRequest) -> Result<bool, SearchError> {
    let has_filter = request.session.is_some()
        || request.subject.is_some()
        || request.after.is_some()
        || request.before.is_some()
        || request.tool.is_some()
        || !request.roles.is_empty();
    let has_words = !Query::new(query(request), Languages::default())
        .terms()
        .is_empty();
    let is_asked = has_words || has_filter && request.query.trim().is_empty();
    is_asked.then_some(has_words).ok_or(SearchError::QueryEmpty)
}

#[cfg(test)]
#[path = "search_tests.rs"]
mod tests;
