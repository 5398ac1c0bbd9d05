//! The port for searching the transcript of a session by words.

use std::fmt::Debug;
use std::pin::Pin;
use std::sync::Arc;

use memoird_core::ids::{Generation, SessionId};

use crate::error::EngineError;
use crate::tenants::Tenant;

pub trait TranscriptSearch: Debug + Send + Sync + 'static {
    /// Finds turns of one generation, best match first.
    fn find<'a>(&'a self, query: TranscriptQuery<'a>) -> TranscriptSearchFuture<'a>;
}

pub type TranscriptSearchFuture<'a> =
    Pin<Box<dyn Future<Output = Result<FoundTurns, TranscriptSearchError>> + Send + 'a>>;

#[derive(Clone, Copy, Debug)]
pub struct TranscriptQuery<'a> {
    pub tenant: &'a Arc<Tenant>,
    /// The client's session id.
    pub session: &'a SessionId,
    pub generation: Generation,
    pub words: &'a str,
    /// First and last seq of the range to search.
    pub seqs: (u64, u64),
    /// Excludes the calls and results of this tool, because they repeat words and turns.
    pub without_tool: &'a str,
    pub limit: usize,
}

#[derive(Debug, Default)]
pub struct FoundTurns {
    /// Encoded turns with their seqs, best match first.
    pub turns: Vec<(u64, Arc<[u8]>)>,
    /// Whether more turns match than the limit allows.
    pub has_more: bool,
    /// Whether the newest turns may be missing from the index.
    pub is_incomplete: bool,
}

#[derive(Clone, Debug)]
pub enum TranscriptSearchError {
    /// The query has no words.
    NoWords,
    /// The index cannot be read at the moment.
    NotReady,
    Engine(EngineError),
}
