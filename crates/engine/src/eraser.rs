//! Port for erasing session data that is stored outside the journal.

use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use memoird_core::ids::{Generation, SessionId, TenantId};
use memoird_store::EraseTarget;

#[derive(Clone, Debug)]
pub struct EraseRequest {
    pub tenant: TenantId,
    /// Session or subject. Needed to find data whose journal entries were pruned long ago.
    pub target: EraseTarget,
    /// Generations of the target that were in the journal, ascending, each with its session.
    ///
    /// Their journal rows are already deleted.
    pub generations: Arc<[(Generation, SessionId)]>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ErasedElsewhere {
    /// Number of memory versions erased.
    pub memories: u64,
    /// Number of commits rewritten or dropped.
    pub commits: u64,
    /// Whether this was one step of several, and `erase` must be called again for the next one.
    pub has_more: bool,
    /// Human-readable list of what could not be reached. Contains no content and no paths.
    pub outside: Vec<String>,
}

/// Owner of session content, or of data derived from it, outside the journal.
///
/// After an error or a crash, `erase` is called again and must erase the remainder. Crashes in the
/// same call make the job wait, so a long erasure should take several calls.
pub trait Eraser: Debug + Send + Sync + 'static {
    fn name(&self) -> &'static str;

    /// Erases the data, including its remains in file pages. Dropped when the daemon stops.
    fn erase(&self, request: EraseRequest) -> EraseFuture<'_>;
}

/// Future of an erasure. The error is for the log.
pub type EraseFuture<'a> =
    Pin<Box<dyn Future<Output = Result<ErasedElsewhere, String>> + Send + 'a>>;
