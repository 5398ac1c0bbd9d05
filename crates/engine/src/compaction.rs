//! Compaction: replacing the oldest exchanges of a session by a summary, in the background.
//!
//! The summary is made from a snapshot, and committed only if the session has not changed since.
//!
//! Remote summarizers have a global circuit breaker, in addition to one per session.

mod attempt;
mod chunks;
mod near_limit;
mod queue;
mod remote_counts;
mod span;
mod summarize;
mod summarizer;
mod worker;

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use memoird_core::breaker::{Breaker, BreakerPolicy, BreakerState};
use memoird_core::compaction::{CompactionPolicy, Summary, Trigger};
use memoird_core::config::{AsText, Problems, Span};
use memoird_core::ids::SessionId;
use memoird_core::session::Session;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use crate::blocking::{Blocking, Executor, cores};
use crate::error::EngineError;
use crate::events::EventKind;
use crate::models::ModelRegistry;
use crate::sessions::{Decision, Effect, SessionRef, SessionView, Sessions, UpdateOptions};
use crate::stats::Stats;
use crate::tenants::{Tenant, ms};

pub(crate) use near_limit::NearLimit;
pub(crate) use queue::{CompactionQueue, CompactionRequest};
use remote_counts::RemoteCounts;
pub use summarizer::{Summarizer, SummarizerFuture, SummarizerReply, SummaryRequest, TextEnd};
pub(crate) use worker::CompactionWorker;

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct CompactionConfig {
    #[serde(skip)]
    pub policy: CompactionPolicy,
    /// Makes the summaries. Without one, windows are cut and nothing is compacted.
    #[serde(skip)]
    pub summarizer: Option<Arc<dyn Summarizer>>,
    /// Maximum concurrent compactions, at least 1.
    pub concurrency: usize,
    /// Maximum concurrent compactions per tenant.
    pub tenant_concurrency: usize,
    /// Timeout of one summary, across all its chunks.
    #[serde(with = "AsText::<Span>")]
    pub timeout: Duration,
    pub provider_breaker: ProviderBreaker,
}

/// Configuration of the global circuit breaker of a remote summarizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct ProviderBreaker {
    /// Consecutive failures that open it, at least 1.
    #[serde(rename = "failures")]
    pub failures_max: u32,
    /// How long it stays open.
    #[serde(with = "AsText::<Span>")]
    pub cool_down: Duration,
}

#[derive(Clone, Debug)]
pub struct CompactionOutcome {
    pub session: SessionView,
    /// The current summary. `None` if there is none and there was nothing to summarize.
    pub summary: Option<Arc<Summary>>,
    /// False if there was nothing to summarize.
    pub is_new: bool,
    /// Estimated tokens of the newly covered turns and of the previous summary.
    pub tokens_before: u64,
    pub tokens_after: u64,
}

#[derive(Clone, Debug)]
pub struct SessionDetail {
    pub session: SessionView,
    pub summary: Option<Arc<Summary>>,
}

impl CompactionConfig {
    /// Adds validation errors to `problems`. The policy is validated separately.
    pub fn check(&self, problems: &mut Problems) {
        const SECOND: Duration = Duration::from_secs(1);
        const HOUR: Duration = Duration::from_secs(60 * 60);
        let breaker = &self.provider_breaker;
        problems.range("concurrency", self.concurrency as u64, 1..=256);
        problems.range(
            "tenant_concurrency",
            self.tenant_concurrency as u64,
            1..=256,
        );
        problems.unless(
            self.tenant_concurrency <= self.concurrency,
            "tenant_concurrency",
            "must be at most concurrency",
        );
        let is_timeout = (SECOND..=HOUR).contains(&self.timeout);
        problems.unless(is_timeout, "timeout", "must be 1s to 1h");
        let failures = breaker.failures_max.into();
        problems.range("provider_breaker.failures", failures, 1..=100);
        problems.unless(
            (Duration::from_millis(1)..=24 * HOUR).contains(&breaker.cool_down),
            "provider_breaker.cool_down",
            "must be 1ms to 24h",
        );
    }

    /// Whether sessions are compacted automatically.
    pub(crate) fn is_on(&self) -> bool {
        self.policy.enabled && self.summarizer.is_some()
    }
}

impl Default for CompactionConfig {
    fn default() -> Self {
        Self {
            policy: CompactionPolicy::default(),
            summarizer: None,
            concurrency: 4,
            tenant_concurrency: 2,
            timeout: Duration::from_secs(120),
            provider_breaker: ProviderBreaker::default(),
        }
    }
}

impl Default for ProviderBreaker {
    fn default() -> Self {
        Self {
            failures_max: 3,
            cool_down: Duration::from_secs(60),
        }
    }
}

impl ProviderBreaker {
    fn policy(&self) -> BreakerPolicy {
        BreakerPolicy {
            failures_max: self.failures_max,
            cool_down_ms: ms(self.cool_down),
        }
    }
}

#[derive(Clone, Debug)]
pub struct Compaction {
    shared: Arc<CompactionInner>,
}

#[derive(Debug)]
struct CompactionInner {
    sessions: Sessions,
    queue: Arc<CompactionQueue>,
    config: ArcSwap<CompactionConfig>,
    models: Arc<ModelRegistry>,
    remote_counts: RemoteCounts,
    /// Global breaker of the remote summarizer.
    provider_breaker: Mutex<Breaker>,
    stats: Arc<Stats>,
    /// Threads that decode turns, and make and validate summaries.
    threads: Executor,
}

