//! Port for hooks: their input and results.
//!
//! The engine schedules, limits, retries and abandons deliveries. A hook only executes them.

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

/// An action to run when a generation ends.
///
/// Delivery is at least once: the daemon may crash after a hook has succeeded and before that is
/// recorded. A hook that must not run twice has to check for itself.
pub trait Hook: Debug + Send + Sync + 'static {
    /// Maximum calls per delivery batch, at least 1.
    fn batch_max(&self) -> usize {
        1
    }

    /// How long a call may wait for others to share a batch.
    fn batch_wait(&self) -> Duration {
        Duration::ZERO
    }

    /// Executes these calls. Returns one result per call, in the same order.
    ///
    /// A missing result counts as a failure. The future is dropped at the timeout and at shutdown;
    /// external processes and requests that it started must end then, too.
    fn deliver(&self, calls: Vec<HookCall>) -> HookFuture<'_>;

    /// Erases what it wrote about a session or subject. Returns `None` if that is impossible.
    ///
    /// No delivery of these generations is running, and none follows.
    fn erase(&self, request: EraseRequest) -> Option<EraseFuture<'_>> {
        let _ = request;
        None
    }
}

pub type HookFuture<'a> = Pin<Box<dyn Future<Output = Vec<Result<(), HookError>>> + Send + 'a>>;

/// Input of one hook call.
#[derive(Clone, Debug)]
pub struct HookCall {
    /// The same for every attempt.
    pub delivery: DeliveryId,
    /// Number of the attempt, from 1.
    pub attempt: u32,
    pub at: Timestamp,
    pub content: Arc<SessionContent>,
}

/// An ended generation with its content.
#[derive(Clone, Debug, PartialEq)]
pub struct SessionContent {
    pub tenant: TenantId,
    /// The client's session id.
    pub session: SessionId,
    pub generation: Generation,
    /// Owner of the memories extracted from the generation.
    pub subject: Option<Subject>,
    pub reason: EndReason,
    pub created_at: Timestamp,
    pub ended_at: Timestamp,
    /// All turns with their seqs, oldest first. Without a journal, only those still in the history.
    pub turns: Vec<(u64, Turn)>,
    /// Number of turns missing in `turns`, cut to limit the size or dropped without a journal.
    pub turns_omitted: u64,
    pub state: State,
    /// Summary of the oldest exchanges at the end, if any. `turns` includes those turns, too.
    pub summary: Option<Arc<Summary>>,
}

#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{problem}")]
pub struct HookError {
    /// For operators. Brief, without secrets, and with at most an excerpt of external output.
    pub problem: String,
    pub retry: Retry,
}

/// Whether a retry may succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// Retry with the configured schedule.
    Later,
    /// Retry after the pause requested by the receiver.
    After(Duration),
    /// Do not retry. The delivery is abandoned.
    Never,
}

impl HookError {
    pub fn later(problem: impl Into<String>) -> Self {
        Self {
            problem: problem.into(),
            retry: Retry::Later,
        }
    }

    pub fn never(problem: impl Into<String>) -> Self {
        Self {
            problem: problem.into(),
            retry: Retry::Never,
        }
    }
}
