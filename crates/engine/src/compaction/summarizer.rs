//! Port for summarizers: models that write parts of a summary.
//!
//! The engine selects the turns, merges, validates, retries and stores.

use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use memoird_core::compaction::transcript::TranscriptTurn;
use memoird_core::compaction::{ModelSections, Summary};
use memoird_core::ids::{Generation, SessionId, TenantId};
use memoird_core::nonce::Nonce;

use crate::model_fault::ModelFault;

/// Writes what merging turns cannot: active instructions, open questions, and what happened.
pub trait Summarizer: Debug + Send + Sync + 'static {
    /// Name in summaries, metrics and logs: `extractive`, or a provider and its model.
    fn name(&self) -> &str;

    /// Maximum tokens of turns per call, at least 1,000. Longer spans are split into chunks.
    fn input_tokens_max(&self) -> u64;

    /// Whether it calls a provider.
    ///
    /// Calls to a provider are protected by a global circuit breaker, and summaries are prepared
    /// before a window is full. A local summarizer writes nothing: the summary is the merge of the
    /// turns, made at the cut.
    fn is_remote(&self) -> bool;

    /// Remote implementations retry where useful, within their time limit.
    ///
    /// Dropping the future cancels the call.
    fn summarize(&self, request: Arc<SummaryRequest>) -> SummarizerFuture<'_>;
}

#[derive(Clone, Debug)]
pub struct SummaryRequest {
    pub tenant: TenantId,
    pub session: SessionId,
    pub generation: Generation,
    /// The previous summary. The reply must include its content.
    pub previous: Option<Arc<Summary>>,
    /// Summaries of chunks, oldest first, if the span was too long for one call.
    pub chunks: Vec<ModelSections>,
    /// Turns, oldest first. Empty if only chunks are to be merged.
    pub turns: Arc<[TranscriptTurn]>,
    /// Maximum tokens of the reply.
    pub tokens_max: u64,
    /// Nonce of the tags in the prompt.
    pub nonce: Nonce,
}

#[derive(Clone, Debug, PartialEq)]
pub enum SummarizerReply {
    Written(ModelSections),
    /// Text of a model, to be parsed by `core::compaction::prompt::parse_answer`.
    Text {
        text: String,
        /// Why the text ended.
        end: TextEnd,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextEnd {
    Complete,
    /// At the token limit.
    CutOff,
    /// The model or a content filter refused.
    Refused,
}

pub type SummarizerFuture<'a> =
    Pin<Box<dyn Future<Output = Result<SummarizerReply, ModelFault>> + Send + 'a>>;