impl Compaction {
    pub(crate) fn new(
        config: CompactionConfig,
        sessions: Sessions,
        queue: Arc<CompactionQueue>,
        models: Arc<ModelRegistry>,
        stats: Arc<Stats>,
        blocking: Blocking,
    ) -> Self {
        queue.note_summarizer(config.summarizer.as_ref());
        let shared = CompactionInner {
            sessions,
            queue,
            config: ArcSwap::from_pointee(config),
            models,
            remote_counts: RemoteCounts::default(),
            provider_breaker: Mutex::default(),
            stats,
            threads: Executor::awaited(blocking, "summarizer", cores()),
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Applies a configuration. Resets the provider's breaker, as provider or key may have changed.
    pub(crate) fn reconfigure(&self, config: CompactionConfig) {
        self.queue().note_summarizer(config.summarizer.as_ref());
        self.shared.config.store(Arc::new(config));
        *self.shared.provider_breaker.lock() = Breaker::default();
    }

    fn config(&self) -> Arc<CompactionConfig> {
        self.shared.config.load_full()
    }

    fn sessions(&self) -> &Sessions {
        &self.shared.sessions
    }

    fn queue(&self) -> &Arc<CompactionQueue> {
        &self.shared.queue
    }

    pub fn pending(&self) -> usize {
        self.queue().pending()
    }

    /// Waits until no compaction is requested or running.
    pub async fn idle(&self) {
        self.queue().idle().await;
    }

    fn provider_policy(&self) -> BreakerPolicy {
        self.config().provider_breaker.policy()
    }

    /// Replaces the oldest exchanges of a session by a summary, and waits for it.
    ///
    /// Retains exactly `keep_exchanges` of the newest exchanges. The default is 5, or fewer if
    /// these need more than 30 % of the window.
    ///
    /// # Errors
    /// [`EngineError::SessionNotFound`], [`EngineError::CallPending`],
    /// [`EngineError::CompactionRunning`], [`EngineError::CompactionFailed`], or an error of the
    /// journal.
    pub async fn compact_session(
        &self,
        tenant: &Arc<Tenant>,
        session: &SessionId,
        keep_exchanges: Option<u32>,
    ) -> Result<CompactionOutcome, EngineError> {
        let session = SessionRef::new(tenant, session);
        // Fail early if the session does not exist.
        self.sessions().head(&session).await?;
        let (reply, answer) = oneshot::channel();
        let mut request = CompactionRequest::new(session, Trigger::Command);
        request.keep_exchanges = keep_exchanges;
        request.reply = Some(reply);
        self.queue().request_now(request)?;
        answer.await.unwrap_or(Err(EngineError::Stopping))
    }

    /// Undoes the last summary. Returns the session, and how many turns windows show again.
    ///
    /// # Errors
    /// [`EngineError::SessionNotFound`], [`EngineError::NoSummary`],
    /// [`EngineError::CompactionRunning`], or an error of the journal.
    pub async fn undo_compaction(
        &self,
        tenant: &Arc<Tenant>,
        session: &SessionId,
    ) -> Result<(SessionView, u64), EngineError> {
        let session = SessionRef::new(tenant, session);
        let is_stored = self.sessions().have_journal();
        let undone = self
            .sessions()
            .update(&session, UpdateOptions::of_live(0), |update| {
                let no_summary = || EngineError::NoSummary {
                    session: update.key.session.clone(),
                };
                let number = update.session.summary().ok_or_else(no_summary)?.number;
                if update.session.compaction().running {
                    return Err(EngineError::CompactionRunning);
                }
                let (change, restored) = update
                    .session
                    .undo_compaction(is_stored)
                    .ok_or(EngineError::JournalOff)?;
                let outcome = (update.view(), restored, number);
                let effect = Effect {
                    unloads: true,
                    ..Effect::change(change)
                };
                Ok(Decision::unused(outcome, Some(effect)))
            });
        let (view, restored, number) = undone.await?;
        tenant.stats.compaction.lock().undone += 1;
        let kind = EventKind::CompactionUndone { number };
        self.sessions()
            .publish(&session, view.head.generation, kind);
        Ok((view, restored))
    }

    /// Name and breaker state of the remote summarizer, if there is one.
    pub fn summarizer_state(&self) -> Option<(String, BreakerState)> {
        let config = self.config();
        let summarizer = config.summarizer.as_ref()?;
        if !summarizer.is_remote() {
            return None;
        }
        let now = self.sessions().now().steady;
        let state = self
            .shared
            .provider_breaker
            .lock()
            .state(now, &self.provider_policy());
        Some((summarizer.name().to_owned(), state))
    }

    /// Reads the details of a live session. Does not count as a use.
    pub async fn session_detail(
        &self,
        tenant: &Arc<Tenant>,
        session: &SessionId,
    ) -> Result<SessionDetail, EngineError> {
        let session = SessionRef::new(tenant, session);
        let detail = |session: &Session, view| SessionDetail {
            session: view,
            summary: session.summary().cloned(),
        };
        self.sessions().view(&session, detail).await
    }
}
