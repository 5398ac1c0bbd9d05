//! Searching in one generation of a session, for the tool `read_earlier_turns`.

use memoird_engine::{
    FoundTurns, TranscriptQuery, TranscriptSearch, TranscriptSearchError, TranscriptSearchFuture,
};

use crate::error::SearchError;
use crate::request::SearchRequest;
use crate::search::Search;

/// Hits of one page, and pages that are read. Hits of other generations of the session count.
const PAGE_HITS: usize = 100;
const PAGES_MAX: usize = 3;

impl TranscriptSearch for Search {
    fn find<'a>(&'a self, query: TranscriptQuery<'a>) -> TranscriptSearchFuture<'a> {
        Box::pin(self.find_in_generation(query))
    }
}

impl Search {
    async fn find_in_generation(
        &self,
        query: TranscriptQuery<'_>,
    ) -> Result<FoundTurns, TranscriptSearchError> {
        let mut found = FoundTurns::default();
        let mut page = None;
        for _ in 0..PAGES_MAX {
            let request = SearchRequest {
                query: query.words.to_owned(),
                session: Some(query.session.clone()),
                limit: PAGE_HITS,
                page,
                ..SearchRequest::default()
            };
            let hits = self.search(query.tenant, request).await?;
            found.is_incomplete |= hits.incomplete;
            let seqs = query.seqs.0..=query.seqs.1;
            let own = hits
                .hits
                .into_iter()
                .filter(|hit| hit.generation == query.generation && seqs.contains(&hit.seq));
            // Without turns around it, a hit has its own turn only.
            found
                .turns
                .extend(own.filter_map(|hit| Some((hit.seq, hit.turns.into_iter().next()?))));
            found.has_more = found.turns.len() > query.limit || hits.next.is_some();
            page = hits.next;
            if page.is_none() || found.turns.len() >= query.limit {
                break;
            }
        }
        found.turns.truncate(query.limit);
        Ok(found)
    }
}

impl From<SearchError> for TranscriptSearchError {
    fn from(error: SearchError) -> Self {
        match error {
            SearchError::Engine(error) => Self::Engine(error),
            SearchError::QueryEmpty => Self::NoWords,
            SearchError::Off | SearchError::NotReady | SearchError::Failed { .. } => Self::NotReady,
        }
    }
}
