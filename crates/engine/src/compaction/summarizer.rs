//! The port of summarizers: models that write parts of a summary.
//!
//! The engine chooses the turns, merges, validates, repeats and stores.

use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use memoird_core::compaction::transcript::TranscriptTurn;
use memoird_core::compaction::{Summary, Written};
use memoird_core::ids::{Generation, SessionId, TenantId};
use memoird_core::mark::Mark;

use crate::model_fault::ModelFault;

/// Writes what a merge of turns cannot: which instructions hold, which questions are open, what
/// happened.
pub trait Summarizer: Debug + Send + Sync + 'static {
    /// Names it in summaries, metrics and logs: `extractive`, or a provider and its model.
    fn name(&self) -> &str;

    /// Tokens of turns that one call takes; longer spans come in chunks. At least 1,000.
    fn input_tokens_max(&self) -> u64;

    /// True when it calls a provider: then a breaker for all sessions protects it, and summaries
    /// are prepared before a window is full. One that is not remote writes nothing: the merge of
    /// the turns is the summary, made at the cut.
    fn is_remote(&self) -> bool;

    /// Summarizes. A remote one repeats by itself what is worth repeating, within its time
    /// limit. Cancelled by being dropped.
    fn summarize(&self, request: Arc<SummaryRequest>) -> SummarizerFuture<'_>;
}

/// Turns to be summarized.
#[derive(Clone, Debug)]
pub struct SummaryRequest {
    /// Whose conversation it is.
    pub tenant: TenantId,
    /// Which session.
    pub session: SessionId,
    /// Which life of it.
    pub generation: Generation,
    /// The last summary, which the answer must hold as well.
    pub previous: Option<Arc<Summary>>,
    /// Answers about chunks, oldest first, where the span was too long for one call.
    pub chunks: Vec<Written>,
    /// The turns, oldest first; none where only chunks are to become one.
    pub turns: Arc<[TranscriptTurn]>,
    /// Maximum size of the answer in tokens.
    pub tokens_max: u64,
    /// What the tags of a prompt bear.
    pub mark: Mark,
}

/// What a summarizer answered.
#[derive(Clone, Debug, PartialEq)]
pub enum SummarizerAnswer {
    /// As data.
    Written(Written),
    /// What a model wrote, to be read by `core::compaction::prompt::parse_answer`.
    Text {
        /// All of it.
        text: String,
        /// How it ended.
        end: TextEnd,
    },
}

/// How a model's answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextEnd {
    /// By itself.
    Complete,
    /// It reached the limit of tokens.
    CutOff,
    /// The model, or a filter, refused.
    Refused,
}

/// The answer, on its way.
pub type SummarizerFuture<'a> =
    Pin<Box<dyn Future<Output = Result<SummarizerAnswer, ModelFault>> + Send + 'a>>;
