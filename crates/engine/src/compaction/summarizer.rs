//! The port of summarizers: turns in, a summary out. The engine chooses the turns, validates
//! the answer, repeats and stores; a summarizer only computes.

use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use memoird_core::compaction::notes::Notes;
use memoird_core::compaction::transcript::TranscriptTurn;
use memoird_core::compaction::{Body, Summary};
use memoird_core::ids::{Generation, SessionId, TenantId};
use memoird_core::mark::Mark;

use crate::model_fault::ModelFault;

/// Makes the summary of a conversation's oldest turns.
pub trait Summarizer: Debug + Send + Sync + 'static {
    /// Names it in summaries, metrics and logs: `extractive`, or a provider and its model.
    fn name(&self) -> &str;

    /// Tokens of turns that one call takes; longer spans come in chunks. At least 1,000.
    fn input_tokens_max(&self) -> u64;

    /// True when it calls a provider: then a breaker for all sessions protects it.
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
    /// Summaries of chunks, oldest first, where the span was too long for one call.
    pub chunks: Vec<Body>,
    /// The turns, oldest first; none where only chunks are to become one.
    pub turns: Arc<[TranscriptTurn]>,
    /// What was noted of them.
    pub notes: Notes,
    /// Tokens that the answer may have.
    pub tokens_max: u64,
    /// What the tags of a prompt bear.
    pub mark: Mark,
}

/// What a summarizer answered.
#[derive(Clone, Debug, PartialEq)]
pub enum SummarizerAnswer {
    /// A summary as data.
    Body(Body),
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
