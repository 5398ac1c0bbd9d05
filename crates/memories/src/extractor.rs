//! The port of extractors: turns in, what a model found in them out. Memories lease, judge, commit
//! and repeat; an extractor only asks.

use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use memoird_core::ids::{Generation, SessionId, Subject, TenantId};
use memoird_engine::{ModelFault, TextEnd};

use crate::rules::prompt::TranscriptTurn;

/// Finds facts in conversations.
pub trait Extractor: Debug + Send + Sync + 'static {
    /// Names it in events and logs: a provider and its model.
    fn name(&self) -> &str;

    /// Tokens of turns that one call takes. At least 1,000.
    fn input_tokens_max(&self) -> u64;

    /// Asks for the facts. Repeats by itself what is worth repeating, within its time limit.
    /// Cancelled by being dropped.
    fn extract(&self, request: Arc<ExtractorRequest>) -> ExtractorFuture<'_>;
}

/// Turns in which facts are to be found.
#[derive(Clone, Debug)]
pub struct ExtractorRequest {
    /// Whose conversation it is.
    pub tenant: TenantId,
    /// Which session.
    pub session: SessionId,
    /// Which life of it.
    pub generation: Generation,
    /// Whose memories the facts become.
    pub subject: Subject,
    /// The turns, oldest first.
    pub turns: Vec<TranscriptTurn>,
    /// The manifest of the subject.
    pub manifest: String,
    /// The contents of memories that a recall gave to the session.
    pub recalled: Vec<String>,
    /// All of that for a model.
    pub prompt: String,
    /// Tokens that the answer may have.
    pub tokens_max: u64,
}

/// What an extractor answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtractorAnswer {
    /// All that it wrote.
    pub text: String,
    /// How it ended.
    pub end: TextEnd,
    /// Tokens of the prompt and of the answer, where the provider counts them.
    pub tokens: Option<(u64, u64)>,
}

/// The answer, on its way.
pub type ExtractorFuture<'a> =
    Pin<Box<dyn Future<Output = Result<ExtractorAnswer, ModelFault>> + Send + 'a>>;
