//! Search within one generation of a session, for the tool `read_earlier_turns`.

use std::collections::HashSet;

use memoird_engine::{
    FoundTurns, TranscriptQuery, TranscriptSearch, TranscriptSearchError, TranscriptSearchFuture,
};

use crate::error::SearchError;
use crate::request::{Hit, SearchPage, SearchRequest};
use crate::search::Search;

/// Hits per page and maximum number of pages read. Hits of the session's other generations count.
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
        let by_words = SearchRequest {
            query: query.words.to_owned(),
            ..SearchRequest::default()
        };
        let without = SearchRequest {
            tool: Some(query.without_tool.to_owned()),
            ..SearchRequest::default()
        };
        let matches = self.hits_in_generation(&query, by_words).await?;
        if matches.hits.is_empty() {
            return Ok(FoundTurns {
                is_incomplete: matches.incomplete,
                ..FoundTurns::default()
            });
        }
        let of_tool = self.hits_in_generation(&query, without).await?;
        let left_out: HashSet<u64> = of_tool.hits.iter().map(|hit| hit.seq).collect();
        let matching = matches.hits.into_iter();
        // Without context, a hit contains only its own turn.
        let mut turns: Vec<_> = matching
            .filter(|hit| !left_out.contains(&hit.seq))
            .filter_map(|hit| Some((hit.seq, hit.turns.into_iter().next()?)))
            .collect();
        let has_more = turns.len() > query.limit || matches.next.is_some();
        turns.truncate(query.limit);
        Ok(FoundTurns {
            turns,
            has_more,
            is_incomplete: matches.incomplete,
        })
    }

    /// Returns the first hits within the query's generation and seq range.
    async fn hits_in_generation(
        &self,
        query: &TranscriptQuery<'_>,
        request: SearchRequest,
    ) -> Result<SearchPage, SearchError> {
        let seqs = query.seqs.0..=query.seqs.1;
        let is_meant = |hit: &Hit| hit.generation == query.generation && seqs.contains(&hit.seq);
        let mut all = SearchPage::default();
        for _ in 0..PAGES_MAX {
            let request = SearchRequest {
                session: Some(query.session.clone()),
                limit: PAGE_HITS,
                page: all.next,
                ..request.clone()
            };
            let page = self.search(query.tenant, request).await?;
            all.hits.extend(page.hits.into_iter().filter(&is_meant));
            all.incomplete |= page.incomplete;
            all.next = page.next;
            if all.next.is_none() {
                break;
            }
        }
        Ok(all)
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
