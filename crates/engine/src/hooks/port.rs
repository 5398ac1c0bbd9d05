//! The port of hooks: what they are called with, and what they may answer. The engine
//! owes, bounds, repeats and gives up; a hook only does.

use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use memoird_core::change::EndReason;
use memoird_core::compaction::Summary;
use memoird_core::ids::{DeliveryId, Generation, SessionId, Subject, TenantId};
use memoird_core::state::State;
use memoird_core::time::Timestamp;
use memoird_core::turn::Turn;
use thiserror::Error;

use crate::eraser::{EraseFuture, EraseRequest};

/// Something to do when a generation ends.
///
/// A delivery is made at least once: the daemon may die after a hook has done its work
/// and before that is written down. A hook that must not do it twice looks first.
pub trait Hook: Debug + Send + Sync + 'static {
    /// Calls that one delivery may hold. At least 1.
    fn batch_max(&self) -> usize {
        1
    }

    /// How long a call may wait for others to share a delivery with.
    fn batch_wait(&self) -> Duration {
        Duration::ZERO
    }

    /// Does it for each of these calls, and answers for each in their order; one that is
    /// missing in the answer counts as failed. Cancelled, by being dropped, at the time
    /// limit and when the daemon stops: what it started outside must then end as well.
    fn deliver(&self, calls: Vec<HookCall>) -> HookFuture<'_>;

    /// Erases what it wrote of a session or a subject; `None` where what it was given is out of
    /// its reach. No delivery of these generations is under way, and none comes.
    fn erase(&self, request: EraseRequest) -> Option<EraseFuture<'_>> {
        let _ = request;
        None
    }
}

/// The answers of a hook, on their way.
pub type HookFuture<'a> = Pin<Box<dyn Future<Output = Vec<Result<(), HookError>>> + Send + 'a>>;

/// One call of a hook.
#[derive(Clone, Debug)]
pub struct HookCall {
    /// The same at every repetition.
    pub delivery: DeliveryId,
    /// 1 for the first try.
    pub attempt: u32,
    /// When this try is made.
    pub at: Timestamp,
    /// The generation that ended.
    pub content: Arc<SessionContent>,
}

/// A generation that ended, whole.
#[derive(Clone, Debug, PartialEq)]
pub struct SessionContent {
    /// Whose it was.
    pub tenant: TenantId,
    /// The bot's own id of the session.
    pub session: SessionId,
    /// Which life of it.
    pub generation: Generation,
    /// Whose memories its facts become.
    pub subject: Option<Subject>,
    /// Why it ended.
    pub reason: EndReason,
    /// When it started.
    pub created_at: Timestamp,
    /// When it ended.
    pub ended_at: Timestamp,
    /// All its turns with their seqs, oldest first. Without a journal, those that its
    /// history still kept.
    pub turns: Vec<(u64, Turn)>,
    /// Turns that are not among them: too large to be held at once, or dropped when there
    /// was no journal to keep them.
    pub turns_omitted: u64,
    /// Its free-form JSON.
    pub state: State,
    /// What stood for its oldest exchanges when it ended, where something did. The turns
    /// that it stands for are among `turns` all the same.
    pub summary: Option<Arc<Summary>>,
}

/// Why a hook could not do it.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{problem}")]
pub struct HookError {
    /// For an operator, in a few words: no secret, and of what a program or a service said an excerpt.
    pub problem: String,
    /// Whether trying again may help.
    pub retry: Retry,
}

/// Whether trying again may help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// It may.
    Later,
    /// The receiver asked for this pause.
    After(Duration),
    /// It will not: the delivery is given up at once.
    Never,
}

impl HookError {
    /// Something that may be over when it is tried again.
    pub fn later(problem: impl Into<String>) -> Self {
        Self {
            problem: problem.into(),
            retry: Retry::Later,
        }
    }

    /// Something that trying again does not change.
    pub fn never(problem: impl Into<String>) -> Self {
        Self {
            problem: problem.into(),
            retry: Retry::Never,
        }
    }
}
