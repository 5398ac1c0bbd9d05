//! Erasure of indexed turns: their stems are removed immediately, also from the file's pages.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use memoird_core::ids::Generation;
use memoird_engine::{EraseFuture, EraseRequest, ErasedElsewhere, Eraser};

use crate::error::SearchError;
use crate::index::{Index, IndexResult};
use crate::lock;
use crate::search::Search;

/// Maximum number of turns per step.
const TURNS_MAX: usize = 500;

impl Search {
    async fn erase_generations(&self, generations: Vec<Generation>) -> Result<bool, SearchError> {
        let shared = &self.shared;
        let is_on = shared.engine.transcripts.have_journal() && shared.config.enabled;
        if !is_on || generations.is_empty() {
            return Ok(true);
        }
        // Wait until turns read from the journal before their deletion are indexed. They would be
        // added later.
        drop(shared.following.lock().await);
        let index = lock(&shared.index).clone().ok_or(SearchError::NotReady)?;
        let mut has_any = false;
        for generation in generations {
            loop {
                let gone = self
                    .on_index(&index, move |index| index.forget(generation, TURNS_MAX))
                    .await?;
                has_any |= gone > 0;
                if gone < TURNS_MAX {
                    break;
                }
            }
        }
        if !has_any && !shared.has_stale_stems.load(Ordering::Acquire) {
            return Ok(true);
        }
        // If a step fails, the next attempt merges again.
        shared.has_stale_stems.store(true, Ordering::Release);
        let mut is_first = true;
        while self
            .on_index(&index, move |index| index.merge_step(is_first))
            .await?
        {
            is_first = false;
        }
        let is_clean = self.on_index(&index, Index::clean).await?;
        shared.has_stale_stems.store(!is_clean, Ordering::Release);
        Ok(is_clean)
    }

    async fn on_index<T: Send + 'static>(
        &self,
        index: &Arc<Index>,
        action: impl FnOnce(&Index) -> IndexResult<T> + Send + 'static,
    ) -> Result<T, SearchError> {
        let index = Arc::clone(index);
        let blocking = self.shared.engine.blocking;
        Ok(blocking.run(move || action(&index)).await??)
    }
}

impl Eraser for Search {
    fn name(&self) -> &'static str {
        "search"
    }

    fn erase(&self, request: EraseRequest) -> EraseFuture<'_> {
        Box::pin(async move {
            let names = request.generations.iter().map(|(name, _)| *name);
            match self.erase_generations(names.collect()).await {
                Ok(true) => Ok(ErasedElsewhere::default()),
                Ok(false) => Err("somebody reads an older moment of the index".to_owned()),
                Err(SearchError::NotReady) => Ok(ErasedElsewhere {
                    has_to_wait: true,
                    ..ErasedElsewhere::default()
                }),
                Err(error) => Err(format!("{error:?}")),
            }
        })
    }
}
