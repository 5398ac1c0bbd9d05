//! The port of erasures: what keeps something of sessions beside the journal, and can erase it.

use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use memoird_core::ids::{Generation, SessionId, TenantId};
use memoird_store::EraseTarget;

/// What is to be erased.
#[derive(Clone, Debug)]
pub struct EraseRequest {
    /// Whose it is.
    pub tenant: TenantId,
    /// The session or the subject. What the journal has forgotten long ago is found by it.
    pub target: EraseTarget,
    /// The generations that the journal had of it, ascending, each with its session. Their rows
    /// are gone.
    pub generations: Arc<[(Generation, SessionId)]>,
}

/// What was erased.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ErasedElsewhere {
    /// Memories, older versions included.
    pub memories: u64,
    /// Commits that were written anew, or left out.
    pub commits: u64,
    /// What could not be reached, for people: no text, no path.
    pub outside: Vec<String>,
    /// Nothing was erased yet, because somebody else has to come first: it is asked again soon.
    pub has_to_wait: bool,
}

/// Something that keeps what was said, or what came of it.
///
/// It is asked again where it failed, or where the daemon died meanwhile, and then erases the
/// rest.
pub trait Eraser: Debug + Send + Sync + 'static {
    /// Its name in the log.
    fn name(&self) -> &'static str;

    /// Erases, from its files' pages too. Cancelled, by being dropped, when the daemon stops.
    fn erase(&self, request: EraseRequest) -> EraseFuture<'_>;
}

/// What was erased, or why not all was, for the log.
pub type EraseFuture<'a> =
    Pin<Box<dyn Future<Output = Result<ErasedElsewhere, String>> + Send + 'a>>;
