//! The `Extractor` port.
//!
//! An extractor only calls the model. Leasing turns, validating the reply, committing facts and
//! scheduling retries are up to its caller.

use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use memoird_core::ids::{Generation, SessionId, Subject, TenantId};
use memoird_engine::{ModelFault, TextEnd};

use crate::rules::prompt::TranscriptTurn;

/// Extracts facts from conversations with a model.
pub trait Extractor: Debug + Send + Sync + 'static {
    /// Name for events and logs: provider and model.
    fn name(&self) -> &str;

    /// Maximum tokens of turns per call, at least 1,000.
    fn input_tokens_max(&self) -> u64;

    /// Calls the model. Retries transient failures itself, within its time limit.
    ///
    /// Dropping the future cancels the call.
    fn extract(&self, request: Arc<ExtractorRequest>) -> ExtractorFuture<'_>;
}

/// Turns to extract facts from.
#[derive(Clone, Debug)]
pub struct ExtractorRequest {
    pub tenant: TenantId,
    pub session: SessionId,
    pub generation: Generation,
    /// Owner of the extracted memories.
    pub subject: Subject,
    /// The turns, oldest first.
    pub turns: Vec<TranscriptTurn>,
    pub manifest: String,
    /// Contents of memories that recalls showed to the session.
    pub recalled: Vec<String>,
    /// Prompt that contains the turns, the manifest and the recalled contents.
    pub prompt: String,
    /// Maximum tokens of the reply.
    pub tokens_max: u64,
}

/// Reply of the extraction model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtractorReply {
    pub text: String,
    /// Why the reply ended.
    pub end: TextEnd,
    /// Tokens of the prompt and of the reply, if the provider reports them.
    pub tokens: Option<(u64, u64)>,
}

pub type ExtractorFuture<'a> =
    Pin<Box<dyn Future<Output = Result<ExtractorReply, ModelFault>> + Send + 'a>>;
