//! Port for hooks: their configuration, input and results.
//!
//! The engine schedules, limits, retries and abandons deliveries. A hook only executes them.

use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use memoird_core::change::EndReason;
use memoird_core::compaction::Summary;
use memoird_core::config::{AsText, Problems, Size};
use memoird_core::ids::{DeliveryId, Generation, SessionId, Subject, TenantId};
use memoird_core::outbox::{RetryPolicy, Subscription};
use memoird_core::state::State;
use memoird_core::time::Timestamp;
use memoird_core::turn::Turn;
use serde::{Deserialize, Serialize};
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

/// The hooks and their limits. The three limits are in section `limits` of a configuration file.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct HooksConfig {
    /// Maximum concurrent attempts, across all hooks.
    #[serde(rename = "hooks_under_way")]
    pub concurrency: usize,
    /// Maximum bytes of turns per attempt. A larger generation is cut to its newest turns.
    #[serde(rename = "hook_content_bytes", with = "AsText::<Size>")]
    pub content_bytes: usize,
    /// Without a journal, maximum bytes of turns and states in pending deliveries.
    ///
    /// At most a quarter of `limits.memory` applies.
    #[serde(rename = "hook_memory_bytes", with = "AsText::<Size>")]
    pub memory_bytes: usize,
    /// How long shutdown waits for running attempts and, without a journal, for pending deliveries.
    #[serde(skip)]
    pub drain: Duration,
    /// The hooks, with unique names.
    #[serde(skip)]
    pub hooks: Vec<HookConfig>,
}

#[derive(Clone, Debug)]
pub struct HookConfig {
    /// Name of the hook, and the ends that it is called for.
    pub subscription: Subscription,
    /// Timeout of an attempt.
    pub timeout: Duration,
    /// Maximum concurrent attempts, at least 1.
    pub concurrency: usize,
    /// Schedule of retries after a failure.
    pub retry: RetryPolicy,
    pub hook: Arc<dyn Hook>,
}

impl HooksConfig {
    pub fn check(&self, problems: &mut Problems) {
        problems.at_least_one("hooks_under_way", self.concurrency);
        problems.at_least_one("hook_content_bytes", self.content_bytes);
        problems.at_least_one("hook_memory_bytes", self.memory_bytes);
    }
}

impl Default for HooksConfig {
    fn default() -> Self {
        Self {
            concurrency: 8,
            content_bytes: 64 << 20,
            memory_bytes: 256 << 20,
            drain: Duration::from_secs(10),
            hooks: Vec::new(),
        }
    }
}
