//! Summaries without a model: the merge of the turns is the summary.

use std::sync::Arc;

use memoird_core::compaction::Written;
use memoird_engine::{Summarizer, SummarizerAnswer, SummarizerFuture, SummaryRequest};

/// Adds nothing to the merge (`memoird_core::compaction::merge`). Deterministic, without a network.
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
        Box::pin(async { Ok(SummarizerAnswer::Written(Written::default())) })
    }
}
