//! The port for searching the transcript of a session by words.

use std::fmt::Debug;
use std::pin::Pin;
use std::sync::Arc;

use memoird_core::ids::{Generation, SessionId};

use crate::error::EngineError;
use crate::tenants::Tenant;

/// A full-text index over transcripts.
pub trait TranscriptSearch: Debug + Send + Sync + 'static {
    /// Finds turns of one generation, best match first.
    fn find<'a>(&'a self, query: TranscriptQuery<'a>) -> TranscriptSearchFuture<'a>;
}

/// Future of a search.
pub type TranscriptSearchFuture<'a> =
    Pin<Box<dyn Future<Output = Result<FoundTurns, TranscriptSearchError>> + Send + 'a>>;

/// Words to search for, and where.
#[derive(Clone, Copy, Debug)]
pub struct TranscriptQuery<'a> {
    pub tenant: &'a Arc<Tenant>,
    /// The client's session id.
    pub session: &'a SessionId,
    /// The generation to search.
    pub generation: Generation,
    /// The words.
    pub words: &'a str,
    /// First and last seq of the range to search.
    pub seqs: (u64, u64),
    /// Excludes the calls and results of this tool, because they repeat words and turns.
    pub without_tool: &'a str,
    /// Maximum number of turns.
    pub limit: usize,
}

/// The turns that match.
#[derive(Debug, Default)]
pub struct FoundTurns {
    /// Encoded turns with their seqs, best match first.
    pub turns: Vec<(u64, Arc<[u8]>)>,
    /// Whether more turns match than the limit allows.
    pub has_more: bool,
    /// Whether the newest turns may be missing from the index.
    pub is_incomplete: bool,
}

/// A search that failed.
#[derive(Clone, Debug)]
pub enum TranscriptSearchError {
    /// The query has no words.
    NoWords,
    /// The index cannot be read at the moment.
    NotReady,
    /// The journal cannot be read.
    Engine(EngineError),
}
