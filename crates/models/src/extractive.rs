//! The extractive summarizer: the merged turns are the summary, without a model.

use std::sync::Arc;

use memoird_core::compaction::ModelSections;
use memoird_engine::{Summarizer, SummarizerFuture, SummarizerReply, SummaryRequest};

/// Adds nothing to `memoird_core::compaction::merge`. Deterministic, without network access.
#[derive(Clone, Copy, Debug, Default)]
pub struct ExtractiveSummarizer;

impl Summarizer for ExtractiveSummarizer {
    fn name(&self) -> &str {
        "extractive"
    }

    fn input_tokens_max(&self) -> u64 {
        u64::MAX
    }

    fn is_remote(&self) -> bool {
        false
    }

    fn summarize(&self, _: Arc<SummaryRequest>) -> SummarizerFuture<'_> {
        Box::pin(async { Ok(SummarizerReply::Written(ModelSections::default())) })
    }
}
